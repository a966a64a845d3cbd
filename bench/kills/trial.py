"""One trial: a program is started, killed once, and started again until it has finished.

Where it dies is a point in a tool (the program says when it is there, and
waits), a moment (seconds after it began), or a number of system calls (strace
injects the signal).
"""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.kills.contenders import Contender, Place
from bench.kills.programs.world import ORDER, WAITING

STRACE = shutil.which("strace") or "strace"
_PATIENCE = 120.0  # seconds for one life of a program
_LIVES = 6  # starts until it has to have finished


class HarnessFailed(Exception):
    """The trial says nothing about the program; the message says why."""


@dataclass
class Kill:
    """Where to kill: one of the three.

    Attributes:
        point: ``tool:point``.
        after: seconds after the program began to resume.
        calls: the number of a system call.
        part: which of the program's processes, for ``after``; a number that chooses; 0 is all of them.
    """

    point: str = ""
    after: float | None = None
    calls: int | None = None
    part: int = 0


@dataclass
class Ended:
    """What one trial came to.

    Attributes:
        killed: whether it was killed where it should have been.
        waited: whether it left something to a person.
        effects: how often each tool had its effect in the world.
    """

    killed: bool
    waited: bool
    effects: dict[str, int]
    seconds: float

    @property
    def duplicates(self) -> int:
        """Effects that happened again. Reading again is none."""
        return sum(max(0, self.effects[tool] - 1) for tool in ("invoice", "email"))

    @property
    def losses(self) -> int:
        """Effects that never happened although the program said that all is done."""
        return sum(not self.effects[tool] for tool in ORDER)


def run(contender: Contender, setup: str, kill: Kill, base: Path) -> Ended:
    """One trial in a directory of its own, which is removed if it went as it has to.

    Raises:
        HarnessFailed: the program did not end by itself, or ended with an error.
    """
    with place(contender, base) as at:
        begun = time.perf_counter()
        killed = waited = False
        for life in range(_LIVES):
            code, hit = _live(contender, setup, at, kill if life == 0 else Kill())
            killed = killed or hit
            if hit:
                contender.after_kill(at)
            elif code == WAITING:
                waited = True
                contender.person(at)
            elif code == 0:
                contender.check(at)
                return Ended(killed, waited, counts(at.world), time.perf_counter() - begun)
            elif life and not (killed and life == 1):
                break
        log = (at.world / "log").read_text(errors="replace")[-2000:]
        raise HarnessFailed(f"{contender.key} {setup} {kill}: ended with {code} in {at.world}\n{log}")


@contextmanager
def place(contender: Contender, base: Path) -> Iterator[Place]:
    """A world without effects, and no store yet."""
    world, store = base / "world", base / "store"
    (world / "invoices").mkdir(parents=True)
    os.mkfifo(world / "told")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RECALL")}
    yield Place(world, store, {**environ, "RECALL_DIR": str(store), "WORLD": str(world), **contender.environ()})
    shutil.rmtree(base)


def counts(world: Path) -> dict[str, int]:
    """The effects in a world, by tool."""

    def lines(name: str) -> int:
        path = world / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    return {
        "lookup": lines("lookups"),
        "invoice": len(list((world / "invoices").iterdir())),
        "email": lines("emails"),
    }


def _live(contender: Contender, setup: str, at: Place, kill: Kill) -> tuple[int, bool]:
    """One life of the program: how it ended, and whether it was killed as it was to be."""
    argv = contender.argv(setup)
    if kill.calls is not None:
        inject = f"inject=all:signal=SIGKILL:when={kill.calls}"
        argv = [STRACE, "-f", "-qq", "-o", os.devnull, "-e", "trace=all", "-e", inject, *argv]
    told = os.open(at.world / "told", os.O_RDONLY | os.O_NONBLOCK)
    with (at.world / "log").open("ab") as log:
        process = subprocess.Popen(
            argv,
            env={**at.environ, "KILL_AT": kill.point},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        if kill.point:
            _hear(told, process, b"k", _PATIENCE)
        elif kill.after is not None and _hear(told, process, b"r", _PATIENCE):
            _over(process, kill.after)
        if process.poll() is None and (kill.point or kill.after is not None):
            victims = strike(process.pid, kill.part)
            for pid in victims:
                _gone(pid)
            return _ended(process, at), True
        code = _ended(process, at)
        return code, kill.calls is not None and code != 0 and code != WAITING
    finally:
        os.close(told)
        if process.poll() is None:
            strike(process.pid)
            process.wait()


def _ended(process: subprocess.Popen[bytes], at: Place) -> int:
    try:
        return process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        raise HarnessFailed(f"it does not end; see {at.world / 'log'}") from None


def _hear(told: int, process: subprocess.Popen[bytes], what: bytes, seconds: float) -> bool:
    """Wait until the program says it, or has ended."""
    deadline = time.monotonic() + seconds
    handle = os.pidfd_open(process.pid)
    try:
        while time.monotonic() < deadline:
            # Between two writers the pipe reads as ended: then there is nothing to wait for but the next one.
            ready, _, _ = select.select([told, handle], [], [], 1)
            said = os.read(told, 64) if told in ready else b""
            if what in said:
                return True
            if handle in ready:
                return False
            if not said:
                time.sleep(0.002)
    finally:
        os.close(handle)
    raise HarnessFailed(f"it never said {what!r}")


def _over(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait so long, or until it has ended."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)


def strike(root: int, part: int = 0) -> list[int]:
    """SIGKILL for a process and all below it, which are stopped first so that none sees another die.

    ``part``, if it is not 0, chooses a single one of them instead.
    """
    if part:
        tree = [root, *_below(root)]
        chosen = tree[part % len(tree)]
        with suppress(ProcessLookupError):
            os.kill(chosen, signal.SIGKILL)
        return [chosen]
    stopped: list[int] = []
    while True:
        new = [pid for pid in [root, *_below(root)] if pid not in stopped]
        if not new:
            break
        for pid in new:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return stopped


def _below(pid: int) -> list[int]:
    """The processes below another, parents first."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                children[int(stat[1])].append(int(entry.name))
    found = [pid]
    for each in found:
        found += children[each]
    return found[1:]


def _gone(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.001)
    raise HarnessFailed(f"process {pid} survives SIGKILL")


# -- how long, and how many calls ------------------------------------------------------------------


def undisturbed(contender: Contender, setup: str, base: Path) -> float:
    """Seconds from where the program begins to resume to its end."""
    with place(contender, base) as at:
        told = os.open(at.world / "told", os.O_RDONLY | os.O_NONBLOCK)
        with (at.world / "log").open("ab") as log:
            process = subprocess.Popen(
                contender.argv(setup), env=at.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            assert _hear(told, process, b"r", _PATIENCE), (at.world / "log").read_text()
            begun = time.perf_counter()
            if process.wait(_PATIENCE):
                raise HarnessFailed((at.world / "log").read_text()[-2000:])
            return time.perf_counter() - begun
        finally:
            os.close(told)


def calls(contender: Contender, setup: str, base: Path) -> range:
    """The numbers of system calls that are worth a kill: from the first one on the store or the world to the last."""
    with place(contender, base) as at:
        trace = base / "trace"
        argv = [STRACE, "-f", "-qq", "-o", str(trace), *contender.argv(setup)]
        told = os.open(at.world / "told", os.O_RDONLY | os.O_NONBLOCK)
        subprocess.run(argv, env=at.environ, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=300)
        os.close(told)
        made: dict[str, int] = defaultdict(int)
        first: dict[str, int] = {}
        for line in trace.read_text(errors="replace").splitlines():
            # A call that another process's line broke in two is counted where it was made.
            match = re.match(r"(\d+) +\w+\(", line)
            if match:
                made[match[1]] += 1
                if f"{at.store}/" in line or f"{at.world}/" in line:
                    first.setdefault(match[1], made[match[1]])
        return range(min(first.values()), max(made[pid] for pid in first) + 1)


def chance(*what: object) -> random.Random:
    """Random numbers that are the same for the same trial."""
    return random.Random("/".join(map(str, what)))
