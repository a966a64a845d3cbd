"""What the benches share."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.measure import ROOT

PROGRAM = """
import sys, time
from bench.measure import carried_out, scratch

def main():
    with scratch() as place:
        (place / "file").touch()
        print(place, flush=True)
        time.sleep(60)

carried_out(main)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_leaves_nothing(number: signal.Signals) -> None:
    """By Ctrl-C as by SIGTERM: its directory is gone, one line says why, and the exit code tells the signal."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as bench:
        assert bench.stdout is not None
        place = Path(bench.stdout.readline().strip())
        assert (place / "file").exists()
        bench.send_signal(number)
        _, said = bench.communicate(timeout=20)
    assert (bench.returncode, said) == (128 + number, "\ninterrupted\n")
    assert not place.exists()


@pytest.mark.parametrize(("told", "code"), [("None", 0), ("0", 0), ("1", 1), ("'a result'", 0)])
def test_what_a_bench_returns_is_its_exit_code(told: str, code: int) -> None:
    """An integer is; anything else is a success."""
    program = f"from bench.measure import carried_out; carried_out(lambda: {told})"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, timeout=20).returncode == code
