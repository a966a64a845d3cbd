"""A server over HTTP: its clients, their sessions and leases, and its end."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recall_cli.mcp.sessions import Served
from store.errors import StoreFull
from tests.conftest import COMMAND, Run
from tests.mcp.conftest import Refused, Start, held_up, record, released, wait_for
from tests.mcp.web import TOKEN, Client, Server, StartServer


@pytest.fixture
def server(serve: StartServer) -> Server:
    """A server that writes."""
    return serve("--write")


def connected(server: Server) -> Client:
    client = server.client()
    client.initialize()
    return client


def test_an_agent_lives_its_whole_life(server: Server, environment: dict[str, str]) -> None:
    """It is resumed, written as, looked at and released over one session, which its client then ends."""
    client = server.client()
    told = client.initialize().body["result"]
    assert told["protocolVersion"] == "2025-11-25" and told["serverInfo"]["name"] == "recall"
    assert len(client.post("tools/list").body["result"]["tools"]) == 21
    assert client.call("agent_resume", agent_id="a")["fresh"] is True
    client.call("update_working_state", agent_id="a", goal="g")
    action = client.call("begin_action", agent_id="a", tool="send", **{"class": "external"})
    assert client.call("end_action", agent_id="a", seq=action["seq"], status="done")["status"] == "done"
    with pytest.raises(Refused, match="content is missing"):
        client.call("record_turn", agent_id="a", role="user")
    assert "Goal: g" in client.call("agent_context", agent_id="a")["briefing"]
    assert client.post("no/such").body["error"]["code"] == -32601
    assert client.post("ping").body["result"] == {}
    assert client.call("agent_release", agent_id="a") == {"released": True} and released(environment)
    ended = client.send("DELETE")
    assert ended.status == 204 and ended.body is None
    assert client.post("ping").status == 404 and client.send("DELETE").status == 404
    assert server.end(signal.SIGTERM) == 0
    assert server.process.stdout is not None and server.process.stdout.read() == b""


def test_two_sessions_are_as_apart_as_two_processes(server: Server, start: Start) -> None:
    """Each has its agents; neither resumes, nor writes to, the other's, and a process beside them neither."""
    one, two, process = connected(server), connected(server), start("--write")
    assert one.headers["Mcp-Session-Id"] != two.headers["Mcp-Session-Id"]
    one.call("agent_resume", agent_id="a")
    for other in (two, process):
        with pytest.raises(Refused, match="lease is held"):
            other.call("agent_resume", agent_id="a")
        with pytest.raises(Refused, match="is not resumed in this session"):
            other.call("record_turn", agent_id="a", role="user", content="x")
    holders = {}
    for client, agent in ((two, "b"), (process, "c")):
        client.call("agent_resume", agent_id=agent)
    for each in one.call("list_agents")["agents"]:
        holders[each["agent_id"]] = each["holder"]
    assert len(set(holders.values())) == 3  # two are of one process, and differ
    with pytest.raises(Refused, match="lease is held"):
        one.call("agent_resume", agent_id="b")
    one.call("agent_release", agent_id="a")
    assert two.call("agent_resume", agent_id="a")["epoch"] == 2


def test_a_session_that_is_ended_frees_its_agents(server: Server, environment: dict[str, str]) -> None:
    """When DELETE is answered the leases have been given back, and the other sessions are as they were."""
    one, two = connected(server), connected(server)
    for client, agent in ((one, "a"), (one, "b"), (two, "c")):
        client.call("agent_resume", agent_id=agent)
    assert one.send("DELETE").status == 204
    assert released(environment, "a") and released(environment, "b") and not released(environment, "c")
    assert two.call("record_turn", agent_id="c", role="user", content="x")["seq"] == 1


def test_a_client_that_vanishes_frees_its_agents(serve: StartServer, environment: dict[str, str]) -> None:
    """After the time-out without a call its session is over; one that calls now and then, or long, keeps its own."""
    server = serve("--write", "--session-timeout", "2")
    gone, here = connected(server), connected(server)
    gone.call("agent_resume", agent_id="a")
    here.call("agent_resume", agent_id="b")
    gone.close()
    ends = time.monotonic() + 2.5
    while time.monotonic() < ends:
        here.post("ping")
        time.sleep(0.2)
    wait_for(lambda: released(environment, "a"), 10)
    with ThreadPoolExecutor() as pool:
        with held_up(environment):
            call = pool.submit(lambda: here.call("record_turn", agent_id="b", role="user", content="long"))
            time.sleep(3)
            assert not call.done()
        assert call.result(30)["seq"] == 1
    assert not released(environment, "b")
    wait_for(lambda: released(environment, "b"), 10)
    assert here.post("ping").status == 404
    assert "was not heard of" in server.log()


def test_requests_without_a_session_share_one(serve: StartServer, environment: dict[str, str]) -> None:
    """In the revision that has none an agent is resumed by one request and written as by the next, of any client."""
    server = serve("--write", "--session-timeout", "2")
    first, second, session = server.client(), server.client(), connected(server)
    assert first.call_without_session("agent_resume", agent_id="a")["epoch"] == 1
    assert second.call_without_session("record_turn", agent_id="a", role="user", content="x")["seq"] == 1
    with pytest.raises(Refused, match="lease is held"):
        session.call("agent_resume", agent_id="a")
    wait_for(lambda: released(environment), 10)
    with pytest.raises(Refused, match="call agent_resume first"):
        first.call_without_session("record_turn", agent_id="a", role="user", content="x")
    assert first.call_without_session("agent_resume", agent_id="a")["epoch"] == 2


def test_a_session_works_in_order_and_the_others_beside_it(server: Server, environment: dict[str, str]) -> None:
    """While a call takes long, those of its session wait, a ping and other sessions' calls are answered."""
    busy, other = connected(server), connected(server)
    busy.call("agent_resume", agent_id="a")

    def beside(message: Any) -> Any:
        client = server.client()
        client.headers = dict(busy.headers)
        return client.send("POST", message)

    with ThreadPoolExecutor() as pool:
        with held_up(environment):
            calls = []
            for number in (1, 2, 3):
                calls.append(pool.submit(beside, record(number)))
                time.sleep(0.3)
            cancelled = beside(
                {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}},
            )
            assert cancelled.status == 202
            assert calls[1].result(10).body["error"]["message"] == "cancelled before its turn"
            assert busy.post("ping").body["result"] == {}
            assert other.call("list_agents")["agents"][0]["agent_id"] == "a"
            assert not calls[0].done() and not calls[2].done()
        assert [calls[at].result(30).body["id"] for at in (0, 2)] == [1, 3]
    assert [each["content"] for each in busy.call("recent_turns", agent_id="a")] == ["1", "3"]


def test_a_request_without_a_session_is_dropped_with_its_connection(
    server: Server, environment: dict[str, str]
) -> None:
    """As its revision has it: closing the connection cancels what has not begun."""
    first = server.client()
    first.call_without_session("agent_resume", agent_id="a")
    arguments = {"agent_id": "a", "role": "user"}
    with ThreadPoolExecutor() as pool:
        with held_up(environment):
            call = pool.submit(first.call_without_session, "record_turn", content="1", **arguments)
            time.sleep(0.5)
            gone = server.client(timeout=1)
            with pytest.raises(TimeoutError):
                gone.call_without_session("record_turn", content="2", **arguments)
            gone.close()
            time.sleep(1)
        call.result(30)
    assert [each["content"] for each in first.call_without_session("recent_turns", agent_id="a")] == ["1"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_and_releases(
    server: Server, environment: dict[str, str], number: signal.Signals, code: int
) -> None:
    """Told to end it gives all leases back, although clients are connected."""
    one, two = connected(server), connected(server)
    one.call("agent_resume", agent_id="a")
    two.call("agent_resume", agent_id="b")
    server.client().call_without_session("agent_resume", agent_id="c")
    assert server.end(number) == code
    assert all(released(environment, agent) for agent in "abc")
    with pytest.raises(ConnectionRefusedError):
        server.socket()


def test_it_ends_although_a_call_hangs(server: Server, environment: dict[str, str]) -> None:
    """A call that cannot go on, one behind it, and leases that cannot be given back keep it for seconds at most."""
    client = connected(server)
    client.call("agent_resume", agent_id="a", lease_ttl_seconds=3600)
    with held_up(environment), ThreadPoolExecutor() as pool:
        calls = []
        for number in (1, 2):
            beside = server.client()
            beside.headers = dict(client.headers)
            calls.append(pool.submit(beside.send, "POST", record(number)))
            time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        assert calls[1].result(10).status == 503
        assert server.process.wait(15) == 0
        assert isinstance(calls[0].exception(10), http.client.RemoteDisconnected)


def test_a_killed_server_frees_the_agent_at_once(server: Server, start: Start) -> None:
    """Killed in the middle of its clients' sessions it could release nothing, but it is provably dead."""
    connected(server).call("agent_resume", agent_id="a", lease_ttl_seconds=3600)
    server.process.kill()
    server.process.wait()
    assert start("--write").call("agent_resume", agent_id="a")["epoch"] == 2


def test_killed_in_a_call_it_leaves_the_action_to_be_settled(server: Server, start: Start) -> None:
    """What one session had begun is unknown to whoever resumes the agent next, and nothing else is lost."""
    client = connected(server)
    client.call("agent_resume", agent_id="a")
    client.call("begin_action", agent_id="a", tool="send", **{"class": "external"})
    with ThreadPoolExecutor() as pool:
        call = pool.submit(client.call, "store_output", agent_id="a", content="x" * 30_000_000, ref="big")
        time.sleep(0.2)
        server.process.kill()
        server.process.wait()
        assert call.exception(30) is None or isinstance(call.exception(), OSError)
    following = start("--write")
    pending = following.call("agent_resume", agent_id="a")["pending_actions"]
    assert [(each["tool"], each["status"]) for each in pending] == [("send", "unknown")]
    assert following.call("verify")["ok"] is True


def test_a_slow_client_holds_nobody_up(server: Server) -> None:
    """Clients in the middle of a head, in the middle of a body, and that do not read, while another one works."""
    client = connected(server)
    client.call("agent_resume", agent_id="a")
    client.call("store_output", agent_id="a", content="x" * 4_000_000, ref="big")
    slow = []
    for _ in range(20):
        slow.append(server.socket())
        slow[-1].sendall(b"POST /mcp HTTP/1.1\r\nHost: local")
        slow.append(server.socket())
        head = f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        slow[-1].sendall((head + "Content-Type: application/json\r\nContent-Length: 9000\r\n\r\n{").encode())
    fetch = {"name": "fetch_output", "arguments": {"agent_id": "a", "ref": "big"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": fetch}).encode()
    session = client.headers["Mcp-Session-Id"]
    more = f"Content-Type: application/json\r\nMcp-Session-Id: {session}\r\nContent-Length: {len(body)}\r\n\r\n"
    slow.append(server.socket())
    slow[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow[-1].sendall((head + more).encode() + body)
    begun = time.monotonic()
    for number in range(10):
        assert client.call("record_turn", agent_id="a", role="user", content="x")["seq"] == number + 1
    assert time.monotonic() - begun < 10
    for each in slow:
        each.close()


def test_more_connections_than_it_takes_push_out_those_that_wait(server: Server) -> None:
    """Three hundred that send nothing, or half a request, do not keep a client out."""
    silent = [server.socket() for _ in range(300)]
    for each in silent[::2]:
        try:
            each.sendall(b"POST /mcp HT")
        except ConnectionError:
            pass
    client = connected(server)
    assert client.call("agent_resume", agent_id="a")["epoch"] == 1
    for each in silent:
        each.close()


def test_sessions_that_hold_nothing_make_room(server: Server) -> None:
    """Clients that come and go without a word do not keep new ones out; those that act for an agent stay."""
    holding = connected(server)
    holding.call("agent_resume", agent_id="a")
    first = connected(server)
    for _ in range(110):
        client = server.client()
        client.initialize()
        client.close()
    assert first.post("ping").status == 404
    assert holding.call("record_turn", agent_id="a", role="user", content="x")["seq"] == 1


def test_a_token_is_made_where_none_is_given(serve: StartServer) -> None:
    """It is said on stderr, once, and is needed."""
    server = serve(env={"RECALL_MCP_TOKEN": None})
    wait_for(lambda: len(server.said) > 1)
    token = server.said[1].rpartition(": ")[2].strip()
    assert len(token) > 30 and server.client(Authorization=f"Bearer {token}").initialize().status == 200
    assert server.client().post("ping").status == 401
    server.end(signal.SIGTERM)
    assert server.log().count(token) == 1


@pytest.mark.parametrize("way", ["variable", "file"])
def test_a_given_token_is_never_said(serve: StartServer, tmp_path: Path, way: str) -> None:
    """Not at the start, not when it or another one is tried; and it is in no process list."""
    (tmp_path / "token").write_text(TOKEN + "\n")
    more = ["--token-file", "token"] if way == "file" else []
    server = serve(*more, env={"RECALL_MCP_TOKEN": "another-token-0123456789"} if way == "file" else None)
    connected(server)
    assert server.client(Authorization="Bearer another-token-0123456789").post("ping").status == 401
    assert server.client(Authorization=f"Basic {TOKEN}").post("ping").status == 401
    assert TOKEN.encode() not in Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
    server.end(signal.SIGTERM)
    assert TOKEN not in server.log() and "another-token" not in server.log()


@pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:0", "[::1]:0", "0.0.0.0:0"])
def test_it_listens_where_it_is_told(serve: StartServer, address: str) -> None:
    """By a name, by an address of either kind, or on all; without --write it only reads."""
    if "::1" in address:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("there is no IPv6 here")
    server = serve(address=address)
    client = connected(server)
    names = [each["name"] for each in client.post("tools/list").body["result"]["tools"]]
    assert "agent_briefing" in names and "agent_resume" not in names


def test_beyond_loopback_a_page_is_refused_all_the_same(serve: StartServer) -> None:
    """There the machine has names that it does not know; an address cannot be made to mean another one."""
    client = serve(address="0.0.0.0:0").client()
    start = {"protocolVersion": "2025-11-25"}
    for host, origin, status in (
        ("box.example:8765", None, 200),
        ("box.example", "http://box.example", 403),
        ("evil.example", "http://evil.example", 403),
        ("192.0.2.7:80", "http://192.0.2.7:80", 200),
        ("192.0.2.7:80", "http://192.0.2.8:80", 403),
    ):
        assert client.post("initialize", start, Host=host, Origin=origin).status == status, (host, origin)


class _Stubborn:
    """A session whose lease cannot be given back at first."""

    def __init__(self) -> None:
        self.agents, self.tried, self.closed = ["a"], 0, 0

    lease_held = True

    def held(self, agent: str) -> _Stubborn:
        return self

    def release(self, agent: str) -> bool:
        self.tried += 1
        if self.tried < 2:
            raise StoreFull(path="p")
        self.agents.clear()
        return True

    def close(self) -> None:
        self.closed += 1


def test_a_lease_that_cannot_be_given_back_is_tried_again(capfd: pytest.CaptureFixture[str]) -> None:
    """The process lives on, so nothing else would free the agent before the lease has lapsed."""
    session = _Stubborn()
    served = Served(SimpleNamespace(session=session), 1)  # type: ignore[arg-type]
    assert served.end()
    served.close()
    assert (session.tried, session.closed, session.agents) == (2, 1, [])
    assert capfd.readouterr().err.count("no space left") == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--http", "x"], 2, "port from 0 to 65535"),
        (["--http", "70000"], 2, "port from 0 to 65535"),
        (["--http", "-1"], 2, "port from 0 to 65535"),
        (["--http", ":8765"], 2, "must be PORT"),
        (["--http", "::1:8765"], 2, "must be PORT"),
        (["--http", "a b:1"], 2, "has no host"),
        (["--http", "0.0.0.0:0"], 2, "a token of yours is needed"),
        (["--http", "[::]:0"], 2, "a token of yours is needed"),
        (["--http", "no-such-host.invalid:1"], 7, "cannot listen on"),
        (["--http", "192.0.2.1:1"], 7, "cannot listen on"),
        (["--http", "0", "--token-file", "missing"], 2, "cannot be read"),
        (["--http", "0", "--token-file", "/"], 2, "cannot be read"),
        (["--http", "0", "--session-timeout", "0"], 2, "must be from 1"),
        (["--http", "0", "--session-timeout", "nan"], 2, "must be from 1"),
        (["--session-timeout", "5"], 2, "needs --http"),
        (["--token-file", "x"], 2, "needs --http"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(run_recall: Run, words: list[str], code: int, said: str) -> None:
    """A wrong address, one that cannot be had, one that others reach without a token, a token that is missing."""
    done = run_recall("mcp", *words)
    assert done.code == code and said in done.err and "Traceback" not in done.err and done.out == ""
    assert len(done.err.splitlines()) <= 2


@pytest.mark.parametrize("token", ["short", "with a blank in the middle", "ümlaut-ümlaut-ümlaut", "x" * 5000])
def test_a_token_that_no_header_could_carry_is_refused(run_recall: Run, tmp_path: Path, token: str) -> None:
    """And is not shown, wherever it came from."""
    (tmp_path / "token").write_text(token)
    for words, more in ((["--token-file", "token"], {}), ([], {"RECALL_MCP_TOKEN": token})):
        done = run_recall("mcp", "--http", "0", *words, env=more)
        assert done.code == 2 and "must hold" in done.err and token not in done.err


def test_a_taken_port_is_said(server: Server, run_recall: Run) -> None:
    """In one line, with exit code 7."""
    done = run_recall("mcp", "--http", str(server.port))
    assert done.code == 7 and "address already in use" in done.err and "listening" not in done.err


def test_what_is_ignored_stays_so(environment: dict[str, str], tmp_path: Path) -> None:
    """Under nohup a hangup does not end it, and SIGTERM still does."""
    code = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, COMMAND, "mcp", "--http", "0"],
        env=environment,
        cwd=tmp_path,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None and b"listening" in process.stderr.readline()
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0
    process.stderr.close()
