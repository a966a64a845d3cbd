"""What may happen to an action, as pure rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.actions import (
    ATTEMPT,
    CONTINUE,
    REPLAY,
    SAME,
    ActionEnd,
    after_takeover,
    already_closed,
    as_turn,
    closed,
    next_of_step,
    turn_name,
)
from store.errors import ActionClosed, InvalidInput, NeedsSettling
from store.records import CLASSES, CLOSED_STATUSES, OPEN_STATUSES, STATUSES, TO_SETTLE, in_force
from store.values import Action

ACTION = Action(1, tool="t", class_="external", key="k" * 32, status="started", incarnation="a" * 32)
ENDS = ("done", "failed", "abandoned", "unknown")


@pytest.mark.parametrize("before", STATUSES)
@pytest.mark.parametrize("after", STATUSES)
def test_the_transitions(before: str, after: str) -> None:
    """Open ones close or become unknown; closed is closed; nothing becomes started."""
    action = replace(ACTION, status=before, ended_at="then" if before in CLOSED_STATUSES else "")
    if after == "started":
        with pytest.raises(InvalidInput):
            closed(action, ActionEnd(after), at="now")
    elif before in CLOSED_STATUSES:
        with pytest.raises(ActionClosed) as refused:
            closed(action, ActionEnd(after), at="now")
        assert f"already {before}" in refused.value.message
    else:
        shut = closed(action, ActionEnd(after), at="now")
        assert shut.status == after
        assert shut.ended_at == ("now" if after in CLOSED_STATUSES else "")
        assert (shut.key, shut.seq, shut.incarnation) == (action.key, 1, action.incarnation)


@pytest.mark.parametrize("class_", CLASSES)
@pytest.mark.parametrize("status", STATUSES)
def test_settling_at_a_takeover(class_: str, status: str) -> None:
    """Only what was started is settled: pure is abandoned, external unknown, idempotent stays."""
    after = after_takeover(replace(ACTION, class_=class_, status=status))
    if status != "started" or class_ == "idempotent":
        assert after is None
    else:
        assert after is not None
        assert after.status == {"pure": "abandoned", "external": "unknown"}[class_]
        assert after.key == ACTION.key
        assert after_takeover(after) is None  # once is enough


@pytest.mark.parametrize("class_", CLASSES)
@pytest.mark.parametrize("status", STATUSES)
def test_the_projection_marks_just_what_a_takeover_changes(status: str, class_: str) -> None:
    """What a resumption reads to settle is what it has something to do about."""
    action = replace(ACTION, status=status, class_=class_)
    assert (in_force("action", action.body()) == TO_SETTLE) == (after_takeover(action) is not None)


@pytest.mark.parametrize(
    ("status", "class_", "mine", "retry_failed", "verdict"),
    [
        *[("done", each, mine, False, REPLAY) for each in CLASSES for mine in (True, False)],
        *[("abandoned", each, False, False, ATTEMPT) for each in CLASSES],
        ("failed", "pure", False, False, ATTEMPT),
        ("failed", "idempotent", False, False, ATTEMPT),
        ("failed", "external", False, False, None),
        ("failed", "external", False, True, ATTEMPT),
        *[("started", each, True, False, None if each == "external" else SAME) for each in CLASSES],
        ("started", "pure", False, False, ATTEMPT),
        ("started", "idempotent", False, False, CONTINUE),
        ("started", "external", False, False, None),
        ("unknown", "pure", True, False, ATTEMPT),
        ("unknown", "idempotent", True, False, CONTINUE),
        ("unknown", "external", True, False, None),
        ("unknown", "external", False, True, None),
    ],
)
def test_beginning_a_step_again(status: str, class_: str, mine: bool, retry_failed: bool, verdict: str | None) -> None:
    """By the last attempt: replay, go on, try anew, or refuse until somebody settles it."""
    last = replace(ACTION, status=status, class_=class_)
    if verdict is None:
        with pytest.raises(NeedsSettling) as refused:
            next_of_step("a", last, mine=mine, retry_failed=retry_failed)
        assert any(
            each in refused.value.hint for each in ("recall actions resolve", "recall actions end", "retry_failed")
        )
    else:
        assert next_of_step("a", last, mine=mine, retry_failed=retry_failed) == verdict


@given(
    tool=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1),
    result=st.text(st.characters(exclude_categories=["Cs"])),
)
def test_an_outcome_as_the_model_reads_it(tool: str, result: str) -> None:
    """The result is the content, whole; the brief is bounded and says how it was settled; the name has no spaces."""
    turn = as_turn(replace(ACTION, tool=tool, status="done", result=result), "settled by ops")
    assert turn.role == "tool"
    assert turn.content == (result or "done")
    assert len(turn.brief.encode()) <= 4096
    assert turn.brief.startswith("action 1 done, settled by ops")
    assert " " not in turn_name(tool)


def test_outcomes_that_have_no_result() -> None:
    """A failure says why, an abandoned one its status, a spilled result its ref."""
    assert as_turn(replace(ACTION, status="failed", error="no route"), "h").content == "failed: no route"
    assert as_turn(replace(ACTION, status="failed"), "h").content == "failed"
    assert as_turn(replace(ACTION, status="abandoned"), "h").content == "abandoned"
    assert "act-1-result" in as_turn(replace(ACTION, status="done", result_ref="act-1-result"), "h").content


def test_a_later_close_is_shown_the_outcome() -> None:
    """Status, time, who settled it, and the result or error, in one harmless line."""
    shut = replace(ACTION, status="done", result="17\n\x1b[31m", ended_at="2026-11-03T18:54:43Z", by="ops")
    message = already_closed(shut).message
    assert message.isprintable()
    for part in ("action 1", "done", "2026-11-03T18:54:43Z", "ops", "17"):
        assert part in message


@pytest.mark.parametrize("status", ENDS)
def test_a_resolution_survives_another_unknown(status: str) -> None:
    """Marking it unknown again keeps why; an outcome has its own reason."""
    action: Any = replace(ACTION, status="unknown", resolution="interrupted")
    shut = closed(action, ActionEnd(status), at="now")
    assert shut.resolution == ("interrupted" if status == "unknown" else "")
    assert (status in OPEN_STATUSES) is shut.open
