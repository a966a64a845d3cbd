"""Two who both take themselves for the agent: one of them writes, and what the other wrote is set aside and shown.

Numbers of rows are those of ``test_interleavings.py``.
"""

from __future__ import annotations

import gzip
import json
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from store.access import break_lease
from store.actions import ActionEnd
from store.agent import Agent
from store.errors import LeaseHeld, LeaseLost
from store.keeper import Keeper
from store.process import this_process
from store.remote_errors import Forked
from tests.engine import SetClock
from tests.shipping import faults
from tests.shipping.machines import AGENT, machine, resumed
from tests.shipping.real import World, fence_of, left, raised, store_of

on_seaweedfs = pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
on_moto = pytest.mark.parametrize("server", ["moto"], indirect=True)


def test_5_a_zombie_with_a_stale_etag_is_refused_and_set_aside(world: World) -> None:
    """Row 5, a zombie with a stale ETag: its PUT meets 412, it writes no more, its records are listed and filed."""
    store = world.machine("a")
    zombie = resumed(store)
    fence = fence_of(zombie)
    zombie.begin_action("lookup", "idempotent", "1")
    world.promise(store)
    zombie.record_turn("assistant", "never shipped")
    other = world.successor("b")
    other.record_turn("user", "from the successor")
    world.promise(store_of(other), lsn=3)
    problem = raised(LeaseLost, lambda: zombie.begin_action("email", "external", "1"))
    assert world.last_answer() == 412
    assert problem.details["landed"] is False and problem.details["epoch"] == 1
    with world.no_puts():
        for work in (
            lambda: zombie.record_turn("user", "late"),
            lambda: zombie.begin_action("email", "external", "2"),
            lambda: zombie.end_action(1, "done"),
            lambda: store.shipper.push(fence),
        ):
            raised(LeaseLost, work)
        assert zombie.release() is False
    other.release()
    back = resumed(store)
    assert left(store) == [["turn:1", "tool:email", "act:2"]]
    assert [each.content for each in back.recent_turns(9)] == ["from the successor"]
    (filed,) = world.direct.list(f"agents/{AGENT}/aside/")
    kept = world.direct.get(filed.key)
    assert kept is not None and b"never shipped" in gzip.decompress(kept.body)
    back.release()
    world.check()


def test_7_a_release_never_deletes_the_head_and_epochs_go_on(world: World) -> None:
    """Row 7, the head deleted at release: it is a state, so a late PUT is refused and no epoch comes twice."""
    first = world.machine("a")
    agent = resumed(first)
    late = world.proxy.inject(faults.Delayed(), "put", key="head.json")
    agent.begin_action("charge", "idempotent", "1")
    agent.release()
    assert world.head().state == "released"
    assert late.happened == 1 and late.land().status == 412
    for number, name in enumerate(("b", "a", "c"), 2):
        one = resumed(world.machine(name))
        assert one.epoch == number
        one.release()
    assert [each for each in world.proxy.seen if each.request.kind == "delete"] == []
    world.check()


# -- the world outside the log ---------------------------------------------------------------------


@on_moto
def test_12_what_a_paused_process_did_after_its_barrier_is_settled_by_its_successor(world: World) -> None:
    """Row 12, a pause between barrier and tool: the successor waits as long as it may take; one record, one end."""
    store = world.machine("a")
    paused = resumed(store)
    email = paused.begin_action("email", "external", {"to": "customer"}, max_ms=30_000)
    world.promise(store)
    assert [(each.key, each.max_ms) for each in world.head().open] == [(email.key, 30_000)]
    clock = SetClock(at=email.started_at)
    beneath = world.machine("b", bucket=world.direct, clock=clock)
    break_lease(beneath, AGENT, by="tester", why="the machine does not answer")
    other = resumed(beneath)
    clock.move(29)
    other.settle()
    assert [each.status for each in other.pending_actions()] == ["started"], "it may be running right now"
    # The process wakes up here and sends it; nothing in the log can stop that, so nothing says that it was not sent.
    paused.end_action(email.seq, "done", "sent")  # recorded here; that it was fenced it learns from the bucket
    raised(LeaseLost, lambda: store.shipper.push(fence_of(paused)))
    clock.move(2)
    other.settle()
    assert [each.status for each in other.pending_actions()] == ["unknown"]
    other.resolve_action(email.seq, ActionEnd("done", "sent", resolution="the customer has it"), by="operator")
    assert other.release()
    world.promise(beneath)
    assert world.names().count(f"act:{email.seq}") == 3  # begun, unknown, resolved: one call
    resumed(store).release()
    assert left(store) == [[f"act:{email.seq}"]]
    world.check()


def test_19_on_a_shared_directory_another_host_has_no_fast_path(world: World) -> None:
    """Row 19, one shared network directory, two hosts: a process number of the other host proves nothing here."""
    store = world.machine("a")
    ended = subprocess.Popen(["true"])
    ended.wait(60)
    gone = replace(this_process(), pid=ended.pid, start="1")
    there = replace(gone, host="another-host", boot="another-boot")
    Agent(store, AGENT, Keeper(store, AGENT, ttl_ms=60_000, process=there, background=False)).take()
    before = len(world.puts())
    raised(LeaseHeld, lambda: resumed(store))
    raised(LeaseHeld, lambda: resumed(store))
    assert len(world.puts()) == before
    # The very same, of this host: provably dead.
    break_lease(store, AGENT, by="tester", why="to hold it from here")
    Agent(store, AGENT, Keeper(store, AGENT, ttl_ms=60_000, process=gone, background=False)).take()
    agent = resumed(store)
    agent.release()
    world.promise(store)
    world.check()


# -- stores that do not hold to what they promised ---------------------------------------------------


@on_moto
def test_21_a_store_that_breaks_later_is_found_at_the_renewal(world: World) -> None:
    """Row 21, the store ignores a header: who was overtaken finds the foreign head before renewing over it."""
    store = world.machine("a")
    agent = resumed(store)
    other = world.successor("b")
    broken = world.proxy.inject(faults.ConditionIgnored(), "put", key="head.json", times=None)
    with world.no_puts():
        raised(LeaseLost, lambda: store.shipper.push(fence_of(agent), renew=True, look=True))
    assert broken.happened == 0
    other.begin_action("charge", "idempotent", "1")
    world.promise(store_of(other))
    other.release()
    world.check()


@on_seaweedfs
def test_21_a_head_that_was_written_over_stops_its_writer(world: World) -> None:
    """Row 21, the store breaks later: a foreign version under one's own revision is named, and nobody goes on."""
    store = world.machine("a")
    agent = resumed(store)
    other = world.successor("b")  # two revisions on: taken, and given back; and taken
    beneath = store_of(other)
    broken = world.proxy.inject(faults.ConditionIgnored(), "put", key="head.json", times=None)
    for number in range(world.head().rev - 1):
        agent.begin_action("charge", "idempotent", str(number))  # each "succeeds", over the other's head
    assert broken.happened == world.head().rev - 1
    before = world.head()
    problem = raised(Forked, lambda: other.begin_action("charge", "idempotent", "of the successor"))
    assert problem.details["trouble"] in ("store broken", "remote regressed")
    for work in (
        lambda: other.begin_action("charge", "idempotent", "again"),
        lambda: beneath.shipper.push(fence_of(other)),
        lambda: resumed(beneath),
        lambda: break_lease(beneath, AGENT, by="tester", why="it does not help"),
    ):
        assert raised(Forked, work).details["trouble"] == problem.details["trouble"]
    assert world.head() == before, "nothing was written over what nobody understands"


# -- what was set aside ---------------------------------------------------------------------------------


@on_seaweedfs
def test_25_the_close_of_an_external_call_that_was_set_aside_is_evidence_in_the_bucket(world: World) -> None:
    """Row 25, what was set aside holds the close of an external action: who settles elsewhere can read it."""
    store = world.machine("a")
    agent = resumed(store)
    email = agent.begin_action("email", "external", {"to": "customer"})
    world.promise(store)
    lost = world.proxy.inject(faults.RequestLost(), "put", key="head.json")
    agent.end_action(email.seq, "done", "message 4711")
    other = world.successor("b")
    raised(LeaseLost, lambda: store.shipper.push(fence_of(agent)))
    assert lost.happened == 1
    assert [each.status for each in other.pending_actions()] == ["unknown"]
    store.shipper.pull(AGENT)
    assert left(store) == [["act:1"]]
    assert any("message 4711" in json.dumps(each) for each in world.filed())
    other.release()
    world.check()


@on_moto
def test_25_the_close_of_an_external_call_is_shipped_without_being_asked(world: World) -> None:
    """Row 25: in a process that lives on it goes at once, in the background, and the machine may be lost after it."""
    store = world.machine("a", background=True)
    agent = resumed(store)
    email = agent.begin_action("email", "external", {"to": "customer"})
    lost = world.proxy.inject(faults.AnswerLost(), "put", key="head.json")
    agent.end_action(email.seq, "done", "message 4711")
    lost.wait()
    end = time.monotonic() + 10
    while world.head().last < store.counters(AGENT).lsn and time.monotonic() < end:
        time.sleep(0.01)
    world.promise(store)
    other = world.successor("b")
    assert other.view.action(email.seq).status == "done" and other.pending_actions() == []
    other.release()
    world.check()


@on_moto
def test_5_records_written_under_a_lease_that_was_granted_away_are_listed_from_a_third_machine(world: World) -> None:
    """Rows 5 and 25: the evidence is in the bucket as soon as the zombie looks at it, for any machine to read."""
    store = world.machine("a")
    zombie = resumed(store)
    zombie.record_turn("assistant", "never shipped")
    other = world.successor("b")
    store.shipper.pull(AGENT)
    assert left(store) == [["lease:1", "turn:1"]]
    assert any("never shipped" in json.dumps(each) for each in world.filed())
    raised(LeaseLost, lambda: zombie.record_turn("assistant", "late"))
    other.release()
    world.check()


def test_a_machine_opened_anew_finds_the_same(tmp_path: Path, world: World) -> None:
    """A store that is closed and opened again knows what it had set aside, and files it only once."""
    store = world.machine("a")
    zombie = resumed(store)
    zombie.record_turn("assistant", "never shipped")
    world.successor("b").release()
    raised(LeaseLost, lambda: zombie.begin_action("email", "external", "1"))
    store.close()
    for _ in range(2):
        again = machine(world.directory / "a", world.location, world.bucket)
        resumed(again).release()
        assert left(again) == [["lease:1", "turn:1", "tool:email", "act:1"]]
        again.close()
    assert len(list(world.direct.list(f"agents/{AGENT}/aside/"))) == 1
    world.check()


@on_seaweedfs
def test_who_holds_an_agent_elsewhere_is_seen_by_those_who_only_pull(world: World) -> None:
    """A reader knows an agent before its first record, and every later holder, release and record of it."""
    reader = world.machine("reader", bucket=world.direct)

    def seen() -> tuple[int, str, str, int]:
        reader.shipper.pull(AGENT)
        lease = reader.lease(AGENT)
        assert lease is not None
        return lease.epoch, lease.incarnation, lease.state, reader.counters(AGENT).lsn

    agent = resumed(world.machine("a"))
    fence = fence_of(agent)
    assert seen() == (1, fence.incarnation, "held", 0)
    agent.begin_action("lookup", "idempotent", "1")
    assert seen() == (1, fence.incarnation, "held", 3)
    agent.begin_action("lookup", "idempotent", "2")
    assert seen() == (1, fence.incarnation, "held", 4)
    agent.release()
    assert seen() == (1, fence.incarnation, "released", 4)
    again = resumed(world.machine("b"))
    assert seen() == (2, fence_of(again).incarnation, "held", 4)
    again.release()
    assert seen()[2:] == ("released", 5)
    world.check()
