"""The fence protects the log, not the world: what a tool is told, and how long a successor waits for one elsewhere."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from recall_cli.beginning import NotStarted, begun
from store.access import break_lease
from store.actions import ActionEnd
from store.agent import Agent
from store.errors import AlreadyBegun, LeaseHeld, MayStillRun, Unavailable
from store.keeper import Keeper
from store.remote_errors import NotShipped, RemoteRefused
from store.shipping.backend import ShippingBackend
from store.values import Action
from tests.conftest import Ended, Run
from tests.engine import SetClock
from tests.shipping.machines import agent_on, attach, machine, resumed
from tests.shipping.memory import DOWN, LOST, REFUSED, MemoryBucket, nothing, on
from tests.shipping.servers import CREDENTIALS, Server

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def bucket(clock: SetClock) -> MemoryBucket:
    return MemoryBucket(clock)


@pytest.fixture
def here(tmp_path: Path, bucket: MemoryBucket, clock: SetClock) -> ShippingBackend:
    """The machine that the agent ran on."""
    return machine(tmp_path / "here", bucket=bucket, clock=clock)


@pytest.fixture
def there(tmp_path: Path, bucket: MemoryBucket, clock: SetClock) -> ShippingBackend:
    """The one that takes over."""
    return machine(tmp_path / "there", bucket=bucket, clock=clock)


def calling(store: ShippingBackend, **options: Any) -> Action:
    """An external call that a machine began before it fell silent."""
    given: dict[str, Any] = {"step": "send", "max_ms": HOUR_MS, **options}
    return resumed(store, holder="here:1:abc").begin_action("mail", "external", {"to": "x"}, **given)


def taken_over(store: ShippingBackend, clock: SetClock) -> Agent:
    """The agent, its lease expired elsewhere; with the names of the holders for messages."""
    agent = agent_on(store)
    with pytest.raises(LeaseHeld):
        agent.take()
    clock.move(70)
    assert agent.take().reason == "expired"
    return agent


# -- what the tool is told -------------------------------------------------------------------


def test_the_fence_of_a_call_names_lineage_epoch_and_the_lsn_of_its_intent(here: ShippingBackend) -> None:
    """It stays the same when the action is written again, and rises with every intent and every epoch."""
    agent = resumed(here)
    first = agent.begin_action("mail", "external")
    lineage, epoch, lsn = agent.fence_of(first).split(":")
    assert re.fullmatch("[0-9a-f]{32}", lineage) and int(epoch) == agent.epoch
    intent = next(each for each in here.log("bot") if each.key == "act:1")
    assert int(lsn) == intent.lsn
    agent.amend_action(first.seq, "a note")
    assert agent.fence_of(first) == f"{lineage}:{epoch}:{lsn}"
    second = agent.begin_action("mail", "external")
    assert int(agent.fence_of(second).split(":")[2]) > int(lsn)


# -- a call that may still run elsewhere -----------------------------------------------------


def test_a_successor_elsewhere_waits_as_long_as_the_call_may_run(
    here: ShippingBackend, there: ShippingBackend, clock: SetClock
) -> None:
    """It counts from its own takeover; until then the action stays as it is, and then it is unknown."""
    action = calling(here)
    agent = taken_over(there, clock)
    assert agent.view.action(action.seq).status == "started"
    waits = agent.view.may_run(action)
    assert waits is not None and str(waits) == "may still be running until 2026-11-03T19:55:53Z on here:1:abc"
    clock.move(HOUR_MS / 1000 - 1)
    agent._keeper.renew()
    agent._look_around()
    assert agent.view.action(action.seq).status == "started"
    clock.move(2)
    agent._keeper.renew()
    agent._look_around()
    assert agent.view.action(action.seq).status == "unknown"


def test_the_wait_goes_on_under_later_leases(here: ShippingBackend, there: ShippingBackend, clock: SetClock) -> None:
    """Who acquires the agent after the one that took over waits as long, and no longer."""
    action = calling(here)
    taken_over(there, clock).release()
    again = resumed(there)
    assert again.view.action(action.seq).status == "started"
    again.release()
    clock.move(HOUR_MS / 1000)
    assert resumed(there).view.action(action.seq).status == "unknown"


def test_a_broken_lease_is_waited_for_as_an_expired_one(here: ShippingBackend, there: ShippingBackend) -> None:
    """The holder that an operator fenced from elsewhere may be about to call all the same."""
    action = calling(here)
    break_lease(there, "bot", by="me", why="it hangs")
    assert resumed(there).view.action(action.seq).status == "started"


@pytest.mark.parametrize("how", ["no time given", "released", "the same directory"])
def test_nothing_is_waited_for_where_nothing_can_be_running(
    here: ShippingBackend, there: ShippingBackend, clock: SetClock, how: str
) -> None:
    """A call without a time limit, a holder that said goodbye, and one of this very directory are settled at once."""
    if how == "no time given":
        action = calling(here, max_ms=0)
        agent = taken_over(there, clock)
    elif how == "released":
        first = resumed(here)
        action = first.begin_action("mail", "external", max_ms=HOUR_MS)
        first.release()
        agent = resumed(there)
    else:
        action = calling(here)
        clock.move(70)
        agent = resumed(here)
    assert agent.view.action(action.seq).status == "unknown"


def test_a_definite_resolver_is_believed_at_once(
    here: ShippingBackend, there: ShippingBackend, clock: SetClock
) -> None:
    """Reconciling asks about a call that may still run; only an answer settles it."""
    action = calling(here)
    agent = taken_over(there, clock)
    assert [each.seq for each in agent.reconcile(lambda it: None).open] == [action.seq]
    assert agent.view.action(action.seq).status == "started"
    assert [each.status for each in agent.reconcile(lambda it: "done").closed] == ["done"]


def test_a_person_may_settle_it_at_once_with_force(
    here: ShippingBackend, there: ShippingBackend, clock: SetClock
) -> None:
    """Without force they are told until when it may run, and where."""
    action = calling(here)
    agent = taken_over(there, clock)
    outcome = ActionEnd("done", "sent", resolution="seen in the outbox")
    with pytest.raises(MayStillRun, match="until 2026-11-03T19:55:53Z on here:1:abc"):
        agent.resolve_action(action.seq, outcome, by="me")
    assert agent.resolve_action(action.seq, outcome, by="me", force=True).status == "done"


def test_settling_the_step_names_the_time(here: ShippingBackend, there: ShippingBackend, clock: SetClock) -> None:
    """Whoever wants to run the step again learns from when on that can be decided."""
    action = calling(here)
    agent = taken_over(there, clock)
    with pytest.raises(MayStillRun):
        agent.settle_step(action)
    clock.move(HOUR_MS / 1000)
    agent._keeper.renew()
    assert agent.settle_step(action).status == "unknown"


# -- a barrier that fails -----------------------------------------------------------------------


def test_a_begin_whose_barrier_failed_is_begun_again_with_the_same_record(
    here: ShippingBackend, bucket: MemoryBucket
) -> None:
    """While the bucket does not answer the step may not run; the same agent's next begin sends the very record."""
    agent = resumed(here)
    bucket.before = on("swap", DOWN)
    for _ in range(2):
        with pytest.raises(NotShipped) as refused:
            agent.begin_action("mail", "external", step="send")
        assert isinstance(refused.value.partial, Action) and refused.value.partial.seq == 1
    bucket.before = nothing
    action = agent.begin_action("mail", "external", step="send")
    assert (action.seq, action.key) == (1, refused.value.partial.key)
    assert here.counters("bot").actions == 1
    with pytest.raises(AlreadyBegun):
        agent.begin_action("mail", "external", step="send")


def test_a_begin_whose_answer_was_lost_has_begun(here: ShippingBackend, bucket: MemoryBucket) -> None:
    """The record is found in the bucket by its hash, so the tool may run."""
    agent = resumed(here)
    lost: list[str] = []

    def fault(verb: str, key: str) -> str:
        if verb == "swap" and not lost:
            lost.append(key)
            return LOST
        return ""

    bucket.before = fault
    assert agent.begin_action("mail", "external").status == "started" and lost


def test_what_did_not_reach_the_bucket_can_be_abandoned(
    here: ShippingBackend, there: ShippingBackend, bucket: MemoryBucket
) -> None:
    """Its end is a record like any other, and the step's next begin is a new attempt."""
    agent = resumed(here)
    bucket.before = on("swap", REFUSED)
    with pytest.raises(RemoteRefused) as refused:
        agent.begin_action("mail", "external", step="send")
    partial = refused.value.partial
    assert isinstance(partial, Action)
    assert agent.end_action(partial.seq, "abandoned").status == "abandoned"
    bucket.before = nothing
    again = agent.begin_action("mail", "external", step="send")
    assert again.seq == partial.seq + 1 and again.key != partial.key
    agent.release()
    assert [each.status for each in resumed(there).view.actions()] == ["unknown", "abandoned"]


def test_a_barrier_in_vain_leaves_time_to_say_that_the_call_was_not_started(
    here: ShippingBackend, bucket: MemoryBucket, clock: SetClock
) -> None:
    """A lease that would lapse first makes the command less patient, so that its action does not stay open."""
    holder = resumed(here)
    here.shipper.patience = 30.0
    clock.move(25)  # of 40
    tried: list[str] = []

    def slow(verb: str, key: str) -> str:
        tried.append(verb)
        clock.move(3)
        return DOWN

    bucket.before = slow
    command = Agent(here, holder.id, Keeper.adopt(here, holder._keeper.fence, renew=False))
    with pytest.raises(NotStarted, match="was not started, and action 1 is abandoned"):
        begun(command, "mail", lambda: command.begin_action("mail", "external"))
    assert len(tried) > 1
    assert [each.status for each in holder.view.actions()] == ["abandoned"]


def test_an_intent_says_how_it_was_shipped_this_time(tmp_path: Path, bucket: MemoryBucket, clock: SetClock) -> None:
    """An idempotent call taken up again, and a new attempt, say what their own process waited for."""
    here = machine(tmp_path / "a", bucket=bucket, clock=clock)
    first = resumed(here)
    seq = first.begin_action("upload", "idempotent", step="up", max_ms=5).seq
    first.release()
    here.close()
    lazy = resumed(machine(tmp_path / "b", bucket=bucket, clock=clock, ship="lazy"))
    again = lazy.begin_action("upload", "idempotent", step="up")
    assert (again.seq, again.ship, again.max_ms) == (seq, "lazy", 0)
    lazy.end_action(seq, "failed")
    assert lazy.retry_action(seq).ship == "lazy"


def test_a_retry_waits_for_the_bucket_too(here: ShippingBackend, bucket: MemoryBucket) -> None:
    """A new attempt of a closed call is an intent like the first."""
    agent = resumed(here)
    seq = agent.begin_action("mail", "external").seq
    agent.end_action(seq, "failed")
    bucket.before = on("swap", DOWN)
    with pytest.raises(Unavailable):
        agent.retry_action(seq)


# -- the same by the command, against the server that checks the keys ------------------------------

on_seaweedfs = pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)


@pytest.fixture
def environment(environment: dict[str, str], tmp_path: Path, server: Server) -> dict[str, str]:
    """A store that ships to a real server, and the credentials for it."""
    directory = tmp_path / "recall-data"
    attach(directory, server.location())
    return {**environment, **CREDENTIALS, "RECALL_DIR": str(directory)}


def session(run_recall: Run) -> dict[str, str]:
    """The variables of an exported lease that this test's process holds."""
    told = run_recall("resume", "bot", "--export", "--holder-pid", str(os.getpid()))
    assert told.code == 0, told.err
    return dict(re.findall(r"export (RECALL_\w+)='?([^'\n]*)'?", told.out))


def ran(run_recall: Run, *arguments: str, **options: Any) -> Ended:
    return run_recall("run", "-a", "bot", "--class", "external", "--step", "send", *arguments, **options)


@on_seaweedfs
def test_a_command_is_told_its_fence_and_its_time_is_recorded(run_recall: Run) -> None:
    """RECALL_FENCE is in its environment, and --timeout with the grace of a kill is its max_ms."""
    env = session(run_recall)
    told = ran(run_recall, "--timeout", "60s", "--", "/bin/sh", "-c", 'printf %s "$RECALL_FENCE"', env=env)
    assert told.code == 0, told.err
    lineage, epoch, lsn = told.out.split(":")
    shown = json.loads(run_recall("--json", "actions", "show", "-a", "bot", "1").out)
    assert shown["max_ms"] == 65_000
    assert (shown["versions"][0]["lsn"], shown["versions"][0]["epoch"]) == (int(lsn), int(epoch))
    assert env["RECALL_LEASE"].split(":")[1] == lineage


@on_seaweedfs
def test_a_command_whose_intent_does_not_reach_the_bucket_is_not_started(run_recall: Run, tmp_path: Path) -> None:
    """Exit 7 with one line; the intent is abandoned here, and the next run is a new attempt."""
    env = session(run_recall)
    touched = tmp_path / "touched"
    refused = ran(run_recall, "--", "/usr/bin/touch", str(touched), env={**env, "AWS_SECRET_ACCESS_KEY": "wrong"})
    assert refused.code == 7, refused.err
    assert not touched.exists()
    assert "was not started, and action 1 is abandoned" in refused.err
    assert "Traceback" not in refused.err
    listed = json.loads(run_recall("--json", "actions", "show", "-a", "bot", "1").out)
    assert listed["status"] == "abandoned" and listed["resolution"].endswith("it was not started")
    done = ran(run_recall, "--", "/usr/bin/touch", str(touched), env=env)
    assert done.code == 0 and touched.exists(), done.err


@on_seaweedfs
def test_a_begin_whose_intent_does_not_reach_the_bucket_is_no_call(run_recall: Run) -> None:
    """The same for actions begin: exit 7, nothing on stdout, and the step can be begun again."""
    env = session(run_recall)
    begin = ("actions", "begin", "-a", "bot", "--tool", "mail", "--class", "external", "--step", "send")
    refused = run_recall(*begin, env={**env, "AWS_SECRET_ACCESS_KEY": "wrong"})
    assert (refused.code, refused.out) == (7, ""), refused.err
    again = run_recall("--json", *begin, "--timeout", "2m", env=env)
    assert again.code == 0, again.err
    begun = json.loads(again.out)
    assert (begun["seq"], begun["max_ms"]) == (2, 120_000)
    assert begun["fence"].split(":")[1] == str(begun["epoch"])
