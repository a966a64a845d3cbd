"""``recall help``: the help of any command, and the table of exit codes."""

from __future__ import annotations

from typing import Annotated

import typer
from typer._click.core import Command as ClickCommand
from typer._click.core import Context as ClickContext

from recall_cli.exits import Exit
from recall_cli.options import Globals, Group, UnknownCommand, Verbs
from recall_cli.render import Column
from store.text import quoted

app = Verbs()


@app.verb("help")
def show_help(
    ctx: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]...", help="A command, or exit-codes.")] = None,
) -> None:
    """Explain a command, or the exit codes.

    recall help state show is the same as recall state show --help;
    recall help exit-codes lists what each exit code means and what to do.
    """
    out = Globals.of(ctx).out
    if words == ["exit-codes"]:
        rows = ({"code": code.value, "meaning": code.meaning, "todo": code.todo} for code in Exit)
        out.table([Column("code", right=True, keep=True), Column("meaning"), Column("todo", title="WHAT HELPS")], rows)
        return
    out.write(_named(ctx.find_root(), words or []).get_help() + "\n")


def _named(at: ClickContext, words: list[str]) -> ClickContext:
    """The context of the command that ``words`` name below the root."""
    for word in words:
        found: ClickCommand | None = at.command.get_command(at, word) if isinstance(at.command, Group) else None
        if found is None:
            name = quoted(" ".join(words))
            raise UnknownCommand(name=name, hint=f"see: {at.command_path} --help, or: recall help exit-codes")
        at = ClickContext(found, parent=at, info_name=word)
    return at
