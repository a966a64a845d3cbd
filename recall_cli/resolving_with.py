"""Settling interrupted actions as a resolver command finds: ``recall actions resolve --with CMD``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import typer

from recall_cli.asking import DEFAULT_TIMEOUT, ask
from recall_cli.evidence import outcomes
from recall_cli.exits import Exit
from recall_cli.options import Globals
from recall_cli.pending import Filter
from recall_cli.resolving import REFUSED, Away, Row, agreed, line, perhaps_running, plan, public, settle
from recall_cli.session import reading
from recall_cli.values import duration
from store.actions import already_closed
from store.errors import BadRecord, Conflict, MayStillRun, NeedsSettling, NotFound, RecallError, StillRunning
from store.remote_errors import Queued
from store.text import quoted
from store.values import Action
from store.views import View


class CannotTell(NeedsSettling):
    """A resolver does not know whether the call happened; the action stays as it is."""

    code = "cannot_tell"
    template = "the resolver could not tell what became of action {seq} ({tool})"
    hint_template = (
        "find out by hand; then: recall actions resolve -a {agent} {seq} done|failed|abandoned --reason TEXT"
    )


def resolve(
    here: Globals,
    agent: str,
    seqs: list[int],
    wanted: Filter,
    command: str,
    *,
    timeout: str | None,
    reason: str,
    by: str,
    force: bool,
    dry_run: bool,
    yes: bool,
    away: Away,
) -> None:
    """Ask ``command`` about the actions ``seqs`` of an agent, or else about all pending ones that are ``wanted``.

    Each is settled as soon as it is told. A single one that cannot be asked
    about is refused; of several each is reported and the others are asked about.

    Args:
        timeout: how long the command may take for each, as a duration.
        reason: kept with the outcome instead of the resolver's finding, if not "".
    """
    seconds = DEFAULT_TIMEOUT if timeout is None else duration("--timeout", timeout)
    rows = plan(here, agent, seqs, wanted, "would be asked", lambda view, action: _obstacle(view, action, force))
    if len(seqs) == 1 and rows[0]["problem"] is not None:
        raise rows[0]["problem"]
    if not rows:
        here.out.table((), ())
        here.out.message("no pending action is like that; nothing was asked or changed")
        return
    askable = sum(each["problem"] is None for each in rows)
    if dry_run:
        here.out.lines([public(each) for each in rows], line)
        here.out.message(f"{quoted(command)} would be asked about {askable:,}; nothing was asked or changed")
    else:
        question = f"ask {quoted(command)} about {askable:,}, and settle each as it tells?"
        if len(seqs) != 1 and not agreed(here, rows, question, yes):
            here.out.message("nothing was asked or changed")
            return

        def told() -> Iterator[Row]:
            stopped: RecallError | None = None
            for each in rows:
                if stopped is not None and each["problem"] is None:
                    each["outcome"], each["problem"] = REFUSED, stopped
                if each["problem"] is None:
                    stopped = _settle(here, each, command, seconds, reason, by, force, away)
                yield public(each)
            if stopped is not None:
                raise stopped

        here.out.lines(told(), line, live=True)
        settled = sum(each["problem"] is None for each in rows)
        left = f", {len(rows) - settled:,} not" if settled < len(rows) else ""
        here.out.message(f"{settled:,} settled by {by}{left}", "recall actions list --pending")
    problems = [each for each in rows if each["problem"] is not None]
    if any(isinstance(each["problem"], Queued) for each in problems):
        raise typer.Exit(Exit.UNAVAILABLE)
    if problems:
        # What still waits for somebody matters more than what somebody else has settled already.
        waits = any(each["action"] is not None and each["action"].open for each in problems)
        raise typer.Exit(Exit.UNSETTLED if waits else Exit.CONFLICT)


def _obstacle(view: View, action: Action, force: bool) -> RecallError | None:
    """Why it is not asked about. Nothing overrides a command that is seen to be alive: it may yet happen.

    One that may be running on a machine that cannot be asked is what a resolver is for.
    """
    problem = perhaps_running(view, action)
    return None if isinstance(problem, MayStillRun) or (force and not isinstance(problem, StillRunning)) else problem


def _settle(
    here: Globals, each: Row, command: str, timeout: float, reason: str, by: str, force: bool, away: Away
) -> RecallError | None:
    """Ask about one row and settle it, changing it in place; what stops the others too, if anything does."""
    agent, seq = str(each["agent_id"]), int(each["seq"])
    try:
        with reading(here) as backend:  # anew: asking about those before it took its time
            view = View(backend, agent)
            action = each["action"] = view.action(seq)
            if not action.open:
                raise already_closed(action)
            problem = _obstacle(view, action, force)
            if problem is not None:
                raise problem
            forced = perhaps_running(view, action) is not None
            args = view.output(action.args_ref).content if action.args_ref else action.args
            told = outcomes(backend, agent, action, here.out.warn)
        end = ask(command, agent, action, args=args, timeout=timeout, evidence=told)
        if end is None:
            raise CannotTell(seq=seq, tool=quoted(action.tool), agent=agent)
        end = replace(end, resolution=reason or end.resolution)
        stopped = settle(here, [each], end, by=by, force=forced, away=away)
        if stopped is not None:
            return stopped
        if isinstance(each["problem"], Conflict):
            raise each["problem"]
    except (CannotTell, Conflict, NotFound, BadRecord, StillRunning) as refused:
        each["outcome"], each["problem"] = REFUSED, refused
        if isinstance(refused, CannotTell):
            each["outcome"] = "cannot tell"
        elif isinstance(refused, Conflict):
            with reading(here) as backend:
                each["action"] = View(backend, agent).action(seq)
    except RecallError as problem:
        each["outcome"], each["problem"] = REFUSED, problem
        return problem
    return None
