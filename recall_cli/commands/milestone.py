"""``recall milestone``: a durable point worth keeping."""

from __future__ import annotations

from typing import Annotated

import typer

from recall_cli.exits import WRITES
from recall_cli.options import AgentOption, Globals, Verbs
from recall_cli.session import write
from store import checks
from store.text import quoted
from store.values import plain

app = Verbs()


@app.verb("milestone", exits=WRITES)
def milestone(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What was reached; - or @FILE reads it.")],
    agent: AgentOption,
    progress: Annotated[
        str | None, typer.Option("--progress", metavar="TEXT", help="The progress so far; - or @FILE reads it.")
    ] = None,
) -> None:
    """Mark a durable point of an agent's work.

    It is a new version of the working state, with its last milestone set.
    """
    here = Globals.of(ctx)
    name = here.values.read("NAME", name)
    progress = None if progress is None else here.values.read("--progress", progress)
    checks.check_milestone(name, progress)
    state = write(here, agent, lambda it: it.milestone(name, progress))
    text = f"milestone {quoted(name)} of {agent} is set (working state {state.version})"
    here.out.change(plain(state), text, f"recall briefing {agent}")
