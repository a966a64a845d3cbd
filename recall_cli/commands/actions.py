"""``recall actions``: the tool calls of agents, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from itertools import islice
from shutil import get_terminal_size
from typing import Annotated, Any

import typer

from recall_cli.exits import READS, Exit
from recall_cli.look import (
    AnyAgent,
    Limit,
    age_of,
    check_limit,
    every_lease,
    labelled,
    log_row,
    seconds_since,
)
from recall_cli.options import AgentOption, Globals, Noun
from recall_cli.render import Column
from recall_cli.session import reading, require, viewing
from recall_cli.values import duration
from store.backend import Backend
from store.clock import Instant
from store.records import ACTION, OPEN_STATUSES, Action, Record, plain
from store.running import still_running
from store.text import check_agent, check_count
from store.views import View

app = Noun("List, show, begin, end and settle actions.", default="list")

STYLES = {"done": "green", "failed": "red", "unknown": "yellow", "started": "cyan", "abandoned": "dim"}
_AROUND = 3  # records of the log shown before and after
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
        str, typer.Option("--text", metavar="TEXT", help="Only with TEXT in arguments, result, error or resolution.")
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
    count = 0

    def fits(action: Action, now: Instant) -> bool:
        age = seconds_since(action.started_at, now)
        return (
            (status is None or action.status == status.value)
            and (class_ is None or action.class_ == class_.value)
            and tool in ("", action.tool)
            and step in ("", action.step)
            and (least is None or (age is not None and age >= least))
            and (most is None or (age is not None and age <= most))
            and (
                not text or any(text in each for each in (action.args, action.result, action.error, action.resolution))
            )
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
                row = as_row(each, action, str(here.directory))
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


def as_row(agent: str, action: Action, directory: str) -> dict[str, Any]:
    """An action for programs. Its owner's incarnation, half of a fencing token, stays out."""
    running = still_running(directory, action)
    return {"agent": agent, **plain(action, without=("incarnation",)), "still_running": running or None}


def _for_people(row: dict[str, Any], now: Instant) -> dict[str, Any]:
    args = f"(in output {row['args_ref']})" if row["args_ref"] else row["args"]
    return {"status": _status(row), "age": age_of(row["started_at"], now), "args": args}


def _status(row: dict[str, Any]) -> str:
    return f"{row['status']} (still running as {row['still_running']})" if row["still_running"] else row["status"]


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
    here.out.document(found, lambda: _shown(found, now))


def details(view: View, seq: int) -> dict[str, Any]:
    """All that the store knows of an action. Raises NotFound."""
    action = view.action(seq)
    whole = replace(
        action,
        args=view.output(action.args_ref).content if action.args_ref else action.args,
        result=view.output(action.result_ref).content if action.result_ref else action.result,
    )
    records = view.backend.history(view.agent, ACTION, seq=seq)
    return {
        **as_row(view.agent, whole, view.backend.directory),
        "versions": [_version(record, view) for record in records],
        "around": [log_row(record) for record in _around(view, records)],
    }


def _version(record: Record, view: View) -> dict[str, Any]:
    at = next(view.each([record], Action.read, blobs=False), None)
    values = {} if at is None else {name: getattr(at, name) for name in ("status", "resolution", "by", "error")}
    return {"lsn": record.lsn, "at": record.at, "epoch": record.epoch, **values}


def _around(view: View, records: list[Record]) -> list[Record]:
    """A few records before and after the action's first record and its newest."""
    found: dict[int, Record] = {}
    for lsn in {records[0].lsn, records[-1].lsn} if records else set[int]():
        first = max(0, lsn - _AROUND - 1)
        found |= {each.lsn: each for each in view.backend.log(view.agent, after=first, limit=lsn + _AROUND - first)}
    return [found[lsn] for lsn in sorted(found)]


def _shown(found: dict[str, Any], now: Instant) -> Iterator[str]:
    own = {version["lsn"] for version in found["versions"]}
    yield from labelled(
        (
            ("action", f"{found['seq']} of {found['agent']}"),
            ("status", _status(found)),
            ("tool", found["tool"]),
            ("class", found["class"]),
            ("key", found["key"]),
            ("step", found["step"]),
            ("run", found["run"]),
            ("retry of", found["retry_of"] or None),
            ("epoch", found["epoch"]),
            ("started", f"{found['started_at']} ({age_of(found['started_at'], now)} ago)"),
            ("ended", found["ended_at"]),
            ("resolution", found["resolution"]),
            ("by", found["by"]),
            ("error", found["error"]),
            ("args", found["args"]),
            ("result", found["result"]),
            ("notes", found["notes"]),
        )
    )
    yield "versions:"
    for version in found["versions"]:
        said = ", ".join(str(version[name]) for name in ("status", "resolution", "error") if version.get(name))
        by = f" by {version['by']}" if version.get("by") else ""
        yield f"  lsn {version['lsn']}  {version['at']}  epoch {version['epoch']}  {' '.join(said.split())}{by}"
    yield "log:"
    for row in found["around"]:
        mark = ">" if row["lsn"] in own else " "
        yield f"{mark} {row['lsn']:>6}  {row['at']}  {row['key']}  {row['summary']}"
