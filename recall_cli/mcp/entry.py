"""Starting the server: from the parser, or straight from plain words.

A host starts the server for each of its sessions, nearly always by the same
few words. For those the parser, a third of the start and of the memory, is not
loaded; whatever else is typed goes to it, and so do help and misspellings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from store.errors import InvalidInput
from store.place import store_directory

TOKEN = "RECALL_MCP_TOKEN"  # the variable of what clients over HTTP have to bring
SESSION_TIMEOUT = 1800.0  # seconds that a client over HTTP may say nothing; a person may think so long
PEER_FLAGS = ("-write", "-agent", "-text", "-typed")
_FLAGS = ("mcp", "--write", "--agent-tools", "--no-agent-tools", *PEER_FLAGS)


def is_plain(words: Sequence[str]) -> bool:
    """Whether a command line is ``[--dir PATH] mcp FLAGS`` and needs no parser."""
    words = _without_dir(words)
    return words[:1] == ["mcp"] and words.count("mcp") == 1 and all(each in _FLAGS for each in words)


def run_plain(words: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """What the parser would have made of a plain command line; the exit code."""
    flags = _without_dir(words)
    surface = [each for each in flags if each.endswith("agent-tools")]
    return start(
        words[1] if words[0] == "--dir" else "",
        environment,
        write="--write" in flags or "-write" in flags,
        agent_tools=surface[-1:] != ["--no-agent-tools"],
        peer_flags=[each for each in flags if each in PEER_FLAGS],
    )


def _without_dir(words: Sequence[str]) -> list[str]:
    return list(words[2:] if len(words) > 2 and words[0] == "--dir" and words[1] else words)


def start(
    directory: str,
    environment: Mapping[str, str],
    *,
    write: bool,
    agent_tools: bool,
    peer_flags: Sequence[str],
    ship: str | None = None,
    http: str | None = None,
    token_file: str = "",
    session_timeout: float = SESSION_TIMEOUT,
) -> int:
    """Serve until the client is done, or over HTTP until told to end; the exit code.

    Args:
        directory: as given by a flag, or "".
        peer_flags: those that were given as polign-recall's client spells them. A program of its users names its
            directory by RECALL_BACKEND_URL and means just that one, whatever RECALL_DIR says.
        http: the address to listen on, None for stdin and stdout.
        token_file: that holds what clients have to bring, "" for RECALL_MCP_TOKEN.
        session_timeout: seconds without a call after which a client's session is ended.

    Raises:
        InvalidInput: -agent without -write, a backend that there is none of, a wrong address or token.
        CannotListen: the address cannot be had.
    """
    from recall_cli.mcp.protocol import Protocol
    from recall_cli.mcp.serve import serve
    from recall_cli.mcp.session import Session

    if "-agent" in peer_flags and not write:
        raise InvalidInput(field="-agent", reason="needs -write")
    if peer_flags and environment.get("RECALL_BACKEND"):
        environment = {name: value for name, value in environment.items() if name != "RECALL_DIR"}
    place = Path(store_directory(directory, environment))

    def protocol() -> Protocol:
        return Protocol(Session(place, write=write, ship=ship), agent_tools=agent_tools)

    if http is None:
        return serve(protocol())
    from recall_cli.mcp import http as over_http

    token = over_http.given_token(token_file, environment)
    return over_http.serve(protocol, over_http.Address.parse(http), token, session_timeout)
