"""The reading half of the SQLite backend: short queries, each at the cost of what it returns."""

from __future__ import annotations

import heapq
import sqlite3
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import Any

from store.backend import Branch, Counters
from store.backends.sqlite import rows, sql
from store.backends.sqlite.faults import translated
from store.backends.sqlite.stack import frame, going_on
from store.errors import StoreBusy, StoreDamaged
from store.lease import Lease
from store.records import ACTION, Record, in_force

_EVERYTHING = 2**62
_PAGE = 500
_LAST_NAME = "\U0010ffff"


class Reader:
    """What a handle can read; ``SqliteBackend`` opens the connection.

    One connection and one mutex serve all threads of a handle. No query holds
    a read transaction longer than itself, so that no reader pins the WAL.
    """

    directory: str
    empty = False

    def __init__(self) -> None:
        self._mutex = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._frame: FrameType | None = None  # the call that has a transaction open

    def _open(self) -> sqlite3.Connection:
        raise NotImplementedError

    def _opened(self) -> sqlite3.Connection:
        """The connection; in a forked child a new one, at its first use."""
        connection = self._connection
        if connection is None:
            with self._mutex:
                connection = self._connection = self._connection or self._open()
        return connection

    def _all(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        if self.empty:
            return []
        with self._mutex, translated(self.directory):
            connection = self._opened()
            try:
                return connection.execute(statement, values).fetchall()
            except (OverflowError, UnicodeEncodeError):
                return []  # a number or a name that SQLite cannot hold is not there
            except sqlite3.OperationalError as problem:
                if "decode" not in str(problem):
                    raise
                # A damaged text is shown damaged; it must not hide the rows beside it.
                connection.text_factory = _damaged
                try:
                    return connection.execute(statement, values).fetchall()
                finally:
                    connection.text_factory = str

    def _store_id(self) -> str:
        found = self._all("SELECT id FROM store", ())
        if not found:
            raise StoreDamaged(path=self.directory, reason="its id is missing")
        return str(found[0][0])

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._mutex, translated(self.directory):
            connection = self._opened()
            if self.empty or (connection.in_transaction and going_on(self._frame)):
                yield
                return
            mine = frame(above=2)  # of the with statement, past contextlib
            self._begin(connection, mine)
            try:
                connection.execute("BEGIN")
                yield
            finally:
                if self._frame is mine:
                    self._frame = None
                    if connection.in_transaction:
                        connection.execute("COMMIT")

    def _begin(self, connection: sqlite3.Connection, call: FrameType) -> None:
        """Note which call uses the connection for a transaction; the caller has the mutex.

        Raises:
            StoreBusy: another call does, further up this very stack.
        """
        if self._frame is not None and going_on(self._frame):
            raise StoreBusy(path=self.directory, holder="a call in progress in this very thread", waited="0")
        if connection.in_transaction:
            connection.execute("ROLLBACK")  # of a call that an exception cut short
        self._frame = call

    # -- leases and branches ---------------------------------------------------------

    def lease(self, agent: str) -> Lease | None:
        return self._lease(agent)

    def _lease(self, agent: str) -> Lease | None:
        found = self._all(sql.LEASE, (agent,))
        return rows.to_lease(found[0]) if found else None

    def leases(self, *, after: str = "", limit: int = 1000) -> list[Lease]:
        return [rows.to_lease(row) for row in self._all(sql.LEASES, (after, limit))]

    def branches(self, agent: str) -> list[Branch]:
        return [rows.to_branch(row, *self._last(agent, row[1])) for row in self._all(sql.BRANCHES, (agent,))]

    def _last(self, agent: str, branch: int) -> tuple[int, bytes]:
        """The last lsn and hash of a branch, its own or the ones that it starts from."""
        found = self._all(sql.LAST, (agent, branch)) or self._all(sql.START, (agent, branch))
        return found[0] if found else (0, b"")

    def _path(self, agent: str, branch: int | None = None) -> list[tuple[int, int, int]]:
        """The pieces of a log, oldest first: (branch, above lsn, up to lsn)."""
        if branch is None:
            lease = self._lease(agent)
            branch = lease.branch if lease else 0
        known = {row[1]: row for row in self._all(sql.BRANCHES, (agent,))}
        pieces, top = [], _EVERYTHING
        while branch in known:
            _, _, _, parent, start, *_ = known[branch]
            pieces.append((branch, start, top))
            if parent >= branch:  # damage, which must not make a reader go round in it
                break
            branch, top = parent, start
        return pieces[::-1]

    def _on_path(self, agent: str, branch: int | None = None) -> str:
        pieces = self._path(agent, branch)
        return " OR ".join(f"(r.branch = {b} AND r.lsn > {low} AND r.lsn <= {high})" for b, low, high in pieces) or "0"

    # -- records -----------------------------------------------------------------------

    def counters(self, agent: str) -> Counters:
        found = self._all(sql.COUNTERS, (agent,))
        return Counters(*found[0]) if found else Counters(0, b"", 0, 0, 0)

    def newest(self, agent: str, kind: str, *, seq: int = 0, name: str = "", at: int | None = None) -> Record | None:
        found = self._all(sql.NEWEST, (agent, kind, seq, name))
        record = rows.to_record(found[0]) if found else None
        if record is None or at is None or record.lsn <= at:
            return record
        return next(iter(self._history(agent, kind, seq, name, at, 1)), None)

    def tail(
        self, agent: str, kind: str, *, limit: int, before: int | None = None, at: int | None = None
    ) -> list[Record]:
        top, moment = before if before is not None else _EVERYTHING, at if at is not None else _EVERYTHING
        if kind == ACTION and at is not None:  # a key that changed later was there in an earlier state
            return list(islice(self._keys_at(agent, kind, at, before=top), limit))
        return [rows.to_record(row) for row in self._all(sql.TAIL, (agent, kind, top, moment, limit))]

    def in_force(
        self, agent: str | None, kind: str, *, limit: int, after: tuple[str, int] = ("", 0), at: int | None = None
    ) -> list[Record]:
        if agent is None:
            found = self._all(sql.IN_FORCE_ALL, (kind, *after, limit))
        elif at is None:
            found = self._all(sql.IN_FORCE, (kind, agent, after[1], limit))
        else:
            return list(islice(self._in_force_at(agent, kind, at, after=after[1]), limit))
        return [rows.to_record(row) for row in found]

    def in_force_newest(
        self, agent: str, kind: str, *, limit: int, before: int | None = None, at: int | None = None
    ) -> tuple[list[Record], int]:
        top = before if before is not None else _EVERYTHING
        if at is not None:
            return _newest_and_count(self._in_force_at(agent, kind, at), limit, top)
        with self.reading():
            found = self._all(sql.IN_FORCE_NEWEST, (kind, agent, top, limit))
            whole = before is None and len(found) < limit
            total = len(found) if whole else self._all(sql.IN_FORCE_COUNT, (kind, agent))[0][0]
        return [rows.to_record(row) for row in found], total

    def to_settle(self, agent: str, *, limit: int, after: int = 0) -> list[Record]:
        return [rows.to_record(row) for row in self._all(sql.TO_SETTLE, (agent, after, limit))]

    def _in_force_at(self, agent: str, kind: str, at: int, *, after: int = -1) -> Iterator[Record]:
        found = self._keys_at(agent, kind, at, after=after)
        return (each for each in found if in_force(kind, _light(each)))

    def _keys_at(
        self, agent: str, kind: str, at: int, *, after: int = -1, before: int | None = None
    ) -> Iterator[Record]:
        """The newest records up to lsn ``at``: by rising key above ``after``, or by falling key below ``before``."""
        path, falling = self._on_path(agent), before is not None
        statement = sql.AT.format(path=path, beyond="<" if falling else ">", order="DESC" if falling else "ASC")
        edge: tuple[int, str] = (after, _LAST_NAME) if before is None else (before, "")
        while page := self._all(statement, (agent, kind, *edge, at, _PAGE, agent)):
            yield from map(rows.to_record, page)
            edge = page[-1][5:7]

    def keys(self, agent: str, *, after: tuple[str, int, str] = ("", 0, ""), limit: int) -> list[Record]:
        return [rows.to_record(row) for row in self._all(sql.KEYS, (agent, *after, limit))]

    def history(self, agent: str, kind: str, *, seq: int = 0, name: str = "", limit: int = 1000) -> list[Record]:
        return self._history(agent, kind, seq, name, _EVERYTHING, limit)[::-1]

    def _history(self, agent: str, kind: str, seq: int, name: str, at: int, limit: int) -> list[Record]:
        """A key's records up to lsn ``at``, newest first."""
        statement = sql.HISTORY.format(path=self._on_path(agent))
        return [rows.to_record(row) for row in self._all(statement, (agent, kind, seq, name, at, limit))]

    def log(
        self, agent: str, *, after: int = 0, limit: int | None = None, branch: int | None = None
    ) -> Iterator[Record]:
        left = _EVERYTHING if limit is None else limit
        for number, start, high in self._path(agent, branch):
            low = max(start, after)
            while left > 0 and low < high:
                page = self._all(sql.LOG, (agent, number, low, high, min(_PAGE, left)))
                for row in page:
                    yield rows.to_record(row)
                left -= len(page)
                if len(page) < _PAGE:
                    break
                low = page[-1][2]

    def blob(self, agent: str, name: str) -> bytes:
        found = self._all(sql.BLOB, (agent, name))
        if not found:
            raise KeyError(f"no blob {name}")
        return bytes(found[0][0])

    # -- the projection --------------------------------------------------------------------

    def projected(self, agent: str, branch: int | None = None) -> Iterator[tuple[str, int, str, int, int, int]]:
        """What ``heads`` must hold for an agent, derived from its records alone."""
        with self._mutex, translated(self.directory):
            statement = sql.ALL_HEADS.format(path=self._on_path(agent, branch))
            for kind, seq, name, number, lsn, line in self._opened().execute(statement, (agent,)):
                yield kind, seq, name, number, lsn, is_open(kind, line)

    def rebuild(self, connection: sqlite3.Connection, agent: str, branch: int) -> None:
        """Make an agent's projection anew, inside the caller's write transaction."""
        connection.execute(sql.HEADS_DROP, (agent,))
        for kind, seq, name, number, lsn, is_open in list(self.projected(agent, branch)):
            connection.execute(sql.HEAD_WRITE, (agent, kind, seq, name, number, lsn, is_open))


def is_open(kind: str, line: bytes | None) -> int:
    """What ``heads.open`` must say of a key whose newest record has this line."""
    record = rows.to_record(("", 0, 0, 0, kind, 0, "", line or b"", "", b""))
    return in_force(kind, _light(record))


def _newest_and_count(records: Iterable[Record], limit: int, top: int) -> tuple[list[Record], int]:
    """The ``limit`` newest below lsn ``top``, and how many there are, with no more than those in memory."""
    total = 0

    def counted() -> Iterator[Record]:
        nonlocal total
        for each in records:
            total += 1
            if each.lsn < top:
                yield each

    below = counted()
    newest = heapq.nlargest(limit, below, key=lambda each: each.lsn)
    deque(below, maxlen=0)  # of a limit of 0 nothing was read
    return newest, total


def _damaged(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _light(record: Record) -> dict[str, Any]:
    """A body's fields without its blobs; of a bad record none, so that it is in force for nobody."""
    from store.errors import BadRecord

    try:
        return record.fields()
    except BadRecord:
        return {}
