"""The head: one JSON object for each agent, the only commit point of its log in the bucket.

It is changed by conditional PUT alone, and never deleted. It holds the lease,
the newest records, and references to the immutable segments with the older
ones. Every change raises ``rev`` and has a random ``wid``, so that no two
bodies are alike and an ETag never comes back.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, Literal

from store.canonical import first_hash, next_hash
from store.lease import MOST_TTL_MS, Fence
from store.process import Process
from store.remote_errors import BadHead, RemoteNewer
from store.shipping.references import Page, Segment, as_json, number_in, page_of, segment_of, text_in
from store.value import value

FORMAT = "recall.head/1"
_READER = _WRITER = 1
_TAIL = b',"tail":['  # the last field of a head

State = Literal["live", "released", "deleted"]
STATES = ("live", "released", "deleted")


@value
class HeadLease:
    """Who has, or last had, the lease.

    Attributes:
        inc: the incarnation.
        dir: the id of the holder's store.
        ship: the weakest mode that the incarnation wrote in: ``barrier``, ``lazy`` or ``off``.
        ttl_ms: milliseconds; a contender elsewhere may take over when nothing changed for so long.
        renew: how often it was renewed; with ``rev`` it shows that the holder is alive.
        expires_hint: when it will have expired, RFC 3339; for people, never compared.
    """

    inc: str
    dir: str
    holder: str
    process: Process
    ship: str
    ttl_ms: int
    renew: int = 0
    expires_hint: str = ""


@value
class Origin:
    """A lineage that the log went through before the present one, with the lsn of its last record."""

    lineage: str
    last: int


@value
class Ended:
    """An epoch that is over, with the last record of the log at that time."""

    e: int
    last: int
    hash: bytes


@value
class Open:
    """An action without an outcome, for a successor to see before it has the log."""

    lsn: int
    key: str
    class_: str
    max_ms: int = 0


@value
class Head:
    """One version of a head.

    Attributes:
        store: the id of the remote (``recall.json``).
        lineage, origins: the present lineage, and those before it.
        epoch: the lease's; it never falls.
        last, hash: the last record of the log and the chain's hash after it.
        base, base_hash: where the log starts after a prune: 0 and the first hash before one.
        tail: the canonical lines from ``tail_first`` to ``last``; () of a kept head if those here are damaged.
        open_more: how many open actions ``open`` leaves out.
        more: fields of a newer version, kept as they are.
    """

    store: str
    agent: str
    lineage: str
    state: State
    rev: int
    wid: str
    epoch: int
    lease: HeadLease
    last: int
    hash: bytes
    base: int
    base_hash: bytes
    tail_first: int
    origins: tuple[Origin, ...] = ()
    epochs: tuple[Ended, ...] = ()
    segs: tuple[Segment, ...] = ()
    index: Page | None = None
    open: tuple[Open, ...] = ()
    open_more: int = 0
    tail: tuple[bytes, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fence(self) -> Fence:
        return Fence(self.agent, self.lineage, self.epoch, self.lease.inc)

    @property
    def whole(self) -> bool:
        """Whether it has its lines, without which no next version can be made of it."""
        return self.last == self.spilled[0] + len(self.tail)

    @property
    def tail_bytes(self) -> int:
        return sum(map(len, self.tail))

    @property
    def spilled(self) -> tuple[int, bytes]:
        """The last record that is in a segment, or before any, and its hash."""
        if self.segs:
            return self.segs[-1].l, self.segs[-1].hash
        return (self.index.l, self.index.hash) if self.index else (self.base, self.base_hash)

    def links(self) -> Iterator[tuple[int, bytes]]:
        """The lsn and the hash of each line of the tail."""
        lsn, link = self.spilled
        yield from chained(self, self.tail, lsn, link)

    def hash_at(self, lsn: int) -> bytes | None:
        """The chain's hash at a record, where the head itself tells it."""
        if lsn == self.base:
            return self.base_hash
        if lsn == self.last:
            return self.hash
        if self.index and self.index.l == lsn:
            return self.index.hash
        for each in self.segs:
            if each.l == lsn:
                return each.hash
        if lsn >= self.tail_first:
            for number, link in self.links():
                if number == lsn:
                    return link
        return next((each.hash for each in self.epochs if each.last == lsn), None)

    def encode(self) -> bytes:
        """The object's bytes."""
        lease, holder = self.lease, self.lease.process
        document: dict[str, Any] = {
            "format": FORMAT,
            "min_reader": 1,
            "min_writer": 1,
            "store": self.store,
            "agent": self.agent,
            "lineage": self.lineage,
            "state": self.state,
            "rev": self.rev,
            "wid": self.wid,
            "epoch": self.epoch,
            "lease": {
                "inc": lease.inc,
                "dir": lease.dir,
                "holder": lease.holder,
                "host": holder.host,
                "boot": holder.boot,
                "pidns": holder.pidns,
                "pid": holder.pid,
                "start": holder.start,
                "ship": lease.ship,
                "ttl_ms": lease.ttl_ms,
                "renew": lease.renew,
                "expires_hint": lease.expires_hint,
            },
            "log": {
                "last": self.last,
                "hash": self.hash.hex(),
                "base": self.base,
                "base_hash": self.base_hash.hex(),
                "tail_first": self.tail_first,
            },
            "epochs": [as_json(each) for each in self.epochs],
            "segs": [as_json(each) for each in self.segs],
            "open": [as_json(each) for each in self.open],
        }
        if self.origins:
            document["origins"] = [as_json(each) for each in self.origins]
        if self.index:
            document["index"] = as_json(self.index)
        if self.open_more:
            document["open_more"] = self.open_more
        text = json.dumps({**self.more, **document}, ensure_ascii=False, separators=(",", ":"))
        return text[:-1].encode() + _TAIL + ",".join(map(_quoted, self.tail)).encode() + b"]}"

    @staticmethod
    def without_tail(body: bytes) -> bytes:
        """An encoded head as a store keeps it, which has the lines already."""
        # No string can hold this: a quote in it would be escaped.
        return body[: body.rindex(_TAIL)] + _TAIL + b"]}"

    @staticmethod
    def parse(body: bytes, agent: str, lines: Callable[[Head], Sequence[bytes]] | None = None) -> Head:
        """Read a head, its chain checked as far as it goes.

        Args:
            lines: those of its tail, for a head that was kept without. If they are not what they were (a record
                here is damaged), it comes without: the bucket has them.

        Raises:
            BadHead: it is not a head of this agent, or contradicts itself.
            RemoteNewer: a newer version wrote it, and this one could not read it right.
        """
        try:
            document = json.loads(body.decode())
            if document["format"] != FORMAT or document["min_reader"] > _READER:
                raise RemoteNewer(what=f"agent {agent}", found=str(document["format"])[:80])
            if document["min_writer"] > _WRITER:
                raise RemoteNewer(
                    what=f"agent {agent}", found=f"a head for writers of version {document['min_writer']}"
                )
            head = _read(document)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
            raise BadHead(agent=agent, reason=f"it cannot be read ({type(problem).__name__})") from problem
        bare = lines is not None and not head.tail
        wrong = _wrong_in(head, agent) or ("" if bare else _wrong_in_tail(head))
        if wrong:
            raise BadHead(agent=agent, reason=wrong)
        if lines is not None and bare:
            filled = replace(head, tail=tuple(lines(head)))
            return head if _wrong_in_tail(filled) else filled
        return head


@lru_cache(maxsize=256)
def _quoted(line: bytes) -> str:
    """A line as a JSON string; most of a tail was in the version before too."""
    return json.dumps(line.decode(), ensure_ascii=False)


def chained(head: Head, lines: Sequence[bytes], lsn: int, link: bytes) -> Iterator[tuple[int, bytes]]:
    """The lsn and hash of each of the lines that follow a record, over the starts of lineages."""
    starts = lineage_starts(head)
    for line in lines:
        link = next_hash(starts.get(lsn, link), line)
        lsn += 1
        yield lsn, link


def reached(head: Head, lines: Sequence[bytes], lsn: int, link: bytes) -> tuple[int, bytes]:
    """The lsn and hash of the last of the lines that follow a record; the record's own if there are none."""
    last = deque(chained(head, lines, lsn, link), maxlen=1)
    return last[0] if last else (lsn, link)


def lineage_starts(head: Head) -> dict[int, bytes]:
    """After which record a new lineage starts, and with which hash."""
    following = [*(each.lineage for each in head.origins[1:]), head.lineage] if head.origins else []
    return {each.last: first_hash(lineage, head.agent) for each, lineage in zip(head.origins, following, strict=True)}


def _wrong_in(head: Head, agent: str) -> str:
    """What contradicts itself in a head, or ""."""
    if head.agent != agent:
        return f"it is of agent {head.agent!r}"
    if head.state not in STATES or head.epoch < 1 or head.rev < 1:
        return f"its state {head.state!r}, epoch {head.epoch} or rev {head.rev} is not possible"
    if not 1 <= head.lease.ttl_ms <= MOST_TTL_MS:
        return f"its lease lasts {head.lease.ttl_ms} ms"
    lsn = head.index.l if head.index else head.base
    for each in head.segs:
        if each.f != lsn + 1 or each.l < each.f:
            return f"its segments leave a gap before lsn {each.f}"
        lsn = each.l
    return "" if head.tail_first == lsn + 1 else f"its tail does not begin with lsn {lsn + 1}"


def _wrong_in_tail(head: Head) -> str:
    """What contradicts the rest of a head in its lines, or ""."""
    if not head.whole:
        return f"its tail does not go from lsn {head.tail_first} to {head.last}"
    _, link = reached(head, head.tail, *head.spilled)
    return "" if link == head.hash else "the hash of its last record is not that of its lines"


def _read(document: Mapping[str, Any]) -> Head:
    lease, log = document["lease"], document["log"]
    index = document.get("index")
    return Head(
        store=text_in(document["store"]),
        agent=text_in(document["agent"]),
        lineage=_lineage(document["lineage"]),
        state=document["state"],
        rev=number_in(document["rev"]),
        wid=text_in(document["wid"]),
        epoch=number_in(document["epoch"]),
        lease=HeadLease(
            inc=text_in(lease["inc"]),
            dir=text_in(lease["dir"]),
            holder=text_in(lease.get("holder", "")),
            process=Process(
                text_in(lease["host"]),
                text_in(lease["boot"]),
                text_in(lease["pidns"]),
                number_in(lease["pid"]),
                text_in(lease["start"]),
            ),
            ship=text_in(lease["ship"]),
            ttl_ms=number_in(lease["ttl_ms"]),
            renew=number_in(lease["renew"]),
            expires_hint=text_in(lease["expires_hint"]),
        ),
        last=number_in(log["last"]),
        hash=bytes.fromhex(log["hash"]),
        base=number_in(log["base"]),
        base_hash=bytes.fromhex(log["base_hash"]),
        tail_first=number_in(log["tail_first"]),
        origins=tuple(
            Origin(_lineage(each["lineage"]), number_in(each["last"])) for each in document.get("origins", [])
        ),
        epochs=tuple(
            Ended(number_in(each["e"]), number_in(each["last"]), bytes.fromhex(each["hash"]))
            for each in document["epochs"]
        ),
        segs=tuple(segment_of(each) for each in document["segs"]),
        index=page_of(index) if index else None,
        open=tuple(
            Open(number_in(each["lsn"]), text_in(each["key"]), text_in(each["class"]), number_in(each.get("max_ms", 0)))
            for each in document["open"]
        ),
        open_more=number_in(document.get("open_more", 0)),
        tail=tuple(text_in(line).encode() for line in document["tail"]),
        more={name: each for name, each in document.items() if name not in _KNOWN},
    )


def _lineage(each: Any) -> str:
    if not re.fullmatch("[0-9a-f]{32}", text_in(each)):
        raise ValueError("not a lineage")
    return str(each)


_KNOWN = frozenset(
    "format min_reader min_writer store agent lineage state rev wid epoch lease log origins epochs segs index open "
    "open_more tail".split()
)


def moved_into(head: Head, segment: Segment) -> Head:
    """The same head with the beginning of its tail in a segment; as it is if the tail begins elsewhere by now."""
    if head.tail_first != segment.f or segment.l > head.last:
        return head
    return replace(
        head,
        segs=(*head.segs, segment),
        tail=head.tail[segment.l + 1 - head.tail_first :],
        tail_first=segment.l + 1,
    )
