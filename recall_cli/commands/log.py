"""``recall log``: every record of an agent, as it was written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from recall_cli.exits import READS
from recall_cli.look import Limit, check_limit, counted, log_columns, log_row, moment, say_kinds, say_pruned
from recall_cli.options import AgentArgument, Globals, Verbs
from recall_cli.session import reading, require
from recall_cli.waiting import pause
from store.backend import Backend
from store.errors import InvalidInput, Unavailable
from store.records import Record
from store.text import check_agent
from store.views import View

app = Verbs()

_NEWEST = 50  # records that are shown when nobody says how many
_WINDOW = 500
_PAUSE = 0.3  # seconds between two looks at a store that is followed


@app.verb("log", exits=READS)
def log(
    ctx: typer.Context,
    agent: AgentArgument,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Only this kind: turn, action, working_state, lease, ...")
    ] = "",
    since: Annotated[
        str, typer.Option("--since", metavar="LSN|TIME", help="From this record, this time, or so long ago: 2h.")
    ] = "",
    limit: Limit = None,
    everything: Annotated[bool, typer.Option("--all", help="From the first record on.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new records as they come.")] = False,
) -> None:
    """Print the log of an agent: the newest 50 records unless told otherwise.

    --jsonl gives each record's exact line and its hash.
    """
    here = Globals.of(ctx)
    check_agent(agent)
    if follow and here.json:
        raise InvalidInput(field="--follow", reason="cannot be combined with --json", hint="use --jsonl")
    if everything and limit is not None:
        raise InvalidInput(field="--all", reason="cannot be combined with --limit", hint="give one of the two")
    most = check_limit(limit) or (None if everything or since else _NEWEST)
    with reading(here) as backend:
        require(backend, agent)
        first = _first(backend, agent, since) if since else 1
        last = backend.counters(agent).lsn
        if most is not None:
            first = _start(backend, agent, kind, first, last, most)
        shown = counted(_rows(backend, agent, kind, first, last))
        here.out.table(log_columns(here.out), shown, live=follow)
        base = backend.path(agent)[0][1]
        if first <= base:
            say_pruned(here.out, View(backend, agent))
        if kind and not shown.count:
            say_kinds(here.out, View(backend, agent), kind, " there" if since else "")
    if follow:
        here.out.table(log_columns(here.out), _follow(here, agent, kind, last), live=True)


def _rows(backend: Backend, agent: str, kind: str, first: int, last: int) -> Iterator[dict[str, Any]]:
    records = backend.log(agent, after=first - 1, limit=max(0, last - first + 1))
    return (log_row(record) for record in records if kind in ("", record.kind))


def _first(backend: Backend, agent: str, since: str) -> int:
    """The lsn that ``--since`` means: its own number, or the first one written at or after a time."""
    if since.isascii() and since.isdigit():
        return max(1, int(since[:19]))
    wanted = moment("--since", since, backend.clock.now())
    low, high = 1, backend.counters(agent).lsn + 1
    while low < high:
        middle = (low + high) // 2
        record = _at(backend, agent, middle)
        if record is not None and record.at < wanted:
            low = middle + 1
        else:
            high = middle
    return low


def _at(backend: Backend, agent: str, lsn: int) -> Record | None:
    return next(backend.log(agent, after=lsn - 1, limit=1), None)


def _start(backend: Backend, agent: str, kind: str, first: int, last: int, most: int) -> int:
    """Where the newest ``most`` records of a kind begin; reads backwards, a window at a time."""
    if not kind:
        return max(first, last - most + 1)
    top, missing = last, most
    while top >= first:
        bottom = max(first, top - _WINDOW + 1)
        window = backend.log(agent, after=bottom - 1, limit=top - bottom + 1)
        fitting = [record.lsn for record in window if record.kind == kind]
        if len(fitting) >= missing:
            return fitting[-missing]
        missing -= len(fitting)
        top = bottom - 1
    return first


def _follow(here: Globals, agent: str, kind: str, last: int) -> Iterator[dict[str, Any]]:
    """New records as they come, until the reader goes.

    The store is opened anew for each look: nothing is held between two, and
    neither a store that is busy nor one that is put in its place ends it.
    """
    branch, told = 0, False
    while True:
        try:
            with reading(here) as backend:
                lease = backend.lease(agent)
                if lease is not None and branch not in (0, lease.branch):
                    start = next(each.start for each in backend.branches(agent) if each.number == lease.branch)
                    if start < last:
                        here.out.message(f"the records after lsn {start} were set aside; going on from there")
                        last = start
                branch = lease.branch if lease is not None else branch
                for record in backend.log(agent, after=last):
                    last = record.lsn
                    if kind in ("", record.kind):
                        yield log_row(record)
            told = False
        except Unavailable as problem:
            if not told:
                here.out.warn(problem)
            told = True
        pause(_PAUSE)
