"""How everything that the command says reaches a person, a pipe or a program.

Data goes to stdout and all else to stderr. A terminal gets a table; a pipe
gets plain tab-separated lines, whole and unwrapped; ``--json`` gives one
document and ``--jsonl`` one object a line. Stored text never acts: outside
JSON it is shown through ``neutral`` and ``neutral_line``, inside JSON active
characters are ``\\u`` escapes.

Rows may come from a generator of any length, and are not held.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO, TypeVar

from store.errors import InvalidInput, RecallError, Unavailable
from store.text import json_for_display, neutral, neutral_line
from store.value import value

Row = Mapping[str, Any]
Style = str | Callable[[Any], str]
T = TypeVar("T")

_STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


class OutputFailed(Unavailable):
    """stdout could not take the data; what the command did before is not undone."""

    code = "output_failed"
    template = "standard output cannot be written: {reason}"
    hint_template = "the output is incomplete; write it to another place"


@value
class Column:
    """One column of a table.

    Attributes:
        key: the row's field that it shows.
        title: its heading on a terminal; the key in capitals unless given.
        show: makes the text of a value; None is shown as "" and a list with commas unless given.
        right: whether it is aligned to the right, for numbers.
        style: a colour of ``_STYLES`` or a function from the value to one; "" for none.
        keep: never shortened on a narrow terminal: ids, seqs, statuses.
    """

    key: str
    title: str = ""
    show: Callable[[Any], str] | None = None
    right: bool = False
    style: Style = ""
    keep: bool = False

    def text(self, row: Row) -> str:
        value = row.get(self.key)
        return neutral_line(self.show(value) if self.show else _plain(value))

    def style_of(self, row: Row) -> str:
        return self.style(row.get(self.key)) if callable(self.style) else self.style

    @property
    def heading(self) -> str:
        return self.title or self.key.upper().replace("_", " ")


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_plain(each) for each in value)
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_plain(each)}" for name, each in value.items())
    return str(value)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON that is safe to show on a terminal and still the same document."""
    import json

    separators = None if indent else (",", ":")
    return json_for_display(
        json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent, separators=separators)
    )


class Out:
    """The two streams of one run of the command, and the form that was asked for."""

    def __init__(self, *, json: bool = False, jsonl: bool = False, no_color: bool = False) -> None:
        self.json, self.jsonl = json, jsonl
        self._stdout: TextIO | None = sys.stdout
        self._stderr: TextIO | None = sys.stderr
        self.terminal = _is_terminal(sys.stdout)
        self._color = _wants_color(sys.stdout, no_color)
        self._stderr_color = _wants_color(sys.stderr, no_color)

    @property
    def structured(self) -> bool:
        """Whether a program asked: ``--json`` or ``--jsonl``."""
        return self.json or self.jsonl

    # -- data, on stdout --------------------------------------------------------------

    def document(self, value: Row, shown: Callable[[], Iterable[str]]) -> None:
        """One thing: ``value`` for programs, the lines that ``shown`` makes for people."""
        if self.structured:
            self.write(to_json(value, indent=2 if self.json else None) + "\n")
            return
        for line in shown():
            self.write(neutral(line) + "\n")

    def change(self, value: Row, text: str, then: str = "", *, data: str = "") -> None:
        """What a command changed: ``value`` for programs; for people ``text`` on stderr and ``data`` on stdout."""
        self.document(value, lambda: (data,) if data else ())
        self.message(text, then)

    def text(self, text: str) -> None:
        """A stored text for people, on stdout, neutralised, ending with one line break at least."""
        shown = neutral(text)
        self.write(shown if shown.endswith("\n") else shown + "\n")

    def table(self, columns: Sequence[Column], rows: Iterable[Row], *, empty: str = "", live: bool = False) -> None:
        """A list of things: programs get every field of a row, people the ``columns``.

        ``empty`` is said on stderr when there is no row. ``live`` rows are shown
        as they come, in plain lines on a terminal too.
        """
        if self.structured:
            self._objects(rows, live=live)
            return
        lines = iter(rows)
        first = next(lines, None)
        if first is None:
            if empty:
                self.message(empty)
            return
        lines = itertools.chain((first,), lines)
        if self.terminal and not live:
            from recall_cli.table import print_table

            print_table(columns, lines, self._stdout, color=self._color)
            return
        for row in lines:
            self.write("\t".join(self._cell(column, row) for column in columns) + "\n")
            if live:
                self.flush()

    def lines(self, rows: Iterable[Row], line: Callable[[Row], str], *, live: bool = False) -> None:
        """A list as one line each, without a table; ``live`` ones are shown as they come."""
        if self.structured:
            self._objects(rows, live=live)
            return
        for row in rows:
            self.write(neutral_line(line(row)) + "\n")
            if live:
                self.flush()

    def write(self, text: str) -> None:
        """Text of the command's own making, as it is. All of stdout passes here.

        Raises:
            OutputFailed: stdout is closed, full or broken.
            BrokenPipeError: the reader is gone.
        """
        if self._stdout is None:
            raise OutputFailed(reason="it is closed")
        try:
            self._stdout.write(text)
        except OSError as problem:
            raise output_failed(problem) from problem

    def flush(self) -> None:
        """Sends what was written; raises as ``write`` does."""
        if self._stdout is None:
            return
        try:
            self._stdout.flush()
        except OSError as problem:
            raise output_failed(problem) from problem

    def _objects(self, rows: Iterable[Row], *, live: bool) -> None:
        if self.jsonl:
            for row in rows:
                self.write(to_json(row) + "\n")
                if live:
                    self.flush()
            return
        before = "[\n"
        for row in rows:
            self.write(before + to_json(row))
            before = ",\n"
        self.write("[]\n" if before == "[\n" else "\n]\n")

    def _cell(self, column: Column, row: Row) -> str:
        text = column.text(row)
        return self.paint(text, column.style_of(row)) if self._color and text else text

    # -- everything else, on stderr -----------------------------------------------------

    def message(self, text: str, then: str = "") -> None:
        """What changed, and the likely next command. Programs have it in the document."""
        if self.structured:
            return
        self._say(neutral_line(text))
        if then:
            self._say("  → " + neutral_line(then))

    def warn(self, problem: RecallError) -> None:
        """Something that did not stop the command, such as one record that cannot be read."""
        if self.structured:
            self._say(to_json({"warning": problem.code, "message": problem.message, "hint": problem.hint}))
            return
        self._say(f"{self.paint('recall:', 'yellow', stderr=True)} warning: {neutral_line(problem.message)}")
        if problem.hint:
            self._say("  → " + neutral_line(problem.hint))

    def error(self, code: str, message: str, hint: str = "") -> None:
        """Why the command ends without having done what was asked: one line and one hint."""
        if self.structured:
            self._say(to_json({"code": code, "message": message, "hint": hint}))
            return
        self._say(f"{self.paint('recall:', 'red', stderr=True)} {neutral_line(message)}")
        if hint:
            self._say("  → " + neutral_line(hint))

    def usage(self, text: str) -> None:
        """The help of a command that was called with too little to do anything."""
        self._say(text)

    def progress(self, items: Iterable[T], label: str, total: int = 0) -> Iterator[T]:
        """``items`` again, counted on stderr while a person is watching."""
        if self.structured or not _is_terminal(self._stderr):
            yield from items
            return
        shown_at = time.monotonic()
        was_shown = False
        for done, item in enumerate(items, 1):
            yield item
            if time.monotonic() - shown_at > 0.2:
                shown_at, was_shown = time.monotonic(), True
                share = f" of {total:,} ({100 * done // total} %)" if total else ""
                self._say(f"\r\x1b[K{label}: {done:,}{share}", end="")
        if was_shown:
            self._say("\r\x1b[K", end="")

    # -- questions ----------------------------------------------------------------------

    @property
    def interactive(self) -> bool:
        """Whether there is a person to ask: stdin and stderr are terminals."""
        return _is_terminal(sys.stdin) and _is_terminal(self._stderr)

    def ask(self, question: str, *, at_end: str = "") -> str:
        """A person's answer in one line, stripped; ``at_end`` at the end of input.

        Raises:
            InvalidInput: nobody is there to answer.
        """
        if not self.interactive:
            raise InvalidInput(field="answer", reason="there is no terminal to ask on", hint="give it as an option")
        try:
            self._say(neutral_line(question) + " ", end="")
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            self._say("")
            raise
        if not answer:
            self._say("")
            return at_end
        return answer.strip()

    def confirm(self, question: str, *, yes: bool, first: str = "") -> bool:
        """Whether to go on: ``yes`` is the ``--yes`` option; only a terminal is asked.

        Args:
            first: how to look before, for who is not on a terminal, such as ``--dry-run``.

        Raises:
            InvalidInput: not told, and nobody is there to ask.
        """
        if yes:
            return True
        if not self.interactive:
            raise InvalidInput(
                field="--yes",
                reason="is needed, since there is no terminal to ask on",
                hint=f"look first with {first}, then add --yes" if first else "add --yes",
            )
        return self.ask(f"{question} [y/N]").lower() in ("y", "yes")

    def paint(self, text: str, style: str, *, stderr: bool = False) -> str:
        """``text`` in a colour, if the stream takes colours."""
        wanted = self._stderr_color if stderr else self._color
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if wanted and style in _STYLES else text

    def _say(self, text: str, end: str = "\n") -> None:
        if self._stderr is None:
            return
        try:
            self._stderr.write(text + end)
            self._stderr.flush()
        except OSError:
            # Nobody can be told. What is still buffered would fail once more at exit, and change the code.
            self._stderr = None
            abandon(2)


def abandon(descriptor: int) -> None:
    """Lets what is still buffered for a standard stream vanish, so that the interpreter's last flush is quiet."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def output_failed(problem: OSError) -> OSError | OutputFailed:
    """What to raise when stdout refused: a reader that is gone is no failure of the command's."""
    if isinstance(problem, BrokenPipeError):
        return problem
    return OutputFailed(reason=problem.strerror or str(problem))


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except (OSError, ValueError):
        return False


def _wants_color(stream: TextIO | None, no_color: bool) -> bool:
    if no_color or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return os.environ.get("TERM") != "dumb" and _is_terminal(stream)
