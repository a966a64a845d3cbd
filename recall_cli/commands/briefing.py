"""``recall briefing``: the text that an agent's next process starts from."""

from __future__ import annotations

from typing import Annotated

import typer

from recall_cli.exits import READS
from recall_cli.options import AgentArgument, Globals, Verbs
from recall_cli.session import viewing
from store.briefing import as_json, render
from store.briefing_parts import DEFAULT_BUDGET, check_budget
from store.errors import NotFound
from store.text import check_count

app = Verbs()


@app.verb("briefing", exits=READS)
def briefing(
    ctx: typer.Context,
    agent: AgentArgument,
    budget: Annotated[int, typer.Option("--budget", metavar="TOKENS", help="The most tokens.")] = DEFAULT_BUDGET,
    at: Annotated[
        int | None, typer.Option("--at", metavar="LSN", help="As it was after this record of the log.")
    ] = None,
) -> None:
    """Print the text that the agent's next process starts from."""
    here = Globals.of(ctx)
    check_budget(budget)
    if at is not None:
        check_count("--at", at, least=1, most=2**62)
    with viewing(here, agent, at) as view:
        last = view.backend.counters(agent).lsn
        if at is not None and at > last:
            raise NotFound(what="lsn", name=str(at), hint=f"the newest record of {agent} is lsn {last}")
        parts = view.parts(budget)
    rendered = render(parts, budget)
    here.out.document(as_json(parts, rendered), lambda: [rendered.text])
