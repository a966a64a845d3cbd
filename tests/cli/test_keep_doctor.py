"""``recall doctor``: one screen that says what is wrong and what to do, on any store and none."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store.backends.sqlite import SqliteBackend
from store.backends.sqlite.health import check_sqlite
from store.records import NEXT, TURN, Draft
from tests.conftest import ROOT, Ended, Run
from tests.keeping import problems, request, set_aside, tampering


def rows(ended: Ended) -> dict[str, dict[str, Any]]:
    return {each["check"]: each for each in json.loads(ended.out)}


def test_a_sound_store_is_all_ok(store: Path, run_recall: Run) -> None:
    """Every check is one line, only the interrupted action is worth a warning, and looking changes nothing."""
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    ended = run_recall("doctor", "--deep")
    assert (ended.code, ended.err) == (0, "")
    assert [line.split()[1] for line in ended.out.splitlines() if line.split()[0] != "ok"] == ["actions"]
    assert "every record  hashes, order, blobs" in ended.out
    after = {path.name: path.read_bytes() for path in store.iterdir()}
    assert {name: after[name] for name in before} == before


@pytest.mark.parametrize(
    ("version", "exposed"),
    [
        ((3, 6, 23), False),
        ((3, 7, 0), True),
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 54, 0), False),
    ],
)
def test_the_sqlite_bug_is_known_by_version(version: tuple[int, ...], exposed: bool) -> None:
    """The WAL-reset bug's versions are told apart, with why recall is not exposed."""
    assert ("WAL-reset" in check_sqlite(version).detail) is exposed


def foreign(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE notes (text)")
    connection.commit()
    connection.close()


def newer(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.commit()
    connection.close()


def damaged(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[5 * 4096 : 6 * 4096] = b"\xa5" * 4096
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (lambda path: path.unlink(), 3, "no store in"),
        (foreign, 9, "another program's SQLite database"),
        (lambda path: path.write_bytes(b"hello" * 1000), 9, "is not a store of recall"),
        (lambda path: os.truncate(path, 9000), 9, "is damaged"),
        (damaged, 9, "bad"),
        (newer, 7, "has format 99; this recall writes format"),
        (lambda path: os.truncate(path, 0), 0, "empty: its making was cut short"),
        (lambda path: path.chmod(0o644), 0, "chmod 600"),
        (lambda path: path.parent.chmod(0o755), 0, "chmod 700"),
        (lambda path: (path.parent / "recall.db.format-1.backup").touch(), 0, "recall.db.format-1.backup"),
    ],
)
def test_whatever_the_store_is_there_is_a_line_for_it(
    store: Path, run_recall: Run, spoil: Callable[[Path], object], code: int, said: str
) -> None:
    """Missing, foreign, truncated, newer, empty and open-to-all stores are named, and not touched."""
    spoil(store / "recall.db")
    before = {path.name: path.stat().st_size for path in store.iterdir() if path.suffix == ".db"}
    ended = run_recall("doctor")
    assert (ended.code, ended.err) == (code, "")
    assert said in ended.out
    assert {path.name: path.stat().st_size for path in store.iterdir() if path.suffix == ".db"} == before


def test_a_stopped_holder_of_the_write_lock_is_named(store: Path, run_recall: Run) -> None:
    """Who stopped a process in the middle of a write is told which one to continue."""
    code = (
        "import fcntl, os, signal, sys\n"
        "lock = os.open(sys.argv[1], os.O_RDWR)\n"
        "fcntl.flock(lock, fcntl.LOCK_EX)\n"
        "os.pwrite(lock, b'%-20d\\n' % os.getpid(), 0)\n"
        "print('held', flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, store / "recall.lock"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
            found = run_recall("doctor", "--json")
        finally:
            holder.send_signal(signal.SIGKILL)
    assert found.code == 7
    assert f"pid {holder.pid} (stopped by a signal)" in rows(found)["write lock"]["detail"]


def test_a_lock_held_for_long_is_a_warning(store: Path, run_recall: Run) -> None:
    """A running holder is named, too; it may be an import."""
    lock = os.open(store / "recall.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.pwrite(lock, b"%-20d\n" % os.getpid(), 0)
    try:
        ended = run_recall("doctor", "--json")
    finally:
        os.close(lock)
    assert (ended.code, rows(ended)["write lock"]["status"]) == (0, "warn")
    assert f"held by pid {os.getpid()}" in rows(ended)["write lock"]["detail"]


def test_dead_holders_and_set_asides_are_warnings(store: Path, run_recall: Run) -> None:
    """A lease whose holder is gone, and records that were set aside, are said with the command that helps."""
    set_aside(store, "billing", 6, "diverged")
    code = (
        "import os, sys\n"
        "from store.client import Client\n"
        "agent = Client(local_dir=sys.argv[1]).resume('billing')\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code, store], check=True)
    ended = run_recall("doctor", "--json")
    assert ended.code == 0
    assert "1 held by a dead one (billing)" in rows(ended)["leases"]["detail"]
    assert rows(ended)["leases"]["hint"] == "go on with: recall resume billing"
    assert rows(ended)["set aside"]["hint"] == "see: recall aside list"


def test_an_unreadable_record_among_the_newest_is_found(store: Path, run_recall: Run) -> None:
    """A body that cannot be read is named without --deep when it is new."""
    backend = SqliteBackend(store)
    fence = backend.acquire(request("billing")).lease.fence
    backend.append(fence, [Draft(TURN, {"role": 7}, seq=NEXT)])
    backend.close()
    ended = run_recall("doctor", "--json")
    assert ended.code == 9
    assert "role is not text" in rows(ended)["records"]["detail"]


def test_missing_guards_are_a_warning(store: Path, run_recall: Run) -> None:
    """A database whose triggers somebody dropped is recognised."""
    connection = sqlite3.connect(store / "recall.db")
    connection.execute("DROP TRIGGER records_no_delete")
    connection.commit()
    connection.close()
    assert "records_no_delete" in rows(run_recall("doctor", "--json"))["guards"]["detail"]


def test_deep_finds_what_the_quick_look_does_not(store: Path, run_recall: Run) -> None:
    """A changed byte in a record's text shows with --deep only, and the exit code is 9."""
    with tampering(store) as connection:
        connection.execute("UPDATE records SET line = replace(line, 'turn 1', 'turn 9')")
    assert run_recall("doctor").code == 0
    ended = run_recall("doctor", "--deep", "--json")
    assert ended.code == 9
    assert rows(ended)["every record"]["detail"].startswith("1 problem(s), first: billing turn:2: its hash")


def test_fix_makes_a_wrong_projection_anew_and_changes_nothing_else(store: Path, run_recall: Run) -> None:
    """Heads that are missing, wrong or too many are derived again; every record stays as it is."""
    with tampering(store) as connection:
        connection.execute("DELETE FROM heads WHERE kind = 'turn' AND seq = 2")
        connection.execute("UPDATE heads SET open = 0 WHERE kind = 'action'")
        connection.execute("INSERT INTO heads VALUES ('billing', 'turn', 99, '', 1, 5, 0)")
        records = connection.execute("SELECT * FROM records").fetchall()
        leases = connection.execute("SELECT * FROM leases").fetchall()
    assert len(problems(store)) == 3
    ended = run_recall("doctor", "--fix")
    assert (ended.code, ended.err) == (0, "made the projection of billing anew\n")
    assert problems(store) == []
    connection = sqlite3.connect(store / "recall.db")
    assert connection.execute("SELECT * FROM records").fetchall() == records
    assert connection.execute("SELECT * FROM leases").fetchall() == leases
    connection.close()
    assert "nothing was changed" in run_recall("doctor", "--fix").err


def test_fix_makes_no_store(run_recall: Run, environment: dict[str, str]) -> None:
    """Mending what is not there creates nothing."""
    assert run_recall("doctor", "--fix").code == 3
    assert not Path(environment["RECALL_DIR"]).exists()


def test_rows_of_the_wrong_type_are_a_line_too(store: Path, run_recall: Run) -> None:
    """Text where a number belongs is damage with exit 9, not an accident of the command."""
    with tampering(store) as connection:
        connection.execute("UPDATE leases SET state = 'held', renewed_wall_us = 'x', renewed_boot = 'x'")
    ended = run_recall("doctor")
    assert (ended.code, ended.err) == (9, "")
    assert "rows that cannot be read" in ended.out


def test_a_damaged_store_is_told_how_to_be_rescued(store: Path, run_recall: Run) -> None:
    """The damage and the way out are said once each, and doctor does not send one to doctor."""
    damaged(store / "recall.db")
    ended = run_recall("doctor")
    assert ended.code == 9
    assert "recall doctor" not in ended.out
    assert ended.out.count("recall import") == 1
    details = [each["detail"] for each in rows(run_recall("doctor", "--json")).values() if each["status"] == "bad"]
    assert len({*details} - {"the same"}) == len([each for each in details if each != "the same"])


EMPTIED = "recall.db has no bytes, but there is recall.db-wal"


def test_a_database_that_was_emptied_beside_its_log_is_damage(store: Path, run_recall: Run) -> None:
    """No look calls it empty, no write starts afresh over it, and what the log holds is still there after all that."""
    backend = SqliteBackend(store)
    try:
        backend.append(backend.acquire(request("late")).lease.fence, [Draft(TURN, {"role": "user"}, seq=NEXT)])
        shutil.copytree(store, copy := store.with_name("copy"))
    finally:
        backend.close()
    os.truncate(copy / "recall.db", 0)
    log = (copy / "recall.db-wal").read_bytes()
    assert log
    for words in (
        ("agents", "list"),
        ("verify",),
        ("actions", "list", "--stuck", "--fail-if-any"),
        ("query", "SELECT 1"),
        ("turns", "add", "-a", "x", "--role", "user", "hi"),
    ):
        ended = run_recall(*words, "--dir", copy)
        assert (ended.code, ended.out, EMPTIED in ended.err) == (9, "", True)
    assert EMPTIED in run_recall("doctor", "--dir", copy).out
    assert (copy / "recall.db-wal").read_bytes() == log


@pytest.mark.parametrize("words", [("agents", "list"), ("actions", "list", "--pending", "--fail-if-any"), ("verify",)])
def test_looking_at_an_empty_store_says_that_it_is_empty(
    environment: dict[str, str], run_recall: Run, words: tuple[str, ...]
) -> None:
    """A making that was cut short is found empty, with a warning, and the next write completes it."""
    directory = Path(environment["RECALL_DIR"])
    directory.mkdir(mode=0o700)
    (directory / "recall.db").touch(mode=0o600)
    ended = run_recall(*words)
    assert (ended.code, ended.out) == (0, "")
    assert "warning: store " in ended.err
    assert " is empty: its making was cut short, or it was emptied" in ended.err
    assert run_recall("turns", "add", "-a", "x", "--role", "user", "hi").code == 0
    assert "warning" not in run_recall(*words).err


AS_NOBODY = """
import os, sys, encodings.ascii, pwd, tempfile
sys.path.insert(0, sys.argv[2])
from store.backends.sqlite.health import examine
list(examine(sys.argv[1]))
os.chmod(sys.argv[1], int(sys.argv[3], 8))
if os.getuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
for each in examine(sys.argv[1]):
    print(each.name, each.status, each.problem.code if each.problem else "", each.detail, sep="|")
"""


@pytest.mark.parametrize(
    ("mode", "said"), [("000", "store|bad|store_unreadable|"), ("555", "writing|warn||"), ("700", "store|")]
)
def test_what_this_user_may_not_do_is_said(store: Path, mode: str, said: str) -> None:
    """A store that may not be entered is not called missing, and one that may not be written says that writes fail."""
    with tempfile.TemporaryDirectory() as above:  # nobody may not pass pytest's own
        os.chmod(above, 0o755)
        place = shutil.copytree(store, Path(above) / "store")
        for each in place.iterdir():
            each.chmod(0o644)
        words = [sys.executable, "-c", AS_NOBODY, str(place), str(ROOT), mode]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        place.chmod(0o700)
    assert (done.returncode, done.stderr) == (0, "")
    told = [line for line in done.stdout.splitlines() if line.startswith(said)]
    assert told, done.stdout
    assert mode != "555" or "every write will fail" in told[0]


def test_what_is_stuck_is_a_warning_at_any_age(store: Path, run_recall: Run) -> None:
    """An interrupted action under a released lease is counted, with its agent and the command that lists it."""
    row = rows(run_recall("doctor", "--json"))["actions"]
    assert (row["status"], row["hint"]) == ("warn", "see: recall actions list --stuck")
    assert row["detail"].endswith("; 1 stuck (billing)")


def test_hashes_that_were_not_checked_are_not_called_sound(store: Path, run_recall: Run) -> None:
    """doctor's ok for the records says that their hashes were not looked at, and what does so."""
    row = rows(run_recall("doctor", "--json"))["records"]
    assert (row["status"], row["detail"].endswith("hashes not checked")) == ("ok", True)
    assert row["hint"].startswith("recall verify")
