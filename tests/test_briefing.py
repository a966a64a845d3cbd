"""Briefings: their text and their JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from store.briefing import as_json, render
from store.briefing_parts import DEFAULT_BUDGET, LEAST_BUDGET
from store.values import Action, OutputRef, Pointer, Turn, WorkingState, tokens_of
from tests.briefing_parser import parse
from tests.briefings import EMPTY, KEY, SEED, SEED_TEXT, action, pending


def test_the_example_is_rendered_to_the_letter() -> None:
    """The seed's example gives the seed's text, with nothing left out."""
    briefing = render(SEED)
    assert briefing.text == SEED_TEXT
    assert briefing.tokens == tokens_of(SEED_TEXT)
    assert briefing.budget == DEFAULT_BUDGET
    assert briefing.omitted == {"turns": 0, "memories": 0, "outputs": 0, "pointers": 0, "actions": 0}


def test_a_fresh_agent_has_its_own_opener() -> None:
    """An agent with nothing but lease records is told that there is nothing to resume, in one line."""
    text = render(replace(EMPTY, fresh=True)).text
    assert text.startswith("You are agent billing-migrator, starting for the first time")
    assert "\n" not in text


def test_an_agent_with_nothing_in_force_is_not_fresh() -> None:
    """An agent whose pointers were all removed is resuming, and is told that there is nothing to read."""
    text = render(EMPTY).text
    assert "resuming after your previous process stopped" in text
    assert parse(text).remarks == ["(Nothing to go on from: no notes, turns, pointers, outputs or unfinished actions.)"]


def test_an_earlier_moment_is_named() -> None:
    """A briefing of an earlier lsn says so in its first line."""
    assert parse(render(replace(SEED, at=40)).text).at == 40


def test_state_fields_stand_in_their_order() -> None:
    """All eight fields of the working state appear, in the fixed order."""
    state = WorkingState("g", ("p",), "pr", "f", ("d",), ("q",), "n", 3, "m", 9, updated_at="2026-11-03T18:54:43Z")
    text = render(replace(EMPTY, working_state=state)).text
    assert text.split("written 2026-11-03T18:54:43Z)\n")[1] == (
        "Goal: g\nPlan:\n1. p\nProgress: pr\nLast milestone: m\nCurrent focus: f\n"
        "Decisions:\n- d\nOpen questions:\n- q\nNotes: n"
    )
    assert "(version 9, step 3," in text


def test_an_unfinished_external_action_comes_first_with_its_command() -> None:
    """An external action that may have happened stands right after the opener, with how to settle it."""
    args = '{"to":"a@example.com"}'
    text = render(pending(action(args=args, step="notify customer"))).text
    assert text.split("\n\n")[1] == (
        "## Unfinished actions (1)\n"
        "- action 7: send_email (external, unknown), started 2026-11-03T18:54:43Z, 5 min ago\n"
        f'  key: {KEY}, step: "notify customer"\n'
        f"  args: {args}\n"
        "  do: It may have happened. Find out before anything else; do not repeat it until it is settled with:"
        " `recall actions resolve -a billing-migrator 7 done|failed|abandoned --reason TEXT`\n"
        "These come first: do what each one says before anything below."
    )


@pytest.mark.parametrize(
    ("case", "state", "advice"),
    [
        (action(class_="idempotent", status="started"), "interrupted", "Run it again with the same key"),
        (action(class_="idempotent", status="unknown"), "unknown", "Run it again with the same key"),
        (action(class_="pure", status="started"), "interrupted", "It changes nothing"),
        (action(class_="external", status="started"), "interrupted", "Find out before anything else"),
        (action(class_="external", status="started", incarnation="me"), "running", "Let it finish"),
        (action(class_="external", status="unknown", incarnation="me"), "unknown", "Find out before anything else"),
        (action(9, class_="idempotent", status="started"), "still running as pid 4711", "do not run it again"),
    ],
)
def test_advice_follows_class_and_status(case: Action, state: str, advice: str) -> None:
    """What to do with an action follows from its class, its status, its owner and whether it still runs."""
    text = render(pending(case, viewer="me", still_running={9: "pid 4711"})).text
    [told] = parse(text).actions
    assert told["state"] == state
    assert advice in told["do"]


def test_a_reader_without_an_incarnation_owns_nothing() -> None:
    """Actions without an incarnation are not taken for the reader's own."""
    [told] = parse(render(pending(action(status="started"))).text).actions
    assert told["state"] == "interrupted"


def test_long_arguments_are_cut_in_place() -> None:
    """Arguments are cut at 300 bytes, and the line below says by how much and how to see all."""
    [told] = parse(render(pending(action(args="x" * 1000))).text).actions
    assert told["args"] == "x" * 300
    assert told["remarks"] == "(700 bytes cut: `recall actions show -a billing-migrator 7`)"


def test_spilled_arguments_name_their_output() -> None:
    """Arguments that went to an output are followed by the command that fetches it."""
    [told] = parse(render(pending(action(args="{", args_ref="act-7-args"))).text).actions
    assert told["remarks"] == "(the whole: `recall outputs get -a billing-migrator act-7-args`)"


def test_actions_beyond_twenty_are_counted() -> None:
    """Of 23 unfinished actions the given 20 are told and the rest counted, with the command that lists them."""
    actions = tuple(action(seq) for seq in range(1, 21))
    briefing = render(replace(SEED, pending=actions, pending_total=23))
    parsed = parse(briefing.text)
    assert [told["seq"] for told in parsed.actions] == [str(seq) for seq in range(1, 21)]
    assert "(3 more: `recall actions list billing-migrator --pending`)" in parsed.remarks
    assert briefing.omitted["actions"] == 3


def test_actions_without_room_keep_their_numbers() -> None:
    """In the least budget twenty unfinished actions are all named, if only by number."""
    actions = tuple(action(seq, args="x" * 5000) for seq in range(101, 121))
    briefing = render(pending(*actions), LEAST_BUDGET)
    parsed = parse(briefing.text)
    [remark] = [remark for remark in parsed.remarks if "--pending" in remark]
    assert [told["seq"] for told in parsed.actions] + remark.split(":")[0].split()[2:] == [str(a.seq) for a in actions]
    assert len(parsed.actions) + briefing.omitted["actions"] == 20 > briefing.omitted["actions"]


@pytest.mark.parametrize(
    ("started", "age"),
    [
        ("2026-11-03T18:59:30Z", "30 s ago"),
        ("2026-11-03T15:00:00.5Z", "4 h ago"),
        ("2026-10-04T19:00:00Z", "30 days ago"),
        ("2026-11-03T19:00:30Z", ""),
        ("yesterday", ""),
        ("2026-99-03T19:00:30Z", ""),
    ],
)
def test_ages_are_told_where_they_are_known(started: str, age: str) -> None:
    """An age is told in a fitting unit; a start in the future, or none, has no age."""
    [told] = parse(render(pending(action(started_at=started))).text).actions
    assert told["age"] == age


def test_outputs_are_listed_with_their_size() -> None:
    """Outputs stand newest first with tool, size and a cut summary, and how to read one."""
    outputs = (OutputRef("out-4-1", "bash", "line 1\nline 2", 4096), OutputRef("mine", "", "s" * 400, 9))
    text = render(replace(EMPTY, outputs=outputs, outputs_total=12)).text
    assert text.split("\n\n")[1] == (
        "## Stored outputs\n"
        "(read one whole: `recall outputs get -a billing-migrator REF`)\n"
        "- out-4-1 (bash, ~4096 tokens): line 1\\nline 2\n"
        f"- mine (~9 tokens): {'s' * 300}\n"
        "  (100 bytes of the summary cut)\n"
        "(10 older left out: `recall outputs list billing-migrator`)"
    )


def test_pointer_values_that_could_mislead_are_quoted() -> None:
    """A value with a space, an equals sign or a quote is quoted; a plain note is not."""
    pointer = Pointer(
        "env", "process", {"command": "make dev", "port": "80", "q": 'a="b"', "e": "x=y"}, "the dev server"
    )
    text = render(replace(EMPTY, pointers=(pointer,), pointers_total=1)).text
    assert text.endswith('\n- env (process): command="make dev" port=80 q="a=\\"b\\"" e="x=y" (the dev server)')


def test_long_pointer_values_are_cut_in_place() -> None:
    """A value of a pointer that is too long for a line is cut, marked and counted."""
    pointer = Pointer("e", "env", {"setup": "s" * 2000, "image": "i"})
    text = render(replace(EMPTY, pointers=(pointer,), pointers_total=1)).text
    assert text.endswith(
        f'- e (env): setup="{"s" * 500}"… image=i\n  (1,500 bytes cut: `recall pointers list billing-migrator`)'
    )


def test_a_brief_stands_in_for_its_turn() -> None:
    """A turn with a brief shows it in the place of its content."""
    turn = Turn(1, "tool", "long content", "bash", brief="short")
    assert render(replace(EMPTY, turns=(turn,), turns_total=1)).text.endswith("\n[tool bash #1] short")


def test_a_turn_that_is_only_an_opening_names_its_output() -> None:
    """A turn whose content was stored as an output is followed by the command that fetches it."""
    turn = Turn(1, "tool", "opening", output_ref="out-1-1")
    text = render(replace(EMPTY, turns=(turn,), turns_total=1)).text
    assert text.endswith("[tool #1] opening\n  (the whole: `recall outputs get -a billing-migrator out-1-1`)")


def test_earlier_turns_are_counted() -> None:
    """Turns that are not shown are counted, with the command that lists them."""
    briefing = render(replace(SEED, turns=(Turn(900, "user", "go on"),), turns_total=900))
    assert "verbatim\n(899 earlier left out: `recall turns list billing-migrator`)\n[user #900] go on" in briefing.text
    assert briefing.omitted["turns"] == 899


# -- as JSON ---------------------------------------------------------------------------------------


def test_json_has_the_parts_under_the_tools_names() -> None:
    """The JSON form is plain values under agent_resume's names, with ``class`` spelled so and running ones told."""
    parts = pending(action(9), still_running={9: "pid 4711"}, at=12)
    document = json.loads(json.dumps(as_json(parts, render(parts))))
    assert document["agent_id"] == "billing-migrator"
    assert document["briefing"] == render(parts).text
    assert document["at"] == 12
    assert document["pending_actions"][0]["class"] == "external"
    assert document["pending_actions"][0]["still_running"] == "pid 4711"
    assert "class_" not in document["pending_actions"][0]
    assert document["working_state"]["plan"] == ["find call sites", "migrate them", "run the tests"]
    assert document["pointers"] == [
        {
            "name": "wip",
            "type": "git_ref",
            "fields": {"repo": "github.com/acme/billing", "branch": "agent/wip"},
            "note": "",
            "at": "",
        }
    ]
    assert document["recent_turns"][0]["content"].startswith("12 call sites")
    assert (document["turn_seq"], document["token_budget"], document["tokens"]) == (1, 8000, render(parts).tokens)
    assert document["omitted"]["turns"] == 0 and document["memories"] == [] and document["fresh"] is False
