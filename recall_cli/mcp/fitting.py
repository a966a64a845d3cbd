"""Results as texts that clients read: none is too long for them."""

from __future__ import annotations

import json
from typing import Any

from recall_cli.mcp.tool import Tool
from store.errors import RecallError
from store.text import cut

LONGEST_ANSWER = 8 << 20  # bytes of a line; published clients read no longer ones
_ROOM = LONGEST_ANSWER - (64 << 10)  # of the text alone, escaped as it is in the line
_MOST_OF_A_TEXT = (64 << 10, 4 << 10, 256)  # bytes that are left of each, until all of them fit

_ASKS_FOR_LESS = ("limit", "length")


class AnswerTooLong(RecallError):
    """A result that no client would read."""

    code = "answer_too_long"
    template = "the answer has {size:,} bytes, more than the {most:,} that clients read"


def result_text(tool: Tool, result: Any) -> str:
    """A tool's result as the JSON that the model reads.

    A tool that can be asked for less refuses to tell more than fits, since a
    part that was asked for is worth more than one that was cut. Any other
    result has its long texts cut, which is said in each: what the tool did is
    done, and after an error the model would do it again.

    Raises:
        AnswerTooLong: it does not fit; the hint names the arguments that make it shorter, where there are any.
    """
    text = _compact(result)
    size = _size(text)
    if size <= _ROOM:
        return text
    less = [each.name for each in tool.params if each.name in _ASKS_FOR_LESS]
    if not less or (isinstance(result, list) and len(result) == 1):
        for most in _MOST_OF_A_TEXT:
            text = _compact(_shortened(result, most))
            if _size(text) <= _ROOM:
                return text
    hint = f"ask for less with {' or '.join(less)}" if less else ""
    raise AnswerTooLong(size=size, most=_ROOM, hint=hint)


def _size(text: str) -> int:
    """Bytes of the text in the line; what is certainly short enough is not encoded to count them."""
    return len(text) if len(text) * 12 <= _ROOM else len(json.dumps(text))


def _shortened(value: Any, most: int) -> Any:
    if isinstance(value, str):
        kept = cut(value, most)
        lost = len(value.encode()) - len(kept.encode())
        return f"{kept}… [{lost:,} more bytes, too many for this answer]" if lost else value
    if isinstance(value, list):
        return [_shortened(each, most) for each in value]
    if isinstance(value, dict):
        return {name: _shortened(each, most) for name, each in value.items()}
    return value


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
