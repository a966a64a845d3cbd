"""What a server over HTTP refuses, and with which status; and what it withstands."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from recall_cli.mcp.connection import MOST_HEAD
from recall_cli.mcp.framing import LONGEST_LINE
from tests.mcp.conftest import modern
from tests.mcp.web import TOKEN, Client, Server

HEAD = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.fixture(scope="module")
def sturdy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all that is bad here: it has to stay up, and to end in order."""
    home = tmp_path_factory.mktemp("sturdy-http")
    plain = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONWARNINGS": "error",
    }
    env = {**plain, "RECALL_DIR": str(home / "store"), "RECALL_MCP_TOKEN": TOKEN}
    server = Server("--write", env=env, cwd=home)
    yield server
    try:
        client = server.client()
        client.initialize()
        assert client.call("agent_resume", agent_id="last")["epoch"] == 1
        assert server.end(signal.SIGTERM) == 0
        log = server.log()
        assert TOKEN not in log and "defect" not in log and "Traceback" not in log
        assert all(line.startswith("recall mcp: ") and line.rstrip("\n").isprintable() for line in server.said)
    finally:
        server.close()


@pytest.fixture
def client(sturdy_server: Server) -> Iterator[Client]:
    client = sturdy_server.client()
    client.initialize()
    yield client
    client.close()


def status(data: bytes) -> int:
    return int(data.split(b" ", 2)[1]) if data else 0


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"Authorization": None}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ({"Authorization": TOKEN}, 401),
        ({"Authorization": "Bearer \xe9\xff"}, 401),
        ({"Authorization": f"bearer  {TOKEN}"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost.evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "file://localhost"}, 403),
        ({"Origin": "http://localhost:6274"}, 200),
        ({"Origin": "http://[::1]:1"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example:80"}, 403),
        ({"Host": "localhost:1@evil"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": ""}, 403),
        ({"Host": "LOCALHOST:9"}, 200),
        ({"Host": "127.3.2.1"}, 200),
        ({"Accept": "text/event-stream"}, 406),
        ({"Accept": "text/html, image/png"}, 406),
        ({"Accept": "application/json;q=0.9, text/event-stream"}, 200),
        ({"Accept": None}, 200),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/jsonp"}, 415),
        ({"Content-Type": None}, 415),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, 200),
        ({"Content-Encoding": "gzip"}, 415),
        ({"MCP-Protocol-Version": "1999-01-01"}, 400),
        ({"MCP-Protocol-Version": ""}, 400),
        ({"MCP-Protocol-Version": None}, 200),
        ({"MCP-Protocol-Version": "2026-07-28"}, 400),
        ({"Mcp-Session-Id": None}, 400),
        ({"Mcp-Session-Id": "unknown"}, 404),
        ({"Mcp-Session-Id": "\xe9"}, 404),
        ({"Expect": "a miracle"}, 417),
        ({"Expect": "100-continue"}, 200),
    ],
)
def test_each_header_is_held_to_its_rule(client: Client, changed: dict[str, str | None], wanted: int) -> None:
    """The same request, with one header changed; a refusal says why, as JSON."""
    answer = client.post("ping", **changed)
    assert answer.status == wanted, answer.body
    if wanted != 200:
        assert answer.body["error"]["message"] and TOKEN not in json.dumps(answer.body)
    assert (answer.headers.get("www-authenticate") or "").startswith("Bearer") is (wanted == 401)


def test_origin_is_asked_before_the_token_and_on_every_path(sturdy_server: Server) -> None:
    """A page that was led here learns nothing, not even whether there is an endpoint."""
    client = sturdy_server.client(Authorization="Bearer x", Origin="https://evil.example")
    for method, path in (("GET", "/"), ("POST", "/mcp"), ("OPTIONS", "/mcp"), ("DELETE", "/mcp")):
        answer = client.send(method, b"" if method == "POST" else None, path)
        assert answer.status == 403 and "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD", "OPTIONS", "PATCH", "BREW"])
def test_another_method_is_refused(client: Client, method: str) -> None:
    """GET too, since nothing is pushed; what is allowed is said."""
    answer = client.send(method)
    assert answer.status == 405 and answer.headers["allow"] == "POST, DELETE"


@pytest.mark.parametrize("path", ["/", "/mcpx", "/mcp/x", "/sse", "/.well-known/oauth-protected-resource", "/%6dcp"])
def test_another_path_is_not_found(client: Client, path: str) -> None:
    """With a token or without."""
    assert client.send("POST", PING, path).status == 404
    assert client.send("GET", None, path, Authorization=None).status == 404


def test_the_path_may_have_a_slash_or_a_query(client: Client) -> None:
    """As people write it, and as proxies send it."""
    for path in ("/mcp", "/mcp/", "/mcp?x=1", "http://localhost/mcp"):
        assert client.send("POST", PING, path).status == 200


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (b"", -32700, "the body is not JSON"),
        (b"{", -32700, "the body is not JSON"),
        (b"\xff\xfe", -32700, "the body is not UTF-8"),
        (b"[" * 100_000, -32700, "nested too deeply"),
        (b'{"a":NaN}', -32700, "NaN"),
        (b"1" * 10_000, -32700, "thousands of digits"),
        (b"[]", -32600, "batches are not part"),
        (b"[" + PING + b"]", -32600, "batches are not part"),
        (b"17", -32600, "must be an object"),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, "must not be null"),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600, "id must be"),
        (b'{"id":1,"method":"ping"}', -32600, "jsonrpc"),
        (b'{"jsonrpc":"2.0","id":1,"method":{}}', -32600, "method must be"),
        (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}', -32602, "params must be"),
    ],
)
def test_a_body_that_is_no_message_is_answered(client: Client, body: bytes, code: int, said: str) -> None:
    """With an error of the protocol, and 400 where it is of no request."""
    answer = client.send("POST", body)
    error = answer.body["error"]
    assert error["code"] == code and said in error["message"]
    assert answer.status == (200 if answer.body["id"] is not None and code != -32700 else 400)
    assert client.post("ping").status == 200


def test_notifications_and_responses_are_accepted(client: Client) -> None:
    """With 202 and nothing else."""
    for message in (
        {"jsonrpc": "2.0", "method": "notifications/whatever"},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99}},
        {"jsonrpc": "2.0", "id": 1, "result": {}},
        {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}},
    ):
        answer = client.send("POST", message)
        assert answer.status == 202 and answer.body is None and answer.headers["content-length"] == "0"


def test_initialize_makes_a_session_only_if_it_is_one(sturdy_server: Server) -> None:
    """What it refuses leaves none; ids of sessions cannot be guessed, and are visible ASCII."""
    client = sturdy_server.client()
    refused = client.post("initialize", {"capabilities": {}})
    assert refused.body["error"]["code"] == -32602 and "mcp-session-id" not in refused.headers
    params = {"protocolVersion": "2025-06-18", "capabilities": {}}
    ids = [client.post("initialize", params).headers["mcp-session-id"] for _ in range(5)]
    assert len(set(ids)) == 5 and all(len(each) >= 32 and each.isascii() and each.isprintable() for each in ids)


def test_batches_are_of_one_revision(sturdy_server: Server) -> None:
    """There they are answered together, and with 202 if nothing in them wants an answer."""
    client = sturdy_server.client()
    client.initialize("2025-03-26")
    note = {"jsonrpc": "2.0", "method": "notifications/whatever"}
    listed = [{"jsonrpc": "2.0", "id": at, "method": "tools/list"} for at in (1, 2)]
    answer = client.send("POST", [listed[0], note, listed[1]])
    assert answer.status == 200 and [each["id"] for each in answer.body] == [1, 2]
    assert client.send("POST", [note]).status == 202
    without = client.send("POST", [listed[0]], Mcp_Session_Id=None)
    assert without.status == 400


@pytest.mark.parametrize(
    ("changed", "params", "wanted"),
    [
        ({}, {}, (200, None)),
        ({"Mcp-Session-Id": "left over"}, {}, (200, None)),
        ({"Mcp-Name": "=?base64?bGlzdF9hZ2VudHM=?="}, {}, (200, None)),
        ({"Mcp-Name": "=?base64?%%%?="}, {}, (400, -32020)),
        ({"Mcp-Name": "verify"}, {}, (400, -32020)),
        ({"Mcp-Name": None}, {}, (400, -32020)),
        ({"Mcp-Method": None}, {}, (400, -32020)),
        ({"Mcp-Method": "tools/list"}, {}, (400, -32020)),
        ({"MCP-Protocol-Version": None}, {}, (400, -32020)),
        ({"MCP-Protocol-Version": "2025-11-25"}, {}, (400, -32020)),
        ({"Mcp-Name": "no_such"}, {"name": "no_such"}, (400, -32602)),
        ({"Mcp-Name": "5"}, {"name": 5}, (400, -32020)),
    ],
)
def test_without_a_session_headers_repeat_the_message(
    sturdy_server: Server, changed: dict[str, str | None], params: dict[str, Any], wanted: tuple[int, int | None]
) -> None:
    """A proxy may have decided by the header; what differs from the body is refused with the error of its own."""
    headers: dict[str, str | None] = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call"}
    headers["Mcp-Name"] = "list_agents"
    given = modern(name="list_agents", arguments={}) | params
    answer = sturdy_server.client().post("tools/call", given, **{**headers, **changed})
    assert (answer.status, answer.body.get("error", {}).get("code")) == wanted
    assert "mcp-session-id" not in answer.headers


def test_without_a_session_errors_have_their_status(sturdy_server: Server) -> None:
    """404 for a method that there is not, 400 for a version that there is not; DELETE is of sessions."""
    client = sturdy_server.client(MCP_Protocol_Version="2026-07-28")
    missing = client.post("no/such", modern(), Mcp_Method="no/such")
    assert (missing.status, missing.body["error"]["code"]) == (404, -32601)
    version = client.post("tools/list", modern(), Mcp_Method="tools/list", MCP_Protocol_Version="2031-01-01")
    assert (version.status, version.body["error"]["code"]) == (400, -32022)
    assert "2026-07-28" in version.body["error"]["data"]["supported"]
    assert client.send("POST", {"jsonrpc": "2.0", "method": "notifications/x"}).status == 202
    assert client.send("DELETE").status == 405


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET  / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX : y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: y\r\n z\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: y\rContent-Length: 5\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: \0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\nHost: localhost\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: y\nZ: y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX:" + b" \t" * 99 + b"y\r\n\r\n", 400),
        (b"HEAD /mcp HTTP/1.1\r\nHost: localhost\r\nOrigin: a\r\nOrigin: a\r\n\r\n", 400),
        (HEAD.encode() + b"Authorization: Bearer x\r\n\r\n", 400),
        (HEAD.encode() + b"Content-Type: text/plain\r\n\r\n", 400),
        (HEAD.encode() + b"Mcp-Method: ping\r\nMCP-Method: ping\r\n\r\n", 400),
        (b"GET /\x1b[31m HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /mcp HTTP/1.0\r\n\r\n", 403),
        (b"A" * (MOST_HEAD + 10), 431),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 9_000 + b"\r\n", 431),
        (HEAD.encode() + b"Content-Length: -1\r\n\r\n", 400),
        (HEAD.encode() + b"Content-Length: +40\r\n\r\n" + PING, 400),
        (HEAD.encode() + b"Content-Length: 4_0\r\n\r\n" + PING, 400),
        (HEAD.encode() + b"Content-Length: " + b"9" * 400 + b"\r\n\r\n", 400),
        (HEAD.encode() + b"Content-Length: 40\r\nContent-Length: 4\r\n\r\n" + PING, 400),
        (HEAD.encode() + b"Content-Length: 40, 4\r\n\r\n" + PING, 400),
        (HEAD.encode() + f"Content-Length: {LONGEST_LINE + 1}\r\n\r\n".encode(), 413),
        (HEAD.encode() + b"Transfer-Encoding: chunked\r\nContent-Length: 40\r\n\r\n" + PING, 400),
        (HEAD.encode() + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + PING, 501),
        (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n" + PING, 400),
        (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n", 400),
        (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloo\r\n", 400),
        (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 21 + b"\r\n", 400),
        (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + b"5" * 40_000, 431),
        (HEAD.encode() + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 9_000, 431),
        (HEAD.replace("1.1", "1.0").encode() + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ],
)
def test_what_is_not_http_is_refused_and_cut_off(sturdy_server: Server, data: bytes, wanted: int) -> None:
    """One request can be read in one way only, so what comes after a bad one is never taken for a request."""
    for more in (b"", b"\r\n\r\n" + HEAD.encode() + b"Content-Length: 40\r\n\r\n" + PING):
        got = sturdy_server.raw(data + more)
        assert got.count(b"HTTP/1.1 ") == 1 and status(got) == wanted, got
        assert b'"result"' not in got and b"\x1b" not in got
        if wanted != 403:
            assert b"Connection: close" in got
        assert (b"TLS" in got) is (data[:1] == b"\x16")


def test_requests_in_a_row_are_answered_in_a_row(sturdy_server: Server, client: Client) -> None:
    """Sent at once on one connection, with a length or in chunks, with trailers, or with an offer of HTTP/2."""
    head = HEAD + f"Mcp-Session-Id: {client.headers['Mcp-Session-Id']}\r\n"
    requests = [
        head.encode() + b"Content-Length: 40\r\n\r\n" + PING,
        head.encode() + b"Transfer-Encoding: Chunked\r\n\r\n5\r\n" + PING[:5] + b"\r\n023;x=y\r\n" + PING[5:] + b"\r\n",
        b"0\r\nX: y\r\n\r\n",
        head.replace("POST", "GET").encode() + b"\r\n",
        head.replace("POST", "HEAD").encode() + b"Content-Length: 0\r\n\r\n",
        head.encode() + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 40, 40\r\n\r\n" + PING,
        head.encode() + b"Connection: close\r\nContent-Length: 40\r\n\r\n" + PING,
    ]
    got = sturdy_server.raw(b"".join(requests))
    answers = got.split(b"HTTP/1.1")[1:]
    assert [status(each) for each in answers] == [200, 200, 405, 405, 200, 200], got
    assert [each.endswith(b"}\n") for each in answers] == [True, True, True, False, True, True]  # HEAD has no body


def test_an_old_proxy_is_served(sturdy_server: Server, client: Client) -> None:
    """HTTP/1.0, as some speak it: one request a connection."""
    head = HEAD.replace("HTTP/1.1", "HTTP/1.0") + f"Mcp-Session-Id: {client.headers['Mcp-Session-Id']}\r\n"
    got = sturdy_server.raw(head.encode() + b"Connection: keep-alive\r\nContent-Length: 40\r\n\r\n" + PING)
    assert status(got) == 200 and b"Connection: close" in got


def test_a_request_that_takes_too_long_is_given_up(sturdy_server: Server) -> None:
    """A byte now and then does not keep it; one that never begins is closed without a word, later."""
    with sturdy_server.socket() as stream:
        begun = time.monotonic()
        stream.settimeout(0.5)
        got = b""
        while not got and time.monotonic() - begun < 25:
            stream.sendall(b"A")
            try:
                got = stream.recv(1000)
            except TimeoutError:
                continue
        assert status(got) == 408 and 9 < time.monotonic() - begun < 20


def test_a_large_body_waits_for_leave(sturdy_server: Server, client: Client) -> None:
    """A client that asks first is told to go on, or is refused before it sends."""
    head = HEAD + f"Mcp-Session-Id: {client.headers['Mcp-Session-Id']}\r\nExpect: 100-continue\r\n"
    with sturdy_server.socket() as stream:
        stream.sendall(head.encode() + b"Connection: close\r\nContent-Length: 40\r\n\r\n")
        assert stream.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        stream.sendall(PING)
        assert status(stream.recv(1000)) == 200
    refused = sturdy_server.raw(head.replace(TOKEN, "x").encode() + b"Content-Length: 40\r\n\r\n")
    assert status(refused) == 401 and b"100 Continue" not in refused


def test_a_refusal_reaches_who_is_still_sending(sturdy_server: Server) -> None:
    """A client in the middle of a large body reads why, and not that the connection was reset."""
    client = sturdy_server.client(Authorization="Bearer wrong")
    assert client.send("POST", b"x" * 5_000_000).status == 401


def test_a_body_that_is_cut_off_is_not_carried_out(sturdy_server: Server, client: Client) -> None:
    """Half a message that happens to be whole JSON is none; its room is free again."""
    client.call("agent_resume", agent_id="cut")
    turn = {"agent_id": "cut", "role": "user", "content": "x"}
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "record_turn", "arguments": turn}}
    ).encode()
    head = HEAD + f"Mcp-Session-Id: {client.headers['Mcp-Session-Id']}\r\nContent-Length: {len(body) + 1}\r\n\r\n"
    with sturdy_server.socket() as stream:
        stream.sendall(head.encode() + body)
    assert client.call("recent_turns", agent_id="cut") == []


def test_a_text_as_large_as_can_be_kept_goes_through(sturdy_server: Server, client: Client) -> None:
    """64 MiB in one body, and back in parts."""
    client.call("agent_resume", agent_id="large")
    kept = client.call("store_output", agent_id="large", content="é" * (32 << 20), ref="big")
    assert kept["tokens"] == 16 << 20
    part = client.call("fetch_output", agent_id="large", ref="big", offset=5, length=3)
    assert part["content"] == "ééé" and part["characters"] == 32 << 20
    with pytest.raises(Exception, match="ask for less"):
        client.call("fetch_output", agent_id="large", ref="big")
