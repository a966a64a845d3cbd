"""Keepers: one actor's lease, its epochs and its loss, also when threads race."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store.backend import Acquired
from store.backends.sqlite import SqliteBackend
from store.errors import LeaseExpired, LeaseHeld, LeaseLost, LeaseNotHeld
from store.keeper import Keeper
from store.lease import Fence, LeaseRequest
from store.process import Process
from store.records import Draft, Record
from tests.engine import SetClock, hold, request

FAR = Process("elsewhere", "", "", 1, "")


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def backend(tmp_path: Path, clock: SetClock) -> Iterator[SqliteBackend]:
    opened = SqliteBackend(tmp_path / "store", clock=clock)
    yield opened
    opened.close()


def keeper_of(backend: SqliteBackend, told: list[tuple[str, int]] | None = None) -> Keeper:
    def tell(event: str, epoch: int) -> None:
        if told is not None:
            told.append((event, epoch))

    return Keeper(backend, "a", ttl_ms=60_000, process=FAR, on_event=tell, background=False)


def turn(keeper: Keeper, backend: SqliteBackend) -> list[Record]:
    return keeper.write(lambda fence, renew: backend.append(fence, [Draft("turn", {}, seq=-1)], renew=renew))


def test_a_callback_that_raises_changes_nothing(
    tmp_path: Path, clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The write that noticed a lapse lands, the thread goes on renewing, and the program's log has the traceback."""
    told: list[str] = []

    def fail(event: str, epoch: int) -> None:
        told.append(event)
        raise OSError("no space left for my log")

    backend = SqliteBackend(tmp_path / "store", clock=clock)
    keeper = Keeper(backend, "a", ttl_ms=1000, process=FAR, on_event=fail)
    keeper.acquire()
    clock.move(5)
    deadline = time.monotonic() + 20
    while told != ["acquired", "again"] and time.monotonic() < deadline:
        time.sleep(0.02)
    clock.move(0.9)
    renewed = backend.lease("a")
    while backend.lease("a") == renewed and time.monotonic() < deadline:
        time.sleep(0.02)
    assert backend.lease("a") != renewed
    assert turn(keeper, backend)[0].epoch == 2
    backend.acquire(request("a", breaking=True))
    with pytest.raises(LeaseLost):
        turn(keeper, backend)
    assert told == ["acquired", "again", "lost"]
    assert [each.levelname for each in caplog.records] == ["ERROR"] * 3
    assert "no space left for my log" in caplog.text
    backend.close()


def test_without_a_lease_nothing_is_written(backend: SqliteBackend) -> None:
    """Before the acquisition and after the release every write is refused as not held."""
    keeper = keeper_of(backend)
    for _ in range(2):
        assert (keeper.held, keeper.epoch) == (False, 0)
        with pytest.raises(LeaseNotHeld):
            turn(keeper, backend)
        assert keeper.release() is False
        keeper.acquire()
        turn(keeper, backend)
        assert keeper.release() is True
    assert backend.counters("a").turns == 2


def test_the_default_holder_names_host_pid_and_actor(backend: SqliteBackend) -> None:
    """host:pid:8 hex, the beginning of the incarnation."""
    keeper = keeper_of(backend)
    assert keeper.holder == f"elsewhere:1:{keeper.incarnation[:8]}"
    assert len(keeper.incarnation) == 32


def test_a_lapse_nobody_used_is_mended_under_a_new_epoch(backend: SqliteBackend, clock: SetClock) -> None:
    """The write lands once, after the event; the incarnation stays."""
    told: list[tuple[str, int]] = []
    keeper = keeper_of(backend, told)
    keeper.acquire()
    before = keeper.incarnation
    clock.move(60)
    (record,) = turn(keeper, backend)
    assert (record.epoch, keeper.epoch, keeper.incarnation) == (2, 2, before)
    assert told == [("acquired", 1), ("again", 2)]
    assert backend.counters("a").turns == 1


def test_a_lapse_somebody_used_is_a_loss_told_once(backend: SqliteBackend, clock: SetClock) -> None:
    """Lost is lost for good: every write repeats it, the event comes once, and releasing does nothing."""
    told: list[tuple[str, int]] = []
    keeper = keeper_of(backend, told)
    keeper.acquire()
    clock.move(60)
    backend.release(hold(backend, "a", incarnation="b" * 32))
    for _ in range(3):
        with pytest.raises(LeaseLost):
            turn(keeper, backend)
    with pytest.raises(LeaseLost):
        keeper.renew()
    assert told == [("acquired", 1), ("lost", 1)]
    assert not keeper.held
    assert keeper.release() is False


def test_a_late_answer_to_an_old_write_does_not_lose_the_new_lease(backend: SqliteBackend) -> None:
    """A write that was on its way while the lease was released and acquired anew says lost, for itself only."""
    told: list[tuple[str, int]] = []
    keeper = keeper_of(backend, told)
    keeper.acquire()

    def slow(fence: Fence, renew: bool) -> None:
        keeper.release()
        backend.release(hold(backend, "a", incarnation="b" * 32))
        keeper.acquire()
        backend.renew(fence)

    with pytest.raises(LeaseLost):
        keeper.write(slow)
    assert keeper.held
    turn(keeper, backend)
    assert told == [("acquired", 1), ("acquired", 3)]


def test_threads_that_find_the_lapse_together_acquire_again_once(backend: SqliteBackend, clock: SetClock) -> None:
    """Eight threads write under one lapsed lease: one new epoch, and all eight records land."""
    told: list[tuple[str, int]] = []
    keeper = keeper_of(backend, told)
    keeper.acquire()
    clock.move(60)
    threads = [threading.Thread(target=turn, args=(keeper, backend)) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert backend.counters("a").turns == 8
    assert told == [("acquired", 1), ("again", 2)]


def test_who_is_told_of_the_loss_may_wait_for_another_thread(backend: SqliteBackend) -> None:
    """The loss that an acquisition finds is told without the lock, which a write under way in a thread needs."""
    ended: list[bool] = []
    begun, told = threading.Event(), threading.Event()

    def tell(event: str, epoch: int) -> None:
        if event == "lost":
            told.set()
            other.join(5)
            ended.append(not other.is_alive())

    def write() -> None:
        with pytest.raises(LeaseLost):
            keeper.write(overtaken)

    def overtaken(fence: Fence, renew: bool) -> None:
        begun.set()
        told.wait(5)
        raise LeaseLost(agent="a", epoch=fence.epoch, now="2, of another")

    def lapsed(fence: Fence, renew: bool) -> None:
        backend.acquire(request("a", breaking=True))
        raise LeaseExpired(agent="a", epoch=fence.epoch, ago="0.1 s")

    keeper = Keeper(backend, "a", ttl_ms=60_000, process=FAR, on_event=tell, background=False)
    keeper.acquire()
    other = threading.Thread(target=write, daemon=True)
    other.start()
    begun.wait(5)
    with pytest.raises(LeaseLost):
        keeper.write(lapsed)
    assert ended == [True]


def test_an_adopted_lease_renews_by_writing_and_never_acquires(backend: SqliteBackend, clock: SetClock) -> None:
    """A shell's token: each write starts the ttl anew; once expired it stays so."""
    fence = backend.acquire(request("a", process=FAR)).lease.fence
    keeper = Keeper.adopt(backend, fence, renew=True)
    for _ in range(3):
        clock.move(59)
        turn(keeper, backend)
    clock.move(60)
    with pytest.raises(LeaseExpired):
        turn(keeper, backend)
    assert backend.lease("a").epoch == 1  # type: ignore[union-attr]
    wrong = Keeper.adopt(backend, replace(fence, incarnation="c" * 32), renew=True)
    with pytest.raises(LeaseLost):
        turn(wrong, backend)


def test_a_second_acquisition_is_another_actor(backend: SqliteBackend) -> None:
    """After a release or a loss somebody else may have acted, so the chain of epochs is a new one."""
    keeper = keeper_of(backend)
    first = keeper.acquire().lease
    keeper.release()
    second = keeper.acquire().lease
    assert second.incarnation != first.incarnation
    assert second.holder != first.holder


def test_a_refused_acquisition_changes_nothing(backend: SqliteBackend) -> None:
    """The keeper may try again later, as the same actor."""
    theirs = backend.acquire(request("a", process=FAR)).lease.fence
    keeper = keeper_of(backend)
    before = keeper.incarnation
    with pytest.raises(LeaseHeld):
        keeper.acquire()
    backend.release(theirs)
    assert keeper.acquire().lease.incarnation == before


def test_a_keeper_that_is_forgotten_stops_renewing(tmp_path: Path) -> None:
    """The renewing thread ends with its keeper, so that a lease nobody can use any more expires."""
    backend = SqliteBackend(tmp_path / "store")
    keeper = Keeper(backend, "a", ttl_ms=600, background=True)
    keeper.acquire()
    assert [each for each in threading.enumerate() if each.name == "recall-lease"]
    del keeper
    gc.collect()
    deadline = time.monotonic() + 20
    while [each for each in threading.enumerate() if each.name == "recall-lease"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    backend.close()


def test_a_write_that_meets_the_new_epoch_before_its_keeper_knows_it_is_not_lost(
    backend: SqliteBackend, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread has acquired again and does not know it yet; another one's write waits for it, and lands."""
    told: list[tuple[str, int]] = []
    keeper = keeper_of(backend, told)
    keeper.acquire()
    clock.move(60)
    acquired, go_on = threading.Event(), threading.Event()
    acquire = backend.acquire

    def slow(request: LeaseRequest) -> Acquired:
        granted = acquire(request)
        acquired.set()
        assert go_on.wait(20)
        return granted

    monkeypatch.setattr(backend, "acquire", slow)
    renewing = threading.Thread(target=keeper.renew)
    renewing.start()
    assert acquired.wait(20)
    landed: list[Record] = []
    refused: list[Exception] = []

    def write() -> None:
        try:
            landed.extend(turn(keeper, backend))
        except LeaseLost as problem:
            refused.append(problem)

    writing = threading.Thread(target=write)
    writing.start()
    writing.join(0.3)  # it meets the new epoch in the database meanwhile
    go_on.set()
    writing.join(20)
    renewing.join(20)
    assert not refused
    assert [each.epoch for each in landed] == [2]
    assert told == [("acquired", 1), ("again", 2)]
