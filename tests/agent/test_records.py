"""Working state, turns, outputs and pointers of a resumed agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recall_cli import Client
from store.actions import ActionEnd
from store.agent import Agent
from store.errors import (
    InvalidInput,
    NotFound,
    RefTaken,
)
from store.records import OUTPUT, WORKING_STATE, Draft
from tests.agent.conftest import again
from tests.engine import AGENT


def test_fields_left_out_are_kept_and_empty_ones_clear(agent: Agent) -> None:
    """Each update is a version; [] and "" and None clear; a milestone is a version too."""
    agent.update_working_state(goal="g", plan=["a", "b"], decisions=["d"], notes="n", step=3)
    second = agent.update_working_state(progress="p", decisions=[], notes="", step=None)
    assert (second.version, second.goal, second.plan, second.progress) == (2, "g", ("a", "b"), "p")
    assert (second.decisions, second.notes, second.step) == ((), "", 0)
    third = agent.update_working_state(plan=None)
    assert (third.plan, third.goal) == ((), "g")
    agent.record_turn("user", "x")
    fourth = agent.milestone("half way", progress="6 of 12")
    assert (fourth.version, fourth.last_milestone, fourth.progress) == (4, "half way", "6 of 12")
    assert (fourth.turn_seq, fourth.is_milestone) == (1, True)
    fifth = agent.update_working_state(focus="f")
    assert (fifth.last_milestone, fifth.is_milestone) == ("half way", False)
    history = agent.working_state_history()
    assert [each.version for each in history] == [5, 4, 3, 2, 1]
    assert [each.version for each in agent.working_state_history(limit=2)] == [5, 4]


def test_a_state_is_read_without_those_before_it(client: Client, agent: Agent) -> None:
    """Of sixty versions one is read; where the newest cannot be read, it is the one before it."""
    for number in range(60):
        agent.update_working_state(step=number + 1)
    read: list[int] = []
    tail = client.backend.tail

    def counted(agent: str, kind: str, **options: Any) -> Any:
        found = tail(agent, kind, **options)
        read.append(len(found))
        return found

    client.backend.tail = counted  # type: ignore[method-assign]
    assert agent.update_working_state(notes="n").step == 60
    assert read == [1]
    draft = Draft(WORKING_STATE, {"goal": 7}, seq=62)
    client.backend.append(client.backend.lease(AGENT).fence, [draft])  # type: ignore[union-attr]
    assert (agent.view.working_state().version, agent.view.working_state().notes) == (61, "n")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gaol", "x"),
        ("version", 1),
        ("goal", 1),
        ("goal", "\ud800"),
        ("goal", "a\x00"),
        ("goal", "x" * 300_000),
        ("plan", "not a list"),
        ("plan", [1]),
        ("plan", {"a": "b"}),
        ("plan", ["x"] * 1001),
        ("decisions", ["\udfff"]),
        ("step", -1),
        ("step", 1.5),
        ("step", True),
        ("step", float("nan")),
        ("step", 10**30),
    ],
)
def test_a_wrong_field_is_refused_by_name_and_nothing_is_written(agent: Agent, field: str, value: Any) -> None:
    """An unknown field, a wrong type or a text that cannot be stored names the field in one line."""
    with pytest.raises(InvalidInput) as refused:
        agent.update_working_state(**{"notes": "n", field: value})
    assert field in refused.value.message
    assert "\n" not in refused.value.message
    assert agent.working_state_history() == []


def test_any_unicode_comes_back_as_it_was(agent: Agent, client: Client) -> None:
    """Emoji, right-to-left marks, escapes, markup and headings are stored as they are."""
    text = "👩‍👩‍👧 \u202eevil\u202c \x1b[31mred\x1b[0m [bold]x[/] ## Working state\r\n[user #1] no\u2028\x85\t\x7f €"
    agent.update_working_state(goal=text, plan=[text])
    agent.record_turn("user", text, brief=text)
    agent.store_output(text, ref="odd")
    agent.set_pointer("p", "object", {"uri": text}, note=text)
    second = again(client, agent)
    state = second.context.working_state
    assert (state.goal, state.plan) == (text, (text,))
    assert (second.recent_turns()[0].content, second.recent_turns()[0].brief) == (text, text)
    assert second.fetch_output("odd").content == text
    assert (second.pointers()[0].fields["uri"], second.pointers()[0].note) == (text, text)
    assert not set(second.context.briefing) & set("\x1b\u202e\u2028\x85\r\x7f")


def test_turns_are_numbered_over_epochs(agent: Agent, client: Client) -> None:
    """seq goes on from 1 whoever holds the lease; the newest come oldest first."""
    first = agent.record_turn("user", "one", message_id="m-1")
    second = again(client, agent)
    turn = second.record_turn("tool", "", name="grep", brief="nothing found")
    assert (first.seq, turn.seq) == (1, 2)
    assert second.recent_turns(1) == [turn]
    assert second.recent_turns() == [first, turn]
    assert (first.message_id, turn.name, turn.brief, turn.content) == ("m-1", "grep", "nothing found", "")


@pytest.mark.parametrize(
    "given",
    [
        {"role": "robot"},
        {"role": None},
        {"content": None},
        {"content": b"bytes"},
        {"content": "\ud800"},
        {"content": "nul \x00"},
        {"message_id": "x" * 257},
        {"brief": "x" * 4097},
        {"name": "a b"},
        {"name": "-rf"},
        {"name": "a\nb"},
        {"name": "a]"},
    ],
)
def test_a_turn_that_cannot_be_kept_is_refused(agent: Agent, given: dict[str, Any]) -> None:
    """Role, content, id, brief and name each have their bounds."""
    if given == {"name": "a]"}:
        agent.record_turn("user", "x", name="a]")  # a visible name; the briefing shows that it is no label
        return
    with pytest.raises(InvalidInput):
        agent.record_turn(**{"role": "user", "content": "x", **given})
    assert agent.recent_turns() == []


def test_a_turn_over_the_threshold_is_kept_whole_as_an_output(agent: Agent) -> None:
    """The turn keeps its opening, the size and the ref; the output has every character."""
    exactly, over = "x" * 8000, "é" * 4001
    assert agent.record_turn("user", exactly).output_ref == ""
    turn = agent.record_turn("tool", over, name="grep")
    assert turn.output_ref == "out-2-1"
    assert turn.content.startswith("é" * 200 + " …")
    assert "8,002 bytes" in turn.content
    assert agent.fetch_output(turn.output_ref).content == over
    assert agent.fetch_output(turn.output_ref).tool == "grep"


def test_the_threshold_can_be_set_or_switched_off(client: Client, agent: Agent) -> None:
    """A negative threshold never moves a text; zero moves every text that is not empty."""
    agent = again(client, agent, output_threshold=-1)
    assert agent.record_turn("user", "x" * 200_000).output_ref == ""
    assert len(agent.recent_turns()[0].content) == 200_000
    agent = again(client, agent, output_threshold=0)
    assert agent.record_turn("user", "").output_ref == ""
    assert agent.record_turn("user", "x").output_ref == "out-3-1"


def test_ten_megabytes_come_back(agent: Agent, client: Client) -> None:
    """A 10 MB turn, output, argument and result are kept whole, and the briefing stays within its budget."""
    large = "0123456789" * 1_000_000
    turn = agent.record_turn("user", large)
    action = agent.begin_action("t", "external", large)
    agent.end_action(action.seq, "done", large)
    agent.store_output(large, ref="large", summary="s")
    second = again(client, agent)
    assert second.fetch_output(turn.output_ref).content == large
    done = second.view.action(action.seq)
    assert (done.args_ref, done.result_ref) == ("act-1-args", "act-1-result")
    assert second.fetch_output(done.args_ref).content == large
    assert second.fetch_output(done.result_ref).content == large
    assert second.context.tokens <= second.context.token_budget == 8000


def test_outputs_have_refs_that_are_not_reused(agent: Agent) -> None:
    """Default refs count up; a given one is taken once, unless it is to be replaced; both stay in the log."""
    first, second = agent.store_output("a"), agent.store_output("b", tool="cat", summary="s")
    assert (first.ref, second.ref) == ("out-1-1", "out-1-2")
    assert (second.tool, second.summary, second.tokens) == ("cat", "s", 1)
    agent.store_output("one", ref="mine")
    with pytest.raises(RefTaken):
        agent.store_output("two", ref="mine")
    assert agent.fetch_output("mine").content == "one"
    agent.store_output("two", ref="mine", replace=True)
    assert agent.fetch_output("mine").content == "two"
    with pytest.raises(NotFound):
        agent.fetch_output("none")


def nested() -> Any:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    "call",
    [
        lambda it: it.update_working_state(add=5),
        lambda it: it.update_working_state(add=["plan"]),
        lambda it: it.begin_action("t", "pure", nested()),
        lambda it: it.begin_action("t", "pure", {"n": 10**5000}),
        lambda it: it.end_action(1, "done", nested()),
        lambda it: it.end_action(1, "done", error=5),
        lambda it: it.resolve_action(1, "done", by="x"),
        lambda it: it.resolve_action(1, None, by="x"),
        lambda it: it.resolve_action(1, ActionEnd("done", resolution=5), by="x"),  # type: ignore[arg-type]
        lambda it: it.amend_action([1], "note"),
        lambda it: it.amend_action("1", "note"),
        lambda it: it.retry_action(1.0),
        lambda it: it.permit_retry(True, by="x", reason="r"),
        lambda it: it.permit_retry(1, by=5, reason="r"),
        lambda it: it.fetch_output(["o"]),
        lambda it: it.fetch_output(None),
        lambda it: it.view.turn("1"),
        lambda it: it.view.state_version(None),
        lambda it: it.end_action(10**5000, "done"),
        lambda it: it.recent_turns(10**5000),
        lambda it: it.reconcile(timeout=float("nan")),
        lambda it: it.reconcile(timeout="1"),
        *(
            lambda it, command=command: it.begin_action("t", "external", command=command)
            for command in (
                5,
                [1],
                {"a": float("inf")},
                {"a": nested()},
                {"a": "x" * 70_000},
                {"a": "\ud800"},
                {"a": {1, 2}},
            )
        ),
        lambda it: it.end_action(1, "done", command=[1]),
        lambda it: it.end_action(1, "done", command={"exit": float("nan")}),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_before_anything_is_written(
    client: Client, agent: Agent, call: Callable[[Any], object]
) -> None:
    """Whatever a program passes by mistake: one plain line, and the log as it was."""
    agent.begin_action("t", "external")
    before = client.backend.counters(AGENT).lsn
    with pytest.raises(InvalidInput) as refused:
        call(agent)
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 300
    assert client.backend.counters(AGENT).lsn == before


@pytest.mark.parametrize("run", ["x", "run-", "run-x", "run-0", "run-²", "run-٣", "run-" + "9" * 5000, 5, None])
def test_a_run_that_is_none_is_not_found(agent: Agent, run: Any) -> None:
    """A name that no run can have is answered like one that no run has."""
    agent.begin_run()
    with pytest.raises(NotFound):
        agent.end_run(run)
    assert agent.open_run() == "run-1"


@pytest.mark.parametrize("seq", [99, 2**63, 10**5000, -(10**5000)], ids=["99", "2^63", "10^5000", "-10^5000"])
def test_a_number_that_no_action_has_is_not_found(agent: Agent, seq: int) -> None:
    """Of any size, in one line that is not as long as the number."""
    with pytest.raises(NotFound) as refused:
        agent.amend_action(seq, "note")
    assert len(refused.value.message) < 100


def test_a_command_is_kept_as_it_will_be_read(agent: Agent) -> None:
    """What begin returns of it is what a later look returns, and later changes of the caller's object do not count."""
    given: dict[Any, Any] = {"pid": 7, "argv": ("a", "b"), 1: None}
    begun = agent.begin_action("t", "external", command=given)
    given["pid"] = 8
    assert begun.command == agent.view.action(begun.seq).command == {"pid": 7, "argv": ["a", "b"], "1": None}
    done = agent.end_action(begun.seq, "done", command={"exit": 0})
    assert done.command == {**begun.command, "exit": 0}


@pytest.mark.parametrize("given", [(), (1, 2, 3, 5), (2,)])
def test_a_default_ref_is_found_in_few_looks(client: Client, agent: Agent, given: tuple[int, ...]) -> None:
    """A thousand outputs of one turn, and refs that somebody chose in between, are neither walked nor overwritten."""
    for number in given:
        agent.store_output("mine", ref=f"out-1-{number}")
    refs = [agent.store_output("x").ref for _ in range(20)]
    assert len({*refs, *(f"out-1-{number}" for number in given)}) == 20 + len(given)
    drafts = [Draft(OUTPUT, {"content": "x"}, name=f"out-1-{number}") for number in range(1, 1001)]
    client.backend.append(client.backend.lease(AGENT).fence, drafts)  # type: ignore[union-attr]
    looks: list[str] = []
    newest = client.backend.newest

    def counted(agent: str, kind: str, **options: Any) -> Any:
        looks.append(kind)
        return newest(agent, kind, **options)

    client.backend.newest = counted  # type: ignore[method-assign]
    assert agent.store_output("x").ref == "out-1-1001"
    assert len(looks) < 25


@pytest.mark.parametrize("char", ["\x01", '"', "\\"])
def test_a_summary_of_any_characters_is_shown(agent: Agent, char: str) -> None:
    """Listings have all of it, and the briefing its opening, without reading the content."""
    agent.store_output("x" * 3000, summary=char * 4096, ref="o")
    assert agent.view.outputs()[0][0].summary == char * 4096
    shown = agent.refresh().briefing
    assert ("\\x01" if char == "\x01" else char) * 20 in shown


def test_what_an_action_was_given_and_returned_is_nobodys_to_replace(client: Client, agent: Agent) -> None:
    """Refs of actions are refused to callers; one that is taken all the same is not written over."""
    large, larger = "y" * 50_000, "z" * 60_000
    for ref in ("act-1-args", "act-99-x"):
        with pytest.raises(InvalidInput):
            agent.store_output("x", ref=ref, replace=True)
    draft = Draft(OUTPUT, {"content": "imported"}, name="act-1-args")
    client.backend.append(client.backend.lease(AGENT).fence, [draft])  # type: ignore[union-attr]
    action = agent.begin_action("send", "external", large)
    assert agent.fetch_output("act-1-args").content == "imported"
    assert agent.fetch_output(action.args_ref).content == large
    partial = agent.end_action(1, "unknown", large)
    done = agent.resolve_action(1, ActionEnd("done", larger, resolution="seen"), by="dana")
    assert agent.fetch_output(done.result_ref).content == larger
    assert agent.fetch_output(partial.result_ref).content == large
    assert agent.store_output("x", ref="act-one-mine").ref == "act-one-mine"


@pytest.mark.parametrize("ref", ["\udcff", "nul\x00", "x" * 5000, "a\n\x1b[31mb", "..", ""])
def test_an_odd_ref_is_not_found_in_one_plain_line(agent: Agent, ref: str) -> None:
    """Asking for any text finds nothing and says so harmlessly."""
    with pytest.raises(NotFound) as refused:
        agent.fetch_output(ref)
    assert refused.value.message.isprintable()
    refused.value.message.encode()


def test_pointers_replace_by_name_and_can_be_removed(agent: Agent) -> None:
    """The same name replaces; the list is by name; a removed one is gone from it and can be set again."""
    agent.set_pointer("wip", "git_ref", {"repo": "r", "branch": "b", "sha": ""})
    agent.set_pointer("db", "process", {"command": "pg", "port": "5432", "zone": "eu"}, note="n")
    agent.set_pointer("wip", "object", {"uri": "s3://b/k"})
    assert [(each.name, each.type) for each in agent.pointers()] == [("db", "process"), ("wip", "object")]
    assert dict(agent.pointers()[0].fields) == {"command": "pg", "port": "5432", "zone": "eu"}
    agent.remove_pointer("wip")
    assert [each.name for each in agent.pointers()] == ["db"]
    with pytest.raises(NotFound):
        agent.remove_pointer("wip")
    agent.set_pointer("wip", "env", {"image": "i"})
    assert len(agent.pointers()) == 2


@pytest.mark.parametrize(
    ("type_", "fields"),
    [
        ("git_ref", {"repo": "r"}),
        ("git_ref", {"branch": ""}),
        ("object", {}),
        ("env", {"other": "x"}),
        ("external", {"kind": "k"}),
        ("process", {"port": "1"}),
        ("unknown", {"uri": "x"}),
        ("object", "uri"),
        ("object", {"uri": 7}),
        ("object", {"uri": "x", "a b": "y"}),
        ("object", {"uri": "x" * 300_000}),
    ],
)
def test_a_pointer_needs_what_its_type_needs(agent: Agent, type_: str, fields: Any) -> None:
    """Empty fields count as missing; anything else than texts is refused."""
    with pytest.raises(InvalidInput):
        agent.set_pointer("p", type_, fields)
    assert agent.pointers() == []
