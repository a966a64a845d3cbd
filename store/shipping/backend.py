"""A store that ships: SQLite where the records are written, a bucket that decides who may write them.

It keeps the promises of ``store.backend.Backend``, and its ``secure`` returns
only when the bucket has the record, so that the intent of a call survives the
loss of the whole machine.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from store.backend import Acquired
from store.backends.sqlite import SqliteBackend
from store.clock import Instant
from store.errors import BadRecord, InvalidInput, LeaseExpired, LeaseHeld, RecallError, Unavailable
from store.lease import Fence, Lease, LeaseRequest, check_fence
from store.records import ACTION, Draft, Expect, Record
from store.running import may_be_acting
from store.shipping import protocol
from store.shipping.bucket import Bucket
from store.shipping.inbox import BucketInbox
from store.shipping.local import Local
from store.shipping.packing import Limits
from store.shipping.protocol import Ship
from store.shipping.shipper import BRIEFLY, Shipper
from store.shipping.worker import Worker
from store.values import Action

IDLE_MS = 300_000  # without a record; a held lease is then given back until the next one
_PENDING_BYTES = 32 * 1024  # of lazy records that are shipped without waiting for the next occasion
_OPEN_LOOKED_AT = 50


class ShippingBackend(SqliteBackend):
    """``SqliteBackend`` on a store that is attached to a bucket.

    Args:
        bucket: opened on the remote that the store is attached to.
        ship: when an intent has to be in the bucket.
        background: this process lives on: a thread of it ships what nobody waits
            for, and a lease that is held without a record is given back meanwhile.
        patience: seconds after which a write to the bucket whose outcome is not known is given up.
        interval: the least seconds between two writes to one object, for stores that ask for it.
        options: those of ``SqliteBackend``.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        bucket: Bucket,
        *,
        ship: Ship = "barrier",
        background: bool = False,
        patience: float = 30.0,
        interval: float = 0.0,
        limits: Limits = Limits(),  # noqa: B008 (a value)
        **options: Any,
    ) -> None:
        super().__init__(directory, **options)
        self.ship = ship
        remote = self.remote()
        assert remote is not None
        self.shipper = Shipper(self, bucket, remote, ship=ship, patience=patience, interval=interval, limits=limits)
        self._worker = Worker(self.shipper) if background else None
        self.inbox: BucketInbox = BucketInbox(self, bucket)
        self._acquired: set[Fence] = set()  # by this process, and not released yet
        self._pending: dict[str, int] = {}  # bytes
        self._written: dict[str, Instant] = {}
        self.idle_ms = IDLE_MS

    # -- the lease: the bucket's -----------------------------------------------------------

    def acquire(self, request: LeaseRequest) -> Acquired:
        acquired = self.shipper.acquire(request)
        self._acquired.add(acquired.lease.fence)
        self._written[request.agent] = acquired.lease.renewed
        return acquired

    def renew(self, fence: Fence) -> Lease:
        row, now = self.lease(fence.agent), self.clock.now()
        if row is not None and row.is_of(fence) and row.ttl_ms == 0:
            return row  # given back for as long as nothing is written
        lease = check_fence(row, fence, now)
        if self._is_idle(fence):
            self.shipper.release(fence, park=True)
        elif protocol.elapsed_ms(lease.renewed, now) * 4 >= lease.ttl_ms:
            # Else another process of the session was just here.
            self.shipper.push(fence, renew=True, look=True, most=math.inf if self._worker is None else BRIEFLY)
        return self.lease(fence.agent) or lease

    def _is_idle(self, fence: Fence) -> bool:
        """Whether nothing was written for long, and no call is under way that a successor would have to settle."""
        since = self._written.get(fence.agent)
        if self._worker is None or since is None or protocol.elapsed_ms(since, self.clock.now()) < self.idle_ms:
            return False
        opened = self.in_force(fence.agent, ACTION, limit=_OPEN_LOOKED_AT)
        return len(opened) < _OPEN_LOOKED_AT and not any(_is_under_way(each, fence) for each in opened)

    def release(self, fence: Fence) -> bool:
        if self._worker is not None:
            self._worker.forget(fence)
        else:  # nobody else keeps the head of short processes small
            with suppress(RecallError):
                self.shipper.maintain(fence, crowded=True)
        released = self.shipper.release(fence)
        self._acquired.discard(fence)
        return released

    # -- the log -----------------------------------------------------------------------------

    def append(
        self, fence: Fence, drafts: Sequence[Draft], expect: Sequence[Expect] = (), *, renew: bool = False
    ) -> list[Record]:
        self._check_in_time(fence)
        # The row is a cache of what the bucket granted: only a write to the bucket makes it last longer.
        records = super().append(fence, drafts, expect, renew=False)
        self._written[fence.agent] = self.clock.now()
        if self.ship == "barrier" and protocol.is_urgent(drafts):
            self._ship_soon(fence)
        else:
            self._ship_later(fence, records)
        if renew:
            self._renew_if_due(fence)
        return records

    def secure(self, fence: Fence, record: Record) -> None:
        if self.ship == "barrier":
            try:
                self.shipper.push(fence, want=record)
            except Unavailable:
                if self._worker is None:  # a short process has been patient once; it ends soon, and says so
                    self.shipper.patience = 0.0
                raise
            self._check_in_time(fence)  # the answer may have taken longer than the lease lasts

    def send(self, fence: Fence) -> None:
        if self.ship != "off":
            self.shipper.push(fence)

    def shipped(self, agent: str) -> int:
        """Up to which lsn the bucket is known to have the agent's log."""
        mark = self.mark(agent)
        return mark.lsn if mark else 0

    def granted_here(self, agent: str) -> bool:
        lease, known = self.lease(agent), Local(self, agent).known()
        if lease is None or known is None:
            return False
        return known[1].lease.dir == self.store_id and lease.is_of(known[1].fence)

    def _check_in_time(self, fence: Fence) -> None:
        """Refuse under a lease that is over by either clock: one of them may stand still or be set (rule 6)."""
        lease = self.lease(fence.agent)
        if lease is None or not lease.is_of(fence):
            return  # the append itself says so
        late = protocol.elapsed_ms(lease.renewed, self.clock.now()) - lease.ttl_ms
        if lease.state == "held" and late >= 0:
            raise LeaseExpired(agent=fence.agent, epoch=fence.epoch, ago=f"{late / 1000:.1f} s")

    def _ship_soon(self, fence: Fence) -> None:
        if self._worker is not None:
            self._worker.wake(fence)
        elif fence not in self._acquired:
            with suppress(Unavailable):  # it is stored, and the next barrier waits for it
                self.shipper.push(fence)
        # Else this short process gives the lease back in a moment, and that ships everything.

    def _ship_later(self, fence: Fence, records: Sequence[Record]) -> None:
        """Lazy records wait for the next occasion, unless there are many."""
        if self._worker is None or self.ship == "off":
            return
        size = self._pending.get(fence.agent, 0) + sum(len(each.line) for each in records)
        if size >= _PENDING_BYTES:
            size = 0
            self._worker.wake(fence)
        self._pending[fence.agent] = size

    def _renew_if_due(self, fence: Fence) -> None:
        """Renew a shell session's lease, whose only thread is its commands."""
        lease = self.lease(fence.agent)
        if lease is not None and protocol.elapsed_ms(lease.renewed, self.clock.now()) * 2 >= lease.ttl_ms:
            with suppress(Unavailable):  # what was written is stored, and the next command tries again
                self.shipper.push(fence, renew=True)

    # -- a prune ---------------------------------------------------------------------------------

    def check_prunable(self, agent: str) -> None:
        if self.ship == "off":
            reason = "off ships nothing, and a prune has to ship before it deletes"
            raise InvalidInput(field="RECALL_SHIP", reason=reason, hint="prune with RECALL_SHIP=barrier")
        head, lease = self.shipper.look(agent).head, self.lease(agent)
        if head is None or head.state != "live" or head.lease.dir == self.store_id:
            return
        if lease is not None and may_be_acting(lease, self.clock.now()):  # else the lease is taken, if it is free
            until = head.lease.expires_hint or "it expires"
            raise LeaseHeld(agent=agent, holder=head.lease.holder, epoch=head.epoch, until=until)

    def rebase(self, fence: Fence, base: int) -> None:
        self.shipper.rebase(fence, base)

    # -- the handle's life ---------------------------------------------------------------------

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()
        super().close()


def _is_under_way(record: Record, fence: Fence) -> bool:
    """Whether an open action is one that this actor may be carrying out; one that cannot be read is not."""
    try:
        action = Action.read(record)
    except BadRecord:
        return False
    return action.status == "started" and action.incarnation == fence.incarnation
