"""The walk through what is pending: shows each call, asks what became of it, settles it.

The list is made at the start, so that each can be shown as the first of how
many; whatever was settled meanwhile is said to be so.
"""

from __future__ import annotations

from recall_cli.evidence import line as evidence_line
from recall_cli.evidence import outcomes
from recall_cli.look import age_of, lease_state, summary
from recall_cli.options import Globals
from recall_cli.pending import Filter, args_of, pending
from recall_cli.render import Out
from recall_cli.resolving import Away, Row, perhaps_running, settle
from recall_cli.session import reading, require
from store import checks
from store.actions import ActionEnd
from store.canonical import BLOB_LIMIT
from store.clock import Instant
from store.errors import BadRecord, InvalidInput
from store.records import ACTION, LEASE, STEP, TOOL, Record
from store.remote_errors import Queued
from store.running import may_be_acting
from store.text import check_text, lines_of
from store.values import Action
from store.views import View

_AROUND = 3  # records shown before and after
_LOOKED = 12  # records looked at for them
_ARGS_LINES = 40
_CHOICES = {"d": "done", "f": "failed", "a": "abandoned", "s": "skip", "q": "quit"}
EXPLAINED = (
    "d  done: it happened; a step is never run again, and the model reads the result",
    "f  failed: it happened and went wrong; an external step is attempted again only after: recall actions retry",
    "a  abandoned: it did not happen; the step's next start is a new attempt",
    "s  skip: leave it open, go on with the next",
    "q  quit: leave it and all after it open",
)


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
            found = [(agent, seq) for seq in seqs] or [
                (view.agent, action.seq) for view, action in pending(backend, agent, wanted)
            ]
            for name, seq in found:
                view = View(backend, name)
                action = view.action(seq)
                seen += 1
                if not action.open:
                    out.message(f"action {action.seq} of {view.agent} is {action.status} already")
                    continue
                _show(out, view, action, f"{seen} of {len(found)}")
                answer = _settle(here, view, action, by)
                settled += answer == "settled"
                if answer == "quit":
                    break
    except KeyboardInterrupt:
        out.message("")
        out.message(_told(settled, seen))
        raise
    out.message(_told(settled, seen) if seen else "nothing is pending", "recall actions list --pending" if seen else "")


def _told(settled: int, seen: int) -> str:
    return f"{settled} settled of {seen} shown"


def _settle(here: Globals, view: View, action: Action, by: str) -> str:
    """Ask and settle: ``settled``, ``skip`` or ``quit``."""
    out = here.out
    obstacle = perhaps_running(view, action)
    if obstacle is not None:
        out.message(obstacle.message)
    while True:
        answer = out.ask("[d]one [f]ailed [a]bandoned [s]kip [q]uit [?] explain:", at_end="q").lower()
        choice = _CHOICES.get(answer[:1], "") if answer[:1] and _is_word(answer) else ""
        if choice in ("skip", "quit"):
            return choice
        if not choice:
            for line in EXPLAINED:
                out.message(line)
            continue
        if obstacle is not None and not out.confirm("it may be running right now; settle it all the same?", yes=False):
            return "skip"
        reason = _ask_text(out, "reason, how you know (empty: skip)?", checks.REASON_LIMIT)
        if not reason:
            return "skip"
        what, limit = ("error", checks.ERROR_LIMIT) if choice == "failed" else ("result", BLOB_LIMIT)
        told = "" if choice == "abandoned" else _ask_text(out, f"{what} (empty: none)?", limit)
        end = ActionEnd(choice, told if what == "result" else "", told if what == "error" else "", reason)
        row: Row = {"agent_id": view.agent, "seq": action.seq, "action": action, "outcome": "", "problem": None}
        stopped = settle(here, [row], end, by=by, force=obstacle is not None, away=Away())
        if stopped is not None:
            raise stopped
        problem = row["problem"]
        if isinstance(problem, Queued):
            out.message(problem.message, problem.hint)
            return "skip"
        if problem is not None:
            out.error(problem.code, problem.message, problem.hint)
            return "skip"
        after = row["action"]
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


def _show(out: Out, view: View, action: Action, place: str) -> None:
    """One call, whole, and what the log says around it, on stderr; all of it is stored text and shown as such."""
    now = view.backend.clock.now()
    out.message("")
    out.message(f"{place}: action {action.seq} of {view.agent}: {action.tool} ({action.class_}, {action.status})")
    lines = lines_of(args_of(view, action))
    out.message("  arguments: " + lines[0])
    for line in lines[1:_ARGS_LINES]:
        out.message("    " + line)
    if len(lines) > _ARGS_LINES:
        out.message(f"    … {len(lines) - _ARGS_LINES:,} more lines: recall actions show -a {view.agent} {action.seq}")
    out.message(f"  key: {action.key}")
    if action.step:
        out.message(f"  step: {action.step}" + (f" of run {action.run}" if action.run else ""))
    out.message(f"  started: {action.started_at}, {age_of(action.started_at, now)} ago")
    out.message(f"  by: {_starter(view, action, now)}")
    if action.resolution:
        out.message(f"  so far: {action.resolution}")
    for each in outcomes(view.backend, view.agent, action, out.warn):
        out.message(f"  set aside: {evidence_line(each)}")
    out.message("  the log around it:")
    for record in _around(view, action):
        mark = ">" if record.kind == ACTION and record.seq == action.seq else " "
        out.message(f"  {mark} {record.lsn} {record.at[:19]}Z {record.key}  {summary(record)}")


def _starter(view: View, action: Action, now: Instant) -> str:
    """Who started it, whether they can still be doing it, and who acts for the agent now."""
    record = view.backend.newest(view.agent, LEASE, seq=action.epoch)
    try:
        holder = str(record.fields().get("holder", "?")) if record else "?"
    except BadRecord:
        holder = "?"
    lease = view.backend.lease(view.agent)
    told = f"{holder} (epoch {action.epoch})"
    if lease is None or lease.incarnation != action.incarnation:
        then = f"; {lease.holder} acts for {view.agent} now" if lease and may_be_acting(lease, now) else ""
        return f"{told}, which does not hold the lease any more{then}"
    states = {
        "live": "which holds the lease and may be at it right now",
        "lapsed": "whose lease has lapsed; whether it lives is not known here",
        "dead": "which is dead",
        "released": "which has released the lease",
    }
    return f"{told}, {states[lease_state(lease, now)]}"


def _around(view: View, action: Action) -> list[Record]:
    """What came just before it was started, its start, and what came just after."""
    first = view.backend.history(view.agent, ACTION, seq=action.seq)
    at = first[0].lsn if first else 1
    found = view.backend.log(view.agent, after=max(0, at - _LOOKED - 1), limit=2 * _LOOKED + 1)
    told = [record for record in found if record.kind not in (STEP, TOOL)]
    before = sum(record.lsn < at for record in told)
    return told[max(0, before - _AROUND) : before + 1 + _AROUND]
