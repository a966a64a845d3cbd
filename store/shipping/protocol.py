"""Every decision of the protocol, as pure functions: no clock, no storage, no network.

The rules and their numbers are those of docs/shipping.md. An exhaustive search
over small configurations (tests/shipping/model.py) runs these very functions,
and finds a counterexample when a rule is taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from store.canonical import first_hash
from store.clock import Instant, rfc3339_seconds
from store.lease import Fence, LeaseRequest
from store.process import Process
from store.records import ACTION, CARRIED, OPEN_STATUSES, Draft
from store.shipping.head import Ended, Head, HeadLease, Open, Origin, reached
from store.shipping.references import Segment
from store.value import value

Ship = Literal["barrier", "lazy", "off"]
MODES: tuple[Ship, ...] = ("off", "lazy", "barrier")  # from the weakest


def as_mode(text: str) -> Ship:
    """A mode of its name; of one that is not known, the weakest."""
    return next((mode for mode in MODES if mode == text), MODES[0])


SKEW_MS = 5_000  # beyond the ttl, by the store's own clock: its times are whole seconds
_EPOCHS_KEPT = 32
_OPEN_KEPT = 64


# -- after a conditional write whose answer is not a plain yes (rules 3 and 4) ---------------


@value
class Durable:
    """The record is in the head, and the lease is still ours."""


@value
class Again:
    """The lease is ours and the record is not there; an earlier PUT may yet land, so send the same records."""


@value
class Lost:
    """Another epoch, another incarnation, or records that this store does not know.

    Attributes:
        landed: whether the record is in the log all the same; None where the head alone cannot tell.
    """

    landed: bool | None


@value
class Trouble:
    """The bucket contradicts what it said before; nobody writes until a person has looked."""

    kind: str  # forked, remote regressed, head missing, store broken
    reason: str


Verdict = Durable | Again | Lost | Trouble


def judge(head: Head | None, fence: Fence, seen: Head, *, want: int, known: Callable[[int], bytes | None]) -> Verdict:
    """What a head that was just read says about a record that was just sent.

    Args:
        seen: the newest head that this store knew of.
        want: the lsn of the record in question.
        known: this store's hash at an lsn of its log, or None.
    """
    trouble = regression(head, seen)
    if trouble is not None or head is None:
        return trouble or Trouble("head missing", "")
    if (head.epoch, head.lease.inc) != (fence.epoch, fence.incarnation):
        return Lost(_landed(head, fence.epoch, want, known))
    if known(head.last) != head.hash:
        return Lost(False)  # a clone of us wrote what we do not know: everything else may match
    return Durable() if head.last >= want else Again()


def _landed(head: Head, epoch: int, want: int, known: Callable[[int], bytes | None]) -> bool | None:
    """Whether our record is in a log that others went on with: by its hash, or by where our epoch ended."""
    if head.last < want:
        return False
    there = head.hash_at(want)
    if there is not None:
        return there == known(want)
    ended = next((each for each in head.epochs if each.e == epoch), None)
    return None if ended is None else ended.last >= want and known(ended.last) == ended.hash


def regression(head: Head | None, seen: Head) -> Trouble | None:
    """Whether a head is older than, or another than, the one that this store has seen (rule 10)."""
    if head is None:
        return Trouble("head missing", f"this store has seen it up to lsn {seen.last}, and it is gone")
    if seen.lineage not in (head.lineage, *(each.lineage for each in head.origins)):
        return Trouble("forked", f"the bucket has lineage {head.lineage[:8]}…, this store knew {seen.lineage[:8]}…")
    if head.rev < seen.rev or head.last < seen.last or head.epoch < seen.epoch:
        return Trouble(
            "remote regressed",
            f"the bucket has revision {head.rev}, epoch {head.epoch}, up to lsn {head.last}; "
            f"this store has seen revision {seen.rev}, epoch {seen.epoch}, up to lsn {seen.last}",
        )
    if head.rev == seen.rev and head.wid != seen.wid:
        return Trouble(
            "store broken", f"revision {head.rev} was written twice: the store does not hold to the conditions of a PUT"
        )
    return None


# -- who may have the lease (rules 5, 6 and 14) -----------------------------------------------


def takeover_reason(
    head: Head | None,
    request: LeaseRequest,
    *,
    store: str,
    highest: int,
    known: Callable[[int], bytes | None],
    since: Instant | None,
    now: Instant,
    answered: float | None = None,
    modified: float | None = None,
    dead: Callable[[Process], bool] = lambda process: False,
) -> str | None:
    """Why a contender may take the lease, or None if it has to wait.

    Args:
        store: the contender's store.
        highest: the highest epoch that it knows.
        known: its hash at an lsn of its log, or None.
        since: when the contender's store first knew of this revision of the head, or None.
        answered, modified: the answer's Date and Last-Modified, in seconds; one clock, the bucket's.
        dead: whether a process is provably dead.
    """
    ours = head is not None and (head.lease.inc, head.lease.dir) == (request.incarnation, store)
    unseen = head is not None and ours and head.epoch > highest  # granted, and the answer, or the row here, was lost
    if request.again is not None:
        if head is None or head.state == "deleted" or not (unseen or head.fence == request.again):
            return None
        # A record that this store does not know: a copy of it has acted under this very lease.
        return "again" if known(head.last) == head.hash else None
    if head is None:
        return "first"
    if head.state != "live":
        return "released"
    if unseen:
        return "again"
    if request.breaking:
        return "broken"
    # The fast path is for the very directory: a copy of it elsewhere knows nothing of this process.
    if head.lease.dir == store and dead(head.lease.process):
        return "dead"
    if answered is not None and modified is not None and (answered - modified) * 1000 > head.lease.ttl_ms + SKEW_MS:
        return "expired"
    if since is not None and elapsed_ms(since, now, at_least=True) >= head.lease.ttl_ms:
        return "expired"
    return None


def elapsed_ms(since: Instant, now: Instant, *, at_least: bool = False) -> int:
    """Milliseconds between two moments of one machine.

    Args:
        at_least: the smaller of what the two clocks say, for a contender, who must not be early;
            else the larger, for a holder, who must not be late.
    """
    wall = (now.wall_us - since.wall_us) // 1000
    if not now.boot_id or now.boot_id != since.boot_id:
        return wall
    boot = now.boot_ms - since.boot_ms
    return min(boot, wall) if at_least else max(boot, wall)


def holder_ttl_ms(ttl_ms: int) -> int:
    """For how long a holder starts anything new after a renewal was sent: two thirds (rule 6)."""
    return ttl_ms * 2 // 3


# -- what a takeover does with the records that were not shipped (rule 5) -----------------------


@value
class Unshipped:
    """The records of a store's log above what the bucket was known to hold.

    Attributes:
        after, hash: the last shipped record, and the chain's hash after it.
        epochs: those of the records.
    """

    after: int
    hash: bytes
    epochs: frozenset[int]


def may_carry(head: Head, store: str, tail: Unshipped) -> bool:
    """Whether a takeover may take a store's unshipped records along: whole, or not at all."""
    return tail.epochs <= {head.epoch} and head.lease.dir == store and (tail.after, tail.hash) == (head.last, head.hash)


# -- the next version of a head --------------------------------------------------------------


@value
class Stamp:
    """What every version needs: a random id, and when it is made."""

    wid: str
    now: Instant


def blank(
    remote: str, request: LeaseRequest, lineage: str, origins: tuple[Origin, ...], *, store: str, epoch: int
) -> Head:
    """What the first head of a log goes on from.

    Args:
        remote: the remote's id.
        epoch: the highest that this store has given to the agent, or 0.
    """
    first = first_hash(origins[0].lineage if origins else lineage, request.agent)
    lease = HeadLease(request.incarnation, store, request.holder, request.process, "barrier", request.ttl_ms)
    return Head(remote, request.agent, lineage, "released", 0, "", epoch, lease, 0, first, 0, first, 1, origins)


def taken(head: Head, request: LeaseRequest, stamp: Stamp, *, store: str, highest: int, ship: Ship) -> Head:
    """The head under a new epoch.

    Args:
        store: the contender's store.
        highest: the highest epoch that it knows (rule 14).
    """
    ended = (Ended(head.epoch, head.last, head.hash),) if head.epoch else ()
    return replace(
        head,
        state="live",
        rev=head.rev + 1,
        wid=stamp.wid,
        epoch=max(head.epoch, highest) + 1,
        epochs=(*head.epochs, *ended)[-_EPOCHS_KEPT:],
        lease=_lease_of(request, stamp, store, ship),
    )


def _lease_of(request: LeaseRequest, stamp: Stamp, store: str, ship: Ship) -> HeadLease:
    expires = rfc3339_seconds(stamp.now.wall_us + request.ttl_ms * 1000)
    return HeadLease(request.incarnation, store, request.holder, request.process, ship, request.ttl_ms, 0, expires)


def extended(head: Head, lines: Sequence[bytes], segments: Sequence[Segment] = ()) -> Head:
    """The head with more of the log.

    Args:
        segments: they hold the tail and what comes after it, up to ``lines``.
    """
    start = (head.last, head.hash)
    if segments:
        start = (segments[-1].l, segments[-1].hash)
        head = replace(head, segs=(*head.segs, *segments), tail=(), tail_first=segments[-1].l + 1)
    last, link = reached(head, lines, *start)
    return replace(head, last=last, hash=link, tail=(*head.tail, *lines))


def renewed(
    head: Head,
    stamp: Stamp,
    *,
    opened: Sequence[Open] | None = None,
    ship: Ship | None = None,
    state: Literal["live", "released"] = "live",
) -> Head:
    """The next version under the same lease.

    Args:
        opened: the open actions, oldest first; as they were unless given.
        ship: the mode of this write; the lease keeps the weakest of its incarnation.
    """
    weakest = head.lease.ship if ship is None else min(ship, as_mode(head.lease.ship), key=MODES.index)
    lease = replace(
        head.lease,
        ship=weakest,
        renew=head.lease.renew + 1,
        expires_hint=rfc3339_seconds(stamp.now.wall_us + head.lease.ttl_ms * 1000),
    )
    shown = head.open if opened is None else tuple(opened[:_OPEN_KEPT])
    return replace(
        head,
        state=state,
        rev=head.rev + 1,
        wid=stamp.wid,
        lease=lease,
        open=shown,
        open_more=head.open_more if opened is None else max(0, len(opened) - len(shown)),
    )


def renewed_lineage(head: Head, lineage: str) -> Head:
    """The head of the same log under a new lineage that names the old one (rules 10 and 17)."""
    return replace(
        head,
        lineage=lineage,
        origins=(*head.origins, Origin(head.lineage, head.last)),
    )


# -- when records have to be in the bucket (rules 4, 13 and 18) --------------------------------


def is_urgent(drafts: Iterable[Draft]) -> bool:
    """Whether an append goes to the bucket at once, though nobody waits: it closes an external call.

    The next machine, should this one be lost, must not have to ask whether it happened.
    """
    return any(
        each.kind == ACTION and each.body.get("class") == "external" and each.body.get("status") not in OPEN_STATUSES
        for each in drafts
    )


def never_executed(
    action: Mapping[str, Any], head: Head, *, lsn: int, epoch: int, lineage: str, on_chain: bool
) -> bool:
    """Whether an intent that the log does not have is proven never to have been carried out.

    Its tool starts only after the head holds the intent, and a head of a
    higher epoch without it never will.

    Args:
        action: the body of the record that was set aside.
        lsn, epoch, lineage: where it stood.
        on_chain: this store's last shipped record is on the head's chain, and
            neither fork nor regression nor repair ever happened.
    """
    return (
        action.get("status") == "started"
        and action.get("ship") == "barrier"
        and CARRIED not in action  # a prune wrote it again: its tool started by an earlier record
        and action.get("class") != "pure"  # it starts without the barrier (``store.actions.needs_barrier``)
        and head.epoch > epoch
        and head.lineage == lineage
        and lsn > head.base
        and on_chain
    )
