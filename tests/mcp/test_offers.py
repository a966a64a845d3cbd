"""Resources and the prompt: what a person hands to a model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Run
from tests.mcp.conftest import Host, Start, modern


def test_each_agent_has_its_briefing_and_its_records(writer: Host, run_recall: Run) -> None:
    """They are listed by agent, read without a lease, and say what the command prints."""
    assert writer.request("resources/list")["result"] == {"resources": []}
    writer.call("agent_resume", agent_id="a")
    writer.call("record_turn", agent_id="a", role="user", content="hi\u2028there")
    listed = writer.request("resources/list")["result"]["resources"]
    assert [each["uri"] for each in listed] == ["recall://agents/a/briefing", "recall://agents/a/records"]
    templates = writer.request("resources/templates/list")["result"]["resourceTemplates"]
    assert [each["uriTemplate"] for each in templates] == [
        "recall://agents/{agent_id}/briefing",
        "recall://agents/{agent_id}/records",
    ]
    briefing, records = (writer.request("resources/read", {"uri": each["uri"]})["result"] for each in listed)
    (content,) = briefing["contents"]
    assert content["text"] == run_recall("briefing", "a").out.rstrip("\n") and content["mimeType"] == "text/plain"
    (content,) = records["contents"]
    assert content["text"].split() == run_recall("records", "a").out.split() and "turn:1" in content["text"]


def test_many_agents_are_listed_in_pages(writer: Host) -> None:
    """Fifty at a time; the cursor goes on after the last of them."""
    for number in range(51):
        writer.call("agent_resume", agent_id=f"a{number:02}")
    first = writer.request("resources/list")["result"]
    assert len(first["resources"]) == 100 and first["nextCursor"] == "a49"
    second = writer.request("resources/list", {"cursor": first["nextCursor"]})["result"]
    assert second["resources"][0]["uri"] == "recall://agents/a50/briefing"
    assert len(second["resources"]) == 2 and "nextCursor" not in second


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("resources/read", {"uri": "recall://agents/nobody/briefing"}, -32002),
        ("resources/read", {"uri": "recall://agents/../briefing"}, -32002),
        ("resources/read", {"uri": "recall://agents/a/secrets"}, -32002),
        ("resources/read", {"uri": "file:///etc/passwd"}, -32002),
        ("resources/read", {}, -32602),
        ("resources/list", {"cursor": "/"}, -32602),
        ("prompts/get", {"name": "nope"}, -32602),
        ("prompts/get", {"name": "resume"}, -32602),
        ("prompts/get", {"name": "resume", "arguments": {"agent_id": "a b"}}, -32602),
        ("prompts/get", {"name": "resume", "arguments": {"agent_id": "a", "x": "y"}}, -32602),
        ("prompts/get", {"name": "resume", "arguments": {"agent_id": "a", "task": 3}}, -32602),
        ("prompts/get", {"name": "resume", "arguments": [1]}, -32602),
    ],
)
def test_what_is_not_there_is_refused(sturdy: Host, method: str, params: dict[str, Any], code: int) -> None:
    """With the code that each revision has for it, and words that say what there is."""
    error = sturdy.request(method, params)["error"]
    assert error["code"] == code and error["message"]
    assert sturdy.request(method, modern(**params))["error"]["code"] == -32602


def test_a_prompt_resumes_an_agent(sturdy: Host) -> None:
    """It names the agent and the tool to call first, and ends with the task."""
    (listed,) = sturdy.request("prompts/list")["result"]["prompts"]
    assert listed["name"] == "resume" and listed["arguments"][0] == {
        "name": "agent_id",
        "description": "The agent's id.",
        "required": True,
    }
    given = {"name": "resume", "arguments": {"agent_id": "billing", "task": "Migrate the last file."}}
    (message,) = sturdy.request("prompts/get", given)["result"]["messages"]
    assert message["role"] == "user" and "agent_resume with agent_id billing" in message["content"]["text"]
    assert message["content"]["text"].endswith("\n\nMigrate the last file.")


def test_a_server_that_only_reads_offers_no_prompt(start: Start) -> None:
    """It could not resume; what there is to look at it offers."""
    host = start(ready=False)
    assert set(host.initialize()["capabilities"]) == {"tools", "resources"}
    assert host.request("prompts/list")["result"] == {"prompts": []}
    assert "error" in host.request("prompts/get", {"name": "resume", "arguments": {"agent_id": "a"}})
    assert host.request("resources/list")["result"] == {"resources": []}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({}, "agent_id is missing"), ({"agent_id": "a b"}, "agent_id must be an agent's id, not 'a b'")],
)
def test_a_prompt_says_what_it_lacks(writer: Host, arguments: dict[str, Any], words: str) -> None:
    """By the name of the argument, and whether it is missing or wrong."""
    assert writer.request("prompts/get", {"name": "resume", "arguments": arguments})["error"]["message"] == words
