"""The briefing: the text that an agent's next process starts from.

A pure function of what the store holds. Two promises shape it.

*The budget is held*, whatever was stored. What is left out is counted where it
is missing, with the command that shows it.

*Stored text cannot pass for structure.* Recall's own lines start in the first
column, or with two spaces. A stored text follows a label of ours, and every
further line of it is indented by four spaces, a blank one too; where several
values share a line, anything but a plain word is quoted. So a reader, or a
parser (``tests/briefing_parser.py`` is one), always knows whose words it reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from store.briefing_parts import DEFAULT_BUDGET, BriefingParts, check_budget
from store.briefing_sections import actions_section, outputs_section, pointers_section, state_section, turns_section
from store.briefing_text import byte_size, number
from store.value import value
from store.values import Action, plain

MOST_ACTIONS = 20  # unfinished actions told in full

_RESUMED = (
    "You are agent {agent}, resuming after your previous process stopped. Continue from your notes and last turns"
    " below; check only what you have reason to doubt."
)
_FRESH = (
    "You are agent {agent}, starting for the first time: there is no earlier work to resume. Write down your goal,"
    " plan and progress as you go; your next process will start from them."
)
_NOTHING = "\n\n(Nothing to go on from: no notes, turns, pointers, outputs or unfinished actions.)"


@value
class Briefing:
    """A rendered briefing.

    Attributes:
        tokens: the size of ``text``, four UTF-8 bytes each, rounded up; at most ``budget``.
        omitted: how many ``turns``, ``memories``, ``outputs``, ``pointers`` and
            ``actions`` exist but are not told of in ``text`` one by one.
    """

    text: str
    tokens: int
    budget: int
    omitted: Mapping[str, int]


def render(parts: BriefingParts, budget: int = DEFAULT_BUDGET) -> Briefing:
    """The briefing, within ``budget`` tokens.

    Room goes first to unfinished actions and the working state, which are
    shortened but never left out; then to the newest turn (an eighth of the
    budget at most), pointers, outputs, and older turns. So the oldest turns
    are given up first, then outputs, then pointers.

    Raises:
        InvalidInput: the budget is out of bounds.
    """
    room = check_budget(budget) * 4  # from here on in bytes
    opener = _opener(parts)
    room -= byte_size(opener)

    # What each later section takes at the least is set aside for it first.
    eighth = budget * 4 // 8
    least_turns = byte_size(turns_section(parts, eighth, most=1)[0])
    least_outputs = byte_size(outputs_section(parts, 0)[0])
    least_pointers = byte_size(pointers_section(parts, eighth)[0])
    least_state = byte_size(state_section(parts, 0))

    first = room - least_turns - least_outputs - least_pointers
    whole_state = byte_size(state_section(parts, first))
    for_actions = min(max(first - whole_state, first // 2), first - least_state)
    actions, actions_left = actions_section(parts, for_actions)
    state = state_section(parts, first - byte_size(actions))
    room -= byte_size(actions) + byte_size(state)
    pointers, pointers_left = pointers_section(parts, room - least_outputs - least_turns)
    room -= byte_size(pointers)
    outputs, outputs_left = outputs_section(parts, room - least_turns)
    room -= byte_size(outputs)
    turns, turns_left = turns_section(parts, room)

    sections = actions + state + pointers + outputs + turns
    text = opener + (sections if sections or parts.fresh else _NOTHING)
    omitted = {
        "turns": turns_left,
        "memories": 0,
        "outputs": outputs_left,
        "pointers": pointers_left,
        "actions": actions_left,
    }
    return Briefing(text, (byte_size(text) + 3) // 4, budget, omitted)


def _opener(parts: BriefingParts) -> str:
    opener = (_FRESH if parts.fresh else _RESUMED).format(agent=parts.agent)
    return opener if parts.at is None else f"{opener} (As of lsn {number(parts.at)}; nothing later is shown.)"


def as_json(parts: BriefingParts, briefing: Briefing) -> dict[str, Any]:
    """The briefing and its parts as plain values, whole, under the names of the ``agent_resume`` tool."""
    return {
        "agent_id": parts.agent,
        "fresh": parts.fresh,
        **({} if parts.at is None else {"at": parts.at}),
        "briefing": briefing.text,
        "pending_actions": [_action(parts, action) for action in parts.pending],
        "working_state": plain(parts.working_state),
        "pointers": [plain(pointer, without=("removed",)) for pointer in parts.pointers],
        "outputs": [plain(output) for output in parts.outputs],
        "memories": [],
        "recent_turns": [plain(turn) for turn in parts.turns],
        "omitted": dict(briefing.omitted),
        "turn_seq": parts.turns[-1].seq if parts.turns else parts.working_state.turn_seq,
        "token_budget": briefing.budget,
        "tokens": briefing.tokens,
    }


def _action(parts: BriefingParts, action: Action) -> dict[str, Any]:
    running = parts.still_running.get(action.seq)
    return plain(action) | ({"still_running": running} if running else {})
