"""The one write that takes records away: an explicit prune, whole or not at all.

It is one transaction of the one file. A new file in the place of the old one
would not do: whoever has the old one open (an agent that is at work, or
sqlite3 in some terminal) would go on in it, and at its end delete the new
one's write-ahead log, which goes by the same name (sqlite.org/howtocorrupt.html,
"Unlinking or renaming a database file while in use"). Inside a transaction the
triggers that refuse a deletion are taken away and put back; nobody ever sees a
store without them.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from store.audit import blobs_named, body_of
from store.backends.sqlite import sql
from store.backends.sqlite.files import database, wal_size
from store.clock import rfc3339
from store.errors import InvalidInput
from store.lease import Fence, check_fence
from store.value import value

if TYPE_CHECKING:
    from store.backends.sqlite.backend import SqliteBackend

_TRIGGERS = ("records_no_update", "records_no_delete", "blobs_no_delete")
_PAGE = 500
REASON = "pruned"  # of the branch that a pruned log begins with
_WITH_BLOBS = (
    "SELECT lsn, CAST(line AS BLOB) FROM records "
    "WHERE agent = ? AND branch = ? AND lsn > ? AND instr(line, 'blobs') ORDER BY lsn LIMIT ?"
)
_COUNT = (
    "SELECT kind, count(*), sum(length(CAST(line AS BLOB))) FROM records "
    "WHERE agent = ? AND branch = ? AND lsn > ? AND lsn <= ? GROUP BY kind"
)
_HASH = "SELECT hash FROM records WHERE agent = ? AND branch = ? AND lsn = ?"
_DELETE = "DELETE FROM records WHERE agent = ? AND branch = ? AND lsn > ? AND lsn <= ?"
_MOVE = "UPDATE records SET branch = ? WHERE agent = ? AND branch = ? AND lsn > ? AND lsn <= ?"
_BLOB_DELETE = "DELETE FROM blobs WHERE agent = ? AND name = ?"


@value
class Going:
    """What a prune takes away.

    Attributes:
        kinds: for each kind, how many records and how many bytes of lines.
        blobs, blob_bytes: those that no record names any more.
    """

    kinds: Mapping[str, tuple[int, int]]
    blobs: int
    blob_bytes: int

    @property
    def records(self) -> int:
        return sum(count for count, _ in self.kinds.values())

    @property
    def bytes(self) -> int:
        return self.blob_bytes + sum(size for _, size in self.kinds.values())


class Pruning:
    """Prunes one agent's log in one store."""

    def __init__(self, backend: SqliteBackend, agent: str) -> None:
        self._backend, self._agent = backend, agent

    def going(self, base: int, kept: frozenset[int] = frozenset()) -> Going:
        """What is going to be taken away up to lsn ``base``, if the records ``kept`` are first written again."""
        return self._gone(base, kept)[1]

    def cut(self, fence: Fence, base: int, before: Callable[[], None], after: Callable[[], None]) -> Going:
        """Let the log begin above lsn ``base``, and take away what came before.

        Args:
            before, after: called inside the transaction; what they raise leaves everything as it was.

        Raises:
            Fenced: the lease is not the caller's any more.
            InvalidInput: the log does not go through ``base``.
            StoreFull, StoreBusy.
        """

        def work(connection: sqlite3.Connection) -> Going:
            lease = check_fence(self._backend.lease(self._agent), fence, self._backend.clock.now())
            before()
            going = self._cut(connection, base)
            after()
            check_fence(lease, fence, self._backend.clock.now())
            return going

        return self._backend.transact(work)

    def _cut(self, connection: sqlite3.Connection, base: int) -> Going:
        backend, agent = self._backend, self._agent
        pieces = backend.path(agent)
        if not pieces or not pieces[0][1] < base < backend.counters(agent).lsn:
            raise InvalidInput(field="base", reason=f"lsn {base} is not inside the log of {agent}")
        blobs, going = self._gone(base, frozenset())
        with_triggers = _without_triggers(connection)
        for branch, low, high in pieces:
            if high <= base:
                connection.execute(_DELETE, (agent, branch, low, high))
        number = self._rebased(connection, pieces, base)
        connection.execute(sql.LEASE_BRANCH, (number, agent))
        for name in blobs:
            connection.execute(_BLOB_DELETE, (agent, name))
        for statement in with_triggers:
            connection.execute(statement)
        backend.rebuild(connection, agent, number)
        return going

    def _rebased(self, connection: sqlite3.Connection, pieces: list[tuple[int, int, int]], base: int) -> int:
        """Move what stays of the log to branches without the rest of their ancestors; the number of the last.

        What was set aside stays on the old ones, so that it can be told from the log.
        """
        agent, parent = self._agent, 0
        known = {each.number: each for each in self._backend.branches(agent)}
        number = max(known)
        now = rfc3339(self._backend.clock.now().wall_us)
        for branch, low, high in pieces:
            if high <= base:
                continue
            old, start, start_hash = known[branch], low, known[branch].start_hash
            if low < base:
                (start_hash,) = connection.execute(_HASH, (agent, branch, base)).fetchone()
                start = base
                connection.execute(_DELETE, (agent, branch, low, base))
            reason, at = (old.reason, old.at) if parent else (REASON, now)
            number += 1
            values = (agent, number, old.lineage, parent, start, start_hash, reason, at)
            connection.execute(sql.BRANCH_INSERT, values)
            connection.execute(_MOVE, (number, agent, branch, start, high))
            parent = number
        return number

    def _gone(self, base: int, kept: frozenset[int]) -> tuple[set[str], Going]:
        """The blobs that go with the records up to ``base``, and everything counted."""
        backend, agent = self._backend, self._agent
        pieces = [(branch, low, min(high, base)) for branch, low, high in backend.path(agent) if low < base]
        kinds: dict[str, tuple[int, int]] = {}
        for branch, low, high in pieces:
            for kind, count, size in backend.select(_COUNT, (agent, branch, low, high)):
                before = kinds.get(kind, (0, 0))
                kinds[kind] = before[0] + count, before[1] + size
        gone: dict[str, int] = {}
        for branch, lsn, names in self._named():
            if lsn not in kept and any(branch == b and low < lsn <= high for b, low, high in pieces):
                gone.update(names)
        if gone:
            for branch, lsn, names in self._named():
                if lsn in kept or not any(branch == b and low < lsn <= high for b, low, high in pieces):
                    for name in names:
                        gone.pop(name, None)
        return set(gone), Going(kinds, len(gone), sum(gone.values()))

    def _named(self) -> Iterator[tuple[int, int, dict[str, int]]]:
        """The branch and lsn of each record that names blobs, and their sizes."""
        for branch in self._backend.branches(self._agent):
            last = 0
            while page := self._backend.select(_WITH_BLOBS, (self._agent, branch.number, last, _PAGE)):
                for lsn, line in page:
                    yield branch.number, lsn, blobs_named(body_of(line)[1])
                last = page[-1][0]


def shrink(backend: SqliteBackend) -> int:
    """Give the space of what was deleted back to the disk; how many bytes. Other writers wait for as long.

    Raises:
        StoreFull: the disk has no room for the copy that SQLite makes first; nothing has changed.
    """
    before = _size(backend)
    backend.vacuum()
    return max(0, before - _size(backend))


def _size(backend: SqliteBackend) -> int:
    return os.stat(database(backend.directory)).st_size + wal_size(backend.directory)


def _without_triggers(connection: sqlite3.Connection) -> list[str]:
    """Drop those that refuse a prune; the statements that make them again."""
    statements: list[Any] = []
    for name in _TRIGGERS:
        found = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = ?", (name,))
        statements += [row[0] for row in found.fetchall()]
        connection.execute(f"DROP TRIGGER IF EXISTS {name}")
    return statements
