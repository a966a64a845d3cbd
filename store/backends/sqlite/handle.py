"""One handle: its connection, its transactions, and its life over forks to its close."""

from __future__ import annotations

import atexit
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from store.backends.sqlite import files, forking, schema
from store.backends.sqlite.faults import translated
from store.backends.sqlite.inspecting import Inspector
from store.backends.sqlite.lock import WriteLock
from store.backends.sqlite.stack import frame
from store.clock import Clock, Random, SystemClock, SystemRandom
from store.errors import BadRecord, RecallError, StoreClosed, StoreMoved, StoreReadOnly, StoreUnreadable

T = TypeVar("T")
H = TypeVar("H", bound="Handle")

_CHECKPOINT_COMMITS = 250  # about 4 MB of WAL: rare enough to be cheap, often enough to stay small
_PID_SPREAD = 157  # near the golden section of it, and without a common factor
_CHECKPOINT_BYTES = 16 * 1024 * 1024
_LEAVE_BYTES = 512 * 1024  # of log that the next process reads through in a millisecond
_left: list[sqlite3.Connection] = []  # so that nothing closes them before the process ends


class Handle(Inspector):
    """One handle to one store.

    Args:
        directory: of the store. A writer makes it and the store in it; a
            reader (``read_only``) makes nothing.
        lock_timeout: the most seconds that a write waits for the write lock.

    Raises:
        StoreMissing, StoreForeign, StoreNewer, StoreReadOnly, StoreUnreadable,
        StoreDamaged, StoreBusy, StoreFull, NetworkFilesystem, PlatformUnsupported.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        read_only: bool = False,
        clock: Clock | None = None,
        random: Random | None = None,
        lock_timeout: float = 30.0,
        on_bad_record: Callable[[BadRecord], None] = lambda problem: None,
    ) -> None:
        files.check_platform()
        self.directory = os.path.abspath(os.fspath(directory))
        self.read_only = read_only
        self.clock = clock or SystemClock()
        self.random = random or SystemRandom()
        self.on_bad_record = on_bad_record
        self._lock_timeout = lock_timeout
        self._lock: WriteLock | None = None
        self._way: files.ReadOnly | None = None
        self._file: files.Identity = None  # of what is open for writing
        self._until_checkpoint = 0  # commits; 0 before the first
        self._closed = False
        self.store_id = ""
        super().__init__()
        forking.watch(self)
        with self._mutex:
            self._connection = self._open()
        self.store_id = "" if self.empty else self._store_id()

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise StoreClosed(path=self.directory)
        if forking.crossed(self.directory):
            raise StoreUnreadable(
                path=self.directory,
                reason="this process was forked in the middle of an operation on it",
                hint="open the store after forking, or start the process anew",
            )
        with translated(self.directory):
            if self.read_only:
                return self._open_reader()
            return self._reopen_writer() if self.store_id else self._open_writer()

    def _open_reader(self) -> sqlite3.Connection:
        self._way = files.for_reading(self.directory)
        connection = None
        try:
            connection = files.connect(self._way.uri)
            self.empty = schema.look(connection, self.directory).empty
        except BaseException:
            if connection is not None:
                connection.close()
            self._way.discard()
            raise
        return connection

    def _open_writer(self) -> sqlite3.Connection:
        files.check_filesystem(self.directory)
        files.make_directory(self.directory)
        self._lock = WriteLock(self.directory, self._lock_timeout)
        try:
            with self._lock:
                files.make_database(self.directory)
                files.check_not_cut(self.directory)
                connection = files.connect(files.for_writing(self.directory))
                self._file = files.identity(self.directory)
                try:
                    schema.tune(connection)
                    schema.prepare(connection, self.directory, self.clock, self.random)
                except BaseException:
                    connection.close()
                    raise
        except BaseException:
            self._lock.close()
            raise
        return connection

    def _reopen_writer(self) -> sqlite3.Connection:
        """A new connection after a fork. It needs no write lock, and could not wait for it: readers open too."""
        if self._lock is None:
            self._lock = WriteLock(self.directory, self._lock_timeout)
        connection = files.connect(files.for_writing(self.directory))
        self._file = files.identity(self.directory)
        try:
            schema.tune(connection)
            schema.check_writable(schema.look(connection, self.directory), self.directory)
        except BaseException:
            connection.close()
            raise
        return connection

    # -- transactions -------------------------------------------------------------------

    def transact(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> T:
        """Do ``work`` in one write transaction under the write lock: committed whole, or not at all.

        Args:
            durable: it survives the loss of power when this returns; else with the next one that does.

        Raises:
            StoreBusy: the lock was not to be had, or a call further up this
                very stack is using the handle.
            StoreMoved: SQLite would go on writing to files that nobody finds any more.
        """
        if self.read_only:
            raise StoreReadOnly(path=self.directory, reason="it was opened for reading")
        call = frame()
        with translated(self.directory):
            self._opened()
            lock = self._lock
            assert lock is not None
            lock.acquire(call)
            try:
                with self._mutex:
                    connection = self._opened()
                    if files.identity(self.directory) != self._file:
                        raise StoreMoved(path=self.directory)
                    self._begin(connection, call)
                    try:
                        if not durable:
                            connection.execute("PRAGMA synchronous = NORMAL")
                        connection.execute("BEGIN IMMEDIATE")
                        result = work(connection)
                        connection.execute("COMMIT")
                    except BaseException:
                        if connection.in_transaction:
                            connection.execute("ROLLBACK")
                        raise
                    finally:
                        self._frame = None
                        if not durable:
                            connection.execute("PRAGMA synchronous = FULL")
                    if self._checkpoint_is_due():
                        self._checkpoint(connection)
                return result
            finally:
                lock.release()

    def _checkpoint_is_due(self) -> bool:
        """Count a commit; whether a checkpoint is to follow it."""
        if not self._until_checkpoint:  # the first: a short process leaves it to its close, unless all others have
            # By the pid: processes that began together, and write in turn, would all make their first one
            # together, and until then let the log grow to as many times its size. The factor keeps neighbours apart.
            self._until_checkpoint = 1 + os.getpid() * _PID_SPREAD % _CHECKPOINT_COMMITS
            return files.wal_size(self.directory) >= _CHECKPOINT_BYTES
        self._until_checkpoint -= 1
        if self._until_checkpoint:
            return False
        self._until_checkpoint = _CHECKPOINT_COMMITS
        return True

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):  # the commit stands, and a later checkpoint does this one's work
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def vacuum(self) -> None:
        """Write the file anew without its free pages, and empty the log. Readers go on; writers wait."""
        with translated(self.directory):
            self._opened()
            lock = self._lock
            assert lock is not None
            lock.acquire(frame())
            try:
                with self._mutex:
                    connection = self._opened()
                    self._begin(connection, frame())
                    self._frame = None
                    connection.execute("VACUUM")
                    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                lock.release()

    # -- the handle's life ---------------------------------------------------------------

    def close(self) -> None:
        self._close(wait=True)

    def _close(self, *, wait: bool) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._disconnect(wait=wait)
        except RecallError:
            # Every commit is durable; only a checkpoint is missing, which the next writer makes.
            pass
        finally:
            if self._connection is not None:
                _keep_for_ever(self._connection)
                self._connection = None
            if self._lock is not None:
                self._lock.close()

    def leave(self) -> None:
        """Close, for a process that ends with os._exit right after.

        SQLite's close checkpoints and deletes the log, at several times the
        cost of a short command's write. So while the log is small it is left
        to a later process, as a kill would leave it.
        """
        if self._connection is None or self._lock is None or files.wal_size(self.directory) > _LEAVE_BYTES:
            self.close()
            return
        self._closed = True
        _left.append(self._connection)
        self._connection = None
        self._lock.close()

    def _disconnect(self, *, wait: bool = True) -> None:
        if self._connection is None:
            return
        if self._lock is None:
            self._connection.close()
        else:
            # The last one to close checkpoints, so it too runs under the lock.
            self._lock.acquire(frame(), wait=wait)
            try:
                with self._mutex, translated(self.directory):
                    self._connection.close()
            finally:
                self._lock.release()
        self._connection = None
        if self._way is not None:
            self._way.discard()

    def __enter__(self: H) -> H:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # At any moment, of any thread: it must not wait for what that very thread may hold.
        if hasattr(self, "_closed"):
            self._close(wait=False)

    def before_fork(self) -> None:
        """Close the connection, and let no thread open another until the fork is over."""
        lock = self._lock
        if lock is not None:
            lock.pause()
        self._mutex.acquire()
        if lock is None and self._lock is not None:  # it was being opened
            self._lock.pause()
        if self._connection is not None and not self._connection.in_transaction:
            with suppress(RecallError):  # busy for long: the child is then refused
                self._disconnect()

    def after_fork_here(self) -> None:
        self._mutex.release()
        if self._lock is not None:
            self._lock.resume()

    def after_fork_in_child(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        if self._connection is not None:
            forking.cross(self.directory)
            _keep_for_ever(self._connection)
        self._way = None  # a private copy that is left is the parent's to discard
        self._until_checkpoint = 0
        super().__init__()


def _keep_for_ever(connection: sqlite3.Connection) -> None:
    """Never let Python close a connection: a counted reference that nothing gives back.

    SQLite's close may checkpoint, which is not ours to do without the write
    lock, nor in a forked child, where the locks and the log are the parent's.
    """
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))


def _exiting() -> None:
    for handle in forking.handles():
        handle.close()


atexit.register(_exiting)
