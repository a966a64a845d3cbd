"""The stored rows as they are, for those who check them: ``verify``, ``export`` and ``doctor``."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from store.audit import Head, Row, Seen
from store.backends.sqlite import schema, sql
from store.backends.sqlite.faults import translated
from store.backends.sqlite.marks import MARK, MARKS, REMOTE, Mark, Remote, to_mark
from store.backends.sqlite.reader import Reader, is_open

_PAGE = 500
_WITH_REMOTE = 2  # the first format that has the table
_LOWEST = -(2**63)


class Inspector(Reader):
    """Reading without trust; in pages, so that no read transaction outlives one of them."""

    def select(self, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The rows of a statement, for what reads more than a log's reader needs."""
        return self._all(statement, values)

    def agents_stored(self) -> list[str]:
        """Every agent that any table knows of."""
        return [row[0] for row in self._all(sql.AGENTS_STORED, ())]

    def stored(self, agent: str, branch: int, last: int) -> Iterator[Seen]:
        """A branch's own records up to lsn ``last``, in the order of their lsn."""
        low = _LOWEST
        while True:
            page = self._all(sql.STORED, (agent, branch, low, last, _PAGE))
            for row in page:
                yield Seen(Row(*row[:11]), row[11])
            if len(page) < _PAGE:
                return
            low = page[-1][2]

    def heads_stored(self, agent: str) -> Iterator[Head]:
        """The agent's projection, in the order of its keys."""
        after: tuple[Any, ...] = ("", _LOWEST, "")
        while True:
            page = self._all(sql.HEADS_STORED, (agent, *after, _PAGE))
            for kind, seq, name, branch, lsn, open_, line in page:
                yield Head(kind, seq, name, branch, lsn, open_, line is not None, is_open(kind, line))
            if len(page) < _PAGE:
                return
            after = page[-1][:3]

    def record_at(self, agent: str, branch: int, lsn: int) -> Row | None:
        """One stored record."""
        found = self._all(sql.STORED, (agent, branch, lsn - 1, lsn, 1))
        return Row(*found[0][:11]) if found else None

    def path(self, agent: str, branch: int | None = None) -> list[tuple[int, int, int]]:
        """The pieces of a log, oldest first: (branch, above lsn, up to lsn)."""
        return self._path(agent, branch)

    def newest_stored(self, limit: int) -> list[Row]:
        """The records that were stored last, of any agent, newest first."""
        return [Row(*row) for row in self._all(sql.NEWEST_STORED, (limit,))]

    def agents_branched(self) -> list[str]:
        """The agents that have more than one branch."""
        return [row[0] for row in self._all(sql.AGENTS_BRANCHED, ())]

    def objects(self) -> dict[str, str]:
        """The SQL of every table, index, trigger and view, by name."""
        return dict(self._all(sql.OBJECTS, ()))

    def format_version(self) -> int:
        """The store's format, 0 for an empty file."""
        with self._mutex, translated(self.directory):
            return schema.look(self._opened(), self.directory).version

    def remote(self) -> Remote | None:
        """The bucket that the store ships to, or shipped to; None if it never did."""
        if self.empty or self.format_version() < _WITH_REMOTE:
            return None
        found = self._all(REMOTE, ())
        return Remote(*found[0]) if found else None

    def end(self, agent: str) -> tuple[int, bytes]:
        """The last lsn and hash of an agent's log; (0, b"") if it has none."""
        found = self._all(sql.END, (agent,))
        if found:
            return found[0][0], found[0][1]
        with self.reading():
            lease = self._lease(agent)
            return self._last(agent, lease.branch) if lease else (0, b"")

    def hash_on_branch(self, agent: str, lsn: int) -> bytes | None:
        """The chain's hash at a record of the agent's own branch; None for one that is elsewhere, or nowhere."""
        found = self._all(sql.HASH_ON_BRANCH, (agent, lsn))
        return found[0][0] if found else None

    def mark(self, agent: str) -> Mark | None:
        """How far an agent's log is known to be in the bucket; None if it never was there."""
        found = self._all(MARK, (agent,))
        return to_mark(found[0]) if found else None

    def marks(self, *, after: str = "", limit: int = 1000) -> list[Mark]:
        """The marks of all agents, by agent, above ``after``."""
        return [to_mark(row) for row in self._all(MARKS, (after, limit))]

    def differs(self, agent: str) -> bool:
        """Whether an agent's projection is not what its records say; reads all of them."""
        with self.reading():
            both = itertools.zip_longest(self.projected(agent), self.heads_stored(agent))
            return any(head is None or right != tuple(head[:6]) for right, head in both)

    def check_file(self, most: int = 100) -> list[str]:
        """What SQLite itself finds wrong with the file's structure."""
        with self._mutex, translated(self.directory):
            found = [str(row[0]) for row in self._opened().execute(f"PRAGMA quick_check({most:d})")]
        return [] if found == ["ok"] else found
