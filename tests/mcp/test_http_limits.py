"""The limits of a server over HTTP: of its parts, which are brought to them quickly, and of the whole."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recall_cli.mcp import sessions
from recall_cli.mcp.connection import MOST_HEAD, Connection, Gone, Refused, Response, Room
from recall_cli.mcp.sessions import Sessions, TooMany
from tests.mcp.conftest import wait_for
from tests.mcp.web import StartServer

HEAD = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Connection]]:
    """A client's socket, and the server's connection to it."""
    client, server = socket.socketpair()
    with client, server:
        yield client, Connection(server, "client")


@pytest.mark.parametrize(
    ("sent", "most", "space", "status"),
    [
        (HEAD + b"Content-Length: 11\r\n\r\n", 10, 99, 413),
        (CHUNKED + b"6\r\nabcdef\r\n5\r\n", 10, 99, 0),
        (CHUNKED + b"6\r\nabcdef\r\n5\r\nabcde\r\n0\r\n\r\n", 10, 99, 413),
        (CHUNKED + b"6\r\nabcdef\r\n4\r\nabcd\r\n0\r\n\r\n", 10, 9, 503),
        (CHUNKED + b"6\r\nabcdef\r\n4\r\nabcd\r\n0\r\n" + b"X: y\r\n" * 9_000, 10, 99, 431),
        (HEAD + b"Content-Length: 10\r\n\r\nabcdef", 10, 99, 0),
        (HEAD + b"Content-Length: 10\r\n\r\nabcdefabcd", 10, 9, 503),
    ],
)
def test_a_body_is_counted_as_it_comes(
    ends: tuple[socket.socket, Connection], sent: bytes, most: int, space: int, status: int
) -> None:
    """Its own limit and that of all together hold, and what was taken of it is given back."""
    client, connection = ends
    client.sendall(sent)
    client.shutdown(socket.SHUT_WR)
    request, room = connection.request(), Room(space)
    with pytest.raises(Refused if status else Gone) as caught:
        connection.body(request, most, room)
    assert getattr(caught.value, "status", 0) == status
    room.take(space)
    assert not connection.respond(Response(status or 400, b"{}"), last=False)


def test_a_head_that_is_one_byte_too_long_is_refused(ends: tuple[socket.socket, Connection]) -> None:
    """Although its end came with it; what follows a head does not count."""
    client, connection = ends
    head = HEAD + b"X: " + b"x" * (MOST_HEAD - len(HEAD) - 4)
    for more in (b"", b"x"):
        client.sendall(head + more + b"\r\n\r\n")
    assert connection.request().path == "/mcp"
    assert connection.respond(Response(202), last=False)
    with pytest.raises(Refused) as caught:
        connection.request()
    assert caught.value.status == 431


@pytest.mark.parametrize("pad", [b" ", b"\t", b"\r\n "])
def test_blanks_before_a_wrong_byte_take_no_time(ends: tuple[socket.socket, Connection], pad: bytes) -> None:
    """Whoever has no token cannot keep the threads that renew leases from running."""
    client, connection = ends
    client.sendall(HEAD + b"X:" + pad * ((MOST_HEAD - len(HEAD) - 10) // len(pad)) + b"\0\r\n\r\n")
    begun = time.thread_time()
    with pytest.raises(Refused):
        connection.request()
    assert time.thread_time() - begun < 0.1


class _Protocol:
    """What Sessions needs of one."""

    def __init__(self) -> None:
        self.version, self.closed = "", 0
        self.session = SimpleNamespace(agents=[], close=self._close)

    def _close(self) -> None:
        self.closed += 1

    def answer(self, message: Any) -> Any:
        self.version = "any"
        return {}


def test_sessions_expire_although_there_can_be_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is closed by the thread that found it, which lives on for the next."""
    made: list[_Protocol] = []

    def make() -> Any:
        made.append(_Protocol())
        return made[-1]

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    known = Sessions(make, 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        for number in (1, 2):
            known.open({})
            wait_for(lambda: sum(each.closed for each in made) == number)  # noqa: B023 (it is over within the loop)
    known.close(0.0, within=1.0)


def test_only_a_session_that_acts_for_no_agent_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has been idle for longest; where all act for one, a new client has to wait."""
    monkeypatch.setattr(sessions, "MOST", 2)
    known = Sessions(_Protocol, 60.0)  # type: ignore[arg-type]
    first, second = (known.open({})[0] for _ in range(2))
    assert first is not None and second is not None
    first.protocol.session.agents.append("a")
    third, _ = known.open({})
    assert third is not None and known.find(second.id) is None and known.find(first.id) is first
    third.protocol.session.agents.append("b")
    with pytest.raises(TooMany):
        known.open({})
    known.close(0.0, within=1.0)
    assert known.find(first.id) is None and known.closing


def test_the_log_names_only_so_many_refusals(serve: StartServer) -> None:
    """Whoever sends nonsense cannot fill a disk with it."""
    server = serve()
    client = server.client(Authorization="Bearer nonsense")
    for _ in range(100):
        assert client.post("ping").status == 401
    assert server.end(signal.SIGTERM) == 0
    assert 10 < len(server.said) < 30


def test_its_memory_is_not_for_strangers(serve: StartServer) -> None:
    """Without the token no body is read, however long it says it is."""
    server = serve()
    streams = []
    for _ in range(20):
        streams.append(server.socket())
        try:
            streams[-1].sendall(
                HEAD + b"Authorization: Bearer x\r\nContent-Length: 200000000\r\n\r\n" + b"x" * 3_000_000
            )
        except ConnectionError:
            pass
    assert server.client().post("initialize", {"protocolVersion": "2025-11-25"}).status == 200
    peak = next(line for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines() if "VmHWM" in line)
    assert int(peak.split()[1]) < 60_000, peak
