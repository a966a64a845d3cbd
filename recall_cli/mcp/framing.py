"""Bytes and messages: one message a line, and no line so bad that it cannot be answered."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from store.value import value

LONGEST_LINE = 256 << 20  # bytes; the largest text that can be stored has 64 MiB, before JSON escapes it

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
INTERNAL_ERROR, RESOURCE_MISSING, UNSUPPORTED_VERSION = -32603, -32002, -32022
HEADER_MISMATCH, CANCELLED = -32020, -32800  # over HTTP; the second is what other protocols of editors use

_HEAD = 64 << 10  # of a line that is too long, kept to find its id in

# A string, or a bracket: enough to know how deep a place in a JSON text is. A string that is cut off ends with the
# text: looked at as no string it would be searched through again from every quote in it.
_MARKS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
_ID = re.compile(r'\s*:\s*(-?[0-9]{1,18}(?![0-9.eE])|"[^"\\]{0,200}")')


@value
class Broken:
    """A line that is no message.

    Attributes:
        id: of the request that it seems to be, None if that cannot be told.
    """

    code: int
    reason: str
    id: str | int | None = None

    def answer(self) -> dict[str, Any]:
        return failure(self.id, self.code, self.reason)


class Refused(Exception):
    """A request that is answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


def failure(id: str | int | None, code: int, message: str, data: Any = None) -> dict[str, Any]:
    """A JSON-RPC error response."""
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return {"jsonrpc": "2.0", "id": id, "error": error}


def encode(message: Any) -> bytes:
    """One line. In ASCII, so that no reader can take a character of it for a line break, or choke on a surrogate."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


class Lines:
    """Cuts what arrives into lines, of which the last may be incomplete until ``end``."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._buffer = bytearray()
        self._dropped = 0  # bytes of a line that is too long

    def feed(self, chunk: bytes) -> Iterator[bytes | Broken]:
        """The lines that are complete now; blank ones are left out."""
        searched = len(self._buffer)
        self._buffer += chunk
        start = 0
        while (found := self._buffer.find(b"\n", max(start, searched))) >= 0:
            yield from self._line(bytes(self._buffer[start:found]))
            start = found + 1
        del self._buffer[:start]
        if len(self._buffer) > self._longest:
            self._dropped += len(self._buffer) - _HEAD
            del self._buffer[_HEAD:]

    def end(self) -> Iterator[bytes | Broken]:
        """What the last line holds, if no line break came after it."""
        line = bytes(self._buffer)
        self._buffer.clear()
        yield from self._line(line)

    def _line(self, line: bytes) -> Iterator[bytes | Broken]:
        if self._dropped or len(line) > self._longest:
            reason = f"the line has more than the {self._longest:,} bytes allowed"
            self._dropped = 0
            yield Broken(PARSE_ERROR, reason, find_id(line[:_HEAD].decode("utf-8", "replace")))
        elif line.strip():
            yield line


def parse(line: bytes | bytearray, what: str = "line") -> Any:
    """The message or batch of a line, or Broken, which calls it ``what``."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as problem:
        reason = f"the {what} is not UTF-8: byte {problem.start} of it is 0x{line[problem.start]:02x}"
        return Broken(PARSE_ERROR, reason, find_id(line.decode("utf-8", "replace")))
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except _NotJson as problem:
        reason = f"the {what} has {problem}, which is not JSON"
    except json.JSONDecodeError as problem:
        reason = f"the {what} is not JSON: {problem.msg} at character {problem.pos:,}"
    except ValueError:
        reason = f"the {what} has a number with thousands of digits"
    except RecursionError:
        reason = f"the {what} is nested too deeply"
    return Broken(PARSE_ERROR, reason, find_id(text))


class _NotJson(ValueError):
    """A constant of JavaScript's."""


def _refuse_constant(name: str) -> Any:
    raise _NotJson(name)


def find_id(text: str) -> str | int | None:
    """The id of the request that a broken text seems to be, so that its sender need not wait for ever.

    Only one at the top of a single object counts: an id further in is an argument's.
    """
    depth = 0
    for mark in _MARKS.finditer(text):
        token = mark.group()
        if token in "{[":
            if token == "[" and not depth:
                return None  # a batch has no id
            depth += 1
        elif token in "}]":
            depth -= 1
        elif depth == 1 and token == '"id"' and (found := _ID.match(text, mark.end())):
            return found[1][1:-1] if found[1].startswith('"') else int(found[1])
    return None
