"""How hosts are told of the server: each one's file and format."""

from __future__ import annotations

import json
from collections.abc import Sequence

from store.value import value


@value
class HostFormat:
    """Where a host looks, and under which name.

    Attributes:
        file: as its documentation names it.
        table: the name that holds the servers.
        typed: whether an entry says that it is ``stdio`` or ``http``.
        token: how a header of its names the variable NAME.
    """

    file: str
    table: str
    typed: bool = False
    token: str = ""


_INPUT = "recall-token"

HOSTS = {
    "claude-code": HostFormat(".mcp.json in the project's directory", "mcpServers", True, "${NAME}"),
    "codex": HostFormat("~/.codex/config.toml", "mcp_servers"),
    "cursor": HostFormat(
        ".cursor/mcp.json in the project's directory, or ~/.cursor/mcp.json", "mcpServers", token="${env:NAME}"
    ),
    "vscode": HostFormat(".vscode/mcp.json in the project's directory", "servers", True, f"${{input:{_INPUT}}}"),
}


def http_configuration(host: str, url: str, variable: str) -> str:
    """What to put into the host's file so that it connects to ``url`` with the token of a variable of its environment.

    VS Code keeps the token itself: it asks for it once.
    """
    its = HOSTS[host]
    if its.file.endswith(".toml"):
        lines = [f"[{its.table}.recall]", f"url = {json.dumps(url)}", f"bearer_token_env_var = {json.dumps(variable)}"]
        return "\n".join(lines)
    entry = {"type": "http"} if its.typed else {}
    bearer = {"Authorization": "Bearer " + its.token.replace("NAME", variable)}
    asked = {"type": "promptString", "id": _INPUT, "description": "Token of recall mcp", "password": True}
    inputs = {"inputs": [asked]} if _INPUT in its.token else {}
    return json.dumps({**inputs, its.table: {"recall": {**entry, "url": url, "headers": bearer}}}, indent=2)


def configuration(host: str, command: str, arguments: Sequence[str]) -> str:
    """What to put into the host's file so that it starts ``command`` with ``arguments``."""
    its = HOSTS[host]
    if its.file.endswith(".toml"):  # a TOML string may be written as a JSON one
        lines = [f"[{its.table}.recall]", f"command = {json.dumps(command)}", f"args = {json.dumps([*arguments])}"]
        return "\n".join(lines)
    entry = {"type": "stdio"} if its.typed else {}
    return json.dumps({its.table: {"recall": {**entry, "command": command, "args": [*arguments]}}}, indent=2)
