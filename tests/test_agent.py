"""The operations of a resumed agent, through the Python front door."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recall_cli import Client
from store.access import beside
from store.actions import ActionEnd
from store.agent import Agent
from store.errors import (
    ActionClosed,
    ActionNotUnknown,
    InvalidInput,
    LeaseExpired,
    LeaseHeld,
    LeaseLost,
    LeaseNotHeld,
    NeedsSettling,
    NotFound,
    RecallError,
    RefTaken,
    ResolverFailed,
    StepMismatch,
    StoreBusy,
)
from store.keeper import Keeper
from store.records import Action
from tests.engine import AGENT, SetClock, verified

SEEDS_BRIEFING = """\
You are agent billing-migrator, resuming after your previous process stopped. Continue from your notes and last turns \
below; check only what you have reason to doubt.

## Working state (version 2, step 0, written 2026-11-03T18:54:43Z)
Goal: Move billing to the v2 API
Plan:
1. find call sites
2. migrate them
3. run the tests
Progress: 1 of 12 files migrated
Last milestone: call sites found

## Where your work lives
- wip (git_ref): repo=github.com/acme/billing branch=agent/wip

## Your most recent turns, verbatim
[assistant #1] 12 call sites found; migrating api/checkout.py first."""


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def client(tmp_path: Path, clock: SetClock) -> Iterator[Client]:
    with Client(local_dir=tmp_path / "recall-data", clock=clock) as opened:
        yield opened


@pytest.fixture
def agent(client: Client) -> Agent:
    return client.resume(AGENT)


def again(client: Client, agent: Agent, **options: Any) -> Agent:
    """The same agent, as the next process resumes it."""
    agent.release()
    return client.resume(AGENT, **options)


def adopted(client: Client, *, renew: bool = False) -> Agent:
    lease = client.backend.lease(AGENT)
    assert lease is not None
    return Agent(client.backend, AGENT, Keeper.adopt(client.backend, lease.fence, renew=renew))


def test_the_seeds_program_prints_its_briefing_to_the_letter(tmp_path: Path) -> None:
    """The program of the design runs as written, and what it prints is what the design shows."""
    local_dir, clock = str(tmp_path / "recall-data"), SetClock()
    with Client(local_dir=local_dir, agent=True, clock=clock) as client, client.resume("billing-migrator") as agent:
        assert agent.context.fresh is True
        agent.update_working_state(
            goal="Move billing to the v2 API", plan=["find call sites", "migrate them", "run the tests"]
        )
        agent.set_pointer("wip", "git_ref", {"repo": "github.com/acme/billing", "branch": "agent/wip"})
        agent.record_turn("assistant", "12 call sites found; migrating api/checkout.py first.")
        agent.milestone("call sites found", progress="1 of 12 files migrated")
    with Client(local_dir=local_dir, agent=True, clock=clock) as client, client.resume("billing-migrator") as agent:
        assert agent.context.fresh is False
        assert agent.context.briefing.rstrip("\n") == SEEDS_BRIEFING
    verified(local_dir)


# -- the lease ----------------------------------------------------------------------------------


def test_a_second_resume_is_refused_with_lease_held(client: Client, agent: Agent) -> None:
    """While one holds the lease, another resume names the holder and the time, and takes nothing."""
    with pytest.raises(LeaseHeld) as refused:
        client.resume(AGENT, holder=client.backend.lease(AGENT).holder)  # type: ignore[union-attr]
    assert refused.value.code == "lease_held"
    assert refused.value.details["until"] == "2026-11-03T18:55:43Z"
    agent.record_turn("user", "still mine")


def test_a_deferred_resume_reads_everything_and_writes_nothing(client: Client, agent: Agent) -> None:
    """Without the lease the whole context is there, reads work, and writes say lease_not_held; acquire tries once."""
    agent.record_turn("user", "hello")
    second = client.resume(AGENT, defer_lease=True)
    assert (second.lease_held, second.epoch, second.context.lease_held) == (False, 0, False)
    assert "hello" in second.context.briefing
    assert [each.content for each in second.recent_turns()] == ["hello"]
    for work in (lambda: second.record_turn("user", "x"), lambda: second.begin_action("t", "pure")):
        with pytest.raises(LeaseNotHeld) as refused:
            work()
        assert refused.value.code == "lease_not_held"
    assert second.acquire() is False
    agent.record_turn("user", "meanwhile")
    agent.release()
    assert second.acquire() is True
    assert second.context.epoch == 2
    assert second.record_turn("assistant", "after").seq == 3
    assert second.acquire() is True


def test_a_lease_that_was_lost_is_lost_for_good(client: Client, agent: Agent, clock: SetClock) -> None:
    """After another epoch every write says lease_lost, also when that one has ended."""
    clock.move(61)
    other = client.resume(AGENT)
    other.release()
    for _ in range(2):
        with pytest.raises(LeaseLost) as refused:
            agent.record_turn("user", "late")
        assert refused.value.code == "lease_lost"
    assert not agent.lease_held
    assert agent.recent_turns() == []


def test_a_lapsed_lease_is_acquired_again_and_told(client: Client, clock: SetClock) -> None:
    """Where nobody acted in between, a write goes on under a new epoch; on_lease and the log say so."""
    told: list[tuple[str, int]] = []
    agent = client.resume(AGENT, on_lease=lambda event, epoch: told.append((event, epoch)))
    running = agent.begin_action("send_email", "external", "to: a@example.com")
    clock.move(3600)
    agent.record_turn("user", "late")
    assert told == [("acquired", 1), ("again", 2)]
    assert [(each.seq, each.status) for each in agent.pending_actions()] == [(running.seq, "started")]
    assert agent.end_action(running.seq, "done").status == "done"


def test_an_adopted_lease_is_not_acquired_again(client: Client, agent: Agent, clock: SetClock) -> None:
    """A shell's token under an expired lease is refused, though nobody took over."""
    shell = adopted(client, renew=True)
    clock.move(50)
    shell.record_turn("user", "renews")
    clock.move(50)
    shell.record_turn("user", "in time")
    clock.move(60)
    with pytest.raises(LeaseExpired) as refused:
        shell.record_turn("user", "late")
    assert refused.value.code == "lease_expired"
    assert len(agent.recent_turns()) == 2


def test_after_a_release_the_same_process_is_another_actor(client: Client, agent: Agent) -> None:
    """Acquired anew after a release or a loss, it has a new incarnation, so that an old token stays dead."""
    running = agent.begin_action("send_email", "external")
    before = client.backend.lease(AGENT)
    agent.release()
    client.resume(AGENT).release()
    assert agent.acquire()
    after = client.backend.lease(AGENT)
    assert before is not None
    assert after is not None
    assert after.incarnation != before.incarnation
    assert agent.epoch == 3
    assert agent.view.action(running.seq).status == "unknown"
    agent.record_turn("user", "goes on")


def test_a_background_thread_renews_the_lease(tmp_path: Path) -> None:
    """A lease of one second outlives two without a write, by renewals that leave no record."""
    with Client(local_dir=tmp_path / "store") as client:
        agent = client.resume(AGENT, lease_ttl=1)
        deadline = time.monotonic() + 2.2
        while time.monotonic() < deadline:
            lease = client.backend.lease(AGENT)
            assert lease is not None
            time.sleep(0.1)
        with pytest.raises(LeaseHeld):
            client.resume(AGENT)
        agent.record_turn("user", "x")
        agent.release()
    assert verified(tmp_path / "store")[AGENT][-1]["kind"] == "turn"


def test_waiting_for_the_lease(tmp_path: Path) -> None:
    """resume(wait=) gets the lease when the holder releases within that time."""
    with Client(local_dir=tmp_path / "store") as client:
        holder = client.resume(AGENT)
        threading.Timer(0.3, holder.release).start()
        assert client.resume(AGENT, wait=20).epoch == 2


def test_a_resume_that_fails_keeps_no_lease(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """If settling cannot be written, the lease is given back: the caller has nothing to release it with."""
    agent = client.resume(AGENT)
    agent.begin_action("send_email", "external")
    agent.release()

    def full(self: Agent) -> list[Action]:
        raise StoreBusy(path="x", holder="y", waited="0")

    with monkeypatch.context() as patched:
        patched.setattr(Agent, "settle", full)
        with pytest.raises(StoreBusy):
            client.resume(AGENT)
    assert client.resume(AGENT).epoch == 3


@pytest.mark.parametrize(
    "options",
    [
        {"lease_ttl": 0},
        {"lease_ttl": float("nan")},
        {"lease_ttl": float("inf")},
        {"lease_ttl": "60"},
        {"token_budget": 511},
        {"token_budget": 1.5},
        {"output_threshold": "many"},
        {"holder": ""},
        {"holder": "x" * 201},
        {"holder": "a\x00b"},
    ],
)
def test_a_bad_option_takes_no_lease(client: Client, options: dict[str, Any]) -> None:
    """Options are checked before anything is written."""
    with pytest.raises(InvalidInput):
        client.resume(AGENT, **options)
    assert client.backend.lease(AGENT) is None


@pytest.mark.parametrize("name", ["", "..", "-rf", ".hidden", "a b", "a/b", "ä", "x" * 129, "a\n", "a:b", None, 7])
def test_a_bad_agent_id_is_refused(client: Client, name: Any) -> None:
    """Ids are 1 to 128 of A-Z a-z 0-9 . _ -, starting with a letter or digit."""
    with pytest.raises(InvalidInput) as refused:
        client.resume(name)
    assert "\n" not in refused.value.message


def test_ids_that_differ_only_in_case_are_two_agents(client: Client) -> None:
    """Nothing of one shows in the other; the longest id works."""
    for name in ("Case", "case", "x" * 128):
        client.resume(name).record_turn("user", name)
    for name in ("Case", "case", "x" * 128):
        assert [each.content for each in client.resume(name, defer_lease=True).recent_turns()] == [name]


# -- working state ---------------------------------------------------------------------------------


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


# -- turns and outputs ---------------------------------------------------------------------------------


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


@pytest.mark.parametrize("ref", ["\udcff", "nul\x00", "x" * 5000, "a\n\x1b[31mb", "..", ""])
def test_an_odd_ref_is_not_found_in_one_plain_line(agent: Agent, ref: str) -> None:
    """Asking for any text finds nothing and says so harmlessly."""
    with pytest.raises(NotFound) as refused:
        agent.fetch_output(ref)
    assert refused.value.message.isprintable()
    refused.value.message.encode()


# -- pointers --------------------------------------------------------------------------------------------


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


# -- actions -----------------------------------------------------------------------------------------------


def test_an_action_has_one_key_and_one_outcome(agent: Agent) -> None:
    """seq from 1, a key of 32 hex digits, and the first close wins; a later one is shown what is there."""
    begun = agent.begin_action("send_email", "external", {"to": "a@example.com"})
    assert (begun.seq, begun.status, begun.class_, begun.args) == (1, "started", "external", '{"to":"a@example.com"}')
    assert len(begun.key) == 32
    assert int(begun.key, 16) >= 0
    done = agent.end_action(1, "done", "message 17")
    assert (done.key, done.result, done.ended_at) == (begun.key, "message 17", "2026-11-03T18:54:43Z")
    with pytest.raises(ActionClosed) as refused:
        agent.end_action(1, "failed", error="no")
    assert "message 17" in refused.value.message
    assert agent.pending_actions() == []
    assert agent.begin_action("send_email", "external").key != begun.key


@pytest.mark.parametrize(
    "given",
    [
        {"tool": ""},
        {"tool": "x" * 129},
        {"tool": "-rf"},
        {"class_": "harmless"},
        {"class_": None},
        {"args": float("nan")},
        {"args": {"a": [float("inf")]}},
        {"args": object()},
        {"args": "\ud800"},
        {"args": {"a": "\ud800"}},
        {"step": "a b"},
    ],
)
def test_an_intent_that_cannot_be_recorded_is_not_begun(agent: Agent, given: dict[str, Any]) -> None:
    """NaN, infinity, surrogates, things that are not JSON, and wrong names never reach the store."""
    with pytest.raises(InvalidInput):
        agent.begin_action(**{"tool": "t", "class_": "pure", "args": "", **given})
    assert agent.pending_actions() == []


@pytest.mark.parametrize("seq", [0, -1, 99, 10**30, "1", 1.0, True, None])
def test_ending_what_is_not_there_is_refused(agent: Agent, seq: Any) -> None:
    """A number that no action has is not found or not a number; never a traceback."""
    with pytest.raises((InvalidInput, NotFound)):
        agent.end_action(seq, "done")


@pytest.mark.parametrize("status", ["started", "finished", "", None])
def test_an_action_ends_with_an_outcome(agent: Agent, status: Any) -> None:
    """done, failed, abandoned or unknown, and nothing else."""
    agent.begin_action("t", "pure")
    with pytest.raises(InvalidInput):
        agent.end_action(1, status)
    assert agent.pending_actions()[0].status == "started"


def test_resuming_settles_by_class(agent: Agent, client: Client) -> None:
    """pure is abandoned, external unknown, idempotent stays with its key; closed ones stay as they are."""
    keys = [agent.begin_action(each, each).key for each in ("pure", "external", "idempotent")]
    agent.begin_action("closed", "external")
    agent.end_action(4, "done")
    second = again(client, agent)
    pending = second.context.pending_actions
    assert [(each.tool, each.status, each.key) for each in pending] == [
        ("external", "unknown", keys[1]),
        ("idempotent", "started", keys[2]),
    ]
    assert second.view.action(1).status == "abandoned"
    assert second.recent_turns() == []  # settling at acquisition writes no turn
    third = again(client, second)
    assert [each.status for each in third.context.pending_actions] == ["unknown", "started"]


def test_more_open_actions_than_one_batch_are_settled(agent: Agent, client: Client) -> None:
    """Four hundred and fifty interrupted calls are all settled and all listed; the briefing shows twenty."""
    for number in range(450):
        agent.begin_action("t", "external" if number % 2 else "pure", str(number))
    second = again(client, agent)
    assert {each.status for each in second.pending_actions()} == {"unknown"}
    assert [each.args for each in second.pending_actions()] == [str(each) for each in range(450) if each % 2]
    assert len(second.context.pending_actions) == 20


def test_an_operator_who_closes_an_action_during_a_resumption_wins(agent: Agent, client: Client) -> None:
    """An action that is closed between the look and the settling keeps that outcome, and the rest is settled."""
    for _ in range(3):
        agent.begin_action("send_email", "external")
    agent.release()
    second = client.resume(AGENT, defer_lease=True)
    look = second.view.pending
    operator_done: list[int] = []

    def pending(limit: int | None = None) -> Iterator[Action]:
        found = list(look(limit))
        if not operator_done:
            operator_done.append(2)
            lease = client.backend.lease(AGENT)
            assert lease is not None
            operator = Agent(client.backend, AGENT, Keeper.adopt(client.backend, lease.fence, renew=False))
            operator.resolve_action(2, ActionEnd("done", resolution="seen"), by="operator", force=True)
        return iter(found)

    second.view.pending = pending  # type: ignore[method-assign]
    assert second.acquire()
    assert [each.status for each in (second.view.action(seq) for seq in (1, 2, 3))] == ["unknown", "done", "unknown"]


def resolver_of(answers: dict[str, Any]) -> Callable[[Action], Any]:
    def resolve(action: Action) -> Any:
        answer = answers[action.tool]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return resolve


def interrupted(client: Client, agent: Agent, *tools: str, class_: str = "external") -> Agent:
    for each in tools:
        agent.begin_action(each, class_, each)
    return again(client, agent)


def test_reconciling_closes_by_what_the_resolver_says(client: Client, agent: Agent) -> None:
    """done, failed and abandoned close, with a tool turn each; None and unknown leave them open."""
    agent = interrupted(client, agent, "sent", "bounced", "never", "nobody-knows", "cannot-tell")
    answers = {
        "sent": ActionEnd("done", result="message 17"),
        "bounced": ActionEnd("failed", error="no such user"),
        "never": "abandoned",
        "nobody-knows": None,
        "cannot-tell": "unknown",
    }
    own = agent.begin_action("running", "external")
    report = agent.reconcile(resolver_of(answers))
    assert [each.status for each in report.closed] == ["done", "failed", "abandoned"]
    assert [each.tool for each in report.open] == ["nobody-knows", "cannot-tell"]
    assert [(each.role, each.name, each.content) for each in agent.recent_turns()] == [
        ("tool", "sent", "message 17"),
        ("tool", "bounced", "failed: no such user"),
        ("tool", "never", "abandoned"),
    ]
    assert "settled after a crash" in agent.recent_turns()[0].brief
    assert [each.seq for each in agent.pending_actions()] == [4, 5, own.seq]
    assert agent.reconcile(resolver_of(answers)).closed == ()


@pytest.mark.parametrize(
    "answer",
    [
        OSError("api is down"),
        ValueError(),
        "ok",
        ActionEnd("started"),
        ActionEnd("done", result=float("nan")),
        7,
        object(),
    ],
)
def test_a_resolver_that_fails_leaves_its_action_and_settles_the_others(
    client: Client, agent: Agent, answer: Any
) -> None:
    """Raising, or telling what is no outcome, is reported with what the pass did; that action stays as it was."""
    agent = interrupted(client, agent, "first", "broken", "last")
    with pytest.raises(ResolverFailed) as failed:
        agent.reconcile(resolver_of({"first": "done", "broken": answer, "last": "done"}))
    assert [each.tool for each in failed.value.partial.closed] == ["first", "last"]
    assert [each.tool for each in failed.value.partial.open] == ["broken"]
    assert (failed.value.details["count"], failed.value.details["seq"]) == (1, 2)
    assert "\n" not in failed.value.message
    assert [(each.tool, each.status) for each in agent.pending_actions()] == [("broken", "unknown")]


def test_a_resolver_that_takes_too_long_is_given_up(client: Client, agent: Agent) -> None:
    """After the timeout the pass goes on; the late answer changes nothing."""
    agent = interrupted(client, agent, "slow", "fast")
    answered = threading.Event()

    def resolve(action: Action) -> str:
        if action.tool == "slow":
            answered.wait(30)
        return "done"

    with pytest.raises(ResolverFailed, match="TimeoutError"):
        agent.reconcile(resolve, timeout=0.1)
    answered.set()
    assert [each.tool for each in agent.pending_actions()] == ["slow"]


def test_an_operator_may_settle_while_the_resolver_asks(client: Client, agent: Agent) -> None:
    """First close wins: the operator's outcome stays, is reported, and has one turn."""
    agent = interrupted(client, agent, "send_email")

    def resolve(action: Action) -> ActionEnd:
        operator = adopted(client)
        operator.resolve_action(action.seq, ActionEnd("failed", error="bounced", resolution="looked"), by="ops@host")
        return ActionEnd("done")

    report = agent.reconcile(resolve)
    assert [(each.status, each.by) for each in report.closed] == [("failed", "ops@host")]
    assert [each.content for each in agent.recent_turns()] == ["failed: bounced"]


def test_without_a_resolver_nothing_is_invented(client: Client, agent: Agent) -> None:
    """External calls stay unknown, idempotent ones stay to be run again, and no turn is written."""
    agent.begin_action("a", "external")
    agent.begin_action("b", "idempotent")
    agent = again(client, agent)
    report = agent.reconcile()
    assert report.closed == ()
    assert [each.status for each in report.open] == ["unknown", "started"]
    assert agent.recent_turns() == []


def test_resolving_by_hand_is_audited_and_told_to_the_model(client: Client, agent: Agent) -> None:
    """An unknown action is closed with reason and author while the agent lives; one that may run needs force."""
    agent = interrupted(client, agent, "send_email")
    own = agent.begin_action("running", "external")
    end = ActionEnd("done", result="message 17", resolution="found it in the outbox")

    def resolve(seq: int, *, force: bool = False) -> Action:
        return beside(client.backend, AGENT, lambda one: one.resolve_action(seq, end, by="ops@host", force=force))

    settled = resolve(1)
    assert (settled.status, settled.by, settled.resolution) == ("done", "ops@host", "found it in the outbox")
    assert agent.recent_turns()[-1].content == "message 17"
    with pytest.raises(ActionNotUnknown):
        resolve(own.seq)
    assert resolve(own.seq, force=True).status == "done"
    with pytest.raises(ActionClosed) as refused:
        agent.end_action(own.seq, "failed")
    assert "ops@host" in refused.value.message


def test_an_amendment_and_a_retry_leave_the_outcome(agent: Agent) -> None:
    """A note is added to a closed action; a retry is a new, linked attempt, and an idempotent one keeps its key."""
    first = agent.begin_action("pay", "idempotent", "10")
    agent.end_action(1, "failed", error="timeout")
    assert agent.amend_action(1, "it was the proxy").notes == ("it was the proxy",)
    assert agent.view.action(1).error == "timeout"
    second = agent.retry_action(1)
    assert (second.seq, second.retry_of, second.key, second.status, second.args) == (2, 1, first.key, "started", "10")
    with pytest.raises(InvalidInput):
        agent.retry_action(2)
    for seq in (99, 10**30):
        with pytest.raises(NotFound):
            agent.retry_action(seq)


# -- steps ------------------------------------------------------------------------------------------------


def begin(agent: Agent, class_: str = "external", args: Any = "a", **options: Any) -> Action:
    return agent.begin_action("deploy", class_, args, step="deploy-v2", **options)


def test_a_done_step_replays(agent: Agent, client: Client) -> None:
    """The finished action comes back, in a later epoch too, and nothing is recorded."""
    first = begin(agent)
    agent.end_action(first.seq, "done", "ok")
    agent = again(client, agent)
    before = client.backend.counters(AGENT).lsn
    assert begin(agent) == agent.view.action(first.seq)
    assert client.backend.counters(AGENT).lsn == before


def test_a_step_is_one_call(agent: Agent) -> None:
    """Another tool, class or other arguments under the same name are a conflict, and nothing is begun."""
    begin(agent)
    for given in (("undeploy", "external", "a"), ("deploy", "pure", "a"), ("deploy", "external", "b")):
        with pytest.raises(StepMismatch) as refused:
            agent.begin_action(*given, step="deploy-v2")
        assert refused.value.code == "step_mismatch"
    assert len(agent.pending_actions()) == 1
    assert begin(agent, run="tonight").seq == 2  # another run is another step


def test_an_interrupted_external_step_needs_settling(agent: Agent, client: Client) -> None:
    """Nobody knows whether it happened: refused until it is settled; then it replays or is attempted anew."""
    begin(agent)
    agent = again(client, agent)
    with pytest.raises(NeedsSettling) as refused:
        begin(agent)
    assert refused.value.code == "needs_settling"
    agent.end_action(1, "abandoned")
    second = begin(agent)
    assert (second.seq, second.retry_of) == (2, 1)
    assert second.key != agent.view.action(1).key


def test_an_interrupted_idempotent_step_goes_on_with_its_key(agent: Agent, client: Client) -> None:
    """The same action, the same key, now owned by the one that continues it."""
    first = begin(agent, "idempotent")
    agent = again(client, agent)
    second = begin(agent, "idempotent")
    assert (second.seq, second.key, second.epoch) == (first.seq, first.key, 2)
    agent.end_action(second.seq, "failed", error="no")
    third = begin(agent, "idempotent")
    assert (third.seq, third.key, third.retry_of) == (2, first.key, 1)


def test_an_interrupted_pure_step_runs_again(agent: Agent, client: Client) -> None:
    """It was abandoned at the resumption; a new attempt has a new key."""
    first = begin(agent, "pure")
    agent = again(client, agent)
    second = begin(agent, "pure")
    assert (second.seq, second.retry_of) == (2, 1)
    assert second.key != first.key


def test_a_failed_external_step_is_retried_on_request_only(agent: Agent) -> None:
    """A failed call may have happened in part, so retrying it is said explicitly."""
    begin(agent)
    agent.end_action(1, "failed", error="timeout")
    with pytest.raises(NeedsSettling):
        begin(agent)
    assert begin(agent, retry_failed=True).retry_of == 1


def test_the_same_step_begun_twice_by_its_runner_is_one_action(agent: Agent) -> None:
    """A second begin in the same session returns the running action, large arguments included."""
    first = begin(agent, args="x" * 20_000)
    assert begin(agent, args="x" * 20_000) == first
    assert len(agent.pending_actions()) == 1


# -- threads --------------------------------------------------------------------------------------------------


def test_threads_share_an_agent(tmp_path: Path) -> None:
    """Twenty-four threads write all kinds through one agent: nothing is lost, nothing fails, all is dense."""
    problems: list[RecallError] = []
    with Client(local_dir=tmp_path / "store") as client:
        agent = client.resume(AGENT)
        ended: list[int] = []

        def work(number: int) -> None:
            try:
                for each in range(4):
                    agent.record_turn("user", f"{number} {each}" + "x" * (9000 if each == 3 else 0))
                    action = agent.begin_action("t", "pure", "y" * (9000 if each == 3 else 1))
                    agent.update_working_state(step=number)
                    agent.set_pointer(f"p-{number}", "object", {"uri": str(each)})
                    agent.end_action(action.seq, "done", "z")
                    agent.recent_turns()
                ended.append(number)
            except RecallError as problem:
                problems.append(problem)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert problems == []
        assert len(ended) == 24
        counters = client.backend.counters(AGENT)
        assert (counters.turns, counters.actions, counters.version) == (96, 96, 96)
        assert agent.pending_actions() == []
        assert len(agent.pointers()) == 24
    verified(tmp_path / "store")


def test_threads_that_begin_one_step_begin_one_action(client: Client, agent: Agent) -> None:
    """Eight threads that begin the same step at once all get the same action."""
    seen: list[int] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        seen.append(begin(agent).seq)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert seen == [1] * 8


def test_a_signal_handler_that_writes_in_the_middle_of_a_write_is_refused(tmp_path: Path) -> None:
    """A write inside the same thread's transaction does not break it: the inner is refused, the outer lands whole."""
    inner: list[str] = []
    agents: list[Agent] = []

    class Interrupting(SetClock):
        armed = False

        def now(self) -> Any:
            if self.armed:
                self.armed = False
                try:
                    agents[0].record_turn("user", "from the handler")
                except RecallError as problem:
                    inner.append(problem.code)
            return super().now()

    clock = Interrupting()
    with Client(local_dir=tmp_path / "store", clock=clock) as client:
        agent = client.resume(AGENT)
        agents.append(agent)
        clock.armed = True
        agent.record_turn("user", "outer")
        assert inner == ["store_busy"]
        assert [each.content for each in agent.recent_turns()] == ["outer"]
    verified(tmp_path / "store")


def test_a_bad_record_bricks_nothing(tmp_path: Path) -> None:
    """A record that cannot be read is named once, and the others and the briefing are there."""
    import contextlib
    import sqlite3

    with Client(local_dir=tmp_path / "store") as client, client.resume(AGENT) as agent:
        for each in range(3):
            agent.record_turn("user", f"turn {each}")
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "recall.db")) as connection:
        connection.execute("DROP TRIGGER records_no_update")
        (line,) = connection.execute("SELECT line FROM records WHERE kind = 'turn' AND seq = 2").fetchone()
        broken = json.dumps({**json.loads(line), "body": "{not json"})
        connection.execute("UPDATE records SET line = ? WHERE kind = 'turn' AND seq = 2", (broken,))
        connection.commit()
    told: list[str] = []
    with Client(local_dir=tmp_path / "store", on_bad_record=lambda problem: told.append(problem.message)) as client:
        agent = client.resume(AGENT)
        assert [each.content for each in agent.recent_turns()] == ["turn 0", "turn 2"]
        assert "turn 2" in agent.context.briefing
        assert agent.record_turn("user", "goes on").seq == 4
    assert any("turn:2" in each for each in told)
