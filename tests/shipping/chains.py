"""The real heads and chains behind the small numbers that the model's states are made of."""

from __future__ import annotations

from functools import cache
from typing import Any

from store.canonical import first_hash, next_hash
from store.shipping.head import Head
from store.value import value

AGENT = "a"
NONE = -1  # no head, no mark, no record's number


@value
class Log:
    """A chain of tiny lines from the start of a lineage; the number of an equal one is the same.

    Attributes:
        lines: (epoch, incarnation, uid), uid NONE for a lease record.
    """

    lines: tuple[tuple[int, int, int], ...]
    hashes: tuple[bytes, ...]

    @property
    def last(self) -> int:
        return len(self.lines)


class Tables:
    """The real heads and chains behind the numbers that states are made of."""

    def __init__(self) -> None:
        self.logs: list[Log] = []
        self.heads: list[Head] = []
        self.log_of: list[int] = []  # of each head
        self._logs: dict[tuple[int, Any], int] = {}
        self._heads: dict[bytes, int] = {}

    @cache  # noqa: B019 (lives as long as the search)
    def root(self, lineage: str) -> int:
        self.logs.append(Log((), (first_hash(lineage, AGENT),)))
        return len(self.logs) - 1

    def grown(self, log: int, line: tuple[int, int, int]) -> int:
        """The number of the log with one more line."""
        key = (log, line)
        if key not in self._logs:
            old = self.logs[log]
            self.logs.append(Log((*old.lines, line), (*old.hashes, next_hash(old.hashes[-1], encoded(line)))))
            self._logs[key] = len(self.logs) - 1
        return self._logs[key]

    def put(self, head: Head) -> int:
        """A head's number; it is checked as a reader would."""
        body = head.encode()
        if body not in self._heads:
            assert Head.parse(body, AGENT) == head
            log = self.root(head.lineage)
            for line in head.tail:
                log = self.grown(log, decoded(line))
            self.heads.append(head)
            self.log_of.append(log)
            self._heads[body] = len(self.heads) - 1
        return self._heads[body]

    @cache  # noqa: B019
    def starts(self, log: int, other: int) -> bool:
        """Whether ``other`` goes on from ``log``."""
        one, two = self.logs[log], self.logs[other]
        return two.last >= one.last and two.hashes[one.last] == one.hashes[-1]

    @cache  # noqa: B019
    def common(self, log: int, other: int) -> int:
        """The lsn up to which two logs are the same."""
        pairs = zip(self.logs[log].hashes, self.logs[other].hashes, strict=False)
        return sum(one == two for one, two in pairs) - 1


def encoded(line: tuple[int, int, int]) -> bytes:
    return ".".join(map(str, line)).encode()


def decoded(line: bytes) -> tuple[int, int, int]:
    epoch, inc, uid = map(int, line.decode().split("."))
    return epoch, inc, uid
