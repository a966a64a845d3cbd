"""The official SDK's client against our server: ``sdk.py MODE [URL]``. Prints what it saw."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import anyio
import httpx2
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError


async def main(mode: str, url: str = "") -> dict[str, Any]:
    if url:
        token = {"Authorization": f"Bearer {os.environ['RECALL_MCP_TOKEN']}"}
        async with httpx2.AsyncClient(headers=token, timeout=60) as http:
            return await talk(Client(streamable_http_client(url, http_client=http), mode=mode), mode)
    environment = {name: value for name, value in os.environ.items() if name.startswith("RECALL_")}
    server = StdioServerParameters(command=os.environ["RECALL"], args=["mcp", "--write"], env=environment)
    return await talk(Client(stdio_client(server), mode=mode), mode)


async def talk(connecting: Client, mode: str) -> dict[str, Any]:
    async with connecting as client:
        listed = await client.list_tools()

        async def call(tool: str, **arguments: Any) -> Any:
            result = await client.call_tool(tool, arguments)
            return result.is_error, result.content[0].text

        seen: dict[str, Any] = {
            "version": client.protocol_version,
            "server": client.server_info.name if client.server_info else "recall",
            "instructions": client.instructions,
            "tools": [each.name for each in listed.tools],
            "resumed": json.loads((await call("agent_resume", agent_id="a"))[1]),
            "turn": json.loads((await call("record_turn", agent_id="a", role="user", content="hi"))[1]),
            "agents": json.loads((await call("list_agents"))[1]),
            "refused": await call("record_turn", agent_id="a", role="user"),
        }
        try:
            await call("no_such_tool")
        except MCPError as problem:
            seen["unknown"] = problem.error.code
        if mode == "legacy":
            await client.send_ping()
        seen["resources"] = [str(each.uri) for each in (await client.list_resources()).resources]
        seen["templates"] = len((await client.list_resource_templates()).resource_templates)
        seen["briefing"] = (await client.read_resource(seen["resources"][0])).contents[0].text
        seen["prompts"] = [each.name for each in (await client.list_prompts()).prompts]
        seen["prompt"] = (await client.get_prompt("resume", {"agent_id": "a"})).messages[0].content.text
        return seen


print(json.dumps(anyio.run(main, *sys.argv[1:])))
