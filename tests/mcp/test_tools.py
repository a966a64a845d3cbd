"""The tools: what each tells and does, and what is said of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from recall_cli.mcp.tools import TOOLS
from store.backends.sqlite import SqliteBackend
from tests.conftest import Run
from tests.mcp.conftest import Host, Refused, Start

CONTEXT = (
    "agent_id fresh epoch lease_held briefing pending_actions working_state pointers outputs memories recent_turns "
    "omitted turn_seq token_budget tokens"
).split()
STATE = (
    "goal plan progress focus decisions open_questions notes step last_milestone version turn_seq action_seq updated_at"
).split()
TURN = "seq role content name output_ref message_id brief at".split()
BEGUN = "seq tool class key status args args_ref epoch started_at".split()
ENDED = [*BEGUN, *"result result_ref error resolution ended_at".split()]
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def test_the_whole_life_of_an_agent(start: Start) -> None:
    """Each tool tells the fields that the published clients read, under their names, and what was given comes back."""
    host = start("--write")
    resumed = host.call("agent_resume", agent_id="a", token_budget=4000, holder="test", lease_ttl_seconds=30)
    assert list(resumed) == CONTEXT and resumed["fresh"] is True and resumed["epoch"] == 1
    assert resumed["token_budget"] == 4000 and resumed["lease_held"] is True

    state = host.call("update_working_state", agent_id="a", goal="g", plan=["one", "two"], step=1, notes="n")
    assert list(state) == STATE and state["plan"] == ["one", "two"] and INSTANT.fullmatch(state["updated_at"])
    state = host.call("update_working_state", agent_id="a", goal=None, plan=[], step=2.0, notes="")
    assert (state["goal"], state["plan"], state["step"], state["notes"], state["version"]) == ("", [], 2, "", 2)
    state = host.call("agent_milestone", agent_id="a", name="half", progress="half of it")
    assert (state["last_milestone"], state["progress"], state["step"]) == ("half", "half of it", 2)
    history = host.call("working_state_history", agent_id="a", limit=2)
    assert [each["version"] for each in history] == [3, 2] and list(history[0]) == STATE

    turn = host.call("record_turn", agent_id="a", role="tool", content="c", name="t", message_id="m", brief="b")
    assert list(turn) == TURN and [turn[name] for name in TURN[:-1]] == [1, "tool", "c", "t", "", "m", "b"]
    large = host.call("record_turn", agent_id="a", role="assistant", content="x" * 9000)
    assert large["output_ref"] == "out-2-1" and large["content"].startswith("x" * 400)
    assert host.call("recent_turns", agent_id="a", limit=1) == [large]
    assert host.call("recent_turns", agent_id="a", before_seq=2) == [turn]

    kept = host.call("store_output", agent_id="a", content="whole", tool="t", summary="s", ref="log")
    assert list(kept) == ["ref", "tool", "summary", "tokens", "at"] and kept["tokens"] == 2
    fetched = host.call("fetch_output", agent_id="a", ref="log")
    assert list(fetched) == ["ref", "content", "tool", "summary", "at"] and fetched["content"] == "whole"
    assert host.call("fetch_output", agent_id="a", ref="log", offset=1, length=2)["content"] == "ho"

    pointer = host.call("set_pointer", agent_id="a", name="wip", type="git_ref", fields={"branch": "b"}, note="n")
    assert list(pointer) == ["name", "type", "fields", "note", "at"] and pointer["fields"] == {"branch": "b"}
    assert host.call("list_pointers", agent_id="a") == [pointer]
    assert host.call("remove_pointer", agent_id="a", name="wip") == {"removed": "wip", "was_set": True}
    assert host.call("remove_pointer", agent_id="a", name="wip") == {"removed": "wip", "was_set": False}

    action = host.call("begin_action", agent_id="a", tool="send", **{"class": "external"}, args='{"to": "x"}')
    assert list(action) == BEGUN and action["status"] == "started" and re.fullmatch("[0-9a-f]{32}", action["key"])
    assert host.call("pending_actions", agent_id="a") == [action]
    assert "running" in host.call("agent_context", agent_id="a")["briefing"]  # its own, and so not interrupted
    ended = host.call("end_action", agent_id="a", seq=1, status="done", result="sent")
    assert list(ended) == ENDED and ended["result"] == "sent" and INSTANT.fullmatch(ended["ended_at"])
    assert {name: ended[name] for name in BEGUN} == {**action, "status": "done"}
    assert host.call("pending_actions", agent_id="a") == []

    context = host.call("agent_context", agent_id="a")
    assert list(context) == CONTEXT and context["fresh"] is False and context["turn_seq"] == 2
    assert context["recent_turns"][0] == turn and context["working_state"] == state
    assert host.call("agent_release", agent_id="a") == {"released": True}
    assert host.call("agent_release", agent_id="a") == {"released": False}
    for instant in (turn["at"], kept["at"], pointer["at"], state["updated_at"]):
        assert re.fullmatch(r".*\.\d+Z", instant), "with fractions"


def test_arguments_and_results_may_be_json(writer: Host) -> None:
    """A model that gives an object where a text is declared gets what it meant: the object's JSON."""
    writer.call("agent_resume", agent_id="a")
    action = writer.call("begin_action", agent_id="a", tool="t", **{"class": "pure"}, args={"to": ["x", 1]})
    assert action["args"] == '{"to":["x",1]}'
    assert writer.call("end_action", agent_id="a", seq=1, status="done", result=[1, None])["result"] == "[1,null]"


def test_a_step_begun_again_comes_back_with_its_result(writer: Host) -> None:
    """The call of a name that is done is not made again."""
    writer.call("agent_resume", agent_id="a")
    first = writer.call("begin_action", agent_id="a", tool="pay", **{"class": "external"}, step="invoice-7")
    writer.call("end_action", agent_id="a", seq=first["seq"], status="done", result="paid")
    again = writer.call("begin_action", agent_id="a", tool="pay", **{"class": "external"}, step="invoice-7")
    assert (again["seq"], again["status"], again["result"], again["step"]) == (1, "done", "paid", "invoice-7")


def test_reading_needs_no_lease(start: Start, writer: Host) -> None:
    """A server that only reads, and a session that resumed nothing, see all of an agent that another one holds."""
    writer.call("agent_resume", agent_id="a")
    writer.call("update_working_state", agent_id="a", goal="the goal")
    writer.call("record_turn", agent_id="a", role="user", content="hi")
    writer.call("begin_action", agent_id="a", tool="t", **{"class": "pure"})
    for host in (start(), start("--write")):
        briefing = host.call("agent_briefing", agent_id="a", token_budget=1)
        assert list(briefing) == ["agent_id", "briefing", "omitted", "tokens"] and "the goal" in briefing["briefing"]
        assert briefing["tokens"] <= 512
        context = host.call("agent_context", agent_id="a")
        assert list(context) == CONTEXT and context["lease_held"] is False and context["epoch"] == 0
        assert [each["seq"] for each in host.call("pending_actions", agent_id="a")] == [1]
        assert host.call("recent_turns", agent_id="a")[0]["content"] == "hi"
        (agent,) = host.call("list_agents")["agents"]
        assert (agent["agent_id"], agent["state"], agent["pending"], agent["goal"]) == ("a", "live", 1, "the goal")


def test_lease_errors_have_the_words_that_clients_match(start: Start) -> None:
    """Held, not acquired and lost are told by a substring each, and no other error has one."""
    first, second = start("--write"), start("--write")
    first.call("agent_resume", agent_id="a")
    with pytest.raises(Refused, match=r"lease is held by \S+ \(epoch 1\) until .*try again"):
        second.call("agent_resume", agent_id="a")
    assert second.call("agent_resume", agent_id="a", defer_lease=True)["lease_held"] is False
    with pytest.raises(Refused, match="lease not acquired"):
        second.call("record_turn", agent_id="a", role="user", content="x")
    with pytest.raises(Refused, match="lease is held"):
        second.call("agent_acquire", agent_id="a")
    first.call("record_turn", agent_id="a", role="user", content="from the first")
    first.call("agent_release", agent_id="a")
    acquired = second.call("agent_acquire", agent_id="a")
    assert list(acquired) == ["acquired", "epoch", "briefing", "pending_actions"]
    assert acquired["acquired"] is True and "from the first" in acquired["briefing"]
    assert second.call("agent_acquire", agent_id="a")["epoch"] == acquired["epoch"]


def test_a_lost_lease_is_told_and_can_be_had_again(writer: Host, run_recall: Run) -> None:
    """A write after somebody else took over is refused for good; the same session may resume and go on."""
    writer.call("agent_resume", agent_id="a")
    assert run_recall("lease", "break", "-a", "a", "--reason", "test", "--yes").code == 0
    for _ in range(2):
        with pytest.raises(Refused, match=r"lease was lost.*agent_resume"):
            writer.call("record_turn", agent_id="a", role="user", content="x")
    assert writer.call("agent_context", agent_id="a")["lease_held"] is False
    assert writer.call("agent_resume", agent_id="a")["epoch"] == 3
    assert writer.call("record_turn", agent_id="a", role="user", content="x")["seq"] == 1


def test_an_interrupted_action_is_settled_by_hand(start: Start) -> None:
    """Of a dead holder it may be; of a live one that may be running it only by force; the model reads the outcome."""
    first = start("--write")
    first.call("agent_resume", agent_id="a")
    for _ in range(2):
        first.call("begin_action", agent_id="a", tool="send", **{"class": "external"})
    second = start("--write")
    outcome: dict[str, Any] = {"agent_id": "a", "seq": 1, "status": "done", "reason": "it is in the outbox"}
    with pytest.raises(Refused, match=r"may be running right now.*give force"):
        second.call("resolve_action", **outcome)
    assert second.call("resolve_action", **outcome, force=True, by="kim")["by"] == "kim"
    first.kill()
    settled = second.call("resolve_action", **{**outcome, "seq": 2, "status": "failed"}, error="no such address")
    assert settled["status"] == "failed" and "@" in settled["by"]
    with pytest.raises(Refused, match="already failed"):
        second.call("resolve_action", **{**outcome, "seq": 2})
    turns = second.call("recent_turns", agent_id="a")
    assert [each["role"] for each in turns] == ["tool", "tool"]


def test_verify_finds_what_was_changed(writer: Host, environment: dict[str, str]) -> None:
    """A healthy store is ok, with the head of each agent; one that somebody wrote to is not, and it says where."""
    import sqlite3

    writer.call("agent_resume", agent_id="a")
    writer.call("record_turn", agent_id="a", role="user", content="hi")
    healthy = writer.call("verify")
    assert healthy["ok"] is True and healthy["problems"] == [] and healthy["agents"][0]["agent_id"] == "a"
    assert re.fullmatch("[0-9a-f]{64}", healthy["agents"][0]["hash"])
    writer.call("agent_release", agent_id="a")
    writer.end()
    connection = sqlite3.connect(Path(environment["RECALL_DIR"]) / "recall.db")
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f'DROP TRIGGER "{name}"')
    connection.execute("UPDATE records SET line = replace(line, 'hi', 'ho') WHERE kind = 'turn'")
    connection.commit()
    connection.close()
    other = Host("--write", env=environment, cwd=Path(environment["HOME"]))
    try:
        other.initialize()
        damaged = other.call("verify", agent_id="a")
    finally:
        other.kill()
    assert damaged["ok"] is False and damaged["problems"][0]["agent_id"] == "a" and damaged["problems"][0]["reason"]


def test_the_agents_are_listed_in_bounds(writer: Host) -> None:
    """By id, as many as asked for, and the others counted."""
    for number in range(5):
        writer.call("agent_resume", agent_id=f"a{number}")
    writer.call("agent_resume", agent_id="other")
    listed = writer.call("list_agents", match="a", limit=2)
    assert [each["agent_id"] for each in listed["agents"]] == ["a0", "a1"] and listed["omitted"] == 3


def test_only_the_tools_of_whoever_looks_after_agents(start: Start) -> None:
    """With --no-agent-tools the tools of the agents themselves are neither listed nor served."""
    host = start("--write", "--no-agent-tools")
    names = [each["name"] for each in host.request("tools/list")["result"]["tools"]]
    assert names == ["list_agents", "agent_briefing", "resolve_action", "verify"]
    assert "error" in host.request("tools/call", {"name": "agent_resume", "arguments": {"agent_id": "a"}})


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_what_is_said_of_a_tool_is_whole(tool: Any) -> None:
    """Each has a title, a description that helps, a closed schema with a description of every argument, and hints."""
    listed = tool.listed()
    schema, hints = listed["inputSchema"], listed["annotations"]
    assert listed["title"] and 30 < len(listed["description"]) < 700
    assert schema["type"] == "object" and schema["additionalProperties"] is False
    assert set(schema["required"]) <= set(schema["properties"])
    assert all(each["description"] and isinstance(each["type"], str) for each in schema["properties"].values())
    assert set(hints) == {"title", "readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}
    assert hints["openWorldHint"] is False and not (hints["readOnlyHint"] and hints["destructiveHint"])


WRITES: dict[str, dict[str, Any]] = {
    "agent_resume": {"agent_id": "b"},
    "agent_acquire": {"agent_id": "a"},
    "update_working_state": {"agent_id": "a", "goal": "g"},
    "agent_milestone": {"agent_id": "a", "name": "m"},
    "record_turn": {"agent_id": "a", "role": "user", "content": "x"},
    "store_output": {"agent_id": "a", "content": "x"},
    "set_pointer": {"agent_id": "a", "name": "p", "type": "object", "fields": {"uri": "u"}},
    "remove_pointer": {"agent_id": "a", "name": "p"},
    "begin_action": {"agent_id": "a", "tool": "t", "class": "pure"},
    "end_action": {"agent_id": "a", "seq": 1, "status": "done"},
    "resolve_action": {"agent_id": "a", "seq": 2, "status": "done", "reason": "r", "force": True},
    "agent_release": {"agent_id": "a"},
}
READS: dict[str, dict[str, Any]] = {
    "agent_context": {"agent_id": "a"},
    "working_state_history": {"agent_id": "a"},
    "recent_turns": {"agent_id": "a"},
    "fetch_output": {"agent_id": "a", "ref": "log"},
    "list_pointers": {"agent_id": "a"},
    "pending_actions": {"agent_id": "a"},
    "list_agents": {},
    "agent_briefing": {"agent_id": "a"},
    "verify": {},
}


def test_the_hints_are_true(writer: Host, environment: dict[str, str]) -> None:
    """What is called read-only writes nothing; what is called idempotent changes nothing more when called again."""
    assert {each.name for each in TOOLS if each.writes} == set(WRITES)
    assert {each.name for each in TOOLS if not each.writes} == set(READS)
    hints = {each.name: each.listed()["annotations"] for each in TOOLS}
    writer.call("agent_resume", agent_id="a")
    writer.call("store_output", agent_id="a", content="x", ref="log")
    for _ in range(2):
        writer.call("begin_action", agent_id="a", tool="t", **{"class": "external"})

    def written() -> list[Any]:
        """How far each agent's log is, and its lease."""
        backend = SqliteBackend(environment["RECALL_DIR"], read_only=True)
        try:
            return [(backend.counters(each.agent), each) for each in backend.leases()]
        finally:
            backend.close()

    def seen() -> str:
        """All that can be looked at, without when it was."""
        shown = [writer.call(name, **arguments) for name, arguments in READS.items() if name != "verify"]
        return re.sub(r'"(at|updated_at|last_at)": "[^"]*"|\d+ s ago', "", json.dumps(shown))

    before = written()
    for name, arguments in READS.items():
        writer.call(name, **arguments)
        assert written() == before, name
    for name, arguments in WRITES.items():
        writer.call(name, **arguments)
        once = seen()
        try:
            writer.call(name, **arguments)
        except Refused:
            assert name in ("agent_resume", "end_action", "resolve_action")
        if hints[name]["idempotentHint"]:
            assert seen() == once, name
        elif name != "agent_resume":  # which a session may call once for an agent
            assert seen() != once, name


def test_a_briefing_sends_no_model_to_a_shell(writer: Host) -> None:
    """For each command that a briefing names there is a tool, and agent_resume says which, unless its name does."""
    told = next(each.about for each in TOOLS if each.name == "agent_resume")
    writer.call("agent_resume", agent_id="a")
    writer.call("store_output", agent_id="a", content="x")
    for _ in range(25):
        writer.call("begin_action", agent_id="a", tool="t", **{"class": "external"})
        writer.call("set_pointer", agent_id="a", name="p" * 100, type="object", fields={"uri": "u" * 9000})
    writer.call("agent_release", agent_id="a")
    named = set(re.findall(r"`recall (\w+ \w+)", writer.call("agent_resume", agent_id="a")["briefing"]))
    assert {"actions resolve", "outputs get"} <= named
    known = {"actions list": "pending_actions", "actions show": "pending_actions", "pointers list": "list_pointers"}
    for command in named:
        assert f"recall {command}" in told or known[command] in {each.name for each in TOOLS}, command
