"""``verify --remote``: what it reads, what it finds, and that it names it."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store.errors import NotFound
from store.pruning import prune
from store.shipping.backend import ShippingBackend
from store.shipping.packing import Limits
from store.shipping.place import agents_in
from store.shipping.references import Segment
from store.shipping.remote_verify import RemoteChecked, verify_remote
from store.shipping.segment import make_segment
from store.shipping.upkeep import collect
from store.verify import Problem
from tests.shipping.machines import AGENT, blank_head, head_in, machine, names_in, resumed
from tests.shipping.memory import MemoryBucket
from tests.shipping.servers import Server

TINY = Limits(inline=2_000, spill=500, segment=8_000, refs=4)
PREFIX = f"agents/{AGENT}/"


def fill(backend: ShippingBackend, turns: int = 60) -> None:
    """A log with blobs, pages, merged segments, a tail and two epochs."""
    one = resumed(backend)
    fence = one._keeper.fence
    one.store_output("o" * 50_000, ref="report")
    for number in range(turns):
        one.record_turn("assistant", f"turn {number} " + "x" * 300)
        backend.shipper.push(fence)
        backend.shipper.maintain(fence)
    one.release()
    two = resumed(backend)
    two.record_turn("user", "in the tail")
    two.release()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MemoryBucket]:
    directory, bucket = tmp_path_factory.mktemp("filled") / "a", MemoryBucket()
    backend = machine(directory, bucket=bucket, limits=TINY)
    fill(backend)
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


def found(store: ShippingBackend, *agents: str) -> tuple[list[str], RemoteChecked]:
    """What is wrong with one agent, and the end of its check."""
    *problems, end = verify_remote(store, store.shipper.bucket, agents)
    assert isinstance(end, RemoteChecked)
    assert end.problems == len(problems)
    return [f"{each.lsn}: {each.reason}" for each in problems if isinstance(each, Problem)], end


def test_a_sound_log_is_read_whole(store: ShippingBackend, bucket: MemoryBucket) -> None:
    """Every record and object is counted, the head is said, and this store's log is the same up to its end."""
    bucket.calls.clear()
    problems, end = found(store)
    head = head_in(bucket)
    assert problems == []
    assert (end.lsn, end.hash, end.records) == (head.last, head.hash.hex(), head.last)
    assert end.compared == store.counters(AGENT).lsn
    assert {call for call, _ in bucket.calls} == {"get", "list"}
    left = len(names_in(bucket, "seg") + names_in(bucket, "idx") + names_in(bucket, "blob")) + 1 - end.objects
    assert end.unreferenced == left > 0


def test_a_store_without_the_log_compares_nothing(tmp_path: Path, bucket: MemoryBucket) -> None:
    """An empty directory can check a bucket too."""
    empty = machine(tmp_path / "b", bucket=bucket)
    problems, end = found(empty)
    assert (problems, end.compared) == ([], 0)
    empty.close()


def test_an_agent_of_which_the_bucket_has_nothing_any_more_is_a_problem(
    store: ShippingBackend, bucket: MemoryBucket
) -> None:
    """A bucket that was emptied is not sound: what this store has seen there is checked though nothing lists it."""
    bucket.objects.clear()
    problems, end = found(store)
    assert problems == ["0: there is no head, without which nothing here is a log"]
    assert end.agent == AGENT


def test_a_pruned_and_collected_log_is_sound(store: ShippingBackend, bucket: MemoryBucket) -> None:
    """What begins above a prune is checked from there, and after a collection nothing is left over."""
    prune(store, AGENT, 40)
    resumed(store).release()
    bucket.now += 30 * 24 * 3600
    collect(store.shipper, AGENT)
    problems, end = found(store)
    assert (problems, end.base) == ([], 40)
    assert end.records == end.lsn - 40


def damage(bucket: MemoryBucket, key: str) -> None:
    body, etag, at = bucket.objects[key]
    bucket.objects[key] = (body[: len(body) // 2] + b"\0" + body[len(body) // 2 + 1 :], etag, at)


def in_kind(kind: str, work: Callable[[MemoryBucket, str], object]) -> Callable[[MemoryBucket], object]:
    """Do something to the object of a kind that the head needs and that has the lowest lsn."""

    def run(bucket: MemoryBucket) -> object:
        from store.shipping.upkeep import referenced

        needed = [
            key for key, each in referenced(bucket, head_in(bucket)) if isinstance(each, Segment) == (kind == "seg")
        ]
        key = needed[-1] if kind != "blob" else names_in(bucket, "blob")[0]
        return work(bucket, PREFIX + key)

    return run


def remove(bucket: MemoryBucket, key: str) -> None:
    del bucket.objects[key]


def rewrite(bucket: MemoryBucket, key: str) -> None:
    """Another log's lines under a name and a gzip that are right."""
    plain = gzip.decompress(bucket.objects[key][0]).replace(b"turn 0", b"turn 9")
    bucket.objects[key] = (gzip.compress(plain, mtime=0), '"x"', bucket.now)


@pytest.mark.parametrize(
    ("tamper", "reason"),
    [
        (in_kind("seg", remove), r"0?.*seg/.* is missing"),
        (in_kind("seg", damage), "is damaged|another content"),
        (in_kind("seg", rewrite), "has another content than it had"),
        (in_kind("idx", remove), "idx/.* is missing"),
        (in_kind("idx", damage), "is damaged|another content"),
        (in_kind("blob", remove), "its blob .* is missing"),
        (in_kind("blob", damage), "its blob .* has another content"),
        (lambda bucket: remove(bucket, PREFIX + "head.json"), "there is no head"),
        (lambda bucket: damage(bucket, PREFIX + "head.json"), "cannot be read|hash"),
    ],
)
def test_damage_is_named(
    store: ShippingBackend, bucket: MemoryBucket, tamper: Callable[[MemoryBucket], object], reason: str
) -> None:
    """An object that is missing or changed is named, and the rest is read all the same."""
    import re

    tamper(bucket)
    problems, end = found(store, AGENT)
    assert any(re.search(reason, each) for each in problems), problems
    if "head" not in reason and "read" not in reason:
        assert end.records > 0


def test_lines_that_chain_and_make_no_log_are_found(store: ShippingBackend, bucket: MemoryBucket) -> None:
    """A segment made anew with right hashes, whose records contradict the log's rules, is found record by record."""
    from store.canonical import next_hash

    lines = [each.line for each in store.log(AGENT)][:3]
    bad = [*lines[:2], lines[2].replace(b'"lsn":3', b'"lsn":7')]
    one = blank_head()
    link = one.hash
    for line in bad:
        link = next_hash(link, line)
    segment, body = make_segment(bad, epoch=1, first=1, hash=link)
    one = replace(one, segs=(segment,), last=3, hash=link, tail_first=4)
    other = MemoryBucket()
    other.create(f"{PREFIX}{segment.k}", body)
    other.swap(f"{PREFIX}head.json", one.encode(), None)
    problems = [each.reason for each in verify_remote(store, other) if isinstance(each, Problem)]
    assert any("are missing before it" in each for each in problems)
    assert any("forked" in each for each in problems), "this store knows another lineage"


def test_a_bucket_that_was_put_back_is_found_by_a_store_that_saw_more(
    store: ShippingBackend, bucket: MemoryBucket
) -> None:
    """An older head is sound by itself; a store that has seen a later one says that it regressed."""
    old = bucket.objects[PREFIX + "head.json"]
    one = resumed(store)
    one.record_turn("user", "later")
    one.release()
    bucket.objects[PREFIX + "head.json"] = old
    problems, _ = found(store)
    assert len(problems) == 1
    assert "remote regressed" in problems[0]


def test_another_log_in_this_store_is_found(store: ShippingBackend, bucket: MemoryBucket, tmp_path: Path) -> None:
    """Where this store's records differ from the bucket's below what it shipped, the first place is said."""
    from tests.keeping import tampering

    with tampering(tmp_path / "a") as connection:
        connection.execute("UPDATE records SET hash = zeroblob(32)")
    problems, end = found(store)
    assert sum("this store's log and the bucket's differ" in each for each in problems) == 1
    assert end.compared == 0


def test_every_agent_in_the_bucket_is_checked(store: ShippingBackend, bucket: MemoryBucket) -> None:
    """Without a name all are, also those that this store has never heard of, whose ids sort around each other."""
    for agent in ("bot-2", "bot.x", "bot0", "a"):
        resumed(store, agent).release()
    names = sorted(["bot", "bot-2", "bot.x", "bot0", "a"], key=lambda each: f"{each}/")
    assert list(agents_in(bucket)) == names
    ends = [each for each in verify_remote(store, bucket) if isinstance(each, RemoteChecked)]
    assert [each.agent for each in ends] == names


def test_an_agent_that_never_was_there_is_not_found(store: ShippingBackend) -> None:
    """A name that neither the bucket nor the store knows of is a mistake, not damage."""
    with pytest.raises(NotFound):
        found(store, "nobody")


def test_on_a_real_server(server: Server, tmp_path: Path) -> None:
    """Merging, pages, a prune, a collection and the check work over HTTP, and an empty machine goes on from it."""
    place = server.location()
    a = machine(tmp_path / "a", place, limits=TINY)
    fill(a, turns=25)
    prune(a, AGENT, a.counters(AGENT).lsn - 5)
    resumed(a).release()
    problems, before = found(a, AGENT)
    assert problems == []
    assert before.unreferenced > 0
    planned = collect(a.shipper, AGENT, grace=-10, dry_run=True)  # the server's times are whole seconds
    done = collect(a.shipper, AGENT, grace=-10)
    assert (planned.objects, planned.bytes) == (done.objects, done.bytes)
    assert done.objects > 0
    problems, after = found(a, AGENT)
    assert problems == []
    assert after.unreferenced == before.unreferenced - done.objects
    b = machine(tmp_path / "b", place, limits=TINY)
    assert resumed(b).fetch_output("report").content == "o" * 50_000
    assert list(verify_remote(b, b.shipper.bucket))[-1].problems == 0  # type: ignore[union-attr]
    for each in (a, b):
        each.close()
