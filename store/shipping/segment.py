"""Segments and index pages: the immutable objects that a head refers to.

A segment is the canonical lines of a range, one after another, in gzip without
a time in it, so that the same lines are the same bytes. Both are named by the
epoch that wrote them, their range and a hash of their plain bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Sequence

from store.remote_errors import BadHead
from store.shipping.head import Head, reached
from store.shipping.references import Page, Segment, as_json, page_of, segment_of

_PAGE = "recall.index/1"


def make_segment(
    lines: Sequence[bytes],
    *,
    epoch: int,
    first: int,
    hash: bytes,
) -> tuple[Segment, bytes]:
    """The reference to a segment and its bytes.

    Args:
        first: the lsn of the first line.
        hash: the chain's hash after the last.
    """
    plain = b"".join(line + b"\n" for line in lines)
    sha, last = hashlib.sha256(plain).hexdigest(), first + len(lines) - 1
    key = f"seg/{epoch}-{first}-{last}-{sha[:16]}.jsonl.gz"
    return Segment(key, epoch, first, last, hash, sha, len(plain)), gzip.compress(plain, 6, mtime=0)


def read_segment(head: Head, reference: Segment, body: bytes, before: bytes) -> list[bytes]:
    """The lines of a segment, checked against its reference and the chain.

    Args:
        before: the chain's hash before its first line.

    Raises:
        BadHead: it is not the segment that the head refers to.
    """
    lines = _unpacked(head, reference.k, reference.sha, reference.n, body).splitlines()
    if reached(head, lines, reference.f - 1, before) != (reference.l, reference.hash):
        raise BadHead(agent=head.agent, reason=f"{reference.k} does not hold the lines that it is listed with")
    return lines


def make_page(segments: Sequence[Segment], older: Page | None, *, epoch: int) -> tuple[Page, bytes]:
    """The reference to an index page and its bytes; it leads to the page before it."""
    document = {
        "format": _PAGE,
        "segs": [as_json(each) for each in segments],
        "older": as_json(older) if older else None,
    }
    plain = json.dumps(document, separators=(",", ":")).encode()
    first, last = older.f if older else segments[0].f, segments[-1].l
    key = f"idx/{epoch}-{first}-{last}-{hashlib.sha256(plain).hexdigest()[:16]}.json.gz"
    depth = older.depth + 1 if older else 1
    return Page(key, first, last, segments[-1].hash, depth), gzip.compress(plain, 6, mtime=0)


def read_page(head: Head, reference: Page, body: bytes) -> tuple[tuple[Segment, ...], Page | None]:
    """The segments that a page lists, and the page before it.

    Raises:
        BadHead: it is not the page that the head refers to.
    """
    plain = _unpacked(head, reference.k, reference.k.rpartition("-")[2].partition(".")[0], 0, body)
    try:
        document = json.loads(plain)
        if document["format"] != _PAGE:
            raise ValueError(document["format"])
        segments = tuple(segment_of(each) for each in document["segs"])
        older = page_of(document["older"]) if document["older"] else None
    except (ValueError, LookupError, TypeError) as problem:
        raise BadHead(agent=head.agent, reason=f"{reference.k} cannot be read") from problem
    lsn = older.l if older else reference.f - 1
    for each in segments:
        if each.f != lsn + 1:
            raise BadHead(agent=head.agent, reason=f"{reference.k} leaves a gap before lsn {each.f}")
        lsn = each.l
    if lsn != reference.l:
        raise BadHead(agent=head.agent, reason=f"{reference.k} does not reach lsn {reference.l}")
    return segments, older


def _unpacked(head: Head, key: str, sha: str, size: int, body: bytes) -> bytes:
    try:
        plain = gzip.decompress(body)
    except (OSError, EOFError, zlib.error) as problem:
        raise BadHead(agent=head.agent, reason=f"{key} is damaged") from problem
    if not hashlib.sha256(plain).hexdigest().startswith(sha) or (size and len(plain) != size):
        raise BadHead(agent=head.agent, reason=f"{key} has another content than it had")
    return plain
