"""Taking the lease: on the bucket by one conditional write, then here in one transaction."""

from __future__ import annotations

from store.backend import Acquired
from store.backends.sqlite.ledger import Ledger
from store.canonical import first_hash
from store.clock import Instant, rfc3339
from store.errors import LeaseHeld, LeaseLost
from store.lease import Lease, LeaseRequest
from store.process import provably_dead
from store.records import LEASE, Draft, compact
from store.remote_errors import RemoteRefused, RemoteUnreachable, TakenAway
from store.shipping import protocol
from store.shipping.fetch import head_key
from store.shipping.head import Head
from store.shipping.local import Local, cached
from store.shipping.looking import Looker, Seen, Tries


class Taking(Looker):
    """What takes a lease; ``Shipper`` keeps it and gives it back."""

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
            local = self._local(request.agent)
            revived = self._revived(request)
            if revived is not None:
                return Acquired(revived, "again", revived)
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
                swap = self.bucket.swap(head_key(request.agent), new.encode(), seen.etag or None)
                if swap.outcome == "done":
                    return self._granted(local, new, swap.etag, request, reason, seen.head, stamp.now)
                if swap.outcome == "refused":
                    raise RemoteRefused(remote=self.bucket.name, reason=swap.reason)
                after = self._look(local)
                if after.head is not None and after.head.wid == new.wid:
                    return self._granted(local, new, after.etag, request, reason, seen.head, stamp.now)
                tries.again(f"taking the lease: {swap.reason}")

    def _revived(self, request: LeaseRequest) -> Lease | None:
        """The caller's own lease, if it did not lapse after all: a renewal that was under way has come through.

        Others of its process may be writing under it again, and a new epoch would set aside what they write.
        """
        row = self.store.lease(request.agent)
        if request.again is None or row is None or row.state != "held" or not row.is_of(request.again):
            return None
        return row if protocol.elapsed_ms(row.renewed, self.store.clock.now()) < row.ttl_ms else None

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
            local.note_sight(head.rev, now)
        until = head.lease.expires_hint or "it expires"
        raise LeaseHeld(agent=request.agent, holder=head.lease.holder, epoch=head.epoch, until=until)

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

        late: list[int] = []

        def work(ledger: Ledger) -> Lease:
            self._check_attached()
            row = self.store.lease(request.agent)
            if row is not None and local.last()[0] > head.last:
                late.append(head.last)
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
        if late:
            self._packer(local).file_asides()
        return Acquired(lease, reason, previous, elsewhere, before.lease.ship if before else "")  # type: ignore[arg-type]

    def _ground(
        self, ledger: Ledger, local: Local, head: Head, row: Lease | None, now: Instant
    ) -> tuple[int, dict[str, object]]:
        """The branch to write on, and what its first record says if the lineage is a new one."""
        if row is not None and row.lineage == head.lineage:
            return row.branch, {}
        start_hash = first_hash(head.lineage, head.agent)
        last, link = local.last()
        parent, why = (row.branch, "imported") if row is not None else (0, "first")
        branch = ledger.new_branch(
            head.agent, head.lineage, parent=parent, start=last, start_hash=start_hash, reason=why, at=now
        )
        if row is None:
            return branch, {}
        return branch, {"from": {"lineage": row.lineage, "lsn": last, "hash": link.hex()}}
