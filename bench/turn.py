"""A durable turn in process, against the bare write and fdatasync of the same bytes on the same disk.

Beside it, what is left of it when something is taken away: without Recall,
the same rows in SQLite; without SQLite, its log's bytes written and synced;
without the disk, the processor's time. A machine at work on something else
shows in the last of these first.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from bench.measure import fdatasync_us, mean_us, row, scratch
from recall_cli import Client
from store.backends.sqlite import files, schema, sql
from store.clock import SystemClock, SystemRandom
from store.records import Record

TURN = "12 call sites found; migrating api/checkout.py first. " * 2
TIMES, ROUNDS = 500, 20
CHECKPOINT = 250  # commits, as the store does it
FRAMES = 3 * (24 + 4096)  # what a turn adds to SQLite's log: a page each of records, of their index, of heads


def rows_in_sqlite(directory: Path, like: Record) -> Callable[[], object]:
    """A function that commits the rows of a turn to a database of the same schema, and does nothing else."""
    directory.mkdir()
    files.make_database(str(directory))
    connection = files.connect(files.for_writing(str(directory)))
    schema.tune(connection)
    schema.prepare(connection, str(directory), SystemClock(), SystemRandom())
    r, line, numbers = like, like.line.decode(), itertools.count(1)

    def commit() -> None:
        n = next(numbers)
        connection.execute("BEGIN IMMEDIATE")
        values = (r.agent, 1, n, r.epoch, f"turn:{n}", r.kind, n, "", line, r.at, r.hash)
        connection.execute(sql.RECORD_INSERT, values)
        connection.execute(sql.HEAD_WRITE, (r.agent, r.kind, n, "", 1, n, 0))
        connection.execute("COMMIT")
        if n % CHECKPOINT == 0:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    return commit


def frames_synced_us(path: Path) -> float:
    """Mean microseconds of a durable overwriting of a turn's part of the log, as SQLite does it in place."""
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    sync, data, offsets = getattr(os, "fdatasync", os.fsync), b"x" * FRAMES, itertools.cycle(range(CHECKPOINT))
    try:
        os.pwrite(descriptor, data * CHECKPOINT, 0)
        os.fsync(descriptor)
        return mean_us(lambda: (os.pwrite(descriptor, data, next(offsets) * FRAMES), sync(descriptor)), TIMES)
    finally:
        os.close(descriptor)


def main() -> None:
    with (
        scratch() as directory,
        Client(local_dir=directory / "store") as client,
        client.resume("billing-migrator") as agent,
    ):
        agent.record_turn("assistant", TURN)
        like = next(client.backend.log(agent.id, after=client.backend.counters(agent.id).lsn - 1))
        commit = rows_in_sqlite(directory / "rows", like)
        taken: dict[str, list[float]] = {"bare": [], "frames": [], "rows": [], "turn": [], "processor": []}
        for _ in range(ROUNDS):  # by turns: the disk's speed drifts
            taken["bare"].append(fdatasync_us(directory / "bare", len(like.line), TIMES))
            taken["frames"].append(frames_synced_us(directory / "frames"))
            taken["rows"].append(mean_us(commit, TIMES))
            before = time.process_time()
            taken["turn"].append(mean_us(lambda: agent.record_turn("assistant", TURN), TIMES))
            taken["processor"].append((time.process_time() - before) / TIMES * 1e6)
        stored = (directory / "store" / "recall.db").stat().st_size / (TIMES * ROUNDS)
    for name, label, goal in (
        ("bare", f"write + fdatasync of {len(like.line)} bytes", None),
        ("frames", f"write + fdatasync of {FRAMES:,} bytes, in place", None),
        ("rows", "the same rows in SQLite, without Recall", None),
        ("turn", "record_turn, checkpoints included", 2.0),
        ("processor", "… of it the processor's", None),
    ):
        ratio = statistics.median(each / bare for each, bare in zip(taken[name], taken["bare"], strict=True))
        row(label, f"{statistics.median(taken[name]):.0f} µs", ratio, goal)
    row("database bytes a turn", f"{stored:.0f}")


if __name__ == "__main__":
    main()
