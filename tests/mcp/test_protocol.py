"""The protocol: versions, order, what is no request, and one message a line."""

from __future__ import annotations

from typing import Any

import pytest

from recall_cli.mcp.framing import Broken, Lines, find_id, parse
from tests.mcp.conftest import META, Host, Start, modern

VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_speaks_the_version_that_the_client_asks_for(start: Start, version: str) -> None:
    """Every revision with a handshake is answered in kind, with the server's name, version and place."""
    host = start(ready=False)
    result = host.initialize(version)
    assert result["protocolVersion"] == version
    assert result["serverInfo"]["name"] == "recall" and result["serverInfo"]["version"] == "1.0.0"
    assert result["serverInfo"]["database"]["backend"] == "local"
    assert result["capabilities"] == {"tools": {"listChanged": False}, "resources": {}}


def test_an_unknown_version_is_answered_with_the_newest_that_has_a_handshake(start: Start) -> None:
    """A client of the future or of another kind is offered 2025-11-25, and may go on or leave."""
    host = start(ready=False)
    assert host.initialize("2031-01-01")["protocolVersion"] == "2025-11-25"
    assert "tools" in host.request("tools/list")["result"]


def test_nothing_but_a_ping_is_answered_before_initialize(start: Start) -> None:
    """A request out of order is refused with what to do, and the session can still begin."""
    host = start(ready=False)
    assert host.request("ping")["result"] == {}
    error = host.request("tools/list")["error"]
    assert error["code"] == -32600 and "initialize" in error["message"]
    host.initialize()
    assert host.request("tools/list")["result"]["tools"]


def test_a_request_that_names_its_version_needs_no_session(start: Start) -> None:
    """As of 2026-07-28 each request stands alone: discover, list, read and write, with what that revision demands."""
    host = start("--write", ready=False)
    found = host.request("server/discover", modern())["result"]
    assert found["supportedVersions"][0] == "2026-07-28" and "2025-11-25" in found["supportedVersions"]
    listed = host.request("tools/list", modern())["result"]
    for result in (found, listed):
        assert result["resultType"] == "complete" and result["ttlMs"] > 0 and result["cacheScope"] == "private"
        assert result["_meta"][META + "serverInfo"]["name"] == "recall"
    called = host.request("tools/call", modern(name="agent_resume", arguments={"agent_id": "a"}))["result"]
    assert called["resultType"] == "complete" and called["isError"] is False
    assert host.request("ping", modern())["error"]["code"] == -32601  # that revision has none


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        ({META + "protocolVersion": "2027-01-01", META + "clientCapabilities": {}}, -32022),
        ({META + "protocolVersion": 7, META + "clientCapabilities": {}}, -32602),
        ({META + "protocolVersion": "2026-07-28"}, -32602),
    ],
)
def test_a_declaration_that_cannot_be_served_is_refused(start: Start, meta: dict[str, Any], code: int) -> None:
    """An unknown version is answered with those that are served; a malformed declaration with what is missing."""
    error = start(ready=False).request("tools/list", {"_meta": meta})["error"]
    assert error["code"] == code
    if code == -32022:
        assert error["data"]["requested"] == "2027-01-01" and "2026-07-28" in error["data"]["supported"]


def test_a_batch_is_served_where_the_version_has_batches(start: Start) -> None:
    """In 2025-03-26 each request of a batch is answered, notifications are not, and initialize has no place in one."""
    host = start(ready=False)
    host.initialize("2025-03-26")
    ping: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    host.send([ping, {"jsonrpc": "2.0", "method": "notifications/x"}, {**ping, "id": 2, "method": "initialize"}, 7])
    first, second, third = host.receive()
    assert first == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert second["id"] == 2 and second["error"]["code"] == -32600
    assert third["id"] is None and third["error"]["code"] == -32600
    host.send([])
    assert host.receive()["error"]["code"] == -32600
    host.send([{"jsonrpc": "2.0", "method": "notifications/x"}])
    assert host.request("ping")["result"] == {}  # and nothing came before it


@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25"])
def test_a_batch_is_refused_where_the_version_has_none(start: Start, version: str) -> None:
    """One error answers it, and nothing of it is carried out."""
    host = start("--write", ready=False)
    host.initialize(version)
    call = {"name": "agent_resume", "arguments": {"agent_id": "a"}}
    host.send([{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}])
    answer = host.receive()
    assert answer["id"] is None and answer["error"]["code"] == -32600
    assert "no store" in host.request("tools/call", {"name": "list_agents"})["result"]["content"][0]["text"]


def test_what_wants_no_answer_gets_none(sturdy: Host) -> None:
    """Notifications, known or not, cancellations of what is over, and answers to nothing are passed over."""
    for message in (
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/of/the/future", "params": {"x": 1}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled"},
        {"jsonrpc": "2.0", "id": 5, "result": {}},
        {"jsonrpc": "2.0", "id": 6, "error": {"code": 1, "message": "x"}},
    ):
        sturdy.send(message)
    assert sturdy.request("ping")["result"] == {}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"jsonrpc": "2.0", "id": 7, "method": "no/such"}, -32601),
        ({"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": [1]}, -32602),
        ({"jsonrpc": "2.0", "id": 7, "method": "tools/list", "params": {"cursor": "x"}}, -32602),
        ({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": 3}}, -32602),
        ({"jsonrpc": "1.0", "id": 7, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": 7, "method": 3}, -32600),
        ({"jsonrpc": "2.0", "id": 7}, -32600),
    ],
)
def test_a_wrong_request_is_answered_with_its_id(sturdy: Host, message: Any, code: int) -> None:
    """The error carries the code that JSON-RPC has for it, and the session goes on."""
    sturdy.send(message)
    answer = sturdy.receive()
    assert answer["id"] == 7 and answer["error"]["code"] == code and answer["error"]["message"]
    assert sturdy.request("ping")["result"] == {}


@pytest.mark.parametrize("message", [7, "x", None, {"jsonrpc": "2.0", "id": None, "method": "ping"}, {"id": 1.5}])
def test_what_is_no_message_is_answered_without_an_id(sturdy: Host, message: Any) -> None:
    """There is no id to answer to, so the error has none."""
    sturdy.send(message)
    answer = sturdy.receive()
    assert answer["id"] is None and answer["error"]["code"] == -32600


@pytest.mark.parametrize("id", [0, -3, 2**60, "", "a-b", "\ud800", "ü"])
def test_an_id_comes_back_as_it_was(sturdy: Host, id: Any) -> None:
    """Whole numbers and texts, whatever is in them."""
    assert sturdy.request("ping", id=id)["result"] == {}


def test_calls_are_carried_out_in_the_order_in_which_they_came(writer: Host) -> None:
    """Requests sent without waiting are recorded and answered one after another."""
    writer.call("agent_resume", agent_id="a")
    for number in range(200):
        call = {"name": "record_turn", "arguments": {"agent_id": "a", "role": "user", "content": str(number)}}
        writer.send({"jsonrpc": "2.0", "id": number + 1000, "method": "tools/call", "params": call})
    assert [writer.receive()["id"] for _ in range(200)] == [number + 1000 for number in range(200)]
    turns = writer.call("recent_turns", agent_id="a", limit=200)
    assert [(each["seq"], each["content"]) for each in turns] == [(n + 1, str(n)) for n in range(200)]


def test_lines_are_cut_wherever_the_chunks_end() -> None:
    """A line may come in any number of pieces, several in one, the last without its line break."""
    text = b'{"a":1}\n\n  \n{"b":"\xc3\xbc"}\r\n{"c":3}'
    for size in (1, 2, 7, 100):
        lines = Lines()
        found = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]
        found += lines.end()
        assert [parse(each) for each in found if isinstance(each, bytes)] == [{"a": 1}, {"b": "ü"}, {"c": 3}]


@pytest.mark.parametrize("size", [3, 1000, 100_000])
def test_a_line_that_is_too_long_is_passed_over(size: int) -> None:
    """It is answered, with its id if that comes early, without ever being held whole; the next line counts."""
    text = b'{"id":3,"x":"' + b"x" * 200_000 + b'"}\n{"b":2}\n'
    lines = Lines(longest=150_000)
    found = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]
    first, second = found
    assert isinstance(first, Broken) and first.id == 3 and "150,000" in first.reason
    assert second == b'{"b":2}'


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ('{"jsonrpc":"2.0","id":4,"x":NaN}', 4),
        ('{"x":NaN,"id":"a"}', "a"),
        ('{"params":{"id":9},"id" : 4', 4),
        ('{"params":{"id":9}', None),
        ('{"params":"\\"id\\":9}","id":5', 5),
        ('[{"id":4,"x":NaN}]', None),
        ('{"id":4.5,', None),
        ('{"id":true,', None),
        ("{" * 100_000, None),
        ('{"params":"' + '\\"' * 200_000, None),
        ('{"id":4,"params":"\\', 4),
    ],
)
def test_the_id_of_a_broken_request_is_found(text: str, id: Any) -> None:
    """Only one at the top of a single request counts; a string that was cut off takes no longer than another."""
    assert find_id(text) == id
