"""A command line as a person is typing it, read without running anything of it.

Quotes, backslashes, ``~`` and variables of the environment are understood. A
word that only the shell could tell, for one by running a command, is unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from store.value import value

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", re.ASCII)
_ONLY_THE_SHELL = frozenset("`*?[{();|&<>")
_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]|[^\x00-\x7f]")


@value
class Word:
    """One word of the line.

    Attributes:
        raw: as typed.
        text: what the shell makes of it; None if it is unknown.
        start: where in ``text`` the part begins that readline would replace.
        quote: the quote that is still open at its end, or "".
    """

    raw: str
    text: str | None
    start: int = 0
    quote: str = ""


def split(line: str, *, shell: str, breaks: str = "", environ: Mapping[str, str] = os.environ) -> list[Word]:
    """The words of a line up to the cursor; the last is the one being typed, and may be empty.

    Args:
        shell: bash, zsh or fish, which quote differently.
        breaks: the characters at which readline begins a word of its own (COMP_WORDBREAKS).
    """
    found: list[Word] = []
    at = 0
    while at <= len(line):
        while at < len(line) and line[at].isspace():
            at += 1
        word, at = _word(line, at, shell, breaks, environ)
        found.append(word)
        if at == len(line):
            break
    return found


def _word(line: str, first: int, shell: str, breaks: str, environ: Mapping[str, str]) -> tuple[Word, int]:
    text, quote, start, known, at = "", "", 0, True, first
    while at < len(line):
        char, following = line[at], line[at + 1 : at + 2]
        at += 1
        if char == "\\" and (quote != "'" or (shell == "fish" and following in ("'", "\\"))):
            known &= not (shell == "fish" and not quote and following.isalnum())  # an escape such as \x41
            if quote == '"' and following not in ("$", '"', "\\", "`", ""):
                text += char
            text += following
            at += len(following)
        elif char == quote or (not quote and char in "'\""):
            quote = "" if quote else char
            start = len(text)
        elif quote == "'":
            text += char
        elif char == "$":
            match = _VARIABLE.match(line, at - 1)
            value = environ.get(match[1] or match[2]) if match else None
            # An unquoted value with spaces is several words in some shells.
            known &= value is not None and bool(quote or value.split() == [value])
            text += value or ""
            at = match.end() if match else at
        elif quote:
            known &= char != "`"
            text += char
        elif char.isspace():
            at -= 1
            break
        elif char == "~" and at == first + 1:
            known &= (following in ("", "/") or following.isspace()) and "HOME" in environ
            text += environ.get("HOME", "")
        else:
            known &= char not in _ONLY_THE_SHELL
            text += char
            start = len(text) if char in breaks else start
    return Word(line[first:at], text if known else None, start, quote), at


def quoted(text: str, quote: str = "") -> str:
    """Text as bash reads it back unchanged, after the open ``quote`` or outside of any; none of it acts."""
    if quote == "'":
        return text.replace("'", "'\\''")
    if quote == '"':
        # A backslash before ! would stay, and without one it recalls history: it goes outside the quotes.
        return re.sub(r'([$`"\\])', r"\\\1", text).replace("!", "\"'!'\"")
    return "".join(char if _SAFE.match(char) else "\\" + char for char in text)
