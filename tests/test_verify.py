"""Verifying a store: what it finds, what it names, and what it cannot see by itself."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from store.audit import Row, Seen, Walk
from store.backend import Branch
from store.backends.sqlite import SqliteBackend
from store.canonical import encode_line, first_hash, key_of, next_hash
from store.client import Client
from store.verify import Problem, Saved, verify
from tests.keeping import Tamper, checked, fill, problems, set_aside, tampering

LINEAGE = "ab" * 16


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("filled") / "store"
    fill(directory)
    return directory


@pytest.fixture
def directory(tmp_path: Path, filled: Path) -> Path:
    shutil.copytree(filled, tmp_path / "store")
    return tmp_path / "store"


def test_a_sound_store_has_no_problem_and_says_its_head(directory: Path) -> None:
    """A history with blobs, two epochs and hostile text verifies, and its head is the newest record's hash."""
    assert problems(directory) == []
    backend = SqliteBackend(directory, read_only=True)
    newest = list(backend.log("billing"))[-1]
    backend.close()
    said = checked(directory, "billing")
    assert (said.lsn, said.hash, said.records) == (newest.lsn, newest.hash.hex(), newest.lsn)


def test_branches_that_were_set_aside_are_checked_too(directory: Path) -> None:
    """Every branch is read, nested ones as well, and a byte changed in what was set aside is found."""
    last = checked(directory, "billing").lsn
    set_aside(directory, "billing", 6, "diverged")
    set_aside(directory, "billing", 4, "diverged again")
    assert problems(directory) == []
    assert checked(directory, "billing").records == last + 3 + 3
    with tampering(directory) as connection:
        connection.execute("UPDATE records SET line = replace(line, 'after', 'AFTER') WHERE branch = 2")
    assert [each.partition(": ")[2] for each in problems(directory)] == [
        "its hash does not follow from its line and the record before it"
    ]


def sql(statement: str) -> Tamper:
    return lambda connection: connection.execute(statement)


def swap(connection: sqlite3.Connection) -> None:
    """Exchanges two records but for their lsn."""
    columns = "epoch, key, kind, seq, name, line, at, hash"
    rows = {lsn: row for lsn, *row in connection.execute(f"SELECT lsn, {columns} FROM records WHERE lsn IN (5, 6)")}
    for lsn, other in ((5, 6), (6, 5)):
        places = ", ".join(f"{name} = ?" for name in columns.split(", "))
        connection.execute(f"UPDATE records SET {places} WHERE lsn = ?", (*rows[other], lsn))


LINK = "its hash does not follow from its line and the record before it"


@pytest.mark.parametrize(
    ("tamper", "key", "reason"),
    [
        (sql("UPDATE records SET line = replace(line, 'turn 1', 'turn 9') WHERE lsn = 6"), "turn:2", LINK),
        (sql("UPDATE records SET hash = zeroblob(32) WHERE lsn = 6"), "turn:2", LINK),
        (sql("UPDATE records SET line = replace(line, ',\"key', ', \"key') WHERE lsn = 6"), "turn:2", "canonical form"),
        (sql("UPDATE records SET line = 'x' WHERE lsn = 6"), "turn:2", "not a JSON object"),
        (sql("UPDATE records SET line = CAST(x'ff' AS TEXT) WHERE lsn = 6"), "turn:2", "not a JSON object"),
        (sql("UPDATE records SET at = '2001-01-01T00:00:00Z' WHERE lsn = 6"), "turn:2", "but its line says"),
        (sql("UPDATE records SET epoch = 'x' WHERE lsn = 6"), "turn:2", "its epoch is 'x', but its line says '1'"),
        (sql("UPDATE records SET seq = 7 WHERE lsn = 6"), "turn:2", "key is not made of"),
        (sql("UPDATE records SET kind = 'output', name = 'n' WHERE lsn = 6"), "turn:2", "its kind is 'output'"),
        (sql("DELETE FROM records WHERE lsn = 6"), "turn:3", "lsn 6 is missing before it"),
        (sql("DELETE FROM records WHERE lsn IN (6, 7)"), "tool:search", "lsn 6 to 7 are missing before it"),
        (swap, "turn:2", "its lsn is '5', but its line says '6'"),
        (sql("UPDATE blobs SET data = zeroblob(length(data))"), "out:big", "another content than its name says"),
        (sql("UPDATE blobs SET data = x'00'"), "out:big", "has 1 bytes, not 50,000"),
        (sql("DELETE FROM blobs"), "out:big", "is missing"),
        (sql("UPDATE heads SET lsn = lsn - 1 WHERE kind = 'turn' AND seq = 2"), "turn:2", "does not know of it"),
        (sql("DELETE FROM heads WHERE kind = 'turn' AND seq = 2"), "turn:2", "does not know of it"),
        (sql("UPDATE heads SET open = 0 WHERE kind = 'action' AND seq = 2"), "action:2", "says open 0, its record 1"),
        (sql("INSERT INTO heads VALUES ('billing', 'turn', 99, '', 1, 5, 0)"), "turn:99", "names a record that is not"),
        (sql("UPDATE leases SET epoch = 1"), "lease:2", "its epoch 2 is above the lease's, 1"),
        (sql("UPDATE leases SET branch = 7"), "0", "names branch 7, which is not there"),
        (sql("UPDATE leases SET lineage = 'x'"), "0", "of different lineages"),
        (sql("DELETE FROM leases"), "0", "no lease"),
        (sql("UPDATE branches SET start_hash = x'00'"), "lease:1", LINK),
        (sql("UPDATE branches SET lineage = 'zz'"), "0", "not 32 hexadecimal digits"),
        (sql("UPDATE branches SET start = 'x'"), "0", "cannot be read"),
        (sql("UPDATE leases SET epoch = 'x'"), "0", "cannot be read"),
        (sql("UPDATE records SET lsn = 'x' WHERE lsn = 6"), "0", "its last lsn is 'x'"),
        (sql("UPDATE records SET kind = x'00', name = x'ff', at = 7 WHERE lsn = 6"), "turn:2", "but its line says"),
        (sql("UPDATE heads SET kind = x'00', lsn = 'x' WHERE lsn = 6"), "turn:2", "does not know of it"),
        (sql("UPDATE branches SET parent = 1"), "0", "goes on from lsn 0 of branch 1, which is not there"),
    ],
)
def test_every_kind_of_tampering_is_named(directory: Path, tamper: Tamper, key: str, reason: str) -> None:
    """What was changed behind the triggers' back is found, with the record it is in."""
    with tampering(directory) as connection:
        tamper(connection)
    found = problems(directory)
    assert any(each.startswith(f"{key}: ") and reason in each for each in found), found


def test_one_changed_record_is_one_problem(directory: Path) -> None:
    """A changed byte does not make every later record a suspect."""
    with tampering(directory) as connection:
        connection.execute("UPDATE records SET line = replace(line, 'turn 1', 'turn 9') WHERE lsn = 6")
    assert problems(directory) == [f"turn:2: {LINK}"]


def test_a_lost_tail_shows_only_against_a_saved_head(directory: Path) -> None:
    """Newest records that vanish with their heads leave a sound log; a head saved before says that they are gone."""
    said = checked(directory, "billing")
    with tampering(directory) as connection:
        connection.execute("DELETE FROM records WHERE lsn = ?", (said.lsn,))
        connection.execute("DELETE FROM heads WHERE lsn = ?", (said.lsn,))
    assert problems(directory) == []
    assert problems(directory, "billing", head=Saved(said.lsn, said.hash)) == [
        f"{said.lsn}: the saved head is gone: the log ends at lsn {said.lsn - 1}"
    ]


def test_a_log_written_anew_shows_only_against_a_saved_head(directory: Path) -> None:
    """Whoever derives every hash again makes a sound log; a saved head still tells."""
    said = checked(directory, "billing")
    with tampering(directory) as connection:
        (link,) = connection.execute("SELECT start_hash FROM branches").fetchone()
        for lsn, line in connection.execute("SELECT lsn, line FROM records ORDER BY lsn").fetchall():
            changed = line.replace("turn 1", "turn 9")
            link = next_hash(link, changed.encode())
            connection.execute("UPDATE records SET line = ?, hash = ? WHERE lsn = ?", (changed, link, lsn))
    assert problems(directory) == []
    (found,) = problems(directory, "billing", head=Saved(said.lsn, said.hash))
    assert "the log was rewritten" in found


def test_a_saved_head_that_was_set_aside_is_said_to_be(directory: Path) -> None:
    """A head on a branch that was set aside is no longer in the agent's log, and the message says where it is."""
    said = checked(directory, "billing")
    set_aside(directory, "billing", 6, "diverged")
    (found,) = problems(directory, "billing", head=Saved(said.lsn, said.hash))
    assert "branch 1, whose tail was set aside" in found


def test_a_damaged_file_is_reported_and_the_rest_is_read(directory: Path) -> None:
    """Pages overwritten on the disk end in problems, not in an exception."""
    with Client(local_dir=directory) as client, client.resume("other") as other:
        for number in range(200):
            other.record_turn("user", f"{number} " + "q" * 500)
    path = directory / "recall.db"
    data = bytearray(path.read_bytes())
    assert len(data) > 40 * 4096
    data[20 * 4096 : 36 * 4096] = b"\xa5" * (16 * 4096)
    path.write_bytes(data)
    assert problems(directory) != []


def test_verify_reads_a_directory_that_cannot_be_written(directory: Path) -> None:
    """Nothing is written while it looks, but for SQLite's own files where the user may write everywhere."""

    def contents() -> dict[str, bytes]:
        own = ("recall.db-wal", "recall.db-shm")
        return {path.name: path.read_bytes() for path in directory.iterdir() if path.name not in own}

    before = contents()
    directory.chmod(0o500)
    try:
        assert problems(directory) == []
    finally:
        directory.chmod(0o700)
    assert contents() == before


def test_a_store_that_is_written_to_meanwhile_verifies(directory: Path) -> None:
    """Records and even branches that come while it reads are no problem."""
    backend = SqliteBackend(directory, read_only=True)

    def watch(records: Iterable[Seen], total: int) -> Iterator[Seen]:
        for at, each in enumerate(records):
            if at == 3:
                set_aside(directory, "billing", 6, "diverged")
            yield each

    try:
        assert [each for each in verify(backend, watch=watch) if isinstance(each, Problem)] == []
        assert len(backend.branches("billing")) == 2
    finally:
        backend.close()


# -- the pure walk ----------------------------------------------------------------------


def row(walk: Walk, kind: str, body: dict[str, object], *, epoch: int = 1, seq: int = 0, name: str = "") -> Row:
    """The row that soundly goes on from where a walk is."""
    lsn, key, at = walk.at.lsn + 1, key_of(kind, seq, name), "2026-11-03T18:54:43.000000Z"
    line = encode_line(agent="a", at=at, body=json.dumps(body), epoch=epoch, key=key, kind=kind, lsn=lsn)
    return Row("a", 1, lsn, epoch, key, kind, seq, name, line, at, next_hash(walk.at.hash, line))


@pytest.fixture
def walk() -> Walk:
    branch = Branch("a", 1, LINEAGE, 0, 0, first_hash(LINEAGE, "a"), 9, b"", "first", "")
    walk = Walk("a", [branch], lease_epoch=5)
    assert walk.begin(branch) == []
    assert walk.step(row(walk, "lease", {"incarnation": "i"}, seq=1)) == []
    return walk


def test_unknown_kinds_and_newer_fields_are_sound(walk: Walk) -> None:
    """What a newer version wrote is accepted: kinds, fields of bodies, fields of lines."""
    assert walk.step(row(walk, "dream", {"x": 1}, seq=1)) == []
    assert walk.step(row(walk, "omen", {}, name="raven")) == []
    assert walk.step(row(walk, "turn", {"role": "user", "mood": "blue"}, seq=1)) == []
    newer = row(walk, "turn", {"role": "user"}, seq=2)
    line = json.dumps({**json.loads(newer.line), "zone": 1}, separators=(",", ":"), sort_keys=True).encode()
    assert walk.step(newer._replace(line=line, hash=next_hash(walk.at.hash, line))) == []


def test_epochs_never_fall(walk: Walk) -> None:
    """A record of an earlier epoch after a later one is named, however sound its hash."""
    assert walk.step(row(walk, "lease", {"incarnation": "j"}, epoch=2, seq=2)) == []
    (reason,) = walk.step(row(walk, "turn", {}, epoch=1, seq=1))
    assert reason == "its epoch 1 is below 2, that of the record before it"


def test_an_epoch_begins_with_one_lease_record(walk: Walk) -> None:
    """An epoch without its lease record, and one with two of them, are named."""
    (reason,) = walk.step(row(walk, "turn", {}, epoch=2, seq=1))
    assert reason == "its epoch rises to 2 without a lease record"
    (reason,) = walk.step(row(walk, "lease", {"incarnation": "k"}, epoch=2, seq=2))
    assert reason == "it is a second lease record of epoch 2"


def test_numbers_of_a_kind_are_dense(walk: Walk) -> None:
    """A turn, action or run that skips a number is named; later records of an action or run repeat its number."""
    for kind in ("action", "run"):
        assert walk.step(row(walk, kind, {}, seq=1)) == []
        assert walk.step(row(walk, kind, {}, seq=1)) == []
    assert walk.step(row(walk, "run", {}, seq=3)) == ["run 3 follows run 1"]
    assert walk.step(row(walk, "turn", {}, seq=2)) == ["turn 2 follows turn 0"]
    assert walk.step(row(walk, "turn", {}, seq=2)) == ["turn 2 follows turn 2"]


def test_a_new_lineage_must_name_what_it_goes_on_from() -> None:
    """The first record of an imported log's new lineage cites the old one's last hash, so its tail cannot vanish."""
    old = Branch("a", 1, LINEAGE, 0, 0, first_hash(LINEAGE, "a"), 1, b"", "first", "")
    new = Branch("a", 2, "cd" * 16, 1, 1, first_hash("cd" * 16, "a"), 2, b"", "imported", "")
    for cited, reasons in (
        (True, []),
        (False, ["it does not name the lineage, lsn and hash that its lineage goes on from"]),
    ):
        walk = Walk("a", [old, new], lease_epoch=5)
        walk.begin(old)
        walk.step(row(walk, "lease", {"incarnation": "i"}, seq=1))
        origin = {"lineage": LINEAGE, "lsn": 1, "hash": walk.at.hash.hex() if cited else hashlib.sha256().hexdigest()}
        assert walk.begin(new) == []
        assert walk.step(row(walk, "lease", {"incarnation": "j", "from": origin}, epoch=2, seq=2)) == reasons
