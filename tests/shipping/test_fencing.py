"""Two who both take themselves for the agent: one of them writes, and what the other wrote is set aside and shown.

Numbers of rows are those of the interleavings that the protocol has to survive.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from store.access import break_lease
from store.actions import ActionEnd
from store.agent import Agent
from store.errors import Forked, LeaseHeld, LeaseLost
from store.keeper import Keeper
from store.process import this_process
from store.records import NEXT, TURN, Draft
from store.shipping.backend import ShippingBackend
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


# -- copies ------------------------------------------------------------------------------------


def copied(world: World, name: str, to: str) -> None:
    shutil.copytree(world.directory / name, world.directory / to)


def twin(world: World, agent: Agent, **options: Any) -> tuple[ShippingBackend, Agent]:
    """A clone of the machine ``a``: the same in all that it knows, incarnation and ETag too."""
    copied(world, "a", "clone")
    clone = world.machine("clone", **options)
    return clone, Agent(clone, AGENT, Keeper.adopt(clone, fence_of(agent), renew=False))


def test_8_a_copied_directory_gets_an_epoch_of_its_own(world: World) -> None:
    """Row 8, a restart or a copied directory under the same epoch: each has one of its own, or waits."""
    store = world.machine("a")
    agent = resumed(store)
    agent.record_turn("assistant", "written before the copy")
    copied(world, "a", "copy")
    # Both are the same store on the same host, and the process of the lease lives: neither may have it at once.
    copy = world.machine("copy")
    raised(LeaseHeld, lambda: resumed(copy))
    break_lease(copy, AGENT, by="tester", why="it is known to be a copy")
    other = resumed(copy)
    other.begin_action("charge", "idempotent", "1")
    world.promise(copy)
    assert [each.content for each in other.recent_turns(9)] == ["written before the copy"]  # carried, as it was
    agent.record_turn("assistant", "written after the copy")
    problem = raised(LeaseLost, lambda: agent.begin_action("charge", "idempotent", "1"))
    assert problem.details["landed"] is False
    other.release()
    back = resumed(store)
    assert back.epoch == 4
    assert left(store) == [["turn:2", "tool:charge", "act:1"]]
    back.release()
    world.check()


def test_9_of_a_cloned_machine_one_goes_on(world: World) -> None:
    """Row 9, a cloned VM, same incarnation and ETag: an unknown record in the head means that it is lost."""
    store = world.machine("a")
    agent = resumed(store)
    agent.record_turn("assistant", "before the clone was made")
    clone, other = twin(world, agent)
    other.begin_action("charge", "idempotent", "by the clone")
    world.promise(clone)
    head = world.head()
    assert head.fence == fence_of(agent), "the same epoch and incarnation"
    problem = raised(LeaseLost, lambda: agent.begin_action("charge", "idempotent", "by the original"))
    assert problem.details["landed"] is False
    assert world.last_answer() == 412
    with world.no_puts():
        raised(LeaseLost, lambda: agent.record_turn("user", "late"))
        raised(LeaseLost, lambda: store.shipper.push(head.fence))
        assert store.shipper.release(head.fence) is False
    other.begin_action("charge", "idempotent", "again by the clone")  # which never noticed
    world.promise(clone)
    clone.release(head.fence)
    back = resumed(store)
    assert left(store) == [["tool:charge", "act:1"]]
    back.release()
    world.check()


@on_seaweedfs
def test_9_clones_that_only_renew_do_not_disturb_each_other(world: World) -> None:
    """Row 9: renewals of both add nothing that either does not know; the first record decides which one goes on."""
    store = world.machine("a")
    agent = resumed(store)
    clone, other = twin(world, agent)
    fence = fence_of(agent)
    for _ in range(2):
        clone.shipper.push(fence, renew=True)
        store.shipper.push(fence, renew=True)
    assert [each.reply.status for each in world.puts() if each.reply].count(412) == 3
    agent.begin_action("charge", "idempotent", "1")
    world.promise(store)
    raised(LeaseLost, lambda: other.begin_action("charge", "idempotent", "1"))
    agent.release()
    world.check()


@on_moto
def test_9_a_clone_whose_lease_lapsed_does_not_take_it_again_over_the_other(world: World) -> None:
    """Row 9: "acquired again, nobody acted in between" is not said where the head has a record of the other clone."""
    clock = SetClock()
    store = world.machine("a", clock=clock)
    agent = resumed(store)
    clone, other = twin(world, agent, clock=clock)
    other.begin_action("charge", "idempotent", "by the clone")
    world.promise(clone)
    clock.move(41)
    raised(LeaseLost, lambda: agent.record_turn("user", "after it lapsed"))
    assert not agent.lease_held
    world.check()


# -- the world outside the log ---------------------------------------------------------------------


@on_moto
def test_12_what_a_paused_process_did_after_its_barrier_is_settled_by_its_successor(world: World) -> None:
    """Row 12, a pause between barrier and tool: one record, one outcome, though the tool ran after the takeover."""
    store = world.machine("a")
    paused = resumed(store)
    email = paused.begin_action("email", "external", {"to": "customer"}, max_ms=60_000)
    world.promise(store)
    other = world.successor("b")
    assert [(each.lsn, each.key, each.max_ms) for each in world.head().open] != []
    assert [each.status for each in other.pending_actions()] == ["unknown"]
    # The process wakes up here and sends it; nothing in the log can stop that, so nothing says that it was not sent.
    paused.end_action(email.seq, "done", "sent")  # recorded here; that it was fenced it learns from the bucket
    raised(LeaseLost, lambda: store.shipper.push(fence_of(paused)))
    other.resolve_action(email.seq, ActionEnd("done", "sent", resolution="the customer has it"), by="operator")
    world.promise(store_of(other), lsn=2)
    other.release()
    assert sum(name == f"act:{email.seq}" for name in world.names()) == 3  # begun, unknown, resolved: one call
    world.check()


def test_19_on_a_shared_directory_another_host_has_no_fast_path(world: World) -> None:
    """Row 19, one shared network directory, two hosts: a process number of the other host proves nothing here."""
    store = world.machine("a")
    pid = os.fork()
    if not pid:
        os._exit(0)
    gone = replace(this_process(), pid=pid, start="1")
    os.waitpid(pid, 0)
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


def filed(world: World) -> list[dict[str, object]]:
    """What is filed in the bucket as set aside, line by line."""
    lines = []
    for each in world.direct.list(f"agents/{AGENT}/aside/"):
        found = world.direct.get(each.key)
        assert found is not None
        lines += [json.loads(line) for line in gzip.decompress(found.body).splitlines()]
    return lines


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
    assert any("message 4711" in json.dumps(each) for each in filed(world))
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
    assert any("never shipped" in json.dumps(each) for each in filed(world))
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


@on_moto
def test_25_what_two_copies_of_a_directory_set_aside_is_kept_of_both(world: World) -> None:
    """Rows 8 and 25: the copies are one store by name, and what each left at the same place is filed apart."""
    agent = resumed(world.machine("a"))
    agent.begin_action("lookup", "idempotent", "1")
    copied(world, "a", "copy")
    world.successor("b").release()
    for name in ("a", "copy"):
        store = world.machine(name)
        lease = store.lease(AGENT)
        assert lease is not None
        store.append(lease.fence, [Draft(TURN, {"role": "user", "content": f"only in {name}"}, seq=NEXT)])
        raised(LeaseLost, partial(store.shipper.push, lease.fence))
        resumed(store).release()
        assert left(store) == [["turn:1"]]
    said = json.dumps(filed(world))
    assert "only in a" in said and "only in copy" in said
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
