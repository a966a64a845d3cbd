"""Looking at a bucket: the head as it is now, and this store's log brought up to it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from store.backends.sqlite.marks import Mark, Remote
from store.errors import RecallError
from store.remote_errors import BadHead, Forked, RemoteChanged, RemoteUnreachable
from store.shipping import protocol
from store.shipping.bucket import Bucket, Object
from store.shipping.fetch import Replaced, head_key
from store.shipping.head import Head
from store.shipping.local import Heads, Local
from store.shipping.locking import agent_lock
from store.shipping.packing import Limits, Packer
from store.shipping.protocol import Ship, Stamp
from store.value import value

if TYPE_CHECKING:
    from store.backends.sqlite import SqliteBackend

_FIRST_PAUSE, _MOST_PAUSE = 0.05, 2.0  # seconds between attempts, with jitter
_REPLANS = 5  # of a read whose objects were merged away meanwhile


@value
class Seen:
    """A head as it was just read, and what its answer said of time."""

    head: Head | None
    etag: str
    answer: Object | None


class Looker:
    """One store and its bucket; what ``Taking`` and ``Shipper`` build on.

    Args:
        store: where the records are.
        bucket: where they go.
        ship: when they have to be there (``RECALL_SHIP``).
        patience: seconds after which a write whose outcome is not known is given up.
        interval: the least seconds between two writes to one object.
        pause: waits for so many seconds; injected, as the clock is.
    """

    def __init__(
        self,
        store: SqliteBackend,
        bucket: Bucket,
        remote: Remote,
        *,
        ship: Ship = "barrier",
        patience: float = 30.0,
        interval: float = 0.0,
        limits: Limits = Limits(),  # noqa: B008 (a value)
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store, self.bucket, self.remote = store, bucket, remote
        self.ship: Ship = ship
        self.patience, self.pause = patience, pause
        self._interval, self._limits = interval, limits
        self._heads: Heads = {}

    def look(self, agent: str) -> Seen:
        """An agent's head as it is now. Raises Forked where it contradicts what this store has seen."""
        return self._look(self._local(agent))

    def pull(self, agent: str) -> Head | None:
        """Bring this store's copy of a log up to what the bucket has, without a lease; the head, if there is one."""
        with self._locked(agent):
            local = self._local(agent)
            seen = self._look(local)
            if seen.head is None:
                return None
            if self._writes(seen.head):
                return seen.head
            seen = self._read_up(local, seen)
            assert seen.head is not None
            if seen.head.last == seen.head.base or local.hash_at(seen.head.last) == seen.head.hash:
                local.follow(seen.head, seen.etag)
            return seen.head

    def _writes(self, head: Head) -> bool:
        """Whether it is this store that writes the log; of a holder elsewhere its row says the same as the head."""
        row = self.store.lease(head.agent)
        held = row is not None and row.state == "held" and row.is_of(head.fence)
        return held and head.lease.dir == self.store.store_id

    def _look(self, local: Local, tries: Tries | None = None) -> Seen:
        """The head as it is now. Raises Forked where it contradicts what this store has seen."""
        self._refuse_trouble(self.store.mark(local.agent))
        while True:
            try:
                answer = self.bucket.get(head_key(local.agent))
                break
            except RemoteUnreachable as problem:
                if tries is None:
                    raise
                tries.again(problem.message)
        head = Head.parse(answer.body, local.agent) if answer else None
        known = local.known()
        if known is not None:
            trouble = protocol.regression(head, known[1])
            if trouble is not None:
                local.note_trouble(trouble.kind)
                raise Forked(agent=local.agent, trouble=trouble.kind, reason=trouble.reason)
        return Seen(head, answer.etag if answer else "", answer)

    def _read_up(self, local: Local, seen: Seen) -> Seen:
        """Bring this store's log up to a head, or a later one where its objects were replaced meanwhile.

        Raises:
            BadHead: an object that the head needs is missing.
            RemoteUnreachable: they are replaced faster than they can be read.
            Forked.
        """
        for _ in range(_REPLANS):
            assert seen.head is not None
            try:
                if local.catch_up(self.bucket, seen.head, self._shipped(local, seen.head)):
                    self._packer(local).file_asides()
                return seen
            except Replaced as gone:
                again = self._look(local)
                if again.head is None or again.head.rev == seen.head.rev:
                    raise BadHead(agent=local.agent, reason=f"{gone.key} is missing") from gone
                seen = again
        reason = "its objects were replaced faster than they could be read"
        raise RemoteUnreachable(remote=self.bucket.name, reason=reason)

    def _shipped(self, local: Local, head: Head) -> tuple[int, bytes]:
        """Up to where this log and the bucket's were the same when this store last looked."""
        mark = self.store.mark(local.agent)
        last, link = local.last()
        if mark is not None and mark.head:
            return mark.lsn, mark.hash
        if not last:
            return head.base, head.base_hash
        return (head.last, head.hash) if local.hash_at(head.last) == head.hash else (last, link)

    def _refuse_trouble(self, mark: Mark | None) -> None:
        if mark is not None and mark.trouble:
            raise Forked(agent=mark.agent, trouble=mark.trouble, reason="found earlier, and not mended since")

    def _check_attached(self) -> None:
        """Raise RemoteChanged unless it is still this bucket that decides."""
        now = self.store.remote()
        if now is None or (now.state, now.generation) != (self.remote.state, self.remote.generation):
            reason = "it was attached to a bucket anew, or detached from it, since it was opened"
            raise RemoteChanged(path=self.store.directory, reason=reason)

    def _locked(self, agent: str) -> AbstractContextManager[None]:
        return agent_lock(self.store.directory, agent, self.patience)

    def _packer(self, local: Local) -> Packer:
        return Packer(local, self.bucket, self._limits)

    def _stamp(self) -> Stamp:
        return Stamp(self.store.random.hex(32), self.store.clock.now())

    def _local(self, agent: str) -> Local:
        return Local(self.store, agent, self._heads)


class Tries:
    """Attempts at one thing, until the patience is over.

    Args:
        error: what is raised then, made of the last reason.
        most: seconds, where there is reason for less patience than the looker's.
    """

    def __init__(self, looker: Looker, error: Callable[[str], RecallError], most: float = math.inf) -> None:
        self._looker, self._error, self._most = looker, error, most
        self._since = looker.store.clock.now()
        self._pause = _FIRST_PAUSE

    def again(self, reason: str) -> None:
        """Wait a little before the next attempt, or raise when there was patience enough."""
        it = self._looker
        if protocol.elapsed_ms(self._since, it.store.clock.now()) >= min(it.patience, self._most) * 1000:
            raise self._error(reason)
        jitter = 0.5 + int(it.store.random.hex(4), 16) / 0x10000
        it.pause(self._pause * jitter)
        self._pause = min(self._pause * 2, _MOST_PAUSE)
