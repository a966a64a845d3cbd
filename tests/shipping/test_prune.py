"""A prune of a log that is in a bucket: the head begins later, and every directory goes on from there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store import asides
from store.backends.sqlite import SqliteBackend
from store.errors import InvalidInput, LeaseHeld
from store.pruning import prune
from store.shipping.backend import ShippingBackend
from store.shipping.packing import Limits
from store.shipping.protocol import never_executed
from store.shipping.upkeep import collect, referenced
from tests.keeping import problems
from tests.shipping.machines import AGENT, attach, head_in, machine, resumed
from tests.shipping.memory import MemoryBucket, nothing

TINY = Limits(inline=2_000, spill=500, segment=8_000, refs=4)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MemoryBucket]:
    """A store with a long log, and the bucket that has it, with pages and merged segments."""
    directory, bucket = tmp_path_factory.mktemp("filled") / "a", MemoryBucket()
    backend = machine(directory, bucket=bucket, limits=TINY)
    one = resumed(backend)
    fence = one._keeper.fence
    done = one.begin_action("deploy", "external", {"to": "prod"}, step="deploy-v2")
    one.end_action(done.seq, "done", result="deployed " + "d" * 40_000)
    one.begin_action("charge", "idempotent", {"cents": 100})
    for number in range(100):
        one.record_turn("assistant", f"turn {number} " + "x" * 300)
        backend.shipper.push(fence)
        backend.shipper.maintain(fence)
    one.release()
    backend.close()
    assert head_in(bucket).index is not None
    return directory, bucket


@pytest.fixture
def bucket(filled: tuple[Path, MemoryBucket]) -> MemoryBucket:
    return MemoryBucket(objects=filled[1].objects)


@pytest.fixture
def store(tmp_path: Path, filled: tuple[Path, MemoryBucket], bucket: MemoryBucket) -> Iterator[ShippingBackend]:
    shutil.copytree(filled[0], tmp_path / "a")
    backend = machine(tmp_path / "a", bucket=bucket, limits=TINY)
    yield backend
    backend.close()


def checked(bucket: MemoryBucket, backend: SqliteBackend) -> None:
    """The head's log and the store's are the same, from the same beginning."""
    head = head_in(bucket)
    lines = list(backend.log(AGENT))
    assert (lines[0].lsn, lines[-1].lsn, lines[-1].hash) == (head.base + 1, head.last, head.hash)
    assert backend.counters(AGENT).hash == head.hash


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97, 1.0])
def test_the_head_begins_where_the_log_does(
    tmp_path: Path, store: ShippingBackend, bucket: MemoryBucket, share: float
) -> None:
    """Wherever the new beginning falls (a page, the middle of a segment, the tail), an empty directory reads on."""
    last = store.counters(AGENT).lsn
    base = round(last * share)
    done = prune(store, AGENT, base, keep_turns=3)
    assert (done.base, head_in(bucket).base) == (base, base)
    checked(bucket, store)
    assert problems(tmp_path / "a") == []
    segments = [each for _, each in referenced(bucket, head_in(bucket))]
    assert all(each.f > base for each in segments)

    other = machine(tmp_path / "b", bucket=bucket, limits=TINY)
    one = resumed(other)
    assert one.begin_action("deploy", "external", {"to": "prod"}, step="deploy-v2").status == "done"
    assert one.record_turn("user", "on").seq == 101
    assert [each.tool for each in one.view.pending()] == ["charge"]
    one.release()
    checked(bucket, other)
    other.close()
    assert problems(tmp_path / "b") == []


def test_what_a_prune_left_over_is_collected(tmp_path: Path, store: ShippingBackend, bucket: MemoryBucket) -> None:
    """The objects that only pruned records needed go with the next collection, and no other."""
    before = len(bucket.objects)
    prune(store, AGENT, store.counters(AGENT).lsn, keep_turns=1)
    resumed(store).release()  # a later epoch
    bucket.now += 30 * 24 * 3600
    collected = collect(store.shipper, AGENT)
    assert collected.objects > 5
    assert len(bucket.objects) < before
    other = machine(tmp_path / "b", bucket=bucket, limits=TINY)
    one = resumed(other)
    action = one.begin_action("deploy", "external", {"to": "prod"}, step="deploy-v2")
    assert one.fetch_output(action.result_ref).content.startswith("deployed ddd")
    one.release()
    other.close()


def test_a_directory_below_the_beginning_is_set_aside_whole(
    tmp_path: Path, store: ShippingBackend, bucket: MemoryBucket
) -> None:
    """What an old copy had is listed, read and exported; the copy goes on with the log as it is now."""
    other = machine(tmp_path / "b", bucket=bucket, limits=TINY)
    other.shipper.pull(AGENT)
    had = [each.line for each in other.log(AGENT)]
    one = resumed(store)
    one.record_turn("user", "newer")
    one.release()
    prune(store, AGENT, store.counters(AGENT).lsn)

    two = resumed(other)
    assert two.begin_action("deploy", "external", {"to": "prod"}, step="deploy-v2").status == "done"
    two.release()
    checked(bucket, other)
    assert problems(tmp_path / "b") == []
    (whole,) = asides.asides(other, AGENT)
    assert (whole.first, whole.records) == (1, len(had))
    assert "was pruned" in whole.reason
    assert [each.line for each in asides.records(other, whole)] == had
    assert len(list(asides.export(other, whole))) > len(had)

    # And again: what begins above 0 is set aside whole too.
    one = resumed(store)
    one.record_turn("user", "newer still")
    one.release()
    prune(store, AGENT, store.counters(AGENT).lsn)
    resumed(other).release()
    checked(bucket, other)
    assert len(asides.asides(other, AGENT)) == 2
    assert problems(tmp_path / "b") == []
    other.close()


def test_a_crash_while_a_directory_is_set_aside_is_mended_by_the_next_read(
    tmp_path: Path, store: ShippingBackend, bucket: MemoryBucket
) -> None:
    """Stopped after its old log was set aside and before the new one came, a directory just reads on."""
    other = machine(tmp_path / "b", bucket=bucket, limits=TINY)
    other.shipper.pull(AGENT)

    def stopped(verb: str, key: str) -> str:
        if verb == "get" and "/seg/" in key:
            raise KeyboardInterrupt
        return ""

    one = resumed(store)
    one.release()
    prune(store, AGENT, store.counters(AGENT).lsn)
    one = resumed(store)
    for _ in range(10):
        one.record_turn("user", "x" * 400)
    one.release()
    bucket.before = stopped
    with pytest.raises(KeyboardInterrupt):
        other.shipper.pull(AGENT)
    bucket.before = nothing
    assert not list(other.log(AGENT))
    other.shipper.pull(AGENT)
    checked(bucket, other)
    assert len(asides.asides(other, AGENT)) == 1
    assert problems(tmp_path / "b") == []
    other.close()


@pytest.mark.parametrize("where", ["rebase", "cut"])
def test_a_prune_that_was_stopped_goes_on(
    tmp_path: Path, store: ShippingBackend, bucket: MemoryBucket, where: str
) -> None:
    """Stopped before the head changed, or before the store did, the log is whole, and the same prune finishes."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    base = store.counters(AGENT).lsn
    setattr(store, where, stop)
    with pytest.raises(KeyboardInterrupt):
        prune(store, AGENT, base)
    delattr(store, where)
    assert next(store.log(AGENT)).lsn == 1
    assert head_in(bucket).base == (base if where == "cut" else 0)
    other = machine(tmp_path / "b", bucket=bucket, limits=TINY)
    other.shipper.pull(AGENT)
    assert other.counters(AGENT).hash == head_in(bucket).hash
    other.close()
    resumed(store).release()  # goes on with more than the bucket has
    prune(store, AGENT, base)
    checked(bucket, store)
    assert problems(tmp_path / "a") == []


def test_an_agent_that_lives_elsewhere_is_not_pruned_from_here(
    tmp_path: Path, store: ShippingBackend, bucket: MemoryBucket
) -> None:
    """While another machine holds the lease nothing is appended here, and the refusal names the holder."""
    other = machine(tmp_path / "b", bucket=bucket, limits=TINY)
    holder = resumed(other)
    store.shipper.pull(AGENT)
    last = store.counters(AGENT).lsn
    with pytest.raises(LeaseHeld):
        prune(store, AGENT, last)
    assert store.counters(AGENT).lsn == last
    holder.release()
    prune(store, AGENT, last)
    checked(bucket, store)
    other.close()


def test_a_live_agent_is_pruned_by_another_process_of_its_machine(
    store: ShippingBackend, bucket: MemoryBucket, tmp_path: Path
) -> None:
    """Beside its holder, under its epoch: the holder writes on, and the bucket has all of it."""
    one = resumed(store)
    epoch = head_in(bucket).epoch
    other = machine(tmp_path / "a", bucket=bucket, limits=TINY)
    prune(other, AGENT, other.counters(AGENT).lsn)
    other.close()
    assert head_in(bucket).epoch == epoch
    assert one.record_turn("user", "still here").seq == 101
    one.begin_action("charge", "external")
    one.release()
    checked(bucket, store)


def test_a_pruned_log_is_attached_to_a_bucket(tmp_path: Path) -> None:
    """A log that was pruned before its store had a bucket begins there where it begins here."""
    bucket = MemoryBucket()
    plain = SqliteBackend(tmp_path / "a")
    one = resumed(plain)
    done = one.begin_action("deploy", "external", step="deploy-v2")
    one.end_action(done.seq, "done")
    for _ in range(20):
        one.record_turn("user", "x" * 300)
    one.release()
    prune(plain, AGENT, 10)
    plain.close()
    attach(tmp_path / "a")
    store = machine(tmp_path / "a", bucket=bucket, limits=TINY)
    resumed(store).release()
    assert head_in(bucket).base == 10
    checked(bucket, store)
    other = machine(tmp_path / "b", bucket=bucket, limits=TINY)
    assert resumed(other).begin_action("deploy", "external", step="deploy-v2").status == "done"
    other.close()
    store.close()


def test_a_store_that_ships_nothing_is_not_pruned(tmp_path: Path, store: ShippingBackend, bucket: MemoryBucket) -> None:
    """In the mode off nothing is carried, since the bucket could not get it before the old records go."""
    last = store.counters(AGENT).lsn
    silent = machine(tmp_path / "a", bucket=bucket, limits=TINY, ship="off")
    with pytest.raises(InvalidInput, match="off ships nothing"):
        prune(silent, AGENT, last)
    assert silent.counters(AGENT).lsn == last
    silent.close()
    assert head_in(bucket).base == 0


def test_an_intent_that_was_written_again_proves_nothing(store: ShippingBackend, bucket: MemoryBucket) -> None:
    """Of a carried intent that was set aside nobody says that it never ran: the first record of it may have."""
    head = head_in(bucket)
    intent = {"status": "started", "ship": "barrier"}

    def proven(body: dict[str, Any]) -> bool:
        return never_executed(body, head, lsn=head.last + 1, epoch=head.epoch - 1, lineage=head.lineage, on_chain=True)

    assert proven(intent)
    assert not proven({**intent, "carried": {"lsn": 1}})
