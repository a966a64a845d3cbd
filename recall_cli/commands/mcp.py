"""``recall mcp``: the records as tools of the Model Context Protocol."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from recall_cli.exits import Exit
from recall_cli.mcp.entry import PEER_FLAGS, SESSION_TIMEOUT, TOKEN, start
from recall_cli.mcp.hosts import HOSTS, configuration, http_configuration
from recall_cli.options import Choice, Globals, Verbs
from store.errors import InvalidInput
from store.place import store_directory

app = Verbs()

_MOST_TIMEOUT = 604_800
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
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="[HOST:]PORT",
            help="Listen there for many clients, instead of serving one over stdin and stdout; 127.0.0.1 unless "
            "a host is given, any free port if it is 0.",
        ),
    ] = None,
    token_file: Annotated[
        str,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help=f"With --http: the file of the token that clients have to bring; {TOKEN} unless given.",
        ),
    ] = "",
    session_timeout: Annotated[
        float | None,
        typer.Option(
            "--session-timeout",
            metavar="SECONDS",
            help=f"With --http: end a client's session, and give its leases back, after so many seconds without a "
            f"call; {SESSION_TIMEOUT:.0f} unless given.",
        ),
    ] = None,
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
    """Serve agents' records to MCP hosts, over stdin and stdout or over HTTP.

    Without --write it only reads: list_agents, agent_briefing, and what an agent has recorded.
    With it, agents can be resumed and worked as. Leases are renewed while the server runs, and
    given back when its stdin closes or it is told to end; if it is killed, the next process
    resumes at once.

    A host starts it by itself, once its configuration names the command; --print-config
    prints what to put there.

    With --http it is started by hand or by a service manager instead, and serves many clients, each
    with a session of its own. Every request has to bring the token: RECALL_MCP_TOKEN, --token-file,
    or one that is made and said on stderr. It speaks no TLS: put a reverse proxy in front.
    """
    here = Globals.of(ctx)
    if here.json or here.jsonl:
        flag = "--json" if here.json else "--jsonl"
        raise InvalidInput(field=flag, reason="does not apply: the protocol says what is printed")
    for flag, given in (("--token-file", token_file or None), ("--session-timeout", session_timeout)):
        if given is not None and http is None:
            raise InvalidInput(field=flag, reason="needs --http")
    if session_timeout is not None and not 1 <= session_timeout <= _MOST_TIMEOUT:  # NaN compares false
        raise InvalidInput(field="--session-timeout", reason=f"must be from 1 to {_MOST_TIMEOUT:,} seconds")
    if print_config and http is not None:
        _print_http(here, print_config, http)
        return
    if print_config:
        _print(here, print_config, write=write or write_too, agent_tools=agent_tools)
        return
    peer = dict(zip(PEER_FLAGS, (write_too, agent, text, typed), strict=True))
    code = start(
        str(here.directory) if here.dir or here.backend else "",
        here.environment,
        write=write or write_too,
        agent_tools=agent_tools,
        ship=here.ship or None,
        peer_flags=[flag for flag, there in peer.items() if there],
        http=http,
        token_file=token_file,
        session_timeout=SESSION_TIMEOUT if session_timeout is None else session_timeout,
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


def _print_http(here: Globals, host: str, address: str) -> None:
    """A host's configuration to reach a server that is started apart from it."""
    from recall_cli.mcp.http import Address

    where = Address.parse(address)
    if not where.port or where.host in ("0.0.0.0", "::"):
        raise InvalidInput(
            field="--http", reason="names no address that a host could connect to", hint="give its HOST:PORT"
        )
    here.out.text(http_configuration(host, where.url, TOKEN))
    asks = "it asks for the token" if host == "vscode" else f"start it with {TOKEN} in its environment"
    here.out.message(f"put this into {HOSTS[host].file}; {asks}")
