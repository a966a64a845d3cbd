"""Leases and the fence, as pure rules: no clock, no storage, no system call.

A lease is one process's right to act for an agent for a while. Its *epoch*
rises at every acquisition and its *incarnation* names the actor; together
they are the fencing token that every append is checked against (the term is
Kleppmann's, "How to do distributed locking", 2016).
"""

from __future__ import annotations

import re
from typing import Literal

from store.clock import Instant
from store.errors import InvalidInput, LeaseExpired, LeaseLost, LeaseNotHeld, TokenMismatch
from store.process import Process
from store.value import value

DEFAULT_TTL_MS = 60_000
SHELL_TTL_MS = 3_600_000  # of an exported lease: a shell renews only when it writes
LEAST_TTL_MS, MOST_TTL_MS = 1_000, 86_400_000

_EPOCH = re.compile(r"[0-9]{1,18}")

State = Literal["held", "released"]
Reason = Literal["first", "released", "expired", "dead", "again", "broken"]


@value
class Fence:
    """The fencing token: what a writer proves at every append.

    Made only from a lease that was acquired, or parsed from an exported token.
    """

    agent: str
    lineage: str
    epoch: int
    incarnation: str

    def token(self, store_id: str) -> str:
        """The form that RECALL_LEASE carries: ``store:lineage:epoch:incarnation``."""
        return f"{store_id}:{self.lineage}:{self.epoch}:{self.incarnation}"

    @staticmethod
    def parse(token: str, *, agent: str, store_id: str) -> Fence:
        """The fence that a token names.

        Raises:
            TokenMismatch: it is not a token, or of another store.
        """
        parts = token.split(":")
        if len(parts) != 4 or not _EPOCH.fullmatch(parts[2]):
            raise TokenMismatch(what="form", reason="it is not store:lineage:epoch:incarnation")
        if parts[0] != store_id:
            raise TokenMismatch(what="store", reason=f"this one is {store_id}")
        return Fence(agent, parts[1], int(parts[2]), parts[3])


@value
class Lease:
    """The lease row of an agent, held or released.

    Attributes:
        branch: the branch of the log that the agent is on.
        holder: the name that people see, ``host:pid:8 hex`` unless given.
        process: the holder's process; the evidence for an instant takeover.
        ttl_ms: how long it lasts after ``renewed``, in milliseconds.
        renewed: when it was acquired or last renewed.
        acquired_at: RFC 3339.
        imported: the log is a read-only copy; the next acquisition starts a new lineage.
    """

    agent: str
    lineage: str
    branch: int
    epoch: int
    incarnation: str
    state: State
    holder: str
    process: Process
    ttl_ms: int
    renewed: Instant
    acquired_at: str
    imported: bool = False

    @property
    def fence(self) -> Fence:
        return Fence(self.agent, self.lineage, self.epoch, self.incarnation)

    def is_of(self, fence: Fence) -> bool:
        """Whether ``fence`` is this lease's."""
        return self.fence == fence

    def left_ms(self, now: Instant) -> int:
        """Milliseconds until the deadline, negative when it has passed."""
        return left_ms(self.ttl_ms, self.renewed, now)

    def live(self, now: Instant) -> bool:
        return self.state == "held" and self.left_ms(now) > 0


def left_ms(ttl_ms: int, renewed: Instant, now: Instant) -> int:
    """Milliseconds until the deadline of a lease, negative when it has passed.

    Within one boot the boot clock decides, which nobody can set; across
    boots only the wall clock is left. A wall clock set back delays a
    takeover; it cannot let two writers in, since epochs decide that.
    """
    if now.boot_id and now.boot_id == renewed.boot_id:
        return ttl_ms - (now.boot_ms - renewed.boot_ms)
    return ttl_ms - (now.wall_us - renewed.wall_us) // 1000


@value
class LeaseRequest:
    """What a contender brings to an acquisition.

    Attributes:
        again: the fence of the caller's own lapsed lease. The acquisition then
            succeeds only if no other epoch came in between, and keeps the incarnation.
        breaking: take the lease whoever holds it (an operator's decision).
        by, why: who decided that, and what for; kept in the log.
    """

    agent: str
    incarnation: str
    holder: str
    process: Process
    ttl_ms: int
    again: Fence | None = None
    breaking: bool = False
    by: str = ""
    why: str = ""


def takeover_reason(lease: Lease | None, request: LeaseRequest, now: Instant, *, dead: bool) -> Reason | None:
    """Why ``request`` may have the lease now, or None if it may not.

    Args:
        lease: the present row, or None if the agent never had one.
        dead: whether the holder is provably dead (``store.process``).
    """
    if request.again is not None:
        mine = lease is not None and lease.state == "held" and lease.fence == request.again
        return "again" if mine else None
    if lease is None:
        return "first"
    if lease.state == "released":
        return "released"
    if request.breaking:
        return "broken"
    if dead:
        return "dead"
    return "expired" if lease.left_ms(now) <= 0 else None


def check_fence(lease: Lease | None, fence: Fence, now: Instant) -> Lease:
    """Invariant 1: ``fence`` is the lease's present one, and its deadline has not passed.

    Returns:
        the lease, for the caller to go on with.

    Raises:
        LeaseLost: another epoch or incarnation has the lease, or had it.
        LeaseNotHeld: it was released.
        LeaseExpired: it is still ours, but its time is over.
    """
    if lease is None or not lease.is_of(fence):
        now_epoch = f"{lease.epoch}, of {lease.holder}" if lease else "none"
        raise LeaseLost(agent=fence.agent, epoch=fence.epoch, now=now_epoch)
    if lease.state == "released":
        raise LeaseNotHeld(agent=fence.agent, why=f": epoch {fence.epoch} was released")
    left = lease.left_ms(now)
    if left <= 0:
        raise LeaseExpired(agent=fence.agent, epoch=fence.epoch, ago=f"{-left / 1000:.1f} s")
    return lease


def check_ttl(seconds: float, field: str = "lease_ttl") -> int:
    """A ttl in seconds, as milliseconds, or InvalidInput."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise InvalidInput(field=field, reason="must be a number of seconds")
    if not LEAST_TTL_MS <= seconds * 1000 <= MOST_TTL_MS:  # NaN compares false
        bounds = f"{LEAST_TTL_MS // 1000} to {MOST_TTL_MS // 1000}"
        raise InvalidInput(field=field, reason=f"must be from {bounds} seconds")
    return round(seconds * 1000)
