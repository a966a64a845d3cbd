"""``recall outputs``: large texts kept whole under a ref."""

from __future__ import annotations

from typing import Annotated

import typer

from recall_cli.exits import WRITES
from recall_cli.options import AgentOption, Globals, Noun
from recall_cli.rows import row
from recall_cli.session import write
from store import checks

app = Noun("Large texts kept whole under a ref.")


@app.verb("put", exits=WRITES)
def put(
    ctx: typer.Context,
    content: Annotated[str, typer.Argument(metavar="CONTENT", help="The text; - or @FILE reads it.")],
    agent: AgentOption,
    ref: Annotated[
        str | None, typer.Option("--ref", metavar="REF", help="The name to fetch it by; made up unless given.")
    ] = None,
    tool: Annotated[str | None, typer.Option("--tool", metavar="TOOL", help="The tool that made it.")] = None,
    summary: Annotated[
        str | None, typer.Option("--summary", metavar="TEXT", help="What it is; its first 200 bytes unless given.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an output of that ref; the log keeps both.")
    ] = False,
) -> None:
    """Keep a text whole, at most 64 MiB, and print its ref."""
    here = Globals.of(ctx)
    content = here.values.read("CONTENT", content)
    summary = None if summary is None else here.values.read("--summary", summary)
    checks.check_output(content, tool, summary, ref)
    kept = write(here, agent, lambda it: it.store_output(content, tool, summary, ref, replace=replace))
    text = f"output {kept.ref} of {agent} is kept (about {kept.tokens:,} tokens)"
    here.out.change(row(kept), text, f"recall outputs get {agent} {kept.ref}", data=kept.ref)
