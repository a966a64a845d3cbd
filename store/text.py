"""Text from outside: what is let in, and how it is shown.

Anything in Unicode is let in but NUL and lone surrogates, which half of the
world's readers choke on. What was let in is data for ever: wherever it is
shown to a person or a model, characters that would act on a terminal or
reorder a line are shown as escapes.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any

from store.errors import InvalidInput

AGENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

# C0 (but tab and newline) and C1 controls, DEL, and every character that Unicode
# gives a direction-changing or line-breaking effect of its own (UAX #9, UAX #14),
# with the byte order mark, the interlinear marks and the tag characters, which hide text.
_ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
    "\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_FOREVER = 1e9  # seconds
_LABEL = 256  # bytes: what may have no more is a name, and not a place for what somebody has to say

_LINE_BREAKS = re.compile("\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def check_text(field: str, value: object, *, limit: int, empty: bool = True) -> str:
    """``value``, if it is text that may be stored.

    Args:
        field: its name, for the message.
        limit: the most bytes that it may have in UTF-8.
        empty: whether the empty text is acceptable.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(value, str):
        raise InvalidInput(field=field, reason=f"must be text, not {type(value).__name__}")
    if not value and not empty:
        raise InvalidInput(field=field, reason="must not be empty")
    if "\x00" in value:
        at = value.index("\x00")
        raise InvalidInput(
            field=field, reason=f"has a NUL character at position {at}", hint="remove it, or store the data as base64"
        )
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError as problem:
        raise InvalidInput(
            field=field,
            reason=f"has a lone surrogate at position {problem.start}, which is not text",
            hint="decode the source with errors='replace'",
        ) from None
    if size > limit:
        raise InvalidInput(
            field=field,
            reason=f"has {size:,} bytes, more than the {limit:,} allowed",
            hint="store it whole with store_output (recall outputs put) or as an object, and refer to it"
            if limit > _LABEL
            else "choose a shorter one",
        )
    return value


def check_agent(value: object) -> str:
    """An agent's id, if it is one (design: 1 to 128 of A-Z a-z 0-9 . _ -)."""
    if isinstance(value, str) and AGENT_ID.fullmatch(value):
        return value
    raise InvalidInput(
        field="agent",
        reason=f"{quoted(value)} is not an agent id",
        hint="use 1 to 128 of A-Z a-z 0-9 . _ - and start with a letter or digit",
    )


def check_count(field: str, value: object, *, least: int, most: int) -> int:
    """A whole number within bounds, or InvalidInput."""
    number = check_whole(field, value)
    if not least <= number <= most:
        raise InvalidInput(field=field, reason=f"must be from {least:,} to {most:,}, not {shown_number(number)}")
    return number


def check_whole(field: str, value: object) -> int:
    """A whole number of any size, or InvalidInput."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(field=field, reason=f"must be a whole number, not {quoted(value)}")
    return value


def check_seconds(field: str, value: object) -> float:
    """A length of time that can be waited for, at most some thirty years (which stand for ever), or InvalidInput."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(field=field, reason=f"must be a number of seconds, not {quoted(value)}")
    if not value >= 0:  # NaN too
        raise InvalidInput(field=field, reason=f"must be 0 or more seconds, not {quoted(value)}")
    return float(min(value, _FOREVER))


def shown_number(value: int) -> str:
    """A whole number in a message, also one with more digits than Python is willing to print."""
    return f"{value:,}" if abs(value) < 10**40 else f"about {'-' if value < 0 else ''}10^{value.bit_length() * 3 // 10}"


def quoted(value: object, most: int = 80) -> str:
    """A foreign value inside a message: one line, harmless, not long."""
    try:
        text = neutral_line(str(value))
    except Exception:  # noqa: BLE001 (foreign code, or a number too long to print; a refusal must not fail over it)
        text = f"({type(value).__name__} that cannot be shown)"
    return "'" + (text if len(text) <= most else cut(text, most) + "…") + "'"


def neutral(text: str) -> str:
    """``text`` with every active character shown as an escape; tabs and line breaks stay."""
    if text.isascii() and text.isprintable():
        return text
    return _ACTIVE.sub(_escape, plain_breaks(text))


def neutral_line(text: str) -> str:
    """``text`` on one line: line breaks and tabs are shown as escapes too."""
    if text.isascii() and text.isprintable():
        return text
    return _ACTIVE.sub(_escape, text).replace("\n", "\\n").replace("\t", "\\t")


def plain_breaks(text: str) -> str:
    """Every kind of line break as a newline."""
    return _LINE_BREAKS.sub("\n", text)


def lines_of(text: str) -> list[str]:
    """The lines of ``text``; CR, VT, FF, NEL, U+2028 and U+2029 break lines too."""
    return _LINE_BREAKS.split(text)


def json_for_display(text: str) -> str:
    """JSON text with active characters as \\u escapes; it stays the same document."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _ACTIVE.sub(lambda match: _json_escape(match.group()), text)


def _json_escape(char: str) -> str:
    if char in "\n\r":
        return char  # between tokens; inside strings JSON has escaped them already
    code = ord(char)
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def cut(text: str, most_bytes: int) -> str:
    """The longest opening of ``text`` within ``most_bytes`` of UTF-8, cut between characters.

    What a reader sees as one character is kept or left as a whole: combining
    marks, variation selectors, joined emoji, flags and skin tones.
    """
    if len(text) * 4 <= most_bytes:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= most_bytes:
        return text
    opening = data[: max(0, most_bytes)].decode("utf-8", "ignore")
    end = len(opening)
    floor = max(0, end - 64)
    while end > floor and _joins(text, end):
        end -= 1
    return text[: end if end > floor or floor == 0 else len(opening)]


def _joins(text: str, at: int) -> bool:
    """Whether the characters before and after ``at`` are parts of one."""
    if at >= len(text):
        return False
    before, after = text[at - 1], text[at]
    if after in "\u200d\ufe0e\ufe0f\u20e3" or before == "\u200d" or "\U0001f3fb" <= after <= "\U0001f3ff":
        return True
    if unicodedata.combining(after) or unicodedata.category(after) in ("Mn", "Me"):
        return True
    if _is_flag_letter(before) and _is_flag_letter(after):
        run = 0
        while run < at and _is_flag_letter(text[at - 1 - run]):
            run += 1
        return run % 2 == 1
    return before == "\r" and after == "\n"


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def json_value(field: str, value: Any) -> str:
    """Arguments or results as text: a string as it is, anything else as compact JSON.

    Raises:
        InvalidInput: NaN, infinity, nested too deeply, or not JSON at all.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    import json

    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        what = "has NaN, infinity, a cycle or a number of thousands of digits, which JSON cannot carry"
        raise InvalidInput(field=field, reason=what) from None
    except RecursionError:
        raise InvalidInput(field=field, reason="is nested too deeply for JSON", hint="store it as text") from None
    except TypeError as problem:
        raise InvalidInput(field=field, reason=f"is not JSON: {problem}") from None
