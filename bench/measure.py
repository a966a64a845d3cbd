"""What the benches share: a scratch directory on a real disk, means and medians, rows of ratios."""

from __future__ import annotations

import compileall
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory beside the project (not /tmp, which may be memory), removed at the end."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as made:
        yield Path(made)


def carried_out(main: Callable[[], object]) -> NoReturn:
    """Run a bench as a program; SIGTERM ends it as Ctrl-C does: what it started and made is gone, and one line says so.

    Args:
        main: what it does; an integer that it returns is the exit code.
    """
    by = signal.SIGINT

    def terminated(*_: object) -> None:
        nonlocal by
        by = signal.SIGTERM
        signal.signal(signal.SIGTERM, lambda *_: None)  # it is ending; a handler, since children would inherit SIG_IGN
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminated)
    try:
        code = main()
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(128 + by)
    sys.exit(code if isinstance(code, int) else 0)


def mean_us(work: Callable[[], object], times: int) -> float:
    """Mean microseconds of a call, everything that it causes included."""
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) / times * 1e6


def median_ms(work: Callable[[], object], times: int) -> float:
    """Median milliseconds of a call."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)


def processes_ms(commands: dict[str, Sequence[str]], times: int, environ: dict[str, str]) -> dict[str, float]:
    """Median milliseconds of whole processes, taken in turn so that a drift of the machine hits all alike."""
    compiled()
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for round_ in range(times + 1):
        for name, command in commands.items():
            start = time.perf_counter()
            subprocess.run(
                command, check=True, env={**os.environ, **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            if round_:  # the first one warms the caches
                taken[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values) for name, values in taken.items()}


def compiled() -> None:
    """Have our modules compiled, as an installation has them, whatever the environment forbids."""
    for package in ("store", "recall_cli"):
        compileall.compile_dir(ROOT / package, quiet=1)


def fdatasync_us(path: Path, size: int, times: int) -> float:
    """Mean microseconds of appending ``size`` bytes to a file and making them durable."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    data = b"x" * size
    sync = getattr(os, "fdatasync", os.fsync)
    try:
        return mean_us(lambda: (os.write(descriptor, data), sync(descriptor)), times)
    finally:
        os.close(descriptor)
        os.unlink(path)


def family(pid: int | None, directory: Path) -> list[int]:
    """A process and those below it, and those that were started for something in ``directory`` and let go."""
    parents, found = {}, {pid} if pid is not None else set()
    for each in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            number = int(each.name)
            parents[number] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
            if f"{directory}/" in (each / "cmdline").read_text():
                found.add(number)
    while below := {number for number, parent in parents.items() if parent in found} - found:
        found |= below
    return sorted(found - {os.getpid()})


def megabytes(pids: Sequence[int]) -> float:
    """The memory of processes together (PSS); what they share with others counts in part."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return total / 1024


def end_all(find: Callable[[], Sequence[int]]) -> None:
    """End whatever ``find`` finds, by SIGTERM and then by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + 5
        for pid in find():
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while find() and time.monotonic() < until:
            time.sleep(0.05)


def row(label: str, figure: str, ratio: float | None = None, goal: float | None = None) -> None:
    """One line of a report: a figure, its ratio to the yardstick, and the goal for that ratio."""
    shown = "" if ratio is None else f"  {ratio:.2f} times"
    wanted = "" if goal is None else f"  (goal: at most {goal:g})"
    print(f"{label:<46} {figure:>14}{shown}{wanted}", flush=True)


def recall_command() -> str:
    """The installed command beside this interpreter."""
    return str(Path(sys.executable).with_name("recall"))
