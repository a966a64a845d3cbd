"""What a store knows of the bucket that it ships to, and the writes that only shipping makes.

A ``Ledger`` is one write transaction: the caller decides (``store.shipping``),
and what it decides is committed whole. It makes no way around the fence: what
it writes to the log came out of the bucket, checked, or is an acquisition that
the bucket has granted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from store.audit import NAMED, body_of
from store.backends.sqlite import rows, sql
from store.backends.sqlite.marks import MARK_DROP, MARK_PUT, REMOTE_PUT, Mark, Remote
from store.backends.sqlite.reader import is_open
from store.clock import Instant, rfc3339
from store.lease import Lease
from store.records import Draft

if TYPE_CHECKING:
    from store.backends.sqlite.backend import SqliteBackend


class Ledger:
    """One write transaction of shipping; ``SqliteBackend.shipping`` makes it and commits it."""

    def __init__(self, backend: SqliteBackend, connection: sqlite3.Connection) -> None:
        self._backend, self._connection = backend, connection

    # -- the bucket ---------------------------------------------------------------------

    def put_remote(self, remote: Remote) -> None:
        """Say which bucket the store ships to."""
        r = remote
        self._connection.execute(REMOTE_PUT, (r.state, r.generation, r.remote_id, r.location, r.dialect, r.at))

    def put_mark(self, mark: Mark) -> None:
        """Say how far an agent's log is in the bucket."""
        m, s, t = mark, mark.sent, mark.sight
        values = (m.agent, m.rev, m.etag, m.lsn, m.hash, m.head)
        sight = (m.sight_rev, t.boot_id, t.boot_ms, t.wall_us)
        self._connection.execute(MARK_PUT, (*values, s.boot_id, s.boot_ms, s.wall_us, *sight, m.trouble))

    def drop_mark(self, agent: str) -> None:
        """Forget how far an agent's log was in a bucket that the store ships to no more."""
        self._connection.execute(MARK_DROP, (agent,))

    # -- the lease: a cache of what the bucket says -----------------------------------------

    def put_lease(self, lease: Lease) -> None:
        """Write an agent's lease row; the database itself refuses a falling epoch."""
        if self._backend.lease(lease.agent) is None:
            self._connection.execute(sql.LEASE_INSERT, rows.of_lease(lease))
        else:
            self._connection.execute(sql.LEASE_UPDATE, (*rows.of_lease(lease)[1:], lease.agent))

    def append(self, lease: Lease, drafts: Sequence[Draft], now: Instant) -> None:
        """Append under a lease that the bucket has just granted."""
        self._backend.write_records(self._connection, lease, drafts, now)

    # -- the log ------------------------------------------------------------------------------

    def new_branch(
        self, agent: str, lineage: str, *, parent: int, start: int, start_hash: bytes, reason: str, at: Instant
    ) -> int:
        """Make a branch that goes on from lsn ``start`` of another one; its number."""
        number = 1 + max((each.number for each in self._backend.branches(agent)), default=0)
        values = (agent, number, lineage, parent, start, start_hash, reason, rfc3339(at.wall_us))
        self._connection.execute(sql.BRANCH_INSERT, values)
        return number

    def set_aside(self, lease: Lease, keep: int, hash: bytes, reason: str, at: Instant) -> Lease:
        """Leave what an agent's log has above ``keep``; the lease row on the new branch.

        Args:
            hash: the chain's hash at ``keep``.
        """
        parent = next(
            (number for number, low, _ in reversed(self._backend.path(lease.agent)) if low < keep), lease.branch
        )
        number = self.new_branch(
            lease.agent, lease.lineage, parent=parent, start=keep, start_hash=hash, reason=reason, at=at
        )
        on_it = replace(lease, branch=number)
        self.go_to(on_it)
        return on_it

    def go_to(self, lease: Lease) -> None:
        """Write a lease row that is on another branch, and the projection of what is there."""
        self.put_lease(lease)
        self._backend.rebuild(self._connection, lease.agent, lease.branch)

    def start_over(self, lease: Lease, lineage: str, base: int, base_hash: bytes, reason: str, at: Instant) -> None:
        """Leave all of an agent's log on its branch, and put the agent on an empty one of another lineage.

        Args:
            base, base_hash: where the log that is to come starts.
        """
        number = self.new_branch(lease.agent, lineage, parent=0, start=base, start_hash=base_hash, reason=reason, at=at)
        self.put_lease(replace(lease, branch=number, lineage=lineage, state="released", imported=False))
        self.drop_mark(lease.agent)
        self._backend.rebuild(self._connection, lease.agent, number)

    def extend(self, agent: str, branch: int, lines: Iterable[tuple[int, bytes, bytes]]) -> None:
        """Add lines of the bucket to a branch, each with its lsn and its hash; the caller has checked them."""
        for lsn, line, link in lines:
            fields, _ = body_of(line)
            assert fields is not None
            kind, key = fields["kind"], fields["key"]
            seq, name = _numbered_or_named(kind, key.partition(":")[2])
            values = (agent, branch, lsn, fields["epoch"], key, kind, seq, name, line.decode(), fields["at"], link)
            self._connection.execute(sql.RECORD_INSERT, values)
            head = (agent, kind, seq, name, branch, lsn, is_open(kind, line))
            self._connection.execute(sql.HEAD_WRITE, head)

    def blob(self, agent: str, name: str, data: bytes) -> None:
        """Store a blob, unless it is there."""
        if self._connection.execute(sql.BLOB_THERE, (agent, name)).fetchone() is None:
            self._connection.execute(sql.BLOB_INSERT, (agent, name, data))


def _numbered_or_named(kind: str, tag: str) -> tuple[int, str]:
    """The seq or the name that a key ends with; of a kind from a newer version, digits are taken for a seq."""
    return (0, tag) if kind in NAMED or not tag.isascii() or not tag.isdigit() or len(tag) > 18 else (int(tag), "")
