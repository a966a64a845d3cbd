"""Reading a log out of the bucket, checked line by line, in bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from store.audit import blobs_named, body_of
from store.remote_errors import BadHead, Forked
from store.shipping.bucket import Bucket
from store.shipping.head import Head, chained
from store.shipping.references import Segment
from store.shipping.segment import read_page, read_segment

Line = tuple[int, bytes, bytes]  # lsn, canonical line, the chain's hash after it


class Replaced(Exception):
    """An object that the head named is gone: it was merged or pruned meanwhile, so the head is to be read again."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def prefix(agent: str) -> str:
    """Where an agent's objects are, below the remote's prefix."""
    return f"agents/{agent}/"


def head_key(agent: str) -> str:
    """The key of an agent's head."""
    return prefix(agent) + "head.json"


def lines_after(bucket: Bucket, head: Head, lsn: int, link: bytes) -> Iterator[list[Line]]:
    """The lines of a head's log above ``lsn``, an object at a time.

    Args:
        link: the hash that the reader's own log has at ``lsn``; the bucket's has to be the same.

    Raises:
        Forked: it is not, so the two logs are different ones.
        Replaced: read the head again.
    """
    if lsn < head.base:
        reason = f"the bucket's log starts above lsn {head.base}, this store's ends at {lsn}"
        raise Forked(agent=head.agent, trouble="pruned", reason=reason)
    met = lsn == head.last and link == head.hash
    for start, before, lines in _chunks(bucket, head, lsn):
        found = [
            (number, line, each)
            for (number, each), line in zip(chained(head, lines, start, before), lines, strict=True)
        ]
        if not met and link != (before if start == lsn else found[lsn - start - 1][2]):
            break
        met = True
        yield [each for each in found if each[0] > lsn]
    if not met:
        reason = f"the bucket's log and this store's differ at or below lsn {lsn}"
        raise Forked(agent=head.agent, trouble="forked", reason=reason)


def _chunks(bucket: Bucket, head: Head, lsn: int) -> Iterator[tuple[int, bytes, Sequence[bytes]]]:
    """The parts of a log with lines above ``lsn``: what comes before each, its hash, and its lines."""
    for segment, before in _segments(bucket, head, lsn):
        yield segment.f - 1, before, read_segment(head, segment, _object(bucket, head, segment.k), before)
    if head.last > lsn and head.tail:
        yield (*head.spilled, head.tail)


def _segments(bucket: Bucket, head: Head, lsn: int) -> list[tuple[Segment, bytes]]:
    """The segments with lines above ``lsn``, by rising lsn, each with the chain's hash before it."""
    groups, page = [head.segs], head.index
    reached = page.l if page else 0
    while page is not None and page.l > lsn:
        segments, older = read_page(head, page, _object(bucket, head, page.k))
        groups.append(segments)
        reached, page = (older.l if older else 0), older
    before = page.hash if page is not None and reached else head.base_hash
    found = []
    for each in (one for group in reversed(groups) for one in group):
        if each.l > lsn:
            found.append((each, before))
        before = each.hash
    return found


def blobs_of(bucket: Bucket, head: Head, line: bytes) -> Iterator[tuple[str, bytes]]:
    """The blobs that a line names, checked against their names.

    Raises:
        BadHead: one is missing or changed.
    """
    for name in blobs_named(body_of(line)[1]):
        found = bucket.get(prefix(head.agent) + "blob/" + name)
        if found is None or hashlib.sha256(found.body).hexdigest() != name.rpartition("-")[2]:
            raise BadHead(agent=head.agent, reason=f"blob {name} is missing or changed")
        yield name, found.body


def _object(bucket: Bucket, head: Head, key: str) -> bytes:
    found = bucket.get(prefix(head.agent) + key)
    if found is None:
        raise Replaced(key)
    return found.body
