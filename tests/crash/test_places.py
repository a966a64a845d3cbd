"""Stores that are missing, foreign, cut, newer or garbage: each is one line, or what can be read."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteBackend
from store.client import Client
from store.errors import (
    Corrupt,
    NotFound,
    RecallError,
    StoreDamaged,
    StoreForeign,
    StoreMissing,
    StoreNewer,
    StoreReadOnly,
    StoreUnreadable,
    Unavailable,
)
from store.records import TURN, Draft
from tests.crash.stores import fill, read, refused
from tests.engine import SetClock, request, run_python, verified


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


# -- not a store --------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.mkdir(), lambda p: p.write_text("a file")])
def test_looking_at_a_missing_store_creates_nothing(place: Path, make: Callable[[Path], object]) -> None:
    """No directory, an empty one, or a file in its place: looking says so in one line and makes nothing."""
    make(place)
    before = sorted(place.parent.rglob("*"))
    problem = refused(StoreMissing, lambda: SqliteBackend(place, read_only=True))
    assert str(place) in problem.message
    assert sorted(place.parent.rglob("*")) == before


def test_a_file_in_the_directorys_place_is_refused_for_writing(place: Path) -> None:
    """A writer does not replace a file."""
    place.write_text("precious")
    refused(StoreReadOnly, lambda: SqliteBackend(place))
    assert place.read_text() == "precious"


def test_an_empty_database_file_is_an_empty_store(place: Path) -> None:
    """What a writer left that was killed at once reads as empty, and the next writer makes the store."""
    place.mkdir()
    (place / "recall.db").touch()
    assert read(place) == 0
    fill(place)
    assert len(verified(place)["a"]) == 4


def test_another_programs_database_is_left_alone(place: Path) -> None:
    """A SQLite database without our mark is refused for reading and writing, and not changed."""
    place.mkdir()
    with contextlib.closing(sqlite3.connect(place / "recall.db")) as other:
        other.execute("CREATE TABLE notes (text)")
        other.commit()
    before = (place / "recall.db").read_bytes()
    refused(StoreForeign, lambda: SqliteBackend(place, read_only=True))
    refused(StoreForeign, lambda: SqliteBackend(place))
    assert (place / "recall.db").read_bytes() == before


@pytest.mark.parametrize("content", [b"Dear diary, " * 100, b"xy", b"\x00" * 4096, os.urandom(8192)])
def test_a_file_that_is_no_database_is_left_alone(place: Path, content: bytes) -> None:
    """Text, zeros or noise named recall.db are refused in one line, and not changed."""
    place.mkdir()
    (place / "recall.db").write_bytes(content)
    refused(Corrupt, lambda: read(place))
    refused(Corrupt, lambda: SqliteBackend(place))
    assert (place / "recall.db").read_bytes() == content


def test_a_directory_named_like_the_database_is_refused(place: Path) -> None:
    """recall.db as a directory cannot be opened, which is said."""
    (place / "recall.db").mkdir(parents=True)
    refused(StoreUnreadable, lambda: SqliteBackend(place, read_only=True))
    refused(StoreUnreadable, lambda: SqliteBackend(place))


def test_a_symbolic_link_to_a_database_is_not_written_through(place: Path) -> None:
    """Locks and WAL belong to the directory; a link would split them, so a writer refuses it."""
    fill(place)
    linked = place.parent / "linked"
    linked.mkdir()
    (linked / "recall.db").symlink_to(place / "recall.db")
    assert "symbolic link" in refused(StoreUnreadable, lambda: SqliteBackend(linked)).message


def test_a_symbolic_link_to_the_directory_is_the_same_store(place: Path) -> None:
    """A directory by another name has the same lock and the same log."""
    fill(place)
    (place.parent / "linked").symlink_to(place)
    fill(place.parent / "linked")
    assert len(verified(place)["a"]) == 8


def test_a_lock_that_is_a_symbolic_link_is_refused(place: Path) -> None:
    """recall.lock is not followed, wherever it points."""
    place.mkdir()
    (place / "recall.lock").symlink_to(place.parent / "elsewhere")
    assert "recall.lock" in refused(StoreReadOnly, lambda: SqliteBackend(place)).message
    assert not (place.parent / "elsewhere").exists()


@pytest.mark.parametrize("name", ["a b?c#d%41&mode=memory", "größe €", "-rf", "new\nline", os.fsdecode(b"\xff\xfe")])
def test_a_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    """Characters that mean something in an URI, to a shell, or nothing in UTF-8 are only a name."""
    fill(tmp_path / name)
    assert read(tmp_path / name) == 4
    assert sorted(os.listdir(tmp_path)) == [name]


# -- damage -------------------------------------------------------------------------------


def test_a_database_cut_anywhere_never_ends_in_a_traceback(place: Path) -> None:
    """Truncated at each page boundary and in between: one of our errors, or records that are all right."""
    fill(place, 60)
    whole = (place / "recall.db").read_bytes()
    outcomes = set()
    for size in [*range(0, len(whole), 4096), 1, 99, 511, 4095, 4097, 9000, len(whole) - 1]:
        cut = place.parent / f"cut-{size}"
        cut.mkdir()
        (cut / "recall.db").write_bytes(whole[:size])
        for work in (read, fill):
            try:
                work(cut)
            except (Corrupt, Unavailable) as problem:
                outcomes.add(problem.code)
    assert "store_damaged" in outcomes


def test_noise_in_any_page_never_ends_in_a_traceback(place: Path) -> None:
    """Each page in turn overwritten: one of our errors, or what can be read."""
    fill(place, 60)
    whole = (place / "recall.db").read_bytes()
    noise = os.urandom(4096)
    for at in range(0, len(whole), 4096):
        hurt = place.parent / f"hurt-{at}"
        hurt.mkdir()
        (hurt / "recall.db").write_bytes(whole[:at] + noise + whole[at + 4096 :])
        for work in (read, fill):
            with contextlib.suppress(Corrupt, Unavailable):
                work(hurt)


@pytest.mark.parametrize("garbage", [b"", b"garbage" * 1000, os.urandom(4152 * 3)])
def test_a_garbage_wal_does_not_stop_the_store(place: Path, garbage: bytes) -> None:
    """A -wal that SQLite never wrote is no part of the log: the store reads and writes without it."""
    fill(place)
    (place / "recall.db-wal").write_bytes(garbage)
    assert read(place) == 4
    fill(place)
    assert len(verified(place)["a"]) == 8


def test_a_damaged_wal_keeps_every_commit_before_the_damage(place: Path) -> None:
    """A frame that was torn ends the log there, as after a loss of power; the chain of the rest is whole."""
    script = """
import os, sys
from store.backends.sqlite import SqliteBackend
from store.lease import LeaseRequest
from store.process import this_process
from store.records import Draft
backend = SqliteBackend(sys.argv[1])
fence = backend.acquire(LeaseRequest("a", "a" * 32, "h", this_process(), 60_000)).lease.fence
for _ in range(10):
    backend.append(fence, [Draft("turn", {"role": "user"}, seq=-1)])
os.kill(os.getpid(), 9)
"""
    run_python(script, place, code=-9)
    wal = place / "recall.db-wal"
    size = wal.stat().st_size
    with wal.open("r+b") as file:
        file.seek(size - 6000)
        file.write(b"\xff" * 100)
    (place / "recall.db-shm").unlink()  # as after a reboot
    backend = SqliteBackend(place)
    found = backend.counters("a").turns
    assert 0 < found < 10
    backend.append(backend.acquire(request("a", incarnation="b" * 32)).lease.fence, [Draft(TURN, {}, seq=-1)])
    backend.close()
    assert len(verified(place)["a"]) == found + 3


def test_a_newer_format_is_read_and_refused_for_writing(place: Path) -> None:
    """A store that a newer version has upgraded can be looked at; writing names both formats."""
    fill(place)
    with contextlib.closing(sqlite3.connect(place / "recall.db")) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {version + 1}")
    assert read(place) == 4
    problem = refused(StoreNewer, lambda: SqliteBackend(place))
    assert f"format {version + 1}" in problem.message
    assert f"format {version}" in problem.message


def test_a_store_upgraded_under_an_open_handle_is_refused_after_a_fork(place: Path) -> None:
    """A handle that opens the store again checks the format again."""
    script = """
import os, sqlite3, sys
from store.backends.sqlite import SqliteBackend
from store.errors import StoreNewer
backend = SqliteBackend(sys.argv[1])
pid = os.fork()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
other = sqlite3.connect(sys.argv[1] + "/recall.db")
other.execute("PRAGMA user_version = 999")
other.close()
try:
    backend.lease("a")
except StoreNewer as problem:
    print(problem.code)
"""
    assert run_python(script, place) == "store_newer\n"


# -- append-only ----------------------------------------------------------------------------

TAMPERING = [
    "UPDATE records SET line = '{}' WHERE lsn = 2",
    "UPDATE OR REPLACE records SET lsn = 3 WHERE lsn = 2",
    "DELETE FROM records WHERE lsn = 4",
    "DELETE FROM records",
    "INSERT OR REPLACE INTO records SELECT * FROM records WHERE lsn = 2",
    "REPLACE INTO records SELECT agent, branch, 2, epoch, key, kind, seq, name, 'x', at, hash FROM records LIMIT 1",
    "INSERT INTO records SELECT * FROM records WHERE lsn = 2 ON CONFLICT (agent, branch, lsn) DO UPDATE SET line = 'x'",
    "INSERT INTO records SELECT * FROM records WHERE lsn = 2 ON CONFLICT DO NOTHING",
    "UPDATE blobs SET data = x'00'",
    "DELETE FROM blobs",
    "REPLACE INTO blobs SELECT agent, name, x'00' FROM blobs",
    "INSERT INTO blobs SELECT * FROM blobs WHERE true ON CONFLICT (agent, name) DO UPDATE SET data = x'00'",
    "DELETE FROM leases",
    "UPDATE leases SET epoch = epoch - 1",
]


@pytest.mark.parametrize("statement", TAMPERING)
def test_the_database_itself_refuses_to_change_what_was_written(place: Path, statement: str) -> None:
    """UPDATE, DELETE, INSERT OR REPLACE and UPSERT by anybody's sqlite3 are refused, and the log is as it was."""
    with Client(local_dir=place) as client, client.resume("a") as agent:
        agent.record_turn("user", "one")
        agent.store_output("x" * 50_000, ref="big")
        agent.record_turn("user", "two")
    before = verified(place)
    with contextlib.closing(sqlite3.connect(place / "recall.db")) as connection:
        with pytest.raises(sqlite3.IntegrityError, match=r"append-only|kept for ever|never fall"):
            connection.execute(statement)
        connection.commit()
    assert verified(place) == before


# -- modes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_the_store_is_private_whatever_the_umask(place: Path, umask: int) -> None:
    """The directory is 0700 and each file in it 0600, those that SQLite makes included."""
    script = """
import os, sys
os.umask(int(sys.argv[2]))
from store.client import Client
client = Client(local_dir=sys.argv[1])
client.resume("a").record_turn("user", "x")
os.kill(os.getpid(), 9)
"""
    run_python(script, place, umask, code=-9)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in place.iterdir()}
    assert modes == dict.fromkeys(("recall.db", "recall.db-wal", "recall.db-shm", "recall.lock"), 0o600)


def test_a_store_whose_directory_was_deleted_is_one_line(place: Path) -> None:
    """Removed under an open client: later writes are refused or lost with the directory, never a traceback."""
    client = Client(local_dir=place, clock=SetClock())
    agent = client.resume("a")
    shutil.rmtree(place)
    with contextlib.suppress(RecallError):
        agent.record_turn("user", "x")
    with contextlib.suppress(RecallError):
        client.close()
    assert sys.exc_info() == (None, None, None)
    with pytest.raises(NotFound):
        SqliteBackend(place, read_only=True)


def test_damage_that_sqlite_finds_is_named_as_such(place: Path) -> None:
    """The message says that the store is damaged, and the hint says to copy it first."""
    fill(place, 60)
    data = bytearray((place / "recall.db").read_bytes())
    data[100:4096] = b"\xff" * 3996
    (place / "recall.db").write_bytes(data)
    problem = refused(StoreDamaged, lambda: SqliteBackend(place))
    assert "copy the directory" in problem.hint
