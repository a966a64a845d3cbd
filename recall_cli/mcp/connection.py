"""One connection over HTTP/1.1: requests in, responses out, each within a time limit.

h11 knows the protocol. The standard library's ``http.server`` reads headers
with the parser for e-mail, which takes a bare CR for a line break and drops
what comes after a line that it does not understand: behind a proxy, two readers
of one request then disagree where it ends. Its time limits are for a single
read; here one is for the whole of a head or a body, so that a byte now and then
keeps no thread.
"""

from __future__ import annotations

import re
import select
import socket
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus

import h11

from recall_cli.streams import wait_for
from store.value import value

MOST_HEAD = 16 << 10  # bytes of a request line and its headers
_READ = 16 << 10  # bytes at a time
_IDLE = 75.0  # seconds that a connection may wait for its next request
_HEAD_TIME = 10.0  # seconds for a request line and its headers, once they have begun
_BODY_TIME = 30.0  # seconds for a body or a response ...
_PACE = 64 << 10  # ... and one more for each so many bytes of it that have passed
_LINGER = 2.0  # seconds for a client to read the last answer: what it still sends would reset the connection

# A head's end, or before it what h11 would take. A line break without CR and a folded line are not what every reader
# takes for the same; a run of blanks costs h11 time by its square, in which no other thread works.
_END = re.compile(rb"\n\r\n|((?<!\r)\n|\n[ \t]|[ \t]{64})")
_CONTINUE = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
_SINGLE = {"authorization", "origin", "content-type", "expect"}  # beside those that h11 takes only once
_REASONS = {431: "a chunk's size or a trailer is too long", 501: "the only Transfer-Encoding is chunked"}


class Refused(Exception):
    """A request that is answered with an error status."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, headers or {}


class Gone(Exception):
    """The client has closed the connection, or is as slow as if it had."""


@value
class Request:
    """A request's head.

    Attributes:
        path: without the query.
        headers: by name in lower case.
    """

    method: str
    path: str
    headers: Mapping[str, str]


@value
class Response:
    """What is answered; ``body`` is JSON, or nothing."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] | None = None


class Room:
    """Bytes of request bodies that all connections together may hold."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Raises Refused if there is no room now."""
        with self._lock:
            if size > self._left:
                raise Refused(503, "too much is being worked on; try again in a moment", {"Retry-After": "1"})
            self._left -= size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._left += size


class Connection:
    """One client's connection, used by one thread.

    Attributes:
        peer: the client's address.
        waiting_since: when it began to wait for a request; None while it works on one. Only connections that wait
            are closed to make room for others.
    """

    def __init__(self, stream: socket.socket, peer: str) -> None:
        self.peer = peer
        self.waiting_since: float | None = time.monotonic()
        self._stream = stream
        self._lock = threading.Lock()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=MOST_HEAD)
        self._asks_head = False  # for a response without its body

    def request(self) -> Request:
        """The next request's head.

        Raises:
            Refused: it is malformed, too long or too slow; nothing after it can be understood.
            Gone: there is no more.
        """
        self.waiting_since = time.monotonic()
        self._asks_head = False
        deadline, begun = self.waiting_since + _IDLE, False
        while True:
            came = self._http.trailing_data[0]
            _check_head(came)
            event = self._next()
            if isinstance(event, h11.Request):
                break
            if came and not begun:
                begun, deadline = True, time.monotonic() + _HEAD_TIME
            try:
                self._http.receive_data(self._read(deadline))
            except TimeoutError:
                if begun:
                    raise Refused(408, "the request took too long") from None
                raise Gone from None
        with self._lock:
            if self.waiting_since is None:  # it was closed to make room
                raise Gone
            self.waiting_since = None
        self._asks_head = event.method == b"HEAD"
        request = _checked(event)
        if "transfer-encoding" not in request.headers and not int(request.headers.get("content-length", 0)):
            self._next()  # its end, which came with its head
        return request

    def body(self, request: Request, most: int, room: Room) -> bytearray:
        """The request's body. The caller gives its bytes back to the room, those of a body that was cut off too.

        Raises:
            Refused: it is malformed, too long or too slow.
            Gone: the client is, before its end.
        """
        too_long = Refused(413, f"the body has more than the {most:,} bytes allowed")
        if int(request.headers.get("content-length", 0)) > most:
            raise too_long
        taken, begun = bytearray(), time.monotonic()
        try:
            while self._http.their_state is h11.SEND_BODY:
                event = self._next()
                if isinstance(event, h11.Data):
                    if len(taken) + len(event.data) > most:
                        raise too_long
                    room.take(len(event.data))
                    taken += event.data
                elif event is h11.NEED_DATA:
                    if self._http.they_are_waiting_for_100_continue:
                        self._send(self._http.send(_CONTINUE))
                    self._http.receive_data(self._read(begun + _BODY_TIME + len(taken) / _PACE))
        except BaseException as problem:
            room.give_back(len(taken))
            if isinstance(problem, TimeoutError):
                raise Refused(408, "the body took too long") from None
            raise
        return taken

    def is_gone(self) -> bool:
        """Whether the client has closed its side while it waits for an answer."""
        if not wait_for({self._stream.fileno(): select.POLLIN}, 0):
            return False
        try:
            return not self._stream.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def respond(self, response: Response, *, last: bool) -> bool:
        """Send it; whether there may be another request. Raises Gone if the client does not take it in time.

        Args:
            last: whether to take no more requests.
        """
        named = {"Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())}
        if response.body:
            named["Content-Type"] = "application/json"
        if response.status != 204:  # which has none, by definition
            named["Content-Length"] = str(len(response.body))
        named |= {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(response.headers or {})}
        # A request that was not read to its end leaves no place where the next one would begin.
        if last or self._http.their_state in (h11.SEND_BODY, h11.ERROR):
            named["Connection"] = "close"
        reason = HTTPStatus(response.status).phrase
        head = h11.Response(status_code=response.status, headers=list(named.items()), reason=reason)
        body = b"" if self._asks_head else response.body
        events = (head, h11.Data(data=body), h11.EndOfMessage())
        self._send(b"".join(self._http.send(each) for each in events))
        if self._http.our_state is not h11.DONE:  # one of both wants to close
            return False
        self._http.start_next_cycle()
        return True

    def evict(self) -> bool:
        """Close it from another thread, which its own notices; False if it works on a request."""
        with self._lock:  # under which it is not closed, and its descriptor not another's
            if self.waiting_since is None:
                return False
            self.waiting_since = None
            try:
                self._stream.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already
            return True

    def close(self) -> None:
        """Close it from its own thread. A client is given a moment to read the last answer, and to close its side."""
        with self._lock:
            self.waiting_since = 0.0  # it is the first to go
        try:
            self._stream.shutdown(socket.SHUT_WR)
            ends = time.monotonic() + _LINGER
            while time.monotonic() < ends:
                self._read(ends)
        except (OSError, Gone):
            pass
        with self._lock:
            self._stream.close()

    def _next(self) -> type[h11.NEED_DATA | h11.PAUSED] | h11.Event:
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as problem:
            # After a colon h11 quotes what came, which may be a token.
            reason = f"the request is malformed: {str(problem).partition(':')[0]}"
            raise Refused(problem.error_status_hint, _REASONS.get(problem.error_status_hint, reason)) from None

    def _read(self, deadline: float) -> bytes:
        """Raises Gone at the end of the stream, and TimeoutError."""
        self._stream.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self._stream.recv(_READ)
        except TimeoutError:
            raise
        except OSError:
            raise Gone from None
        if not data:
            raise Gone
        return data

    def _send(self, data: bytes) -> None:
        begun, left = time.monotonic(), memoryview(data)
        try:
            while left:
                deadline = begun + _BODY_TIME + (len(data) - len(left)) / _PACE
                self._stream.settimeout(max(0.001, deadline - time.monotonic()))
                left = left[self._stream.send(left) :]
        except OSError:
            raise Gone from None


def _check_head(came: bytes) -> None:
    """Raises Refused if what has come of a head is too long, or nothing that h11 should see."""
    if came[:1] == b"\x16":
        raise Refused(400, "this is not HTTP; for TLS put a reverse proxy in front")
    found = _END.search(came)
    if (found.start() if found else len(came)) > MOST_HEAD:
        raise Refused(431, f"the request's headers have more than {MOST_HEAD:,} bytes")
    if found and found[1]:
        raise Refused(400, "a line is folded, ends without CRLF, or has too many blanks")


def _checked(event: h11.Request) -> Request:
    """The request. Raises Refused if it can be read in more than one way."""
    if event.http_version not in (b"1.0", b"1.1"):
        raise Refused(505, "this is HTTP/1.1")
    headers: dict[str, str] = {}
    for name, text in ((name.decode("latin-1"), text.decode("latin-1")) for name, text in event.headers):
        if name in headers and (name in _SINGLE or name.startswith("mcp-")):
            raise Refused(400, f"the header {name} came twice")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    if "transfer-encoding" in headers and ("content-length" in headers or event.http_version == b"1.0"):
        raise Refused(400, "Transfer-Encoding is not for HTTP/1.0, and not beside Content-Length")
    if headers.get("expect", "100-continue").lower() != "100-continue":
        raise Refused(417, "only 100-continue can be expected")
    target = event.target.decode("ascii")
    if target[:7].lower() == "http://":  # as it is sent to proxies
        target = "/" + target[7:].partition("/")[2]
    return Request(event.method.decode("ascii"), target.partition("?")[0], headers)
