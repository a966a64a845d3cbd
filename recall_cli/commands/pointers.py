"""``recall pointers``: where the pieces of an agent's work live."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from recall_cli.exits import READS, WRITES
from recall_cli.look import Limit, check_limit, time_column
from recall_cli.options import AgentArgument, AgentOption, Choice, Globals, Noun
from recall_cli.render import Column
from recall_cli.session import viewing, write
from store import checks
from store.errors import InvalidInput
from store.records import POINTER
from store.text import quoted
from store.values import POINTER_TYPES, Pointer, plain

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


@app.verb("set", exits=WRITES)
def set_pointer(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="POINTER", help="Its name; the same name replaces.")],
    type_: Annotated[
        str, typer.Argument(metavar="TYPE", click_type=Choice(list(POINTER_TYPES)), help=" ".join(POINTER_TYPES) + ".")
    ],
    fields: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="The type's fields, and any others.")],
    agent: AgentOption,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="A note; - or @FILE reads it.")] = None,
) -> None:
    """Say where a piece of work lives.

    git_ref takes repo, branch, sha; object takes uri; env takes image,
    lockfile_hash, setup; external takes kind, id, url; process takes command,
    port. Further fields are kept as they are.
    """
    here = Globals.of(ctx)
    note = None if note is None else here.values.read("--note", note)
    values = _fields(fields)
    checks.check_pointer(name, type_, values, note)
    pointer = write(here, agent, lambda it: it.set_pointer(name, type_, values, note))
    here.out.change(plain(pointer), f"pointer {pointer.name} of {agent} is set", f"recall pointers list {agent}")


@app.verb("rm", exits=WRITES)
def remove(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="POINTER", help="Its name.")],
    agent: AgentOption,
) -> None:
    """Take a pointer out of force; the log keeps it."""
    here = Globals.of(ctx)
    checks.check_name("NAME", name)
    write(here, agent, lambda it: it.remove_pointer(name))
    value = {"name": name, "removed": True}
    here.out.change(value, f"pointer {name} of {agent} is removed", f"recall pointers list {agent}")


def _fields(given: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InvalidInput(field=quoted(each), reason="is not KEY=VALUE", hint="for example: branch=main")
        if name in values:
            raise InvalidInput(field=quoted(name), reason="is given twice")
        values[name] = value
    return values
