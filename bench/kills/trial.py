"""One trial: a program is started, killed once, and started again until it has finished.

Where it dies is a point in a tool (the program says when it is there, and
waits), a moment (seconds after it began), or a number of system calls (strace
injects the signal).
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.kills.contenders import Contender, Place
from bench.kills.programs.world import ORDER, WAITING, counts

STRACE = shutil.which("strace") or "strace"
_PATIENCE = 120.0  # seconds for one life of a program
_LIVES = 6  # starts until it has to have finished


class HarnessFailed(Exception):
    """The trial says nothing about the program; the message says why."""


@dataclass
class Kill:
    """Where to kill, one of the three; and whether it can be found out afterwards.

    Attributes:
        point: ``tool:point``.
        after: seconds after the program began to resume.
        call: a system call by name and number, ``pwrite64:3``.
        part: which of the program's processes, for ``after``; a number that chooses; 0 is all of them.
        unsure: whether a resolver that is asked cannot tell.
    """

    point: str = ""
    after: float | None = None
    call: str = ""
    part: int = 0
    unsure: bool = False


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
    with place(contender, base, unsure=kill.unsure) as at:
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
def place(contender: Contender, base: Path, *, unsure: bool = False) -> Iterator[Place]:
    """A world without effects, and no store yet."""
    world, store, agent = base / "world", base / "store", f"{base.parent.name}-{base.name}"
    (world / "invoices").mkdir(parents=True)
    os.mkfifo(world / "told")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("RECALL")}
    environ |= {"WORLD": str(world), "RECALL_DIR": str(store), "RECALL_AGENT": agent, **contender.environ()}
    environ["UNSURE"] = "yes" if unsure else ""
    yield Place(world, store, agent, environ)
    shutil.rmtree(base)


@contextmanager
def _started(argv: Sequence[str], at: Place, kill_at: str = "") -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A life of the program, in a session of its own that is gone in the end, and the pipe on which it is heard."""
    told = os.open(at.world / "told", os.O_RDONLY | os.O_NONBLOCK)  # before it starts, which waits for a reader
    with (at.world / "log").open("ab") as log:
        process = subprocess.Popen(
            argv,
            env={**at.environ, "KILL_AT": kill_at},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process, told
    finally:
        os.close(told)
        strike(process.pid)
        process.wait()


def _live(contender: Contender, setup: str, at: Place, kill: Kill) -> tuple[int, bool]:
    """One life of the program: how it ended, and whether it was killed as it was to be."""
    argv = contender.argv(setup)
    if kill.call:
        name, _, number = kill.call.partition(":")
        inject = f"inject={name}:signal=SIGKILL:when={number}"
        argv = [STRACE, "-f", "-o", str(at.world / "trace"), "-e", inject, *argv]
    with _started(argv, at, kill.point) as (process, told):
        if kill.point:
            _hear(told, process, b"k", _PATIENCE)
        elif kill.after is not None and _hear(told, process, b"r", _PATIENCE):
            _over(process, kill.after)
        if process.poll() is None and (kill.point or kill.after is not None):
            strike(process.pid, kill.part)
            return _ended(process, at), True
        code = _ended(process, at)
        return code, bool(kill.call) and "+++ killed by SIGKILL +++" in (at.world / "trace").read_text()


def _ended(process: subprocess.Popen[bytes], at: Place) -> int:
    """How it ended, when none of its processes is left: what outlives its agent would be a fault."""
    deadline = time.monotonic() + _PATIENCE
    try:
        code = process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        raise HarnessFailed(f"it does not end; see {at.world / 'log'}") from None
    while left := members(process.pid):
        if time.monotonic() > deadline:
            raise HarnessFailed(f"processes {left} outlive their agent; see {at.world / 'log'}")
        time.sleep(0.001)
    return code


def _hear(told: int, process: subprocess.Popen[bytes], what: bytes, seconds: float) -> bool:
    """Wait until the program says it, or has ended."""
    deadline = time.monotonic() + seconds
    handle = os.pidfd_open(process.pid)
    try:
        while time.monotonic() < deadline:
            # Between two writers the pipe reads as ended: then there is nothing to wait for but the next one.
            ready, _, _ = select.select([told, handle], [], [], 1)
            said = b""
            if told in ready:
                with suppress(BlockingIOError):  # it read as ended, and the next writer has come since
                    said = os.read(told, 64)
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


def strike(session: int, part: int = 0) -> None:
    """SIGKILL for every process of a session, all stopped first so that none sees another die.

    ``part``, if it is not 0, chooses a single one of them instead.
    """
    there = members(session)
    if part and there:
        _signal(there[part % len(there)], signal.SIGKILL)
        return
    stopped: set[int] = set()
    while new := set(members(session)) - stopped:
        for pid in new:
            _signal(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def members(session: int) -> list[int]:
    """The living processes of a session, oldest first, as a rule."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, _, _, its = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(its) == session and state not in "ZX":
                    found.append(int(entry.name))
    return sorted(found)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


# -- how long, and how many calls ------------------------------------------------------------------


def undisturbed(contender: Contender, setup: str, base: Path) -> float:
    """Seconds from where the program begins to resume to its end: the shortest of three runs."""
    return min(_undisturbed(contender, setup, base / str(number)) for number in range(3))


def _undisturbed(contender: Contender, setup: str, base: Path) -> float:
    with place(contender, base) as at, _started(contender.argv(setup), at) as (process, told):
        assert _hear(told, process, b"r", _PATIENCE), (at.world / "log").read_text()
        begun = time.perf_counter()
        if process.wait(_PATIENCE):
            raise HarnessFailed((at.world / "log").read_text()[-2000:])
        return time.perf_counter() - begun


def calls(contender: Contender, setup: str, base: Path) -> list[str]:
    """The system calls of an undisturbed run that are worth a kill, each as ``name:number``.

    Of each process those from its first one on the store or the world to its
    last. The number counts the calls of that name, for that is how strace does.
    """
    with place(contender, base) as at:
        trace = base / "trace"
        argv = [STRACE, "-f", "-qq", "-o", str(trace), *contender.argv(setup)]
        with _started(argv, at) as (process, _):
            if _ended(process, at):
                raise HarnessFailed((at.world / "log").read_text()[-2000:])
        made: dict[str, Counter[str]] = defaultdict(Counter)
        begun: set[str] = set()
        found = []
        for line in trace.read_text(errors="replace").splitlines():
            # A call that another process's line broke in two is counted where it was made.
            match = re.match(r"(\d+) +(\w+)\(", line)
            if match:
                pid, name = match.groups()
                made[pid][name] += 1
                if f"{at.store}/" in line or f"{at.world}/" in line:
                    begun.add(pid)
                if pid in begun:
                    found.append(f"{name}:{made[pid][name]}")
        return found
