"""The sections of a briefing, each rendered into the room that it is given.

Room is in bytes and covers the blank line before the section. A section that
has nothing to tell is ""; one that has takes at most its room, or its least
form where the room is smaller than that: heading, counts, command.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from store.briefing_parts import BriefingParts
from store.briefing_text import MOST_WORD, age, byte_size, entry, fit, moment, number, quote, value, word
from store.text import neutral_line
from store.values import Action, OutputRef, Pointer, Turn, WorkingState

MOST_ARGS = 300  # bytes of an action's arguments (the peer's measure)
FEW_ARGS = 60
MOST_NUMBERS = 80  # bytes of the numbers of actions that are not told
MOST_SUMMARY = 300
MOST_VALUE = 500  # of a pointer's field, or note
MOST_ROLE, MOST_SPEAKER = 16, 40
MOST_FIELDS = 1500  # of all fields of a pointer

# -- unfinished actions -------------------------------------------------------------


def actions_section(parts: BriefingParts, room: int) -> tuple[str, int]:
    """The unfinished actions, and how many of them are only counted or named by number."""
    total = max(parts.pending_total, len(parts.pending))
    if not total:
        return "", 0
    heading = f"\n\n## Unfinished actions ({number(total)})"
    closing = "\nThese come first: do what each one says before anything below."
    room -= byte_size(heading) + byte_size(closing)
    more = partial(_more_actions, parts, total)
    for most_args in (MOST_ARGS, FEW_ARGS):
        lines, left = _take((_action(parts, action, most_args) for action in parts.pending), room, total, more)
        if left == total - len(parts.pending):
            return heading + lines + closing, left
    lines, left = _take((_action_in_short(parts, action) for action in parts.pending), room, total, more)
    return heading + lines + closing, left


def _more_actions(parts: BriefingParts, total: int, count: int) -> str:
    """The remark on actions that are not told: by their numbers, as far as those are known and short."""
    numbers = [number(action.seq) for action in parts.pending[total - count :]]
    while byte_size(" ".join(numbers)) > MOST_NUMBERS:
        numbers.pop()
    named = f", {' '.join(numbers)}{' …' if len(numbers) < count else ''}" if numbers else ""
    return f"({number(count)} more{named}: `recall actions list {parts.agent} --pending`)"


def _action(parts: BriefingParts, action: Action, most_args: int) -> str:
    seq, agent = number(action.seq), parts.agent
    state, advice, _ = _advice(parts, action)
    started, since = moment(action.started_at)
    ago = age(since, parts.now)
    begun = f"started {started}, {ago}" if ago else f"started {started}"
    lines = [
        f"- action {seq}: {word(action.tool)} ({action.class_}, {state}), {begun}",
        f"  key: {word(action.key)}" + (f", step: {word(action.step)}" if action.step else ""),
    ]
    if action.args or action.args_ref:
        args, lost = fit(action.args, most_args, neutral_line)
        lines.append(f"  args: {args}")
        if action.args_ref:
            lines.append(f"  (the whole: `{_get_output(agent, action.args_ref)}`)")
        elif lost:
            lines.append(f"  ({lost:,} bytes cut: `recall actions show -a {agent} {seq}`)")
    return "\n".join((*lines, f"  do: {advice}"))


def _action_in_short(parts: BriefingParts, action: Action) -> str:
    state, _, advice = _advice(parts, action)
    started, _ = moment(action.started_at)
    head = f"- action {number(action.seq)}: {word(action.tool, 64)} ({action.class_}, {state}), started {started}"
    return f"{head}, key {word(action.key, 64)}: {advice}"


def _advice(parts: BriefingParts, action: Action) -> tuple[str, str, str]:
    """How the action stands, what to do with it, and the same in short."""
    seq, agent = number(action.seq), parts.agent
    running = parts.still_running.get(action.seq)
    if running:
        state = f"still running as pid {word(running.removeprefix('pid '), 32)}"
        return state, "Its command is still running. Wait for it; do not run it again.", "do not run it again"
    if action.seq in parts.may_run:
        until, holder = parts.may_run[action.seq]
        state = f"may still be running until {word(until, 32)} on {word(holder, 64)}"
        return state, "Do not run it again. After that time it is settled as unknown.", "do not run it again"
    if action.status == "started" and parts.viewer and action.incarnation == parts.viewer:
        advice = "You started it and it is running. Let it finish; do not start it again."
        return "running", advice, "yours, let it finish"
    state = "unknown" if action.status == "unknown" else "interrupted"
    if action.class_ == "idempotent":
        return state, f"Run it again with the same key, then end action {seq}.", "run it again with the same key"
    if action.class_ == "pure":
        return state, "It changes nothing. Run it again if you still need its result.", "run it again if you need it"
    settle = f"recall actions resolve -a {agent} {seq} done|failed|abandoned --reason TEXT"
    advice = "It may have happened. Find out before anything else; do not repeat it until it is settled with"
    return state, f"{advice}: `{settle}`", "find out if it happened, do not repeat it"


# -- the working state ----------------------------------------------------------------

_FIELDS: tuple[tuple[str, Callable[[WorkingState], str | tuple[str, ...]], bool], ...] = (
    ("Goal:", lambda state: state.goal, False),
    ("Plan:", lambda state: state.plan, True),
    ("Progress:", lambda state: state.progress, False),
    ("Last milestone:", lambda state: state.last_milestone, False),
    ("Current focus:", lambda state: state.focus, False),
    ("Decisions:", lambda state: state.decisions, False),
    ("Open questions:", lambda state: state.open_questions, False),
    ("Notes:", lambda state: state.notes, False),
)


def state_section(parts: BriefingParts, room: int) -> str:
    """The working state; fields that are too large share the room that the others leave."""
    state = parts.working_state
    if not state.version:
        return ""
    written, _ = moment(state.updated_at)
    heading = f"\n\n## Working state (version {number(state.version)}, step {number(state.step)}, written {written})"
    present = [(label, get(state), numbered) for label, get, numbered in _FIELDS if get(state)]
    room -= byte_size(heading)

    whole = [_field(*each, room) for each in present]
    wants = [byte_size(text) + 1 + (max(room, 0) if cut else 0) for text, cut in whole]
    if sum(wants) <= room and not any(cut for _, cut in whole):
        return "\n".join((heading, *(text for text, _ in whole)))
    remark = f"\n(Cut; the whole: `recall state show {parts.agent}`)"
    floors = [byte_size(_field(*each, 0)[0]) + 1 for each in present]
    extras = _shares([w - f for w, f in zip(wants, floors, strict=True)], room - byte_size(remark) - sum(floors))
    rooms = [f + extra - 1 for f, extra in zip(floors, extras, strict=True)]
    shown = [_field(*each, most)[0] for each, most in zip(present, rooms, strict=True)]
    return "\n".join((heading, *shown)) + remark


def _field(label: str, content: str | tuple[str, ...], numbered: bool, room: int) -> tuple[str, bool]:
    """One field within ``room`` bytes, and whether anything was cut."""
    if isinstance(content, str):
        text, lost = entry(label, content, room)
        return text, lost > 0
    left = room - byte_size(label)
    # Whole if that fits; else no item may take more than a quarter, lest a huge one crowd out the others.
    for most in (left, max(left // min(len(content), 4), 40)):
        losses: list[int] = []
        items = (_item(f"{at}." if numbered else "-", item, most, losses) for at, item in enumerate(content, 1))
        lines, missing = _take(items, left, len(content), lambda count: f"  ({count:,} items cut)")
        cut = missing > 0 or any(losses)
        if not cut:
            break
    return label + lines, cut


def _item(label: str, text: str, room: int, losses: list[int]) -> str:
    shown, lost = entry(label, text, room)
    losses.append(lost)
    return shown


def _shares(wants: Sequence[int], room: int) -> list[int]:
    """Room for each want: the small ones get all they want, the large ones equal parts of the rest."""
    shares = [0] * len(wants)
    waiting = len(wants)
    for at in sorted(range(len(wants)), key=lambda at: wants[at]):
        shares[at] = max(min(wants[at], room // waiting), 0)
        room -= shares[at]
        waiting -= 1
    return shares


# -- pointers and outputs ----------------------------------------------------------------


def pointers_section(parts: BriefingParts, room: int) -> tuple[str, int]:
    """Where the work lives, and how many pointers are only counted."""
    total = max(parts.pointers_total, len(parts.pointers))
    if not total:
        return "", 0
    heading = "\n\n## Where your work lives"
    told = (_pointer(parts.agent, pointer) for pointer in parts.pointers)
    lines, left = _take(
        told,
        room - byte_size(heading),
        total,
        lambda count: f"({number(count)} more left out: `recall pointers list {parts.agent}`)",
    )
    return heading + lines, left


def _pointer(agent: str, pointer: Pointer) -> str:
    words, lost = [], 0
    left = MOST_FIELDS
    for name, content in pointer.fields.items():
        if left <= 0:
            lost += byte_size(name) + byte_size(content)
            continue
        text, cut_off = value(content, MOST_VALUE)
        words.append(f"{word(name)}={text}")
        lost += cut_off
        left -= byte_size(words[-1])
    if pointer.note:
        text, cut_off = _note(pointer.note)
        words.append(f"({text})")
        lost += cut_off
    line = " ".join((f"- {word(pointer.name)} ({word(pointer.type)}):", *words))
    return line + (f"\n  ({lost:,} bytes cut: `recall pointers list {agent}`)" if lost else "")


def _note(note: str) -> tuple[str, int]:
    """A note inside parentheses: bare where nothing in it could end them or pass for a field."""
    if len(note) * 4 <= MOST_VALUE and not any(char in note for char in "()=\"'`\\\t") and neutral_line(note) == note:
        return note, 0
    shown, lost = fit(note, MOST_VALUE, lambda piece: quote(piece)[1:-1])
    return f'"{shown}"' + ("…" if lost else ""), lost


def outputs_section(parts: BriefingParts, room: int) -> tuple[str, int]:
    """Stored outputs, and how many of them are only counted."""
    total = max(parts.outputs_total, len(parts.outputs))
    if not total:
        return "", 0
    heading = "\n\n## Stored outputs"
    reading = f"\n(read one whole: `recall outputs get -a {parts.agent} REF`)"
    told = (_output(output) for output in parts.outputs)
    lines, left = _take(
        told,
        room - byte_size(heading),
        total,
        lambda count: f"({number(count)} older left out: `recall outputs list {parts.agent}`)",
        before=reading,
    )
    return heading + lines, left


def _output(output: OutputRef) -> str:
    tool = f"{word(output.tool)}, " if output.tool else ""
    summary, lost = fit(output.summary, MOST_SUMMARY, neutral_line)
    line = f"- {word(output.ref)} ({tool}~{number(output.tokens)} tokens)" + (f": {summary}" if summary else "")
    return line + (f"\n  ({lost:,} bytes of the summary cut)" if lost else "")


def _get_output(agent: str, ref: str) -> str:
    if byte_size(ref) > MOST_WORD:
        return f"recall outputs list {agent}"
    return f"recall outputs get -a {agent} {'-- ' if ref.startswith('-') else ''}{shlex.quote(neutral_line(ref))}"


# -- turns -----------------------------------------------------------------------------


def turns_section(parts: BriefingParts, room: int, most: int | None = None) -> tuple[str, int]:
    """The newest turns (at most ``most``), oldest first, and how many are left out.

    The newest is shortened where it does not fit; the others are whole.
    """
    total = max(parts.turns_total, len(parts.turns))
    if not total:
        return "", 0
    heading = "\n\n## Your most recent turns, verbatim"
    room -= byte_size(heading)
    told: list[str] = []  # newest first
    used = 0
    for turn in list(reversed(parts.turns))[:most]:
        text = _turn(parts.agent, turn, room - used - 1)
        if text is None:
            break
        told.append("\n" + text)
        used += byte_size(told[-1])
    remark = _earlier(parts, total - len(told), False)
    while told and used + byte_size(remark) > room:
        used -= byte_size(told.pop())
        remark = _earlier(parts, total - len(told), False)
    if not told and parts.turns:
        remark = _earlier(parts, total - 1, True)
        text, lost = _short_turn(parts.turns[-1], room - byte_size(remark) - 1)
        told, remark = ["\n" + text], _earlier(parts, total - 1, lost > 0)
    return heading + remark + "".join(reversed(told)), total - len(told)


def _earlier(parts: BriefingParts, count: int, shortened: bool) -> str:
    """The remark on the turns that are left out, cut or pruned, or ""."""
    whats = [f"{number(count)} earlier left out"] * (count > 0) + ["the newest cut"] * shortened
    whats += [f"the first {number(parts.turns_pruned)} were pruned"] * (parts.turns_pruned > 0)
    return f"\n({', '.join(whats)}: `recall turns list {parts.agent}`)" if whats else ""


def _turn(agent: str, turn: Turn, room: int) -> str | None:
    """A turn whole, or None if that takes more than ``room`` bytes."""
    content = turn.brief or turn.content
    remark = f"\n  (the whole: `{_get_output(agent, turn.output_ref)}`)" if turn.output_ref else ""
    text, lost = entry(_label(turn), content, room - byte_size(remark)) if len(content) <= room else ("", 1)
    return None if lost or byte_size(text + remark) > room else text + remark


def _short_turn(turn: Turn, room: int) -> tuple[str, int]:
    return entry(_label(turn), turn.brief or turn.content, room)


def _label(turn: Turn) -> str:
    name = f" {word(turn.name, MOST_SPEAKER)}" if turn.name else ""
    return f"[{word(turn.role, MOST_ROLE)}{name} #{number(turn.seq)}]"


# -- lists ------------------------------------------------------------------------------


def _take(
    entries: Iterable[str], room: int, total: int, more: Callable[[int], str], before: str = ""
) -> tuple[str, int]:
    """As many of the first entries as fit, and how many of ``total`` are left out.

    Where any are, a last line says so: ``more`` of their number. ``before``
    stands above the first entry. What fits a room also fits a larger one.
    """
    lines = [before]
    used = byte_size(before)
    for text in entries:
        if used + byte_size(text) + 1 > room:
            break
        lines.append("\n" + text)
        used += byte_size(lines[-1])
    left = total - len(lines) + 1
    while left and len(lines) > 1 and used + byte_size(more(left)) + 1 > room:
        used -= byte_size(lines.pop())
        left += 1
    return ("".join(lines) if len(lines) > 1 else "") + ("\n" + more(left) if left else ""), left
