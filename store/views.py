"""Reading one agent: what briefings, listings and resumed agents have in common.

A record that cannot be read is reported to the backend's ``on_bad_record`` and
left out; it never hides the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from store.backend import Backend
from store.clock import parse_rfc3339, rfc3339_seconds, to_datetime
from store.errors import BadRecord, InvalidInput, NotFound
from store.records import (
    ACTION,
    ARCHIVED,
    LEASE,
    LIFECYCLE,
    OUTPUT,
    POINTER,
    PRUNED,
    STEP,
    TOOL,
    TURN,
    WORKING_STATE,
    FetchBlob,
    Record,
)
from store.running import still_running
from store.text import check_whole, quoted, shown_number
from store.value import value
from store.values import Action, Output, OutputRef, Pointer, Turn, WorkingState, tokens_of

if TYPE_CHECKING:
    from store.briefing_parts import BriefingParts

T = TypeVar("T")
Read = Callable[[Record, FetchBlob | None], T]

SHOWN_ACTIONS = 20  # in full in a briefing; the rest is counted
SHOWN_NAMED = 200  # pointers that a briefing may choose from
SHOWN_OUTPUTS = 50  # the newest outputs that it may choose from
_PAGE = 50
_LAST_SEQ = 2**62
_LAST_NAME = "\U0010ffff"


@value
class MayRun:
    """A call that may still be running on a machine that cannot be asked: until when (RFC 3339), and whose it is."""

    until: str
    holder: str

    def __str__(self) -> str:
        return f"may still be running until {self.until} on {self.holder}"


class View:
    """One agent, as it is or, with ``at``, as it was after that lsn.

    Args:
        at: a position of the log; None for the present.
    """

    def __init__(self, backend: Backend, agent: str, at: int | None = None) -> None:
        self.backend, self.agent, self.at = backend, agent, at

    def _fetch(self, name: str) -> bytes:
        return self.backend.blob(self.agent, name)

    def read(self, record: Record, read: Read[T]) -> T:
        """One value with its blobs. Raises BadRecord."""
        return read(record, self._fetch)

    def each(self, records: Iterable[Record], read: Read[T], *, blobs: bool = True) -> Iterator[T]:
        """The readable values among records."""
        for record in records:
            try:
                yield read(record, self._fetch if blobs else None)
            except BadRecord as problem:
                self.backend.on_bad_record(problem)

    # -- working state ----------------------------------------------------------------

    def working_state(self) -> WorkingState:
        """The newest readable version; the empty state (version 0) before the first."""
        return next(self._tail(WORKING_STATE, WorkingState.read, None, first=1), WorkingState())

    def states(self, limit: int | None = None) -> Iterator[WorkingState]:
        """Versions, newest first."""
        return self._tail(WORKING_STATE, WorkingState.read, limit)

    def state_version(self, version: int) -> WorkingState:
        """One version. Raises NotFound."""
        return self._numbered(WORKING_STATE, version, WorkingState.read, "version")

    # -- turns ------------------------------------------------------------------------

    def turns(self, limit: int | None = None, before: int | None = None) -> Iterator[Turn]:
        """Turns, newest first, below seq ``before``."""
        return self._tail(TURN, Turn.read, limit, before)

    def turn(self, seq: int) -> Turn:
        """One turn. Raises NotFound."""
        return self._numbered(TURN, seq, Turn.read, "turn")

    # -- pointers and outputs -----------------------------------------------------------

    def pointers(self, limit: int = SHOWN_NAMED) -> tuple[list[Pointer], int]:
        """The newest ``limit`` pointers in force, by name, and how many there are."""
        records, total = self.backend.in_force_newest(self.agent, POINTER, limit=limit, at=self.at)
        return sorted(self.each(records, Pointer.read), key=lambda each: each.name), total

    def outputs(self, limit: int = SHOWN_NAMED) -> tuple[list[OutputRef], int]:
        """The newest outputs without their contents, newest first, and how many there are."""
        records, total = self.backend.in_force_newest(self.agent, OUTPUT, limit=limit, at=self.at)
        return list(self.each(records, OutputRef.read, blobs=False)), total

    def every_output(self) -> Iterator[tuple[OutputRef, Record]]:
        """All outputs without their contents, newest first, each with its record."""
        before: int | None = None
        while True:
            page, _ = self.backend.in_force_newest(self.agent, OUTPUT, limit=_PAGE, before=before, at=self.at)
            for record in page:
                yield from ((output, record) for output in self.each([record], OutputRef.read, blobs=False))
            if len(page) < _PAGE:
                return
            before = page[-1].lsn

    def output(self, ref: str) -> Output:
        """An output with its content. Raises NotFound, BadRecord."""
        if not isinstance(ref, str):
            raise InvalidInput(field="ref", reason=f"must be text, not {quoted(ref)}")
        record = self.backend.newest(self.agent, OUTPUT, name=ref, at=self.at)
        if record is None:
            hint = f"list them with: recall outputs list {self.agent}"
            raise NotFound(what="output", name=f"{quoted(ref)} of {self.agent}", hint=hint)
        return self.read(record, Output.read)

    def content(self, ref: str) -> str:
        """An output's text, for showing what refers to it: of one that is gone or damaged, words that say so."""
        try:
            return self.output(ref).content
        except (NotFound, BadRecord) as problem:
            return f"({problem.message})"

    # -- actions ------------------------------------------------------------------------

    def action(self, seq: int) -> Action:
        """One action. Raises NotFound, BadRecord."""
        return self.action_record(seq)[0]

    def action_record(self, seq: int) -> tuple[Action, Record]:
        """One action, and the record that holds its present state."""
        record = self._number(ACTION, seq, "action")
        return self.read(record, Action.read), record

    def may_run(self, action: Action) -> MayRun | None:
        """Whether an external call may still run although its holder's lease was taken over.

        The fence protects the log, not the world: a holder on another machine
        that lost its lease without a word may have been about to call. Its
        successor gives it the call's ``max_ms``, counted from its own takeover.
        """
        if action.status != "started" or action.class_ != "external" or not action.max_ms:
            return None
        epoch = action.epoch
        while True:
            found = self.backend.keys(self.agent, after=(LEASE, epoch, _LAST_NAME), limit=1)
            if not found or found[0].kind != LEASE:
                return None
            body, epoch = next(self.each(found, lambda each, fetch: each.fields(fetch)), {}), found[0].seq
            if body.get("incarnation") != action.incarnation:
                break
        if not body.get("elsewhere") or body.get("reason") not in ("expired", "broken"):
            return None
        taken = round(parse_rfc3339(found[0].at).timestamp() * 1_000_000)
        until = taken + action.max_ms * 1000
        if self.backend.clock.now().wall_us >= until:
            return None
        before = self.backend.newest(self.agent, LEASE, seq=action.epoch)
        told = next(self.each([before] if before else [], lambda each, fetch: each.fields(fetch)), {})
        return MayRun(rfc3339_seconds(until), str(told.get("holder", "another machine")))

    def step_record(self, name: str) -> tuple[Action | None, dict[str, Any], int]:
        """A step's last attempt, its record's fields and its lsn; (None, {}, 0) before the first."""
        record = self.backend.newest(self.agent, STEP, name=name, at=self.at)
        if record is None:
            return None, {}, 0
        body = record.fields()
        seq = body.get("action")
        if not isinstance(seq, int):
            raise record.bad("it names no action")
        return self.action(seq), body, record.lsn

    def last_of_step(self, step: str, run: str = "") -> tuple[Action | None, str]:
        """A step's last attempt and the digest of its arguments; (None, "") before the first."""
        last, body, _ = self.step_record(f"{run}/{step}")
        return last, str(body.get("args", ""))

    def tool_class(self, tool: str) -> str:
        """The class that a tool was last used with, "" before the first use."""
        record = self.backend.newest(self.agent, TOOL, name=tool, at=self.at)
        return str(record.fields().get("class", "")) if record else ""

    def actions(self, limit: int | None = None, before: int | None = None) -> Iterator[Action]:
        """Actions in their present states, newest first, below seq ``before``."""
        return self._tail(ACTION, Action.read, limit, before)

    def pending(self, limit: int | None = None, after: int = 0) -> Iterator[Action]:
        """Open actions, oldest first, above seq ``after``."""

        def page(after: int, size: int) -> list[Record]:
            return self.backend.in_force(self.agent, ACTION, limit=size, after=(self.agent, after), at=self.at)

        return self._rising(page, limit, after)

    def to_settle(self) -> Iterator[Action]:
        """Those of the present open actions that a new incarnation has to settle, oldest first."""
        return self._rising(lambda after, size: self.backend.to_settle(self.agent, limit=size, after=after), None)

    def _rising(
        self, page_of: Callable[[int, int], list[Record]], limit: int | None, after: int = 0
    ) -> Iterator[Action]:
        left = limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(_PAGE, left)
            page = page_of(after, size)
            yield from self.each(page, Action.read)
            if len(page) < size:
                return
            after, left = page[-1].seq, None if left is None else left - size

    # -- all of it -----------------------------------------------------------------------

    def parts(self, budget: int, viewer: str = "") -> BriefingParts:
        """What a briefing is made of, read at one moment and no more of it than ``budget`` tokens can show."""
        from store.briefing_parts import BriefingParts  # a listing has no use for the renderer

        backend, agent = self.backend, self.agent
        with backend.reading():
            state = self.working_state()
            _, pending_total = backend.in_force_newest(agent, ACTION, limit=0, at=self.at)
            pending = tuple(self.pending(SHOWN_ACTIONS))
            pointers, pointers_total = self.pointers()
            outputs, outputs_total = self.outputs(SHOWN_OUTPUTS)
            turns = list(self._turns_within(budget))
            newest = backend.tail(agent, TURN, limit=1, at=self.at)
            newest_action = backend.tail(agent, ACTION, limit=1, at=self.at)
            first = next(self.newest_of(TURN), None) if newest and self.pruned() else None
            turns_pruned = first.seq - 1 if first else 0
        return BriefingParts(
            agent=agent,
            working_state=state,
            pending=pending,
            pending_total=pending_total,
            pointers=tuple(pointers),
            pointers_total=pointers_total,
            outputs=tuple(outputs),
            outputs_total=outputs_total,
            turns=tuple(reversed(turns)),
            turns_total=newest[0].seq - turns_pruned if newest else 0,
            turns_pruned=turns_pruned,
            now=to_datetime(backend.clock.now().wall_us),
            viewer=viewer,
            still_running={each.seq: alive for each in pending if (alive := still_running(backend.directory, each))},
            may_run={each.seq: (waits.until, waits.holder) for each in pending if (waits := self.may_run(each))},
            fresh=not (state.version or newest or newest_action or pointers_total or outputs_total),
            at=self.at,
        )

    def _turns_within(self, budget: int) -> Iterator[Turn]:
        used = 0
        for turn in self.turns():
            yield turn
            used += tokens_of(turn.brief or turn.content) + 4
            if used > budget:
                return

    # -- its end --------------------------------------------------------------------------

    def archived(self) -> Mapping[str, Any]:
        """Who archived the agent, and why: ``reason``, ``by``, ``at``; empty while it is not archived."""
        record = self.backend.newest(self.agent, LIFECYCLE, name=ARCHIVED, at=self.at)
        found = [record] if record else []
        body = next(self.each(found, lambda each, fetch: {**each.fields(fetch), "at": each.at}), {})
        return body if body.get("event") == "archived" else {}

    def pruned(self) -> Mapping[str, Any]:
        """The last ``lsn`` that is gone, and ``by``, ``reason``, ``at`` of the prune; empty for a whole log."""
        record = self.backend.newest(self.agent, LIFECYCLE, name=PRUNED)
        found = [record] if record else []
        body = next(self.each(found, lambda each, fetch: {**each.fields(fetch), "at": each.at}), {})
        return body if isinstance(body.get("lsn"), int) else {}

    # -- every key ------------------------------------------------------------------------

    def kinds(self) -> Iterator[str]:
        """The kinds that the agent has records of, by name."""
        kind = ""
        while found := self.backend.keys(self.agent, after=(kind, _LAST_SEQ, ""), limit=1):
            kind = found[0].kind
            yield kind

    def newest_of(self, kind: str, above: int = -1) -> Iterator[Record]:
        """The newest record of every key of a kind, by seq and name, in force or not; above seq ``above``."""
        after = (kind, above, _LAST_NAME if above >= 0 else "")
        while True:
            page = self.backend.keys(self.agent, after=after, limit=_PAGE)
            for record in page:
                if record.kind != kind:
                    return
                yield record
            if len(page) < _PAGE:
                return
            after = (kind, page[-1].seq, page[-1].name)

    # -- one way to read each shape ---------------------------------------------------------

    def _numbered(self, kind: str, seq: int, read: Read[T], what: str) -> T:
        return self.read(self._number(kind, seq, what), read)

    def _number(self, kind: str, seq: int, what: str) -> Record:
        record = self.backend.newest(self.agent, kind, seq=check_whole(what, seq), at=self.at)
        if record is None:
            raise self._missing(what, seq)
        return record

    def _missing(self, what: str, seq: int) -> NotFound:
        number = shown_number(seq).replace(",", "")
        listed = {"action": "actions list", "turn": "turns list", "version": "state history"}[what]
        return NotFound(
            what=what, name=f"{number} of {self.agent}", hint=f"list them with: recall {listed} {self.agent}"
        )

    def _tail(
        self, kind: str, read: Read[T], limit: int | None, before: int | None = None, *, first: int = _PAGE
    ) -> Iterator[T]:
        """Values of a kind, newest first, below seq ``before``; ``first`` is how many of them are read at first."""
        left, most = limit, first
        while left is None or left > 0:
            size = most if left is None else min(most, left)
            page = self.backend.tail(self.agent, kind, limit=size, before=before, at=self.at)
            yield from self.each(page, read)
            if len(page) < size:
                return
            before, left, most = page[-1].seq, None if left is None else left - size, _PAGE
