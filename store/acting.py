"""The actions of one agent: beginning, ending, settling, reconciling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from store import actions as rules
from store import checks
from store.actions import ActionEnd, ReconcileReport
from store.canonical import BLOB_LIMIT
from store.errors import ActionClosed, ActionNotUnknown, InvalidInput, ResolverFailed, Stale, StillRunning
from store.records import ACTION, NEXT, STEP, TOOL, TURN, Action, Draft, Expect, Record
from store.running import forget, still_running
from store.text import check_count, check_text, json_value, quoted
from store.writer import Writer

T = TypeVar("T")
Resolver = Callable[[Action], ActionEnd | str | None]
Drafts = tuple[list[Draft], list[Expect]]

_SETTLE_BATCH = 200


class ActionOperations(Writer):
    """What can be done with actions; ``Agent`` has the rest."""

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
    ) -> Action:
        """Record the intent to call a tool; when this returns it survives process and power.

        Run the tool only if the returned action's ``status`` is ``started``. With a
        ``step`` that is done already the finished action comes back instead.

        Args:
            class_: pure, idempotent or external.
            args: text as it is, anything else as JSON.
            step: a name that is the same call for ever, within ``run``.
            retry_failed: a failed external step may be attempted again.
            command: the process that will do it (``store.running.witness``), if it is a command.

        Raises:
            StepMismatch: the step is bound to another tool, class or arguments.
            StillRunning: the step's command is alive, although its runner may be gone.
            NeedsSettling: the step was interrupted, and nobody knows whether it happened.
        """
        tool = checks.check_name("tool", tool, spaces=True)
        class_ = checks.check_class(class_)
        text = check_text("args", json_value("args", args), limit=BLOB_LIMIT)
        step = checks.check_name("step", step) if step else ""
        run = checks.check_run(run)
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
                command=command or {},
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
            kept_args, ref, spilled = self._place_text(text, f"act-{action.seq}-args", tool)
            action = replace(action, args=kept_args, args_ref=ref)
            drafts += [*spilled, Draft(ACTION, action.body(), seq=action.seq if numbered else NEXT)]
            return drafts, expected

        records = self._append(attempt)
        if kept and kept[0].open:
            self._keeper.renew()  # nothing was appended that would have proved the lease
        return kept[0] if kept else self._read_action(records[-1])

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
        """
        old = self.view.action(seq)
        if old.open:
            raise InvalidInput(field="action", reason=f"{seq} is still {old.status}", hint="settle it first")

        return self._new_attempt(old, "started", resolution="", by="")

    def permit_retry(self, seq: int, *, by: str, reason: str) -> Action:
        """Let a step that was closed be attempted again by whoever begins it next.

        Nothing runs now: the attempt that is added is ``abandoned``, and says
        who allowed the next one, and why.

        Raises:
            InvalidInput: it is open, or no step's last attempt.
        """
        old = self.view.action(seq)
        last = self.last_of_step(old.step, old.run) if old.step else None
        if old.open or last is None or last.seq != seq:
            raise InvalidInput(
                field="action",
                reason=f"{seq} is {f'still {old.status}' if old.open else 'not the last attempt of a step'}",
                hint="settle it first" if old.open else "only a step is attempted again by its name",
            )
        reason = check_text("reason", reason, limit=checks.REASON_LIMIT, empty=False)
        return self._new_attempt(old, "abandoned", resolution=f"allowed to be attempted again: {reason}", by=by)

    def _new_attempt(self, old: Action, status: str, *, resolution: str, by: str) -> Action:
        def attempt() -> Drafts:
            now = self._now()
            action = replace(
                old,
                seq=self._backend.counters(self.id).actions + 1,
                key=old.key if old.class_ == "idempotent" else self._backend.random.hex(32),
                status=status,
                result="",
                result_ref="",
                error="",
                resolution=resolution,
                by=by,
                ended_at="" if status == "started" else now,
                notes=(),
                command={},
                retry_of=old.seq,
                epoch=self._keeper.epoch,
                incarnation=self._keeper.incarnation,
                started_at=now,
            )
            drafts, expected = [Draft(ACTION, action.body(), seq=action.seq)], [Expect(ACTION, 0, seq=action.seq)]
            if old.step:
                name = f"{old.run}/{old.step}"
                record = self._backend.newest(self.id, STEP, name=name)
                if record is not None:
                    drafts.append(Draft(STEP, {**record.fields(), "action": action.seq}, name=name))
                    expected.append(Expect(STEP, record.lsn, name=name))
            return drafts, expected

        return self._read_action(self._append(attempt)[0])

    def end_action(
        self,
        seq: int,
        status: str,
        result: Any = None,
        error: str | None = None,
        resolution: str | None = None,
        *,
        command: Mapping[str, Any] | None = None,
    ) -> Action:
        """Close an action with its outcome; the first close wins.

        Args:
            status: done, failed, abandoned, or unknown (which leaves it open).
            result: text as it is, anything else as JSON.
            command: what is known of a command after its end, beside its process.

        Raises:
            ActionClosed: it has an outcome already; the message shows it.
        """
        return self._end(seq, ActionEnd(status, result, error or "", resolution or ""), command=command)

    def resolve_action(self, seq: int, end: ActionEnd, *, by: str, force: bool = False) -> Action:
        """Settle an open action by hand; the model reads it as a ``tool`` turn.

        Args:
            end: the outcome; its ``resolution`` is the reason.
            by: who decided.
            force: also one that may be running right now under the live lease.

        Raises:
            ActionNotUnknown: it may be running, and ``force`` was not given.
            ActionClosed: it has an outcome already.
        """
        check_text("reason", end.resolution, limit=checks.REASON_LIMIT, empty=False)
        by = check_text("by", by, limit=checks.NAME_LIMIT * 2, empty=False)
        return self._end(seq, end, by=by, turn=f"settled by {by}", running=force)

    def _end(
        self,
        seq: int,
        end: ActionEnd,
        *,
        by: str = "",
        turn: str = "",
        running: bool = True,
        command: Mapping[str, Any] | None = None,
    ) -> Action:
        """Close an action, and with ``turn`` tell the model how, in one step.

        Args:
            running: whether it may be one that the live lease is running.
        """
        seq = check_count("seq", seq, least=1, most=2**53)
        result = check_text("result", json_value("result", end.result), limit=BLOB_LIMIT)
        error = check_text("error", end.error, limit=checks.ERROR_LIMIT)
        resolution = check_text("resolution", end.resolution, limit=checks.REASON_LIMIT)

        def attempt() -> Drafts:
            action, record = self.view.action_record(seq)
            if not running:
                self._check_not_running(action)
            kept, ref, drafts = self._place_text(result, f"act-{seq}-result", action.tool)
            now = ActionEnd(end.status, kept, error, resolution)
            shut = replace(rules.closed(action, now, at=self._now(), by=by), result_ref=ref)
            shut = replace(shut, command={**action.command, **command}) if command else shut
            if turn and not shut.open:
                drafts.append(Draft(TURN, rules.as_turn(shut, turn).body(), seq=NEXT))
            return [*drafts, Draft(ACTION, shut.body(), seq=seq)], [Expect(ACTION, record.lsn, seq=seq)]

        return self._read_action(self._append(attempt)[-1])

    def _check_not_running(self, action: Action) -> None:
        self._check_command_gone(action)
        lease = self._backend.lease(self.id)
        if lease is None or not lease.live(self._backend.clock.now()):
            return
        if action.status == "started" and action.incarnation == lease.incarnation:
            raise ActionNotUnknown(seq=action.seq, epoch=lease.epoch)

    def amend_action(self, seq: int, note: str) -> Action:
        """Add a note to an action, closed or not; its outcome stays."""
        note = check_text("note", note, limit=checks.NOTE_LIMIT, empty=False)

        def attempt() -> Drafts:
            action, record = self.view.action_record(seq)
            amended = replace(action, notes=(*action.notes, note))
            return [Draft(ACTION, amended.body(), seq=seq)], [Expect(ACTION, record.lsn, seq=seq)]

        return self._read_action(self._append(attempt)[0])

    def pending_actions(self) -> list[Action]:
        """All open actions, oldest first."""
        return list(self.view.pending())

    def settle(self) -> list[Action]:
        """Settle what other incarnations left, as far as its class allows; after every acquisition.

        An action whose command is still running stays as it is.
        """
        settled: list[Action] = []
        for batch in _batches(self.view.pending(), _SETTLE_BATCH):
            settled += self._settle([each.seq for each in batch if not self._may_run(each)])
        return settled

    def settle_step(self, action: Action) -> Action:
        """Settle one interrupted action, also one of this incarnation whose command is gone.

        Raises:
            StillRunning: it is not gone.
        """
        self._check_command_gone(action)
        if not self._is_mine(action):
            self._settle([action.seq])
        return self.view.action(action.seq)  # its runner may have closed it just before it let go of the lock

    def _settle(self, seqs: list[int]) -> list[Action]:
        settled: list[Action] = []

        def attempt() -> Drafts:
            settled.clear()
            drafts, expected = [], []
            for seq in seqs:
                action, record = self.view.action_record(seq)  # again: an operator may have closed it meanwhile
                after = rules.after_takeover(action)
                if after is not None:
                    settled.append(after if after.open else replace(after, ended_at=self._now()))
                    drafts.append(Draft(ACTION, settled[-1].body(), seq=seq))
                    expected.append(Expect(ACTION, record.lsn, seq=seq))
            return drafts, expected

        self._append(attempt)
        for action in settled:
            forget(self._backend.directory, action)
        return settled

    def _may_run(self, action: Action) -> bool:
        """Whether an open action is running: our own, or one whose command outlived its runner."""
        own = action.status == "started" and action.incarnation == self._keeper.incarnation
        return own or bool(still_running(self._backend.directory, action))

    def reconcile(self, resolver: Resolver | None = None, *, timeout: float | None = None) -> ReconcileReport:
        """Ask what became of the interrupted actions, oldest first, and settle them accordingly.

        Each outcome is written together with a ``tool`` turn, so that the model
        reads it in its history. Recall never runs a tool on its own.

        Args:
            resolver: given an action, tells an ActionEnd (or a status), or None if it cannot tell.
            timeout: seconds to give it for each action.

        Raises:
            ResolverFailed: it raised or took too long; those actions stay as they
                were, the others are settled, and ``partial`` is the report.
        """
        closed: list[Action] = []
        left: list[Action] = []
        failed: list[tuple[Action, Exception]] = []
        for action in self.pending_actions():
            if self._may_run(action):
                continue
            try:
                end = _ask(resolver, action, timeout) if resolver else None
            except Exception as raised:  # noqa: BLE001 (a resolver is foreign code; the pass ends with ResolverFailed)
                failed.append((action, raised))
                left.append(action)
                continue
            if end is None and (action.class_ == "idempotent" or action.status == "unknown"):
                left.append(action)
                continue
            try:
                after = self._end(action.seq, end or ActionEnd("unknown"), turn="settled after a crash")
            except ActionClosed:  # by an operator, while the resolver was asking
                after = self.view.action(action.seq)
            except InvalidInput as refused:  # no outcome that can be stored
                failed.append((action, refused))
                after = action
            (left if after.open else closed).append(after)
        report = ReconcileReport(tuple(closed), tuple(left))
        if failed:
            action, problem = failed[0]
            reason = type(problem).__name__ + (f": {quoted(problem, 200)}" if str(problem) else "")
            raise ResolverFailed(count=len(failed), seq=action.seq, reason=reason, partial=report) from problem
        return report

    def _read_action(self, record: Record) -> Action:
        return self.view.read(record, Action.read)


def _batches(items: Iterable[T], size: int) -> Iterable[list[T]]:
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _ask(resolver: Resolver, action: Action, timeout: float | None) -> ActionEnd | None:
    """A resolver's answer, or whatever it raised; TimeoutError after ``timeout`` seconds."""
    told: list[Any] = []
    if timeout is None:
        told.append(resolver(action))
    else:
        import threading

        raised: list[BaseException] = []

        def run() -> None:
            try:
                told.append(resolver(action))
            except BaseException as anything:  # noqa: BLE001 (raised again in the caller's thread)
                raised.append(anything)

        thread = threading.Thread(target=run, daemon=True, name="recall-resolver")
        thread.start()
        thread.join(timeout)
        if raised:
            raise raised[0]
        if not told:
            raise TimeoutError(f"no answer within {timeout:g} s")
    if isinstance(told[0], str):
        return ActionEnd(told[0])
    if told[0] is None or isinstance(told[0], ActionEnd):
        return told[0]
    raise TypeError(f"it told {quoted(told[0])}, which is not an ActionEnd, a status or None")
