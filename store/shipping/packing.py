"""What goes into the bucket before a head can name it: segments, blobs, evidence."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from store import asides
from store.audit import blobs_named
from store.canonical import next_hash
from store.lease import LeaseRequest
from store.records import Record
from store.remote_errors import NotShipped, RemoteRefused, RemoteUnreachable
from store.shipping import protocol
from store.shipping.bucket import Bucket
from store.shipping.fetch import prefix
from store.shipping.head import Head, Origin, lineage_starts
from store.shipping.local import Local
from store.shipping.references import Segment
from store.shipping.segment import make_segment
from store.value import value

if TYPE_CHECKING:
    from store.backends.sqlite import SqliteBackend

_TRIES = 5  # of writing an object again that others may delete


@value
class Limits:
    """Sizes in bytes; shipping.md's rule 12.

    Attributes:
        inline: of the tail; more goes into a segment before the next version.
        spill: of the tail from which it is spilled in the background.
        segment: the most plain bytes of one.
        refs: the most references to segments in a head; older ones go to an index page.
    """

    inline: int = 64 * 1024
    spill: int = 32 * 1024
    segment: int = 8 * 1024 * 1024
    refs: int = 64


class Packer:
    """Makes the objects of one agent, and heads that name them."""

    def __init__(self, local: Local, bucket: Bucket, limits: Limits) -> None:
        self._local, self._bucket, self._limits = local, bucket, limits
        self._prefix = prefix(local.agent)

    def new_log(self, remote: str, request: LeaseRequest) -> Head:
        """What a first head goes on from: all of the log that this store has, if any.

        A log that was imported gets a new lineage that names the old one, since it may live on elsewhere.
        """
        store, agent = self._local.store, self._local.agent
        row = store.lease(agent)
        last, _ = self._local.last()
        origins = self.origins(last) if row is not None else ()
        lineage = row.lineage if row is not None and not row.imported else store.random.hex(32)
        if row is not None and row.imported:
            origins = (*origins, Origin(row.lineage, last))
        first = protocol.blank(remote, request, lineage, origins, store=store.store_id, epoch=row.epoch if row else 0)
        return self.carry(self.rooted(first), last)

    def rooted(self, head: Head) -> Head:
        """The head of an empty log that begins where this store's does."""
        store, agent = self._local.store, self._local.agent
        path = store.path(agent)
        root = next((each for each in store.branches(agent) if path and each.number == path[0][0]), None)
        if root is None or not root.start:
            return head
        base, link = root.start, root.start_hash
        return replace(head, last=base, hash=link, base=base, base_hash=link, tail_first=base + 1)

    def origins(self, last: int) -> tuple[Origin, ...]:
        """The lineages that this store's log went through before its present one."""
        branches = {each.number: each for each in self._local.store.branches(self._local.agent)}
        path = [number for number, _, _ in self._local.store.path(self._local.agent)]
        return tuple(
            Origin(branches[one].lineage, branches[other].start)
            for one, other in pairwise(path)
            if branches[one].lineage != branches[other].lineage
        )

    def carry(self, head: Head, last: int) -> Head:
        """The head with this store's records up to ``last``; all that it then names is in the bucket.

        Raises:
            NotShipped: one of them is damaged here, so that the log would go on from another hash there.
        """
        if last <= head.last:
            return head
        segments: list[Segment] = []
        waiting, size = list(head.tail), head.tail_bytes
        lsn, link = head.last, head.hash
        starts = lineage_starts(head)
        for record in self._with_blobs(head, last):
            if next_hash(starts.get(lsn, link), record.line) != record.hash:
                raise self._damaged(record)
            if size + len(record.line) > self._limits.segment and waiting:
                segments.append(self._segment(head, waiting, lsn, link))
                waiting, size = [], 0
            waiting.append(record.line)
            size, lsn, link = size + len(record.line) + 1, record.lsn, record.hash
        if segments or size > self._limits.inline:
            segments.append(self._segment(head, waiting, lsn, link))
            return protocol.extended(head, (), segments)
        return protocol.extended(head, waiting[len(head.tail) :])

    def _damaged(self, record: Record) -> NotShipped:
        return NotShipped(
            agent=record.agent,
            what=f"its log from lsn {record.lsn} on",
            remote=self._bucket.name,
            reason="that record is damaged here",
            hint=f"see: recall verify {record.agent}; to go on here without the bucket: recall remote detach --fork",
        )

    def _with_blobs(self, head: Head, last: int) -> Iterator[Record]:
        """The records above a head, each when the blobs that it names are in the bucket."""
        for record in self._local.records(head.last, last):
            for name in blobs_named(record.body):
                key, data = f"{self._prefix}blob/{name}", self._local.store.blob(record.agent, name)
                if not self._bucket.create(key, data) and int(name.partition("-")[0]) < head.epoch:
                    self._renew(key, data)
            yield record

    def _renew(self, key: str, data: bytes) -> None:
        """Write an object of an epoch that is over again: no present head may need it, and it is old.

        So whoever collects would delete it before our head needs it. Young, it is spared (``upkeep.collect``). One of
        the present epoch is spared anyway.
        """
        reason = ""
        for _ in range(_TRIES):
            found = self._bucket.get(key)
            swap = self._bucket.swap(key, data, found.etag if found else None)
            if swap.outcome == "done":
                return
            if swap.outcome == "refused":
                raise RemoteRefused(remote=self._bucket.name, reason=swap.reason)
            reason = swap.reason
        raise RemoteUnreachable(remote=self._bucket.name, reason=f"{key} cannot be written again: {reason}")

    def _segment(self, head: Head, lines: list[bytes], last: int, link: bytes) -> Segment:
        segment, body = make_segment(lines, epoch=max(head.epoch, 1), first=last - len(lines) + 1, hash=link)
        self._bucket.create(self._prefix + segment.k, body)
        return segment

    def tail_segment(self, head: Head) -> Segment | None:
        """A segment with the head's tail, uploaded, if the tail is long enough to be worth it."""
        if head.tail_bytes < self._limits.spill:
            return None
        return self._segment(head, list(head.tail), head.last, head.hash)

    def file_asides(self) -> None:
        """Put what was set aside here into the bucket too, as evidence for those who settle elsewhere."""
        store = self._local.store
        for one in asides.asides(store, self._local.agent):
            body = gzip.compress(b"".join(asides.export(store, one)), 6, mtime=0)
            key = self._prefix + aside_name(store, one)
            with suppress(RemoteUnreachable, RemoteRefused):  # sync push tries again
                self._bucket.create(key, body)


# A store's id, the aside's number, its first and last lsn, and the hash of its last record.
ASIDE_NAME = re.compile(r"aside/([0-9a-f]+)-[0-9]+-([0-9]{1,18})-([0-9]{1,18})-[0-9a-f]{16}\.jsonl\.gz")


def aside_name(store: SqliteBackend, one: asides.Aside) -> str:
    """What the object with an aside is called, below the agent's prefix.

    By what it is: a copy of this directory is a store of the same id, and left something else there.
    """
    last = next(store.log(one.agent, after=one.last - 1, branch=one.branch, limit=1))
    return f"aside/{store.store_id}-{one.number}-{one.first}-{one.last}-{last.hash.hex()[:16]}.jsonl.gz"
