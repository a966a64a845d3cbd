"""What may happen to an action, as pure rules.

    started -> done | failed | abandoned | unknown
    unknown -> done | failed | abandoned

Closed is closed: the first close wins.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from store.errors import ActionClosed, AlreadyBegun, InvalidInput, NeedsSettling, StepFailed, StepMismatch
from store.records import CLOSED_STATUSES, STATUSES
from store.text import cut, quoted
from store.value import replace, value
from store.values import Action, Turn


@value
class ActionEnd:
    """What a resolver found out about an interrupted action.

    Attributes:
        status: ``done``, ``failed``, ``abandoned`` (it did not happen) or ``unknown``.
    """

    status: str
    result: Any = ""
    error: str = ""
    resolution: str = ""


@value
class ReconcileReport:
    """What a pass over the interrupted actions did.

    Attributes:
        closed: those that have an outcome now.
        open: those that still have none: unknown, or idempotent and safe to run again.
    """

    closed: tuple[Action, ...] = ()
    open: tuple[Action, ...] = ()


@value
class TakenIn:
    """What became of the resolutions that other machines had queued for an agent.

    Attributes:
        applied: the actions that they settled.
        rejected: why others could not be applied, a line each; they were set aside as evidence.
        waiting: how many wait until their action can no longer be running.
    """

    applied: tuple[Action, ...] = ()
    rejected: tuple[str, ...] = ()
    waiting: int = 0


def after_takeover(action: Action) -> Action | None:
    """The action as a new incarnation has to see it, or None where it stays.

    Only what the class allows: a ``pure`` call left no trace, so it is
    abandoned; whether an ``external`` one happened is not known; an
    ``idempotent`` one stays, to be run again with its key.
    """
    if action.status != "started":
        return None
    if action.class_ == "pure":
        return replace(action, status="abandoned", resolution="interrupted; pure, so nothing is left of it")
    if action.class_ == "external":
        return replace(action, status="unknown", resolution="interrupted; it is not known whether it happened")
    return None


def closed(action: Action, end: ActionEnd, *, at: str, by: str = "") -> Action:
    """The action with an outcome (or ``unknown``), its texts checked by the caller.

    Raises:
        InvalidInput: the status is not one that an action can end with.
        ActionClosed: it has an outcome already; the message shows it.
    """
    if end.status not in STATUSES or end.status == "started":
        raise InvalidInput(
            field="status", reason=f"must be done, failed, abandoned or unknown, not {quoted(end.status)}"
        )
    if not action.open:
        raise already_closed(action)
    return replace(
        action,
        status=end.status,
        result=end.result,
        error=end.error,
        resolution=end.resolution or action.resolution if end.status == "unknown" else end.resolution,
        by=by,
        ended_at=at if end.status in CLOSED_STATUSES else "",
    )


def already_closed(action: Action) -> ActionClosed:
    """The refusal of a later close, naming the winner."""
    shown = action.error if action.status == "failed" else action.result or action.result_ref
    outcome = f": {quoted(shown, 200)}" if shown else ""
    when = f" since {action.ended_at}" if action.ended_at else ""
    who = f", settled by {action.by}" if action.by else ""
    return ActionClosed(seq=action.seq, status=action.status, outcome=f"{when}{who}{outcome}")


def as_turn(action: Action, how: str) -> Turn:
    """A settled outcome as the model reads it in its history."""
    if action.status == "done":
        content = action.result or (f"(whole result: output {action.result_ref})" if action.result_ref else "done")
    elif action.status == "failed":
        content = f"failed: {action.error}" if action.error else "failed"
    else:
        content = action.status
    brief = f"action {action.seq} {action.status}, {how}"
    reason = f" ({action.resolution})" if action.resolution else ""
    return Turn(0, "tool", content, name=turn_name(action.tool), brief=cut(f"{brief}{reason}: {content}", 4000))


def turn_name(tool: str) -> str:
    """A tool's name as a turn may carry it: no spaces."""
    return "_".join(tool.split())


# -- steps -------------------------------------------------------------------------------

StepVerdict = str
REPLAY, SAME, CONTINUE, ATTEMPT = "replay", "same", "continue", "attempt"


def args_digest(args: str) -> str:
    """What a step's record keeps of its arguments, to tell whether they are the same."""
    return hashlib.sha256(args.encode()).hexdigest()


def check_same_call(step: str, last: Action, *, tool: str, class_: str, args: str, last_digest: str) -> None:
    """A step is one call: tool, class and arguments.

    Raises:
        StepMismatch: it is another one now.
    """
    same_args = last_digest == args_digest(args)
    for what, was, now in (
        ("tool", last.tool, tool),
        ("class", last.class_, class_),
        ("set of arguments", "" if same_args else last.args or f"in output {last.args_ref}", "" if same_args else args),
    ):
        if was != now:
            raise StepMismatch(step=quoted(step), what=what, was=quoted(was), now=quoted(now))


def never_ran(action: Action) -> bool:
    """Whether it is known that the command could not even be started: it binds and leaves nothing."""
    return action.status == "failed" and action.command.get("never_started") is True


def needs_barrier(class_: str) -> bool:
    """Whether a call may start only when its intent would survive the machine; else it is run again at no cost."""
    return class_ != "pure"


def next_of_step(agent: str, last: Action, *, mine: bool, retry_failed: bool) -> StepVerdict:
    """What beginning a step again means, by its last attempt.

    Args:
        mine: the caller's own incarnation started it, and may be running it.

    Returns:
        REPLAY: it is done; its result stands.
        SAME: the caller is running it, and may do so again.
        CONTINUE: interrupted and idempotent: run the same action with its key.
        ATTEMPT: it did not happen, or failed: a new action.

    Raises:
        NeedsSettling: nobody knows whether it happened.
        AlreadyBegun: it is external, and the caller began it before: two begins never tell two callers to run it.
        StepFailed: it is external and failed.
    """
    if last.status == "done":
        return REPLAY
    if last.status == "abandoned":
        return ATTEMPT
    if last.status == "failed":
        if last.class_ == "external" and not retry_failed and not never_ran(last):
            why = f": {quoted(last.error or last.resolution, 200)}" if last.error or last.resolution else ""
            raise StepFailed(agent=agent, step=quoted(last.step), seq=last.seq, why=why)
        return ATTEMPT
    if last.status == "started" and mine:
        if last.class_ == "external":
            raise AlreadyBegun(seq=last.seq, tool=quoted(last.tool), action=last)
        return SAME
    if last.class_ == "idempotent":
        return CONTINUE
    if last.class_ == "pure":
        return ATTEMPT
    raise NeedsSettling(agent=agent, seq=last.seq, tool=quoted(last.tool), status=last.status)


def to_mapping(action: Action) -> Mapping[str, Any]:
    """An action as JSON carries it, with its seq."""
    return {"seq": action.seq, **action.body()}
