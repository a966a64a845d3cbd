"""Clocks that stand still or jump: they may delay a takeover or start one early, and never let two write.

Numbers of rows are those of ``test_interleavings.py``.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from functools import partial

import pytest

from store.agent import Agent
from store.errors import LeaseExpired, LeaseHeld, LeaseLost
from store.keeper import Keeper
from tests.engine import SetClock
from tests.shipping import faults
from tests.shipping.machines import AGENT, resumed
from tests.shipping.proxy import Fault, Forward, Reply, Request
from tests.shipping.real import World, fence_of, left, raised, store_of

pytestmark = pytest.mark.parametrize("server", ["moto"], indirect=True)

TTL = 60


def test_10_a_frozen_monotonic_clock_does_not_keep_a_lease_alive(world: World) -> None:
    """Row 10, the monotonic clock frozen by sleep or snapshot: the wall clock alone makes it lapse, at two thirds."""
    clock = SetClock()
    store = world.machine("a", clock=clock)
    events: list[tuple[str, int]] = []
    agent = resumed(store, on_event=lambda event, epoch: events.append((event, epoch)))
    clock.set_wall(TTL * 2 / 3 + 1)  # the boot clock stands
    adopted = Agent(store, AGENT, Keeper.adopt(store, fence_of(agent), renew=True))
    raised(LeaseExpired, lambda: adopted.record_turn("user", "under a lease that is over"))
    agent.begin_action("charge", "idempotent", "1")  # nobody acted: it is acquired again, before anything is written
    world.promise(store)
    assert events == [("acquired", 1), ("again", 2)]
    assert agent.epoch == world.head().epoch == 2
    world.check()


def test_10_a_machine_that_wakes_up_after_a_takeover_writes_nothing(world: World) -> None:
    """Row 10: asleep while another one took over, with a boot clock that stood: its first write is refused."""
    clock = SetClock()
    store = world.machine("a", clock=clock)
    agent = resumed(store)
    agent.record_turn("user", "before it slept")
    clock.set_wall(8 * 3600)
    other = world.successor("b")
    raised(LeaseLost, lambda: agent.begin_action("email", "external", "1"))
    assert store.counters(AGENT).actions == 0, "refused before the record, not after it"
    other.release()
    back = resumed(store)
    assert left(store) == [["lease:1", "turn:1"]]
    back.release()
    world.check()


def test_10_a_contender_whose_monotonic_clock_stands_waits(world: World) -> None:
    """Row 10, of the contender: what the wall clock says alone is no reason to take over."""
    agent = resumed(world.machine("a"))
    clock = SetClock()
    b = world.machine("b", clock=clock)
    raised(LeaseHeld, lambda: resumed(b))
    clock.set_wall(600)
    raised(LeaseHeld, lambda: resumed(b))
    agent.begin_action("charge", "idempotent", "1")
    world.promise(store_of(agent))
    agent.release()
    world.check()


@pytest.mark.parametrize("jump", [600, -600], ids=["forward", "back"])
def test_11_a_wall_clock_that_jumps_only_delays_its_holder(world: World, jump: int) -> None:
    """Row 11, the wall clock jumps ten minutes either way: the holder goes on, at worst under another epoch."""
    clock = SetClock()
    store = world.machine("a", clock=clock)
    agent = resumed(store)
    clock.set_wall(jump)
    for number in range(4):
        agent.begin_action("charge", "idempotent", str(number))
        world.promise(store)
        clock.move(15)
        store.renew(fence_of(agent))
    assert agent.epoch == (2 if jump > 0 else 1)
    assert agent.release()
    world.check()


@pytest.mark.parametrize("jump", [600, -600], ids=["forward", "back"])
def test_11_a_wall_clock_that_jumps_lets_no_contender_in_early(world: World, jump: int) -> None:
    """Row 11, of the contender: forward it still waits for the ttl; back it may wait longer, and then gets it."""
    agent = resumed(world.machine("a"))
    clock = SetClock()
    b = world.machine("b", clock=clock)
    raised(LeaseHeld, lambda: resumed(b))
    clock.set_wall(jump)
    raised(LeaseHeld, lambda: resumed(b))
    clock.move(TTL - 1)
    raised(LeaseHeld, lambda: resumed(b))
    clock.move(2)
    if jump < 0:
        raised(LeaseHeld, lambda: resumed(b))
        clock.move(600)
    other = resumed(b)
    raised(LeaseLost, lambda: agent.begin_action("email", "external", "1"))
    other.release()
    world.check()


def test_11_first_sight_is_kept_over_a_reboot_of_the_contender(world: World) -> None:
    """Row 11 and rule 15: short attempts add up, from one process to the next, and over a reboot by the wall clock."""
    agent = resumed(world.machine("a"))
    clock = SetClock()
    for _ in range(3):
        b = world.machine("b", clock=clock)
        raised(LeaseHeld, partial(resumed, b))
        b.close()
        clock.move(19)
    clock.reboot()
    clock.move(1)
    b = world.machine("b", clock=clock)
    raised(LeaseHeld, lambda: resumed(b))
    clock.move(3)
    other = resumed(b)
    assert other.epoch == 2
    raised(LeaseLost, lambda: agent.begin_action("email", "external", "1"))
    other.release()
    world.check()


def test_11_a_holder_that_is_seen_to_renew_is_waited_for(world: World) -> None:
    """Row 11 and rule 6: each new revision of the head starts the contender's waiting anew."""
    store = world.machine("a")
    agent = resumed(store)
    clock = SetClock()
    b = world.machine("b", clock=clock)
    for _ in range(4):
        raised(LeaseHeld, lambda: resumed(b))
        clock.move(TTL - 1)
        raised(LeaseHeld, lambda: resumed(b))
        store.shipper.push(fence_of(agent), renew=True)
    clock.move(TTL * 10)
    raised(LeaseHeld, lambda: resumed(b))  # this revision is new to it, however long ago it was written
    clock.move(TTL)
    resumed(b).release()
    world.check()


@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "behind"])
def test_11_a_store_whose_clock_jumps_cannot_let_two_write(world: World, ahead: bool) -> None:
    """Rows 10 and 11, of the store itself: a Date far ahead starts a takeover early, and the fence still holds."""
    store = world.machine("a")
    agent = resumed(store)
    agent.begin_action("charge", "idempotent", "1")
    world.promise(store)
    wrong = datetime.now(timezone.utc) + timedelta(minutes=10 if ahead else -10)
    jumped = world.proxy.inject(
        faults.answer_headers({"date": format_datetime(wrong, usegmt=True)}), "get", key="head.json", times=None
    )
    b = world.machine("b")
    if not ahead:
        raised(LeaseHeld, lambda: resumed(b))
        assert jumped.happened == 1
        return
    other = resumed(b)  # early, and rightly refused to the one who is fenced by it
    assert jumped.happened == 1
    other.begin_action("charge", "idempotent", "2")
    world.promise(b)
    raised(LeaseLost, lambda: agent.begin_action("email", "external", "1"))
    assert other.release()
    resumed(store).release()
    assert left(store) == [["tool:email", "act:2"]]
    world.check()


def test_6_the_stores_own_clock_tells_that_a_holder_is_gone(world: World) -> None:
    """Rule 6: an answer whose Date is the ttl and five seconds past Last-Modified is enough, without waiting here."""
    store = world.machine("a")
    agent = resumed(store, ttl_ms=1000)
    store.shipper.push(fence_of(agent))
    later = [datetime.now(timezone.utc) + timedelta(seconds=each) for each in (4, 8)]
    seen = [
        world.proxy.inject(faults.answer_headers({"date": format_datetime(each, usegmt=True)}), "get", key="head.json")
        for each in later
    ]
    b = world.machine("b", clock=SetClock())
    raised(LeaseHeld, lambda: resumed(b))
    other = resumed(b)
    assert [each.happened for each in seen] == [1, 1]
    assert other.epoch == 2
    other.release()
    world.check()


def test_10_the_lease_is_measured_from_before_the_write_was_sent(world: World) -> None:
    """Rows 10 and 11, rule 6: an answer that takes its time does not make the lease last longer."""
    clock = SetClock()
    store = world.machine("a", clock=clock)

    late = world.proxy.inject(Late(clock, 30), "put", key="head.json")
    agent = resumed(store)
    assert late.happened == 1
    clock.move(11)  # 41 s after it was sent
    lease = store.lease(AGENT)
    assert lease is not None and not lease.live(clock.now())
    agent.record_turn("user", "after it was acquired again")
    assert agent.epoch == 2
    agent.release()
    world.check()


def test_10_a_renewal_that_comes_through_late_leaves_nothing_to_be_acquired_again(world: World) -> None:
    """Found lapsed by one thread while another one's renewal is under way: the same epoch, nothing is set aside."""
    clock = SetClock()
    events: list[tuple[str, int]] = []
    store = world.machine("a", clock=clock)
    agent = resumed(store, on_event=lambda event, epoch: events.append((event, epoch)))
    clock.move(TTL * 2 / 3 + 1)
    renewal = world.proxy.inject(faults.Pause(answered=True), "put", key="head.json")
    renewing = threading.Thread(target=lambda: store.shipper.push(fence_of(agent), renew=True))
    renewing.start()
    renewal.wait_for_waiting()
    writing = threading.Thread(target=lambda: agent.record_turn("user", "under the lease that did not lapse"))
    writing.start()  # it finds the lease lapsed, and waits for its turn at the bucket
    writing.join(0.3)
    assert writing.is_alive()
    renewal.release()
    renewing.join(30)
    writing.join(30)
    agent.begin_action("charge", "idempotent", "1")
    world.promise(store)
    assert (agent.epoch, world.head().epoch, store.counters(AGENT).turns) == (1, 1, 1)
    assert events == [("acquired", 1)]
    assert left(store) == []
    agent.release()
    world.check()


@pytest.mark.parametrize("taken", [False, True], ids=["nobody took over", "another took over"])
def test_12_a_barrier_that_took_too_long_starts_no_tool(world: World, taken: bool) -> None:
    """Row 12 and rule 6: past two thirds of the ttl nothing is started, though the bucket has the intent by then."""
    clock = SetClock()
    store = world.machine("a", clock=clock)
    agent = resumed(store)
    late = world.proxy.inject(Late(clock, TTL), "put", key="head.json")
    if taken:
        gate = world.proxy.inject(faults.Pause(), "get", key="head.json")
        thread = threading.Thread(
            target=lambda: raised(LeaseLost, partial(agent.begin_action, "email", "external", "1"))
        )
        thread.start()
        gate.wait_for_waiting()  # it looks, since its time is over
        other = world.successor("b")
        assert [each.status for each in other.pending_actions()] == ["unknown"]
        gate.release()
        thread.join(30)
        assert not agent.lease_held
        other.release()
    else:
        action = agent.begin_action("email", "external", "1")
        assert (action.status, agent.epoch) == ("started", 2)  # acquired again first: nobody else has acted
        world.promise(store)
        assert world.names().count("act:1") == 1
        agent.release()
    assert late.happened == 1
    world.check()


@pytest.mark.parametrize("taken", [False, True], ids=["nobody took over", "another took over"])
def test_12_an_idle_holder_that_gave_its_lease_back_proves_it_again_before_it_writes(world: World, taken: bool) -> None:
    """Rows 5 and 12, rule 12: given back while idle, it is taken again by the next write, or lost to whoever acted."""
    clock = SetClock()
    store = world.machine("a", clock=clock, background=True)
    agent = resumed(store)
    agent.record_turn("user", "before it was idle")
    for _ in range(16):
        clock.move(20)
        agent._keeper.renew()
    assert world.head().state == "released" and agent.lease_held
    with world.no_puts():
        clock.move(20)
        agent._keeper.renew()  # an idle agent sends nothing
    if taken:
        other = resumed(world.machine("b", bucket=world.direct))  # and waits for nobody
        other.record_turn("user", "by another")
        raised(LeaseLost, lambda: agent.begin_action("email", "external", "1"))
        assert other.release()
    else:
        agent.begin_action("email", "external", "1")
        assert agent.epoch == 2
        world.promise(store)
        assert agent.release()
    assert [name for name in world.names() if name.startswith("turn:")] == ["turn:1", "turn:2"][: 1 + taken]
    world.check()


class Late(Fault):
    """The server does it at once; when the answer comes, so many seconds have passed here."""

    def __init__(self, clock: SetClock, seconds: float) -> None:
        super().__init__()
        self._clock, self._seconds = clock, seconds

    def act(self, request: Request, forward: Forward) -> Reply:
        reply = forward(request)
        self._clock.move(self._seconds)
        return reply
