"""One connection over HTTP/1.1: requests in, responses out, each within a time limit.

A limit is for the whole of a head or a body, not for a single read: a byte now
and then keeps no thread.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from http import HTTPStatus

from recall_cli.mcp.http1 import CHUNK_SIZE, MOST_HEAD, Gone, Refused, Request, Response, Room, parsed
from recall_cli.streams import wait_for

_READ = 256 << 10  # bytes at a time
_IDLE = 75.0  # seconds that a connection may wait for its next request
_HEAD_TIME = 10.0  # seconds for a request line and its headers, once they have begun
_BODY_TIME = 30.0  # seconds for a body or a response ...
_PACE = 64 << 10  # ... and one more for each so many bytes of it that have passed
_LINGER = 2.0  # seconds for a client to read a refusal before its unread request is thrown away


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
        begun, searched = False, 0
        while True:
            while self._buffer[:2] == b"\r\n":  # a habit of old clients, after a body
                del self._buffer[:2]
            if self._buffer and not begun:
                begun = True
                deadline = min(deadline, time.monotonic() + _HEAD_TIME)
            end = self._buffer.find(b"\r\n\r\n", max(0, searched - 3))
            searched = len(self._buffer)
            if 0 <= end <= MOST_HEAD:
                break
            if len(self._buffer) > MOST_HEAD:
                raise Refused(431, f"the request's headers have more than {MOST_HEAD:,} bytes")
            if self._buffer and self._buffer != b"\r" and not 0x20 < self._buffer[0] < 0x7F:
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
        request = parsed(head)
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
            found = CHUNK_SIZE.fullmatch(self._line(taken))
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
            data = self._stream.recv(_READ)
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
        if response.status != 204:  # which has none, by definition
            named["Content-Length"] = str(len(response.body))
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
