"""Stores of somebody else, on read-only mounts and on full disks."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteBackend
from store.client import Client
from store.errors import (
    StoreFull,
    StoreReadOnly,
)
from tests.crash.stores import fill, read, refused
from tests.disks import fill_up, mounted, small_disk
from tests.engine import ROOT, finished, line_of, python, run_python, verified

ROOT_USER = os.getuid() == 0
as_root = pytest.mark.skipif(not ROOT_USER, reason="needs root, to mount or to become another user")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "store"


# -- another user, read-only -----------------------------------------------------------------

AS_NOBODY = """
import os, sqlite3, sys, encodings.ascii, tempfile, json, ctypes, logging, shutil
sys.path.insert(0, sys.argv[2])
from store.backends.sqlite import SqliteBackend
from store.client import Client
import store.briefing_sections, store.briefing_text, store.process
from store.errors import RecallError
store.process.provably_dead(store.process.this_process())
os.setgroups([]); os.setgid(65534); os.setuid(65534)
def told(work):
    try:
        return work()
    except RecallError as problem:
        assert "\\n" not in problem.message
        return problem.code
def read():
    backend = SqliteBackend(sys.argv[1], read_only=True)
    try:
        return backend.counters("a").lsn
    finally:
        backend.close()
before = sorted(os.listdir(sys.argv[1])) if os.access(sys.argv[1], os.R_OK) else None
print(told(read), told(lambda: SqliteBackend(sys.argv[1])))
assert before is None or sorted(os.listdir(sys.argv[1])) == before
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that other users can reach."""
    with tempfile.TemporaryDirectory(prefix="recall-shared-") as made:
        os.chmod(made, 0o755)
        yield Path(made) / "store"


def open_up(place: Path, directory: int, files: int) -> None:
    os.chmod(place, directory)
    for each in place.iterdir():
        os.chmod(each, files)


@as_root
@pytest.mark.parametrize("left", ["closed", "killed", "without its index"])
def test_another_user_may_read_what_is_readable(shared: Path, left: str) -> None:
    """In a directory that one may not write, all that was committed is read, and nothing is created or changed."""
    if left == "closed":
        fill(shared)
    else:
        script = "import os, sys\nfrom store.client import Client\nagent = Client(local_dir=sys.argv[1]).resume('a')\n"
        script += "for n in range(3):\n    agent.record_turn('user', str(n))\nos.kill(os.getpid(), 9)\n"
        run_python(script, shared, code=-9)
        if left != "killed":
            (shared / "recall.db-shm").unlink()
    open_up(shared, 0o755, 0o644)
    assert run_python(AS_NOBODY, shared, ROOT) == "4 store_read_only\n"


@as_root
def test_another_user_reads_beside_a_live_writer(shared: Path) -> None:
    """While the owner writes, somebody who may only read sees what was committed."""
    backend = fill(shared, close=False)
    open_up(shared, 0o755, 0o644)
    assert run_python(AS_NOBODY, shared, ROOT) == "4 store_read_only\n"
    backend.close()


@as_root
@pytest.mark.parametrize(("directory", "files"), [(0o700, 0o600), (0o755, 0o600)])
def test_without_permission_it_is_one_line(shared: Path, directory: int, files: int) -> None:
    """A private store is refused to others, for reading and for writing."""
    fill(shared)
    open_up(shared, directory, files)
    assert run_python(AS_NOBODY, shared, ROOT) == "store_unreadable store_read_only\n"


@as_root
def test_a_writable_directory_with_files_of_somebody_else_is_one_line(shared: Path) -> None:
    """One may create files but not write these: reading works, writing is refused."""
    fill(shared)
    open_up(shared, 0o777, 0o644)
    assert run_python(AS_NOBODY, shared, ROOT) == "4 store_read_only\n"


@as_root
def test_a_read_only_mount_is_read_and_not_written(place: Path) -> None:
    """On a read-only file system looking works, also over a WAL; writing is one line."""
    backend = fill(place, close=False)
    seen = place.parent / "seen"
    seen.mkdir()
    if not mounted("--bind", str(place), str(seen)):
        pytest.skip("mounting is not permitted here")
    try:
        assert mounted("-o", "remount,bind,ro", str(seen))
        assert read(seen) == 4
        backend.close()
        assert read(seen) == 4
        refused(StoreReadOnly, lambda: SqliteBackend(seen))
    finally:
        subprocess.run(["umount", str(seen)], check=True)


# -- full disks --------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.mark.parametrize("leave", [0, 4096, 3 * 4096])
def test_on_a_full_disk_begin_fails_closed_and_the_store_recovers(small: Path, leave: int) -> None:
    """No room: StoreFull, no intent recorded, nothing half-written; with room again the same handle goes on."""
    client = Client(local_dir=small / "store")
    agent = client.resume("a")
    agent.record_turn("user", "before")
    ballast = fill_up(small, leave)
    for _ in range(3):
        refused(StoreFull, lambda: agent.begin_action("send_email", "external", "x" * 40_000))
    refused(StoreFull, lambda: [agent.record_turn("user", "x" * 4000) for _ in range(50)])
    assert agent.pending_actions() == []
    ballast.unlink()
    assert agent.begin_action("send_email", "external", "x" * 40_000).seq == 1
    agent.release()
    client.close()
    found = verified(small / "store")["a"]
    assert [each["kind"] for each in found if each["kind"] in ("action", "lease")] == ["lease", "action"]


def test_a_new_store_on_a_full_disk_is_one_line(small: Path) -> None:
    """Nothing can be created: StoreFull, and once there is room the store is made."""
    for leave in (0, 4096, 8192, 40_960):
        ballast = fill_up(small, leave)
        refused(StoreFull, lambda: SqliteBackend(small / "store"))
        ballast.unlink()
    fill(small / "store")
    assert len(verified(small / "store")["a"]) == 4


def test_a_full_disk_does_not_stop_a_process_from_ending(small: Path) -> None:
    """Closing needs no room: the process ends with 0 and says nothing, and what it wrote is there."""
    script = "import sys\nfrom store.client import Client\nclient = Client(local_dir=sys.argv[1])\n"
    script += "agent = client.resume('a', lease_ttl=3600)\nagent.record_turn('user', 'x')\nprint('ready', flush=True)\n"
    script += "sys.stdin.read()\n"
    writer = python(script, small / "store", stdin=subprocess.PIPE)
    assert line_of(writer) == "ready"
    ballast = fill_up(small, 0)
    assert writer.stdin is not None
    writer.stdin.close()
    writer.stdin = None
    finished(writer)
    assert read(small / "store") == 2
    ballast.unlink()
    assert len(verified(small / "store")["a"]) == 2


def test_a_file_size_limit_is_a_full_disk(place: Path) -> None:
    """A write that the system cuts off by RLIMIT_FSIZE fails whole, and later writes that fit succeed."""
    script = """
import resource, signal, sys
from store.client import Client
from store.errors import Unavailable
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
client = Client(local_dir=sys.argv[1])
agent = client.resume("a")
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
try:
    agent.begin_action("send_email", "external", "x" * 900_000)
except Unavailable as problem:
    print(problem.code)
assert agent.pending_actions() == []
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
agent.begin_action("send_email", "external", "x" * 900_000)
client.close()
"""
    assert run_python(script, place) in ("store_full\n", "store_unreadable\n")
    assert sorted(each["kind"] for each in verified(place)["a"]) == ["action", "lease", "output", "tool"]
