"""A host that speaks MCP, with ``recall mcp`` as its server: ``host.py ordinary|durable|resolved``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

from bench.kills.programs.world import CLASSES, ORDER, WAITING, World, result_of

AGENT = os.environ["RECALL_AGENT"]


class Refused(Exception):
    """A tool answered with an error; the message is what it said."""


class Server:
    """``recall mcp`` as a child, asked one thing after another."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [os.environ["RECALL"], "mcp", "--write"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        client = {"name": "host", "version": "1"}
        self._ask("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})

    def call(self, tool: str, /, **arguments: Any) -> Any:
        result = self._ask("tools/call", {"name": tool, "arguments": {"agent_id": AGENT, **arguments}})
        text = result["content"][0]["text"]
        if result["isError"]:
            raise Refused(text)
        return json.loads(text)

    def close(self) -> None:
        """Close its stdin, and wait until it has given its lease back."""
        self._process.communicate()

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        assert self._process.stdin and self._process.stdout
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the server has died")  # and so the host, to be started again
        return json.loads(line)["result"]


def resumed(server: Server) -> Any:
    """The context; while another process still holds the lease, as of a machine that is gone, it is asked again."""
    for _ in range(300):
        try:
            return server.call("agent_resume", lease_ttl_seconds=int(os.environ["TTL"]))
        except Refused as problem:
            if "lease is held" not in str(problem):
                raise
        time.sleep(0.2)
    raise SystemExit("the lease was not to be had in a minute")


def ordinary(server: Server, world: World) -> int:
    """Tools that nobody records before they run: what is done is what the turns tell."""
    told = {turn["name"] for turn in server.call("recent_turns", limit=200) if turn["role"] == "tool"}
    for tool in ORDER:
        if tool not in told:
            result = world.call(tool)
            server.call("record_turn", role="tool", content=result, name=tool)
            world.reach(tool, "returned")
    return 0


def durable(server: Server, world: World, pending: list[dict[str, Any]], *, resolver: bool) -> int:
    """Each call is an action: begun before it is made and ended after."""
    for action in pending:
        if action["class"] != "external":
            continue
        sent = world.asked(action["key"]) if resolver else None
        if sent is None:
            return WAITING
        if sent:
            end = {"status": "done", "result": result_of("email"), "resolution": "outbox"}
            server.call("end_action", seq=action["seq"], **end)
        else:
            server.call("end_action", seq=action["seq"], status="abandoned", resolution="not in the outbox")
    for tool in ORDER:
        kind = {"class": CLASSES[tool]}
        action = server.call("begin_action", tool=tool, args='{"customer":"acme"}', step=tool, **kind)
        if action["status"] == "started":
            result = world.call(tool, action["key"])
            server.call("end_action", seq=action["seq"], status="done", result=result)
        elif action["result"] != result_of(tool):
            raise SystemExit(f"{tool} is said to have returned {action['result']!r}")
        world.reach(tool, "returned")
    return 0


def main() -> int:
    """One life of the host."""
    (setup,) = sys.argv[1:]
    world = World()
    world.ready()
    server = Server()
    context = resumed(server)
    if setup == "ordinary":
        code = ordinary(server, world)
    else:
        code = durable(server, world, context["pending_actions"] or [], resolver=setup == "resolved")
    server.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
