"""A store that ships: SQLite where the records are written, a bucket that decides who may write them.

It keeps the promises of ``store.backend.Backend`` and adds one: what starts a
call that may touch the world returns only when the bucket has the intent, so
that it survives the loss of the whole machine.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from store.backend import Acquired
from store.backends.sqlite import SqliteBackend
from store.errors import LeaseExpired, RecallError
from store.lease import Fence, Lease, LeaseRequest
from store.records import Draft, Expect, Record
from store.shipping import protocol
from store.shipping.bucket import Bucket
from store.shipping.protocol import Ship
from store.shipping.shipper import Shipper

_PENDING_BYTES = 32 * 1024  # of lazy records that are shipped without waiting for the next occasion


class ShippingBackend(SqliteBackend):
    """``SqliteBackend`` on a store that is attached to a bucket.

    Args:
        bucket: opened on the remote that the store is attached to.
        ship: ``barrier``, ``lazy`` or ``off`` (``RECALL_SHIP``).
        background: ship in a thread of this process what nobody waits for.
        options: those of ``SqliteBackend``.
    """

    def __init__(
        self,
        directory: str,
        bucket: Bucket,
        *,
        ship: Ship = "barrier",
        background: bool = False,
        patience: float = 30.0,
        interval: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(directory, **options)
        self.ship: str = ship
        remote = self.remote()
        assert remote is not None
        self.shipper = Shipper(self, bucket, remote, ship=ship, patience=patience, interval=interval)
        self._mine: set[Fence] = set()
        self._worker = Worker(self.shipper) if background else None
        self._pending: dict[str, int] = {}

    # -- the lease: the bucket's -----------------------------------------------------------

    def acquire(self, request: LeaseRequest) -> Acquired:
        acquired = self.shipper.acquire(request)
        self._mine.add(acquired.lease.fence)
        return acquired

    def renew(self, fence: Fence) -> Lease:
        self.shipper.push(fence, renew=True, look=True)
        lease = self.lease(fence.agent)
        assert lease is not None
        return lease

    def release(self, fence: Fence) -> bool:
        if self._worker is not None:
            self._worker.forget(fence)
        released = self.shipper.release(fence)
        self._mine.discard(fence)
        return released

    # -- the log -----------------------------------------------------------------------------

    def append(
        self, fence: Fence, drafts: Sequence[Draft], expect: Sequence[Expect] = (), *, renew: bool = False
    ) -> list[Record]:
        self._check_in_time(fence)
        # The row is a cache of what the bucket granted: only a write to the bucket makes it last longer.
        records = super().append(fence, drafts, expect, renew=False)
        how = protocol.urgency(drafts) if self.ship == "barrier" else "lazy"
        if how == "barrier":
            self.shipper.push(fence, want=records[-1].lsn)
        elif how == "soon":
            self._soon(fence, session=renew)
        else:
            self._later(fence, records)
        if renew:
            self._renew_if_due(fence)
        return records

    def _check_in_time(self, fence: Fence) -> None:
        """Refuse under a lease that is over by either clock: one of them may stand still or be set (rule 6)."""
        lease = self.lease(fence.agent)
        if lease is None or not lease.is_of(fence):
            return  # the append itself says so
        late = protocol.elapsed_ms(lease.renewed, self.clock.now()) - lease.ttl_ms
        if lease.state == "held" and late >= 0:
            raise LeaseExpired(agent=fence.agent, epoch=fence.epoch, ago=f"{late / 1000:.1f} s")

    def _soon(self, fence: Fence, *, session: bool) -> None:
        if self._worker is not None:
            self._worker.wake(fence)
        elif session or fence not in self._mine:
            self.shipper.push(fence)
        # Else this process gives the lease back in a moment, and its release ships everything.

    def _later(self, fence: Fence, records: Sequence[Record]) -> None:
        """Ship lazy records when there are many; else they wait for the next occasion."""
        if self._worker is None or self.ship == "off":
            return
        size = self._pending.get(fence.agent, 0) + sum(len(each.line) for each in records)
        if size >= _PENDING_BYTES:
            size = 0
            self._worker.wake(fence)
        self._pending[fence.agent] = size

    def _renew_if_due(self, fence: Fence) -> None:
        lease = self.lease(fence.agent)
        if lease is not None and protocol.elapsed_ms(lease.renewed, self.clock.now()) * 2 >= lease.ttl_ms:
            self.shipper.push(fence, renew=True)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()
        super().close()


class Worker:
    """Ships in the background what nobody waits for; what fails waits for the next occasion."""

    def __init__(self, shipper: Shipper) -> None:
        self._shipper = shipper
        self._wanted: set[Fence] = set()
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def wake(self, fence: Fence) -> None:
        """Ship an agent's log soon."""
        with self._condition:
            self._wanted.add(fence)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="recall-ship")
                self._thread.start()
            self._condition.notify()

    def forget(self, fence: Fence) -> None:
        """Its release ships everything."""
        with self._condition:
            self._wanted.discard(fence)

    def stop(self) -> None:
        """Take nothing more on, and end."""
        with self._condition:
            self._stopped = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._wanted and not self._stopped:
                    self._condition.wait()
                if self._stopped:
                    return
                fence = self._wanted.pop()
            try:
                self._shipper.push(fence)
                self._shipper.maintain(fence)
            except RecallError:
                pass  # the records are stored; the next barrier, renewal or release sends them
