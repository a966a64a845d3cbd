"""The little of HTTP/1.1 that MCP needs, read strictly: what a request and a response are.

The standard library's ``http.server`` reads headers with the parser for e-mail,
which takes a bare CR for a line break and drops what comes after a line that it
does not understand: behind a proxy, two readers of one request then disagree
where it ends. Its time limits are for a single read, so a byte now and then
keeps a thread for ever.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping

from store.value import value

MOST_HEAD = 32 << 10  # bytes of a request line and its headers

_REQUEST_LINE = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
_HEADER = re.compile(r"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)", re.ASCII)
CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?")
_SINGLE = {"host", "content-length", "transfer-encoding", "content-type", "authorization", "origin", "expect"}
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


def parsed(head: str) -> Request:
    """A request line and its headers. Raises Refused if they can be read in more than one way."""
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
