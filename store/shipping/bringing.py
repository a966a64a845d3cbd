"""What attaching, detaching and repairing have in common: heads that are written while nobody acts for the agent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from store.backend import all_leases
from store.backends.sqlite.ledger import Ledger
from store.backends.sqlite.marks import Remote
from store.clock import rfc3339_seconds
from store.errors import LeaseHeld
from store.lease import DEFAULT_TTL_MS, Lease, LeaseRequest
from store.process import provably_dead, this_process
from store.remote_errors import RemoteRefused, RemoteUnreachable
from store.shipping import protocol
from store.shipping.bucket import Bucket, Dialect
from store.shipping.fetch import head_key
from store.shipping.head import Head, lineage_starts
from store.shipping.local import Local, cached, lineage_at
from store.shipping.locking import agent_lock
from store.shipping.looking import Tries
from store.shipping.shipper import Shipper
from store.value import value

if TYPE_CHECKING:
    from store.backends.sqlite import SqliteBackend

Outcome = Literal[
    "shipped", "continued", "fetched", "adopted", "imported", "taken", "forked", "kept", "damaged", "trouble"
]
Watch = Callable[[list[str]], Iterable[str]]

TRIES = 5
_LOCK = "this store"  # has a space, so it is no agent's
_LOCK_TIMEOUT = 30.0


@value
class Report:
    """What became of one agent.

    Attributes:
        outcome: ``shipped``: the bucket has its log now. ``continued``: it had it, and goes on from there.
            ``fetched``: it had more of it, and that is here now. ``adopted``: the log here was set aside for the
            bucket's. ``imported``: a copy, which is shipped under a lineage of its own from its first lease on.
            ``taken``, ``forked``, ``kept``: of a detaching. ``damaged``: a record of it is, so it is not shipped.
            ``trouble``: it has to be mended first.
        lsn: of its last record here.
        detail: what is damaged, or what the trouble is, or "".
    """

    agent: str
    outcome: Outcome
    lsn: int
    detail: str = ""


def store_lock(store: SqliteBackend) -> AbstractContextManager[None]:
    """While it is held no other process attaches this store or detaches it."""
    return agent_lock(store.directory, _LOCK, _LOCK_TIMEOUT)


def changed_too_fast(bucket: Bucket, agent: str) -> RemoteUnreachable:
    """Others wrote the head at every attempt."""
    return RemoteUnreachable(remote=bucket.name, reason=f"the head of {agent} changed faster than it was read")


class Bringing(Shipper):
    """A shipper that also writes heads without acting for an agent: each is written released, or deleted."""

    def __init__(self, store: SqliteBackend, bucket: Bucket, remote: Remote, *, force: bool) -> None:
        super().__init__(store, bucket, remote, interval=Dialect.from_json(remote.dialect).min_interval)
        self.force = force

    def request(self, agent: str) -> LeaseRequest:
        """What an epoch is asked for with that nobody acts under."""
        process = this_process()
        holder = f"operator:{process.host}:{process.pid}"
        return LeaseRequest(agent, self.store.random.hex(32), holder, process, DEFAULT_TTL_MS, breaking=self.force)

    def written(
        self, local: Local, base: Head, request: LeaseRequest, etag: str, *, deleted: bool = False, least_rev: int = 0
    ) -> bool:
        """Write a head under a new epoch, and keep it here; False if somebody else wrote first.

        Args:
            base: it goes on from this; what it names is in the bucket.
            least_rev: its ``rev`` is above this too.
        """
        row, stamp = self.store.lease(local.agent), self._stamp()
        base = replace(base, rev=max(base.rev, least_rev))
        store = self.store.store_id
        head = protocol.taken(base, request, stamp, store=store, highest=row.epoch if row else 0, ship="barrier")
        head = protocol.renewed(head, stamp, opened=local.opened(), state="released")
        head = replace(head, state="deleted") if deleted else head
        new = self._put(local.agent, head, etag)
        if new:
            now = self.store.clock.now()
            local.learn(head, new, lease=cached(head, row, now), sent=stamp.now)
        return bool(new)

    def _put(self, agent: str, head: Head, etag: str) -> str:
        """The ETag of a version that was written; "" if another one came first."""
        key = head_key(agent)
        tries = Tries(self, lambda reason: RemoteUnreachable(remote=self.bucket.name, reason=reason))
        while True:
            swap = self.bucket.swap(key, head.encode(), etag or None)
            if swap.outcome == "done":
                return swap.etag
            if swap.outcome == "refused":
                raise RemoteRefused(remote=self.bucket.name, reason=swap.reason)
            found = self.bucket.get(key)
            if found is not None and Head.parse(found.body, agent).wid == head.wid:
                return found.etag
            if (found.etag if found else "") != etag:
                return ""
            tries.again(swap.reason)

    def end_leases(self, ledger: Ledger) -> None:
        """Within a transaction: no process acts for an agent of this store any more.

        Raises:
            LeaseHeld: one does, and it is not to be forced.
        """
        now = self.store.clock.now()
        for lease in all_leases(self.store):
            if not _held_here(self.store, lease):
                continue
            if not self.force:
                until = rfc3339_seconds(now.wall_us + max(0, lease.left_ms(now)) * 1000)
                raise LeaseHeld(
                    agent=lease.agent,
                    holder=lease.holder,
                    epoch=lease.epoch,
                    until=until,
                    hint=f"let it finish, or fence it with --force; who it is: recall lease show {lease.agent}",
                )
            ledger.put_lease(replace(lease, state="released"))


def _held_here(store: SqliteBackend, lease: Lease) -> bool:
    """Whether a process acts for an agent under a lease of this very store."""
    if not lease.live(store.clock.now()) or provably_dead(lease.process):
        return False
    known = Local(store, lease.agent).known()
    return known is None or not known[0].head or known[1].lease.dir == store.store_id


def set_all_aside(local: Local, head: Head, reason: str) -> None:
    """Leave the log here as evidence, and start with the bucket's."""
    lease = local.store.lease(local.agent)
    assert lease is not None
    now = local.store.clock.now()
    lineage = lineage_at(head, head.base + 1)
    base_hash = lineage_starts(head).get(head.base, head.base_hash)
    local.store.shipping(lambda ledger: ledger.start_over(lease, lineage, head.base, base_hash, reason, now))
