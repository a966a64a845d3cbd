"""Calls that an exception cuts short between any two steps: Ctrl-C, time-outs by signal, collected handles."""

from __future__ import annotations

import gc
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from recall_cli import Client
from store.errors import StoreBusy
from tests.engine import verified

OTHER = """
import sys
from recall_cli import Client
with Client(local_dir=sys.argv[1], lock_timeout=5) as client, client.resume("other") as agent:
    print(agent.record_turn("user", "from another process").seq)
"""


@contextmanager
def alarms(handler: object) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def nothing_collected() -> Iterator[None]:
    """What other tests left, their threads too, does not end in this block: an interrupt of a finalizer is lost."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


pytestmark = pytest.mark.timeout(method="thread")  # the alarm is the tests' own


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def test_interrupted_anywhere_the_handle_works_on_and_locks_nobody_out(tmp_path: Path) -> None:
    """KeyboardInterrupt at 300 random moments of writes and reads: the next call works, here and in other processes."""
    chance, interrupted = random.Random(7), 0
    with Client(local_dir=tmp_path / "s", lock_timeout=5) as client, client.resume("a", lease_ttl=600) as agent:
        with alarms(interrupt), nothing_collected():
            for _ in range(300):
                try:
                    signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.00002, 0.002))
                    for _ in range(20):
                        agent.record_turn("user", "hello")
                        agent.recent_turns(3)
                        agent.refresh()
                except KeyboardInterrupt:
                    interrupted += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
        assert interrupted > 200
        landed = agent.record_turn("user", "after").seq
        done = subprocess.run(
            [sys.executable, "-c", OTHER, str(tmp_path / "s")], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
        assert agent.record_turn("user", "after that").seq == landed + 1
    verified(tmp_path / "s")


def test_a_handler_that_writes_in_the_middle_of_a_write_is_refused_at_once(tmp_path: Path) -> None:
    """The write that it came into is whole, under the lock to its end; the handler is told that the store is busy."""
    refused: list[str] = []
    wrote: list[int] = []
    with Client(local_dir=tmp_path / "s", lock_timeout=20) as client, client.resume("a") as agent:

        def write(number: int, frame: FrameType | None) -> None:
            started = time.monotonic()
            try:
                wrote.append(agent.record_turn("user", "from the handler").seq)
            except StoreBusy as problem:
                refused.append(problem.message)
            assert time.monotonic() - started < 10

        with alarms(write):
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0007)
            turns = [agent.record_turn("user", "hello").seq for _ in range(400)]
        assert refused
        assert len({*turns, *wrote}) == len(turns) + len(wrote) == agent.refresh().turn_seq


def test_a_collected_client_never_makes_a_write_wait(tmp_path: Path) -> None:
    """The collector may run inside a transaction: closing a forgotten handle there does not wait for the lock."""
    with Client(local_dir=tmp_path / "s", lock_timeout=20) as client, client.resume("a") as agent:

        def forget(connection: sqlite3.Connection) -> float:
            other: list[object] = [kept.pop()]
            other.append(other)  # a cycle, which only the collector ends
            del other
            started = time.monotonic()
            gc.collect()
            return time.monotonic() - started

        kept = [Client(local_dir=tmp_path / "s", lock_timeout=20)]
        assert client.backend.transact(forget) < 5
        assert agent.record_turn("user", "on").seq == 1


def test_a_release_that_failed_can_be_tried_again(tmp_path: Path) -> None:
    """Busy at the release: it raises, the lease is still ours to give back, and the second try does."""
    with Client(local_dir=tmp_path / "s", lock_timeout=0.1) as client:
        agent = client.resume("a")
        with Client(local_dir=tmp_path / "s") as other:

            def while_locked(connection: sqlite3.Connection) -> None:
                with pytest.raises(StoreBusy):
                    agent.release()

            other.backend.transact(while_locked)
        assert agent.release()
        lease = client.backend.lease("a")
        assert lease is not None
        assert lease.state == "released"


STATEMENTS = (
    """INSERT OR REPLACE INTO records (rowid, agent, branch, lsn, epoch, key, kind, seq, name, line, at, hash)
       SELECT 2, 'zz', 1, 99, epoch, key, kind, seq, name, line, at, hash FROM records WHERE lsn = 1""",
    "INSERT OR REPLACE INTO blobs (rowid, agent, name, data) VALUES (1, 'zz', 'x', x'00')",
    """INSERT OR REPLACE INTO leases SELECT agent, lineage, branch, 0, incarnation, state, holder, host, boot, pidns,
       pid, start, ttl_ms, renewed_boot, renewed_boot_ms, renewed_wall_us, acquired_at, imported FROM leases""",
    "UPDATE leases SET agent = 'b'",
    "UPDATE leases SET epoch = 0",
    "DELETE FROM leases",
    "UPDATE branches SET start = 7",
    "DELETE FROM branches",
    "INSERT OR REPLACE INTO branches SELECT agent, branch, lineage, 7, start, start_hash, reason, at FROM branches",
)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_the_database_itself_keeps_history(tmp_path: Path, statement: str) -> None:
    """No statement of another program, by key or by rowid, changes records, blobs, branches or lets an epoch fall."""
    with Client(local_dir=tmp_path / "s") as client, client.resume("a", output_threshold=-1) as agent:
        agent.record_turn("user", "x" * 40_000)
        agent.record_turn("user", "y")
    connection = sqlite3.connect(tmp_path / "s" / "recall.db")
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)
    connection.close()
