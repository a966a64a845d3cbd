"""A command module as a test's own: ``python sample.py sample …`` is ``recall sample …`` with it in the table."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from recall_cli.app import COMMANDS, LOOK, Entry, main
from recall_cli.exits import READS
from recall_cli.options import AgentOption, Globals, Noun
from recall_cli.render import Column
from store.errors import LeaseHeld, StoreFull

app = Noun("Try the frame.", default="list")

HOSTILE = "a\x1b[31m\t[bold]b[/bold]\u202e\nc\ud800"
COLUMNS = [
    Column("seq", right=True, keep=True),
    Column("text", style="red"),
    Column("status", keep=True, style=lambda status: "green" if status == "done" else ""),
]


def _rows(count: int) -> Iterator[dict[str, Any]]:
    for seq in range(1, count + 1):
        yield {"seq": seq, "text": f"{HOSTILE} {seq}", "status": "done" if seq % 2 else "failed", "more": [seq, None]}


@app.verb("list", exits=READS)
def list_rows(ctx: typer.Context, count: Annotated[int, typer.Option("--count", help="How many.")] = 2) -> None:
    """List rows."""
    Globals.of(ctx).out.table(COLUMNS, _rows(count), empty="no rows yet")


@app.verb("set")
def set_goal(
    ctx: typer.Context,
    agent: AgentOption,
    goal: Annotated[str, typer.Option("--goal", help="The goal, - or @FILE.")] = "",
    plan: Annotated[str, typer.Option("--plan", help="The plan, - or @FILE.")] = "",
) -> None:
    """Show what was given."""
    here = Globals.of(ctx)
    values = {"goal": here.values.read("goal", goal), "plan": here.values.read("plan", plan)}
    given = {"agent": agent, **values, "directory": str(here.directory)}
    here.out.document(given, lambda: [f"{name}: {value}" for name, value in given.items()])
    here.out.message(f"set {goal!r}", then="recall sample list")


@app.verb("lines")
def print_lines(ctx: typer.Context, count: int = typer.Argument(help="How many.")) -> None:
    """Print lines as they come."""
    Globals.of(ctx).out.lines(_rows(count), lambda row: f"{row['seq']} {row['text']}", live=True)


@app.verb("confirm")
def confirm(ctx: typer.Context, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Ask."""
    out = Globals.of(ctx).out
    out.write("went on\n" if out.confirm("go on?", yes=yes) else "stopped\n")


@app.verb("fail")
def fail(ctx: typer.Context, how: Annotated[str, typer.Argument(help="Which way.")]) -> None:
    """Fail."""
    out = Globals.of(ctx).out
    problems: dict[str, BaseException] = {
        "held": LeaseHeld(agent="a", holder="h\x1b[1m\nx", epoch=3, until="12:00"),
        "full": StoreFull(path="/s"),
        "defect": ZeroDivisionError("a\x1b[31m\nb"),
        "system": PermissionError(13, "Permission denied", "/some\nfile"),
        "answer": typer.Exit(3),
    }
    if how == "wait":
        out.write("waiting\n")
        out.flush()
        time.sleep(60)
    if how == "warn":
        out.warn(StoreFull(path="/s"))
        return
    raise problems[how]


COMMANDS["sample"] = Entry("sample", "Try the frame", LOOK)
sys.modules["recall_cli.commands.sample"] = sys.modules[__name__]

if __name__ == "__main__":
    sys.exit(main())
