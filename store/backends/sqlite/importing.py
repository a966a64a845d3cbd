"""The write path of an import: agents that are absent, whole, in the caller's one transaction.

It makes no way around the fence: an agent that has a lease row, or anything
else, is refused, and the rows that are written here leave it released.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from store.audit import Row
from store.backend import Branch
from store.backends.sqlite import rows, sql
from store.backends.sqlite.reader import is_open
from store.errors import AgentExists
from store.lease import Lease


class Import:
    """An import under way, one agent after another; ``SqliteBackend.importing`` makes it and commits it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._agent = ""
        self._tops: dict[int, int] = {}

    def agent(self, lease: Lease, branches: Sequence[Branch]) -> None:
        """Begin an agent.

        Args:
            lease: released and imported, so that its first acquisition starts a new lineage.

        Raises:
            AgentExists: the store knows of it in any way.
        """
        assert lease.state == "released"
        assert lease.imported
        if self._connection.execute(sql.AGENT_THERE, {"agent": lease.agent}).fetchone()[0]:
            raise AgentExists(agent=lease.agent)
        self._agent = lease.agent
        self._connection.execute(sql.LEASE_INSERT, rows.of_lease(lease))
        for each in branches:
            values = (each.number, each.lineage, each.parent, each.start, each.start_hash, each.reason, each.at)
            self._connection.execute(sql.BRANCH_INSERT, (self._agent, *values))
        self._tops = _path(lease.branch, branches)

    def blob(self, name: str, data: bytes) -> None:
        """Store a blob of the agent, unless it is there."""
        if self.blob_size(name) is None:
            self._connection.execute(sql.BLOB_INSERT, (self._agent, name, data))

    def blob_size(self, name: str) -> int | None:
        """The bytes of a blob of the agent, or None."""
        found = self._connection.execute(sql.BLOB_SIZE, (self._agent, name)).fetchone()
        return int(found[0]) if found else None

    def record(self, row: Row) -> None:
        """Store a record and, where it is on the agent's branch, its place in the projection."""
        line = row.line.decode()
        values = (row.agent, row.branch, row.lsn, row.epoch, row.key, row.kind, row.seq, row.name, line, row.at)
        self._connection.execute(sql.RECORD_INSERT, (*values, row.hash))
        if row.lsn <= self._tops.get(row.branch, 0):
            head = (row.agent, row.kind, row.seq, row.name, row.branch, row.lsn, is_open(row.kind, row.line))
            self._connection.execute(sql.HEAD_WRITE, head)


def _path(branch: int, branches: Sequence[Branch]) -> dict[int, int]:
    """Of each branch that makes up the agent's log, the lsn up to which it does."""
    known = {each.number: each for each in branches}
    tops, top = {}, 2**62
    while branch in known:
        tops[branch] = top
        if known[branch].parent >= branch:  # whoever checked the file, this must not go round in it
            break
        top, branch = known[branch].start, known[branch].parent
    return tops
