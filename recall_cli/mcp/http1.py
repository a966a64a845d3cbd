"""HTTP/1.1 on one connection: requests in, responses out, each within a time limit.

The standard library's ``http.server`` reads headers with the parser for e-mail,
which takes a bare CR for a line break and drops what comes after a line that it
does not understand: behind a proxy, two readers of one request then disagree
where it ends. Its time limits are for a single read, so a byte now and then
keeps a thread for ever. What MCP needs of HTTP is little; here it is, strict.
"""

from __future__ import annotations

import re
import select
import socket
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus

from recall_cli.streams import wait_for
from store.value import value

MOST_HEAD = 32 << 10  # bytes of a request line and its headers
_CHUNK = 256 << 10
_IDLE = 75.0  # seconds that a connection may wait for its next request
_HEAD_TIME = 10.0  # seconds for a request line and its headers, once they have begun
_BODY_TIME = 30.0  # seconds for a body or a response ...
_PACE = 64 << 10  # ... and one more for each so many bytes of it that have passed
_LINGER = 2.0  # seconds for a client to read a refusal before its unread request is thrown away

_REQUEST_LINE = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
_HEADER = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)", re.ASCII)
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?")
_LISTS = ("accept", "connection")  # the headers of which more than one may be read as one


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
        old: HTTP/1.0, as some proxies speak it.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    old: bool

    @property
    def keeps(self) -> bool:
        """Whether the client may send another one on the same connection."""
        options = [each.strip().lower() for each in self.headers.get("connection", "").split(",")]
        return not self.old and "close" not in options


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
        self._stream = stream
        self.peer = peer
        self.waiting_since: float | None = time.monotonic()
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._unread = False  # whether a body may follow that nobody has read
        self._expects = False

    # -- what comes in --------------------------------------------------------------------------

    def request(self) -> Request | None:
        """The next request's head; None where there is no more.

        Raises:
            Refused: it is malformed, too long or too slow; nothing after it can be understood.
        """
        self.waiting_since = time.monotonic()
        deadline = self.waiting_since + _IDLE
        begun = False
        while True:
            while self._buffer[:2] == b"\r\n":  # a habit of old clients, after a body
                del self._buffer[:2]
            if self._buffer and not begun:
                begun = True
                deadline = min(deadline, time.monotonic() + _HEAD_TIME)
            end = self._buffer.find(b"\r\n\r\n")
            if 0 <= end <= MOST_HEAD:
                break
            if len(self._buffer) > MOST_HEAD:
                raise Refused(431, f"the request's headers have more than {MOST_HEAD:,} bytes")
            if self._buffer and not 0x20 < self._buffer[0] < 0x7F:
                raise Refused(400, "this is not HTTP; for TLS put a reverse proxy in front")
            try:
                self._receive(deadline)
            except Gone:
                if begun and time.monotonic() >= deadline:
                    raise Refused(408, "the request took too long") from None
                return None
        head = self._buffer[:end].decode("latin-1")
        del self._buffer[: end + 4]
        with self._lock:
            if self.waiting_since is None:  # it was closed to make room
                return None
            self.waiting_since = None
        self._unread = True
        request = _parsed(head)
        coded, length = request.headers.get("transfer-encoding"), request.headers.get("content-length")
        self._unread = coded is not None or length not in (None, "0")
        expected = request.headers.get("expect", "").lower()
        if expected not in ("", "100-continue"):
            raise Refused(417, "only 100-continue can be expected")
        self._expects = bool(expected) and not request.old
        return request

    def body(self, request: Request, most: int, room: Room) -> bytearray:
        """The request's body. The caller gives its bytes back to the room, those of a body that was cut off too.

        Raises:
            Refused: it is malformed, too long or too slow.
            Gone: the client is, before its end.
        """
        coded, length = request.headers.get("transfer-encoding"), request.headers.get("content-length")
        taken = _Body(most, room)
        try:
            if coded is not None:
                if length is not None or request.old:
                    raise Refused(400, "Transfer-Encoding is not for HTTP/1.0, and not beside Content-Length")
                if coded.lower() != "chunked":
                    raise Refused(501, "the only Transfer-Encoding is chunked")
                self._continue()
                self._chunks(taken)
            elif length is not None:
                if not (length.isascii() and length.isdigit() and len(length) < 19):
                    raise Refused(400, "Content-Length must be a number")
                taken.check(int(length))
                if int(length):
                    self._continue()
                self._move(int(length), taken)
            self._unread = False
        except BaseException:
            room.give_back(len(taken.data))
            raise
        return taken.data

    def _continue(self) -> None:
        if self._expects and not self._buffer:
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _chunks(self, taken: _Body) -> None:
        while True:
            found = _SIZE.fullmatch(self._line(taken))
            if found is None:
                raise Refused(400, "a chunk has no size")
            size = int(found[1], 16)
            taken.check(size)
            if not size:
                break
            self._move(size, taken)
            if self._line(taken):
                raise Refused(400, "a chunk is longer than its size")
        trailers = 0
        while line := self._line(taken):  # they are of no use here
            trailers += len(line)
            if trailers > MOST_HEAD:
                raise Refused(431, "the trailers are too long")

    def _line(self, taken: _Body) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > 4096:
                raise Refused(400, "a chunk's size is too long")
            self._receive_more(taken)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _move(self, size: int, taken: _Body) -> None:
        """Move so many bytes of the body into what was taken."""
        while True:
            part = min(size, len(self._buffer))
            if part:
                taken.add(self._buffer[:part])
                del self._buffer[:part]
                size -= part
            if not size:
                return
            self._receive_more(taken)

    def _receive_more(self, taken: _Body) -> None:
        deadline = taken.begun + _BODY_TIME + len(taken.data) / _PACE
        try:
            self._receive(deadline)
        except Gone:
            if time.monotonic() >= deadline:
                raise Refused(408, "the body took too long") from None
            raise

    def _receive(self, deadline: float) -> None:
        """Raises Gone at the end of the stream, and when the time is over."""
        self._stream.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self._stream.recv(_CHUNK)
        except OSError:
            raise Gone from None
        if not data:
            raise Gone
        self._buffer += data

    def is_gone(self) -> bool:
        """Whether the client has closed its side while it waits for an answer."""
        if not wait_for({self._stream.fileno(): select.POLLIN}, 0):
            return False
        try:
            return not self._stream.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    @property
    def is_read(self) -> bool:
        """Whether the request was read to its end, so that the next one begins where it ended."""
        return not self._unread

    # -- what goes out --------------------------------------------------------------------------

    def respond(self, response: Response, *, keep: bool, without_body: bool = False) -> None:
        """Send it. Raises Gone if the client does not take it in time."""
        named = {"Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())}
        if response.body:
            named["Content-Type"] = "application/json"
        if response.status not in (202, 204) or response.body:
            named["Content-Length"] = str(len(response.body))
        elif response.status == 202:
            named["Content-Length"] = "0"
        named |= {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", **(response.headers or {})}
        if not keep:
            named["Connection"] = "close"
        lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
        head = "\r\n".join([*lines, *(f"{name}: {each}" for name, each in named.items()), "", ""])
        self._send(head.encode("latin-1") + (b"" if without_body else response.body))

    def _send(self, data: bytes) -> None:
        begun, left = time.monotonic(), memoryview(data)
        try:
            while left:
                deadline = begun + _BODY_TIME + (len(data) - len(left)) / _PACE
                self._stream.settimeout(max(0.001, deadline - time.monotonic()))
                left = left[self._stream.send(left) :]
        except OSError:
            raise Gone from None

    # -- its end --------------------------------------------------------------------------------

    def evict(self) -> bool:
        """Close it from another thread, if it only waits for a request; False if it works on one."""
        with self._lock:
            if self.waiting_since is None:
                return False
            self.waiting_since = None
        self.cut()
        return True

    def cut(self) -> None:
        """Close it from another thread, whatever it does; its own thread notices."""
        try:
            self._stream.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is closed already

    def close(self) -> None:
        """Close it from its own thread. A client that still sends is given a moment to read the refusal."""
        with self._lock:
            self.waiting_since = 0.0  # it is the first to go
        try:
            self._stream.shutdown(socket.SHUT_WR)
            if self._unread or self._buffer:
                ends = time.monotonic() + _LINGER
                while time.monotonic() < ends:
                    self._receive(ends)
                    self._buffer.clear()
        except (OSError, Gone):
            pass
        self._stream.close()


class _Body:
    """What has come of a body."""

    def __init__(self, most: int, room: Room) -> None:
        self.data = bytearray()
        self.begun = time.monotonic()
        self._most, self._room = most, room

    def check(self, size: int) -> None:
        if len(self.data) + size > self._most:
            raise Refused(413, f"the body has more than the {self._most:,} bytes allowed")

    def add(self, part: bytearray) -> None:
        self._room.take(len(part))
        self.data += part


def _parsed(head: str) -> Request:
    line, *rest = head.split("\r\n")
    found = _REQUEST_LINE.fullmatch(line)
    if found is None:
        raise Refused(400, "the request line is malformed")
    method, target, major, minor = found.groups()
    if (major, minor) not in (("1", "0"), ("1", "1")):
        raise Refused(505, "this is HTTP/1.1")
    headers: dict[str, str] = {}
    for each in rest:
        parts = _HEADER.fullmatch(each)
        if parts is None:
            raise Refused(400, "a header line is malformed")
        name, text = parts[1].lower(), parts[2].rstrip(" \t")
        if name not in headers:
            headers[name] = text
        elif name in _LISTS:
            headers[name] += f", {text}"
        elif name in _SINGLE or name.startswith("mcp-"):
            raise Refused(400, f"the header {name} came twice")
    if minor == "1" and "host" not in headers:
        raise Refused(400, "the header Host is missing")
    if target[:7].lower() == "http://":  # as it is sent to proxies
        target = "/" + target[7:].partition("/")[2]
    return Request(method, target.partition("?")[0], headers, minor == "0")


_SINGLE = (
    "host",
    "content-length",
    "transfer-encoding",
    "content-type",
    "authorization",
    "origin",
    "expect",
)
