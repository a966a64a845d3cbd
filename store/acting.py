"""The actions of one agent: ending, settling, reconciling."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from store import actions as rules
from store import checks
from store.actions import ActionEnd, ReconcileReport, TakenIn
from store.beginning import Beginning
from store.errors import (
    ActionClosed,
    ActionNotUnknown,
    Fenced,
    LeaseHeld,
    MayStillRun,
    ResolverFailed,
    Unavailable,
)
from store.lease import Fence
from store.records import ACTION, NEXT, TURN, Draft, Expect
from store.running import forget, still_running
from store.text import check_count, check_seconds, check_text, quoted
from store.value import replace
from store.values import Action
from store.writer import Drafts

T = TypeVar("T")
Resolver = Callable[[Action], ActionEnd | str | None]

_SETTLE_BATCH = 200


class ActionOperations(Beginning):
    """What can be done with actions; ``Agent`` has the rest.

    Attributes:
        taken_in: what the last look into the bucket's inbox did, at an acquisition or a renewal.
    """

    taken_in = TakenIn()
    _awaiting = False  # whether a call that may still run elsewhere was left as it is

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

    def resolve_action(self, seq: int, end: ActionEnd, *, by: str, force: bool = False, inbox: str = "") -> Action:
        """Settle an open action by hand; the model reads it as a ``tool`` turn.

        Args:
            end: the outcome; its ``resolution`` is the reason.
            by: who decided.
            force: also one that may be running right now: under the live lease, or on a machine that lost it.
            inbox: the id of the queued resolution that this carries out.

        Raises:
            ActionNotUnknown, MayStillRun: it may be running, and ``force`` was not given.
            ActionClosed: it has an outcome already.
        """
        check_text("reason", checks.check_end(end).resolution, limit=checks.REASON_LIMIT, empty=False)
        by = check_text("by", by, limit=checks.NAME_LIMIT * 2, empty=False)
        return self._end(seq, end, by=by, turn=f"settled by {by}", running=force, inbox=inbox)

    def _end(
        self,
        seq: int,
        end: ActionEnd,
        *,
        by: str = "",
        turn: str = "",
        running: bool = True,
        command: Mapping[str, Any] | None = None,
        inbox: str = "",
    ) -> Action:
        """Close an action, and with ``turn`` tell the model how, in one step.

        Args:
            running: whether it may be one that the live lease is running.
        """
        seq = check_count("seq", seq, least=1, most=2**53)
        end = checks.check_end(end)
        process = checks.check_command(command)

        def attempt() -> Drafts:
            action, record = self.view.action_record(seq)
            if not running:
                self._check_not_running(action)
            kept, ref, (drafts, free) = self._place_text(end.result, f"act-{seq}-result", action.tool)
            shut = rules.closed(action, replace(end, result=kept), at=self._now(), by=by)
            shut = replace(shut, result_ref=ref, command={**action.command, **process}, inbox=inbox)
            if turn and not shut.open:
                drafts.append(Draft(TURN, rules.as_turn(shut, turn).body(), seq=NEXT))
            return [*drafts, Draft(ACTION, shut.body(), seq=seq)], [*free, Expect(ACTION, record.lsn, seq=seq)]

        return self._read_action(self._append(attempt)[-1])

    def _check_not_running(self, action: Action) -> None:
        self._check_command_gone(action)
        self._check_not_elsewhere(action)
        lease = self._backend.lease(self.id)
        if lease is None or not lease.live(self._backend.clock.now()):
            return
        if action.status == "started" and action.incarnation == lease.incarnation:
            raise ActionNotUnknown(seq=action.seq, epoch=lease.epoch)

    def _check_not_elsewhere(self, action: Action) -> None:
        waits = self.view.may_run(action)
        if waits is not None:
            raise MayStillRun(seq=action.seq, tool=quoted(action.tool), until=waits.until, holder=waits.holder)

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

        An action whose command is still running stays as it is, and one that
        may still be running on a machine that lost the lease, until its time is over.
        """
        settled: list[Action] = []
        self._awaiting = False
        for batch in _batches(self.view.to_settle(), _SETTLE_BATCH):
            settled += self._settle([each.seq for each in batch if not self._may_run(each)])
        return settled

    def settle_step(self, action: Action) -> Action:
        """Settle one interrupted action, also one of this incarnation whose command is gone.

        Raises:
            StillRunning: it is not gone.
            MayStillRun: that cannot be known yet.
        """
        self._check_command_gone(action)
        if self._backend.ship and not self._is_mine(action):
            self._look_around()  # somebody may have said what became of it
            action = self.view.action(action.seq)
        if action.open:
            self._check_not_elsewhere(action)
        if action.open and not self._is_mine(action):
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
        """Whether an open action is running, as far as can be told: ours, one whose command outlived its runner,
        or one of a machine that cannot be asked."""
        own = action.status == "started" and action.incarnation == self._keeper.incarnation
        if own or still_running(self._backend.directory, action):
            return True
        waits = self.view.may_run(action) is not None
        self._awaiting = self._awaiting or waits
        return waits

    def _take_in(self) -> TakenIn:
        """Carry out what operators on other machines have left in the bucket for this agent's holder.

        Raises:
            Unavailable: the bucket cannot be asked; what waits there stays.
        """
        if self._backend.inbox is None:
            return TakenIn()
        self.taken_in = self._backend.inbox.apply(self, lambda: self._keeper.write(self._send))
        for each in self.taken_in.rejected:
            _warn(each)
        return self.taken_in

    def _send(self, fence: Fence, renew: bool) -> None:
        self._backend.send(fence)

    def _look_around(self) -> None:
        """What a holder does now and then: settles what it had to wait for, and reads the inbox.

        What the bucket does not give today is read another time, and said in the log of the process.
        """
        try:
            if self._awaiting:
                self.settle()
            self._take_in()
        except Unavailable as problem:
            _warn(problem.message)

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
        seconds = None if timeout is None else check_seconds("timeout", timeout)
        closed: list[Action] = []
        left: list[Action] = []
        failed: list[tuple[Action, Exception]] = []
        for action in self.pending_actions():
            waits = self.view.may_run(action) is not None
            if not waits and self._may_run(action):
                continue
            try:
                end = _ask(resolver, action, seconds) if resolver else None
                if end is None and (waits or action.class_ == "idempotent" or action.status == "unknown"):
                    after = action
                else:
                    after = self._end(action.seq, end or ActionEnd("unknown"), turn="settled after a crash")
            except ActionClosed:  # by an operator, while the resolver was asking
                after = self.view.action(action.seq)
            except (Fenced, LeaseHeld, Unavailable):  # nothing can be written any more, of whatever action
                raise
            except Exception as raised:  # noqa: BLE001 (a resolver is foreign code; the pass ends with ResolverFailed)
                failed.append((action, raised))
                after = action
            (left if after.open else closed).append(after)
        report = ReconcileReport(tuple(closed), tuple(left))
        if failed:
            action, problem = failed[0]
            reason = type(problem).__name__ + (f": {quoted(problem, 200)}" if str(problem) else "")
            raise ResolverFailed(count=len(failed), seq=action.seq, reason=reason, partial=report) from problem
        return report


def _warn(text: str) -> None:
    import logging

    logging.getLogger("recall").warning("%s", text)


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
