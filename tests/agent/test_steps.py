"""Steps: a name that is one call, over attempts and epochs."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from recall_cli import Client
from store.actions import ActionEnd
from store.agent import Agent
from store.errors import (
    AlreadyBegun,
    InvalidInput,
    NeedsSettling,
    NotLastAttempt,
    StepFailed,
    StepMismatch,
)
from store.values import Action
from tests.agent.conftest import again
from tests.engine import AGENT


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
    """A second begin in the same session returns the running action where running it again does no harm."""
    first = begin(agent, "idempotent", args="x" * 20_000)
    assert begin(agent, "idempotent", args="x" * 20_000) == first
    assert len(agent.pending_actions()) == 1


def test_an_external_step_begun_twice_by_its_runner_runs_once(agent: Agent) -> None:
    """The second begin, after a tool that raised, is refused with the action; ended as failed it asks as ever."""
    first = begin(agent, args="x" * 20_000)
    with pytest.raises(AlreadyBegun) as refused:
        begin(agent, args="x" * 20_000)
    assert (refused.value.code, refused.value.details["action"]) == ("still_running", first)
    assert len(agent.pending_actions()) == 1
    agent.end_action(first.seq, "failed", error="timeout")
    with pytest.raises(StepFailed):
        begin(agent, args="x" * 20_000)


def test_a_person_allows_a_failed_external_step_to_be_attempted_again(agent: Agent, client: Client) -> None:
    """What a resolution as failed blocks, permit_retry opens, audited, and nothing runs by itself."""
    first = begin(agent)
    agent.end_action(first.seq, "failed", error="refused by the relay")
    with pytest.raises(StepFailed) as refused:
        begin(agent)
    assert "refused by the relay" in refused.value.message
    assert f"recall actions retry -a {AGENT} {first.seq} --reason TEXT" in refused.value.hint
    allowed = agent.permit_retry(first.seq, by="dana@example.com", reason="the relay is up again")
    assert (allowed.status, allowed.by, allowed.retry_of) == ("abandoned", "dana@example.com", first.seq)
    assert not agent.pending_actions()
    second = begin(agent)
    assert (second.status, second.retry_of) == ("started", allowed.seq)
    assert second.key not in (first.key, allowed.key)


def test_only_the_last_attempt_of_a_step_can_be_allowed_again(agent: Agent) -> None:
    """An open action, one that is no step, and an older attempt are refused in one line."""
    plain = agent.begin_action("deploy", "external")
    first = begin(agent)
    for seq in (plain.seq, first.seq):
        with pytest.raises(InvalidInput):
            agent.permit_retry(seq, by="dana", reason="r")
    agent.end_action(first.seq, "abandoned")
    second = begin(agent)
    agent.end_action(second.seq, "failed")
    with pytest.raises(NotLastAttempt):
        agent.permit_retry(first.seq, by="dana", reason="r")
    agent.end_action(plain.seq, "failed")
    with pytest.raises(InvalidInput):
        agent.permit_retry(plain.seq, by="dana", reason="r")


def test_a_done_step_is_not_undone_by_a_retry_of_an_earlier_attempt(agent: Agent) -> None:
    """Only the last attempt has a successor, so nothing is begun and the step goes on to replay."""
    begin(agent)
    agent.end_action(1, "failed")
    begin(agent, retry_failed=True)
    done = agent.end_action(2, "done", "ok")
    with pytest.raises(NotLastAttempt) as refused:
        agent.retry_action(1)
    assert (refused.value.details["seq"], refused.value.details["last"]) == (1, 2)
    assert agent.pending_actions() == []
    assert begin(agent) == done


@pytest.mark.parametrize("step", ["deploy-v2", None])
def test_an_attempt_has_one_successor(agent: Agent, step: str | None) -> None:
    """Of threads that retry one action at once, step or not, one gets a new attempt: no key is open twice."""
    agent.begin_action("deploy", "idempotent", "a", step=step)
    agent.end_action(1, "failed")
    made: list[Action] = []
    refused: list[int] = []
    start = threading.Barrier(6)

    def retry() -> None:
        start.wait()
        try:
            made.append(agent.retry_action(1))
        except NotLastAttempt as problem:
            refused.append(problem.details["last"])

    threads = [threading.Thread(target=retry) for _ in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert ([each.seq for each in made], refused) == ([2], [2] * 5)
    assert agent.view.action(1).retried_as == 2
    agent.end_action(2, "failed")
    assert agent.retry_action(2).key == made[0].key


def test_a_failed_step_that_happened_after_all_is_closed_in_one_append(client: Client, agent: Agent) -> None:
    """It replays the outcome that was found, and the model reads it; there is no moment at which it is open."""
    begin(agent)
    agent.end_action(1, "failed", error="timeout")
    before = client.backend.counters(AGENT).lsn
    found = agent.revise_step(1, ActionEnd("done", "receipt", resolution="asked"), by="resolver")
    log = list(client.backend.log(AGENT, after=before))
    assert [each.fields()["status"] for each in log if each.kind == "action" and each.seq == 2] == ["done"]
    assert (found.status, found.result, found.by, found.retry_of) == ("done", "receipt", "resolver", 1)
    assert begin(agent) == found
    assert agent.recent_turns()[-1].content == "receipt"
    with pytest.raises(InvalidInput):
        agent.revise_step(2, ActionEnd("perhaps"), by="resolver")


def test_a_command_that_never_started_binds_nothing(agent: Agent) -> None:
    """A step whose command could not be started is begun again without asking, even as another call."""
    first = begin(agent, args="typo")
    agent.end_action(first.seq, "failed", error="not found", command={"exit": 127, "never_started": True})
    second = begin(agent, args="right")
    assert (second.status, second.args) == ("started", "right")
