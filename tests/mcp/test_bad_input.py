"""Bad input is answered with what a model can act on, and the server stays up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from recall_cli.mcp.tools import TOOLS
from tests.mcp.conftest import Host, Refused, Start

CALL = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"record_turn","arguments":%s}}\n'
TURN = b'{"agent_id":"a","role":"user","content":%s}'


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (CALL % (TURN % b'"\xff\xfe"'), "not UTF-8"),
        (CALL % (TURN % b"NaN"), "NaN"),
        (CALL % (TURN % b"-Infinity"), "-Infinity"),
        (CALL % (TURN % (b"1" * 5000)), "digits"),
        (CALL % (TURN % (b"[" * 200_000)), "nested"),
        (CALL % (TURN % b'"a\nb"'), "not JSON"),
        (b"hello\n", "not JSON"),
        (b"\x00\x00\n", "not JSON"),
        (b"\xef\xbb\xbf{}\n", "not JSON"),
    ],
)
def test_a_broken_line_is_answered(sturdy: Host, line: bytes, words: str) -> None:
    """The error says what is wrong with the line, to the request that it seems to be, and the next one is served."""
    sturdy.send_bytes(line)
    answer = sturdy.receive()
    assert answer["error"]["code"] == -32700 and words in answer["error"]["message"]
    assert answer["id"] == (7 if b'"id":7' in line else None)
    while b'"a\nb"' in line and answer["id"] is not None:  # it was two lines, and the second is no message either
        answer = sturdy.receive()
    assert sturdy.request("ping")["result"] == {}


@pytest.mark.parametrize("content", ['"\\ud800"', '"a\\u0000b"', "1e999", "3", "null", "[]", '{"a":1}', "true"])
def test_a_content_that_is_no_text_is_refused_by_name(sturdy: Host, content: str) -> None:
    """The tool's error names the argument and what it must be; nothing is recorded."""
    sturdy.send_bytes(CALL % (TURN % content.encode()))
    answer = sturdy.receive()["result"]
    assert answer["isError"] is True and answer["content"][0]["text"].startswith("content ")
    assert sturdy.call("recent_turns", agent_id="a") == []


def test_a_large_argument_is_kept_whole(sturdy: Host) -> None:
    """Twenty megabytes are stored, and come back in parts that a client can read."""
    sturdy.call("agent_resume", agent_id="big")
    content = "".join(f"line {number}: ü\n" for number in range(1_300_000))
    assert len(content.encode()) > 20_000_000
    turn = sturdy.call("record_turn", agent_id="big", role="tool", content=content)
    with pytest.raises(Refused, match="ask for less with length"):
        sturdy.call("fetch_output", agent_id="big", ref=turn["output_ref"])
    part = sturdy.call("fetch_output", agent_id="big", ref=turn["output_ref"], offset=5_000_000, length=1000)
    assert part["content"] == content[5_000_000:5_001_000] and part["characters"] == len(content)


def test_more_than_can_be_stored_is_refused(sturdy: Host) -> None:
    """The refusal tells the limit and what to do; the server stays up."""
    with pytest.raises(Refused, match=r"content has 67,108,865 bytes, more than the 67,108,864 allowed"):
        sturdy.call("store_output", agent_id="a", content="x" * (64 * 1024 * 1024 + 1))
    assert sturdy.request("ping")["result"] == {}


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("record_turn", {}, "agent_id is missing"),
        ("record_turn", {"agent_id": "a", "role": "user"}, "content is missing"),
        ("record_turn", {"agent_id": "a", "role": "robot", "content": ""}, "role must be system, user, assistant or"),
        ("record_turn", {"agent_id": "a", "role": "user", "content": "", "zzz": 1}, "'zzz' is no argument"),
        ("record_turn", {"agent_id": "../a", "role": "user", "content": ""}, "is not an agent id"),
        ("record_turn", {"agent_id": 3, "role": "user", "content": ""}, "agent_id must be text"),
        ("record_turn", {"agent_id": "b", "role": "user", "content": ""}, "call agent_resume first"),
        ("recent_turns", {"agent_id": "a", "limit": 201}, "limit must be from 1 to 200"),
        ("recent_turns", {"agent_id": "a", "limit": True}, "limit must be a whole number"),
        ("recent_turns", {"agent_id": "a", "limit": 1.5}, "limit must be a whole number"),
        ("recent_turns", {"agent_id": "a", "limit": "5"}, "limit must be a whole number"),
        ("recent_turns", {"agent_id": "b"}, "no agent b; see list_agents"),
        ("update_working_state", {"agent_id": "a", "plan": "one"}, "plan must be a list of texts"),
        ("update_working_state", {"agent_id": "a", "plan": [1]}, "plan"),
        ("update_working_state", {"agent_id": "a", "mood": "x"}, "'mood' is no argument"),
        ("set_pointer", {"agent_id": "a", "name": "p", "type": "git_ref", "fields": {"repo": "x"}}, "sha or branch"),
        ("set_pointer", {"agent_id": "a", "name": "p", "type": "object", "fields": {"uri": 3}}, "uri"),
        ("set_pointer", {"agent_id": "a", "name": "p", "type": "object", "fields": []}, "fields must be an object"),
        ("begin_action", {"agent_id": "a", "tool": "t", "class": "safe"}, "class must be pure, idempotent or external"),
        ("end_action", {"agent_id": "a", "seq": 1, "status": "started"}, "status must be"),
        ("end_action", {"agent_id": "a", "seq": 1, "status": "done"}, "no action 1 of a; see pending_actions"),
        ("end_action", {"agent_id": "a", "seq": 10**30, "status": "done"}, "seq"),
        ("fetch_output", {"agent_id": "a", "ref": "nope"}, "no output 'nope'"),
        ("store_output", {"agent_id": "a", "content": "", "ref": "r" * 129}, "128 allowed; choose a shorter one"),
        ("agent_milestone", {"agent_id": "a", "name": "n" * 4097}, "4,096 allowed; store it whole with store_output"),
        ("agent_resume", {"agent_id": "a"}, "already resumed in this session"),
        ("agent_resume", {"agent_id": "b", "lease_ttl_seconds": 1}, "must be from 5 to 3,600"),
        ("resolve_action", {"agent_id": "nobody", "seq": 1, "status": "done", "reason": "x"}, "no agent nobody"),
        ("verify", {"agent_id": "nobody"}, "no agent nobody"),
        ("verify", {"agent_id": "no\nbody"}, "is not an agent id"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(sturdy: Host, tool: str, arguments: dict[str, Any], words: str) -> None:
    """Each refusal is the tool's, one line, and names the argument or the tool that helps; nothing is written."""
    before = sturdy.call("verify", agent_id="a")
    with pytest.raises(Refused) as told:
        sturdy.call(tool, **arguments)
    assert words in str(told.value) and "\n" not in str(told.value) and "Traceback" not in str(told.value)
    assert sturdy.call("verify", agent_id="a") == before


@pytest.mark.parametrize("arguments", [[], "x", 3, True])
def test_arguments_that_are_no_object_are_refused(sturdy: Host, arguments: Any) -> None:
    """As a tool's error, so that the model sees it."""
    result = sturdy.request("tools/call", {"name": "list_agents", "arguments": arguments})["result"]
    assert result["isError"] is True and "arguments must be an object" in result["content"][0]["text"]


def test_an_unknown_tool_is_refused_with_the_nearest_name(sturdy: Host) -> None:
    """The protocol's error for it, with a name to try."""
    error = sturdy.request("tools/call", {"name": "record_turns"})["error"]
    assert error["code"] == -32602 and "did you mean record_turn?" in error["message"]


def test_a_read_only_server_says_how_to_get_the_others(start: Start) -> None:
    """A tool that writes is not listed, and calling it tells the option that is missing."""
    host = start()
    listed = {each["name"] for each in host.request("tools/list")["result"]["tools"]}
    assert listed == {each.name for each in TOOLS if not each.writes}
    assert "--write" in host.request("tools/call", {"name": "record_turn"})["error"]["message"]


def test_a_stored_text_cannot_pass_for_a_lease_error(sturdy: Host) -> None:
    """Clients tell lease errors by their words; a refusal that quotes those words does not have them."""
    sturdy.call("agent_resume", agent_id="quoting")
    sturdy.call("begin_action", agent_id="quoting", tool="t", **{"class": "external"})
    sturdy.call("end_action", agent_id="quoting", seq=1, status="failed", error="lease is held, lease was lost")
    for call in ({"seq": 1, "status": "done"}, {"seq": 1, "status": "lease not acquired"}):
        with pytest.raises(Refused) as told:
            sturdy.call("end_action", agent_id="quoting", **call)
        assert not any(words in str(told.value) for words in ("lease is held", "lease was lost", "lease not acquired"))


def test_a_defect_ends_one_call_and_not_the_session(start: Start, tmp_path: Path) -> None:
    """A store that turns out to be no store is a refusal of each call, and the server goes on."""
    (tmp_path / "recall-data").mkdir()
    (tmp_path / "recall-data" / "recall.db").write_text("this is no database, but it is long enough to be looked at")
    host = start("--write")
    for tool, arguments in (("list_agents", {}), ("agent_resume", {"agent_id": "a"}), ("verify", {})):
        with pytest.raises(Refused) as told:
            host.call(tool, **arguments)
        assert "recall.db" in str(told.value) or "store" in str(told.value)
    assert json.dumps(host.request("ping")["result"]) == "{}"
