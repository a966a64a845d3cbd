"""Copies of a directory and clones of a machine: one epoch has one writer, and what the others wrote is kept.

Numbers of rows are those of ``test_interleavings.py``.
"""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from store.access import break_lease
from store.agent import Agent
from store.errors import LeaseHeld, LeaseLost
from store.keeper import Keeper
from store.records import NEXT, TURN, Draft
from store.shipping.backend import ShippingBackend
from tests.engine import SetClock
from tests.shipping.machines import AGENT, resumed
from tests.shipping.real import World, fence_of, left, raised, store_of

on_seaweedfs = pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
on_moto = pytest.mark.parametrize("server", ["moto"], indirect=True)


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


def test_8_of_many_machines_at_once_one_has_the_epoch(world: World) -> None:
    """Rows 5, 8 and 20: six contend for a lease that is free, three times; each epoch has one holder, who writes."""
    machines = [world.machine(f"m{number}", bucket=world.direct, patience=20.0) for number in range(6)]
    for turn in range(3):
        start = threading.Barrier(len(machines))

        def contend(store: ShippingBackend, start: threading.Barrier = start) -> Agent | None:
            start.wait(30)
            try:
                return resumed(store)
            except LeaseHeld:
                return None

        with ThreadPoolExecutor(len(machines)) as pool:
            won = [each for each in pool.map(contend, machines) if each is not None]
        assert [each.epoch for each in won] == [turn + 1]
        won[0].begin_action("charge", "idempotent", str(turn))
        world.promise(store_of(won[0]))
        won[0].release()
    assert [name for name in world.names() if name.startswith("act:")] == ["act:1", "act:2", "act:3"]
    assert [left(store) for store in machines] == [[]] * 6
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
    said = json.dumps(world.filed())
    assert "only in a" in said and "only in copy" in said
    world.check()
