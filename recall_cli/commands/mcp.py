"""``recall mcp``: the records as tools of the Model Context Protocol."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from recall_cli.exits import Exit
from recall_cli.mcp.entry import PEER_FLAGS, start
from recall_cli.mcp.hosts import HOSTS, configuration
from recall_cli.options import Choice, Globals, Verbs
from store.errors import InvalidInput
from store.place import store_directory

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
    print_config: Annotated[
        str | None,
        typer.Option(
            "--print-config",
            click_type=Choice(tuple(HOSTS)),
            help="Print what tells a host of this server, with the other options given here, and end.",
        ),
    ] = None,
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

    A host starts it by itself, once its configuration names the command; --print-config
    prints what to put there.
    """
    here = Globals.of(ctx)
    if here.json or here.jsonl:
        flag = "--json" if here.json else "--jsonl"
        raise InvalidInput(field=flag, reason="does not apply: the protocol says what is printed")
    if print_config:
        _print(here, print_config, write=write or write_too, agent_tools=agent_tools)
        return
    given = dict(zip(PEER_FLAGS, (write_too, agent, text, typed), strict=True))
    code = start(
        str(here.directory) if here.dir or here.backend else "",
        here.environment,
        write=write or write_too,
        agent_tools=agent_tools,
        ship=here.ship or None,
        peer_flags=[flag for flag, there in given.items() if there],
    )
    if code:
        raise typer.Exit(code)


def _print(here: Globals, host: str, *, write: bool, agent_tools: bool) -> None:
    """A host's configuration on stdout, and on stderr where it belongs.

    The paths are whole ones, and what this shell's variables say is written out: a host has an environment and a
    directory of its own.
    """
    command = os.path.abspath(sys.argv[0]) if os.path.basename(sys.argv[0]) == "recall" else "recall"
    directory = os.path.abspath(here.directory)
    place = ["--dir", directory] if directory != store_directory(environ={}) else []
    mode = here.ship or here.environment.get("RECALL_SHIP")
    ship = ["--ship", mode] if mode else []
    flags = [*(["--write"] if write else []), *([] if agent_tools else ["--no-agent-tools"])]
    here.out.text(configuration(host, command, [*place, "mcp", *flags, *ship]))
    here.out.message(f"put this into {HOSTS[host].file}")
