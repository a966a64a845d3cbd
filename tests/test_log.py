"""Sealing: drafts become records, densely and in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.canonical import LINE_LIMIT, next_hash
from store.errors import InvalidInput
from store.log import Sealed, seal
from store.records import ACTION, NEXT, OUTPUT, POINTER, TURN, Draft


def sealed(drafts: list[Draft], *, last: int = 0, newest: dict[str, int] | None = None) -> list[Sealed]:
    return seal(
        drafts,
        agent="a",
        branch=1,
        epoch=3,
        last=last,
        last_hash=b"h",
        at="t",
        newest_seq=lambda kind: (newest or {}).get(kind, 0),
    )


@given(
    kinds=st.lists(st.sampled_from([TURN, ACTION, OUTPUT]), max_size=20),
    last=st.integers(0, 9),
    turns=st.integers(0, 9),
)
def test_numbers_and_links_go_on_without_a_gap(kinds: list[str], last: int, turns: int) -> None:
    """lsn follows the last one, NEXT the newest of its kind, and each hash is over the one before it."""
    drafts = [Draft(each, {}, seq=0 if each == OUTPUT else NEXT, name="n" if each == OUTPUT else "") for each in kinds]
    records = [each.record for each in sealed(drafts, last=last, newest={TURN: turns})]
    assert [each.lsn for each in records] == list(range(last + 1, last + 1 + len(kinds)))
    assert [each.seq for each in records if each.kind == TURN] == list(range(turns + 1, turns + 1 + kinds.count(TURN)))
    assert [each.seq for each in records if each.kind == ACTION] == list(range(1, 1 + kinds.count(ACTION)))
    link = b"h"
    for each in records:
        link = next_hash(link, each.line)
        assert each.hash == link
        assert each.epoch == 3


@pytest.mark.parametrize(
    ("draft", "is_open"),
    [
        (Draft(ACTION, {"status": "started", "class": "pure"}, seq=1), 2),
        (Draft(ACTION, {"status": "started", "class": "external"}, seq=1), 2),
        (Draft(ACTION, {"status": "started", "class": "idempotent"}, seq=1), 1),
        (Draft(ACTION, {"status": "unknown", "class": "external"}, seq=1), 1),
        (Draft(ACTION, {"status": "done", "class": "external"}, seq=1), 0),
        (Draft(POINTER, {"type": "env"}, name="p"), 1),
        (Draft(POINTER, {"removed": True}, name="p"), 0),
        (Draft(OUTPUT, {"content": "x"}, name="o"), 1),
        (Draft(TURN, {"content": "x"}, seq=1), 0),
    ],
)
def test_what_is_in_force_is_marked_for_the_projection(draft: Draft, is_open: int) -> None:
    """Open actions, with those that the next incarnation settles told apart, pointers that are set, and outputs."""
    assert sealed([draft])[0].open == is_open


def test_a_draft_that_fits_no_line_is_refused() -> None:
    """A name that alone fills a line cannot be moved to a blob."""
    with pytest.raises(InvalidInput, match=f"{LINE_LIMIT:,}"):
        sealed([Draft(TURN, {}, seq=1), Draft(OUTPUT, {"content": "x"}, name="n" * LINE_LIMIT)])


def test_large_fields_leave_the_line_with_the_epoch_in_their_names() -> None:
    """The blob's name says which epoch wrote it."""
    (one,) = sealed([Draft(OUTPUT, {"content": "x" * 20_000}, name="o")])
    (name,) = one.blobs
    assert name.startswith("3-")
    assert name in one.record.body
    assert one.record.fields(lambda blob: one.blobs[blob]) == {"content": "x" * 20_000}
