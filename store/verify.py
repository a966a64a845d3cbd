"""Reading a store without trust: everything that its log says of itself, derived again.

What it can find is damage, reordering, forgery without new hashes, and loss
inside a log. The loss of a log's tail, and a log that was written anew with
new hashes, show only against a head that was saved before (``Saved``).

Memory does not grow with the log, but for the agents' ids and, where branches
run side by side, one entry for each lease.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from store.audit import Head, Row, Seen, Walk, blobs_named, body_of, carried_from, check_body
from store.backend import Backend, Branch
from store.errors import BadRecord, Corrupt, NotFound
from store.lease import Lease
from store.records import Record
from store.text import quoted
from store.value import value

Watch = Callable[[Iterable[Seen], int], Iterable[Seen]]


class Inspectable(Backend, Protocol):
    """A backend that shows its rows as they are."""

    def agents_stored(self) -> list[str]: ...
    def stored(self, agent: str, branch: int, last: int) -> Iterator[Seen]: ...
    def heads_stored(self, agent: str) -> Iterator[Head]: ...
    def record_at(self, agent: str, branch: int, lsn: int) -> Row | None: ...
    def path(self, agent: str, branch: int | None = None) -> list[tuple[int, int, int]]: ...
    def check_file(self, most: int = 100) -> list[str]: ...


@value
class Problem:
    """One thing that is not as it was written.

    Attributes:
        agent: "" for the file as a whole.
        branch, lsn, key: 0 and "" where none is meant.
    """

    agent: str
    branch: int
    lsn: int
    key: str
    reason: str


@value
class Checked:
    """The end of one agent's check.

    Attributes:
        records: how many were read, on all branches.
        lsn, hash: the head of the agent's branch; save them, and a later check finds what was lost after all.
        base: the last lsn that was pruned, 0 for a log that is whole.
    """

    agent: str
    records: int
    lsn: int
    hash: str
    problems: int
    base: int = 0


@value
class Saved:
    """A head that an earlier check printed: the record at ``lsn`` had this hash (hexadecimal)."""

    lsn: int
    hash: str


def verify(
    backend: Inspectable,
    agents: Sequence[str] = (),
    saved: Mapping[str, Sequence[Saved]] | None = None,
    watch: Watch = lambda records, total: records,
) -> Iterator[Problem | Checked]:
    """Check the file, then each agent; a store that others write to may be checked too.

    Args:
        agents: which ones; all that any table knows of unless given.
        saved: heads of earlier checks, by agent.
        watch: sees each branch's records pass, for a progress bar.

    Raises:
        NotFound: a named agent is not there.
    """
    saved = saved or {}
    known = backend.agents_stored()
    for agent in [*agents, *saved]:
        if agent not in known:
            raise NotFound(what="agent", name=agent, hint="list the agents with: recall agents list")
    yield from _guarded("", lambda: (Problem("", 0, 0, "", found) for found in backend.check_file()))
    for agent in agents or known:
        yield from _Check(backend, agent, saved.get(agent, ()), watch).run()


def verify_log(backend: Inspectable, agent: str) -> Iterator[Problem]:
    """What is wrong with one agent's log; the file as a whole is not looked at."""
    for found in _Check(backend, agent, (), lambda records, total: records).run():
        if isinstance(found, Problem):
            yield found


def _guarded(agent: str, work: Callable[[], Iterable[Problem]]) -> Iterator[Problem]:
    """What ``work`` yields; damage that stops it is its last complaint."""
    try:
        yield from work()
    except Corrupt as problem:
        yield Problem(agent, 0, 0, "", problem.message)


class _Check:
    """One agent's check."""

    def __init__(self, backend: Inspectable, agent: str, saved: Sequence[Saved], watch: Watch) -> None:
        self._backend, self._agent, self._saved, self._watch = backend, agent, saved, watch
        self._records = 0
        self._head = (0, b"")
        self._path: list[tuple[int, int, int]] = []

    def run(self) -> Iterator[Problem | Checked]:
        problems = 0
        for problem in _guarded(self._agent, self._problems):
            problems += 1
            yield problem
        lsn, hash_ = self._head
        yield Checked(self._agent, self._records, lsn, hash_.hex(), problems, self._path[0][1] if self._path else 0)

    def _problems(self) -> Iterator[Problem]:
        backend = self._backend
        with backend.reading():
            lease, branches = backend.lease(self._agent), backend.branches(self._agent)
            odd = next((each for each in branches if not _readable(each)), None)
            if odd is not None or (lease is not None and not _are_numbers(lease.epoch, lease.branch)):
                yield self._problem("its lease or its table of branches cannot be read, so neither can its log")
                return
            self._path = backend.path(self._agent)
        if lease is None:
            yield self._problem("it has rows but no lease, so that its epoch is lost")
        else:
            yield from self._lease(lease, branches)
        walk = Walk(self._agent, branches, lease.epoch if lease else 2**62)
        for branch in branches:
            for reason in walk.begin(branch):
                yield self._problem(reason, branch.number)
            if not isinstance(branch.last, int):
                yield self._problem(f"its last lsn is {quoted(branch.last)}", branch.number)
            last = branch.last if isinstance(branch.last, int) else 2**62
            stored = backend.stored(self._agent, branch.number, last)
            yield from self._branch(walk, self._watch(stored, last - branch.start))
            if lease and branch.number == lease.branch:
                self._head = (walk.at.lsn, walk.at.hash)
        yield from self._projection()
        for each in self._saved:
            yield from self._against(each, branches)

    def _lease(self, lease: Lease, branches: Sequence[Branch]) -> Iterator[Problem]:
        branch = next((each for each in branches if each.number == lease.branch), None)
        if branch is None:
            yield self._problem(f"its lease names branch {lease.branch}, which is not there")
        elif branch.lineage != lease.lineage:
            yield self._problem("its lease and its branch are of different lineages", branch.number)

    # -- records ------------------------------------------------------------------------

    def _branch(self, walk: Walk, stored: Iterable[Seen]) -> Iterator[Problem]:
        for row, head_lsn in stored:
            self._records += 1
            for reason in walk.step(row):
                yield self._of(row, reason)
            for reason in self._body(row):
                yield self._of(row, reason)
            if self._is_on_path(row.branch, row.lsn) and (not isinstance(head_lsn, int) or head_lsn < row.lsn):
                yield from self._unless_moved(self._of(row, "the projection does not know of it (heads)"))

    def _body(self, row: Row) -> Iterator[str]:
        fields, body = body_of(row.line)
        if fields is None:
            return
        cited = carried_from(body)
        if cited is not None:
            yield from self._cited(row, *cited)
        texts = (row.kind, row.name, row.at)
        if not all(isinstance(each, str) for each in texts):
            return  # the columns' own check has said so
        kept: dict[str, bytes] = {}
        for name, size in blobs_named(body).items():
            reason = self._blob(name, size, kept)
            if reason:
                yield reason

        def fetch(name: str) -> bytes:
            return kept[name] if name in kept else self._backend.blob(self._agent, name)

        try:
            check_body(_record(row, body), fetch)
        except BadRecord as problem:
            yield problem.details["reason"]

    def _cited(self, row: Row, lsn: int, hash_: bytes) -> Iterator[str]:
        """What is wrong with a record that stands for an earlier one, as far as that one is there."""
        place = next((b for b, low, high in self._backend.path(self._agent, row.branch) if low < lsn <= high), 0)
        there = self._backend.record_at(self._agent, place, lsn) if place else None
        if there is not None and (there.key, there.hash) != (row.key, hash_):
            yield f"it stands for lsn {lsn}, which is another record"

    def _blob(self, name: str, size: int, kept: dict[str, bytes]) -> str:
        try:
            data = self._backend.blob(self._agent, name)
        except KeyError:
            return f"its blob {quoted(name)} is missing"
        kept.clear()  # one at a time: it may have 64 MiB
        kept[name] = data
        if len(data) != size:
            return f"its blob {quoted(name)} has {len(data):,} bytes, not {size:,}"
        if name.rpartition("-")[2] != hashlib.sha256(data).hexdigest():
            return f"its blob {quoted(name)} has another content than its name says"
        return ""

    # -- the projection --------------------------------------------------------------------

    def _projection(self) -> Iterator[Problem]:
        """Heads that stand for no record of the path, or say the wrong thing of it.

        Together with the look at each record's head this is the whole
        comparison: every key has a head at or above its newest record, and
        every head is a record.
        """
        for head in self._backend.heads_stored(self._agent):
            place = head.lsn if isinstance(head.lsn, int) else 0
            reason = ""
            if not head.there or not self._is_on_path(head.branch, head.lsn):
                reason = "the projection (heads) names a record that is not on the agent's branch"
            elif head.open != head.should_be_open:
                reason = f"the projection (heads) says open {head.open!r}, its record {head.should_be_open}"
            if reason:
                named = f"{head.kind}:{head.name or head.seq}"
                yield from self._unless_moved(Problem(self._agent, 0, place, named, reason))

    def _is_on_path(self, branch: object, lsn: object) -> bool:
        return isinstance(lsn, int) and any(branch == b and low < lsn <= high for b, low, high in self._path)

    def _unless_moved(self, problem: Problem) -> Iterator[Problem]:
        """``problem``, unless the agent was switched to another branch while this check went on."""
        if self._backend.path(self._agent) == self._path:
            yield problem

    # -- saved heads -----------------------------------------------------------------------

    def _against(self, saved: Saved, branches: Sequence[Branch]) -> Iterator[Problem]:
        base = self._path[0][1] if self._path else 0
        if 0 < saved.lsn <= base:
            root = next(each for each in branches if each.number == self._path[0][0])
            if saved.lsn < base:
                reason = f"the saved head is in what was pruned, up to lsn {base}: keep a later one"
            elif root.start_hash.hex() != saved.hash:
                reason = f"the saved head has hash {saved.hash}, but the log goes on from {root.start_hash.hex()}"
            else:
                return
            yield Problem(self._agent, 0, saved.lsn, "", reason)
            return

        def hash_at(number: int) -> str:
            for piece, low, high in self._backend.path(self._agent, number):
                if low < saved.lsn <= high:
                    row = self._backend.record_at(self._agent, piece, saved.lsn)
                    return row.hash.hex() if row and isinstance(row.hash, bytes) else ""
            return ""

        found = hash_at(self._path[-1][0]) if self._path else ""
        if found == saved.hash:
            return
        aside = next((each.number for each in branches if hash_at(each.number) == saved.hash), None)
        if aside is not None:
            reason = f"the saved head is on branch {aside}, whose tail was set aside"
        elif found:
            reason = f"the saved head has hash {saved.hash}, but the record there has {found}: the log was rewritten"
        else:
            reason = f"the saved head is gone: the log ends at lsn {self._head[0]}"
        yield Problem(self._agent, 0, saved.lsn, "", reason)

    def _problem(self, reason: str, branch: int = 0) -> Problem:
        return Problem(self._agent, branch, 0, "", reason)

    def _of(self, row: Row, reason: str) -> Problem:
        return Problem(
            self._agent,
            row.branch if isinstance(row.branch, int) else 0,
            row.lsn if isinstance(row.lsn, int) else 0,
            row.key if isinstance(row.key, str) else "",
            reason,
        )


def _are_numbers(*values: object) -> bool:
    return all(isinstance(each, int) for each in values)


def _readable(branch: Branch) -> bool:
    return _are_numbers(branch.number, branch.parent, branch.start) and isinstance(branch.start_hash, bytes)


def _record(row: Row, body: str) -> Record:
    seq = row.seq if isinstance(row.seq, int) else 0
    return Record(row.agent, row.branch, row.lsn, row.epoch, row.kind, seq, row.name, body, row.at, row.line, row.hash)
