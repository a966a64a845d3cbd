"""Actions of a resumed agent: begun, ended, settled, reconciled, resolved."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
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
    LeaseLost,
    NotFound,
    ResolverFailed,
)
from store.keeper import Keeper
from store.values import Action
from tests.agent.conftest import adopted, again
from tests.agent.test_records import nested
from tests.engine import AGENT, request


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
    assert list(second.view.to_settle()) == []  # so the next resumption reads neither of them
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
    look = second.view.to_settle
    operator_done: list[int] = []

    def to_settle() -> Iterator[Action]:
        found = list(look())
        if not operator_done:
            operator_done.append(2)
            lease = client.backend.lease(AGENT)
            assert lease is not None
            operator = Agent(client.backend, AGENT, Keeper.adopt(client.backend, lease.fence, renew=False))
            operator.resolve_action(2, ActionEnd("done", resolution="seen"), by="operator", force=True)
        return iter(found)

    second.view.to_settle = to_settle  # type: ignore[method-assign]
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
        ActionEnd("done", result=nested()),
        ActionEnd("done", error=5),  # type: ignore[arg-type]
        RecursionError(),
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


def test_a_pass_that_can_write_no_more_says_so(client: Client, agent: Agent) -> None:
    """A lease that is lost meanwhile is no fault of the resolver: it comes out as it is, and nothing else is asked."""
    agent = interrupted(client, agent, "first", "second")
    asked: list[str] = []

    def resolve(action: Action) -> str:
        asked.append(action.tool)
        client.backend.acquire(request(AGENT, breaking=True))
        return "done"

    with pytest.raises(LeaseLost):
        agent.reconcile(resolve)
    assert asked == ["first"]
    assert [each.status for each in agent.pending_actions()] == ["unknown", "unknown"]


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
