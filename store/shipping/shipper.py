"""Carrying the decisions out: the reads and conditional writes of one store on its bucket.

Each method takes the agent's lock, so that in one directory a version of a head
is always made from the one before it. The records are in SQLite first; what is
sent is an exact prefix of the log, and nothing that has an lsn is ever taken
back because an answer did not come.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from store.backend import Acquired
from store.backends.sqlite.ledger import Ledger
from store.backends.sqlite.marks import Mark, Remote
from store.clock import Instant, rfc3339
from store.errors import (
    BadHead,
    Forked,
    LeaseHeld,
    LeaseLost,
    NotShipped,
    RecallError,
    RemoteChanged,
    RemoteRefused,
    RemoteUnreachable,
    TakenAway,
)
from store.lease import Fence, Lease, LeaseRequest
from store.process import provably_dead
from store.records import LEASE, Draft, Record, compact
from store.shipping import protocol
from store.shipping.bucket import Bucket, Object
from store.shipping.fetch import Replaced, prefix
from store.shipping.head import Head
from store.shipping.local import Local, cached, first_link
from store.shipping.locking import agent_lock
from store.shipping.packing import Limits, Packer
from store.shipping.protocol import Durable, Lost, Ship, Stamp, Trouble
from store.shipping.upkeep import Upkeep
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


class Shipper:
    """Ships one store's logs.

    Args:
        store: where the records are.
        bucket: where they go.
        ship: when they have to be there (``RECALL_SHIP``).
        patience: seconds after which a write whose outcome is not known is given up.
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
        self.patience, self._interval, self._pause = patience, interval, pause
        self._limits = limits

    # -- the lease --------------------------------------------------------------------------

    def acquire(self, request: LeaseRequest) -> Acquired:
        """Take the lease on the bucket, then here (rules 5, 6, 14 and 16).

        Raises:
            LeaseHeld: somebody else has it.
            LeaseLost: it was ours (``request.again``), and somebody acted since.
            Forked: the bucket and this store contradict each other.
            TakenAway: another store took the log out of the bucket.
            RemoteChanged: the store was detached since this handle was opened.
            RemoteUnreachable, RemoteRefused: the bucket cannot be asked.
        """
        with self._locked(request.agent):
            self._check_attached()
            local = Local(self.store, request.agent)
            tries = Tries(self, lambda reason: RemoteUnreachable(remote=self.bucket.name, reason=reason))
            while True:
                seen = self._look(local)
                reason = self._reason(local, seen, request)
                head = self._caught_up(local, seen, request)
                stamp = self._stamp()
                row = self.store.lease(request.agent)
                new = protocol.taken(
                    head,
                    request,
                    stamp,
                    store=self.store.store_id,
                    highest=row.epoch if row else 0,
                    ship=self.ship,
                )
                swap = self.bucket.swap(_key(request.agent), new.encode(), seen.etag or None)
                if swap.outcome == "done":
                    return self._granted(local, new, swap.etag, request, reason, seen.head, stamp.now)
                if swap.outcome == "refused":
                    raise RemoteRefused(remote=self.bucket.name, reason=swap.reason)
                after = self._look(local)
                if after.head is not None and after.head.wid == new.wid:
                    return self._granted(local, new, after.etag, request, reason, seen.head, stamp.now)
                tries.again(f"taking the lease: {swap.reason}")

    def _reason(self, local: Local, seen: Seen, request: LeaseRequest) -> str:
        """Why the lease may be taken. Raises LeaseHeld, LeaseLost or TakenAway."""
        head, now = seen.head, self.store.clock.now()
        if head is not None and head.state == "deleted" and request.again is None:
            raise TakenAway(agent=request.agent, remote=self.bucket.name, holder=head.lease.holder)
        row = self.store.lease(request.agent)
        reason = protocol.takeover_reason(
            head,
            request,
            store=self.store.store_id,
            highest=row.epoch if row else 0,
            known=local.hash_at,
            since=local.sight(head.rev) if head else None,
            now=now,
            answered=seen.answer.date if seen.answer else None,
            modified=seen.answer.modified if seen.answer else None,
            dead=provably_dead,
        )
        if reason is not None:
            return reason
        assert head is not None or request.again is not None
        if request.again is not None:
            after = f"{head.epoch}, of {head.lease.holder}" if head else "none"
            if head is not None:
                local.note_lost(head, request.again)
            raise LeaseLost(agent=request.agent, epoch=request.again.epoch, now=after)
        assert head is not None
        if local.sight(head.rev) is None:
            self._note_sight(local, head, now)
        until = head.lease.expires_hint or "it expires"
        raise LeaseHeld(agent=request.agent, holder=head.lease.holder, epoch=head.epoch, until=until)

    def _note_sight(self, local: Local, head: Head, now: Instant) -> None:
        """Keep what was seen, so that repeated short attempts add up to a ttl (rule 15)."""
        mark = self.store.mark(local.agent)
        if mark is None:
            mark = Mark(local.agent, 0, "", 0, b"", b"")
        local.note_sight(mark, head.rev, now)

    def _caught_up(self, local: Local, seen: Seen, request: LeaseRequest) -> Head:
        """The head that a takeover goes on from: this log has all of it, and what may be carried is in it."""
        if seen.head is None:
            return self._packer(local).new_log(self.remote.remote_id, request)
        seen = self._read_up(local, seen)
        assert seen.head is not None
        head = seen.head
        last, _ = local.last()
        if last <= head.last:
            return head
        tail = local.unshipped(head.last, head.hash)
        if protocol.may_carry(head, self.store.store_id, tail):
            return self._packer(local).carry(head, last)
        ended = (
            f"epoch {max(tail.epochs)} was fenced by epoch {head.epoch}"
            if max(tail.epochs) < head.epoch
            else ("another copy of this directory wrote under the same epoch")
        )
        local.set_aside(head.last, head.hash, f"not shipped when {ended}")
        self._packer(local).file_asides()
        return head

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

    def _granted(
        self,
        local: Local,
        head: Head,
        etag: str,
        request: LeaseRequest,
        reason: str,
        before: Head | None,
        sent: Instant,
    ) -> Acquired:
        """The bucket has granted the lease: the row, the lease record and the mark, in one transaction."""
        row = self.store.lease(request.agent)
        previous = cached(before, row, sent) if before is not None else row
        elsewhere = before is not None and (
            before.lease.dir != self.store.store_id or before.lease.process.host != request.process.host
        )

        def work(ledger: Ledger) -> Lease:
            self._check_attached()
            row = self.store.lease(request.agent)
            if row is not None and local.last()[0] > head.last:
                # Written here under the old epoch while the bucket was asked: too late to be carried.
                row = ledger.set_aside(row, head.last, head.hash, f"not shipped when epoch {head.epoch} began", sent)
            branch, origin = self._ground(ledger, local, head, row, sent)
            lease = Lease(
                agent=request.agent,
                lineage=head.lineage,
                branch=branch,
                epoch=head.epoch,
                incarnation=request.incarnation,
                state="held",
                holder=request.holder,
                process=request.process,
                ttl_ms=protocol.holder_ttl_ms(request.ttl_ms),
                renewed=sent,
                acquired_at=rfc3339(sent.wall_us),
            )
            body = {
                "event": "acquired",
                "reason": reason,
                "holder": lease.holder,
                "incarnation": lease.incarnation,
                **compact({"by": request.by, "why": request.why, "elsewhere": elsewhere}),
                **origin,
            }
            ledger.put_lease(lease)
            local.learn_in(ledger, head, etag, sent=sent)
            ledger.append(lease, [Draft(LEASE, body, seq=lease.epoch)], sent)
            return lease

        lease = self.store.shipping(work)
        return Acquired(lease, reason, previous, elsewhere, before.lease.ship if before else "")  # type: ignore[arg-type]

    def _ground(
        self, ledger: Ledger, local: Local, head: Head, row: Lease | None, now: Instant
    ) -> tuple[int, dict[str, object]]:
        """The branch to write on, and what its first record says if the lineage is a new one."""
        if row is not None and row.lineage == head.lineage:
            return row.branch, {}
        _, start_hash = first_link(head.lineage, head.agent)
        last, link = local.last()
        parent, why = (row.branch, "imported") if row is not None else (0, "first")
        branch = ledger.new_branch(
            head.agent, head.lineage, parent=parent, start=last, start_hash=start_hash, reason=why, at=now
        )
        if row is None:
            return branch, {}
        return branch, {"from": {"lineage": row.lineage, "lsn": last, "hash": link.hex()}}

    # -- the log ---------------------------------------------------------------------------------

    def push(
        self,
        fence: Fence,
        *,
        want: Record | None = None,
        renew: bool = False,
        look: bool = False,
        reshape: Callable[[Head], Head] | None = None,
    ) -> None:
        """Bring the log into the bucket, up to at least ``want``; return when the bucket is known to have it.

        Args:
            want: a record; the last one of the log unless given.
            renew: send a version even if there is nothing new, so that the lease starts anew.
            look: read the head first, so that a foreign one is found even where the store ignores conditions.
            reshape: makes a head that says the same with other objects, for what keeps the bucket tidy.

        Raises:
            LeaseLost: another acts for the agent, or ``want`` was set aside here. Whether the records landed all
                the same is said.
            NotShipped: not known before the deadline; the records stay, and are sent again.
            RemoteRefused: the bucket does not take them (permission, configuration).
            Forked: the bucket contradicts what it said before.
        """
        with self._locked(fence.agent):
            self._advance(
                Local(self.store, fence.agent),
                fence,
                want,
                renew=renew or reshape is not None,
                look=look,
                reshape=reshape,
            )

    def release(self, fence: Fence, *, park: bool = False) -> bool:
        """Ship everything and give the lease back, in one version; False if it was no longer ours.

        Args:
            park: only until the next write, which takes it again if nobody acted in between.
        """
        with self._locked(fence.agent):
            row = self.store.lease(fence.agent)
            if row is None or not row.is_of(fence) or row.state == "released":
                return False
            local = Local(self.store, fence.agent)
            try:
                self._advance(local, fence, None, renew=True, state="released", park=park)
            except LeaseLost as problem:
                if problem.details.get("landed") or not self._pending(local):
                    return False
                raise  # what was written under it is set aside: nobody may take that for done
            return True

    def _pending(self, local: Local) -> bool:
        mark = self.store.mark(local.agent)
        return mark is None or local.last()[0] > mark.lsn

    def _advance(
        self,
        local: Local,
        fence: Fence,
        want: Record | None,
        *,
        renew: bool,
        look: bool = False,
        state: Literal["live", "released"] = "live",
        park: bool = False,
        reshape: Callable[[Head], Head] | None = None,
    ) -> None:
        tries = Tries(
            self,
            lambda reason: NotShipped(
                agent=fence.agent, what=f"the log up to lsn {target}", remote=self.bucket.name, reason=reason
            ),
        )
        target = 0
        while True:
            known = local.known()
            self._check_ours(local, fence, known)
            assert known is not None
            mark, head = known
            if reshape is not None and head.state != "live":
                return  # given back meanwhile, and a version of ours would take it again
            last, _ = local.last()
            target = last if want is None else want.lsn
            if want is not None and local.hash_at(want.lsn) != want.hash:
                # By its hash: an acquisition here, even one that was not granted, may have set it aside meanwhile.
                now, hint = "not known to the bucket", f"stop acting; its record {want.lsn} was set aside"
                raise LeaseLost(agent=fence.agent, epoch=fence.epoch, now=now, landed=False, hint=hint)
            if not renew and mark.lsn >= target:
                return  # whoever had the lock before took it along
            if look:
                look = False
                self._settled(local, fence, self._look(local), target, head)
                continue
            new, stamp = self._next(local, mark, reshape(head) if reshape else head, last, state)
            swap = self.bucket.swap(_key(fence.agent), new.encode(), mark.etag)
            if swap.outcome == "done":
                self._landed(local, fence, new, swap.etag, stamp.now, park)
                return
            if swap.outcome == "refused":
                raise RemoteRefused(remote=self.bucket.name, reason=swap.reason)
            seen = self._look(local, tries)
            if seen.head is not None and seen.head.wid == new.wid:
                self._landed(local, fence, new, seen.etag, stamp.now, park)
                return
            if self._settled(local, fence, seen, target, head) and not renew:
                return
            tries.again(swap.reason)

    def _check_ours(self, local: Local, fence: Fence, known: tuple[Mark, Head] | None) -> None:
        row = self.store.lease(fence.agent)
        if row is None or not row.is_of(fence):
            now = f"{row.epoch}, of {row.holder}" if row else "none"
            raise LeaseLost(agent=fence.agent, epoch=fence.epoch, now=now)
        if known is None or known[1].fence != fence or known[1].lease.dir != self.store.store_id:
            raise LeaseLost(agent=fence.agent, epoch=fence.epoch, now="not known to the bucket")
        self._refuse_trouble(known[0])

    def _refuse_trouble(self, mark: Mark | None) -> None:
        if mark is not None and mark.trouble:
            raise Forked(agent=mark.agent, trouble=mark.trouble, reason="found earlier, and not mended since")

    def _next(
        self, local: Local, mark: Mark, head: Head, last: int, state: Literal["live", "released"]
    ) -> tuple[Head, Stamp]:
        """The next version, with all of the log up to ``last``; blobs and segments are in the bucket by then."""
        opened = None
        if last > head.last and self.ship != "off":
            head = self._packer(local).carry(head, last)
            opened = local.opened()
        wait = self._interval - protocol.elapsed_ms(mark.sent, self.store.clock.now(), at_least=True) / 1000
        if self._interval and 0 < wait <= self._interval:
            self._pause(wait)  # some stores take one write a second to an object
        stamp = self._stamp()
        return protocol.renewed(head, stamp, opened=opened, ship=self.ship, state=state), stamp

    def _landed(self, local: Local, fence: Fence, head: Head, etag: str, sent: Instant, park: bool) -> None:
        row = self.store.lease(fence.agent)
        renewed = None
        if row is not None and row.is_of(fence):
            renewed = replace(row, renewed=sent, state="released" if head.state == "released" else "held")
            if park:  # the next write finds it lapsed
                renewed = replace(row, ttl_ms=0)
        local.learn(head, etag, lease=renewed, sent=sent)

    def _settled(self, local: Local, fence: Fence, seen: Seen, want: int, known: Head) -> bool:
        """Whether the bucket has what is wanted; if not, the same records are to be sent again.

        Raises:
            LeaseLost, Forked.
        """
        verdict = protocol.judge(seen.head, fence, known, want=want, known=local.hash_at)
        if isinstance(verdict, Trouble):
            local.note_trouble(verdict.kind)
            raise Forked(agent=fence.agent, trouble=verdict.kind, reason=verdict.reason)
        assert seen.head is not None
        if isinstance(verdict, Lost):
            local.note_lost(seen.head, fence)
            landed = {
                True: "it is in the log all the same",
                False: "it is not in the log",
                None: "whether it is in the log is not known",
            }
            now = f"{seen.head.epoch}, of {seen.head.lease.holder}"
            raise LeaseLost(
                agent=fence.agent,
                epoch=fence.epoch,
                now=now,
                landed=verdict.landed,
                hint=f"stop acting; of the last record: {landed[verdict.landed]}",
            )
        if seen.head.wid != known.wid:
            local.learn(seen.head, seen.etag)
        return isinstance(verdict, Durable)

    def maintain(self, fence: Fence, *, crowded: bool = False) -> bool:
        """Keep the head small and the objects few; whether there was anything to do.

        What it uploads, it uploads without the lock.

        Args:
            crowded: only if the head has more references than it should.
        """
        local = Local(self.store, fence.agent)
        known = local.known()
        if known is None or known[1].fence != fence or (crowded and len(known[1].segs) <= self._limits.refs):
            return False
        reshape = Upkeep(local, self.bucket, self._limits).plan(known[1])
        if reshape is not None:
            self.push(fence, reshape=reshape)
        return reshape is not None

    def rebase(self, fence: Fence, base: int) -> None:
        """Let an agent's log in the bucket begin above lsn ``base``; all of it is shipped before (rule 19).

        Raises:
            Those of ``push``; NotShipped too if others reshape it all the time.
        """
        local = Local(self.store, fence.agent)
        self.push(fence)
        for _ in range(_REPLANS):
            known = local.known()
            if known is None or known[1].base >= base:
                return
            if known[1].last <= base:
                break
            self.push(fence, reshape=Upkeep(local, self.bucket, self._limits).rebasing(known[1], base))
        what, reason = f"a log that begins above lsn {base}", "it does not go beyond that, or changes all the time"
        raise NotShipped(agent=fence.agent, what=what, remote=self.bucket.name, reason=reason)

    # -- looking ------------------------------------------------------------------------------------

    def look(self, agent: str) -> Seen:
        """An agent's head as it is now. Raises Forked where it contradicts what this store has seen."""
        return self._look(Local(self.store, agent))

    def pull(self, agent: str) -> Head | None:
        """Bring this store's copy of a log up to what the bucket has, without a lease; the head, if there is one."""
        with self._locked(agent):
            local = Local(self.store, agent)
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
                answer = self.bucket.get(_key(local.agent))
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

    # -- parts ----------------------------------------------------------------------------------------

    def _check_attached(self) -> None:
        """Raise RemoteChanged unless it is still this bucket that decides."""
        now = self.store.remote()
        if now is None or (now.state, now.generation) != (self.remote.state, self.remote.generation):
            reason = "it was attached to a bucket anew, or detached from it, since it was opened"
            raise RemoteChanged(path=self.store.directory, reason=reason)

    def _locked(self, agent: str):  # type: ignore[no-untyped-def]
        return agent_lock(self.store.directory, agent, self.patience)

    def _packer(self, local: Local) -> Packer:
        return Packer(local, self.bucket, self._limits)

    def _stamp(self) -> Stamp:
        return Stamp(self.store.random.hex(32), self.store.clock.now())


class Tries:
    """Attempts at one thing, until the patience is over.

    Args:
        error: what is raised then, made of the last reason.
    """

    def __init__(self, shipper: Shipper, error: Callable[[str], RecallError]) -> None:
        self._shipper, self._error = shipper, error
        self._since = shipper.store.clock.now()
        self._pause = _FIRST_PAUSE

    def again(self, reason: str) -> None:
        """Wait a little before the next attempt, or raise when there was patience enough."""
        s = self._shipper
        if protocol.elapsed_ms(self._since, s.store.clock.now()) >= s.patience * 1000:
            raise self._error(reason)
        jitter = 0.5 + int(s.store.random.hex(4), 16) / 0x10000
        s._pause(self._pause * jitter)
        self._pause = min(self._pause * 2, _MOST_PAUSE)


def _key(agent: str) -> str:
    return prefix(agent) + "head.json"
