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
        typed: whether an entry says that it is ``stdio``.
    """

    file: str
    table: str
    typed: bool = False


HOSTS = {
    "claude-code": HostFormat(".mcp.json in the project's directory", "mcpServers", typed=True),
    "codex": HostFormat("~/.codex/config.toml", "mcp_servers"),
    "cursor": HostFormat(".cursor/mcp.json in the project's directory, or ~/.cursor/mcp.json", "mcpServers"),
    "vscode": HostFormat(".vscode/mcp.json in the project's directory", "servers", typed=True),
}


def configuration(host: str, command: str, arguments: Sequence[str]) -> str:
    """What to put into the host's file so that it starts ``command`` with ``arguments``."""
    its = HOSTS[host]
    if its.file.endswith(".toml"):  # a TOML string may be written as a JSON one
        lines = [f"[{its.table}.recall]", f"command = {json.dumps(command)}", f"args = {json.dumps([*arguments])}"]
        return "\n".join(lines)
    entry = {"type": "stdio"} if its.typed else {}
    return json.dumps({its.table: {"recall": {**entry, "command": command, "args": [*arguments]}}}, indent=2)
