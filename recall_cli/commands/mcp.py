"""``recall mcp``: the records as tools of the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

import typer

from recall_cli.exits import Exit
from recall_cli.mcp.entry import PEER_FLAGS, start
from recall_cli.options import Globals, Verbs
from store.errors import InvalidInput

app = Verbs()

_PEER = "As polign-recall's client spells it."


@app.verb("mcp", exits=(Exit.UNAVAILABLE,))
def run(
    ctx: typer.Context,
    write: Annotated[bool, typer.Option("--write", help="Offer the tools that write, too.")] = False,
    agent_tools: Annotated[
        bool,
        typer.Option(
            "--agent-tools/--no-agent-tools",
            help="Offer the tools that an agent works with, or only those of whoever looks after agents.",
        ),
    ] = True,
    write_too: Annotated[bool, typer.Option("-write", hidden=True, help=_PEER)] = False,
    agent: Annotated[bool, typer.Option("-agent", hidden=True, help=_PEER)] = False,
    text: Annotated[bool, typer.Option("-text", hidden=True, help=_PEER)] = False,
    typed: Annotated[bool, typer.Option("-typed", hidden=True, help=_PEER)] = False,
) -> None:
    """Serve agents' records to an MCP host, over stdin and stdout.

    Without --write it only reads: list_agents, agent_briefing, and what an agent has recorded.
    With it, agents can be resumed and worked as. Leases are renewed while the server runs, and
    given back when its stdin closes or it is told to end; if it is killed, the next process
    resumes at once.

    A host runs it by itself. Name the command in the host's configuration, for example
    recall --dir PATH mcp --write.
    """
    here = Globals.of(ctx)
    if here.json or here.jsonl:
        flag = "--json" if here.json else "--jsonl"
        raise InvalidInput(field=flag, reason="does not apply: the protocol says what is printed")
    given = dict(zip(PEER_FLAGS, (write_too, agent, text, typed), strict=True))
    code = start(
        str(here.directory) if here.dir or here.backend else "",
        here.environment,
        write=write or write_too,
        agent_tools=agent_tools,
        peer_flags=[flag for flag, there in given.items() if there],
    )
    if code:
        raise typer.Exit(code)
