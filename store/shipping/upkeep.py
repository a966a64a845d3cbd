"""Keeping a log's objects few and its bucket clean: merging, index pages, collection.

Merging and index pages say the same with other objects. What they need is
uploaded first, under names of the writer's own epoch, and one conditional
write then makes the head refer to it; that write changes nothing if the
references it was made for are not there any more. What nothing refers to is
left for the collection, the only code that deletes anything in a bucket.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from store.audit import blobs_named, body_of
from store.errors import Corrupt, NotFound
from store.remote_errors import BadHead, RemoteRefused
from store.shipping.bucket import Bucket, Listed
from store.shipping.fetch import Replaced, lines_after, prefix
from store.shipping.head import Head, moved_into, reached
from store.shipping.local import Local
from store.shipping.packing import Limits, Packer
from store.shipping.references import Page, Segment
from store.shipping.segment import make_page, make_segment, read_page
from store.value import value

if TYPE_CHECKING:
    from store.shipping.shipper import Shipper

Reshape = Callable[[Head], Head]

GRACE = 7 * 24 * 3600.0  # seconds; far longer than any read or write of one version takes
_GROWTH = 4  # a merge makes a segment at least so many times as large as any that goes into it
_BLOBS_AT_ONCE = 20_000  # names in memory; for each so many the log is read once
_NAME = re.compile(r"(?:seg|idx|blob)/([1-9]\d{0,17})-", re.ASCII)


# -- merging and index pages -------------------------------------------------------------------


def merge_plan(segs: Sequence[Segment], limits: Limits) -> tuple[int, int] | None:
    """The first and last index of the segments to be merged next, or None.

    A run is merged only if the result is several times as large as its largest
    part. So a byte is written again a number of times that grows with the
    logarithm of the largest size, and no merge reads more than one such size.
    Of all such runs it is the one that saves most references, the smaller of equals.
    """
    best: tuple[int, int, int, int] | None = None
    for first in range(len(segs)):
        size = most = 0
        for last in range(first, len(segs)):
            size, most = size + segs[last].n, max(most, segs[last].n)
            if size > limits.segment:
                break
            if size >= _GROWTH * most and last > first:
                best = max(best or (0, 0, 0, 0), (last - first, -size, first, last))
    return best[2:] if best else None


def merged_into(head: Head, old: tuple[Segment, ...], new: Segment) -> Head:
    """The head with one segment in the place of several; as it is if they are not there any more."""
    start = head.segs.index(old[0]) if old[0] in head.segs else 0
    if head.segs[start : start + len(old)] != old:
        return head
    return replace(head, segs=(*head.segs[:start], new, *head.segs[start + len(old) :]))


def paged_into(head: Head, old: tuple[Segment, ...], older: Page | None, page: Page) -> Head:
    """The head with its oldest references on a page; as it is if they are not there any more."""
    if head.segs[: len(old)] != old or head.index != older:
        return head
    return replace(head, segs=head.segs[len(old) :], index=page)


class Upkeep:
    """What keeps one agent's head small and its objects few."""

    def __init__(self, local: Local, bucket: Bucket, limits: Limits) -> None:
        self._local, self._bucket, self._limits = local, bucket, limits
        self._prefix = prefix(local.agent)

    def plan(self, head: Head) -> Reshape | None:
        """What there is to do with this head, everything that it needs uploaded; None if nothing.

        One segment of the tail, one merge, one index page at most: bounded work.
        """
        changes: list[Reshape] = []
        segment = Packer(self._local, self._bucket, self._limits).tail_segment(head)
        if segment is not None:
            changes.append(partial(moved_into, segment=segment))
            head = changes[-1](head)
        merging = self._merging(head)
        if merging is not None:
            changes.append(merging)
            head = merging(head)
        # What is on a page is not merged any more, so merging goes first, unless the head grows too large.
        if len(head.segs) > self._limits.refs * (1 if merging is None else 2):
            changes.append(self._paging(head))
        if not changes:
            return None
        return lambda seen: _all_of(changes, seen)

    def _merging(self, head: Head) -> Reshape | None:
        run = merge_plan(head.segs, self._limits)
        if run is None:
            return None
        old = head.segs[run[0] : run[1] + 1]
        start = (old[0].f - 1, _before(head, run[0]))
        lines = self._local.lines(head, start, old[-1].l)
        if reached(head, lines, *start) != (old[-1].l, old[-1].hash):
            return None  # this store has not all of it, or not as it was: another one will merge it
        new, body = make_segment(lines, epoch=head.epoch, first=old[0].f, hash=old[-1].hash)
        # One of that name that is there already is as good: nothing of the head's epoch is ever collected.
        self._bucket.create(self._prefix + new.k, body)
        return partial(merged_into, old=old, new=new)

    def _paging(self, head: Head) -> Reshape:
        old = head.segs[: len(head.segs) - self._limits.refs // 2]  # a page for many, not one for each
        page, body = make_page(old, head.index, epoch=head.epoch)
        self._bucket.create(self._prefix + page.k, body)
        return partial(paged_into, old=old, older=head.index, page=page)

    # -- after a prune (rule 19) ---------------------------------------------------------------

    def rebasing(self, head: Head, base: int) -> Reshape:
        """What makes the head's log begin above lsn ``base``, everything that it needs uploaded.

        Objects that are then unreferenced stay until they are collected.
        """
        base_hash = self._local.hash_at(base)
        assert base_hash is not None
        segments: list[Segment] = []
        for _, each in referenced(self._bucket, head):
            if isinstance(each, Page):
                continue
            if each.l <= base:
                break
            segments.append(each if each.f > base else self._rest_of(head, each, base, base_hash))
        page: Page | None = None
        segments.reverse()
        while len(segments) > self._limits.refs:
            some, segments = segments[: self._limits.refs], segments[self._limits.refs :]
            page, body = make_page(some, page, epoch=head.epoch)
            self._bucket.create(self._prefix + page.k, body)
        return partial(rebased, old=head, base=base, base_hash=base_hash, segments=tuple(segments), page=page)

    def _rest_of(self, head: Head, segment: Segment, base: int, base_hash: bytes) -> Segment:
        """The part of a segment above ``base``, as one of its own."""
        lines = self._local.lines(head, (base, base_hash), segment.l)
        if not lines:
            raise Corrupt(reason=f"agent {head.agent}: a record from lsn {base + 1} to {segment.l} is damaged here")
        new, body = make_segment(lines, epoch=head.epoch, first=base + 1, hash=segment.hash)
        self._bucket.create(self._prefix + new.k, body)
        return new


def rebased(
    head: Head, *, old: Head, base: int, base_hash: bytes, segments: tuple[Segment, ...], page: Page | None
) -> Head:
    """The head whose log begins above ``base``; as it is if its older objects are not those of ``old`` any more.

    Args:
        segments, page: stand for the objects of ``old`` from there on.
    """
    same = head.index == old.index and head.segs[: len(old.segs)] == old.segs
    if not same or head.base >= base or (base >= old.tail_first and head.tail_first != old.tail_first):
        return head
    first = max(head.tail_first, base + 1)
    return replace(
        head,
        base=base,
        base_hash=base_hash,
        segs=(*segments, *head.segs[len(old.segs) :]),
        index=page,
        tail=head.tail[first - head.tail_first :],
        tail_first=first,
    )


def _all_of(changes: Sequence[Reshape], head: Head) -> Head:
    for change in changes:
        head = change(head)
    return head


def _before(head: Head, index: int) -> bytes:
    """The chain's hash before a segment of the head."""
    if index:
        return head.segs[index - 1].hash
    return head.index.hash if head.index else head.base_hash


# -- collection (rule 9) -------------------------------------------------------------------------


@value
class Collected:
    """What a collection did to one agent's objects, or would do.

    Attributes:
        objects, bytes: that were deleted.
        referenced: the objects that the head or its log needs.
        recent: unreferenced ones of the present epoch, or younger than the grace: a writer may be at work on them.
        unknown: under names that this version does not give.
    """

    agent: str
    objects: int = 0
    bytes: int = 0
    referenced: int = 0
    recent: int = 0
    unknown: int = 0


def collect(
    shipper: Shipper,
    agent: str,
    *,
    grace: float = GRACE,
    now: float | None = None,
    dry_run: bool = False,
) -> Collected:
    """Delete an agent's objects that nothing refers to, and that nothing can come to refer to.

    A later head can only refer to what the present one does, or to objects
    named by its own epoch or a later one. So an older unreferenced one is
    garbage whoever writes meanwhile; the grace is for those who read by an
    earlier head. A log that is uploaded anew (a repair, an attaching) may name
    older blobs; it writes them again first, and what is young is spared.
    Evidence (``aside/``) and ``inbox/`` are never looked at.

    Args:
        grace: seconds.
        now: the bucket's time; what its answer says unless given.

    Raises:
        NotFound: the bucket has no head of the agent.
        Forked, BadHead: the head contradicts what was known, or is damaged: nothing was deleted.
        RemoteUnreachable, RemoteRefused: what was deleted before stays so.
    """
    seen = shipper.look(agent)
    if seen.head is None or seen.answer is None:
        raise NotFound(what="agent", name=f"{agent} in {shipper.bucket.name}")
    moment = seen.answer.date if now is None else now
    if moment is None:
        raise RemoteRefused(remote=shipper.bucket.name, reason="its answers have no Date to tell an object's age by")
    collection = _Collection(shipper, seen.head, moment - grace, dry_run)
    for kind in ("seg", "idx"):
        collection.objects(kind)
    collection.blobs()
    return Collected(agent, **collection.counts)


class _Collection:
    """One collection under way, judged by one head."""

    def __init__(self, shipper: Shipper, head: Head, before: float, dry_run: bool) -> None:
        self._bucket, self._head, self._before, self._dry_run = shipper.bucket, head, before, dry_run
        self._local = Local(shipper.store, head.agent)
        self._prefix = prefix(head.agent)
        self.counts = dict.fromkeys(("objects", "bytes", "referenced", "recent", "unknown"), 0)

    def objects(self, kind: str) -> None:
        """Collect segments or pages."""
        named = {key for key, _ in referenced(self._bucket, self._head)}
        for each in self._candidates(kind):
            if each.key.removeprefix(self._prefix) in named:
                self.counts["referenced"] += 1
            else:
                self._delete(each)

    def blobs(self) -> None:
        """Collect blobs, in bounded memory."""
        candidates = self._candidates("blob")
        while batch := {each.key.rpartition("/")[2]: each for each in islice(candidates, _BLOBS_AT_ONCE)}:
            before = len(batch)
            for name in self._blobs_of_log():
                batch.pop(name, None)
            self.counts["referenced"] += before - len(batch)
            for each in batch.values():
                self._delete(each)

    def _candidates(self, kind: str) -> Iterator[Listed]:
        """The objects that are old enough, by name and by time."""
        for each in self._bucket.list(f"{self._prefix}{kind}/"):
            match = _NAME.match(each.key.removeprefix(self._prefix))
            if match is None:
                self.counts["unknown"] += 1
            elif int(match[1]) >= self._head.epoch or each.modified > self._before:
                self.counts["recent"] += 1
            else:
                yield each

    def _blobs_of_log(self) -> Iterator[str]:
        """The blobs that the present log names; read here if this store has it, else from the bucket."""
        head = self._head
        if self._local.hash_at(head.last) == head.hash and self._local.hash_at(head.base) == head.base_hash:
            lines: Iterator[bytes] = (each.line for each in self._local.records(head.base, head.last))
        else:
            lines = (
                line for chunk in lines_after(self._bucket, head, head.base, head.base_hash) for _, line, _ in chunk
            )
        try:
            for line in lines:
                yield from blobs_named(body_of(line)[1])
        except Replaced as gone:
            raise BadHead(agent=head.agent, reason=f"{gone.key} is missing, or was replaced just now") from gone

    def _delete(self, each: Listed) -> None:
        if not self._dry_run:
            now = next(self._bucket.list(each.key), None)
            if now != each:  # gone, or written again since it was listed: a log is being uploaded anew
                self.counts["recent"] += 1
                return
            self._bucket.delete(each.key)
        self.counts["objects"] += 1
        self.counts["bytes"] += each.size


def referenced(bucket: Bucket, head: Head) -> Iterator[tuple[str, Segment | Page]]:
    """The keys of the segments and index pages that a head needs, the newest first.

    Raises:
        BadHead: a page is missing or damaged.
    """
    yield from ((each.k, each) for each in reversed(head.segs))
    page = head.index
    while page is not None:
        found = bucket.get(prefix(head.agent) + page.k)
        if found is None:
            raise BadHead(agent=head.agent, reason=f"{page.k} is missing")
        yield page.k, page
        segments, page = read_page(head, page, found.body)
        yield from ((each.k, each) for each in reversed(segments))
