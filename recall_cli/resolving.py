"""Settling actions by hand: one, or many with a report on each."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

import typer

from recall_cli.exits import Exit
from recall_cli.options import Globals
from recall_cli.pending import MOST_SEQ, Filter, pending
from recall_cli.session import reading, require, writing
from store import checks
from store.access import beside, once
from store.actions import ActionEnd, already_closed
from store.agent import Agent
from store.backends.sqlite import SqliteBackend
from store.backends.sqlite.files import exists
from store.errors import (
    ActionNotUnknown,
    BadRecord,
    Conflict,
    InvalidInput,
    MayStillRun,
    NotFound,
    RecallError,
    StillRunning,
)
from store.records import CLOSED_STATUSES
from store.remote_errors import Queued
from store.running import may_be_acting, still_running
from store.text import check_text, quoted
from store.value import value
from store.values import Action, plain
from store.views import View

REFUSED = "refused"
_SHOWN = 20  # of what is about to be settled, before the question

Row = dict[str, Any]


def resolve(
    here: Globals,
    agent: str,
    seqs: list[int],
    wanted: Filter,
    end: ActionEnd,
    *,
    by: str,
    force: bool,
    dry_run: bool,
    yes: bool,
    away: Away,
) -> None:
    """Settle the actions ``seqs`` of an agent, or else all pending ones that are ``wanted``.

    A single one that cannot be settled is refused; of several each is
    reported and the others are settled.
    """
    check = (lambda view, action: None) if force else perhaps_running
    rows = plan(here, agent, seqs, wanted, f"would be {end.status}", check)
    if len(seqs) == 1 and rows[0]["problem"] is not None:
        raise rows[0]["problem"]
    if not rows:
        here.out.table((), ())
        here.out.message("no pending action is like that; nothing was changed")
        return
    if not dry_run:
        count = sum(each["problem"] is None for each in rows)
        question = f"settle {count:,} as {end.status}, because {quoted(end.resolution)}?"
        if len(seqs) != 1 and not agreed(here, rows, question, yes):
            here.out.message("nothing was changed")
            return
        stopped = settle(here, rows, end, by=by, force=force, away=away)
    refused = sum(each["problem"] is not None for each in rows)
    if len(seqs) == 1 and rows[0]["problem"] is not None:
        raise rows[0]["problem"]
    here.out.lines([public(each) for each in rows], line)
    if dry_run:
        here.out.message(f"{len(rows) - refused} would be settled as {end.status}; nothing was changed")
    else:
        if stopped is not None:
            raise stopped
        queued = sum(isinstance(each["problem"], Queued) for each in rows)
        counts = ((refused - queued, "refused"), (queued, "queued"))
        more = "".join(f", {count} {what}" for count, what in counts if count)
        here.out.message(
            f"{len(rows) - refused} settled as {end.status} by {by}{more}", "recall actions list --pending"
        )
        if queued:
            raise typer.Exit(Exit.UNAVAILABLE)
    if refused:
        raise typer.Exit(Exit.CONFLICT)


def plan(
    here: Globals,
    agent: str,
    seqs: list[int],
    wanted: Filter,
    outcome: str,
    check: Callable[[View, Action], RecallError | None],
) -> list[Row]:
    """A row for each of the actions ``seqs`` of an agent, or else for each pending one that is ``wanted``.

    Args:
        outcome: what its row says of one that nothing speaks against.
        check: what speaks against an open one, or None.
    """
    with reading(here) as backend:
        if agent:
            require(backend, agent)
        if seqs:
            view = View(backend, agent)
            return [_planned(view, seq, outcome, check) for seq in seqs]
        return [_row(view, action.seq, action, outcome, check) for view, action in pending(backend, agent, wanted)]


def _planned(view: View, seq: int, outcome: str, check: Callable[[View, Action], RecallError | None]) -> Row:
    try:
        return _row(view, seq, view.action(seq), outcome, check)
    except (NotFound, BadRecord) as problem:
        return {"agent_id": view.agent, "seq": seq, "action": None, "outcome": REFUSED, "problem": problem}


def _row(
    view: View, seq: int, action: Action, outcome: str, check: Callable[[View, Action], RecallError | None]
) -> Row:
    problem = check(view, action) if action.open else already_closed(action)
    outcome = REFUSED if problem else outcome
    return {"agent_id": view.agent, "seq": seq, "action": action, "outcome": outcome, "problem": problem}


def perhaps_running(view: View, action: Action) -> RecallError | None:
    """Why settling it needs ``force``: its command lives, or the live lease's holder may be running it."""
    alive = still_running(view.backend.directory, action)
    if alive:
        return StillRunning(seq=action.seq, tool=quoted(action.tool), process=alive)
    waits = view.may_run(action)
    if waits is not None:
        return MayStillRun(seq=action.seq, tool=quoted(action.tool), until=waits.until, holder=waits.holder)
    lease = view.backend.lease(view.agent)
    if lease is None or action.status != "started" or action.incarnation != lease.incarnation:
        return None
    if not may_be_acting(lease, view.backend.clock.now()):
        return None
    return ActionNotUnknown(seq=action.seq, epoch=lease.epoch)


def public(each: Row) -> Row:
    """A row as programs get it."""
    problem: RecallError | None = each["problem"]
    return {
        "agent_id": each["agent_id"],
        "seq": each["seq"],
        "outcome": each["outcome"],
        "code": problem.code if problem else "",
        "message": problem.message if problem else "",
        "action": plain(each["action"]) if each["action"] else None,
    }


def line(row: Any) -> str:
    """A public row for a person."""
    tool = f" ({row['action']['tool']})" if row["action"] else ""
    why = f": {row['message']}" if row["message"] else ""
    return f"{row['agent_id']} {row['seq']}{tool}: {row['outcome']}{why}"


def agreed(here: Globals, rows: list[Row], question: str, yes: bool) -> bool:
    """Whether to go on with several; a person is shown them first."""
    if here.out.interactive and not yes:
        for each in rows[:_SHOWN]:
            here.out.message(line(public(each)))
        if len(rows) > _SHOWN:
            here.out.message(f"… and {len(rows) - _SHOWN:,} more")
    return here.out.confirm(question, yes=yes, first="--dry-run")


@value
class Away:
    """What to do about an agent that another machine acts for, in a store that ships.

    Attributes:
        take: take its lease, if it is free, instead of queueing for its holder.
        wait: seconds to wait until what was queued is carried out.
    """

    take: bool = False
    wait: float = 0.0


def fetch(here: Globals, agent: str) -> None:
    """In a store that ships, bring an agent (or all) up to what the bucket has; else nothing."""
    if ships(here):
        from recall_cli import queueing

        queueing.fetch(here, agent)


def ships(here: Globals) -> bool:
    """Whether there is a store that is attached to a bucket."""
    if not exists(str(here.directory)):
        return False
    with reading(here) as backend:
        remote = backend.remote()
        return remote is not None and remote.state == "attached"


def settle(here: Globals, rows: list[Row], end: ActionEnd, *, by: str, force: bool, away: Away) -> RecallError | None:
    """Settle the rows that have no problem, changing them in place; what stopped it, if anything did."""
    todo = [each for each in rows if each["problem"] is None]
    if not todo:
        return None
    holder = f"operator:{os.getpid()}"
    with writing(here) as backend:
        for agent, group in itertools.groupby(todo, key=lambda each: str(each["agent_id"])):
            of_agent = list(group)

            def work(it: Agent, of_agent: list[Row] = of_agent) -> None:
                for each in of_agent:
                    if each["outcome"] == REFUSED or (
                        each["outcome"] == end.status and it.view.action(each["seq"]) == each["action"]
                    ):
                        continue  # done before the lease changed hands, and still there
                    try:
                        each["action"] = it.resolve_action(each["seq"], end, by=by, force=force)
                        each["outcome"] = end.status
                    except (Conflict, NotFound, BadRecord, StillRunning, MayStillRun) as problem:
                        each["outcome"], each["problem"] = REFUSED, problem

            try:
                if backend.ship:
                    _settle_shipping(backend, agent, of_agent, work, end, by=by, force=force, away=away, holder=holder)
                else:
                    beside(backend, agent, work, holder=holder)
            except RecallError as problem:
                for each in todo:
                    if each["problem"] is None and each["outcome"] != end.status:
                        each["outcome"], each["problem"] = REFUSED, problem
                return problem
    return None


def _settle_shipping(
    backend: SqliteBackend,
    agent: str,
    rows: list[Row],
    work: Callable[[Agent], None],
    end: ActionEnd,
    *,
    by: str,
    force: bool,
    away: Away,
    holder: str,
) -> None:
    """Settle beside the holder if it is one of this store; else queue it for the holder, or take the lease."""
    from recall_cli import queueing

    if not queueing.is_elsewhere(backend, agent):
        beside(backend, agent, work, holder=holder)
    elif away.take:
        once(backend, agent, work, holder=holder, archived=True)
    else:
        queueing.queue(backend, agent, rows, end, by=by, force=force)
        queueing.wait(backend, agent, rows, away.wait)


def split(words: list[str]) -> tuple[list[int], str]:
    """The numbers and the outcome that were typed, "" for none.

    Raises:
        InvalidInput: a word is neither.
    """
    outcome = words[-1] if words and not words[-1].isdecimal() else ""
    numbers = words[:-1] if outcome else words
    if outcome and outcome not in CLOSED_STATUSES:
        raise InvalidInput(field="STATUS", reason=f"must be done, failed or abandoned, not {quoted(outcome)}")
    for word in numbers:
        if not (word.isascii() and word.isdecimal() and len(word) <= 16 and 1 <= int(word) <= MOST_SEQ):
            raise InvalidInput(field="SEQ", reason=f"{quoted(word)} is not an action's number")
    return list(dict.fromkeys(int(word) for word in numbers)), outcome


def check_choice(agent: str, seqs: list[int], wanted: Filter, *, all_pending: bool, settling: bool) -> None:
    """Refuse a choice of actions that contradicts itself, or that settles more than was asked for.

    Args:
        settling: whether an outcome, or a command that tells it, was given.
    """
    filtered = wanted != Filter()
    if filtered and seqs:
        raise InvalidInput(field="SEQ", reason="cannot be combined with a filter", hint="use --all-pending instead")
    if filtered and settling and not all_pending:
        raise InvalidInput(field="--all-pending", reason="is needed with a filter")
    if all_pending and seqs:
        raise InvalidInput(field="--all-pending", reason="cannot be combined with SEQ", hint="give one of the two")
    if seqs and not agent:
        raise InvalidInput(field="--agent", reason="is needed with SEQ", hint="add -a AGENT, or set RECALL_AGENT")


def check_with(with_: str | None, outcome: str, result: str | None, error: str | None, timeout: str | None) -> None:
    """Refuse what --with cannot be combined with, and what is nothing without it."""
    if with_ is None:
        if timeout is not None:
            raise InvalidInput(field="--timeout", reason="is nothing without --with")
        return
    check_text("--with", with_, limit=checks.STATE_LIMIT, empty=False)
    for name, given in (("STATUS", outcome), ("--result", result), ("--error", error)):
        if given:
            raise InvalidInput(
                field="--with", reason=f"cannot be combined with {name}", hint="the command tells what became of it"
            )
