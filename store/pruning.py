"""Retention: a log that begins later, with everything that is still needed.

What a later process rests on is first written again above the new beginning,
each record with the lsn and the hash of the one that it stands for: the newest
working state, the newest turns, pointers, outputs, tool classes, open actions,
every named step with its last attempt, and the newest number of each kind. Only
then does what came before go. So a step that is done still replays, an open
action still waits, a key is never given twice, and turns keep their numbers.

An output goes only with the turn or the call that it was split off from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from store.access import beside
from store.agent import Agent
from store.errors import Corrupt, InvalidInput, NotFound, Stale
from store.lease import Fence
from store.records import (
    ACTION,
    CARRIED,
    LEASE,
    LIFECYCLE,
    OUTPUT,
    POINTER,
    PRUNED,
    RUN,
    STEP,
    TURN,
    WORKING_STATE,
    Draft,
    Expect,
    Record,
    compact,
    in_force,
    written_at,
)
from store.value import value
from store.verify import Inspectable, verify_log
from store.views import View

if TYPE_CHECKING:
    from store.backends.sqlite.pruning import Going

KEEP_TURNS = 20
_BATCH, _BATCH_BYTES = 100, 512 * 1024
_TRIES = 5
_OWNED = re.compile(r"(?P<kind>act|out)-(?P<seq>[1-9]\d{0,17})-(?:(?:args|result)(?:-\d+)?|\d+)", re.ASCII)


class Prunable(Inspectable, Protocol):
    """A backend whose logs can be pruned."""

    def going(self, agent: str, base: int, kept: frozenset[int] = frozenset()) -> Going: ...
    def check_prunable(self, agent: str) -> None: ...
    def rebase(self, fence: Fence, base: int) -> None: ...
    def cut(self, fence: Fence, base: int, before: Callable[[], None], after: Callable[[], None]) -> Going: ...


@value
class Plan:
    """What a prune would do.

    Attributes:
        base: the last lsn that goes; 0 if nothing does.
        last: the log's last lsn.
        kept: of each kind, how many records are written again since they are needed.
        going: what is taken away.
    """

    agent: str
    base: int
    last: int
    kept: Mapping[str, int]
    going: Going


def base_before(backend: Prunable, agent: str, at: str) -> int:
    """The last lsn written before a time (RFC 3339)."""
    low, high = 1, backend.counters(agent).lsn + 1
    while low < high:
        middle = (low + high) // 2
        record = next(backend.log(agent, after=middle - 1, limit=1), None)
        if record is not None and record.at < at:
            low = middle + 1
        else:
            high = middle
    return low - 1


def plan(backend: Prunable, agent: str, base: int, *, keep_turns: int = KEEP_TURNS) -> Plan:
    """What pruning up to lsn ``base`` would do; nothing is written.

    Raises:
        NotFound: there is no such agent.
    """
    with backend.reading():
        pieces, last = backend.path(agent), backend.counters(agent).lsn
        lineages = {each.number: each.lineage for each in backend.branches(agent)}
    if not pieces:
        raise NotFound(what="agent", name=agent, hint="list the agents with: recall agents list")
    seams = {low for (before, _, _), (after, low, _) in pairwise(pieces) if lineages[before] != lineages[after]}
    base = min(base, last)
    base -= base in seams  # a beginning has one hash; where two lineages meet there are two
    if base <= pieces[0][1]:
        base = 0
    # What follows may read much, and is no one moment's: a long read would stop the write-ahead log's recycling.
    needed = _needed(backend, agent, base, keep_turns)
    kept: dict[str, int] = {}
    for record in _records(backend, agent, needed):
        kept[record.kind] = kept.get(record.kind, 0) + 1
    return Plan(agent, base, last, kept, backend.going(agent, base, frozenset(needed)))


def prune(
    backend: Prunable, agent: str, base: int, *, keep_turns: int = KEEP_TURNS, by: str = "", reason: str = ""
) -> Plan:
    """Let a log begin above lsn ``base``.

    Beside a live holder it works under the holder's lease, else under one of
    its own. Whatever stops it leaves the log whole; done again, it goes on.

    Args:
        by, reason: who decided it, and why; kept in the log.

    Raises:
        NotFound: there is no such agent.
        InvalidInput: nothing would stay.
        Corrupt: the log is damaged, or would be; nothing was taken away.
        LeaseHeld: it is live in another process that cannot be worked beside.
    """
    planned = plan(backend, agent, base, keep_turns=keep_turns)
    if not planned.base:
        return planned
    backend.check_prunable(agent)
    _refuse_damage(backend, agent)

    def refuse_needed() -> None:
        if _needed(backend, agent, planned.base, keep_turns):
            raise Stale(key=f"{agent}:log", expected="nothing that is needed", found="a record that is")

    def work(one: Agent) -> Plan:
        kept: dict[str, int] = {}
        for _ in range(_TRIES):
            for kind, count in _carry(one, backend, planned.base, keep_turns).items():
                kept[kind] = kept.get(kind, 0) + count
            _say(one, backend, planned.base, by, reason)
            fence = one._keeper.fence
            backend.rebase(fence, planned.base)
            try:
                going = backend.cut(fence, planned.base, refuse_needed, lambda: _refuse_damage(backend, agent))
            except Stale:  # somebody wrote in between
                continue
            return Plan(agent, planned.base, backend.counters(agent).lsn, kept, going)
        raise Stale(key=f"{agent}:log", expected="the same", found="written to all the time")

    return beside(backend, agent, work, holder="operator:prune")


def _refuse_damage(backend: Prunable, agent: str) -> None:
    problem = next(verify_log(backend, agent), None)
    if problem is not None:
        where = f"{problem.key} (lsn {problem.lsn}): " if problem.key else ""
        raise Corrupt(
            reason=f"agent {agent}: {where}{problem.reason}; nothing was pruned",
            hint=f"see all of it: recall verify {agent}",
        )


# -- what is needed -----------------------------------------------------------------------------


def _needed(backend: Prunable, agent: str, base: int, keep_turns: int) -> list[int]:
    """The lsn of each record up to ``base`` that is needed above it, rising: as they were written."""
    view = View(backend, agent)
    kinds = sorted(view.kinds(), key=lambda kind: kind == OUTPUT)  # what they belong to is known by then
    found: set[int] = set()
    for kind in kinds:
        for each in _needed_of(view, kind, keep_turns):
            if each.lsn <= base and (kind != OUTPUT or _stays(backend, each, base, found)):
                found.add(each.lsn)
    return sorted(found)


def _stays(backend: Prunable, output: Record, base: int, found: set[int]) -> bool:
    """Whether an output is needed: its turn or its call is, or it has none."""
    match = _OWNED.fullmatch(output.name)
    if match is None:
        return True
    kind = ACTION if match["kind"] == "act" else TURN
    owner = backend.newest(output.agent, kind, seq=int(match["seq"]))
    if owner is None or (kind == TURN and owner.fields().get("output_ref") != output.name):
        return True  # the ref only looks like it
    return owner.lsn > base or owner.lsn in found


def _needed_of(view: View, kind: str, keep_turns: int) -> Iterator[Record]:
    """The newest records of the keys of a kind that must not be lost."""
    backend, agent = view.backend, view.agent
    if kind == LEASE:
        return  # the lease row has the epoch
    if kind in (WORKING_STATE, TURN, ACTION, RUN):  # the newest, since the next number is counted from it
        yield from backend.tail(agent, kind, limit=max(1, keep_turns) if kind == TURN else 1)
    if kind in (WORKING_STATE, TURN):
        return
    for record in view.newest_of(kind):
        if kind in (ACTION, RUN, POINTER, OUTPUT):
            if in_force(kind, record.fields()):
                yield record
        elif kind != LIFECYCLE or record.name != PRUNED:
            yield record  # a kind of a newer version is kept whole too
        if kind == STEP:
            last = record.fields().get("action")
            attempt = backend.newest(agent, ACTION, seq=last) if isinstance(last, int) else None
            if attempt is not None:
                yield attempt


def _records(backend: Prunable, agent: str, lsns: Sequence[int]) -> Iterator[Record]:
    for lsn in lsns:
        yield from backend.log(agent, after=lsn - 1, limit=1)


# -- writing it again --------------------------------------------------------------------------


def _carry(one: Agent, backend: Prunable, base: int, keep_turns: int) -> dict[str, int]:
    """Write again what is needed; how many of each kind."""
    kept: dict[str, int] = {}
    batch: list[Record] = []
    for record in _records(backend, one.id, _needed(backend, one.id, base, keep_turns)):
        batch.append(record)
        if len(batch) >= _BATCH or sum(len(each.line) for each in batch) >= _BATCH_BYTES:
            _write_again(one, backend, batch, kept)
            batch = []
    _write_again(one, backend, batch, kept)
    return kept


def _write_again(one: Agent, backend: Prunable, batch: Sequence[Record], kept: dict[str, int]) -> None:
    def attempt() -> tuple[list[Draft], list[Expect]]:
        drafts, expected = [], []
        for record in batch:
            newest = backend.newest(one.id, record.kind, seq=record.seq, name=record.name)
            if newest is not None and newest.lsn == record.lsn:  # else it was written again by its owner
                drafts.append(Draft(record.kind, _cited(record), record.seq, record.name))
                expected.append(Expect(record.kind, record.lsn, record.seq, record.name))
        return drafts, expected

    for record in one._append(attempt):
        kept[record.kind] = kept.get(record.kind, 0) + 1


def _cited(record: Record) -> dict[str, object]:
    """The body, with the record that it stands for: of one that was written again before, with its first time."""
    body = record.fields()
    moved = _moved(record)
    at = written_at(record, body)
    return {**body, **moved, CARRIED: {"lsn": record.lsn, "hash": record.hash.hex(), "at": at}}


def _moved(record: Record) -> dict[str, object]:
    import json

    moved = json.loads(record.body).get("blobs")
    return {"blobs": moved} if moved else {}


def _say(one: Agent, backend: Prunable, base: int, by: str, reason: str) -> None:
    """The record that says where the log begins; not twice for the same beginning."""
    record = next(backend.log(one.id, after=base - 1, limit=1), None)
    if record is None or record.lsn != base:
        raise InvalidInput(field="base", reason=f"lsn {base} is not inside the log of {one.id}")
    body = {"event": PRUNED, "lsn": base, "hash": record.hash.hex(), **compact({"by": by, "reason": reason})}

    def attempt() -> tuple[list[Draft], list[Expect]]:
        said = backend.newest(one.id, LIFECYCLE, name=PRUNED)
        if said is not None and said.fields().get("lsn") == base:
            return [], []
        return [Draft(LIFECYCLE, body, name=PRUNED)], []

    one._append(attempt)
