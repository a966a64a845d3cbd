"""Steps: a name that is one call, over attempts and epochs."""

from __future__ import annotations

from typing import Any

import pytest

from recall_cli import Client
from store.agent import Agent
from store.errors import (
    NeedsSettling,
    StepMismatch,
)
from store.records import Action
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
    """A second begin in the same session returns the running action, large arguments included."""
    first = begin(agent, args="x" * 20_000)
    assert begin(agent, args="x" * 20_000) == first
    assert len(agent.pending_actions()) == 1
