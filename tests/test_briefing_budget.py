"""Briefings keep to their budget, and cut what has to go in its place."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import FrameType

import pytest

from store.briefing import render
from store.briefing_parts import DEFAULT_BUDGET, LEAST_BUDGET, BriefingParts, check_budget
from store.errors import InvalidInput
from store.values import OutputRef, Pointer, Turn, WorkingState, tokens_of
from tests.briefing_parser import STATE_ORDER, parse
from tests.briefings import EMPTY, SEED, action


@pytest.mark.parametrize("value", [511, 0, -1, 10**9, "8000", True, None, 8000.0])
def test_an_impossible_budget_is_refused(value: object) -> None:
    """A budget below 512 tokens, or not a number of them, is refused."""
    with pytest.raises(InvalidInput):
        check_budget(value)


def test_the_oldest_turns_go_first_then_outputs_then_pointers() -> None:
    """As the budget falls older turns go before any output, outputs before any pointer."""
    parts = replace(
        SEED,
        turns=tuple(Turn(seq, "user", "t" * 400) for seq in range(1, 31)),
        turns_total=30,
        outputs=tuple(OutputRef(f"out-{at}", "bash", "o" * 150, 9) for at in range(15)),
        outputs_total=15,
        pointers=tuple(Pointer(f"p{at:02}", "object", {"uri": "u" * 80}) for at in range(20)),
        pointers_total=20,
    )
    seen = set()
    for budget in range(LEAST_BUDGET, 5500, 50):
        omitted = render(parts, budget).omitted
        seen.add(tuple(name for name in ("turns", "outputs", "pointers") if omitted[name]))
        assert not omitted["outputs"] or omitted["turns"] == 29
        assert not omitted["pointers"] or omitted["outputs"] == 15
    assert seen == {("turns", "outputs", "pointers"), ("turns", "outputs"), ("turns",), ()}


def test_a_huge_note_is_shortened_in_place_and_crowds_nothing_out() -> None:
    """A 10 MB note leaves the other fields whole, and the newest turn and the pointer in the briefing."""
    state = replace(SEED.working_state, notes="note\n" * 2_000_000)
    briefing = render(replace(SEED, working_state=state))
    parsed = parse(briefing.text)
    assert briefing.tokens <= DEFAULT_BUDGET
    assert briefing.tokens > DEFAULT_BUDGET * 0.99
    assert parsed.fields["Goal"] == "Move billing to the v2 API"
    assert parsed.pointers and parsed.turns
    note = parsed.fields["Notes"]
    assert isinstance(note, str)
    assert parsed.remarks == [
        f"({10_000_000 - len(note.encode()):,} bytes cut)",
        "(Cut; the whole: `recall state show billing-migrator`)",
    ]


def test_a_huge_item_leaves_room_for_the_others() -> None:
    """One huge item of a plan is shortened; the items around it are whole."""
    state = replace(SEED.working_state, plan=("first", "x" * 1_000_000, "third"))
    plan = parse(render(replace(SEED, working_state=state)).text).fields["Plan"]
    assert isinstance(plan, list)
    assert (plan[0], plan[2]) == ("first", "third")
    assert 1000 < len(plan[1]) < 1_000_000


def test_the_newest_turn_is_shortened_rather_than_dropped() -> None:
    """A newest turn that alone does not fit keeps its opening, and the briefing says that it is cut."""
    briefing = render(replace(SEED, turns=(*SEED.turns, Turn(2, "tool", "y" * 100_000, "bash")), turns_total=2))
    parsed = parse(briefing.text)
    [(role, name, seq, content)] = parsed.turns
    assert (role, name, seq) == ("tool", "bash", 2)
    assert len(content) > 20_000
    assert "(1 earlier left out, the newest cut: `recall turns list billing-migrator`)" in parsed.remarks
    assert f"({100_000 - len(content):,} bytes cut)" in parsed.remarks


def test_text_is_cut_between_characters() -> None:
    """Whatever the budget, a cut never falls inside what a reader sees as one character."""
    family = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
    for budget in range(LEAST_BUDGET, LEAST_BUDGET + 12):
        [turn] = parse(render(replace(SEED, turns=(Turn(1, "user", family * 900),)), budget).text).turns
        assert turn[3] and turn[3] == family * (len(turn[3]) // len(family))


def worst(text: str) -> BriefingParts:
    """As much of everything as a foreign log could hold, all of it ``text``."""
    big, agent = 2**63 - 1, "a" * 128
    actions = tuple(
        action(big - at, tool=text, key=text, args=text, args_ref=text, step=text, started_at=text) for at in range(20)
    )
    state = WorkingState(text, (text,) * 5000, text, text, (text,) * 5000, (text,) * 5000, text, big, text, big)
    return replace(
        EMPTY,
        agent=agent,
        working_state=replace(state, updated_at=text),
        pending=actions,
        pending_total=big,
        pointers=tuple(Pointer(text, text, {text[:2000] + str(n): text for n in range(9)}, text) for _ in range(9)),
        pointers_total=big,
        outputs=(OutputRef(text, text, text, big),) * 9,
        outputs_total=big,
        turns=(Turn(big, text, text, text, output_ref=text),) * 9,
        turns_total=big,
        still_running={big: text},
        at=big,
    )


@pytest.mark.parametrize(
    "text", ["x" * 10_000_000, "\x1b" * 5000, "\n" * 5000, "\U000e0041" * 5000, "é" * 5000, '"' * 5000]
)
@pytest.mark.parametrize("budget", [512, 513, 700, 2000, 8000])
def test_the_budget_is_held_in_the_worst_case(text: str, budget: int) -> None:
    """Every field huge, every number of 19 digits, the longest agent id: the budget still holds."""
    briefing = render(worst(text), budget)
    assert briefing.tokens == tokens_of(briefing.text) <= budget
    assert parse(briefing.text).fields.keys() == set(STATE_ORDER)


def test_thousands_of_small_things_hold_the_budget() -> None:
    """Thousands of pointers, outputs, turns and plan items are counted out within the budget."""
    parts = replace(
        SEED,
        working_state=replace(SEED.working_state, plan=("step",) * 9000, decisions=("",) * 9000),
        pointers=tuple(Pointer(f"p{at}", "object", {"uri": "s3://b/k"}) for at in range(5000)),
        pointers_total=5000,
        outputs=tuple(OutputRef(f"o{at}") for at in range(5000)),
        outputs_total=5000,
        turns=tuple(Turn(seq, "user", "hm") for seq in range(1, 5001)),
        turns_total=5000,
    )
    for budget in (512, 8000, 100_000):
        briefing = render(parts, budget)
        parsed = parse(briefing.text)
        assert briefing.tokens <= budget
        assert len(parsed.turns) + briefing.omitted["turns"] == 5000
        assert len(parsed.outputs) + briefing.omitted["outputs"] == 5000
        assert len(parsed.pointers) + briefing.omitted["pointers"] == 5000


def test_rendering_costs_what_it_shows() -> None:
    """A thousand times more history in the parts costs about the same at the same budget."""

    def cost(turns: int) -> int:
        parts = replace(SEED, turns=tuple(Turn(s, "user", "w " * 500) for s in range(turns)), turns_total=turns)
        calls = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal calls
            calls += event.endswith("call")

        sys.setprofile(count)
        try:
            render(parts)
        finally:
            sys.setprofile(None)
        return calls

    assert cost(100_000) < 1.1 * cost(100)
