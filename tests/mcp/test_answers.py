"""Answers are of a size that clients read, whatever was recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from recall_cli.mcp.fitting import LONGEST_ANSWER
from tests.mcp.conftest import Host, Refused, Start

LONG = "ü" * 9_000_000


@pytest.fixture
def wordy(writer: Host) -> Host:
    """Its agent ``a`` spills nothing, however long."""
    writer.call("agent_resume", agent_id="a", output_threshold=-1)
    return writer


def test_what_was_done_is_not_called_an_error(wordy: Host) -> None:
    """A call that writes more than an answer can hold succeeds; its answer has the long texts cut, and says so."""
    turn = wordy.call("record_turn", agent_id="a", role="user", content=LONG)
    assert turn["content"].startswith("üüü") and turn["content"].endswith("more bytes, too many for this answer]")
    action = wordy.call("begin_action", agent_id="a", tool="t", args=LONG, **{"class": "external"})
    assert action["status"] == "started" and len(action["key"]) == 32
    ended = wordy.call("end_action", agent_id="a", seq=action["seq"], status="unknown", result=LONG)
    assert ended["status"] == "unknown"
    assert wordy.call("verify", agent_id="a")["ok"] is True


def test_no_record_makes_an_agent_impossible_to_resume(wordy: Host) -> None:
    """With texts in it that no answer can hold an agent is resumed, read and settled like any other."""
    wordy.call("record_turn", agent_id="a", role="user", content=LONG)
    wordy.call("begin_action", agent_id="a", tool="t", args=LONG, **{"class": "idempotent"})
    for number in range(40):
        wordy.call("set_pointer", agent_id="a", name=f"p{number}", type="object", fields={"uri": "u" * 250_000})
    wordy.call("agent_release", agent_id="a")
    context = wordy.call("agent_resume", agent_id="a")
    assert context["lease_held"] is True
    assert [each["seq"] for each in context["pending_actions"]] == [1] and len(context["pointers"]) == 40
    assert wordy.call("agent_context", agent_id="a")["briefing"][:200] == context["briefing"][:200]
    assert wordy.call("pending_actions", agent_id="a")[0]["key"] == context["pending_actions"][0]["key"]
    assert wordy.call("recent_turns", agent_id="a")[0]["content"].startswith("ü")
    assert len(wordy.call("list_pointers", agent_id="a")) == 40


@pytest.mark.parametrize(
    ("tool", "asked"), [("recent_turns", {"limit": 1}), ("pending_actions", {"limit": 1, "after_seq": 1})]
)
def test_a_list_that_is_too_long_is_asked_for_in_parts(wordy: Host, tool: str, asked: dict[str, Any]) -> None:
    """It is refused with the argument that makes it shorter, and what is asked for so comes."""
    for _ in range(2):
        wordy.call("record_turn", agent_id="a", role="user", content="x" * 5_000_000)
        wordy.call("begin_action", agent_id="a", tool="t", args="x" * 5_000_000, **{"class": "external"})
    with pytest.raises(Refused, match="ask for less with limit"):
        wordy.call(tool, agent_id="a")
    (last,) = wordy.call(tool, agent_id="a", **asked)
    assert last["seq"] == 2 and "x" * 5_000_000 in (last.get("content"), last.get("args"))


def test_the_answers_to_a_batch_come_in_lines_that_can_be_read(start: Start) -> None:
    """Together they may be too long for one: each comes, in its order, and no line is longer than a client reads."""
    host = start("--write", ready=False)
    host.initialize("2025-03-26")
    host.call("agent_resume", agent_id="a")
    host.call("store_output", agent_id="a", content="x" * 5_000_000, ref="log")
    call = {"name": "fetch_output", "arguments": {"agent_id": "a", "ref": "log"}}
    host.send([{"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call} for id in (1, 2, 3)])
    answers: list[Any] = []
    while len(answers) < 3:
        received = host.receive()
        assert len(json.dumps(received)) <= LONGEST_ANSWER
        answers += received if isinstance(received, list) else [received]
    assert [(each["id"], each["result"]["isError"]) for each in answers] == [(1, False), (2, False), (3, False)]
