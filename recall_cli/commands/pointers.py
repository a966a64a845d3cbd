"""``recall pointers``: where the pieces of an agent's work live."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from recall_cli.exits import READS
from recall_cli.look import Limit, check_limit, time_column
from recall_cli.options import AgentArgument, Globals, Noun
from recall_cli.render import Column
from recall_cli.session import viewing
from store.records import POINTER, Pointer, plain

app = Noun("Where the pieces of an agent's work live.", default="list")


@app.verb("list", exits=READS)
def list_pointers(
    ctx: typer.Context,
    agent: AgentArgument,
    type: Annotated[str, typer.Option("--type", metavar="TYPE", help="Only of this type, such as git_ref.")] = "",
    limit: Limit = None,
) -> None:
    """List the pointers in force, by name."""
    here = Globals.of(ctx)
    most = check_limit(limit)
    columns = [
        Column("name", keep=True),
        Column("type", keep=True),
        Column("fields"),
        Column("note"),
        time_column(here.out, "at"),
    ]
    with viewing(here, agent) as view:
        pointers = view.each(view.newest_of(POINTER), Pointer.read)
        shown = (each for each in pointers if not each.removed and type in ("", each.type))
        rows = ({"agent": agent, **plain(each, without=("removed",))} for each in islice(shown, most))
        here.out.table(columns, rows, empty="no pointers")
