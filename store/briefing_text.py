"""How stored text is written into a briefing: harmless, in its place, within its room."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime

from store.clock import parse_rfc3339
from store.text import cut, neutral, neutral_line

MOST_WORD = 128  # bytes of a name on a line with others

_PLAIN_WORD = re.compile(r"[\w.:/@+-]+")
_NOT_PLAIN = re.compile(r"""[\s="'`\\]""")
_UTC = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z", re.ASCII)


def byte_size(text: str) -> int:
    """The size of ``text`` in UTF-8, in bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def number(value: int) -> str:
    """A whole number, at most 20 characters: a foreign log may hold any."""
    return str(value) if -(10**19) < value < 10**19 else "huge"


def block(text: str) -> str:
    """``text`` as it stands after a label: further lines are indented by four spaces."""
    return neutral(text).replace("\n", "\n    ")


def fit(text: str, room: int, show: Callable[[str], str]) -> tuple[str, int]:
    """The opening of ``text`` that takes at most ``room`` bytes when shown, and the bytes left out.

    Costs what is shown, but for measuring ``text``. ``show`` may not make a
    text shorter, and shows "" as "".
    """
    room = max(room, 0)
    whole = size = byte_size(text)
    # cut() looks one character past the end; what follows cannot matter.
    piece = text if whole <= room else cut(text[: room + 8], room)
    shown = show(piece)
    while (taken := byte_size(shown)) > room:
        size = byte_size(piece)
        piece = cut(piece, min(size - 1, size * room // taken))
        shown = show(piece)
    return shown, whole - byte_size(piece)


def entry(label: str, text: str, room: int) -> tuple[str, int]:
    """A label and a text of any length and number of lines, and the bytes left out of the text.

    Takes at most ``room`` bytes, if that is enough for the label and the
    remark that says how much was cut; a text smaller than that stays whole.
    """
    before = byte_size(label) + 1
    shown, lost = fit(text, room - before, block)
    if not lost:
        return _labelled(label, shown), 0
    whole = byte_size(text)
    shown, lost = fit(text, room - before - byte_size(_cut_remark(whole)), block)
    shortened = _labelled(label, shown) + _cut_remark(lost)
    if whole <= MOST_WORD and byte_size(unchanged := _labelled(label, block(text))) <= byte_size(shortened):
        return unchanged, 0
    return shortened, lost


def _labelled(label: str, shown: str) -> str:
    return f"{label} {shown}" if shown and not shown.startswith("\n") else label + shown


def _cut_remark(lost: int) -> str:
    return f"\n  ({lost:,} bytes cut)"


def quote(text: str) -> str:
    """``text`` in double quotes, on one line; a quote or backslash of its own gets a backslash."""
    return '"' + _inner(text) + '"'


def _inner(text: str) -> str:
    return neutral_line(text.replace("\\", "\\\\").replace('"', '\\"'))


def word(text: str, room: int = MOST_WORD) -> str:
    """A name: as it is if it is a plain word, quoted otherwise, and cut with a mark if long."""
    if len(text) <= room and _PLAIN_WORD.fullmatch(text) and byte_size(text) <= room:
        return text
    shown, lost = fit(text, room, _inner)
    return f'"{shown}"' + ("…" if lost else "")


def value(text: str, room: int) -> tuple[str, int]:
    """A value among others on a line, and the bytes left out; quoted unless nothing in it could mislead."""
    if 0 < len(text) <= room and text[0] != "(" and not _NOT_PLAIN.search(text):
        shown = neutral_line(text)
        if shown == text and byte_size(text) <= room:
            return text, 0
    shown, lost = fit(text, room, _inner)
    return f'"{shown}"' + ("…" if lost else ""), lost


def moment(at: str) -> tuple[str, datetime | None]:
    """A stored time in whole seconds, and as a datetime if it is one."""
    plain = _UTC.fullmatch(at)
    try:
        known = parse_rfc3339(plain[1] + "Z" if plain else at)
        return known.strftime("%Y-%m-%dT%H:%M:%SZ") if not plain else plain[1] + "Z", known
    except (ValueError, OverflowError):
        return word(at, 20), None


def age(since: datetime | None, now: datetime) -> str:
    """How long ago, roughly; "" if that is not known or in the future."""
    seconds = int((now - since).total_seconds()) if since else -1
    if seconds < 0:
        return ""
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48)):
        if seconds < most * length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds // 86400} days ago"
