"""A strict reader of briefings: the proof that their structure cannot be forged.

It knows the grammar and nothing of what was stored. Every line has to be one
that the grammar allows at its place, or reading fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

WORD = r'(?:"(?:[^"\\]|\\.)*"…?|[\w.:/@+-]+)'
VALUE = r"""(?:"(?:[^"\\]|\\.)*"…?|[^\s="'`\\(][^\s="'`\\]*)"""
NOTE = r"""(?:"(?:[^"\\]|\\.)*"…?|[^()="'`\\]*)"""

OPENER = re.compile(
    r"You are agent (?P<agent>[A-Za-z0-9][A-Za-z0-9._-]{0,127}), (?P<how>resuming|starting) [^()]*"
    r"(?: \(As of lsn (?P<at>\d+); nothing later is shown\.\))?"
)
ACTION = re.compile(
    rf"- action (?P<seq>\d+): (?P<tool>{WORD}) \((?P<class>\w+), "
    rf"(?P<state>running|unknown|interrupted|still running as pid {WORD})\)"
    rf", started (?P<started>{WORD})(?:, (?P<age>\d+ (?:s|min|h|days) ago))?"
    rf"(?:, key (?P<key>{WORD}): (?P<short>.*))?"
)
KEY = re.compile(rf"  key: (?P<key>{WORD})(?:, step: (?P<step>{WORD}))?")
STATE = re.compile(rf"## Working state \(version (?P<version>\d+), step (?P<step>-?\d+), written (?P<written>{WORD})\)")
POINTER = re.compile(
    rf"- (?P<name>{WORD}) \((?P<type>{WORD})\):(?P<fields>(?: {WORD}={VALUE})*)(?: \((?P<note>{NOTE})\))?"
)
FIELD = re.compile(rf"({WORD})=({VALUE})")
OUTPUT = re.compile(rf"- (?P<ref>{WORD}) \((?:(?P<tool>{WORD}), )?~(?P<tokens>\d+) tokens\)(?:: (?P<summary>.*))?")
TURN = re.compile(rf"\[(?P<role>{WORD})(?: (?P<name>{WORD}))? #(?P<seq>\d+)\](?P<first>(?: .*)?)")
STATE_TEXTS = ("Goal", "Progress", "Last milestone", "Current focus", "Notes")
STATE_ORDER = ("Goal", "Plan", "Progress", "Last milestone", "Current focus", "Decisions", "Open questions", "Notes")


@dataclass
class Parsed:
    """What a briefing says. Remarks of Recall are kept beside what they are about."""

    agent: str = ""
    fresh: bool = False
    at: int | None = None
    headings: list[str] = field(default_factory=list)
    actions: list[dict[str, str]] = field(default_factory=list)
    state: dict[str, str] = field(default_factory=dict)
    fields: dict[str, str | list[str]] = field(default_factory=dict)
    pointers: list[tuple[str, str, dict[str, str], str]] = field(default_factory=list)
    outputs: list[tuple[str, str, int, str]] = field(default_factory=list)
    turns: list[tuple[str, str, int, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def unquoted(text: str | None) -> str:
    """A word or value as it was before quoting, but for its neutral escapes."""
    if not text or not text.startswith('"'):
        return text or ""
    return re.sub(r'\\(["\\])', r"\1", text.removesuffix("…")[1:-1])


class _Lines:
    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.at = 0

    def peek(self) -> str | None:
        return self.lines[self.at] if self.at < len(self.lines) else None

    def take(self) -> str:
        self.at += 1
        return self.lines[self.at - 1]

    def text(self, first: str) -> str:
        """A stored text whose first line is given, with its continuation lines."""
        lines = [first]
        while (line := self.peek()) is not None and line.startswith("    "):
            lines.append(self.take()[4:])
        return "\n".join(lines)

    def remarks(self, start: str) -> list[str]:
        """Recall's remarks at this place."""
        found = []
        while (line := self.peek()) is not None and line.startswith(start + "("):
            assert line.endswith(")"), line
            found.append(self.take().strip())
        return found


def parse(text: str) -> Parsed:
    """The parts of a briefing; AssertionError where it is not one."""
    lines, parsed = _Lines(text), Parsed()
    opener = OPENER.fullmatch(lines.take())
    assert opener, text
    parsed.agent, parsed.fresh = opener["agent"], opener["how"] == "starting"
    parsed.at = int(opener["at"]) if opener["at"] else None
    while lines.peek() is not None:
        assert lines.take() == "", "a blank line stands before each section"
        heading = lines.peek()
        assert heading is not None
        if heading.startswith("("):
            parsed.remarks += lines.remarks("")
            assert lines.peek() is None
            break
        lines.take()
        parsed.headings.append(heading)
        _SECTIONS[re.sub(r" \(.*", "", heading)](lines, parsed, heading)
    return parsed


def _label(lines: _Lines, label: str) -> str:
    line = lines.take()
    assert line == label or line.startswith(label + " "), (label, line)
    return lines.text(line[len(label) + 1 :])


def _actions(lines: _Lines, parsed: Parsed, heading: str) -> None:
    assert re.fullmatch(r"## Unfinished actions \(\d+\)", heading)
    while (line := lines.peek()) is not None and line.startswith("- "):
        found = ACTION.fullmatch(lines.take())
        assert found, line
        action = {name: unquoted(value) for name, value in found.groupdict().items()}
        if not action["short"]:
            key = KEY.fullmatch(lines.take())
            assert key
            action |= {name: unquoted(value) for name, value in key.groupdict().items()}
            if (lines.peek() or "").startswith("  args: "):
                action["args"] = lines.take().removeprefix("  args: ")
            action["remarks"] = " ".join(lines.remarks("  "))
            assert (lines.peek() or "").startswith("  do: ")
            action["do"] = lines.take().removeprefix("  do: ")
        parsed.actions.append(action)
    parsed.remarks += lines.remarks("")
    assert lines.take() == "These come first: do what each one says before anything below."


def _state(lines: _Lines, parsed: Parsed, heading: str) -> None:
    found = STATE.fullmatch(heading)
    assert found, heading
    parsed.state = found.groupdict()
    for name in STATE_ORDER:
        line = lines.peek() or ""
        if line != f"{name}:" and not line.startswith(f"{name}: "):
            continue
        if name in STATE_TEXTS:
            parsed.fields[name] = _label(lines, f"{name}:")
        else:
            assert lines.take() == f"{name}:"
            items: list[str] = []
            while True:
                label = f"{len(items) + 1}." if name == "Plan" else "-"
                if not (lines.peek() or "").startswith(label):
                    break
                items.append(_label(lines, label))
                parsed.remarks += lines.remarks("  ")
            parsed.fields[name] = items
        parsed.remarks += lines.remarks("  ")
    parsed.remarks += lines.remarks("")


def _pointers(lines: _Lines, parsed: Parsed, heading: str) -> None:
    while (line := lines.peek()) is not None and line.startswith("- "):
        found = POINTER.fullmatch(lines.take())
        assert found, line
        values = {unquoted(name): unquoted(value) for name, value in FIELD.findall(found["fields"])}
        parsed.pointers.append((unquoted(found["name"]), unquoted(found["type"]), values, unquoted(found["note"])))
        parsed.remarks += lines.remarks("  ")
    parsed.remarks += lines.remarks("")


def _outputs(lines: _Lines, parsed: Parsed, heading: str) -> None:
    parsed.remarks += lines.remarks("")
    while (line := lines.peek()) is not None and line.startswith("- "):
        found = OUTPUT.fullmatch(lines.take())
        assert found, line
        parsed.outputs.append(
            (unquoted(found["ref"]), unquoted(found["tool"]), int(found["tokens"]), found["summary"] or "")
        )
        parsed.remarks += lines.remarks("  ")
    parsed.remarks += lines.remarks("")


def _turns(lines: _Lines, parsed: Parsed, heading: str) -> None:
    parsed.remarks += lines.remarks("")
    while (line := lines.peek()) is not None and line.startswith("["):
        found = TURN.fullmatch(lines.take())
        assert found, line
        content = lines.text(found["first"][1:])
        parsed.turns.append((unquoted(found["role"]), unquoted(found["name"]), int(found["seq"]), content))
        parsed.remarks += lines.remarks("  ")


_SECTIONS = {
    "## Unfinished actions": _actions,
    "## Working state": _state,
    "## Where your work lives": _pointers,
    "## Stored outputs": _outputs,
    "## Your most recent turns, verbatim": _turns,
}
