"""The clients that others have published run on our server without a change."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COMMAND, Run
from tests.interop.conftest import Drive, told
from tests.mcp.web import TOKEN, Server


@pytest.mark.parametrize("way", ["command", "RECALL_BIN"])
def test_polign_recall_lives_an_agents_whole_life(drive: Drive, tmp_path: Path, way: str) -> None:
    """Everything that its client can do with an agent, and every code of error, over a command and by RECALL_BIN.

    In the second way the program names its own directory, and means that one,
    whatever else the environment says.
    """
    place = "command" if way == "command" else str(tmp_path / "theirs")
    more = {} if way == "command" else {"RECALL_BIN": str(COMMAND), "BREAK": f"--dir '{place}'"}
    seen = drive("life.py", place, **more)
    assert seen["server"] == "1.0.0" and seen["fresh"] == [True, 1, True]
    state = seen["state"]
    assert (state["goal"], state["plan"], state["progress"], state["step"]) == ("g", [], "half", 1)
    assert (seen["milestone"]["last_milestone"], seen["milestone"]["version"]) == ("m", 3)
    assert seen["history"] == [3, 2] and seen["turns"] == [[1, "m1"], [2, ""]]
    assert (seen["turn"]["seq"], seen["turn"]["content"], seen["turn"]["brief"]) == (1, "hello", "b")
    assert seen["large"]["output_ref"] == "out-2-1"
    assert seen["output"]["ref"] == "out-3-1" and seen["fetched"]["content"] == "whole"
    assert seen["pointer"]["fields"] == {"branch": "b"} and seen["pointers"] == ["wip"] and seen["removed"] == []
    action = seen["action"]
    assert (action["seq"], action["class_"], action["status"], action["args"]) == (
        1,
        "external",
        "started",
        '{"to": "x"}',
    )
    assert len(action["key"]) == 32 and seen["pending"] == [1] and seen["ended"]["result"] == '{"id": 7}'
    assert seen["spilled"]["args_ref"] == "act-2-args"
    assert seen["context"]["turn_seq"] == 2 and seen["context"]["token_budget"] == 4000
    assert [each["seq"] for each in seen["context"]["pending_actions"]] == [2]
    assert seen["deferred"] == [False, 2, False] and seen["released"] == [True, False] and seen["acquired"] is True
    assert seen["reconciled"] == [[2, "done", "found it"]]
    assert seen["after"] == [["user", "after"], ["tool", "found it"]]
    assert seen["third"] is True and seen["after close"] is False
    assert seen["errors"] == {
        "closed": "tool_error",
        "missing action": "tool_error",
        "missing output": "tool_error",
        "bad pointer": "tool_error",
        "resumed twice": "tool_error",
        "bad agent": "tool_error",
        "held": "lease_held",
        "not held": "lease_not_held",
        "lost": "lease_lost",
        "closed client": "closed",
    }
    if way == "RECALL_BIN":
        assert (tmp_path / "theirs" / "recall.db").exists() and not (tmp_path / "recall-data").exists()


def test_the_version_is_told_bare(run_recall: Run) -> None:
    """As the peer's client asks for it: three numbers and nothing else."""
    done = run_recall("-version")
    assert done.code == 0 and done.err == "" and tuple(map(int, done.out.strip().split("."))) >= (0, 23)


def test_the_peers_flags_are_held_to_its_rules(run_recall: Run) -> None:
    """-agent without -write is refused, and none of them is a combination of short options."""
    assert run_recall("mcp", "-agent").code == 2
    for surface in ("-text", "-typed"):
        assert run_recall("mcp", "-write", "-agent", surface).code == 0
    assert run_recall("mcp", "-wa").code == 2


KILLS = [(tool, point) for tool in ("lookup", "invoice", "email") for point in ("recorded", "effect", "returned")]


@pytest.mark.parametrize("resolver", ["resolver", "none"])
def test_a_killed_langgraph_graph_repeats_and_loses_nothing(drive: Drive, tmp_path: Path, resolver: str) -> None:
    """A compiled graph with durable tools is killed at each of three points of each tool, and run again.

    There is one invoice and at most one email, always. With a resolver all
    that was asked for happens; without one, only an email that may or may not
    have been sent waits for somebody.
    """
    trials = drive("graph.py", str(tmp_path / "trials"), resolver, json.dumps(KILLS))
    assert [(each["tool"], each["point"]) for each in trials] == KILLS
    for each in trials:
        assert each["killed"] == -9, each
        ambiguous = resolver == "none" and each["tool"] == "email" and each["point"] != "returned"
        sent = 0 if ambiguous and each["point"] == "recorded" else 1
        assert each["invoices"] == 1 and each["emails"] == sent, each
        assert each["pending"] == (["email"] if ambiguous else []), each
        assert each["finished"] is not ambiguous, each
        assert each["lookups"] == (2 if (each["tool"], each["point"]) == ("lookup", "effect") else 1), each


def test_a_langgraph_program_runs_by_recall_bin(drive: Drive, tmp_path: Path) -> None:
    """RecallResume(local_dir=...) finds our command in RECALL_BIN's place and needs nothing else."""
    kills = json.dumps([("email", "effect")])
    (trial,) = drive("graph.py", str(tmp_path / "trials"), "resolver", kills, RECALL_BIN=str(COMMAND))
    assert (trial["emails"], trial["invoices"], trial["pending"], trial["finished"]) == (1, 1, [], True)


@pytest.mark.parametrize("over", ["stdio", "http"])
@pytest.mark.parametrize("mode", ["legacy", "auto", "2026-07-28"])
def test_the_official_sdk_lists_reads_and_writes(
    drive: Drive, environment: dict[str, str], tmp_path: Path, mode: str, over: str
) -> None:
    """Its client, with and without the handshake, validates all that we answer; over HTTP it ends its session."""
    if over == "stdio":
        seen: dict[str, Any] = drive("sdk.py", mode)
    else:
        server = Server("--write", env={**environment, "RECALL_MCP_TOKEN": TOKEN}, cwd=tmp_path)
        try:
            seen = drive("sdk.py", mode, f"http://{server.host}:{server.port}/mcp", RECALL_MCP_TOKEN=TOKEN)
            assert ("ended by its client" in server.log()) is (mode == "legacy")
            assert server.end(signal.SIGTERM) == 0
        finally:
            server.close()
    assert seen["version"] == ("2025-11-25" if mode == "legacy" else "2026-07-28")
    assert "agent_resume" in seen["tools"] and len(seen["tools"]) == 21
    assert seen["server"] == "recall" and "agent_resume" in (seen["instructions"] or "agent_resume")
    assert seen["resumed"]["fresh"] is True and seen["turn"]["seq"] == 1
    assert seen["agents"]["agents"][0]["turns"] == 1
    assert seen["refused"][0] is True and "content is missing" in seen["refused"][1]
    assert seen["unknown"] == -32602
    assert seen["resources"] == ["recall://agents/a/briefing", "recall://agents/a/records"]
    assert "[user #1] hi" in seen["briefing"] and seen["templates"] == 2
    assert seen["prompts"] == ["resume"] and "agent_resume" in seen["prompt"]


def test_the_inspector_lists_reads_and_writes(inspector: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """The protocol's inspector in its command-line mode, each call a session of its own."""

    def inspect(*words: str) -> Any:
        return told([inspector, "--cli", COMMAND, "mcp", "--write", *words], environment, tmp_path)

    assert len(inspect("--method", "tools/list")["tools"]) == 21
    call = ("--method", "tools/call", "--tool-name")
    written = inspect(*call, "agent_resume", "--tool-arg", "agent_id=a", "--tool-arg", "token_budget=1000")
    assert json.loads(written["content"][0]["text"])["token_budget"] == 1000
    read = json.loads(inspect(*call, "list_agents")["content"][0]["text"])
    assert (read["agents"][0]["agent_id"], read["agents"][0]["state"]) == ("a", "released")


def test_the_typescript_sdk_works_over_http(inspector: Path, environment: dict[str, str], tmp_path: Path) -> None:
    """The client that most hosts are built with, as the inspector brings it; the inspector itself sends no token."""
    sdk = inspector.parent.parent / "@modelcontextprotocol" / "sdk"
    server = Server("--write", env={**environment, "RECALL_MCP_TOKEN": TOKEN}, cwd=tmp_path)
    try:
        program = Path(__file__).with_name("sdk.mjs")
        argv: list[str | Path] = ["node", program, sdk, f"http://{server.host}:{server.port}/mcp"]
        seen = told(argv, {**environment, "RECALL_MCP_TOKEN": TOKEN}, tmp_path)
        assert seen["server"] == "recall" and seen["session"] is True and seen["tools"] == 21
        assert seen["resumed"]["fresh"] is True and sorted(seen["turns"]) == [1, 2, 3]
        assert "You are agent a" in seen["briefing"] and "token is wrong" in seen["refused"]
        assert "ended by its client" in server.log()
    finally:
        server.close()
