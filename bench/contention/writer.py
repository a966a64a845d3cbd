"""One process of the contention bench: ``python -m bench.contention.writer LOAD DIRECTORY NAME BYTES TIMEOUT``.

It opens its load, says ``ready``, reads one line ``START SECONDS MOST`` (START
on the monotonic clock, which all processes of a machine share), writes until
the seconds or MOST units are over, and prints what it did as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from recall_cli import Client
from store.agent import Agent
from store.backends.sqlite.lock import WriteLock
from store.errors import Unavailable

# What one unit of a load does, by its number: it yields the name of each write once that was acknowledged.
Unit = Callable[[int], Iterator[str]]

TEXT = "12 call sites found; migrating api/checkout.py first. " * 2
TABLE = "CREATE TABLE rows (agent TEXT, n INTEGER, line TEXT, PRIMARY KEY (agent, n)) WITHOUT ROWID"
INSERT = "INSERT INTO rows VALUES (?, ?, ?)"


@contextmanager
def _agent(directory: Path, name: str) -> Iterator[Agent]:
    with Client(local_dir=directory) as client, client.resume(name) as agent:
        yield agent


@contextmanager
def turns(directory: Path, name: str, size: int, timeout: float) -> Iterator[Unit]:
    """A turn, and nothing else."""
    with _agent(directory, name) as agent:

        def unit(n: int) -> Iterator[str]:
            agent.record_turn("assistant", f"{n} {TEXT}")
            yield f"turn {n}"

        yield unit


@contextmanager
def steps(directory: Path, name: str, size: int, timeout: float) -> Iterator[Unit]:
    """A whole step of an agent: the intent of an external call, its end, and the turn that tells of it."""
    with _agent(directory, name) as agent:

        def unit(n: int) -> Iterator[str]:
            action = agent.begin_action("send_email", "external", f"{n} {TEXT}")
            yield f"begun {n}"
            agent.end_action(action.seq, "done", "250 accepted")
            yield f"ended {n}"
            agent.record_turn("tool", f"{n} {TEXT}")
            yield f"turn {n}"

        yield unit


@contextmanager
def sqlite(directory: Path, name: str, size: int, timeout: float) -> Iterator[Unit]:
    """Rows as large as a turn's record, committed to a plain database in WAL mode, as careful as Recall is."""
    line = "x" * size
    with closing(plain(directory, timeout)) as connection:

        def unit(n: int) -> Iterator[str]:
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.execute(INSERT, (name, n, line))
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            yield f"row {n}"

        yield unit


@contextmanager
def queued(directory: Path, name: str, size: int, timeout: float) -> Iterator[Unit]:
    """The same rows, by processes that queue at Recall's write lock: what being fair costs by itself."""
    with sqlite(directory, name, size, timeout) as commit, closing(WriteLock(str(directory), 30)) as lock:

        def unit(n: int) -> Iterator[str]:
            with lock:
                done = list(commit(n))
            yield from done

        yield unit


@contextmanager
def bare(directory: Path, name: str, size: int, timeout: float) -> Iterator[Unit]:
    """Bytes as many as a turn's record, appended to a file and synced: what the disk can do."""
    descriptor = os.open(directory / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    sync, data = getattr(os, "fdatasync", os.fsync), b"x" * size

    def unit(n: int) -> Iterator[str]:
        os.write(descriptor, data)
        sync(descriptor)
        yield f"line {n}"

    try:
        yield unit
    finally:
        os.close(descriptor)


LOADS = {each.__name__: each for each in (turns, steps, sqlite, queued, bare)}


def plain(directory: Path, timeout: float) -> sqlite3.Connection:
    """A connection to the plain database, made if it is not there."""
    connection = sqlite3.connect(directory / "plain.db", timeout=timeout, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def write(unit: Unit, start: float, seconds: float, most: int) -> dict[str, object]:
    """Units one after another.

    Returns:
        What was acknowledged and at which second after the start, the
        milliseconds of each write, and what was refused.
    """
    acknowledged: list[tuple[str, float]] = []
    taken: list[float] = []
    refused: Counter[str] = Counter()
    time.sleep(max(0.0, start - time.monotonic()))
    n, before = 0, time.monotonic()
    while n < most and before < start + seconds:
        try:
            for done in unit(n):
                now = time.monotonic()
                acknowledged.append((done, now - start))
                taken.append(round((now - before) * 1e3, 3))
                before = now
        except (Unavailable, sqlite3.OperationalError) as problem:
            if isinstance(problem, sqlite3.OperationalError) and "locked" not in str(problem):
                raise
            refused[type(problem).__name__ + f": {problem}"] += 1
            before = time.monotonic()
        n += 1
    return {"acknowledged": acknowledged, "taken": taken, "refused": refused, "ended": before - start}


def main() -> None:
    load, directory, name, size, timeout = sys.argv[1:]
    with LOADS[load](Path(directory), name, int(size), float(timeout)) as unit:
        print("ready", flush=True)
        start, seconds, most = sys.stdin.readline().split()
        told = write(unit, float(start), float(seconds), int(most))
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is for the bench to tell of
    main()
