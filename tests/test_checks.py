"""What may be written: names, classes, states, turns and pointers, each with one check."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.checks import check_class, check_name, check_pointer, check_state, check_turn
from store.errors import InvalidInput
from store.text import neutral_line
from store.values import POINTER_TYPES, STATE_FIELDS

ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.lists(st.text())


@given(name=st.text(st.characters(), max_size=200), spaces=st.booleans())
def test_a_name_is_visible_and_can_be_taken_for_nothing_else(name: str, spaces: bool) -> None:
    """Whatever passes has no hidden character, no option's dash, no path's dot in front, and fits its bytes."""
    try:
        checked = check_name("name", name, spaces=spaces)
    except InvalidInput as refused:
        one_line(refused)
        return
    assert checked == name
    assert neutral_line(name) == name
    assert name[0] not in "-./~ #["
    assert name == name.strip()
    assert len(name.encode()) <= 128
    assert spaces or " " not in name


def one_line(refused: InvalidInput) -> None:
    assert "\n" not in refused.message + refused.hint
    (refused.message + refused.hint).encode()


@pytest.mark.parametrize("name", ["a", "wip", "_x", "out-1-2", "größe", "文件", "a/b:c#d", "7", "x" * 128])
def test_ordinary_names(name: str) -> None:
    """Letters and digits of any script and visible signs after the first."""
    assert check_name("name", name) == name


@pytest.mark.parametrize(
    "name", ["", "-rf", "..", ".hidden", " a", "a ", "a b", "a\tb", "a\u202eb", "a\u00a0b", "#x", None]
)
def test_what_is_no_name(name: Any) -> None:
    """Options, paths, spaces and hidden characters."""
    with pytest.raises(InvalidInput):
        check_name("name", name)


@given(value=ANYTHING)
def test_a_class_is_one_of_three(value: Any) -> None:
    """There is no default to fall into."""
    if value in ("pure", "idempotent", "external"):
        assert check_class(value) == value
    else:
        with pytest.raises(InvalidInput) as refused:
            check_class(value)
        one_line(refused.value)


@given(values=st.dictionaries(st.sampled_from(STATE_FIELDS) | st.text(max_size=5), ANYTHING, max_size=4))
def test_a_state_is_checked_field_by_field(values: dict[str, Any]) -> None:
    """What passes has the stored types and only known fields; what does not names one field in a line."""
    try:
        checked = check_state(values)
    except InvalidInput as refused:
        one_line(refused)
        return
    assert set(checked) == set(values) <= set(STATE_FIELDS)
    for name, value in checked.items():
        wanted = int if name == "step" else tuple if name in ("plan", "decisions", "open_questions") else str
        assert isinstance(value, wanted)


def test_none_clears_each_field() -> None:
    """Null is the empty value of its type."""
    assert check_state({"goal": None, "plan": None, "step": None}) == {"goal": "", "plan": (), "step": 0}


@given(given=st.tuples(ANYTHING, ANYTHING, ANYTHING, ANYTHING, ANYTHING))
def test_a_turn_is_all_text(given: tuple[Any, ...]) -> None:
    """Any five values are a turn of texts, or one line of refusal."""
    try:
        checked = check_turn(*given)
    except InvalidInput as refused:
        one_line(refused)
    else:
        assert all(isinstance(each, str) for each in checked.values())


@given(
    type_=st.sampled_from(sorted(POINTER_TYPES)) | ANYTHING,
    fields=st.dictionaries(st.sampled_from(["uri", "sha", "image", "id", "command", "x"]) | st.text(), ANYTHING)
    | ANYTHING,
)
def test_a_pointer_has_what_its_type_needs(type_: Any, fields: Any) -> None:
    """What passes has a needed field, no empty ones, and only texts."""
    try:
        _, kind, kept, note = check_pointer("wip", type_, fields, None)
    except InvalidInput as refused:
        one_line(refused)
        return
    assert any(kept.get(each) for each in POINTER_TYPES[kind][1])
    assert all(isinstance(value, str) and value for value in kept.values())
    assert note == ""


def test_a_pointers_own_fields_come_first_in_their_order() -> None:
    """Then all others by name."""
    given_fields = {"zone": "z", "sha": "s", "branch": "b", "a": "x", "repo": "r"}
    assert list(check_pointer("p", "git_ref", given_fields, "")[2]) == ["repo", "branch", "sha", "a", "zone"]
