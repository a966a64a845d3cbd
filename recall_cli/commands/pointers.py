"""``recall pointers``: where the pieces of an agent's work live."""

from __future__ import annotations

from typing import Annotated

import typer

from recall_cli.exits import WRITES
from recall_cli.options import AgentOption, Choice, Globals, Noun
from recall_cli.rows import row
from recall_cli.session import write
from store import checks
from store.errors import InvalidInput
from store.records import POINTER_TYPES
from store.text import quoted

app = Noun("Where the pieces of an agent's work live.")


@app.verb("set", exits=WRITES)
def set_pointer(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name; the same name replaces.")],
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
    here.out.change(row(pointer), f"pointer {pointer.name} of {agent} is set", f"recall pointers list {agent}")


@app.verb("rm", exits=WRITES)
def remove(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name.")],
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
