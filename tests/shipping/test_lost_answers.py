"""Answers that are lost, late or untrue: what was called durable is there, and nothing is there twice.

Numbers of rows are those of ``test_interleavings.py``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from store.agent import Agent
from store.errors import LeaseLost, Unavailable
from store.records import ACTION
from store.remote_errors import NotShipped, RemoteUnreachable
from tests.engine import SetClock
from tests.shipping import faults
from tests.shipping.machines import AGENT, resumed
from tests.shipping.proxy import Fault, Forward, Reply, Request
from tests.shipping.real import World, fence_of, left, raised, store_of

on_seaweedfs = pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
on_moto = pytest.mark.parametrize("server", ["moto"], indirect=True)


class SentTwice(Fault):
    """The request is sent again by something in between, and the answer to the second one is what comes back."""

    def act(self, request: Request, forward: Forward) -> Reply:
        first = forward(request)
        assert first.status == 200
        return forward(request)


class LandsBefore(Fault):
    """An earlier request, held back by ``late``, lands just before this one."""

    def __init__(self, late: faults.Delayed) -> None:
        super().__init__()
        self._late = late

    def act(self, request: Request, forward: Forward) -> Reply:
        self._late.land()
        return forward(request)


def test_1_an_answer_of_412_to_our_own_success_is_a_success(world: World) -> None:
    """Row 1, the SDK's own retry answers 412 on our success: a write sent twice is durable, whatever it was for."""
    agent = store = None
    for what in ("acquire", "barrier", "renewal", "release"):
        twice = world.proxy.inject(SentTwice(), "put", key="head.json")
        if what == "acquire":
            store = world.machine("a")
            agent = resumed(store)
        assert agent is not None and store is not None
        if what == "barrier":
            agent.begin_action("charge", "idempotent", "1")
        if what == "renewal":
            agent.record_turn("user", "rides along")
            store.shipper.push(fence_of(agent), renew=True)
        if what == "release":
            assert agent.release()
        assert twice.happened == 1
        assert world.puts()[-1].fault is twice and world.last_answer() == 412
        world.promise(store)
    assert world.names().count("act:1") == 1
    world.check()


@on_seaweedfs
def test_1_the_sdk_does_not_send_a_conditional_write_again(world: World) -> None:
    """Row 1: when its answer is lost, each conditional write is on the wire once; the next one is another version."""
    agent = resumed(world.machine("a"))
    lost = world.proxy.inject(faults.AnswerLost(), "put", key="head.json", times=3)
    for number in range(3):
        agent.begin_action("charge", "idempotent", str(number))
    assert lost.happened == 3
    bodies = [each.request.body for each in world.puts()]
    assert len(set(bodies)) == len(bodies)
    world.promise(store_of(agent))
    world.check()


@pytest.mark.parametrize(
    "fault",
    [
        faults.AnswerLost,
        faults.RequestLost,
        faults.slow_down,
        lambda: faults.slow_down(applied=True),
        faults.too_many,
        faults.conflict,
        faults.precondition_failed,
        lambda: faults.Answer(500, "InternalError", applied=True),
        lambda: faults.Answer(200, applied=True, body=b""),
    ],
    ids="answer-lost request-lost 503 503-applied 429 409 412-untrue 500-applied 200-without-etag".split(),
)
@on_moto
def test_20_each_write_outlives_each_kind_of_trouble(world: World, fault: Callable[[], Fault]) -> None:
    """Rows 1, 2 and 20: acquire, barrier, renewal and release each succeed over one bad answer, and land once."""
    store = world.machine("a")
    injected = []

    def next_one() -> None:
        injected.append(world.proxy.inject(fault(), "put", key="head.json"))

    next_one()
    agent = resumed(store)
    next_one()
    action = agent.begin_action("charge", "external", "1")
    world.promise(store)
    next_one()
    store.shipper.push(fence_of(agent), renew=True)
    agent.end_action(action.seq, "done", "paid")
    next_one()
    assert agent.release()
    world.promise(store)
    assert [each.happened for each in injected] == [1, 1, 1, 1]
    assert world.head().state == "released"
    assert [key for key in world.names() if key == "act:1"] == ["act:1", "act:1"]  # begun, and ended
    assert left(store) == []
    world.check()


def test_2_a_write_that_lands_after_it_was_sent_again_changes_nothing(world: World) -> None:
    """Row 2, a late PUT lands after a GET showed absence: here after its successor, and the store refuses it."""
    store = world.machine("a")
    agent = resumed(store)
    late = world.proxy.inject(faults.Delayed(), "put", key="head.json")
    agent.begin_action("charge", "idempotent", "1")
    assert late.happened == 1 and len(world.puts()) == 3
    world.promise(store)
    assert late.land().status == 412
    agent.begin_action("charge", "idempotent", "2")
    world.promise(store)
    world.check()


def test_2_a_write_that_lands_before_it_is_sent_again_is_the_one_that_counts(world: World) -> None:
    """Row 2, a late PUT lands after a GET showed absence: then the same records are found by hash, once."""
    store = world.machine("a")
    agent = resumed(store)
    late = world.proxy.inject(faults.Delayed(), "put", key="head.json")
    between = world.proxy.inject(LandsBefore(late), "put", key="head.json")
    agent.begin_action("charge", "idempotent", "1")
    assert late.happened == 1 and between.happened == 1 and late.landed[0].status == 200
    answers = [each.reply.status for each in world.puts() if each.reply]
    assert answers[-1] == 412, "the second one came too late, and that is no loss"
    world.promise(store)
    assert world.names().count("act:1") == 1
    world.check()


@on_seaweedfs
def test_2_a_write_that_lands_after_it_was_given_up_is_taken_up_by_the_next(world: World) -> None:
    """Row 2: after *unknown* the PUT lands, then more is written: the next barrier goes on from what is there."""
    store = world.machine("a", patience=0.0)
    agent = resumed(store)
    late = world.proxy.inject(faults.Delayed(), "put", key="head.json")
    assert raised(NotShipped, lambda: agent.begin_action("charge", "idempotent", "1")).partial.seq == 1
    assert late.happened == 1 and late.land().status == 200
    agent.record_turn("user", "meanwhile")
    store.shipper.patience = 10.0
    agent.begin_action("charge", "idempotent", "2")
    world.promise(store)
    assert [world.names().count(key) for key in ("act:1", "turn:1", "act:2")] == [1, 1, 1]
    world.check()


@on_moto
@pytest.mark.parametrize("when", ["before it is sent again", "after it is sent again", "after it was given up"])
def test_2_a_late_acquisition_is_an_epoch_of_its_own_or_nothing(world: World, when: str) -> None:
    """Row 2, for the lease itself: a takeover's PUT that lands late never gives two incarnations one epoch."""
    first = resumed(world.machine("a"))
    first.release()
    store = world.machine("b", patience=0.0 if when == "after it was given up" else 10.0)
    late = world.proxy.inject(faults.Delayed(), "put", key="head.json")
    if when == "after it was given up":
        raised(RemoteUnreachable, lambda: resumed(store))
        assert late.land().status == 200
        store.shipper.patience = 10.0
        other = world.successor("c")  # the lease is a ghost's: an operator breaks it
    elif when == "before it is sent again":
        world.proxy.inject(LandsBefore(late), "put", key="head.json")
        other = resumed(store)
        assert late.landed[0].status == 200
    else:
        other = resumed(store)
        assert late.land().status == 412
    assert late.happened == 1
    other.begin_action("charge", "idempotent", "1")
    world.promise(store_of(other))
    other.release()
    world.check()


def overtaken_at_the_look(world: World, fault: Fault) -> tuple[Agent, LeaseLost, Agent]:
    """A barrier whose PUT meets ``fault``; before it can look, a successor takes over and writes."""
    store = world.machine("a")
    agent = resumed(store)
    world.proxy.inject(fault, "put", key="head.json")
    gate = world.proxy.inject(faults.Pause(), "get", key="head.json")
    problems: list[LeaseLost] = []
    thread = threading.Thread(
        target=lambda: problems.append(raised(LeaseLost, lambda: agent.begin_action("email", "external", "1")))
    )
    thread.start()
    gate.wait_for_waiting()
    other = world.successor("b")
    other.begin_action("lookup", "idempotent", "1")
    world.promise(store_of(other))
    gate.release()
    thread.join(30)
    assert fault.happened == 1 and gate.happened == 1
    with world.no_puts():
        raised(LeaseLost, lambda: agent.record_turn("user", "too late"))
    return agent, problems[0], other


@pytest.mark.parametrize("server", ["seaweedfs", "moto"], indirect=True)
def test_3_and_4_landed_but_overwritten_and_fenced_is_lost(world: World) -> None:
    """Rows 3 and 4, it landed, then a successor overwrote the head: said to have landed, and the tool does not run."""
    agent, problem, other = overtaken_at_the_look(world, faults.AnswerLost())
    assert problem.details["landed"] is True
    # The intent is in the log, and the successor sees a call of which nobody knows whether it ran.
    assert [(each.tool, each.status) for each in other.pending_actions()] == [
        ("email", "unknown"),
        ("lookup", "started"),
    ]
    assert world.names().count("act:1") == 2  # begun by the one, settled by the other
    other.release()
    back = resumed(store_of(agent))
    assert left(store_of(agent)) == []
    back.release()
    world.check()


@on_seaweedfs
def test_3_what_landed_is_found_in_the_epochs_when_the_tail_has_moved_on(world: World) -> None:
    """Row 3: the successor's head has no line of ours any more; where our epoch ended still tells that it landed."""
    store = world.machine("a")
    agent = resumed(store)
    world.proxy.inject(faults.AnswerLost(), "put", key="head.json")
    gate = world.proxy.inject(faults.Pause(), "get", key="head.json")
    problems: list[LeaseLost] = []
    thread = threading.Thread(
        target=lambda: problems.append(raised(LeaseLost, lambda: agent.begin_action("email", "external", "1")))
    )
    thread.start()
    gate.wait_for_waiting()
    other = world.successor("b")
    for _ in range(12):
        other.record_turn("user", "x" * 7000)
    other.begin_action("lookup", "idempotent", "1")
    assert world.head().segs and world.head().tail_first > store.counters(AGENT).lsn
    gate.release()
    thread.join(30)
    assert problems[0].details["landed"] is True
    other.release()
    world.check()


@on_moto
def test_4_fenced_before_it_landed_is_lost_and_set_aside(world: World) -> None:
    """Rows 4 and 5: the PUT never arrived and a successor took over: not landed, and the intent is set aside."""
    agent, problem, other = overtaken_at_the_look(world, faults.RequestLost())
    assert problem.details["landed"] is False
    assert [each.tool for each in other.pending_actions()] == ["lookup"]
    other.release()
    back = resumed(store_of(agent))
    assert left(store_of(agent)) == [["lease:1", "tool:email", "act:1"]]
    back.release()
    world.check()


def test_6_an_etag_never_comes_back(world: World) -> None:
    """Row 6, an ETag that comes back: a renewal held back over a release and a new epoch is refused when it lands."""
    store = world.machine("a")
    agent = resumed(store)
    late = world.proxy.inject(faults.Delayed(), "put", key="head.json")
    for _ in range(3):
        store.shipper.push(fence_of(agent), renew=True)  # nothing new to say, and yet another body
    agent.release()
    again = resumed(store)
    again.release()
    assert late.happened == 1 and late.land().status == 412
    etags = [each.reply.headers["etag"] for each in world.puts() if each.reply and each.reply.status == 200]
    assert len(etags) == 7 and len(set(etags)) == 7
    world.check()


@on_seaweedfs
@pytest.mark.parametrize("landed", [True, False], ids=["it had landed", "it had not"])
def test_24_unknown_and_begun_again_is_the_same_call(world: World, landed: bool) -> None:
    """Row 24, unknown, then the caller retries: same key, same record; the tool runs once it is durable."""
    store = world.machine("a", patience=0.3)
    agent = resumed(store)
    dead = world.proxy.inject(faults.AnswerLost() if landed else faults.RequestLost(), "put", key="head.json")
    silent = world.proxy.inject(faults.slow_down(), "get", key="head.json", times=None)
    first = raised(NotShipped, lambda: agent.begin_action("charge", "external", "1", step="charge")).partial
    assert dead.happened == 1 and silent.happened > 0
    world.proxy.heal()
    again = agent.begin_action("charge", "external", "1", step="charge")
    assert (again.seq, again.key, again.status) == (first.seq, first.key, "started")
    world.promise(store)
    assert world.names().count("act:1") == 1
    agent.release()
    world.check()


@on_moto
def test_24_unknown_and_abandoned_is_an_end_in_the_log(world: World) -> None:
    """Row 24: a call that was never run because its barrier failed is ended, and both records ship, in order."""
    store = world.machine("a", patience=0.3)
    agent = resumed(store)
    dead = world.proxy.inject(faults.RequestLost(), "put", key="head.json", times=None)
    begun = raised(NotShipped, lambda: agent.begin_action("charge", "external", "1")).partial
    assert dead.happened > 1
    world.proxy.heal()
    agent.end_action(begun.seq, "abandoned", resolution="the bucket did not answer")
    assert agent.release()
    world.promise(store)
    assert [key for key in world.names() if key.startswith("act:")] == ["act:1", "act:1"]
    assert store.newest(AGENT, ACTION, seq=1) is not None
    assert agent.pending_actions() == []
    world.check()


@on_seaweedfs
def test_2_a_release_that_lands_after_it_was_given_up_takes_nothing_back(world: World) -> None:
    """Row 2, for a release: unknown, so the lease stays ours; when it lands the next write goes on, if nobody acted."""
    store = world.machine("a", patience=0.0)
    agent = resumed(store)
    late = world.proxy.inject(faults.Delayed(), "put", key="head.json")
    raised(NotShipped, agent.release)
    assert late.happened == 1 and agent.lease_held
    assert late.land().status == 200 and world.head().state == "released"
    store.shipper.patience = 10.0
    agent.begin_action("charge", "idempotent", "1")
    world.promise(store)
    assert world.head().state == "live" and world.head().fence == fence_of(agent)
    assert agent.release()
    world.check()


@on_moto
@pytest.mark.parametrize("landed", [True, False], ids=["it had landed", "it had not"])
def test_24_unknown_and_begun_again_after_the_lease_lapsed_is_the_same_call(world: World, landed: bool) -> None:
    """Row 24: the bucket was away for longer than the lease; nobody acted, so it goes on under a new epoch."""
    clock = SetClock()
    store = world.machine("a", patience=0.0, clock=clock)
    agent = resumed(store)
    lost = world.proxy.inject(faults.AnswerLost() if landed else faults.RequestLost(), "put", key="head.json")
    silent = world.proxy.inject(faults.slow_down(), "get", key="head.json", times=None)
    first = raised(NotShipped, lambda: agent.begin_action("charge", "external", "1", step="charge")).partial
    assert lost.happened == 1 and silent.happened > 0
    clock.move(300)
    raised(Unavailable, lambda: agent.begin_action("charge", "external", "1", step="charge"))
    world.proxy.heal()
    again = agent.begin_action("charge", "external", "1", step="charge")
    assert (again.seq, again.key, again.status, agent.epoch) == (first.seq, first.key, "started", 2)
    world.promise(store)
    assert world.names().count("act:1") == 1
    assert agent.release()
    world.check()
