"""The file that a briefing is written to: of ``--briefing-file``, or the one that ``recall exec`` makes."""

from __future__ import annotations

import os

from store.errors import Unavailable
from store.text import quoted


class BriefingUnwritable(Unavailable):
    """The briefing's file cannot be written."""

    code = "briefing_unwritable"
    template = "{path} cannot be written: {reason}"
    hint_template = "name a file in a directory that may be written and has room"


def open_briefing(path: str, access: int = os.O_WRONLY) -> int:
    """A descriptor of the file, emptied; a new one is for its owner alone, since briefings hold what agents were told.

    Raises:
        BriefingUnwritable: it cannot be opened.
    """
    try:
        return os.open(path, access | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as problem:
        raise _unwritable(path, problem) from problem


def write_briefing(path: str, text: str) -> None:
    """Write the briefing and a line break in the place of what the file held.

    Raises:
        BriefingUnwritable: there is no such directory, no room, ….
    """
    descriptor = open_briefing(path)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as problem:
        raise _unwritable(path, problem) from problem


def _unwritable(path: str, problem: OSError) -> BriefingUnwritable:
    return BriefingUnwritable(path=quoted(path), reason=(problem.strerror or str(problem)).lower())
