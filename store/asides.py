"""What was set aside: parts of an agent's log that its branch no longer goes through.

They are evidence. Nothing merges them, nothing deletes them, and they can be
listed, read and exported for as long as the store exists.
"""

from __future__ import annotations

from collections.abc import Iterator

from store.audit import Row, blobs_named
from store.backend import Backend, Branch
from store.clock import rfc3339
from store.errors import NotFound
from store.records import Record
from store.transfer import ASIDE_FORMAT, Lines, blob_line, record_line
from store.value import value
from store.verify import Inspectable


@value
class Aside:
    """One switch to another branch, and what it left behind.

    Attributes:
        number: of the branch that the agent was switched to; it names the aside.
        branch: the branch that the agent was on before.
        first, last: the lsn of the first and last record that were left.
        at: RFC 3339.
    """

    agent: str
    number: int
    branch: int
    first: int
    last: int
    reason: str
    at: str

    @property
    def records(self) -> int:
        return self.last - self.first + 1


def asides(backend: Backend, agent: str) -> list[Aside]:
    """All of an agent's, oldest first.

    A new branch is always made from the one that was in use, the one before it
    by number; so the record ranges of two asides never overlap. One without a
    parent shares nothing with the one before it: all of that was left behind,
    unless it was pruned.
    """
    branches = {each.number: each for each in backend.branches(agent)}
    found = []
    for number, each in branches.items():
        before = branches.get(number - 1)
        if before is None:
            continue
        start = each.start if each.parent else _start(backend, before)
        if before.last > start:
            found.append(Aside(agent, number, number - 1, start + 1, before.last, each.reason, each.at))
    return found


def _start(backend: Backend, branch: Branch) -> int:
    """The lsn before the first record of a branch's log; its last one if there is none."""
    first = next(backend.log(branch.agent, branch=branch.number, limit=1), None)
    return first.lsn - 1 if first is not None else branch.last


def aside(backend: Backend, agent: str, number: int) -> Aside:
    """One of them. Raises NotFound."""
    for each in asides(backend, agent):
        if each.number == number:
            return each
    raise NotFound(what="aside", name=f"{number} of agent {agent}", hint=f"list them with: recall aside list {agent}")


def records(backend: Backend, one: Aside) -> Iterator[Record]:
    """The records that were left, by lsn."""
    return backend.log(one.agent, after=one.first - 1, branch=one.branch, limit=one.records)


def export(backend: Inspectable, one: Aside) -> Iterator[bytes]:
    """The lines of a file with one aside, in the form of an export that import refuses."""
    lines = Lines()
    named: set[str] = set()
    now = rfc3339(backend.clock.now().wall_us)
    yield lines.line(type="header", format=ASIDE_FORMAT, store=backend.store_id, created=now, **vars(one))
    for each in records(backend, one):
        row = Row(
            one.agent,
            each.branch,
            each.lsn,
            each.epoch,
            each.key,
            each.kind,
            each.seq,
            each.name,
            each.line,
            each.at,
            each.hash,
        )
        for blob in blobs_named(each.body):
            if blob not in named:
                named.add(blob)
                yield blob_line(backend, lines, row, blob)
        yield record_line(lines, row)
    yield lines.end(1)
