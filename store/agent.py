"""The operations of one resumed agent. Every front door calls these."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from store import checks
from store.acting import ActionOperations
from store.backend import Acquired, Backend
from store.briefing_parts import DEFAULT_BUDGET, check_budget
from store.errors import AgentArchived, InvalidInput, LeaseHeld, NotFound, RefTaken
from store.keeper import Keeper
from store.records import (
    ARCHIVED,
    LIFECYCLE,
    NEXT,
    OUTPUT,
    POINTER,
    RUN,
    STEP,
    TURN,
    WORKING_STATE,
    Draft,
    Expect,
    compact,
)
from store.text import check_count, check_text, cut, quoted
from store.value import replace
from store.values import Output, OutputRef, Pointer, Turn, WorkingState, turn_body
from store.writer import OUTPUT_THRESHOLD, SUMMARY_BYTES

if TYPE_CHECKING:
    from store.context import Context

_RUN = "run-"
_OWN_RUN = re.compile(_RUN + "[1-9][0-9]{0,17}")
_OPENING_BYTES = 400  # of a turn whose whole content became an output


def is_own_run(name: str) -> bool:
    """Whether a run's name is one that ``begin_run`` may give."""
    return bool(_OWN_RUN.fullmatch(name))


class Agent(ActionOperations):
    """One agent as one actor works on it. Thread-safe; use it as a context manager to release.

    Attributes:
        context: as of the last ``resume``, ``acquire`` or ``refresh``.
    """

    def __init__(
        self,
        backend: Backend,
        agent: str,
        keeper: Keeper,
        *,
        token_budget: int = DEFAULT_BUDGET,
        output_threshold: int = OUTPUT_THRESHOLD,
    ) -> None:
        super().__init__(backend, agent, keeper, output_threshold=output_threshold)
        if backend.ship:
            keeper.look_around = weakref.WeakMethod(self._look_around)
        self._budget = check_budget(token_budget)
        self._context: Context | None = None
        self.on_release: Callable[[Agent], None] = lambda agent: None

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    # -- the lease ---------------------------------------------------------------------

    @property
    def lease_held(self) -> bool:
        """Whether this process had the lease at its last write."""
        return self._keeper.held

    @property
    def epoch(self) -> int:
        """The epoch that it writes under, 0 without a lease."""
        return self._keeper.epoch

    @property
    def token(self) -> str:
        """What a child process needs to write under this lease: RECALL_LEASE.

        Raises:
            LeaseNotHeld, LeaseLost.
        """
        return self._keeper.fence.token(self._backend.store_id)

    @property
    def context(self) -> Context:
        if self._context is None:
            self._context = self._read_context()
        return self._context

    def acquire(self) -> bool:
        """Take a deferred lease: try once, settle what was interrupted, rebuild the context.

        Returns:
            False if somebody else holds it.
        """
        if not self._keeper.held:
            try:
                self.take()
            except LeaseHeld:
                return False
        return True

    def take(self) -> Acquired:
        """Acquire and settle. Raises LeaseHeld, naming the holder, and AgentArchived."""
        self.refuse_archived()
        acquired = self._keeper.acquire()
        try:
            self.refuse_archived()  # it may have been archived between the look and the lease
        except AgentArchived:
            self._keeper.release()
            raise
        self.settle()
        if self._backend.ship:
            self._look_around()
        self._context = None
        return acquired

    def release(self) -> bool:
        """Give the lease back, so that the next process need not wait; False if it was not held."""
        self.on_release(self)
        return self._keeper.release()

    def refuse_archived(self) -> None:
        """Raise AgentArchived if the agent was ended."""
        if self.view.archived():
            raise AgentArchived(agent=self.id)

    def archive(self, reason: str, by: str = "") -> None:
        """End the agent: nobody acquires it again until ``unarchive``. Its records and epochs stay.

        Args:
            reason: why, kept in the log.
            by: who decided it, at most 200 bytes.

        Raises:
            AgentArchived: it is archived already.
        """
        self.refuse_archived()
        self._lifecycle("archived", reason, by)

    def unarchive(self, reason: str, by: str = "") -> None:
        """Let an archived agent be acquired again. Raises NotFound if it is not archived."""
        if not self.view.archived():
            raise NotFound(what="archived agent", name=self.id)
        self._lifecycle("unarchived", reason, by)

    def _lifecycle(self, event: str, reason: str, by: str) -> None:
        reason = check_text("reason", reason, limit=checks.REASON_LIMIT, empty=False)
        body = {"event": event, "reason": reason, **compact({"by": check_text("by", by, limit=200)})}

        def attempt() -> tuple[list[Draft], list[Expect]]:
            return [Draft(LIFECYCLE, body, name=ARCHIVED)], []

        self._append(attempt)

    def refresh(self) -> Context:
        """The context, read again."""
        self._context = self._read_context()
        return self._context

    def _read_context(self) -> Context:
        from store.context import read  # a process that only writes has no use for briefings

        return read(self.view, self._keeper, self._budget)

    # -- working state --------------------------------------------------------------------

    def update_working_state(self, /, *, add: Mapping[str, Iterable[str]] | None = None, **fields: Any) -> WorkingState:
        """A new version: fields given replace, fields left out are kept, None or empty clears.

        Args:
            add: items that go to the end of lists, whatever another process wrote there meanwhile.
            fields: goal, progress, focus, notes: text; plan, decisions,
                open_questions: lists of text; step: a number.

        Raises:
            InvalidInput: an unknown field or a wrong value; nothing was written.
        """
        return self._new_state(*checks.check_change(fields, {} if add is None else add))

    def milestone(self, name: str, progress: str | None = None) -> WorkingState:
        """Mark a durable point; it is a version of the working state, optionally with new progress."""
        return self._new_state({**checks.check_milestone(name, progress), "is_milestone": True})

    def _new_state(self, given: Mapping[str, Any], add: Mapping[str, tuple[str, ...]] | None = None) -> WorkingState:
        def attempt() -> tuple[list[Draft], list[Expect]]:
            counters = self._backend.counters(self.id)
            before = self.view.working_state()
            longer = {name: getattr(before, name) + items for name, items in (add or {}).items()}
            state = replace(
                before,
                **{"is_milestone": False, **given, **checks.check_state(longer)},
                version=counters.version + 1,
                turn_seq=counters.turns,
                action_seq=counters.actions,
                updated_at=self._now(),
            )
            size = sum(len(str(value).encode("utf-8", "replace")) for value in state.body().values())
            if size > checks.STATE_LIMIT:
                raise InvalidInput(
                    field="working state",
                    reason=f"would have {size:,} bytes, more than the {checks.STATE_LIMIT:,} allowed",
                    hint="it is read at every resume: keep long texts with store_output (recall outputs put)",
                )
            expected = Expect(WORKING_STATE, 0, seq=state.version)
            return [Draft(WORKING_STATE, state.body(), seq=state.version)], [expected]

        return self.view.read(self._append(attempt)[-1], WorkingState.read)

    def working_state_history(self, limit: int = 20) -> list[WorkingState]:
        """Versions, newest first."""
        return list(self.view.states(check_count("limit", limit, least=1, most=1000)))

    # -- runs --------------------------------------------------------------------------------

    def open_run(self) -> str:
        """The name of the run that is going on, "" if there is none."""
        newest = self._backend.tail(self.id, RUN, limit=1)
        return f"{_RUN}{newest[0].seq}" if newest and newest[0].fields().get("status") == "started" else ""

    def begin_run(self) -> str:
        """A new run, to which steps are scoped; its name."""

        def attempt() -> tuple[list[Draft], list[Expect]]:
            newest = self._backend.tail(self.id, RUN, limit=1)
            seq = newest[0].seq + 1 if newest else 1
            return [Draft(RUN, {"status": "started"}, seq=seq)], [Expect(RUN, 0, seq=seq)]

        return f"{_RUN}{self._append(attempt)[0].seq}"

    def stepped(self, run: str, after: int) -> bool:
        """Whether a step of the run was begun after an lsn."""
        log = self._backend.log(self.id, after=after)
        return any(each.kind == STEP and each.name.startswith(f"{run}/") for each in log)

    def end_run(self, run: str) -> None:
        """The run is over: a step of the same name in the next one is another step. Raises NotFound."""
        if not isinstance(run, str) or not is_own_run(run):
            raise NotFound(what="run", name=quoted(run))
        seq = int(run.removeprefix(_RUN))

        def attempt() -> tuple[list[Draft], list[Expect]]:
            record = self._backend.newest(self.id, RUN, seq=seq)
            if record is None:
                raise NotFound(what="run", name=quoted(run))
            return [Draft(RUN, {"status": "ended"}, seq=seq)], [Expect(RUN, record.lsn, seq=seq)]

        self._append(attempt)

    # -- turns ------------------------------------------------------------------------------

    def record_turn(
        self,
        role: str,
        content: str,
        name: str | None = None,
        message_id: str | None = None,
        brief: str | None = None,
    ) -> Turn:
        """Record one message, verbatim.

        Content over the output threshold is stored whole as an output; the
        turn then keeps its opening and the ref.

        Args:
            role: system, user, assistant or tool.
            message_id: the caller's own id, at most 256 bytes.
            brief: what briefings show in the content's place, at most 4,096 bytes.
        """
        given = checks.check_turn(role, content, name, message_id, brief)
        if not self._is_large(given["content"]):
            draft = Draft(TURN, turn_body(given), NEXT, "")
            record = self._append(lambda: ([draft], []))[0]
            return Turn(record.seq, **given, at=record.at)

        def attempt() -> tuple[list[Draft], list[Expect]]:
            seq = self._backend.counters(self.id).turns + 1
            ref, free = self._free_ref(lambda number: f"out-{seq}-{number}")
            turn = Turn(0, **{**given, "content": _opening(content, ref)}, output_ref=ref)
            output = Output(ref, content, tool=given["name"], summary=cut(content, SUMMARY_BYTES))
            drafts = [Draft(OUTPUT, output.body(), name=ref), Draft(TURN, turn.body(), seq=seq)]
            return drafts, [free, Expect(TURN, 0, seq=seq)]

        return self.view.read(self._append(attempt)[-1], Turn.read)

    def recent_turns(self, limit: int = 20) -> list[Turn]:
        """The newest turns, oldest first."""
        return list(self.view.turns(check_count("limit", limit, least=1, most=10_000)))[::-1]

    # -- outputs ----------------------------------------------------------------------------

    def store_output(
        self,
        content: str,
        tool: str | None = None,
        summary: str | None = None,
        ref: str | None = None,
        *,
        replace: bool = False,
    ) -> OutputRef:
        """Keep a text whole (at most 64 MiB) under a ref.

        Args:
            ref: the name to fetch it by; ``out-<next turn>-<n>`` unless given. Those that
                begin like ``act-7-`` are kept for what actions are given and return.
            replace: whether an output of that ref may be replaced (the log keeps both).

        Raises:
            RefTaken: there is one, and ``replace`` was not asked for.
        """
        content, tool, summary, given = checks.check_output(content, tool, summary, ref)
        summary = summary or cut(content, SUMMARY_BYTES)

        def attempt() -> tuple[list[Draft], list[Expect]]:
            name, expected = given, []
            if not given:
                turn = self._backend.counters(self.id).turns + 1
                name, free = self._free_ref(lambda number: f"out-{turn}-{number}")
                expected = [free]
            elif not replace:
                if self._backend.newest(self.id, OUTPUT, name=given) is not None:
                    raise RefTaken(ref=quoted(given))
                expected = [Expect(OUTPUT, 0, name=given)]
            return [Draft(OUTPUT, Output(name, content, tool, summary).body(), name=name)], expected

        return OutputRef.read(self._append(attempt)[0])

    def fetch_output(self, ref: str) -> Output:
        """An output with its content. Raises NotFound."""
        return self.view.output(ref)

    # -- pointers ----------------------------------------------------------------------------

    def set_pointer(self, name: str, type: str, fields: Mapping[str, str], note: str | None = None) -> Pointer:
        """Say where a piece of work lives; the same name replaces.

        Args:
            type: git_ref, object, env, external or process.
            fields: the type's own fields and any others, all texts; empty ones are left out.
        """
        checked = Pointer(*checks.check_pointer(name, type, fields, note))
        return self.view.read(self._append(lambda: ([_pointer_draft(checked)], []))[0], Pointer.read)

    def remove_pointer(self, name: str) -> None:
        """Take a pointer out of force; the log keeps it. Raises NotFound."""
        name = checks.check_name("name", name)

        def attempt() -> tuple[list[Draft], list[Expect]]:
            record = self._backend.newest(self.id, POINTER, name=name)
            if record is None or self.view.read(record, Pointer.read).removed:
                raise NotFound(
                    what="pointer",
                    name=f"{quoted(name)} of {self.id}",
                    hint=f"list them with: recall pointers list {self.id}",
                )
            return [_pointer_draft(Pointer(name, "", removed=True))], [Expect(POINTER, record.lsn, name=name)]

        self._append(attempt)

    def pointers(self) -> list[Pointer]:
        """All pointers in force, by name."""
        return self.view.pointers(limit=1_000_000)[0]


def _pointer_draft(pointer: Pointer) -> Draft:
    return Draft(POINTER, pointer.body(), name=pointer.name)


def _opening(content: str, ref: str) -> str:
    size = len(content.encode())
    return f"{cut(content, _OPENING_BYTES)} … [{size:,} bytes in all, whole in output {ref}]"
