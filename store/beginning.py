"""Beginning the actions of one agent: first attempts, steps begun again, retries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from store import actions as rules
from store import checks
from store.actions import ActionEnd
from store.backend import Backend
from store.canonical import BLOB_LIMIT
from store.errors import InvalidInput, NotFound, NotLastAttempt, Stale, StillRunning, Unavailable
from store.keeper import Keeper
from store.lease import MOST_TTL_MS
from store.records import ACTION, NEXT, STEP, TOOL, TURN, Draft, Expect, Record
from store.running import still_running
from store.text import check_count, check_text, json_value, quoted
from store.value import replace
from store.values import Action
from store.writer import Drafts, Writer


class Beginning(Writer):
    """What begins an action; ``ActionOperations`` ends it."""

    def __init__(self, backend: Backend, agent: str, keeper: Keeper, *, output_threshold: int) -> None:
        super().__init__(backend, agent, keeper, output_threshold=output_threshold)
        self._unsecured: dict[int, int] = {}  # by seq the epoch: begun, but not known to be where it has to be

    def begin_action(
        self,
        tool: str,
        class_: str,
        args: Any = None,
        *,
        step: str | None = None,
        run: str | None = None,
        retry_failed: bool = False,
        command: Mapping[str, Any] | None = None,
        max_ms: int = 0,
    ) -> Action:
        """Record the intent to call a tool; when this returns it survives process and power.

        In a store that ships to a bucket, one that is not ``pure`` survives the
        loss of the machine too. Where that is not certain within the deadline
        NotShipped is raised and the tool must not run: begin the step again,
        which sends the same record, or end the action (``partial``) as abandoned.

        Run the tool only if the returned action's ``status`` is ``started``. With a
        ``step`` that is done already the finished action comes back instead.

        Args:
            class_: pure, idempotent or external.
            args: text as it is, anything else as JSON.
            step: a name that is the same call for ever, within ``run``.
            retry_failed: a failed external step may be attempted again.
            command: the process that will do it (``store.running.witness``), if it is a command.
            max_ms: the most milliseconds that the tool runs. A successor elsewhere waits for so
                long before it settles an external call of unknown outcome; 0: it does not wait.

        Raises:
            StepMismatch: the step is bound to another tool, class or arguments.
            StillRunning: the step's command is alive, although its runner may be gone; or
                (AlreadyBegun) it is external and was begun by this process before, whoever
                of its threads runs it, and has no outcome.
            NeedsSettling: the step was interrupted, and nobody knows whether it happened.
            NotShipped, RemoteRefused: it is recorded here only; ``partial`` is the action.
        """
        tool = checks.check_name("tool", tool, spaces=True)
        class_ = checks.check_class(class_)
        text = check_text("args", json_value("args", args), limit=BLOB_LIMIT)
        step = checks.check_name("step", step) if step else ""
        run = checks.check_run(run)
        process = checks.check_command(command)
        max_ms = check_count("max_ms", max_ms, least=0, most=MOST_TTL_MS)
        kept: list[Action] = []

        def attempt() -> Drafts:
            kept.clear()
            action = Action(
                seq=self._backend.counters(self.id).actions + 1,
                tool=tool,
                class_=class_,
                key=self._backend.random.hex(32),
                status="started",
                step=step,
                run=run,
                epoch=self._keeper.epoch,
                incarnation=self._keeper.incarnation,
                started_at=self._now(),
                command=process,
                ship=self._backend.ship,
                max_ms=max_ms,
            )
            drafts: list[Draft] = []
            # Named by its number in an output's ref or by a step, it must get just that number; else any will do.
            numbered = bool(step) or self._is_large(text)
            expected = [Expect(ACTION, 0, seq=action.seq)] if numbered else []
            if self.tool_class(tool) != class_:
                drafts.append(Draft(TOOL, {"class": class_}, name=tool))
            if step:
                step_name = f"{run}/{step}"
                last, lsn = self._same_call(step_name, step, tool, class_, text)
                expected.append(Expect(STEP, lsn, name=step_name))
                if last is not None and last.status == "started" and self._unsecured.get(last.seq) == last.epoch:
                    kept.append(last)  # begun by us, but the bucket did not answer: it was never run
                    return [], []
                if last is not None:
                    verdict = rules.next_of_step(self.id, last, mine=self._is_mine(last), retry_failed=retry_failed)
                    if verdict in (rules.REPLAY, rules.SAME):
                        kept.append(last)
                        return [], []
                    if verdict == rules.CONTINUE:
                        return self._continue(last, action)
                    if last.open:
                        drafts += self._abandoning(last, expected)
                    action = replace(action, key=last.key if class_ == "idempotent" else action.key, retry_of=last.seq)
                drafts.append(Draft(STEP, {"action": action.seq, "args": rules.args_digest(text)}, name=step_name))
            kept_args, ref, (spilled, free) = self._place_text(text, f"act-{action.seq}-args", tool)
            action = replace(action, args=kept_args, args_ref=ref)
            expected += free
            drafts += [*spilled, Draft(ACTION, action.body(), seq=action.seq if numbered else NEXT)]
            return drafts, expected

        records = self._append(attempt)
        if kept and not kept[0].open:
            return kept[0]
        if kept:
            self._keeper.renew()  # nothing was appended that would have proved the lease
            return self._secured(*self.view.action_record(kept[0].seq))
        return self._secured(self._read_action(records[-1]), records[-1])

    def _secured(self, action: Action, record: Record) -> Action:
        """The action, when its intent is where it has to be before the tool runs."""
        if self._backend.ship and rules.needs_barrier(action.class_):
            try:
                self._keeper.write(lambda fence, _: self._backend.secure(fence, record))
            except Unavailable as problem:
                problem.partial = action
                self._unsecured[action.seq] = action.epoch  # whoever begins it next may take it up
                raise
        self._unsecured.pop(action.seq, None)
        return action

    def fence_of(self, action: Action) -> str:
        """The fencing token of a call that this agent began: ``lineage:epoch:lsn`` of its intent.

        A tool that keeps the highest one it has seen, by epoch and lsn, can
        refuse a call of a holder that was taken over while it was about to call.

        Raises:
            NotFound: no such action was begun under this lease.
            LeaseNotHeld, LeaseLost.
        """
        fence = self._keeper.fence
        for record in self._backend.history(self.id, ACTION, seq=action.seq):
            found = self._read_action(record)
            if found.status == "started" and (found.key, found.epoch) == (action.key, action.epoch):
                return f"{fence.lineage}:{action.epoch}:{record.lsn}"
        raise NotFound(what="intent", name=f"of action {action.seq} under epoch {action.epoch}")

    def last_of_step(self, step: str, run: str = "") -> Action | None:
        """The last attempt of a step, or None before the first."""
        return self.view.last_of_step(step, run)[0]

    def tool_class(self, tool: str) -> str:
        """The class that a tool was last used with, "" before the first use."""
        return self.view.tool_class(tool)

    def _same_call(self, name: str, step: str, tool: str, class_: str, text: str) -> tuple[Action | None, int]:
        last, body, lsn = self.view.step_record(name)
        if last is not None:
            was = str(body.get("args", ""))
            if not rules.never_ran(last):
                rules.check_same_call(step, last, tool=tool, class_=class_, args=text, last_digest=was)
            self._check_command_gone(last)
            if last.open:
                self._record_of(last)  # its runner may have closed it just before it let go of the lock
        return last, lsn

    def _record_of(self, action: Action) -> Record:
        """The record of an action as the caller knows it. Raises Stale if it has changed since."""
        now, record = self.view.action_record(action.seq)
        if now != action:
            raise Stale(key=f"act:{action.seq}", expected=action.status, found=now.status)
        return record

    def _is_mine(self, action: Action) -> bool:
        """Whether this incarnation may be running it: a shell's step runs only while its command lives."""
        return action.incarnation == self._keeper.incarnation and not action.command

    def _check_command_gone(self, action: Action) -> None:
        alive = still_running(self._backend.directory, action)
        if alive:
            raise StillRunning(seq=action.seq, tool=quoted(action.tool), process=alive)

    def _continue(self, last: Action, now: Action) -> Drafts:
        """The same idempotent action under this incarnation, with its key."""
        record = self._record_of(last)
        mine = replace(
            last,
            status="started",
            resolution="",
            epoch=now.epoch,
            incarnation=now.incarnation,
            command=now.command,
            ship=now.ship,
            max_ms=now.max_ms,
        )
        return [Draft(ACTION, mine.body(), seq=last.seq)], [Expect(ACTION, record.lsn, seq=last.seq)]

    def _abandoning(self, last: Action, expected: list[Expect]) -> list[Draft]:
        expected.append(Expect(ACTION, self._record_of(last).lsn, seq=last.seq))
        end = ActionEnd("abandoned", resolution="interrupted; begun again")
        return [Draft(ACTION, rules.closed(last, end, at=self._now()).body(), seq=last.seq)]

    def retry_action(self, seq: int) -> Action:
        """A new attempt of a closed action, linked to it; an idempotent one keeps its key.

        Raises:
            InvalidInput: it is still open.
            NotLastAttempt: it was attempted again already.
            NotShipped, RemoteRefused: as ``begin_action``.
        """
        return self._new_attempt(seq)

    def permit_retry(self, seq: int, *, by: str, reason: str) -> Action:
        """Let a step that was closed be attempted again by whoever begins it next.

        Nothing runs now: the attempt that is added is ``abandoned``, and says
        who allowed the next one, and why.

        Raises:
            InvalidInput: it is open, or no step.
            NotLastAttempt: the step was attempted again already.
        """
        reason = check_text("reason", reason, limit=checks.REASON_LIMIT, empty=False)
        return self.revise_step(
            seq, ActionEnd("abandoned", resolution=f"allowed to be attempted again: {reason}"), by=by
        )

    def revise_step(self, seq: int, end: ActionEnd, *, by: str) -> Action:
        """Say what became of a closed step after all: a new attempt, closed with that outcome at once.

        ``done``: it happened, so the step replays from now on, and the model
        reads it as a ``tool`` turn. ``abandoned``: it did not, so whoever
        begins the step next runs it.

        Raises:
            InvalidInput, NotLastAttempt: as ``permit_retry``.
        """
        by = check_text("by", by, limit=checks.NAME_LIMIT * 2, empty=False)
        return self._new_attempt(seq, checks.check_end(end), by=by)

    def _new_attempt(self, seq: int, end: ActionEnd | None = None, *, by: str = "") -> Action:
        """An attempt after the last one: to be run now, or with ``end`` closed in the same append."""

        def attempt() -> Drafts:
            old, record = self.view.action_record(seq)
            action = replace(
                old,
                seq=self._backend.counters(self.id).actions + 1,
                key=old.key if old.class_ == "idempotent" else self._backend.random.hex(32),
                status="started",
                result="",
                result_ref="",
                error="",
                resolution="",
                by="",
                ended_at="",
                notes=(),
                command={},
                retry_of=old.seq,
                retried_as=0,
                epoch=self._keeper.epoch,
                incarnation=self._keeper.incarnation,
                started_at=self._now(),
                ship=self._backend.ship,
                inbox="",
            )
            drafts, expected = self._succeeding(old, action.seq, named=end is not None)
            expected += [Expect(ACTION, record.lsn, seq=seq), Expect(ACTION, 0, seq=action.seq)]
            if end is not None:
                kept, ref, (spilled, free) = self._place_text(end.result, f"act-{action.seq}-result", action.tool)
                shut = rules.closed(action, replace(end, result=kept), at=action.started_at, by=by)
                action = replace(shut, result_ref=ref)
                drafts, expected = drafts + spilled, expected + free
            if action.status == "done":
                drafts.append(Draft(TURN, rules.as_turn(action, f"settled by {by}").body(), seq=NEXT))
            return [*drafts, Draft(ACTION, action.body(), seq=action.seq)], expected

        record = self._append(attempt)[-1]
        return self._secured(self._read_action(record), record) if end is None else self._read_action(record)

    def _succeeding(self, old: Action, seq: int, *, named: bool) -> Drafts:
        """What makes ``seq`` the one attempt that follows ``old``, and what that rests on."""
        if old.open:
            raise InvalidInput(field="action", reason=f"{old.seq} is still {old.status}", hint="settle it first")
        if named and not old.step:
            hint = "only a step is attempted again by its name"
            raise InvalidInput(field="action", reason=f"{old.seq} is no attempt of a step", hint=hint)
        drafts = [Draft(ACTION, replace(old, retried_as=seq).body(), seq=old.seq)]
        expected: list[Expect] = []
        newer = old.retried_as
        if old.step:
            name = f"{old.run}/{old.step}"
            last, body, lsn = self.view.step_record(name)
            newer = newer if last is None or last.seq == old.seq else last.seq
            drafts.append(Draft(STEP, {**body, "action": seq}, name=name))
            expected.append(Expect(STEP, lsn, name=name))
        if newer:
            raise NotLastAttempt(seq=old.seq, last=newer)
        return drafts, expected

    def _read_action(self, record: Record) -> Action:
        return self.view.read(record, Action.read)
