"""Text from outside: let in, cut and shown so that it never acts."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.clock import parse_rfc3339, rfc3339, rfc3339_seconds, to_datetime
from store.errors import InvalidInput
from store.text import (
    check_agent,
    check_count,
    check_text,
    cut,
    json_for_display,
    json_value,
    lines_of,
    neutral,
    neutral_line,
    quoted,
)

ANY = st.text(st.characters())  # lone surrogates included
CLEAN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
ACTIVE = (
    "\x00\x07\x08\x0b\x0c\r\x1b\x7f\x80\x85\x9b\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\U000e0041"
)


@given(text=CLEAN)
def test_all_of_unicode_is_let_in_unchanged(text: str) -> None:
    """Everything but NUL and lone surrogates is acceptable text."""
    assert check_text("f", text, limit=10**6) is text


@pytest.mark.parametrize("value", ["\x00", "a\x00b", "\ud800", "\udfff x", None, 7, b"x", ["x"]])
def test_what_readers_choke_on_is_refused_in_one_line(value: Any) -> None:
    """NUL, surrogates and what is no text name the field and where it is."""
    with pytest.raises(InvalidInput) as refused:
        check_text("notes", value, limit=100)
    assert refused.value.message.startswith("notes ")
    assert refused.value.message.isprintable()


def test_the_limit_is_in_bytes() -> None:
    """A text of exactly the limit is let in; one byte more is not, and the hint says what to do."""
    assert check_text("f", "é" * 500, limit=1000)
    with pytest.raises(InvalidInput) as refused:
        check_text("f", "é" * 500 + "x", limit=1000)
    assert "1,001 bytes" in refused.value.message
    assert "store_output" in refused.value.hint
    with pytest.raises(InvalidInput) as refused:
        check_text("name", "x" * 129, limit=128)
    assert refused.value.hint == "choose a shorter one"
    assert check_text("f", "", limit=0) == ""
    with pytest.raises(InvalidInput):
        check_text("f", "", limit=9, empty=False)


@given(text=ANY)
def test_shown_text_never_acts(text: str) -> None:
    """Neutral text has no control, direction or hiding character but newline and tab; on one line not even those."""
    shown = neutral(text)
    assert not set(shown) & set(ACTIVE)
    assert all(each in "\n\t" or unicodedata.category(each) not in ("Cc", "Cs") for each in shown)
    line = neutral_line(text)
    assert not set(line) & set(ACTIVE + "\n\t")
    line.encode()
    shown.encode()


@given(text=st.text("abc äé€👍 \n\t"))
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    """Letters, emoji, spaces, newlines and tabs pass."""
    assert neutral(text) == text


@given(text=ANY)
def test_neutralising_twice_is_neutralising_once(text: str) -> None:
    """What is harmless is not escaped again."""
    assert neutral(neutral(text)) == neutral(text)
    assert neutral_line(neutral_line(text)) == neutral_line(text)


@given(value=st.recursive(CLEAN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(CLEAN, inner, max_size=3)))
def test_json_for_display_is_the_same_document(value: Any) -> None:
    """Active characters become escapes, and the document says the same."""
    document = json.dumps(value, ensure_ascii=False)
    shown = json_for_display(document)
    assert json.loads(shown) == value
    assert not set(shown) & set(ACTIVE)


@given(text=ANY, most=st.integers(-5, 60))
def test_a_cut_is_an_opening_within_its_bytes(text: str, most: int) -> None:
    """Never longer than asked, always the beginning, and whole where it fits."""
    opening = cut(text, most)
    assert text.startswith(opening)
    assert len(opening.encode("utf-8", "surrogatepass")) <= max(0, most)
    if len(text.encode("utf-8", "surrogatepass")) <= most:
        assert opening == text


@pytest.mark.parametrize("character", ["é", "e\u0301", "👍🏽", "👩‍👩‍👧", "🇩🇪", "☎️", "1️⃣", "\r\n", "a\u0300\u0301\u0302"])
def test_a_cut_is_between_characters(character: str) -> None:
    """What a reader sees as one character is kept or left as a whole."""
    text = "ab" + character + "cd"
    allowed = {"", "a", "ab", "ab" + character, "ab" + character + "c", text}
    assert {cut(text, most) for most in range(len(text.encode()) + 1)} <= allowed


def test_a_pile_of_marks_does_not_make_a_cut_empty() -> None:
    """A hostile run of combining marks is cut somewhere, instead of everything before it being dropped."""
    assert len(cut("a" + "\u0301" * 10_000, 5000)) > 2000


@given(text=ANY)
def test_lines_have_no_breaks(text: str) -> None:
    """CR, VT, FF, NEL, U+2028 and U+2029 break lines, and CR LF is one break."""
    for line in lines_of(text):
        assert not set(line) & set("\n\r\x0b\x0c\x85\u2028\u2029")
    assert lines_of("a\r\nb\rc\x0bd\x0ce\x85f\u2028g\u2029h\n") == [*"abcdefgh", ""]


@given(value=ANY, most=st.integers(1, 100))
def test_a_quoted_value_is_one_short_line(value: str, most: int) -> None:
    """Foreign values in messages are harmless and not long."""
    shown = quoted(value, most)
    assert len(shown) <= most + 3
    assert shown[0] == shown[-1] == "'"
    assert "\n" not in shown


@pytest.mark.parametrize("good", ["a", "A-1", "0", "billing-migrator", "a.b_c-D", "x" * 128])
def test_agent_ids(good: str) -> None:
    """1 to 128 of A-Z a-z 0-9 . _ - and a letter or digit first."""
    assert check_agent(good) == good


@pytest.mark.parametrize("bad", ["", "-a", ".a", "_a", "a b", "a/b", "ä", "a\n", "\na", "x" * 129, None, 1, "٣"])
def test_what_is_no_agent_id(bad: Any) -> None:
    """Everything else is refused with the rule."""
    with pytest.raises(InvalidInput) as refused:
        check_agent(bad)
    assert "1 to 128" in refused.value.hint


@pytest.mark.parametrize("bad", [True, False, 1.0, "1", None, 0, 11, -(10**30), float("nan")])
def test_counts_are_whole_numbers_within_bounds(bad: Any) -> None:
    """Booleans, floats and texts are no counts."""
    with pytest.raises(InvalidInput):
        check_count("limit", bad, least=1, most=10)
    assert check_count("limit", 10, least=1, most=10) == 10


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("bad", [float("nan"), {"a": float("inf")}, cyclic(), object(), {1j: 2}, b"x", {"s": {1, 2}}])
def test_what_is_no_json_is_refused(bad: Any) -> None:
    """NaN, infinity, cycles and objects never become arguments."""
    with pytest.raises(InvalidInput):
        json_value("args", bad)


def test_arguments_as_text() -> None:
    """A text stays as it is, None is empty, and anything else is compact JSON."""
    assert json_value("args", '{"a": 1}') == '{"a": 1}'
    assert json_value("args", None) == ""
    assert json_value("args", {"to": ["ä"], "n": None}) == '{"to":["ä"],"n":null}'
    assert json_value("args", 0) == "0"


# -- times -------------------------------------------------------------------------------------


@given(wall_us=st.integers(0, 253_402_300_799_999_999))
def test_times_are_written_and_read_back(wall_us: int) -> None:
    """RFC 3339 in UTC, to the microsecond; bodies carry whole seconds, rounded down."""
    text = rfc3339(wall_us)
    assert parse_rfc3339(text) == to_datetime(wall_us)
    assert (len(text), text[-1]) == (27, "Z")
    assert rfc3339_seconds(wall_us) == text[:19] + "Z"


def test_times_of_other_zones_and_without_one() -> None:
    """An offset is converted; no zone means UTC; what is no time is a ValueError."""
    assert parse_rfc3339("2026-11-03T19:54:43+01:00") == parse_rfc3339("2026-11-03T18:54:43Z")
    assert parse_rfc3339("2026-11-03T18:54:43") == parse_rfc3339("2026-11-03T18:54:43z")
    for bad in ("", "yesterday", "2026-13-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"):
        with pytest.raises(ValueError, match=r".*"):
            parse_rfc3339(bad)
