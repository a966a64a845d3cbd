"""``recall records``: the newest record of every key, in the fixed form of keys and values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from recall_cli.exits import READS
from recall_cli.look import counted, say_kinds
from recall_cli.options import AgentArgument, Globals, Verbs
from recall_cli.session import viewing
from store.errors import BadRecord
from store.records import ACTION, LEASE, LIFECYCLE, OUTPUT, POINTER, RUN, STEP, TOOL, TURN, WORKING_STATE, Record
from store.text import json_for_display
from store.views import View

app = Verbs()

_ORDER = (WORKING_STATE, TURN, POINTER, OUTPUT, ACTION, STEP, TOOL, RUN, LIFECYCLE)


@app.verb("records", exits=READS)
def records(
    ctx: typer.Context,
    agent: AgentArgument,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Only this kind: turn, action, working_state, lease, ...")
    ] = "",
) -> None:
    """Print the newest record of every key, as key and value.

    ws:head is the newest version of the working state. Pointers that were
    removed and, unless --kind lease asks for them, leases are left out.
    """
    here = Globals.of(ctx)
    width = len(f"{agent}:ws:head")
    with viewing(here, agent) as view:
        found = counted(_records(view, kind))
        here.out.lines(
            (
                {"key": key, "value": json.loads(value)} if here.out.structured else {"key": key, "value": value}
                for key, value in found
            ),
            lambda row: f"{row['key']:<{width}}   {json_for_display(row['value'])}",
        )
        if kind and not found.count:
            say_kinds(here.out, view, kind)


def _records(view: View, kind: str) -> Iterator[tuple[str, str]]:
    if kind in ("", WORKING_STATE):
        for newest in view.backend.tail(view.agent, WORKING_STATE, limit=1):
            yield f"{view.agent}:ws:head", newest.wrapper("working_state_head")
    for each in (kind,) if kind else _kinds(view):
        for record in view.newest_of(each):
            if each != POINTER or not _removed(record):
                yield f"{view.agent}:{record.key}", record.wrapper()


def _kinds(view: View) -> Iterator[str]:
    """The kinds in their order; those of a newer version, which are not known here, at the end."""
    yield from _ORDER
    yield from (kind for kind in view.kinds() if kind not in (*_ORDER, LEASE))


def _removed(record: Record) -> bool:
    try:
        fields: dict[str, Any] = record.fields()
    except BadRecord:
        return False
    return bool(fields.get("removed"))
