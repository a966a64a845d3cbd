"""A bucket and a directory that contradict each other: the newer is pulled, the older is named, nothing is lost.

Numbers of rows are those of ``test_interleavings.py``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

from store.agent import Agent
from store.errors import LeaseLost, RecallError
from store.records import NEXT, TURN, Draft
from store.remote_errors import BadHead, Forked
from store.shipping.backend import ShippingBackend
from store.shipping.s3 import S3Bucket
from tests.shipping import faults
from tests.shipping.machines import AGENT, HEAD, machine, resumed
from tests.shipping.proxy import Fault, Forward, Reply, Request
from tests.shipping.real import World, fence_of, left, raised, store_of

on_seaweedfs = pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
on_moto = pytest.mark.parametrize("server", ["moto"], indirect=True)


def put_head(world: World, body: bytes | None) -> None:
    """Let a person, or a rule of the bucket, put another head there; None removes it."""
    client, place = world.server.client(), world.location
    key = {"Bucket": place.bucket, "Key": f"{place.prefix}/{HEAD}"}
    if body is None:
        client.delete_object(**key)
    else:
        client.put_object(**key, Body=body)


def body_of_head(world: World) -> bytes:
    found = world.direct.get(HEAD)
    assert found is not None
    return found.body


# -- row 15: a directory out of a backup ----------------------------------------------------------


@on_moto
def test_15_a_directory_out_of_a_backup_pulls_first(world: World) -> None:
    """Row 15, the directory restored from a backup: its watermark lies on the head's chain, and it gets the rest."""
    store = world.machine("a")
    agent = resumed(store)
    agent.record_turn("user", "in the backup")
    agent.begin_action("charge", "idempotent", "1")
    world.promise(store)
    agent.release()
    store.close()
    shutil.copytree(world.directory / "a", world.directory / "backup")
    again = resumed(world.machine("a"))
    again.record_turn("user", "after the backup")
    again.begin_action("charge", "idempotent", "2")
    world.promise(store_of(again))
    again.release()
    restored = world.machine("backup")
    back = resumed(restored)
    assert [each.content for each in back.recent_turns(9)] == ["in the backup", "after the backup"]
    assert back.epoch == 3 and left(restored) == []
    back.release()
    world.check()


@on_seaweedfs
def test_15_what_only_the_backup_has_is_set_aside(world: World) -> None:
    """Row 15: records that were not shipped when it was made, and that the log went on without, are kept beside it."""
    store = world.machine("a")
    agent = resumed(store)
    agent.begin_action("charge", "idempotent", "1")
    world.promise(store)
    shutil.copytree(world.directory / "a", world.directory / "backup")
    backup = world.machine("backup")
    lease = backup.lease(AGENT)
    assert lease is not None
    agent.record_turn("user", "of the original")
    agent.release()
    again = resumed(store)
    again.record_turn("user", "of the original, later")
    again.release()
    backup.append(lease.fence, [Draft(TURN, {"role": "user", "content": "only here"}, seq=NEXT)])
    raised(LeaseLost, lambda: backup.shipper.push(lease.fence))
    back = resumed(backup)
    assert [each.content for each in back.recent_turns(9)] == ["of the original", "of the original, later"]
    assert left(backup) == [["turn:1"]]
    back.release()
    world.check()


@on_moto
def test_15_a_backup_of_another_log_is_not_joined(world: World) -> None:
    """Row 15: a watermark that is not on the head's chain is a fork; it is named, and nothing is written."""
    store = world.machine("a")
    agent = resumed(store)
    agent.begin_action("charge", "idempotent", "1")
    agent.release()
    other = world.server.location()

    stranger = machine(
        world.directory / "stranger", other, S3Bucket(other, world.direct.dialect, world.direct._clients)
    )
    resumed(stranger).release()
    stranger.close()
    joined = world.machine("stranger")  # the same directory, now on the place where another log of this name lives
    before = body_of_head(world)
    for _ in range(2):
        assert raised(Forked, lambda: resumed(joined)).details["trouble"] == "forked"
    assert body_of_head(world) == before
    world.check()


# -- row 16: a bucket that went back, or lost the head -----------------------------------------------


def stays_stopped(world: World, store: ShippingBackend, agent: Agent, trouble: str) -> None:
    """Everything that would write is refused, with the same name for it, and the bucket stays as it is."""
    before = world.direct.get(HEAD)
    with world.no_puts():
        for work in (
            lambda: agent.begin_action("charge", "idempotent", "again"),
            lambda: store.shipper.push(fence_of(agent), renew=True),
            lambda: store.shipper.pull(AGENT),
            lambda: resumed(store),
        ):
            problem = raised(RecallError, work)
            assert isinstance(problem, Forked) and problem.details["trouble"] == trouble
    after = world.direct.get(HEAD)
    assert (before and before.body) == (after and after.body)


def test_16_a_bucket_that_was_rolled_back_stops_its_writer(world: World) -> None:
    """Row 16, the bucket rolled back: an older head is named, and not written over."""
    store = world.machine("a")
    agent = resumed(store)
    agent.begin_action("charge", "idempotent", "1")
    old = body_of_head(world)
    agent.begin_action("charge", "idempotent", "2")
    put_head(world, old)
    problem = raised(Forked, lambda: agent.begin_action("charge", "idempotent", "3"))
    assert problem.details["trouble"] == "remote regressed"
    assert world.last_answer() == 412
    stays_stopped(world, store, agent, "remote regressed")


def test_16_a_head_that_is_gone_stops_its_writer(world: World) -> None:
    """Row 16, the head gone (a person, a lifecycle rule): the store answers 404 or 412, and it is not made anew."""
    store = world.machine("a")
    agent = resumed(store)
    agent.begin_action("charge", "idempotent", "1")
    put_head(world, None)
    problem = raised(Forked, lambda: agent.begin_action("charge", "idempotent", "2"))
    assert problem.details["trouble"] == "head missing"
    assert world.last_answer() == (404 if world.server.name == "moto" else 412)
    stays_stopped(world, store, agent, "head missing")
    assert world.direct.get(HEAD) is None
    # Whoever never saw it cannot know, and begins a log: the one who does still refuses to join it.
    other = resumed(world.machine("b"))
    other.begin_action("charge", "idempotent", "1")
    raised(Forked, lambda: resumed(store))
    other.release()


@on_seaweedfs
@pytest.mark.parametrize("moment", ["renewal", "release", "pull"])
def test_16_it_is_found_whatever_is_done_first(world: World, moment: str) -> None:
    """Row 16: renewal, release and pull find the rolled back bucket as a barrier does."""
    store = world.machine("a")
    agent = resumed(store)
    old = body_of_head(world)
    agent.begin_action("charge", "idempotent", "1")
    put_head(world, old)
    work: dict[str, Callable[[], object]] = {
        "renewal": lambda: store.shipper.push(fence_of(agent), renew=True, look=True),
        "release": agent.release,
        "pull": lambda: resumed(store),
    }
    assert raised(Forked, work[moment]).details["trouble"] == "remote regressed"
    stays_stopped(world, store, agent, "remote regressed")


@on_moto
def test_16_a_rolled_back_bucket_is_found_by_whoever_saw_more(world: World) -> None:
    """Row 16: a machine that only ever pulled knows too that the bucket went back."""
    store = world.machine("a")
    agent = resumed(store)
    agent.begin_action("charge", "idempotent", "1")
    old = body_of_head(world)
    agent.begin_action("charge", "idempotent", "2")
    reader = world.machine("reader")
    reader.shipper.pull(AGENT)
    assert reader.counters(AGENT).actions == 2
    put_head(world, old)
    assert raised(Forked, lambda: reader.shipper.pull(AGENT)).details["trouble"] == "remote regressed"
    assert raised(Forked, lambda: resumed(reader)).details["trouble"] == "remote regressed"


@on_moto
def test_16_a_damaged_head_is_named_and_left(world: World) -> None:
    """Row 16: bytes that are no head are refused in one line, by those who have a log and by those who have none."""
    store = world.machine("a")
    agent = resumed(store)
    agent.begin_action("charge", "idempotent", "1")
    whole = body_of_head(world)
    for body in (whole[:-20], whole.replace(b'"last":', b'"last":1'), b"<html>not here</html>"):
        put_head(world, body)
        with world.no_puts():
            raised(BadHead, lambda: resumed(world.machine("b")))
        raised(BadHead, lambda: agent.begin_action("charge", "idempotent", "2"))
    put_head(world, whole)
    agent.begin_action("charge", "idempotent", "3")
    world.promise(store)
    agent.release()
    world.check()


# -- row 26: objects that go while they are read -------------------------------------------------------


@on_seaweedfs
def test_26_an_object_that_is_missing_is_named(world: World) -> None:
    """Row 26, retention removes an object during a restore: missing under the very head that names it, it is damage."""
    _spilled(world)
    key = world.head().segs[0].k
    world.direct.delete(f"agents/{AGENT}/{key}")
    b = world.machine("b")
    with world.no_puts():
        problem = raised(BadHead, lambda: b.shipper.pull(AGENT))
    assert key in problem.message
    assert b.counters(AGENT).lsn == 0


@on_moto
def test_26_an_object_that_was_replaced_is_looked_for_again(world: World) -> None:
    """Row 26: gone, and the head names others by now: the restore plans again, and gets the whole log."""
    agent = _spilled(world)
    store = store_of(agent)
    gone = world.proxy.inject(faults.Answer(404, "NoSuchKey"), "get", key=".jsonl.gz")
    moved = world.proxy.inject(
        Then(lambda: store.shipper.push(fence_of(agent), renew=True)), "get", key="head.json", skip=1
    )
    b = world.machine("b")
    b.shipper.pull(AGENT)
    assert gone.happened == 1 and moved.happened == 1
    assert b.counters(AGENT).lsn == store.counters(AGENT).lsn
    agent.release()
    world.check()


@on_moto
def test_26_a_restore_that_is_overtaken_all_the_time_gives_up(world: World) -> None:
    """Row 26: planning again has an end, and says why."""
    agent = _spilled(world)
    store = store_of(agent)
    gone = world.proxy.inject(faults.Answer(404, "NoSuchKey"), "get", key=".jsonl.gz", times=None)
    world.proxy.inject(
        Then(lambda: store.shipper.push(fence_of(agent), renew=True)), "get", key="head.json", times=None
    )
    problem = raised(RecallError, lambda: world.machine("b").shipper.pull(AGENT))
    assert problem.code == "remote_unreachable" and "faster" in problem.message
    assert 2 <= gone.happened <= 10


class Then(Fault):
    """Something is done just before the request goes on."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self._work, self._busy = work, False

    def act(self, request: Request, forward: Forward) -> Reply:
        if not self._busy:
            self._busy = True
            try:
                self._work()
            finally:
                self._busy = False
        return forward(request)


def _spilled(world: World) -> Agent:
    """A machine whose log is in segments; its own way to the server leads past the proxy."""
    store = world.machine("a", bucket=world.direct)
    agent = resumed(store)
    for number in range(3):
        for _ in range(10):
            agent.record_turn("user", str(number) * 7000)
        agent.begin_action("charge", "idempotent", str(number))
    assert len(world.head().segs) == 3
    world.promise(store)
    return agent
