"""The one interface to a database, with its promises written on it.

Each numbered clause is tested by ``tests/contract`` on two independent handles
to one store; a backend that does not keep one is not a backend. All methods
may be called from any thread of the process that made the handle. In a forked
child reads go on over a new connection, and a lease of the parent is not held.

Errors are those of ``store.errors``; a driver's own never come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from store.clock import Clock, Random
from store.errors import BadRecord
from store.lease import Fence, Lease, LeaseRequest, Reason
from store.records import Draft, Expect, Record
from store.value import value

if TYPE_CHECKING:
    from store.actions import TakenIn


@value
class Acquired:
    """A granted lease, why it was granted, and the row before it.

    Attributes:
        elsewhere: the lease before it was granted to another store, or on another host.
        ship: in a store that ships, the weakest mode that the holder before wrote in (``store.shipping.protocol``).
    """

    lease: Lease
    reason: Reason
    previous: Lease | None
    elsewhere: bool = False
    ship: str = ""


@value
class Branch:
    """A branch of an agent's log.

    Attributes:
        number: from 1; the agent's lease row names the one in use.
        lineage: 32 hexadecimal digits.
        parent: the branch that it goes on from, or 0.
        start: the last lsn that it shares with its parent; its own are above.
        start_hash: the hash that its first own record is chained to.
        last: the last lsn stored on it.
        last_hash: the hash of that record.
        reason: why it was made: ``first``, ``imported``, or what set its parent's tail aside.
    """

    agent: str
    number: int
    lineage: str
    parent: int
    start: int
    start_hash: bytes
    last: int
    last_hash: bytes
    reason: str
    at: str


@value
class Counters:
    """How far an agent's log and its numbered kinds have come."""

    lsn: int
    hash: bytes
    version: int  # of the working state
    turns: int
    actions: int


class Inbox(Protocol):
    """Where operators on other machines leave what they decided (``store.shipping.inbox``)."""

    def apply(self, agent: Any, ship: Callable[[], None]) -> TakenIn:
        """Carry out, as ``agent`` with its lease, what waits for it.

        Args:
            ship: brings the agent's log into the bucket.
        """
        ...


class Backend(Protocol):
    """A store of many agents' logs."""

    store_id: str
    directory: str  # a local one, for the lock files of running commands
    clock: Clock
    random: Random
    ship: str  # "" where the store itself is all there is; else when a bucket has to have an intent
    on_bad_record: Callable[[BadRecord], None]

    @property
    def inbox(self) -> Inbox | None:
        """What other machines decided; None in a store that does not ship."""
        ...

    # -- leases ---------------------------------------------------------------

    def lease(self, agent: str) -> Lease | None:
        """The agent's lease row, held or released; None if it never had one."""
        ...

    def acquire(self, request: LeaseRequest) -> Acquired:
        """Take the lease, or raise LeaseHeld naming who has it and until when.

        1. Of any number of contenders at one moment exactly one succeeds.
        2. The new epoch is one above the highest that the agent ever had, also
           after release, archiving and import; it is never handed out twice.
        3. It is granted exactly where ``lease.takeover_reason`` says so.
        4. In the same atomic step a ``lease`` record with the new epoch enters
           the log: who, why, and the previous epoch. The first one of an agent
           makes its lineage; the first one of an imported log makes a new
           lineage and names the old one with its last lsn and hash.
        5. It is durable when it returns (power loss included).

        A store that ships gives the caller's own lapsed lease back as it is
        (``request.again``), if a renewal that was under way has come through.
        """
        ...

    def renew(self, fence: Fence) -> Lease:
        """Start the ttl anew. 6. Refused (Fenced) unless ``fence`` is current and in time."""
        ...

    def release(self, fence: Fence) -> bool:
        """End the lease. 7. False, and nothing changed, if ``fence`` is no longer current."""
        ...

    # -- the one write path ----------------------------------------------------

    def append(
        self, fence: Fence, drafts: Sequence[Draft], expect: Sequence[Expect] = (), *, renew: bool = False
    ) -> list[Record]:
        """Append all drafts, or none; with ``renew`` the ttl starts anew in the same step.

        8. Fence: they enter only in a transaction that also checked
           ``lease.check_fence`` and checked the deadline again just before its
           commit.
        9. Expectations: Stale, and nothing written, unless each expected key's
           newest lsn is the one named.
        10. lsn is dense, seq NEXT is dense in its kind, in the drafts' order.
        11. Durable when it returns: process and power may go.
        12. An append that raised left nothing behind, whatever the error.
        13. A stored record is never changed or deleted, by any later call.
        """
        ...

    def secure(self, fence: Fence, record: Record) -> None:
        """Return when the record would survive the loss of the machine, as far as this store promises that.

        21. In a store that ships to a bucket: the bucket is known to have it,
            under a lease that is still ``fence``'s. Elsewhere at once.

        Raises:
            LeaseLost: another acts for the agent, or the record was set aside meanwhile.
            LeaseExpired: it is secured, but its lease's time was over before the answer came.
            NotShipped, RemoteRefused: it is stored here, and not known to be in the bucket.
        """
        ...

    def send(self, fence: Fence) -> None:
        """Ship what is stored, if the store ships at all. Raises as ``secure``."""
        ...

    def granted_here(self, agent: str) -> bool:
        """Whether the lease row is one that this store was granted, and no copy of what a bucket says of another."""
        ...

    # -- reading ----------------------------------------------------------------

    def reading(self) -> AbstractContextManager[None]:
        """14. Reads inside see one moment of the store. Keep it short."""
        ...

    def counters(self, agent: str) -> Counters:
        """15. In time that does not grow with the log."""
        ...

    def newest(self, agent: str, kind: str, *, seq: int = 0, name: str = "", at: int | None = None) -> Record | None:
        """16. The newest record of a key, or the newest with lsn <= ``at``."""
        ...

    def tail(
        self, agent: str, kind: str, *, limit: int, before: int | None = None, at: int | None = None
    ) -> list[Record]:
        """The newest keys of a numbered kind, by falling seq, below seq ``before``.

        17. At the cost of what it returns, but for ``at``, which tells what was there then.
        """
        ...

    def in_force(
        self, agent: str | None, kind: str, *, limit: int, after: tuple[str, int] = ("", 0), at: int | None = None
    ) -> list[Record]:
        """The newest records of the keys of a numbered kind that are in force, by rising seq.

        ``agent`` None means all agents; ``after`` is the (agent, seq) to go on
        from. 18. At the cost of what it returns, but for ``at``.
        """
        ...

    def to_settle(self, agent: str, *, limit: int, after: int = 0) -> list[Record]:
        """The agent's open actions that a new incarnation settles, by rising seq, above ``after``.

        18a. Those that it has nothing to do about cost nothing.
        """
        ...

    def in_force_newest(
        self, agent: str, kind: str, *, limit: int, before: int | None = None, at: int | None = None
    ) -> tuple[list[Record], int]:
        """Those of a named kind, newest first by lsn, below ``before``; and how many of any kind there are in all."""
        ...

    def keys(self, agent: str, *, after: tuple[str, int, str] = ("", 0, ""), limit: int) -> list[Record]:
        """The newest record of every key, by rising (kind, seq, name), above ``after``.

        At the cost of what it returns.
        """
        ...

    def history(self, agent: str, kind: str, *, seq: int = 0, name: str = "", limit: int = 1000) -> list[Record]:
        """All records of one key of a kind that can change (action, pointer, output), oldest first."""
        ...

    def log(
        self, agent: str, *, after: int = 0, limit: int | None = None, branch: int | None = None
    ) -> Iterator[Record]:
        """Records by rising lsn, above ``after``, from the agent's branch or another.

        19. In bounded memory, and without a read transaction between its steps.
        """
        ...

    def branches(self, agent: str) -> list[Branch]:
        """All branches, by number."""
        ...

    def leases(self, *, after: str = "", limit: int = 1000) -> list[Lease]:
        """Lease rows by agent, above ``after``: the list of agents."""
        ...

    def blob(self, agent: str, name: str) -> bytes:
        """A blob's bytes. Raises KeyError if it is not there."""
        ...

    # -- rare writes --------------------------------------------------------------

    def set_aside(self, fence: Fence, keep: int, reason: str) -> Branch:
        """Switch the agent to a new branch that shares the log up to lsn ``keep``.

        20. No record moves or goes; the tail stays readable on its old branch.
        """
        ...

    def close(self) -> None:
        """Give back files and locks; safe to call twice."""
        ...


class Leases(Protocol):
    """What ``all_leases`` needs of a backend."""

    def leases(self, *, after: str = "", limit: int = 1000) -> list[Lease]: ...


def all_leases(backend: Leases) -> Iterator[Lease]:
    """The lease rows of all agents, by id, a page at a time."""
    page = backend.leases()
    while page:
        yield from page
        page = backend.leases(after=page[-1].agent)
