"""Storms, refusals, much data, many writers, full disks: slower, or stopped in one clear line, and nothing is lost.

Numbers of rows are those of ``test_interleavings.py``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from store.errors import StoreFull
from store.remote_errors import NotShipped, RemoteRefused
from tests.disks import fill_up, small_disk
from tests.shipping import faults
from tests.shipping.machines import AGENT, resumed
from tests.shipping.proxy import Fault, Forward, Reply, Request
from tests.shipping.real import World, fence_of, left, raised, store_of
from tests.shipping.servers import Server

on_seaweedfs = pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)
on_moto = pytest.mark.parametrize("server", ["moto"], indirect=True)

HEAD_BYTES = 256 * 1024  # the most that a head has


class Watched(Fault):
    """Lets requests through, unless ``refuse`` gives an answer, and notes when each came and how many at once."""

    def __init__(self, refuse: Callable[[int], Reply | None] = lambda number: None) -> None:
        super().__init__()
        self._refuse = refuse
        self._lock = threading.Lock()
        self._now = 0
        self.at_once = 0
        self.times: list[float] = []

    def act(self, request: Request, forward: Forward) -> Reply:
        with self._lock:
            number = len(self.times)
            self.times.append(time.monotonic())
            self._now += 1
            self.at_once = max(self.at_once, self._now)
        try:
            return self._refuse(number) or forward(request)
        finally:
            with self._lock:
                self._now -= 1


def many(world: World, threads: int, each: int) -> None:
    """So many threads of one process begin so many calls each; every one that returned is durable."""
    store = world.machine("a")
    agent = resumed(store)

    def work(name: int) -> None:
        for number in range(each):
            action = agent.begin_action("charge", "idempotent", f"{name}-{number}")
            assert action.status == "started"

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    world.promise(store)
    agent.release()


def test_20_a_storm_of_refusals_is_outlived_with_few_requests(world: World) -> None:
    """Row 20, a storm of 503 or 429: one CAS in flight, with pauses that grow; when it is over all is durable."""
    busy = [Reply(503, {}, b"<Error><Code>SlowDown</Code></Error>"), Reply(429, {}, b"<Error><Code>X</Code></Error>")]
    storm = Watched(lambda number: busy[number % 2] if time.monotonic() < storm.times[0] + 1.5 else None)
    world.proxy.inject(storm, "put", key="head.json", times=None)
    many(world, threads=4, each=3)
    refused = [each for each in world.puts() if each.reply and each.reply.status in (503, 429)]
    assert 4 <= len(refused) <= 20
    assert storm.at_once == 1
    assert sum(name.startswith("act:") for name in world.names()) == 12
    world.check()


@on_moto
def test_20_the_least_time_between_two_writes_is_kept(world: World) -> None:
    """Row 20, the store's minimum interval: no two writes to a head come sooner after one another."""
    watched = world.proxy.inject(Watched(), "put", key="head.json", times=None)
    store = world.machine("a")
    store.shipper._interval = 0.6  # as the probe found it
    agent = resumed(store)
    for number in range(3):
        agent.begin_action("charge", "idempotent", str(number))
    agent.release()
    gaps = [later - before for before, later in zip(watched.times, watched.times[1:], strict=False)]
    assert len(gaps) == 4 and min(gaps) > 0.3  # at the proxy: a busy machine sends one late, not the next one early
    world.promise(store, lsn=4)
    world.check()


@on_seaweedfs
def test_20_a_storm_without_an_end_is_unknown_and_the_caller_is_told(world: World) -> None:
    """Rows 20 and 24: past the deadline a barrier ends as unknown; turns are written all the while, and ship later."""
    agent = resumed(world.machine("a", patience=0.4))
    storm = world.proxy.inject(faults.slow_down(), "put", key="head.json", times=None)
    problem = raised(NotShipped, lambda: agent.begin_action("email", "external", "1"))
    assert storm.happened >= 1 and "503" in problem.message and problem.partial.seq == 1
    agent.record_turn("user", "written all the same")
    world.proxy.heal()
    agent.begin_action("lookup", "idempotent", "1")
    world.promise(store_of(agent))
    assert "turn:1" in world.names()
    agent.release()
    world.check()


def test_18_barriers_of_many_threads_share_their_writes(world: World) -> None:
    """Row 18: of eight threads with twenty barriers each, one CAS at a time takes the others' records along."""
    watched = world.proxy.inject(Watched(), "put", key="head.json", times=None)
    many(world, threads=8, each=20)
    actions = sum(name.startswith("act:") for name in world.names())
    assert actions == 160
    assert watched.at_once == 1 and len(watched.times) < actions / 2
    assert all(each.reply and each.reply.status == 200 for each in world.puts()), "a race of our own"
    world.check()


# -- refusals --------------------------------------------------------------------------------------


@on_moto
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (faults.expired, "the credentials have expired"),
        (lambda: faults.Answer(403, "AccessDenied"), "access denied"),
        (faults.skewed, "this machine's clock is wrong"),
        (lambda: faults.Answer(404, "NoSuchBucket"), "there is no such bucket"),
        (lambda: faults.Answer(501, "NotImplemented"), "does not implement"),
    ],
    ids="expired denied skewed no-bucket not-implemented".split(),
)
def test_22_what_the_bucket_refuses_is_refused_and_stays_here(
    world: World, fault: Callable[[], Fault], said: str
) -> None:
    """Row 22, credentials expire, policy denies: refused at once; lazy records stay, and ship when it is mended."""
    store = world.machine("a")
    agent = resumed(store)
    wall = world.proxy.inject(fault(), times=None)
    before = time.monotonic()
    problem = raised(RemoteRefused, lambda: agent.begin_action("email", "external", "1", step="email"))
    assert time.monotonic() - before < 5 and wall.happened >= 1
    assert said in problem.message and problem.partial.status == "started"
    agent.record_turn("user", "lazy, and kept")
    raised(RemoteRefused, lambda: store.shipper.push(fence_of(agent), renew=True, look=True))
    raised(RemoteRefused, agent.release)
    assert agent.lease_held, "what could not be given back is still ours"
    world.proxy.heal()
    again = agent.begin_action("email", "external", "1", step="email")
    assert again.seq == problem.partial.seq and again.key == problem.partial.key
    world.promise(store)
    assert agent.release()
    assert [world.names().count(each) for each in ("act:1", "turn:1")] == [1, 1]
    world.check()


@on_seaweedfs
def test_22_an_acquisition_that_is_refused_grants_nothing(world: World) -> None:
    """Row 22: a lease is never granted here because the bucket would not say."""
    store = world.machine("a")
    wall = world.proxy.inject(faults.Answer(403, "AccessDenied"), "put", key="head.json", times=None)
    for _ in range(2):
        raised(RemoteRefused, lambda: resumed(store))
    assert wall.happened == 2 and store.lease(AGENT) is None
    world.proxy.heal()
    agent = resumed(store)
    assert agent.epoch == 1
    agent.release()
    world.check()


# -- much data -----------------------------------------------------------------------------------------


def put_keys(world: World) -> list[str]:
    return [each.request.key.partition(f"{AGENT}/")[2] for each in world.proxy.of("put")]


@on_seaweedfs
def test_23_a_huge_record_goes_before_the_head_that_names_it(world: World) -> None:
    """Row 23, a huge record: its blob is in the bucket first; lost in between, the head does not name it."""
    store = world.machine("a")
    agent = resumed(store)
    text = "".join(f"{number} " for number in range(300_000))
    agent.store_output(text, ref="big")
    lost = world.proxy.inject(faults.RequestLost(), "put", key="head.json")
    seen = len(put_keys(world))
    agent.begin_action("charge", "idempotent", "1")
    world.promise(store)
    assert lost.happened == 1
    blob, *heads = put_keys(world)[seen:]
    assert blob.startswith("blob/1-") and heads[0] == heads[-1] == "head.json"
    assert max(len(each.request.body) for each in world.puts()) < HEAD_BYTES
    other = world.successor("b")
    assert other.fetch_output("big").content == text
    other.release()
    world.check()


@on_moto
def test_23_a_backlog_of_lazy_records_goes_into_segments(world: World) -> None:
    """Row 23, a backlog of lazy ones: one barrier takes all along; the head stays small, and a restore has all."""
    store = world.machine("a")
    agent = resumed(store)
    for number in range(600):
        agent.record_turn("user", f"{number} " + "x" * 2000)
    lost = world.proxy.inject(faults.AnswerLost(), "put", key=".jsonl.gz")
    agent.begin_action("charge", "idempotent", "1")
    world.promise(store)
    assert lost.happened == 1, "and the answer to the segment was lost"
    assert max(len(each.request.body) for each in world.puts()) < HEAD_BYTES
    agent.release()
    other = resumed(world.machine("b"))
    assert len(other.recent_turns(1000)) == 600
    other.release()
    world.check()


@on_seaweedfs
def test_23_a_spill_in_the_background_does_not_hold_up_a_barrier(world: World) -> None:
    """Row 23, background spill: lazy records ship unasked, and while their segment is on its way a barrier passes."""
    store = world.machine("a", background=True)
    agent = resumed(store)
    gate = world.proxy.inject(faults.Pause(), "put", key=".jsonl.gz")
    for number in range(40):
        agent.record_turn("user", f"{number} " + "x" * 1000)
    gate.wait_for_waiting()
    assert world.head().last >= 30, "the tail was shipped first, and is being moved into a segment"
    begun = time.monotonic()
    agent.begin_action("charge", "idempotent", "1")
    assert time.monotonic() - begun < 5 and gate.happened == 0
    world.promise(store)
    gate.release()
    gate.wait()
    end = time.monotonic() + 10
    while not world.head().segs and time.monotonic() < end:
        time.sleep(0.01)
    assert world.head().segs and world.head().last == store.counters(AGENT).lsn
    agent.release()
    world.check()


# -- a full disk ------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@on_seaweedfs
@pytest.mark.parametrize("what", ["barrier", "acquisition"])
def test_14_a_full_disk_after_the_write_landed_loses_nothing(server: Server, small: Path, what: str) -> None:
    """Rows 13 and 14: the bucket has it, and the mark cannot be written; with room again it is known by its hash."""
    world = World(server, small)
    store = world.machine("a")
    agent = resumed(store)
    if what == "acquisition":
        agent.release()
    gate = world.proxy.inject(faults.Pause(answered=True), "put", key="head.json")
    problems: list[StoreFull] = []

    def work() -> None:
        if what == "barrier":
            problems.append(raised(StoreFull, lambda: agent.begin_action("charge", "external", "1", step="charge")))
        else:
            problems.append(raised(StoreFull, lambda: resumed(store)))

    thread = threading.Thread(target=work)
    thread.start()
    gate.wait_for_waiting()
    ballast = fill_up(small, 0)
    gate.release()
    thread.join(30)
    assert gate.happened == 1 and len(problems) == 1
    landed = world.head()
    ballast.unlink()
    if what == "barrier":
        again = agent.begin_action("charge", "external", "1", step="charge")
        assert (again.seq, again.status) == (problems[0].partial.seq, "started")
        assert world.names().count("act:1") == 1 and world.head().epoch == 1
    else:
        assert landed.epoch == 2
        agent = world.successor("a")  # its own ghost holds the lease: an operator breaks it, and no epoch comes twice
        assert agent.epoch > 2
    world.promise(store)
    agent.release()
    assert left(store) == []
    world.check()
    world.close()
