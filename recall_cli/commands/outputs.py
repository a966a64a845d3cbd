"""``recall outputs``: large texts, kept whole under a ref."""

from __future__ import annotations

import os
from itertools import islice
from typing import Annotated

import typer

from recall_cli.exits import READS, WRITES
from recall_cli.look import Limit, check_limit, time_column
from recall_cli.options import AgentArgument, AgentOption, Globals, Noun
from recall_cli.render import Column
from recall_cli.session import viewing, write
from store import checks
from store.errors import InvalidInput
from store.text import quoted
from store.values import plain

app = Noun("Large texts kept whole under a ref.", default="list")


@app.verb("list", exits=READS)
def list_outputs(
    ctx: typer.Context,
    agent: AgentArgument,
    tool: Annotated[str, typer.Option("--tool", metavar="TOOL", help="Only of this tool.")] = "",
    text: Annotated[
        str, typer.Option("--text", metavar="TEXT", help="Only those with TEXT in ref, tool or summary, in any case.")
    ] = "",
    limit: Limit = None,
) -> None:
    """List the stored outputs without their contents, newest first."""
    here = Globals.of(ctx)
    most = check_limit(limit)
    columns = [
        Column("ref", keep=True),
        Column("tool"),
        Column("tokens", right=True, keep=True),
        time_column(here.out, "at"),
        Column("summary"),
    ]
    with viewing(here, agent) as view:
        outputs = (output for output, _ in view.every_output())
        shown = (
            each
            for each in outputs
            if tool in ("", each.tool)
            and any(text.casefold() in field.casefold() for field in (each.ref, each.tool, each.summary))
        )
        rows = ({"agent": agent, **plain(each)} for each in islice(shown, most))
        here.out.table(columns, rows, empty="no outputs")


@app.verb("get", exits=READS, agent_first=True)
def get(
    ctx: typer.Context,
    agent: AgentOption,
    ref: Annotated[str, typer.Argument(metavar="REF", help="The output's ref.")],
    file: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Write it to FILE, byte for byte.")] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="On a terminal too, as it is: it may act on the terminal.")
    ] = False,
) -> None:
    """Print one output, byte for byte; on a terminal what would act on it is shown as text."""
    here = Globals.of(ctx)
    with viewing(here, agent) as view:
        output = view.output(ref)
    if file:
        size = _save(file, output.content, str(here.directory))
        if here.out.structured:
            here.out.document({"agent": agent, "ref": output.ref, "file": file, "bytes": size}, lambda: ())
        here.out.message(f"wrote {size:,} bytes to {file}")
    elif here.out.structured:
        here.out.document({"agent": agent, **plain(output)}, lambda: ())
    elif here.out.terminal and not raw:
        here.out.text(output.content)
    else:
        here.out.write(output.content)


def _save(file: str, content: str, directory: str) -> int:
    if os.path.realpath(os.path.dirname(os.path.abspath(file))) == os.path.realpath(directory):
        raise InvalidInput(field="--output", reason=f"{quoted(file)} is inside the store's directory")
    with open(file, "wb") as target:
        return target.write(content.encode())


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
    here.out.change(plain(kept), text, f"recall outputs get -a {agent} {kept.ref}", data=kept.ref)
