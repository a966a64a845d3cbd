"""``recall mcp`` beside ``recall mcp`` of polign-recall: each tool on an empty store and at 10,000 turns.

Both are driven by the same client, this one, over the same kind of pipe, in
turn. Where the peer cannot be installed only ours is measured, and that is said.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measure import compiled, end_all, family, megabytes, recall_command, scratch
from tests.interop.clients import NotInstalled, clients

TURNS = 10_000
CALLS = 15  # of each tool; the median counts
TEXT = "12 call sites found; migrating api/checkout.py first. " * 4

Steps = list[tuple[str, Callable[[int], dict[str, Any]]]]
STEPS: Steps = [
    ("update_working_state", lambda n: {"progress": f"{n} of 12 files migrated"}),
    ("agent_milestone", lambda n: {"name": f"file {n}"}),
    ("working_state_history", lambda n: {"limit": 5}),
    ("record_turn", lambda n: {"role": "assistant", "content": f"{n} {TEXT}"}),
    ("recent_turns", lambda n: {"limit": 20}),
    ("store_output", lambda n: {"content": TEXT * 20, "ref": f"log-{n}"}),
    ("fetch_output", lambda n: {"ref": f"log-{n}"}),
    ("set_pointer", lambda n: {"name": f"p{n}", "type": "object", "fields": {"uri": "s3://bucket/key"}}),
    ("list_pointers", lambda n: {}),
    ("remove_pointer", lambda n: {"name": f"p{n}"}),
    ("begin_action", lambda n: {"tool": "send", "class": "external", "args": '{"to": "x"}'}),
    ("pending_actions", lambda n: {}),
    ("end_action", lambda n: {"seq": n + 1, "status": "done", "result": "sent"}),
    ("agent_context", lambda n: {}),
    ("agent_release", lambda n: {}),
    ("agent_resume", lambda n: {}),
    ("agent_acquire", lambda n: {}),
]


class Server:
    """One server on a store of its own, and what it takes to answer."""

    def __init__(self, name: str, command: str, directory: Path) -> None:
        self.name, self.command, self.directory = name, command, directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> tuple[float, float]:
        """Milliseconds until it has initialized, and until it has resumed."""
        environment = {"RECALL_BACKEND": "local", "RECALL_BACKEND_URL": str(self.directory)}
        begun = time.perf_counter()
        self._process = subprocess.Popen(
            [self.command, "mcp", "-write", "-agent", "-text"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )
        client = {"name": "bench", "version": "1"}
        self._request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        ready = time.perf_counter()
        self.call("agent_resume")
        return (ready - begun) * 1e3, (time.perf_counter() - begun) * 1e3

    def call(self, tool: str, /, **arguments: Any) -> Any:
        result = self._request("tools/call", {"name": tool, "arguments": {"agent_id": "a", **arguments}})
        text = result["content"][0]["text"]
        if result.get("isError"):
            raise RuntimeError(f"{self.name}: {tool}: {text}")
        return json.loads(text)

    def _request(self, method: str, params: dict[str, Any]) -> Any:
        assert self._process is not None and self._process.stdin is not None and self._process.stdout is not None
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())["result"]

    def taken(self, tool: str, /, **arguments: Any) -> float:
        """Milliseconds of one call."""
        begun = time.perf_counter()
        self.call(tool, **arguments)
        return (time.perf_counter() - begun) * 1e3

    def stop(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(30)
            self._process = None

    def processes(self) -> list[int]:
        return family(self._process.pid if self._process is not None else None, self.directory)

    def end(self) -> None:
        """Stop it and whatever it left running."""
        self.stop()
        end_all(self.processes)


@contextmanager
def servers() -> Iterator[list[Server]]:
    with scratch() as directory:
        made = [Server("ours", recall_command(), directory / "ours")]
        try:
            made.append(Server("peer", str(clients().with_name("recall")), directory / "peer"))
        except NotInstalled as problem:
            print(f"ours alone: {problem}")
        try:
            yield made
        finally:
            for each in made:
                each.end()


def row(label: str, figures: list[float], unit: str, goal: float | None = None) -> None:
    shown = "".join(f"{figure:>11.2f}" for figure in figures)
    ratio = f"{figures[0] / figures[1]:>9.3f}" if len(figures) > 1 else ""
    print(f"{label:<34}{shown} {unit}{ratio}" + (f"  (goal: at most {goal:g})" if goal and ratio else ""), flush=True)


def tools(made: list[Server], first: int, goal: float) -> None:
    """Each tool, called in turn on each server."""
    taken: dict[str, list[list[float]]] = {tool: [[] for _ in made] for tool, _ in STEPS}
    for number in range(first, first + CALLS):
        for tool, arguments in STEPS:
            for at, server in enumerate(made):
                taken[tool][at].append(server.taken(tool, **arguments(number)))
    for tool, figures in taken.items():
        row(tool, [statistics.median(each) for each in figures], "ms", goal)


def main() -> None:
    compiled()
    with servers() as made:
        names = "".join(f"{each.name:>11}" for each in made)
        print(f"{'':<34}{names}{'ratio':>12}" if len(made) > 1 else f"{'':<34}{names}")

        starts = [each.start() for each in made]
        row("first start, to initialize", [each[0] for each in starts], "ms")
        row("first start, to resume", [each[1] for each in starts], "ms")
        print("-- on an empty store")
        tools(made, 0, 0.5)
        row("memory of all processes", [megabytes(each.processes()) for each in made], "MB")

        print(f"-- at {TURNS:,} turns")
        for server in made:
            for number in range(TURNS):
                server.call("record_turn", role="assistant", content=f"{number} {TEXT}")
        tools(made, CALLS, 0.1)
        row("memory of all processes", [megabytes(each.processes()) for each in made], "MB")
        for server in made:
            server.stop()
        starts = [each.start() for each in made]
        row("next start, to initialize", [each[0] for each in starts], "ms")
        row("next start, to resume", [each[1] for each in starts], "ms")


if __name__ == "__main__":
    main()
