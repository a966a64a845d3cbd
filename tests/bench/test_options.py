"""What the benches are given on the command line."""

from __future__ import annotations

import runpy
import signal
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    """A bench that runs as a program takes SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def run(monkeypatch: pytest.MonkeyPatch, name: str, *options: str) -> int:
    """Run ``python -m bench.NAME`` here; its exit code."""
    monkeypatch.setattr(sys, "argv", [name, *options])
    monkeypatch.delitem(sys.modules, f"bench.{name}.__main__", raising=False)  # as in a process of its own
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"bench.{name}", run_name="__main__", alter_sys=True)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("kills --only nobody", "none begins with 'nobody'; there are recall/python/sqlite, "),
        ("kills --only recall dbos/none", "dbos/python/sqlite"),
        ("kills --jobs -3", "'-3' is not a whole number of 1 or more"),
        ("kills --trials -1", "'-1' is not a whole number of 0 or more"),
        ("kills --moments some", "'some' is not a whole number of 0 or more"),
        ("files --faces nope", "'nope' is none of Python, shell"),
        ("files --files 0", "'0' is not a whole number of 1 or more"),
        ("files --runs 0", "'0' is not a whole number of 1 or more"),
        ("files --files 2 --kills 3", "--kills 3 are more than one for each of the files (--files 2)"),
        ("contention --processes 0", "'0' is not a whole number of 1 or more"),
        ("contention --processes a", "'a' is not a whole number of 1 or more"),
        ("contention --processes 4,4", "'4,4' names one twice"),
        ("contention --seconds 0", "'0' is not a number above 0"),
        ("contention --busy-timeout inf", "'inf' is not a number above 0"),
        ("soak --minutes nan", "'nan' is not a number above 0"),
        ("soak --store tape", "invalid choice: 'tape'"),
        ("soak --sav", "unrecognized arguments: --sav"),
        ("latency --sizes 10,x", "'x' is not a whole number of 0 or more"),
        ("latency --times 0", "'0' is not a whole number of 1 or more"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str, said: str
) -> None:
    """Exit code 2, the last line says what is wrong, and the usage before it names the command as it is run."""
    name, *options = given.split()
    assert run(monkeypatch, name, *options) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith(f"usage: python -m bench.{name} ")
    assert told[-1].startswith(f"python -m bench.{name}: error: ") and said in told[-1]
