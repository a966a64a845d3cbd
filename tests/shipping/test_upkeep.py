"""Merging, index pages and collection: fewer objects that say the same, and garbage that nobody can need."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store.errors import LeaseLost, NotFound
from store.remote_errors import BadHead
from store.shipping.backend import ShippingBackend
from store.shipping.packing import Limits
from store.shipping.references import Segment
from store.shipping.upkeep import collect, merge_plan, merged_into, referenced
from tests.shipping.machines import AGENT, blank_head, head_in, machine, names_in, resumed
from tests.shipping.memory import MemoryBucket, nothing

TINY = Limits(inline=2_000, spill=500, segment=8_000, refs=4)
DAY = 24 * 3600.0


def segs(*sizes: int) -> list[Segment]:
    """References of these sizes, a line each."""
    return [Segment(f"seg/1-{n}-{n}-x", 1, n, n, bytes([n % 256]), "", size) for n, size in enumerate(sizes, 1)]


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def store(tmp_path: Path, bucket: MemoryBucket) -> Iterator[ShippingBackend]:
    backend = machine(tmp_path / "a", bucket=bucket, limits=TINY)
    yield backend
    backend.close()


def write(backend: ShippingBackend, turns: int, size: int = 300, *, tidy: bool = True) -> None:
    """Turns of an agent, shipped and tidied one by one, and the lease given back."""
    one = resumed(backend)
    fence = one._keeper.fence
    for number in range(turns):
        one.record_turn("assistant", f"{number} " + "x" * size)
        backend.shipper.push(fence)
        if tidy:
            backend.shipper.maintain(fence)
    one.release()


# -- the plan -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "plan"),
    [
        ((), None),
        ((100,), None),
        ((100, 100, 100), None),  # not four times the largest
        ((100, 100, 100, 100), (0, 3)),
        ((4000, 100, 100, 100, 100), (1, 4)),  # the large one would be written again for nothing
        ((4000, 4000), None),  # more than a segment may have
        ((400, 400, 400, 100, 100, 100, 100), (0, 6)),  # all at once, where it is worth it
        ((2000, 2000, 2000, 2000), (0, 3)),
        ((2000, 2000, 2000, 2001), None),
    ],
)
def test_a_merge_multiplies_the_size_of_its_largest_part(sizes: tuple[int, ...], plan: tuple[int, int] | None) -> None:
    """Segments are merged where the result is four times as large as any of them, and no larger than allowed."""
    assert merge_plan(segs(*sizes), TINY) == plan


def test_a_byte_is_merged_a_logarithmic_number_of_times() -> None:
    """Over a long life of random spills each byte is rewritten log4 of the sizes' ratio at most, and few stay small."""
    limits = Limits(segment=8 * 1024 * 1024)
    chance = random.Random(7)
    have: list[int] = []
    written = merged = 0
    for _ in range(1_500):
        have.append(chance.randint(1_000, 64_000))
        written += have[-1]
        plan = merge_plan(segs(*have[-64:]), limits)
        if plan:
            offset = max(0, len(have) - 64)
            first, last = plan[0] + offset, plan[1] + offset
            size = sum(have[first : last + 1])
            assert size <= limits.segment
            merged += size
            have[first : last + 1] = [size]
    assert merged / written <= math.log(limits.segment / 1_000, 4)
    assert merged / written < 3  # in practice
    assert len(have) < 64
    assert sum(have) == written


# -- over a real log -------------------------------------------------------------------------


def test_a_log_stays_readable_while_its_objects_are_merged_and_paged(
    tmp_path: Path, store: ShippingBackend, bucket: MemoryBucket
) -> None:
    """A directory that starts from nothing reads every line of a log whose segments were merged and moved to pages."""
    write(store, 100)
    now = head_in(bucket)
    assert len(now.segs) <= TINY.refs * 2
    assert now.index is not None
    assert now.index.depth > 1
    assert any(call == "create" and "/idx/" in key for call, key in bucket.calls)
    merged = [each for _, each in referenced(bucket, now) if isinstance(each, Segment) and each.n > 4_000]
    assert merged, "nothing was merged"
    other = machine(tmp_path / "b", bucket=bucket, limits=TINY)
    other.shipper.pull(AGENT)
    assert [each.line for each in other.log(AGENT)] == [each.line for each in store.log(AGENT)]
    other.close()


def test_upkeep_sends_nothing_where_there_is_nothing_to_do(store: ShippingBackend, bucket: MemoryBucket) -> None:
    """Maintaining a log whose head is in order makes no request at all."""
    one = resumed(store)
    fence = one._keeper.fence
    one.record_turn("user", "hello")
    store.shipper.push(fence)
    bucket.calls.clear()
    assert not store.shipper.maintain(fence)
    assert not bucket.calls
    one.record_turn("user", "x" * 1_500)
    one.release()
    store.shipper.maintain(fence)  # there is a tail to spill, but the lease was given back
    assert head_in(bucket).state == "released"


def test_a_merge_changes_nothing_if_its_segments_were_replaced_meanwhile() -> None:
    """What was planned on one version of a head leaves another one alone."""
    old = tuple(segs(100, 100, 100, 100))
    new = Segment("seg/1-1-4-y", 1, 1, 4, old[-1].hash, "", 400)
    before = replace(blank_head(), segs=old)
    assert merged_into(before, old, new).segs == (new,)
    assert merged_into(replace(before, segs=(old[0], *segs(1, 1, 1, 1)[1:])), old, new).segs[0] == old[0]
    assert merged_into(replace(before, segs=()), old, new).segs == ()


def test_a_loser_of_the_lease_merges_nothing(tmp_path: Path, store: ShippingBackend, bucket: MemoryBucket) -> None:
    """A merge that was uploaded under a lost lease never gets into the head, and is collected later."""
    one = resumed(store)
    fence = one._keeper.fence
    for number in range(8):
        one.record_turn("assistant", f"{number} " + "x" * 600)
        store.shipper.push(fence)
    other = machine(tmp_path / "b", bucket=bucket, limits=TINY)
    bucket.now += 120  # the ttl is over by the bucket's clock
    two = resumed(other)
    before = head_in(bucket)
    uploaded = len(names_in(bucket, "seg"))
    with pytest.raises(LeaseLost):
        store.shipper.maintain(fence)
    assert len(names_in(bucket, "seg")) > uploaded
    after = head_in(bucket)
    assert (after.epoch, after.segs) == (before.epoch, before.segs)
    two.release()
    other.close()


# -- collection -------------------------------------------------------------------------------


def test_collection_deletes_only_what_no_head_can_need(
    tmp_path: Path, store: ShippingBackend, bucket: MemoryBucket
) -> None:
    """Unreferenced objects of past epochs go after the grace; the log is whole, and evidence is never touched."""
    one = resumed(store)
    one.store_output("b" * 50_000, ref="kept")
    one.release()
    write(store, 60)
    orphan = f"agents/{AGENT}/blob/1-{'0' * 64}"
    bucket.objects[orphan] = (b"orphan", '"o"', bucket.now)
    write(store, 1)  # a later epoch
    for key in ("aside/1-x", "inbox/y.json", "seg/odd", "idx/0-x"):
        bucket.objects[f"agents/{AGENT}/{key}"] = (b"", '"o"', 0.0)
    needed = {key for key, _ in referenced(bucket, head_in(bucket))}
    there = names_in(bucket, "seg") + names_in(bucket, "idx")
    assert set(there) - needed, "nothing was left over"

    young = collect(store.shipper, AGENT)
    assert (young.objects, young.unknown) == (0, 2), "all of it is younger than the grace"
    bucket.now += 8 * DAY
    planned = collect(store.shipper, AGENT, dry_run=True)
    assert not [call for call in bucket.calls if call[0] == "delete"]
    done = collect(store.shipper, AGENT)
    assert done == planned
    assert done.objects > 1
    assert orphan not in bucket.objects
    left = set(names_in(bucket, "seg") + names_in(bucket, "idx"))
    assert needed <= left
    assert {f"agents/{AGENT}/{key}" for key in ("aside/1-x", "inbox/y.json", "seg/odd", "idx/0-x")} <= set(
        bucket.objects
    )
    assert collect(store.shipper, AGENT).objects == 0
    other = machine(tmp_path / "b", bucket=bucket, limits=TINY)
    other.shipper.pull(AGENT)
    assert other.counters(AGENT) == store.counters(AGENT)
    assert resumed(other).fetch_output("kept").content == "b" * 50_000
    other.close()


def test_collection_spares_the_present_epoch(store: ShippingBackend, bucket: MemoryBucket) -> None:
    """What a writer of the present epoch uploaded and its head does not name yet stays, however old it is."""
    one = resumed(store)
    one.record_turn("user", "hello")
    store.shipper.push(one._keeper.fence)
    epoch = head_in(bucket).epoch
    planned = [f"agents/{AGENT}/seg/{epoch}-1-2-abc.jsonl.gz", f"agents/{AGENT}/blob/{epoch}-{'0' * 64}"]
    for key in planned:
        bucket.objects[key] = (b"", '"o"', 0.0)
    bucket.now += 365 * DAY
    assert collect(store.shipper, AGENT).objects == 0
    assert set(planned) <= set(bucket.objects)
    one.release()


def test_collection_reads_the_bucket_where_the_store_is_behind(
    tmp_path: Path, store: ShippingBackend, bucket: MemoryBucket
) -> None:
    """A store without the log judges blobs by the log in the bucket, so none that is needed goes."""
    one = resumed(store)
    one.store_output("b" * 50_000, ref="kept")
    one.release()
    write(store, 3)
    bucket.now += 30 * DAY
    empty = machine(tmp_path / "b", bucket=bucket, limits=TINY)
    assert collect(empty.shipper, AGENT).objects == 0
    assert names_in(bucket, "blob")
    empty.close()


def test_collection_without_a_head_deletes_nothing(store: ShippingBackend, bucket: MemoryBucket) -> None:
    """An agent whose head is not there has no garbage: it may be the head that is missing."""
    bucket.objects[f"agents/{AGENT}/seg/1-1-1-abc"] = (b"", '"o"', 0.0)
    with pytest.raises(NotFound):
        collect(store.shipper, AGENT)
    assert names_in(bucket, "seg")


def killed_at_swap(verb: str, key: str) -> str:
    if verb == "swap":
        raise KeyboardInterrupt
    return ""


def test_a_segment_without_a_head_is_no_harm(tmp_path: Path, store: ShippingBackend, bucket: MemoryBucket) -> None:
    """A crash between a segment and its head leaves garbage that the same records do without; it is collected."""
    one = resumed(store)
    fence = one._keeper.fence
    bucket.before = killed_at_swap
    for number in range(10):
        one.record_turn("assistant", f"{number} " + "x" * 300)
    with pytest.raises(KeyboardInterrupt):
        store.shipper.push(fence)
    assert names_in(bucket, "seg"), "the segment was not there yet"
    left = names_in(bucket, "seg")[0]
    bucket.before = nothing
    one.record_turn("assistant", "more")
    one.release()
    write(store, 1)
    assert left not in {key for key, _ in referenced(bucket, head_in(bucket))}
    bucket.now += 8 * DAY
    collect(store.shipper, AGENT)
    assert left not in names_in(bucket, "seg")
    other = machine(tmp_path / "b", bucket=bucket, limits=TINY)
    other.shipper.pull(AGENT)
    assert other.counters(AGENT) == store.counters(AGENT)
    other.close()


@pytest.mark.parametrize("how", ["pull", "acquire"])
def test_a_reader_whose_objects_are_collected_reads_the_head_again(
    tmp_path: Path, bucket: MemoryBucket, how: str
) -> None:
    """A segment that was merged away and collected between a reader's look and its read costs one more look."""
    store = machine(tmp_path / "a", bucket=bucket, limits=replace(TINY, refs=64, segment=64_000))
    write(store, 60, tidy=False)
    other = machine(tmp_path / "b", bucket=bucket, limits=TINY, patience=10.0)
    struck: list[str] = []

    def strike(verb: str, key: str) -> str:
        if verb == "get" and "/seg/" in key and not struck:
            struck.append(key)
            one = resumed(store)
            while store.shipper.maintain(one._keeper.fence):
                pass
            one.release()
            bucket.now += 1
            collect(store.shipper, AGENT, grace=0)
            assert key not in bucket.objects, "the fault did not happen"
        return ""

    bucket.before = strike
    if how == "pull":
        other.shipper.pull(AGENT)
    else:
        resumed(other).release()
        store.shipper.pull(AGENT)
    assert struck
    assert other.counters(AGENT) == store.counters(AGENT)
    other.close()
    store.close()


def test_an_object_that_is_gone_for_good_is_named(tmp_path: Path, store: ShippingBackend, bucket: MemoryBucket) -> None:
    """Where the head does not change and its segment is gone, the reader says which one, and stops."""
    write(store, 20)
    (first, *_) = names_in(bucket, "seg")
    del bucket.objects[f"agents/{AGENT}/{first}"]
    other = machine(tmp_path / "b", bucket=bucket, limits=TINY)
    with pytest.raises(BadHead, match=first):
        other.shipper.pull(AGENT)
    other.close()
