"""Many agents in as many processes on one directory: how fast, how fairly, and is all of it there afterwards?

Two loads: turns alone, and whole steps (an external action begun and ended, and
a turn). Beside them, in the same run: what the disk can do (a bare write and
fdatasync), and the usual alternative, rows of the same size committed to one
plain SQLite database in WAL mode, by itself and behind Recall's write lock.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.contention.writer import TABLE, TEXT, plain
from bench.measure import ROOT, carried_out, compiled, scratch
from bench.report import Cell, Result, Table, arguments, command, listed, positive, whole
from recall_cli import Client
from store.backends.sqlite import SqliteBackend
from store.verify import Problem, verify
from store.views import View

LABELS = {
    "bare": "bare write + fdatasync",
    "sqlite": "plain SQLite, WAL",
    "queued": "the same, queued as Recall",
    "turns": "Recall, turns",
    "steps": "Recall, steps",
}
PLAIN = ("sqlite", "queued")
COLUMNS = (
    "load",
    "processes",
    "writes/s",
    "to one process",
    "p50 ms",
    "p99 ms",
    "longest ms",
    "slowest : fastest",
    "hand-overs",
    "refused",
    "not stored",
    "problems",
    "syncs a write",
)
SYNCED = 100  # units under strace


@dataclass
class Told:
    """What one writer did, as it told.

    Attributes:
        acknowledged: the names of its writes, each with the second after the common start.
        taken: milliseconds of each.
        refused: how often, by what was said.
        ended: seconds after the common start.
    """

    acknowledged: list[tuple[str, float]]
    taken: list[float]
    refused: dict[str, int]
    ended: float


@dataclass
class Setting:
    """What all writers of one run are given: the bytes of a row, and SQLite's busy timeout in seconds."""

    size: int
    timeout: float

    def argv(self, load: str, directory: Path, name: str) -> list[str]:
        module = "bench.contention.writer"
        return [sys.executable, "-m", module, load, str(directory), name, str(self.size), str(self.timeout)]


@contextmanager
def writers(commands: Sequence[Sequence[str]], limit: float) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ready to begin; none is left when the block ends, or after ``limit`` seconds."""
    started: list[subprocess.Popen[str]] = []

    def end() -> None:
        for process in started:
            process.kill()

    watchdog = threading.Timer(limit, end)
    watchdog.start()
    try:
        started.extend(
            subprocess.Popen(each, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for each in commands
        )
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("a writer did not start")
        yield started
    finally:
        watchdog.cancel()
        end()
        for process in started:
            process.communicate()


def run(commands: Sequence[Sequence[str]], seconds: float, most: int = sys.maxsize) -> list[Told]:
    """All of them at once, from one moment on."""
    with writers(commands, limit=seconds + 120) as processes:
        start = time.monotonic() + 0.2 + 0.005 * len(processes)
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{start} {seconds} {most}\n")
            process.stdin.flush()
        told = []
        for process in processes:
            assert process.stdout is not None
            told.append(Told(**json.loads(process.stdout.readline())))
        for process in processes:
            process.wait(60)
    return told


def syncs(setting: Setting, load: str, directory: Path) -> Cell:
    """Calls of fsync and fdatasync for each acknowledged write, as strace counts them; "" where it is missing."""
    if shutil.which("strace") is None:
        return ""
    trace = directory / f"{load}.strace"
    command = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,write", "-o", str(trace)]
    place = prepared(load, directory / f"{load}-traced", setting)
    told = run([[*command, *setting.argv(load, place, "a")]], 60, SYNCED)
    # Between what it says when it is ready and what it tells at the end: opening and closing sync too.
    calls = trace.read_text().partition('write(1, "ready')[2].partition('write(1, "{')[0]
    return len(re.findall(r"\bf(?:data)?sync\(", calls)) / len(told[0].acknowledged)


def prepared(load: str, directory: Path, setting: Setting) -> Path:
    """A new directory for a load, with what its writers expect to be there."""
    directory.mkdir()
    if load in PLAIN:
        with closing(plain(directory, setting.timeout)) as connection:
            connection.execute(TABLE)
    return directory


def stored(load: str, directory: Path, name: str, size: int) -> set[str]:
    """The names of the writes that are there, as the writer would have told them."""
    if load == "bare":
        return {f"line {n}" for n in range((directory / name).stat().st_size // size)}
    if load in PLAIN:
        with closing(plain(directory, 5)) as connection:
            return {f"row {n}" for (n,) in connection.execute("SELECT n FROM rows WHERE agent = ?", (name,))}
    with SqliteBackend(directory, read_only=True) as backend:
        view = View(backend, name)
        found = {f"turn {each.content.split()[0]}" for each in view.turns()}
        for action in view.actions():
            n = action.args.split()[0]
            found |= {f"begun {n}"} | ({f"ended {n}"} if action.status == "done" else set())
    return found


def problems(load: str, directory: Path) -> int:
    """What ``recall verify``, or SQLite's own check of a database, has to say."""
    if load == "bare":
        return 0
    if load in PLAIN:
        with closing(plain(directory, 5)) as connection:
            return sum(text != "ok" for (text,) in connection.execute("PRAGMA integrity_check"))
    with SqliteBackend(directory, read_only=True) as backend:
        return sum(isinstance(each, Problem) for each in verify(backend))


def line_bytes(directory: Path) -> int:
    """The bytes of one turn's record."""
    with Client(local_dir=directory) as client, client.resume("agent-00") as agent:
        agent.record_turn("assistant", f"1000 {TEXT}")
        return len(next(client.backend.log(agent.id, after=client.backend.counters(agent.id).lsn - 1)).line)


@dataclass
class Measured:
    """One load by so many processes."""

    rate: float
    taken: list[float]
    fairness: float
    hand_overs: float
    refused: Counter[str]
    lost: int
    problems: int

    def percentile(self, percent: int) -> float:
        """Milliseconds within which so many percent of the writes were acknowledged."""
        return statistics.quantiles(self.taken, n=100, method="inclusive")[percent - 1]


def hand_overs(told: Sequence[Told]) -> float:
    """The part of the writes that came right after one of another process."""
    order = [
        number for _, number in sorted((at, number) for number, one in enumerate(told) for _, at in one.acknowledged)
    ]
    return sum(a != b for a, b in pairwise(order)) / len(order)


def measure_one(setting: Setting, load: str, processes: int, seconds: float, directory: Path) -> Measured:
    """Let them write, and look whether all that was acknowledged is there."""
    prepared(load, directory, setting)
    names = [f"agent-{n:02}" for n in range(processes)]
    told = run([setting.argv(load, directory, name) for name in names], seconds)
    refused: Counter[str] = Counter()
    for each in told:
        refused.update(each.refused)
    lost = 0
    for each, name in zip(told, names, strict=True):
        lost += len({write for write, _ in each.acknowledged} - stored(load, directory, name, setting.size))
    counts = [len(each.acknowledged) for each in told]
    return Measured(
        rate=sum(counts) / max(each.ended for each in told),
        taken=[each for one in told for each in one.taken],
        fairness=min(counts) / max(counts),
        hand_overs=hand_overs(told),
        refused=refused,
        lost=lost,
        problems=problems(load, directory),
    )


def measure(processes: Sequence[int], seconds: float, timeout: float) -> tuple[Table, dict[str, Cell]]:
    """The table, and the figures that a text quotes. ``timeout`` is SQLite's, in seconds."""
    table, figures = Table("concurrency", COLUMNS), dict[str, Cell]()
    said: Counter[str] = Counter()
    alone: dict[str, float] = {}
    rows: dict[str, list[list[Cell]]] = {load: [] for load in LABELS}
    with scratch() as directory:
        setting = Setting(line_bytes(directory / "sample"), timeout)
        synced = {load: syncs(setting, load, directory) for load in LABELS}
        for count in processes:
            for load in LABELS:  # by turns: the machine drifts
                if load == "bare" and rows["bare"]:
                    continue
                many = 1 if load == "bare" else count
                found = measure_one(setting, load, many, seconds, directory / f"{load}-of-{many}")
                if load in PLAIN:
                    said += found.refused
                rows[load].append(
                    [
                        LABELS[load],
                        many,
                        round(found.rate),
                        found.rate / alone.setdefault(load, found.rate),
                        found.percentile(50),
                        found.percentile(99),
                        max(found.taken),
                        found.fairness,
                        found.hand_overs,
                        found.refused.total(),
                        found.lost,
                        found.problems,
                        synced[load],
                    ]
                )
                figures |= {
                    f"{load} {many} writes/s": round(found.rate),
                    f"{load} {many} p99 ms": round(found.percentile(99), 2),
                    f"{load} {many} fairness": round(found.fairness, 2),
                    f"{load} {many} refused": found.refused.total(),
                    f"{load} {many} lost": found.lost,
                }
    table.rows = [row for load in LABELS for row in rows[load]]
    table.notes = [
        f"{seconds:g} seconds a row; a write is one acknowledged call, of which a step has three.",
        "To one process: writes/s against those of the same load's first row.",
        "Slowest : fastest: how many writes the slowest process had acknowledged for each one of the fastest.",
        "Hand-overs: the part of all writes that followed one of another process.",
        "Not stored: acknowledged and not there afterwards. Problems: what recall verify finds, or integrity_check.",
        f"Plain SQLite and the bare file get {setting.size} bytes a write, as a turn's record has: BEGIN IMMEDIATE,"
        f" synchronous=FULL, a busy timeout of {timeout:g} s. Refused there: "
        + ("; ".join(f"{text} ({times:,} times)" for text, times in said.items()) or _nothing(seconds, timeout))
        + ".",
        f"Syncs a write: calls of fsync and fdatasync, counted by strace over {SYNCED} units of one process.",
    ]
    return table, figures


def _nothing(seconds: float, timeout: float) -> str:
    """What to say where nothing was refused: that it could have been, or that no row was long enough for it."""
    return "nothing" if seconds > timeout else "nothing, but no row was longer than that timeout"


def broken(table: Table) -> list[str]:
    """What in it is not as it has to be, a line each."""
    found = []
    for row in table.rows:
        cells = dict(zip(table.columns, row, strict=True))
        where = f"{cells['load']}, {cells['processes']} processes"
        if cells["not stored"] or cells["problems"]:
            found.append(f"{where}: {cells['not stored']} acknowledged and not stored, {cells['problems']} problems")
        if (
            str(cells["load"]).startswith("Recall")
            and cells["syncs a write"] != ""
            and float(cells["syncs a write"]) < 1
        ):
            found.append(f"{where}: {cells['syncs a write']} syncs a write")
    return found


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument(
        "--processes",
        type=listed(whole(1)),
        default="1,4,16,64",
        help="how many, a list of rising numbers (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=8.0,
        help="of each row; refusals show only where it is longer than the busy timeout (default: %(default)g)",
    )
    parser.add_argument(
        "--busy-timeout", type=positive, default=5.0, help="SQLite's, in seconds (default: %(default)g)"
    )
    given = parser.parse_args()
    compiled()
    table, figures = measure(given.processes, given.seconds, given.busy_timeout)
    result = Result("contention", command(), [table], figures)
    result.show()
    if given.save:
        result.save()
    found = broken(table)
    print(*found, sep="\n", end="\n" * bool(found), file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    carried_out(main)
