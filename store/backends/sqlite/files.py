"""The store's directory: where it is, what it is on, and how its file is opened.

No code here or elsewhere opens ``recall.db`` but through SQLite: POSIX locks
belong to the process, so a plain open and close would drop SQLite's own.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import sys
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from store.errors import (
    NetworkFilesystem,
    PlatformUnsupported,
    RecallError,
    StoreDamaged,
    StoreFull,
    StoreMissing,
    StoreReadOnly,
    StoreUnreadable,
)
from store.running import DIRECTORY as COMMANDS

DB = "recall.db"

Identity = tuple[int, int] | None

# Names as in the third field from the end of proc_pid_mountinfo(5). FUSE can be
# anything; only those known to serve a local disk are let through.
_NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "ncpfs", "afs", "coda", "ceph", "9p", "glusterfs",
    "lustre", "gfs2", "ocfs2", "beegfs", "gpfs", "virtiofs", "vboxsf", "vmhgfs", "orangefs",
}  # fmt: skip
_OCTAL = re.compile(r"\\([0-7]{3})")  # how the kernel writes space, tab, newline and backslash there
_LOCAL_FUSE = {"fuseblk", "fuse.fuse-overlayfs", "fuse.ntfs-3g"}


def check_platform() -> None:
    """Refuse systems without POSIX locks, in one line."""
    if os.name != "posix":
        raise PlatformUnsupported(platform=sys.platform)


def database(directory: str) -> str:
    """The path of a directory's database file."""
    return os.path.join(directory, DB)


def exists(directory: str) -> bool:
    """Whether there is a store, or the beginning of one.

    Raises:
        StoreUnreadable: that cannot be seen.
    """
    try:
        os.stat(database(directory))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as problem:
        raise StoreUnreadable(path=directory, reason=_why(problem)) from problem
    return True


def check_not_cut(directory: str) -> None:
    """Refuse a recall.db of no bytes beside what only a store in use can have left.

    Opening it would make SQLite delete the write-ahead log, which may hold all
    that is left; a making that was cut short leaves nothing but the two empty files.

    Raises:
        StoreDamaged: it was emptied.
    """
    try:
        if os.stat(database(directory)).st_size:
            return
        beside = [DB + "-wal"] if wal_size(directory) else []
        beside += [each for each in sorted(os.listdir(directory)) if each == COMMANDS or each.endswith(".backup")]
    except OSError:
        return  # whoever opens it meets that, and has the words for it
    if beside:
        raise StoreDamaged(path=directory, reason=f"{DB} has no bytes, but there is {', '.join(beside)}")


def make_directory(directory: str) -> None:
    """Create the directory (0700), durably; an existing one keeps its mode.

    Raises:
        StoreReadOnly: it cannot be made or written.
    """
    try:
        missing = not os.path.isdir(directory)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if missing:
            sync_directory(os.path.dirname(os.path.abspath(directory)))
    except OSError as problem:
        if problem.errno in (errno.EEXIST, errno.ENOTDIR):
            raise StoreReadOnly(path=directory, reason="there is a file in its place, or above it") from problem
        raise refusal(problem, directory) from problem
    if not os.access(directory, os.W_OK | os.X_OK):
        raise StoreReadOnly(path=directory, reason="the directory is read-only for this user")


def make_database(directory: str) -> None:
    """Create an empty database file with mode 0600; SQLite gives its -wal and -shm the same."""
    path = database(directory)
    if os.path.islink(path):
        raise StoreUnreadable(
            path=directory, reason=f"{DB} is a symbolic link", hint="use the directory that it points to"
        )
    try:
        # The one plain open: of a file that did not exist, so that nobody can have locks on it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return
    except OSError as problem:
        raise refusal(problem, directory, DB) from problem


def refusal(problem: OSError, directory: str, name: str = "") -> RecallError:
    """What a system call's error means for a store that was to be written."""
    if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(path=directory)
    if problem.errno in (errno.EMFILE, errno.ENFILE):
        return StoreUnreadable(path=directory, reason=_why(problem), hint="close some, or raise the limit: ulimit -n")
    return StoreReadOnly(path=directory, reason=f"{name}: {_why(problem)}" if name else _why(problem))


def sync_directory(directory: str) -> None:
    """Make the names in a directory survive a loss of power."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _why(problem: OSError) -> str:
    return (problem.strerror or str(problem)).lower()


# -- network file systems ------------------------------------------------------------


def filesystem_of(path: str, mountinfo: str) -> str:
    """The type of the file system that ``path`` is on, by /proc/self/mountinfo's text; "" if unknown."""
    best, found = -1, ""
    path = os.path.realpath(path)
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")[0]
        if len(fields) < 5:
            continue
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), fields[4])
        inside = point == "/" or path == point or path.startswith(point + "/")
        if inside and len(point) >= best:  # a later mount hides an earlier one
            best, found = len(point), kind
    return found


def is_network(fstype: str) -> bool:
    """Whether a file system may be shared with other machines."""
    return fstype in _NETWORK or (fstype.startswith("fuse") and fstype not in _LOCAL_FUSE)


def read_mountinfo() -> str:
    """The mounts that this process sees; "" where the system has no such list."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def check_filesystem(directory: str, mountinfo: Callable[[], str] = read_mountinfo) -> None:
    """Refuse to write on a network file system, unless RECALL_ALLOW_NETWORK_FS=1."""
    if os.environ.get("RECALL_ALLOW_NETWORK_FS") == "1":
        return
    fstype = filesystem_of(directory, mountinfo())
    if is_network(fstype):
        raise NetworkFilesystem(path=directory, fstype=fstype)


# -- opening for reading -----------------------------------------------------------------


@dataclass
class ReadOnly:
    """How to open a database so that looking does not touch it."""

    uri: str
    private_copy: str = ""

    def discard(self) -> None:
        if self.private_copy:
            import shutil

            shutil.rmtree(self.private_copy, ignore_errors=True)


def for_reading(directory: str) -> ReadOnly:
    """The way to read a store so that looking does not touch it.

    Where the directory may be written, SQLite's own -wal and -shm are all that
    reading makes. Where it may not: without a WAL the file cannot change under
    us and is opened as immutable; with a WAL and its index, SQLite reads both;
    a WAL alone needs an index, which only a private copy can have. Never
    immutable over a WAL: what was committed to it would disappear.

    Raises:
        StoreMissing, StoreUnreadable.
    """
    path = database(directory)
    if not exists(directory):
        raise StoreMissing(what="store", name="", path=directory)
    if not os.access(path, os.R_OK):
        raise StoreUnreadable(path=directory, reason="permission denied")
    check_not_cut(directory)
    if os.access(directory, os.W_OK) and os.access(path, os.W_OK):
        return ReadOnly(_uri(path, "mode=ro"))
    wal = _size(path + "-wal")
    if not wal:
        return ReadOnly(_uri(path, "mode=ro&immutable=1"))
    if _size(path + "-shm"):
        return ReadOnly(_uri(path, "mode=ro"))
    import shutil  # only for this, and a write should not load them
    import tempfile

    copy = tempfile.mkdtemp(prefix="recall-read-")
    try:
        for name in (DB, DB + "-wal"):
            shutil.copyfile(os.path.join(directory, name), os.path.join(copy, name))
    except OSError as problem:
        shutil.rmtree(copy, ignore_errors=True)
        raise StoreUnreadable(path=directory, reason=f"no private copy could be made: {_why(problem)}") from problem
    return ReadOnly(_uri(database(copy), "mode=ro"), copy)


def for_writing(directory: str) -> str:
    """The URI for a writer; the file must exist, so that SQLite never makes one by itself."""
    return _uri(database(directory), "mode=rw")


def wal_size(directory: str) -> int:
    """Bytes of the write-ahead log's file, 0 without one."""
    return _size(database(directory) + "-wal")


def connect(uri: str) -> sqlite3.Connection:
    """A connection for one handle, whose own mutex keeps its threads apart."""
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=5.0)


def _uri(path: str, query: str) -> str:
    return "file:" + quote(os.fsencode(os.path.abspath(path))) + "?" + query


def identity(directory: str) -> Identity:
    """Which file the store's database is now; None without one. Looked at, never opened."""
    try:
        status = os.stat(database(directory))
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
