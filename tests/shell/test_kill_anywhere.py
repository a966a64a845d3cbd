"""SIGKILL for the runner alone, at every system call of ``recall run`` that changes something.

A first run under strace lists its calls; then a step is run once for each,
killed on entering it, and run again until it ends.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.test_kill_anywhere import CHANGING, STRACE
from tests.engine import ROOT
from tests.needs import need
from tests.shell.conftest import AGENT, Shell

# Only the runner is traced (no -f): its command must not share its fate.
CALLS = f"{CHANGING},close,pipe2,clone,clone3,fork,vfork,wait4,kill"
LINE = re.compile(r"^(\w+)\((.*)")
STEP = ("--step", "s", "--wait", "30s", "--", "sh", "-c", "echo $RECALL_IDEMPOTENCY_KEY >> effects; echo out")
# Each part takes every 40th call; EVERY_CALL=1 takes all of them, in some twenty minutes.
STRIDE = 1 if os.environ.get("EVERY_CALL") else 40


def traced(shell: Shell, class_: str, *, inject: str = "", trace: Path | None = None) -> int:
    """Run the step under strace; its exit code."""
    calls = inject.partition(":")[0] or CALLS
    injection = ["-e", f"inject={inject}"] if inject else []
    runner = [sys.executable, "-m", "recall_cli", "run", "-a", AGENT, "--class", class_, *STEP]
    return subprocess.run(
        [STRACE, "-qq", "-o", str(trace or os.devnull), "-e", f"trace={calls}", *injection, *runner],
        env={**shell.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"},
        cwd=shell.here,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=120,
    ).returncode


def points(trace: Path) -> list[tuple[str, int]]:
    """The calls from the first one on the store to the end, each as (name, its number among those of its name)."""
    made: Counter[str] = Counter()
    found: list[tuple[str, int]] = []
    inside = False
    for line in trace.read_text().splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        name, arguments = match.groups()
        made[name] += 1
        inside = inside or "recall.lock" in arguments
        if inside and not (name == "openat" and "O_CREAT" not in arguments):
            found.append((name, made[name]))
    return found


@pytest.mark.parametrize(
    ("class_", "part"), [("external", 0), ("external", 10), ("external", 20), ("external", 30), ("idempotent", 5)]
)
def test_wherever_its_runner_dies_a_step_happens_once(shell: Shell, class_: str, part: int, tmp_path: Path) -> None:
    """Never two effects of an external step, never a done one without its effect; idempotent attempts share a key."""
    need("strace")
    trace = tmp_path / "trace"
    assert shell.recall("run", "--class", "pure", "--", "true").code == 0
    fresh = tmp_path / "fresh"
    shutil.copytree(shell.store, fresh)
    assert traced(shell, class_, trace=trace) == 0
    every = points(trace)
    assert len(every) > 60, every
    seen: Counter[str] = Counter()
    for name, number in every[part :: 16 if class_ == "idempotent" else 8]:
        shutil.rmtree(shell.store)
        shutil.copytree(fresh, shell.store)
        shell.effects.unlink(missing_ok=True)
        killed = traced(shell, class_, inject=f"{name}:signal=KILL:when={number}") != 0
        again = shell.recall("run", "--class", class_, *STEP)
        effects = shell.effects.read_text().split() if shell.effects.exists() else []
        where = (name, number, killed, again, effects)
        if class_ == "idempotent":
            assert again.code == 0, where
            assert again.out == "out\n", where
            assert 1 <= len(effects) <= 2 and len(set(effects)) == 1, where
        elif again.code == 8:
            assert shell.statuses()[-1] == "unknown", where
            assert len(effects) <= 1, where
            # The truth is told, and only then it runs again or is done.
            told = shell.recall("run", "--class", class_, "--resolver", "test -s effects", *STEP)
            assert told.code == 0, where
            assert shell.count() == 1, where
        else:
            assert (again.code, again.out, len(effects)) == (0, "out\n", 1), where
        assert shell.statuses()[-1] == "done", where
        assert shell.recall("verify").code == 0, where
        seen["killed" if killed else "ended before"] += 1
    assert seen["killed"] > seen["ended before"], seen
