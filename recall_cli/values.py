"""Values as people type them, and times as people read them."""

from __future__ import annotations

import re
import sys
from typing import Any

from store.errors import InvalidInput
from store.text import quoted

MOST_BYTES = 64 * 1024 * 1024  # the largest blob that a store takes

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[smhdw]))+", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)


class LongValues:
    """Reads values that may be given as ``-`` (standard input) or ``@FILE``.

    One object a command, since standard input can be read only once.
    """

    def __init__(self) -> None:
        self._taken_by = ""

    def read(self, field: str, value: str, *, most: int = MOST_BYTES) -> str:
        """The text that ``value`` stands for, byte for byte; ``@@x`` is the text ``@x``.

        Raises:
            InvalidInput: it cannot be read, is not UTF-8, or has more than ``most`` bytes.
        """
        if value == "-":
            data = self._stdin(field, most)
            source = "standard input"
        elif value.startswith("@@"):
            return _argument(field, value[1:])
        elif value.startswith("@"):
            data = _file(field, value[1:], most)
            source = quoted(value[1:])
        else:
            return _argument(field, value)
        if len(data) > most:
            raise InvalidInput(field=field, reason=f"{source} has more than {most:,} bytes")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as problem:
            raise InvalidInput(
                field=field,
                reason=f"{source} is not UTF-8 text (byte {problem.start})",
                hint="convert it first, for example with: iconv or base64",
            ) from None

    def _stdin(self, field: str, most: int) -> bytes:
        if self._taken_by:
            raise InvalidInput(field=field, reason=f"standard input was already read for {self._taken_by}")
        self._taken_by = field
        if sys.stdin is None:
            raise InvalidInput(field=field, reason="standard input is closed")
        try:
            return sys.stdin.buffer.read(most + 1)
        except OSError as problem:
            reason = f"standard input cannot be read: {problem.strerror}"
            raise InvalidInput(field=field, reason=reason) from problem


def _file(field: str, path: str, most: int) -> bytes:
    if not path:
        raise InvalidInput(field=field, reason="@ needs a file name", hint="@FILE reads a file; @@ is a literal @")
    try:
        with open(path, "rb") as file:
            return file.read(most + 1)
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InvalidInput(
            field=field, reason=f"{quoted(path)} cannot be read: {reason}", hint="@FILE reads a file; @@ is a literal @"
        ) from problem


def _argument(field: str, value: str) -> str:
    # Bytes of the command line that are not UTF-8 arrive as lone surrogates (PEP 383).
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise InvalidInput(
            field=field, reason=f"is not UTF-8 text (character {problem.start})", hint="read it from a file with @FILE"
        ) from None
    return value


def json_document(field: str, text: str, *, hint: str = "") -> Any:
    """The value of a JSON text; NaN and infinity, which are not JSON, are refused.

    Args:
        hint: what to do where it is not JSON.

    Raises:
        InvalidInput: it is not.
    """
    import json

    def refuse(name: str) -> Any:
        raise InvalidInput(field=field, reason=f"has {name}, which JSON cannot carry")

    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as problem:
        where = f"line {problem.lineno}, column {problem.colno}"
        raise InvalidInput(field=field, reason=f"is not JSON: {problem.msg.lower()} ({where})", hint=hint) from None
    except ValueError:
        raise InvalidInput(field=field, reason="has a number with too many digits") from None
    except RecursionError:
        raise InvalidInput(field=field, reason="is nested too deeply") from None


def duration(field: str, value: str) -> float:
    """Seconds from ``90s``, ``15m``, ``1h30m``, ``2d``; a bare number is seconds.

    Raises:
        InvalidInput: it is none of these.
    """
    compact = value.replace(" ", "")
    if re.fullmatch(r"\d+(\.\d+)?", compact, re.ASCII):
        seconds = float(compact)
    elif _DURATION.fullmatch(compact):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(compact))
    else:
        raise InvalidInput(
            field=field, reason=f"{quoted(value)} is not a duration", hint="write it as 90s, 15m or 1h30m"
        )
    if seconds > 100 * 365 * 86400:
        raise InvalidInput(field=field, reason=f"{quoted(value)} is more than a hundred years")
    return seconds


def age(seconds: float) -> str:
    """A span as a person says it: ``12s``, ``3m``, ``2h 5m``, ``30d``; never more than two parts."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if hours == 0:
        return f"{minutes}m"
    if days == 0:
        return f"{hours}h {minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{days}d {hours % 24}h" if days < 7 and hours % 24 else f"{days}d"
