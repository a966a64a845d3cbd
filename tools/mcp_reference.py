"""The MCP tools as Markdown, from their table: the part of docs/mcp.md below its mark."""

from __future__ import annotations

from recall_cli.mcp.tool import Param, Tool
from recall_cli.mcp.tools import TOOLS

MARK = "<!-- From here on: written by `make generate`, from the code. -->"


def reference() -> str:
    """The table of tools, then each with its arguments."""
    rows = [f"| [`{each.name}`](#{each.name}) | {each.title} | {_hints(each)} |" for each in TOOLS]
    parts = [MARK, "## Tools", "\n".join(["| tool | | |", "| --- | --- | --- |", *rows])]
    for each in TOOLS:
        parts += [f"### {each.name}", each.about]
        if each.params:
            lines = [f"| `{one.name}` | {_kind(one)} | {_escape(one.about)} |" for one in each.params]
            parts.append("\n".join(["| argument | | |", "| --- | --- | --- |", *lines]))
    return "\n\n".join(parts) + "\n"


def _hints(tool: Tool) -> str:
    if not tool.writes:
        return "reads"
    said = ["writes"]
    if tool.again:
        said.append("again changes nothing more")
    if tool.destroys:
        said.append("a host may ask first")
    return ", ".join(said)


def _kind(param: Param) -> str:
    kind = "list of strings" if param.kinds[0] == "array" else param.kinds[0]
    if param.choices:
        kind = ", ".join(f"`{each}`" for each in param.choices)
    return kind + ("" if not param.required else ", required")


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
