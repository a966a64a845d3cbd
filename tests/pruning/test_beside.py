"""A prune beside those who work, and one that is cut short."""

from __future__ import annotations

import signal
import sqlite3
import threading
from pathlib import Path

import pytest

from store.access import once
from store.backends.sqlite import SqliteBackend
from store.client import Client
from store.errors import Stale
from store.pruning import prune
from tests.engine import python, run_python
from tests.keeping import problems
from tests.pruning.conftest import AGENT, acting, prune_stopped


def test_a_prune_that_was_stopped_goes_on_and_writes_nothing_twice(backend: SqliteBackend, directory: Path) -> None:
    """After the records were carried and nothing was cut, the same prune again only cuts."""
    base = backend.counters(AGENT).lsn
    with pytest.raises(Stale):
        prune_stopped(backend, base)
    del backend.cut
    middle = backend.counters(AGENT).lsn
    assert next(backend.log(AGENT)).lsn == 1
    done = prune(backend, AGENT, base)
    assert not done.kept
    assert backend.counters(AGENT).lsn == middle + 1  # the lease record of the second attempt
    assert problems(directory) == []
    assert prune(backend, AGENT, base).base == 0  # nothing left to do
    assert backend.counters(AGENT).lsn == middle + 1


def test_a_live_agent_is_pruned_beside_its_work(backend: SqliteBackend, directory: Path) -> None:
    """A process that holds the lease and its open handle go on over a prune by another one, and lose nothing."""
    one = acting(backend)
    action = one.begin_action("slow", "external", step="slow")
    other = SqliteBackend(directory)
    prune(other, AGENT, other.counters(AGENT).lsn, by="ops")
    other.close()
    assert one.record_turn("user", "still here").seq == 32
    assert one.end_action(action.seq, "done", "ok").status == "done"
    assert one.begin_action("slow", "external", step="slow").status == "done"
    one.release()
    assert problems(directory) == []


def test_writers_lose_nothing_to_a_prune(directory: Path) -> None:
    """Threads with handles of their own, on this agent and another, write while it is pruned again and again."""
    stop = threading.Event()
    wrote: dict[str, int] = {}

    def write(agent: str) -> None:
        with Client(local_dir=directory) as client, client.resume(agent) as one:
            while not stop.is_set():
                wrote[agent] = one.record_turn("user", f"{agent} {wrote.get(agent)}").seq

    threads = [threading.Thread(target=write, args=(agent,)) for agent in (AGENT, "other")]
    for each in threads:
        each.start()
    backend = SqliteBackend(directory)
    pruned = 0
    while pruned < 4:
        if len(wrote) == 2:
            pruned += prune(backend, AGENT, backend.counters(AGENT).lsn - 3, keep_turns=2).base > 0
    stop.set()
    for each in threads:
        each.join()
    assert backend.counters(AGENT).turns == wrote[AGENT]
    assert backend.counters("other").turns == wrote["other"] == len(list(backend.tail("other", "turn", limit=100_000)))
    backend.close()
    assert problems(directory) == []


def test_a_reader_in_a_transaction_sees_the_log_as_it_was(backend: SqliteBackend, directory: Path) -> None:
    """Somebody who reads with plain sqlite3 meanwhile keeps what he sees, and his end does no harm."""
    reader = sqlite3.connect(directory / "recall.db", isolation_level=None)
    reader.execute("BEGIN")
    (before,) = reader.execute("SELECT count(*) FROM records").fetchone()
    prune(backend, AGENT, backend.counters(AGENT).lsn)
    assert reader.execute("SELECT count(*) FROM records").fetchone() == (before,)
    reader.execute("COMMIT")
    assert reader.execute("SELECT count(*) FROM records").fetchone()[0] < before
    reader.close()
    once(backend, AGENT, lambda one: one.record_turn("user", "after"))
    assert problems(directory) == []


def test_the_database_refuses_deletions_before_and_after(backend: SqliteBackend, directory: Path) -> None:
    """The triggers that keep records are there again, to the letter."""
    statement = "SELECT name, sql FROM sqlite_master ORDER BY name"
    connection = sqlite3.connect(directory / "recall.db")
    before = connection.execute(statement).fetchall()
    prune(backend, AGENT, 10)
    assert connection.execute(statement).fetchall() == before
    for change in ("DELETE FROM records", "UPDATE records SET lsn = 0", "DELETE FROM blobs", "DELETE FROM branches"):
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(change)
    connection.close()


KILLED = """
import os, signal, sys
from store.backends.sqlite import SqliteBackend
from store.pruning import prune
where = sys.argv[2]
backend = SqliteBackend(sys.argv[1])
def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if where == "rebase":
    backend.rebase = kill
elif where == "inside":
    real = backend.cut
    backend.cut = lambda fence, base, before, after: real(fence, base, before, kill)
else:
    backend.shrink = kill
prune(backend, "billing", backend.counters("billing").lsn)
backend.shrink()
"""


@pytest.mark.parametrize("where", ["rebase", "inside", "after"])
def test_a_kill_leaves_the_old_log_or_the_new_one(directory: Path, where: str) -> None:
    """Killed before the cut, in the middle of its transaction or after it, the log is sound, and the prune goes on."""
    process = python(KILLED, directory, where)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert problems(directory) == []
    backend = SqliteBackend(directory)
    first = next(backend.log(AGENT)).lsn
    assert (first == 1) == (where != "after")
    base = backend.counters(AGENT).lsn
    prune(backend, AGENT, base)
    assert next(backend.log(AGENT)).lsn == base + 1
    one = acting(backend)
    assert one.begin_action("deploy", "external", {"to": "prod"}, step="deploy-v2").status == "done"
    one.release()
    backend.close()
    assert problems(directory) == []


FULL = """
import os, resource, signal, sys
from store.backends.sqlite import SqliteBackend
from store.errors import Unavailable
from store.pruning import prune
backend = SqliteBackend(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
real = backend.cut
def cut(*arguments):
    room = os.stat(os.path.join(sys.argv[1], "recall.db-wal")).st_size + 8192
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        return real(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
backend.cut = cut
try:
    prune(backend, "billing", backend.counters("billing").lsn)
except Unavailable as problem:
    print(problem.code)
backend.close()
"""


def test_a_disk_that_takes_no_more_leaves_the_log_as_it_was(directory: Path) -> None:
    """Where a write in the middle of the commit fails, nothing is lost; with room the same prune works."""
    with SqliteBackend(directory) as backend:
        base = backend.counters(AGENT).lsn
        lines = [each.line for each in backend.log(AGENT)]
    assert run_python(FULL, directory).strip() in ("store_full", "store_unreadable")
    assert problems(directory) == []
    with SqliteBackend(directory) as backend:
        assert [each.line for each in backend.log(AGENT)][: len(lines)] == lines
        prune(backend, AGENT, base)
        assert next(backend.log(AGENT)).lsn == base + 1
    assert problems(directory) == []
