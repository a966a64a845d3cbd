"""``recall records``: the newest record of every key, in the fixed form of keys and values."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from recall_cli.exits import READS
from recall_cli.look import counted, say_kinds
from recall_cli.newest import newest_records
from recall_cli.options import AgentArgument, Globals, Verbs
from recall_cli.session import viewing
from store.text import json_for_display

app = Verbs()


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
        found = counted(newest_records(view, kind))
        here.out.lines(
            (
                {"key": key, "value": json.loads(value)} if here.out.structured else {"key": key, "value": value}
                for key, value in found
            ),
            lambda row: f"{row['key']:<{width}}   {json_for_display(row['value'])}",
        )
        if kind and not found.count:
            say_kinds(here.out, view, kind)
