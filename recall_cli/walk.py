"""The walk through what is pending: shows each call, asks what became of it, settles it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from recall_cli.options import Globals
from recall_cli.pending import Filter, age_of, args_of, pending
from recall_cli.render import Out
from recall_cli.resolving import perhaps_running
from recall_cli.session import operate, reading, require
from recall_cli.values import age
from store import checks
from store.actions import ActionEnd
from store.agent import Agent
from store.canonical import BLOB_LIMIT
from store.clock import Instant
from store.errors import BadRecord, Conflict, InvalidInput, NotFound, StillRunning
from store.records import ACTION, LEASE, STEP, TOOL, TURN, Action, Record
from store.text import check_text, cut, lines_of
from store.views import View

_AROUND = 3  # records shown before and after
_LOOKED = 12  # records looked at for them
_EXCERPT = 120  # bytes of each
_ARGS_LINES = 40
_CHOICES = {"d": "done", "f": "failed", "a": "abandoned", "s": "skip", "q": "quit"}


def walk(here: Globals, agent: str, seqs: list[int], wanted: Filter, *, by: str) -> None:
    """Go through the open actions of an agent (of all with ""), or those named, and settle as told.

    The end of the input and Ctrl-C end it; what was settled until then stays and is said.
    """
    out = here.out
    settled = seen = 0
    try:
        with reading(here) as backend:
            if agent:
                require(backend, agent)
            for view, action in _named(View(backend, agent), seqs) if seqs else pending(backend, agent, wanted):
                seen += 1
                if not action.open:
                    out.message(f"action {action.seq} of {view.agent} is {action.status} already")
                    continue
                _show(out, view, action, backend.clock.now())
                answer = _settle(here, view, action, by)
                settled += answer == "settled"
                if answer == "quit":
                    break
    except KeyboardInterrupt:
        out.message("")
        out.message(_told(settled, seen))
        raise
    out.message(_told(settled, seen) if seen else "nothing is pending", "recall actions list --pending" if seen else "")


def _named(view: View, seqs: list[int]) -> Iterator[tuple[View, Action]]:
    for seq in seqs:
        yield view, view.action(seq)


def _told(settled: int, seen: int) -> str:
    return f"{settled} settled of {seen} shown"


def _settle(here: Globals, view: View, action: Action, by: str) -> str:
    """Ask and settle: ``settled``, ``skip`` or ``quit``."""
    out = here.out
    obstacle = perhaps_running(view, action)
    if obstacle is not None:
        out.message(obstacle.message)
    while True:
        answer = out.ask("[d]one [f]ailed [a]bandoned [s]kip [q]uit?", at_end="q").lower()
        choice = _CHOICES.get(answer[:1], "") if answer[:1] and _is_word(answer) else ""
        if choice in ("skip", "quit"):
            return choice
        if not choice:
            continue
        if obstacle is not None and not out.confirm("it may be running right now; settle it all the same?", yes=False):
            return "skip"
        reason = _ask_text(out, "reason, how you know (empty: skip)?", checks.REASON_LIMIT)
        if not reason:
            return "skip"
        what, limit = ("error", checks.ERROR_LIMIT) if choice == "failed" else ("result", BLOB_LIMIT)
        told = "" if choice == "abandoned" else _ask_text(out, f"{what} (empty: none)?", limit)
        end = ActionEnd(choice, told if what == "result" else "", told if what == "error" else "", reason)
        try:
            force = obstacle is not None
            after = operate(
                here, view.agent, partial(Agent.resolve_action, seq=action.seq, end=end, by=by, force=force)
            )
        except (Conflict, NotFound, BadRecord, StillRunning) as problem:
            out.error(problem.code, problem.message, problem.hint)
            return "skip"
        out.message(f"action {after.seq} of {view.agent} is {after.status}, settled by {after.by}")
        return "settled"


def _is_word(answer: str) -> bool:
    return len(answer) == 1 or answer in _CHOICES.values()


def _ask_text(out: Out, question: str, limit: int) -> str:
    while True:
        try:
            return check_text(question.split()[0].rstrip(","), out.ask(question), limit=limit)
        except InvalidInput as problem:
            out.error(problem.code, problem.message, problem.hint)


def _show(out: Out, view: View, action: Action, now: Instant) -> None:
    """One call, whole, and what the log says around it, on stderr; all of it is stored text and shown as such."""
    out.message("")
    out.message(f"action {action.seq} of {view.agent}: {action.tool} ({action.class_}, {action.status})")
    lines = lines_of(args_of(view, action))
    out.message("  arguments: " + lines[0])
    for line in lines[1:_ARGS_LINES]:
        out.message("    " + line)
    if len(lines) > _ARGS_LINES:
        out.message(f"    … {len(lines) - _ARGS_LINES:,} more lines: recall actions show -a {view.agent} {action.seq}")
    out.message(f"  key: {action.key}")
    if action.step:
        out.message(f"  step: {action.step}" + (f" of run {action.run}" if action.run else ""))
    out.message(f"  started: {action.started_at}, {age(age_of(action, now))} ago")
    out.message(f"  epoch: {action.epoch}, held by {_holder(view, action.epoch)}")
    if action.resolution:
        out.message(f"  so far: {action.resolution}")
    out.message("  the log around it:")
    for record in _around(view, action):
        mark = ">" if record.kind == ACTION and record.seq == action.seq else " "
        out.message(f"  {mark} {record.lsn} {record.at[:19]}Z {_excerpt(record)}")


def _holder(view: View, epoch: int) -> str:
    record = view.backend.newest(view.agent, LEASE, seq=epoch)
    try:
        return str(record.fields().get("holder", "?")) if record else "?"
    except BadRecord:
        return "?"


def _around(view: View, action: Action) -> list[Record]:
    """What came just before it was started, its start, and what came just after."""
    first = view.backend.history(view.agent, ACTION, seq=action.seq)
    at = first[0].lsn if first else 1
    found = view.backend.log(view.agent, after=max(0, at - _LOOKED - 1), limit=2 * _LOOKED + 1)
    told = [record for record in found if record.kind not in (STEP, TOOL)]
    before = sum(record.lsn < at for record in told)
    return told[max(0, before - _AROUND) : before + 1 + _AROUND]


def _excerpt(record: Record) -> str:
    """A record as a person reads it in passing."""
    try:
        body = record.fields()
    except BadRecord:
        return f"{record.key} (cannot be read)"
    if record.kind == TURN:
        told = f"turn {record.seq}, {body.get('role')}: {body.get('content', '')}"
    elif record.kind == ACTION:
        told = f"action {record.seq}, {body.get('tool')}: {body.get('status')}"
    elif record.kind == LEASE:
        told = f"epoch {record.seq}, {body.get('holder')} ({body.get('reason')})"
    else:
        told = f"{record.key} {record.body}"
    return told if len(told.encode("utf-8", "replace")) <= _EXCERPT else cut(told, _EXCERPT) + "…"
