"""What was set aside, as evidence: which calls are proven never to have run, and which closes nobody else knows of.

A record that was set aside is in no log any more, but it tells what its
machine did. The intent of a call that waited for the bucket is in the log, or
its tool never started; so an intent that is absent from a head of a higher
epoch was never carried out (``protocol.never_executed`` has the conditions).
The close of a call whose intent is in the log is told to whoever settles that
call, and never applied by itself.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from store import asides
from store.errors import BadRecord
from store.records import ACTION, Record
from store.shipping import protocol
from store.shipping.bucket import Bucket
from store.shipping.fetch import head_key, lines_after, prefix
from store.shipping.head import Head, chained
from store.shipping.local import Local, lineage_at
from store.shipping.packing import ASIDE_NAME, aside_name
from store.value import value
from store.values import Action

if TYPE_CHECKING:
    from store.backends.sqlite import SqliteBackend

_UNREADABLE = (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError)
NEVER_EXECUTED, MAY_HAVE_RUN = "never executed", "may have run"


@value
class Evidence:
    """What one aside says of one action.

    Attributes:
        source: ``aside N`` of this store, or the key of an object in the bucket.
        store: the id of the store that it was set aside in.
        lsn, epoch, at: of the newest record of the action in it.
        action: as that record has it, its long texts left out.
        verdict: of an open action that the log does not have: ``never executed`` or ``may have run``; else "".
        in_log: the log has this very action, with what it knows of it.
    """

    agent: str
    source: str
    store: str
    lsn: int
    epoch: int
    at: str
    action: Action
    verdict: str
    in_log: bool


@value
class Rejected:
    """A queued resolution that could not be carried out.

    Attributes:
        name: of its object, below the agent's prefix.
        by: the id of the store whose holder read it.
        resolution: the object as it was.
    """

    agent: str
    name: str
    by: str
    at: str
    reason: str
    resolution: str


@value
class Filed:
    """An object in the bucket with records that a store has set aside; its name and its header say what they are."""

    agent: str
    name: str
    store: str
    first: int
    last: int
    at: str
    reason: str


def here(store: SqliteBackend, agent: str) -> list[Evidence]:
    """What this store has set aside of an agent, judged by what it knows of the bucket."""
    lefts = _local(store, agent)
    if not lefts:
        return []
    known, mark = Local(store, agent).known(), store.mark(agent)
    head = known[1] if known and mark and not mark.trouble else None
    return _judged(lefts, agent, LocalLog(store, agent, head), store.on_bad_record)


def everywhere(store: SqliteBackend, agent: str, bucket: Bucket) -> list[Evidence]:
    """The same, and what all other stores have left in the bucket; judged by its head as it is now.

    Raises:
        RemoteUnreachable, RemoteRefused, BadHead, Forked.
    """
    own = _local(store, agent)
    ours = {each.name for each in own}
    lefts = own + [each for each in _remote(bucket, agent, store.on_bad_record) if each.name not in ours]
    if not lefts:
        return []
    found = bucket.get(head_key(agent))
    head = Head.parse(found.body, agent) if found else None
    mark = store.mark(agent)
    if head is None or (mark is not None and mark.trouble):
        return _judged(lefts, agent, LocalLog(store, agent, None), store.on_bad_record)
    log: Log = LocalLog(store, agent, head)
    if log.hash_at(head.last) != head.hash:
        keys = {action.key for each in lefts for _, action in _actions(each, agent, lambda problem: None)}
        log = BucketLog(bucket, head, {each.first - 1 for each in lefts}, keys)
    return _judged(lefts, agent, log, store.on_bad_record)


def rejected(bucket: Bucket, agent: str) -> Iterator[Rejected]:
    """The queued resolutions that could not be carried out, oldest first."""
    start = f"{prefix(agent)}aside/inbox-"
    for each in bucket.list(start):
        found = bucket.get(each.key)
        try:
            document = json.loads(found.body.decode()) if found else {}
        except ValueError:
            document = {}
        texts = (str(document.get(name, "")) for name in ("by", "at", "reason", "resolution"))
        yield Rejected(agent, each.key.removeprefix(prefix(agent)), *texts)


def filed(bucket: Bucket, agent: str) -> Iterator[Filed]:
    """What all stores have set aside of an agent and put into the bucket."""
    for name, store, first, last, body in _objects(bucket, agent):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(body)) as file:
                header = json.loads(file.readline())
            told = str(header["at"]), str(header["reason"])
        except _UNREADABLE:
            told = "", "(it cannot be read)"
        yield Filed(agent, name, store, first, last, *told)


def closes_of(found: Iterable[Evidence], action: Action) -> list[Evidence]:
    """Those that know an outcome of an action that has none in the log."""
    return [each for each in found if each.in_log and each.action.key == action.key and not each.action.open]


# -- the logs that are judged by ----------------------------------------------------------------


class Log(Protocol):
    """The log that the bucket's head stands for."""

    head: Head | None

    def hash_at(self, lsn: int) -> bytes | None:
        """The chain's hash at an lsn, or None where that is not known."""
        ...

    def has(self, action: Action) -> bool | None:
        """Whether the action is in it; None where that cannot be told."""
        ...


class LocalLog:
    """This store's own log, which has to go through the head."""

    def __init__(self, store: SqliteBackend, agent: str, head: Head | None) -> None:
        self._store, self._local = store, Local(store, agent)
        # Where it does not, it proves nothing.
        self.head = head if head is not None and self._local.hash_at(head.last) == head.hash else None

    def hash_at(self, lsn: int) -> bytes | None:
        """Below the head only: what is above it is this store's own."""
        return self._local.hash_at(lsn) if self.head is not None and lsn <= self.head.last else None

    def has(self, action: Action) -> bool | None:
        records = list(self._store.history(self._local.agent, ACTION, seq=action.seq))
        if any(_key_of(each.body) == action.key for each in records):
            return True
        return None if any(self._is_damaged(each) for each in records) else False

    def _is_damaged(self, record: Record) -> bool:
        """Whether a record is not what it was, so that it may have been of any action."""
        link = self.hash_at(record.lsn - 1)
        if self.head is None or link is None:
            return True
        return list(chained(self.head, [record.line], record.lsn - 1, link)) != [(record.lsn, record.hash)]


class BucketLog:
    """The log as the bucket has it, read once."""

    def __init__(self, bucket: Bucket, head: Head, lsns: set[int], keys: set[str]) -> None:
        self.head: Head | None = head
        self._hashes = {head.base: head.base_hash}
        self._keys: set[str] = set()
        for chunk in lines_after(bucket, head, head.base, head.base_hash):
            for lsn, line, link in chunk:
                if lsn in lsns:
                    self._hashes[lsn] = link
                fields = json.loads(line)
                if fields["kind"] == ACTION and (key := _key_of(fields["body"])) in keys:
                    self._keys.add(key)

    def hash_at(self, lsn: int) -> bytes | None:
        return self._hashes.get(lsn)

    def has(self, action: Action) -> bool:
        return action.key in self._keys


def _key_of(body: str) -> str:
    try:
        return str(json.loads(body).get("key", ""))
    except (ValueError, AttributeError):
        return ""


# -- the asides -----------------------------------------------------------------------------------


@value
class _Left:
    """One aside, wherever it is.

    Attributes:
        name: what the bucket's object with it is called, below the agent's prefix.
    """

    source: str
    name: str
    store: str
    first: int
    records: Callable[[], Iterator[Record]]


def _local(store: SqliteBackend, agent: str) -> list[_Left]:
    def left(one: asides.Aside) -> _Left:
        return _Left(
            f"aside {one.number}",
            aside_name(store, one),
            store.store_id,
            one.first,
            lambda: asides.records(store, one),
        )

    return [left(one) for one in asides.asides(store, agent)]


def _remote(bucket: Bucket, agent: str, bad: Callable[[BadRecord], None]) -> list[_Left]:
    return [
        _Left(name, name, store, first, _reader(body, agent, name, bad))
        for name, store, first, _, body in _objects(bucket, agent)
    ]


def _objects(bucket: Bucket, agent: str) -> Iterator[tuple[str, str, int, int, bytes]]:
    """The objects that hold asides: their names, whose they are, the first and the last lsn, and their bytes."""
    for each in bucket.list(f"{prefix(agent)}aside/"):
        name = each.key.removeprefix(prefix(agent))
        parts = ASIDE_NAME.fullmatch(name)
        found = bucket.get(each.key) if parts else None
        if parts and found:
            yield name, parts[1], int(parts[2]), int(parts[3]), found.body


def _reader(body: bytes, agent: str, name: str, bad: Callable[[BadRecord], None]) -> Callable[[], Iterator[Record]]:
    """The records of an aside as it was filed (``store.asides.export``); it ends where it cannot be read."""

    def records() -> Iterator[Record]:
        try:
            for text in gzip.GzipFile(fileobj=io.BytesIO(body)):
                entry: dict[str, Any] = json.loads(text)
                if entry.get("type") != "record":
                    continue
                line = str(entry["line"]).encode()
                f = json.loads(line)
                seq, key = entry.get("seq", 0), str(entry.get("name", ""))
                yield Record(
                    agent,
                    0,
                    f["lsn"],
                    f["epoch"],
                    f["kind"],
                    seq,
                    key,
                    f["body"],
                    f["at"],
                    line,
                    bytes.fromhex(entry["hash"]),
                )
        except _UNREADABLE as problem:
            bad(BadRecord(agent=agent, key=name, lsn=0, reason=f"the rest of it cannot be read ({problem})"))

    return records


def _actions(left: _Left, agent: str, bad: Callable[[BadRecord], None]) -> Iterator[tuple[Record, Action]]:
    for record in left.records():
        if record.kind == ACTION and record.agent == agent:
            try:
                yield record, Action.read(record)
            except BadRecord as problem:
                bad(problem)


# -- the verdicts ---------------------------------------------------------------------------------


def _judged(lefts: list[_Left], agent: str, log: Log, bad: Callable[[BadRecord], None]) -> list[Evidence]:
    return [each for left in lefts for each in _judge(left, agent, log, bad)]


def _judge(left: _Left, agent: str, log: Log, bad: Callable[[BadRecord], None]) -> Iterator[Evidence]:
    """What one aside says of each action in it, by rising number."""
    newest: dict[int, tuple[Record, Action]] = {}
    intents: dict[int, list[bool]] = {}  # of each intent in it, whether it is proven that its tool never started
    link = log.hash_at(left.first - 1)
    for record in left.records():
        # An aside goes on where the log's chain was left, or it proves nothing from there on.
        if link is not None and log.head is not None:
            [(_, link)] = chained(log.head, [record.line], record.lsn - 1, link)
            link = link if link == record.hash else None
        if record.kind != ACTION:
            continue
        try:
            action = Action.read(record)
        except BadRecord as problem:
            bad(problem)
            continue
        newest[action.seq] = record, action
        if action.status == "started":
            intents.setdefault(action.seq, []).append(_proven(record, log.head, on_chain=link is not None))
    for seq in sorted(newest):
        record, action = newest[seq]
        in_log = log.has(action)
        verdict = ""
        if action.open and not in_log:
            proven = in_log is False and all(intents.get(seq, [False]))
            verdict = NEVER_EXECUTED if proven else MAY_HAVE_RUN
        yield Evidence(
            agent, left.source, left.store, record.lsn, record.epoch, record.at, action, verdict, in_log is True
        )


def _proven(record: Record, head: Head | None, *, on_chain: bool) -> bool:
    return head is not None and protocol.never_executed(
        record.fields(),
        head,
        lsn=record.lsn,
        epoch=record.epoch,
        lineage=lineage_at(head, record.lsn),
        on_chain=on_chain,
    )
