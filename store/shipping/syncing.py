"""How far each log of a store is in its bucket, and bringing either side up to the other by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from store.asides import asides
from store.backend import all_leases
from store.clock import rfc3339
from store.errors import NotFound
from store.lease import DEFAULT_TTL_MS, Fence, LeaseRequest
from store.process import provably_dead, this_process
from store.remote_errors import BadHead, NotShipped, RemoteNewer, RemoteRefused, RemoteUnreachable
from store.shipping import protocol
from store.shipping.bucket import Bucket
from store.shipping.fetch import head_key
from store.shipping.head import Head
from store.shipping.local import Local
from store.shipping.packing import Limits, Packer
from store.value import value

if TYPE_CHECKING:
    from store.backends.sqlite import SqliteBackend
    from store.shipping.backend import ShippingBackend

_MERGES = 100  # of one push


@value
class Status:
    """One agent: what is stored here, and what of it is known to be in the bucket.

    Attributes:
        stored, shipped: the last lsn here, and in the bucket; 0 for none.
        pending_records, pending_bytes: what the bucket is not known to have; bytes of lines, without blobs.
        pending_since: when the oldest of it was written, RFC 3339, or "".
        shipped_at: when this store sent the version that the bucket was last seen to have, RFC 3339; "" if another did.
        ship: the weakest mode that the lease's incarnation wrote in; "" where the bucket has no head.
        lease: ``held``, ``released`` or ``deleted``, as the head was last seen; "" without one.
        holder, epoch: of the lease, as last seen.
        here: whether that lease was granted to this store.
        trouble: why nothing is written any more, or "".
        asides: how many parts of the log were set aside here.
        imported: it is a copy of a log, which is shipped from its first lease here on; nothing of it is pending.
    """

    agent: str
    stored: int
    shipped: int
    pending_records: int
    pending_bytes: int
    pending_since: str
    shipped_at: str
    ship: str
    lease: str
    holder: str
    epoch: int
    here: bool
    trouble: str
    asides: int
    imported: bool


def statuses(store: SqliteBackend) -> Iterator[Status]:
    """Of all agents, by id."""
    for lease in all_leases(store):
        yield status(store, lease.agent)


def status(store: SqliteBackend, agent: str) -> Status:
    """Of one agent. Reads no more of the log than what is pending. Raises NotFound."""
    with store.reading():
        lease = store.lease(agent)
        if lease is None:
            raise NotFound(what="agent", name=agent, hint="list the agents with: recall agents list")
        local = Local(store, agent)
        known, stored, mark = local.known(), local.last()[0], store.mark(agent)
    shipped = known[0].lsn if known else 0
    records, size, since = 0, 0, ""
    for each in local.records(shipped, stored) if not lease.imported else ():
        records, size, since = records + 1, size + len(each.line), since or each.at
    head = known[1] if known else None
    sent = mark.sent.wall_us if mark else 0
    return Status(
        agent=agent,
        stored=stored,
        shipped=shipped,
        pending_records=records,
        pending_bytes=size,
        pending_since=since,
        shipped_at=rfc3339(sent) if sent else "",
        ship=head.lease.ship if head else "",
        lease=("held" if head.state == "live" else head.state) if head else "",
        holder=head.lease.holder if head else lease.holder,
        epoch=head.epoch if head else lease.epoch,
        here=head is not None and head.lease.dir == store.store_id,
        trouble=mark.trouble if mark else "",
        asides=len(asides(store, agent)),
        imported=lease.imported,
    )


@value
class Seen:
    """What the bucket itself says of an agent.

    Attributes:
        lsn, epoch: of its head; 0 without one.
        lease: as in ``Status``.
        holder: of the lease.
        trouble: what contradicts what this store has seen of it, or "".
    """

    lsn: int
    epoch: int
    lease: str
    holder: str
    trouble: str


def look(store: SqliteBackend, bucket: Bucket, agent: str) -> Seen:
    """Ask the bucket, and write nothing.

    Raises:
        RemoteUnreachable, RemoteRefused.
    """
    answer = bucket.get(head_key(agent))
    try:
        head = Head.parse(answer.body, agent) if answer else None
    except (BadHead, RemoteNewer) as problem:  # one agent's trouble; the others are to be seen all the same
        return Seen(0, 0, "", "", problem.message)
    known = Local(store, agent).known()
    found = protocol.regression(head, known[1]) if known else None
    trouble = f"{found.kind}: {found.reason}".rstrip(": ") if found else ""
    if head is None:
        return Seen(0, 0, "", "", trouble)
    return Seen(head.last, head.epoch, "held" if head.state == "live" else head.state, head.lease.holder, trouble)


@value
class Pushed:
    """What one push came to.

    Attributes:
        outcome: ``nothing`` was pending; ``shipped`` under the lease that a process here holds; ``carried`` under
            one that was taken for it; ``aside``: what was pending had to be set aside.
        records: how many were pending.
        lsn: the last one that the bucket has now.
    """

    agent: str
    outcome: Literal["nothing", "shipped", "carried", "aside"]
    records: int
    lsn: int


def push(store: ShippingBackend, agent: str) -> Pushed:
    """Ship what is pending of one agent, and put what was set aside into the bucket too.

    Raises:
        NotFound; LeaseHeld: somebody elsewhere acts for the agent.
        Forked, NotShipped, RemoteUnreachable, RemoteRefused.
    """
    before = status(store, agent)
    outcome: Literal["nothing", "shipped", "carried", "aside"] = "nothing"
    if before.pending_records or before.imported:
        outcome = "shipped" if _under_its_holder(store, agent) else _under_a_lease_of_its_own(store, before)
    Packer(Local(store, agent), store.shipper.bucket, Limits()).file_asides()
    mark = store.mark(agent)
    return Pushed(agent, outcome, before.pending_records, mark.lsn if mark else 0)


def _under_its_holder(store: ShippingBackend, agent: str) -> bool:
    """Ship under the lease of a process here that lives; False if there is none."""
    lease, known = store.lease(agent), Local(store, agent).known()
    if lease is None or known is None or not lease.live(store.clock.now()) or provably_dead(lease.process):
        return False
    if known[1].fence != lease.fence or known[1].lease.dir != store.store_id:
        return False
    store.shipper.push(lease.fence)
    _tidy(store, lease.fence)
    return True


def _tidy(store: ShippingBackend, fence: Fence) -> None:
    """Merge what short processes left in small objects, some of it at a time."""
    with suppress(RemoteUnreachable, RemoteRefused, NotShipped):  # what matters is shipped
        for _ in range(_MERGES):
            if not store.shipper.maintain(fence):
                return


def _under_a_lease_of_its_own(store: ShippingBackend, before: Status) -> Literal["carried", "aside"]:
    process = this_process()
    request = LeaseRequest(
        before.agent, store.random.hex(32), f"push:{process.host}:{process.pid}", process, DEFAULT_TTL_MS
    )
    fence = store.acquire(request).lease.fence
    _tidy(store, fence)
    store.release(fence)
    return "aside" if len(asides(store, before.agent)) > before.asides else "carried"


@value
class Pulled:
    """What one pull came to.

    Attributes:
        outcome: ``fetched``; ``nothing`` was new; ``absent``: the bucket has no such agent.
        records: how many came.
        lsn: the last one here.
        aside: records of this store had to be set aside for them.
    """

    agent: str
    outcome: Literal["fetched", "nothing", "absent"]
    records: int
    lsn: int
    aside: bool


def pull(store: ShippingBackend, agent: str) -> Pulled:
    """Fetch what the bucket has of one agent and this store has not; no lease is taken.

    Raises:
        Forked, BadHead, RemoteUnreachable, RemoteRefused.
    """
    before, branches = store.counters(agent).lsn, len(asides(store, agent))
    head = store.shipper.pull(agent)
    after, aside = store.counters(agent).lsn, len(asides(store, agent)) > branches
    if head is None:
        return Pulled(agent, "absent", 0, after, False)
    came = after - before if not aside else after
    return Pulled(agent, "fetched" if came > 0 or aside else "nothing", max(0, came), after, aside)
