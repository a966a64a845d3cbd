"""``recall actions``: the tool calls of agents, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import islice
from shutil import get_terminal_size
from typing import Annotated, Any

import typer

from recall_cli.actions_shown import as_row, details, shown, status_of
from recall_cli.exits import READS, Exit
from recall_cli.look import (
    AnyAgent,
    Limit,
    age_of,
    check_limit,
    every_lease,
    seconds_since,
)
from recall_cli.options import AgentOption, Globals, Noun
from recall_cli.render import Column
from recall_cli.session import reading, require, viewing
from recall_cli.values import duration
from store.backend import Backend
from store.clock import Instant
from store.records import ACTION, OPEN_STATUSES, Action
from store.text import check_agent, check_count
from store.views import View

app = Noun("The tool calls of an agent and what became of them.", default="list")

STYLES = {"done": "green", "failed": "red", "unknown": "yellow", "started": "cyan", "abandoned": "dim"}
_PAGE = 50
_WIDE = 140  # columns of a terminal that has room for a key of 32 digits


class Status(str, Enum):
    """How far an action is."""

    started = "started"
    done = "done"
    failed = "failed"
    abandoned = "abandoned"
    unknown = "unknown"


class Class(str, Enum):
    """What running an action again would do."""

    pure = "pure"
    idempotent = "idempotent"
    external = "external"


@app.verb("list", exits=(*READS, Exit.UNSETTLED))
def list_actions(
    ctx: typer.Context,
    agent: AnyAgent = "",
    all_agents: Annotated[
        bool, typer.Option("--all-agents", help="Of every agent, whatever RECALL_AGENT says.")
    ] = False,
    pending: Annotated[bool, typer.Option("--pending", help="Only open ones: started or unknown.")] = False,
    status: Annotated[Status | None, typer.Option("--status", help="Only in this status.")] = None,
    class_: Annotated[Class | None, typer.Option("--class", help="Only of this class.")] = None,
    tool: Annotated[str, typer.Option("--tool", metavar="TOOL", help="Only calls of this tool.")] = "",
    step: Annotated[str, typer.Option("--step", metavar="NAME", help="Only attempts of this step.")] = "",
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Started at least so long ago: 90s, 1h.")
    ] = "",
    newer_than: Annotated[
        str, typer.Option("--newer-than", metavar="DURATION", help="Started at most so long ago.")
    ] = "",
    text: Annotated[
        str,
        typer.Option("--text", metavar="TEXT", help="Only with TEXT in tool, step, arguments or outcome."),
    ] = "",
    limit: Limit = None,
    fail_if_any: Annotated[
        bool, typer.Option("--fail-if-any", help="Exit with 8 if there is one: an alert for scripts.")
    ] = False,
) -> None:
    """List actions, of one agent or of all.

    Newest first within an agent; open ones (--pending) oldest first.
    """
    here = Globals.of(ctx)
    least = duration("--older-than", older_than) if older_than else None
    most = duration("--newer-than", newer_than) if newer_than else None
    rows_at_most = check_limit(limit)
    agent = "" if all_agents else agent
    if agent:
        check_agent(agent)
    wanted = text.casefold()
    count = 0

    def fits(action: Action, now: Instant) -> bool:
        age = seconds_since(action.started_at, now)
        return (
            (status is None or action.status == status.value)
            and (class_ is None or action.class_ == class_.value)
            and tool in ("", action.tool)
            and step in ("", action.step)
            # An age that cannot be read counts as old: an alert must not miss it.
            and (least is None or age is None or age >= least)
            and (most is None or (age is not None and age <= most))
            and any(wanted in each.casefold() for each in (action.tool, action.step, *_said(action)))
        )

    with reading(here) as backend:
        if agent:
            require(backend, agent)
        now = backend.clock.now()
        is_open = pending or (status is not None and status.value in OPEN_STATUSES)
        found = _open(backend, agent) if is_open else _all(backend, agent)

        def rows() -> Iterator[dict[str, Any]]:
            nonlocal count
            fitting = ((each, action) for each, action in found if fits(action, now))
            for count, (each, action) in enumerate(islice(fitting, rows_at_most), 1):  # noqa: B007 (counted for the exit)
                row = as_row(each, action, backend.directory)
                yield row if here.out.structured else row | _for_people(row, now)

        here.out.table(_columns(here.out.terminal), rows(), empty="no actions")
    if fail_if_any and count:
        raise typer.Exit(Exit.UNSETTLED)


def _columns(terminal: bool) -> list[Column]:
    columns = [
        Column("agent"),
        Column("seq", right=True, keep=True),
        Column("status", keep=True, style=lambda status: STYLES.get(status.split()[0], "")),
        Column("class", keep=True),
        Column("tool"),
        Column("step"),
        Column("age", keep=True),
        Column("key", keep=True),
        Column("args"),
    ]
    if terminal and get_terminal_size().columns < _WIDE:
        columns = [column for column in columns if column.key != "key"]  # `actions show` has it
    return columns


def _said(action: Action) -> tuple[str, ...]:
    return action.args, action.result, action.error, action.resolution


def _for_people(row: dict[str, Any], now: Instant) -> dict[str, Any]:
    args = f"(in output {row['args_ref']})" if row["args_ref"] else row["args"]
    return {"status": status_of(row), "age": age_of(row["started_at"], now), "args": args}


def _all(backend: Backend, agent: str) -> Iterator[tuple[str, Action]]:
    for name in [agent] if agent else (lease.agent for lease in every_lease(backend)):
        yield from ((name, action) for action in View(backend, name).actions())


def _open(backend: Backend, agent: str) -> Iterator[tuple[str, Action]]:
    after = (agent, 0)
    while True:
        page = backend.in_force(agent or None, ACTION, limit=_PAGE, after=after)
        for record in page:
            yield from ((record.agent, each) for each in View(backend, record.agent).each([record], Action.read))
        if len(page) < _PAGE:
            return
        after = (page[-1].agent, page[-1].seq)


@app.verb("show", exits=READS)
def show(
    ctx: typer.Context,
    agent: AgentOption,
    seq: Annotated[int, typer.Argument(metavar="SEQ", help="The action's number.")],
) -> None:
    """Show one action whole: arguments, result, every change, and what the log says around it."""
    here = Globals.of(ctx)
    check_count("SEQ", seq, least=1, most=2**62)
    with viewing(here, agent) as view:
        found = details(view, seq)
        now = view.backend.clock.now()
    here.out.document(found, lambda: shown(found, now))
