"""Reading a bucket without trust: ``store.verify`` for what an agent has there.

Every object that the head needs is read, in the order of the log, and one at a
time: segments, index pages, blobs. What is found is damage, loss and forgery
without new hashes; that the bucket as a whole was put back to an earlier time
shows only against a store that has seen a later one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Sequence

from store.audit import Row, Walk, blobs_named, body_of, check_body
from store.backend import Branch
from store.backends.sqlite import SqliteBackend
from store.backends.sqlite.ledger import numbered_or_named
from store.canonical import first_hash
from store.errors import BadRecord, NotFound
from store.records import Record
from store.remote_errors import BadHead, RemoteNewer
from store.shipping import protocol
from store.shipping.bucket import Bucket
from store.shipping.fetch import prefix
from store.shipping.head import Head, chained
from store.shipping.local import Local
from store.shipping.place import agents_in
from store.shipping.references import Segment
from store.shipping.segment import read_page, read_segment
from store.value import value
from store.verify import Problem


@value
class RemoteChecked:
    """The end of one agent's check.

    Attributes:
        records: how many were read.
        lsn, hash: the head's last record; base: the last lsn that was pruned, or 0.
        objects: what the head needs, itself included.
        unreferenced, unreferenced_bytes: objects that nothing needs; no damage (recall sync collect).
        compared: up to which lsn this store's log is the same; 0 if it has none of it.
    """

    agent: str
    records: int = 0
    lsn: int = 0
    hash: str = ""
    base: int = 0
    epoch: int = 0
    objects: int = 0
    unreferenced: int = 0
    unreferenced_bytes: int = 0
    compared: int = 0
    problems: int = 0


def verify_remote(
    store: SqliteBackend, bucket: Bucket, agents: Sequence[str] = ()
) -> Iterator[Problem | RemoteChecked]:
    """Check what agents have in a bucket, and that this store's logs are the same as far as they were shipped.

    Args:
        store: nothing is written to it.
        agents: which ones; unless given all in the bucket, and all that this store has seen there.

    Raises:
        NotFound: neither the bucket nor this store's memory of it has a named agent.
        RemoteUnreachable, RemoteRefused: the bucket cannot be read.
    """
    for agent in agents:
        unknown = store.mark(agent) is None and next(iter(bucket.list(prefix(agent))), None) is None
        if unknown:
            hint = f"ship it with: recall sync push {agent}"
            raise NotFound(what="agent", name=f"{agent} in {bucket.name}", hint=hint)
    for agent in agents or _all_of(store, bucket):
        yield from _Check(store, bucket, agent).run()


def _all_of(store: SqliteBackend, bucket: Bucket) -> Iterator[str]:
    seen: set[str] = set()
    marks = store.marks()
    while marks:
        seen |= {each.agent for each in marks if each.head}
        marks = store.marks(after=marks[-1].agent)
    for agent in agents_in(bucket):
        seen.discard(agent)
        yield agent
    yield from sorted(seen)  # of these the bucket has nothing any more


class _Check:
    """One agent's check."""

    def __init__(self, store: SqliteBackend, bucket: Bucket, agent: str) -> None:
        self._bucket, self._agent, self._prefix = bucket, agent, prefix(agent)
        self._local = Local(store, agent)
        self._needed: set[str] = {"head.json"}
        self._records = self._compared = 0
        self._same = True

    def run(self) -> Iterator[Problem | RemoteChecked]:
        problems, head = 0, None
        try:
            head = self._head()
        except BadHead as problem:
            yield self._problem(problem.details["reason"])
            problems += 1
        except RemoteNewer as problem:
            yield self._problem(problem.message)
            problems += 1
        if head is None:
            yield RemoteChecked(self._agent, problems=problems)
            return
        for found in self._problems(head):
            problems += 1
            yield found
        count, size = self._unreferenced()
        yield RemoteChecked(
            self._agent,
            records=self._records,
            lsn=head.last,
            hash=head.hash.hex(),
            base=head.base,
            epoch=head.epoch,
            objects=len(self._needed),
            unreferenced=count,
            unreferenced_bytes=size,
            compared=self._compared if self._same else 0,
            problems=problems,
        )

    def _head(self) -> Head:
        answer = self._bucket.get(self._prefix + "head.json")
        if answer is None:
            raise BadHead(agent=self._agent, reason="there is no head, without which nothing here is a log")
        return Head.parse(answer.body, self._agent)

    def _problems(self, head: Head) -> Iterator[Problem]:
        known = self._local.known()
        trouble = protocol.regression(head, known[1]) if known is not None else None
        if trouble is not None:
            yield self._problem(f"{trouble.kind}: {trouble.reason}")
        branches = _branches(head)
        walk, ahead = Walk(self._agent, branches, head.epoch), list(branches)
        ended = {each.last: each for each in head.epochs}
        shipped = self._shipped()
        for part in self._parts(head):
            if isinstance(part, Problem):
                yield part
                continue
            start, before, lines = part
            for (lsn, link), line in zip(chained(head, lines, start, before), lines, strict=True):
                while ahead and lsn > ahead[0].start:
                    yield from map(self._problem, walk.begin(ahead.pop(0)))
                yield from self._record(walk, len(branches) - len(ahead), lsn, link, line)
                if lsn in ended and ended[lsn].hash != link:
                    yield self._problem(f"epoch {ended[lsn].e} is said to have ended with another record", lsn)
                if lsn == shipped or (lsn == start + len(lines) and lsn < shipped):
                    yield from self._compare(lsn, link)

    # -- the objects --------------------------------------------------------------------------

    def _parts(self, head: Head) -> Iterator[tuple[int, bytes, Sequence[bytes]] | Problem]:
        """What comes before each object of lines, its hash, and its lines, by rising lsn."""
        references: list[Segment] = []
        lost = yield from self._references(head, references)
        before = lost if lost is not None else head.base_hash
        for each in reversed(references):
            try:
                yield each.f - 1, before, read_segment(head, each, self._object(each.k), before)
            except BadHead as problem:
                yield self._problem(problem.details["reason"], each.f)
            before = each.hash
        if head.tail:
            yield (*head.spilled, head.tail)

    def _references(self, head: Head, found: list[Segment]) -> Generator[Problem, None, bytes | None]:
        """Find the references, the newest first; returns the hash before the oldest if a page is lost."""
        found += reversed(head.segs)
        page = head.index
        while page is not None:
            try:
                segments, older = read_page(head, page, self._object(page.k))
            except BadHead as problem:
                yield self._problem(problem.details["reason"], page.f)
                return page.hash
            found += reversed(segments)
            page = older
        return None

    def _object(self, key: str) -> bytes:
        self._needed.add(key)
        found = self._bucket.get(self._prefix + key)
        if found is None:
            raise BadHead(agent=self._agent, reason=f"{key} is missing")
        return found.body

    # -- records ---------------------------------------------------------------------------------

    def _record(self, walk: Walk, branch: int, lsn: int, link: bytes, line: bytes) -> Iterator[Problem]:
        self._records += 1
        fields, body = body_of(line)
        if fields is None:
            yield self._problem("its line is not a JSON object with a body", lsn)
            return
        kind, key = str(fields.get("kind")), str(fields.get("key"))
        seq, name = numbered_or_named(kind, key.partition(":")[2])
        epoch, at = fields.get("epoch"), fields.get("at")
        row = Row(self._agent, branch, fields.get("lsn"), epoch, key, kind, seq, name, line, at, link)
        for reason in walk.step(row):
            yield self._problem(reason, lsn, key)
        kept: dict[str, bytes] = {}
        for blob, size in blobs_named(body).items():
            reason = self._blob(blob, size, kept)
            if reason:
                yield self._problem(reason, lsn, key)
        try:
            epoch = epoch if isinstance(epoch, int) else 0
            record = Record(self._agent, branch, lsn, epoch, kind, seq, name, body, str(at), line, link)
            check_body(record, kept.__getitem__)
        except BadRecord as problem:
            yield self._problem(problem.details["reason"], lsn, key)

    def _blob(self, name: str, size: int, kept: dict[str, bytes]) -> str:
        try:
            data = self._object(f"blob/{name}")
        except BadHead:
            return f"its blob {name} is missing"
        kept[name] = data
        if len(data) != size or name.rpartition("-")[2] != hashlib.sha256(data).hexdigest():
            return f"its blob {name} has another content than its name says"
        return ""

    # -- this store -----------------------------------------------------------------------------

    def _shipped(self) -> int:
        """Up to where this store's log has to be the bucket's."""
        mark = self._local.store.mark(self._agent)
        return mark.lsn if mark is not None and mark.head else self._local.last()[0]

    def _compare(self, lsn: int, link: bytes) -> Iterator[Problem]:
        here = self._local.hash_at(lsn)
        if here is None or not self._same:
            return
        if here == link:
            self._compared = lsn
            return
        self._same = False
        yield self._problem("this store's log and the bucket's differ at or below it", lsn)

    def _unreferenced(self) -> tuple[int, int]:
        count = size = 0
        for kind in ("seg", "idx", "blob"):
            for each in self._bucket.list(f"{self._prefix}{kind}/"):
                if each.key.removeprefix(self._prefix) not in self._needed:
                    count, size = count + 1, size + each.size
        return count, size

    def _problem(self, reason: str, lsn: int = 0, key: str = "") -> Problem:
        return Problem(self._agent, 0, lsn, key, reason)


def _branches(head: Head) -> list[Branch]:
    """The lineages of a head's log as the branches that a check of a log walks along."""
    parts = [(each.lineage, each.last) for each in head.origins] + [(head.lineage, head.last)]
    branches: list[Branch] = []
    start, start_hash = head.base, head.base_hash
    for lineage, last in parts:
        if last <= head.base and lineage != head.lineage:
            continue
        number = len(branches) + 1
        if branches:
            start_hash = first_hash(lineage, head.agent)
        branches.append(
            Branch(head.agent, number, lineage, number - 1, start, start_hash, last, b"", "from the bucket", "")
        )
        start = last
    return branches
