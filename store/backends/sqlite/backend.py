"""The backend on SQLite. Its promises are those of ``store.backend.Backend``."""

from __future__ import annotations

import atexit
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from store.backend import Acquired, Branch
from store.backends.sqlite import files, forking, rows, schema, sql
from store.backends.sqlite.faults import translated
from store.backends.sqlite.importing import Import
from store.backends.sqlite.inspecting import Inspector
from store.backends.sqlite.lock import WriteLock
from store.canonical import first_hash
from store.clock import Clock, Instant, Random, SystemClock, SystemRandom, rfc3339
from store.errors import (
    BadRecord,
    Closed,
    InvalidInput,
    LeaseHeld,
    LeaseLost,
    RecallError,
    Stale,
    StoreBusy,
    StoreUnreadable,
)
from store.lease import Fence, Lease, LeaseRequest, check_fence, takeover_reason
from store.log import Sealed, seal
from store.process import provably_dead
from store.records import LEASE, Draft, Expect, Record, compact

_CHECKPOINT_COMMITS = 250  # about 4 MB of WAL: rare enough to be cheap, often enough to stay small
_CHECKPOINT_BYTES = 16 * 1024 * 1024


class SqliteBackend(Inspector):
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
        self._commits = 0
        self._closed = False
        self.store_id = ""
        super().__init__()
        forking.watch(self)
        with self._mutex:
            self._connection = self._open()
        self.store_id = "" if self.empty else self._store_id()

    def _open(self) -> sqlite3.Connection:
        if self._closed:
            raise Closed
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
        try:
            schema.tune(connection)
            schema.check_writable(schema.look(connection, self.directory), self.directory)
        except BaseException:
            connection.close()
            raise
        return connection

    # -- leases -------------------------------------------------------------------

    def acquire(self, request: LeaseRequest) -> Acquired:
        with self._writing() as connection:
            now = self.clock.now()
            previous = self._lease(request.agent)
            dead = previous is not None and previous.state == "held" and provably_dead(previous.process)
            reason = takeover_reason(previous, request, now, dead=dead)
            if reason is None:
                raise _refusal(previous, request, now)
            lineage, branch = self._ground(connection, previous, request.agent, now)
            lease = Lease(
                agent=request.agent,
                lineage=lineage,
                branch=branch,
                epoch=previous.epoch + 1 if previous else 1,
                incarnation=request.incarnation,
                state="held",
                holder=request.holder,
                process=request.process,
                ttl_ms=request.ttl_ms,
                renewed=now,
                acquired_at=rfc3339(now.wall_us),
            )
            connection.execute(sql.LEASE_WRITE, rows.of_lease(lease))
            body: dict[str, object] = {
                "event": "acquired",
                "reason": reason,
                "holder": lease.holder,
                "incarnation": lease.incarnation,
                **compact({"by": request.by, "why": request.why}),
            }
            if previous and previous.lineage != lineage:
                last, last_hash = self._last(request.agent, previous.branch)
                body["from"] = {"lineage": previous.lineage, "lsn": last, "hash": last_hash.hex()}
            self._store(connection, lease, [Draft(LEASE, body, seq=lease.epoch)], now)
            return Acquired(lease, reason, previous)

    def _ground(
        self, connection: sqlite3.Connection, previous: Lease | None, agent: str, now: Instant
    ) -> tuple[str, int]:
        """The lineage and branch to write on; a first record or an imported log makes new ones."""
        if previous and not previous.imported:
            return previous.lineage, previous.branch
        lineage, start = self.random.hex(32), 0
        number = 1 + max((each.number for each in self.branches(agent)), default=0)
        if previous:
            start, _ = self._last(agent, previous.branch)
        parent, reason = (previous.branch, "imported") if previous else (0, "first")
        start_hash, at = first_hash(lineage, agent), rfc3339(now.wall_us)
        connection.execute(sql.BRANCH_INSERT, (agent, number, lineage, parent, start, start_hash, reason, at))
        return lineage, number

    def renew(self, fence: Fence) -> Lease:
        with self._writing() as connection:
            now = self.clock.now()
            lease = check_fence(self._lease(fence.agent), fence, now)
            connection.execute(sql.LEASE_RENEW, (now.boot_id, now.boot_ms, now.wall_us, fence.agent))
            return replace(lease, renewed=now)

    def release(self, fence: Fence) -> bool:
        with self._writing() as connection:
            lease = self._lease(fence.agent)
            if lease is None or lease.fence != fence or lease.state == "released":
                return False
            connection.execute(sql.LEASE_RELEASE, (fence.agent,))
            return True

    # -- the one write path --------------------------------------------------------

    def append(
        self, fence: Fence, drafts: Sequence[Draft], expect: Sequence[Expect] = (), *, renew: bool = False
    ) -> list[Record]:
        with self._writing() as connection:
            now = self.clock.now()
            lease = check_fence(self._lease(fence.agent), fence, now)
            for each in expect:
                self._check(connection, fence.agent, each)
            sealed = self._store(connection, lease, drafts, now)
            if renew:
                connection.execute(sql.LEASE_RENEW, (now.boot_id, now.boot_ms, now.wall_us, fence.agent))
            # A process that was stopped since the first check must not land a late write.
            check_fence(lease, fence, self.clock.now())
        return [each.record for each in sealed]

    def _check(self, connection: sqlite3.Connection, agent: str, each: Expect) -> None:
        row = connection.execute(sql.HEAD_LSN, (agent, each.kind, each.seq, each.name)).fetchone()
        found = row[0] if row else 0
        if found != each.lsn:
            raise Stale(key=f"{agent}:{each.kind}:{each.name or each.seq}", expected=each.lsn, found=found)

    def _store(
        self, connection: sqlite3.Connection, lease: Lease, drafts: Sequence[Draft], now: Instant
    ) -> list[Sealed]:
        agent = lease.agent
        last, last_hash = self._last(agent, lease.branch)

        def newest_seq(kind: str) -> int:
            row = connection.execute(sql.NEWEST_SEQ, (agent, kind)).fetchone()
            return row[0] if row else 0

        sealed = seal(
            drafts,
            agent=agent,
            branch=lease.branch,
            epoch=lease.epoch,
            last=last,
            last_hash=last_hash,
            at=rfc3339(now.wall_us),
            newest_seq=newest_seq,
        )
        for each in sealed:
            r = each.record
            for name, data in each.blobs.items():
                if connection.execute(sql.BLOB_THERE, (agent, name)).fetchone() is None:
                    connection.execute(sql.BLOB_INSERT, (agent, name, data))
            line = r.line.decode()
            connection.execute(
                sql.RECORD_INSERT,
                (agent, r.branch, r.lsn, r.epoch, r.key, r.kind, r.seq, r.name, line, r.at, r.hash),
            )
            connection.execute(sql.HEAD_WRITE, (agent, r.kind, r.seq, r.name, r.branch, r.lsn, int(each.open)))
        return sealed

    # -- rare writes -----------------------------------------------------------------

    def set_aside(self, fence: Fence, keep: int, reason: str) -> Branch:
        with self._writing() as connection:
            now = self.clock.now()
            lease = check_fence(self._lease(fence.agent), fence, now)
            record = next(self.log(fence.agent, after=keep - 1, limit=1), None)
            if record is None or record.lsn != keep or keep >= self._last(fence.agent, lease.branch)[0]:
                raise InvalidInput(field="keep", reason=f"lsn {keep} is not inside the log of {fence.agent}")
            number = 1 + max(each.number for each in self.branches(fence.agent))
            values = (
                fence.agent,
                number,
                lease.lineage,
                record.branch,
                keep,
                record.hash,
                reason,
                rfc3339(now.wall_us),
            )
            connection.execute(sql.BRANCH_INSERT, values)
            connection.execute(sql.LEASE_BRANCH, (number, fence.agent))
            self.rebuild(connection, fence.agent, number)
            return self.branches(fence.agent)[-1]

    def mend(self, agent: str) -> bool:
        """Make an agent's projection anew where it differs from its records; whether it did.

        Records, blobs and leases stay as they are, whatever is wrong with them.
        """
        if not self.differs(agent):
            return False
        with self._writing() as connection:
            lease = self._lease(agent)
            if lease is None or not self.differs(agent):
                return False
            self.rebuild(connection, agent, lease.branch)
            return True

    @contextmanager
    def importing(self) -> Iterator[Import]:
        """Write absent agents whole; one transaction, committed when the block ends without an error."""
        with self._writing() as connection:
            yield Import(connection)

    # -- transactions -------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One write transaction under the write lock: committed whole, or not at all."""
        if self.read_only:
            raise RuntimeError("this handle was opened for reading")
        self._opened()
        assert self._lock is not None
        with self._lock, self._mutex, translated(self.directory):
            connection = self._opened()
            if connection.in_transaction:  # a signal handler, or a callback, in the middle of one
                raise StoreBusy(path=self.directory, holder="this very thread", waited="0")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            self._commits += 1
            if self._commits % _CHECKPOINT_COMMITS == 1:
                self._checkpoint(connection)

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        if self._commits == 1 and files.wal_size(self.directory) < _CHECKPOINT_BYTES:
            return  # a short process leaves it to its close
        with suppress(sqlite3.Error):  # the commit stands, and a later checkpoint does this one's work
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    # -- the handle's life ---------------------------------------------------------------

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._disconnect()
        except RecallError:
            # Every commit is durable; only a checkpoint is missing, which the next writer makes.
            pass
        finally:
            if self._connection is not None:
                _keep_for_ever(self._connection)
                self._connection = None
            if self._lock is not None:
                self._lock.close()

    def _disconnect(self) -> None:
        if self._connection is None:
            return
        if self._lock is None:
            self._connection.close()
        else:
            # The last one to close checkpoints, so it too runs under the lock.
            with self._lock, self._mutex, translated(self.directory):
                self._connection.close()
        self._connection = None
        if self._way is not None:
            self._way.discard()

    def __enter__(self) -> SqliteBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.close()

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
        self._commits = 0
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


def _refusal(previous: Lease | None, request: LeaseRequest, now: Instant) -> Exception:
    if previous is None or request.again is not None:
        epoch = request.again.epoch if request.again else 0
        holder = f"{previous.epoch}, of {previous.holder}" if previous else "none"
        return LeaseLost(agent=request.agent, epoch=epoch, now=holder)
    until = rfc3339(now.wall_us + max(0, previous.left_ms(now)) * 1000)[:19] + "Z"
    return LeaseHeld(agent=request.agent, holder=previous.holder, epoch=previous.epoch, until=until)
