"""Settling actions by hand: one, or many with a report on each."""

from __future__ import annotations

import itertools
import os
from typing import Any

import typer

from recall_cli.exits import Exit
from recall_cli.options import Globals
from recall_cli.pending import Filter, pending
from recall_cli.session import reading, require, writing
from store.access import beside, may_be_acting
from store.actions import ActionEnd, already_closed
from store.agent import Agent
from store.errors import ActionNotUnknown, BadRecord, Conflict, NotFound, RecallError, StillRunning
from store.records import Action, plain
from store.running import still_running
from store.text import quoted
from store.views import View

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
) -> None:
    """Settle the actions ``seqs`` of an agent, or else all pending ones that are ``wanted``.

    A single one that cannot be settled is refused; of several each is
    reported and the others are settled.
    """
    rows: list[Row]
    with reading(here) as backend:
        if agent:
            require(backend, agent)
        if seqs:
            rows = [_planned(View(backend, agent), seq, end, force) for seq in seqs]
        else:
            rows = [_plan(view, action, end, force) for view, action in pending(backend, agent, wanted)]
    if len(seqs) == 1 and rows[0]["problem"] is not None:
        raise rows[0]["problem"]
    if not rows:
        here.out.table((), ())
        here.out.message("no pending action is like that; nothing was changed")
        return
    if not dry_run:
        if len(seqs) != 1 and not _agreed(here, rows, end, yes):
            here.out.message("nothing was changed")
            return
        stopped = _settle(here, rows, end, by=by, force=force)
    refused = sum(each["problem"] is not None for each in rows)
    if len(seqs) == 1 and rows[0]["problem"] is not None:
        raise rows[0]["problem"]
    here.out.lines([_public(each) for each in rows], _line)
    if dry_run:
        here.out.message(f"{len(rows) - refused} would be settled as {end.status}; nothing was changed")
    else:
        if stopped is not None:
            raise stopped
        settled = f"{len(rows) - refused} settled as {end.status} by {by}"
        here.out.message(settled + (f", {refused} refused" if refused else ""), "recall actions list --pending")
    if refused:
        raise typer.Exit(Exit.CONFLICT)


def _planned(view: View, seq: int, end: ActionEnd, force: bool) -> Row:
    try:
        return _plan(view, view.action(seq), end, force)
    except (NotFound, BadRecord) as problem:
        return _row(view.agent, seq, None, "refused", problem)


def _plan(view: View, action: Action, end: ActionEnd, force: bool) -> Row:
    problem: RecallError | None = None
    if not action.open:
        problem = already_closed(action)
    elif not force:
        problem = perhaps_running(view, action)
    return _row(view.agent, action.seq, action, "refused" if problem else f"would be {end.status}", problem)


def perhaps_running(view: View, action: Action) -> RecallError | None:
    """Why settling it needs ``force``: its command lives, or the live lease's holder may be running it."""
    alive = still_running(view.backend.directory, action)
    if alive:
        return StillRunning(seq=action.seq, tool=quoted(action.tool), process=alive)
    lease = view.backend.lease(view.agent)
    if lease is None or action.status != "started" or action.incarnation != lease.incarnation:
        return None
    if not may_be_acting(lease, view.backend.clock.now()):
        return None
    return ActionNotUnknown(seq=action.seq, epoch=lease.epoch)


def _row(agent: str, seq: int, action: Action | None, outcome: str, problem: RecallError | None) -> Row:
    return {"agent_id": agent, "seq": seq, "action": action, "outcome": outcome, "problem": problem}


def _public(each: Row) -> Row:
    problem: RecallError | None = each["problem"]
    return {
        "agent_id": each["agent_id"],
        "seq": each["seq"],
        "outcome": each["outcome"],
        "code": problem.code if problem else "",
        "message": problem.message if problem else "",
        "action": plain(each["action"]) if each["action"] else None,
    }


def _line(public: Any) -> str:
    tool = f" ({public['action']['tool']})" if public["action"] else ""
    why = f": {public['message']}" if public["message"] else ""
    return f"{public['agent_id']} {public['seq']}{tool}: {public['outcome']}{why}"


def _agreed(here: Globals, rows: list[Row], end: ActionEnd, yes: bool) -> bool:
    if here.out.interactive and not yes:
        for each in rows[:_SHOWN]:
            here.out.message(_line(_public(each)))
        if len(rows) > _SHOWN:
            here.out.message(f"… and {len(rows) - _SHOWN:,} more")
    count = sum(each["problem"] is None for each in rows)
    return here.out.confirm(f"settle {count:,} as {end.status}, because {quoted(end.resolution)}?", yes=yes)


def _settle(here: Globals, rows: list[Row], end: ActionEnd, *, by: str, force: bool) -> RecallError | None:
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
                    if each["outcome"] in (end.status, "refused"):
                        continue  # done before the lease changed hands
                    try:
                        each["action"] = it.resolve_action(each["seq"], end, by=by, force=force)
                        each["outcome"] = end.status
                    except (Conflict, NotFound, BadRecord, StillRunning) as problem:
                        each["outcome"], each["problem"] = "refused", problem

            try:
                beside(backend, agent, work, holder=holder)
            except RecallError as problem:
                for each in todo:
                    if each["outcome"] not in (end.status, "refused"):
                        each["outcome"], each["problem"] = "refused", problem
                return problem
    return None


def settle_one(here: Globals, agent: str, seq: int, end: ActionEnd, *, by: str, force: bool) -> Action:
    """Settle one action; raises why it cannot be."""
    with writing(here) as backend:
        return beside(
            backend,
            agent,
            lambda it: it.resolve_action(seq, end, by=by, force=force),
            holder=f"operator:{os.getpid()}",
        )
