"""References from a head to the immutable objects with the older records, and what they are in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from store.value import value

_MOST = 2**53  # what every reader of JSON, and SQLite, can hold


@value
class Segment:
    """A reference to an immutable object with the lines ``f`` to ``l``.

    Attributes:
        k: its key below the agent's prefix.
        e: the epoch under which it was written; it may be collected only below the head's.
        hash: the chain's hash after its last line.
        sha: SHA-256 of its plain bytes, in hexadecimal digits.
        n: the number of its plain bytes.
    """

    k: str
    e: int
    f: int
    l: int  # noqa: E741 (the field's name in the format)
    hash: bytes
    sha: str
    n: int


@value
class Page:
    """A reference to an index page, which lists the segments of the lines ``f`` to ``l``."""

    k: str
    f: int
    l: int  # noqa: E741 (the field's name in the format)
    hash: bytes
    depth: int


def segment_of(each: Mapping[str, Any]) -> Segment:
    """A reference to a segment as JSON has it. Raises LookupError, TypeError or ValueError."""
    return Segment(
        text_in(each["k"]),
        number_in(each["e"]),
        number_in(each["f"]),
        number_in(each["l"]),
        bytes.fromhex(each["hash"]),
        text_in(each["sha"]),
        number_in(each["n"]),
    )


def page_of(each: Mapping[str, Any]) -> Page:
    """A reference to an index page as JSON has it. Raises LookupError, TypeError or ValueError."""
    return Page(
        text_in(each["k"]),
        number_in(each["f"]),
        number_in(each["l"]),
        bytes.fromhex(each["hash"]),
        number_in(each["depth"]),
    )


def as_json(each: Any) -> dict[str, Any]:
    """A value with the fields of the format, for JSON."""
    values = {one.name.rstrip("_"): getattr(each, one.name) for one in fields(each)}
    return {name: one.hex() if isinstance(one, bytes) else one for name, one in values.items()}


def text_in(each: Any) -> str:
    """A text out of JSON. Raises TypeError or ValueError."""
    if not isinstance(each, str):
        raise TypeError("not a text")
    each.encode()  # half a surrogate pair is a ValueError: nothing could store it
    return each


def number_in(each: Any) -> int:
    """A whole number out of JSON. Raises TypeError."""
    if isinstance(each, bool) or not isinstance(each, int) or not 0 <= each <= _MOST:
        raise TypeError("not a whole number")
    return each
