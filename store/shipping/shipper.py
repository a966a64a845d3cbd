"""Carrying the decisions out: the reads and conditional writes of one store on its bucket.

Each method takes the agent's lock, so that in one directory a version of a head
is always made from the one before it. The records are in SQLite first; what is
sent is an exact prefix of the log, and nothing that has an lsn is ever taken
back because an answer did not come.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from store.backends.sqlite.marks import Mark
from store.clock import Instant
from store.errors import LeaseLost
from store.lease import Fence
from store.records import Record
from store.remote_errors import Forked, NotShipped, RemoteRefused
from store.shipping import protocol
from store.shipping.fetch import head_key
from store.shipping.head import Head
from store.shipping.local import Local
from store.shipping.looking import Seen, Tries
from store.shipping.protocol import Durable, Lost, Stamp, Trouble
from store.shipping.taking import Taking
from store.shipping.upkeep import Upkeep

_REBASES = 5  # attempts at a head that others reshape meanwhile
BRIEFLY = 3.0  # seconds of patience of what a thread does by itself: who is waited for comes after it
_TO_END_IT = 3.0  # seconds of a lease that a barrier in vain leaves over, to record that its call was not started


class Shipper(Taking):
    """Ships one store's logs; the arguments are those of ``Looker``."""

    def push(
        self,
        fence: Fence,
        *,
        want: Record | None = None,
        renew: bool = False,
        look: bool = False,
        reshape: Callable[[Head], Head] | None = None,
        most: float = math.inf,
    ) -> None:
        """Bring the log into the bucket, up to at least ``want``; return when the bucket is known to have it.

        Args:
            want: a record; the last one of the log unless given.
            renew: send a version even if there is nothing new, so that the lease starts anew.
            look: read the head first, so that a foreign one is found even where the store ignores conditions.
            reshape: makes a head that says the same with other objects, for what keeps the bucket tidy.
            most: seconds of patience, of a caller who has less than the shipper.

        Raises:
            LeaseLost: another acts for the agent, or ``want`` was set aside here. Whether the records landed all
                the same is said.
            NotShipped: not known before the deadline; the records stay, and are sent again.
            RemoteRefused: the bucket does not take them (permission, configuration).
            Forked: the bucket contradicts what it said before.
        """
        with self._locked(fence.agent):
            self._advance(
                self._local(fence.agent),
                fence,
                want,
                renew=renew or reshape is not None,
                look=look,
                reshape=reshape,
                most=most,
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
            local = self._local(fence.agent)
            try:
                self._advance(local, fence, None, renew=True, state="released", park=park)
            except LeaseLost as problem:
                if problem.details.get("landed") or not self._pending(local):
                    return False
                raise  # what was written under it is set aside: nobody may take that for done
            return True

    def _left(self, fence: Fence) -> float:
        """For how many seconds the lease is still good."""
        row = self.store.lease(fence.agent)
        return 0.0 if row is None else row.left_ms(self.store.clock.now()) / 1000

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
        most: float = math.inf,
    ) -> None:
        tries = Tries(
            self,
            lambda reason: NotShipped(
                agent=fence.agent, what=f"the log up to lsn {target}", remote=self.bucket.name, reason=reason
            ),
            most=most if want is None else min(most, self._left(fence) - _TO_END_IT),
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
            if not renew and mark.lsn >= target and head.whole:
                return  # whoever had the lock before took it along
            if look or not head.whole:
                look = False
                self._settled(local, fence, self._look(local, None if head.whole else tries), target, head)
                continue
            new, stamp = self._next(local, mark, reshape(head) if reshape else head, last, state)
            body = new.encode()
            swap = self.bucket.swap(head_key(fence.agent), body, mark.etag)
            if swap.outcome == "done":
                self._landed(local, fence, new, body, swap.etag, stamp.now, park)
                return
            if swap.outcome == "refused":
                raise RemoteRefused(remote=self.bucket.name, reason=swap.reason)
            seen = self._look(local, tries)
            if seen.head is not None and seen.head.wid == new.wid:
                self._landed(local, fence, new, body, seen.etag, stamp.now, park)
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
            self.pause(wait)  # some stores take one write a second to an object
        stamp = self._stamp()
        return protocol.renewed(head, stamp, opened=opened, ship=self.ship, state=state), stamp

    def _landed(
        self, local: Local, fence: Fence, head: Head, body: bytes, etag: str, sent: Instant, park: bool
    ) -> None:
        row = self.store.lease(fence.agent)
        renewed = None
        if row is not None and row.is_of(fence):
            renewed = replace(row, renewed=sent, state="released" if head.state == "released" else "held")
            if park:  # the next write finds it lapsed
                renewed = replace(row, ttl_ms=0)
        local.learn(head, etag, lease=renewed, sent=sent, body=body)

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
        if seen.head.wid != known.wid or not known.whole:
            local.learn(seen.head, seen.etag)
        return isinstance(verdict, Durable)

    def maintain(self, fence: Fence, *, crowded: bool = False) -> bool:
        """Keep the head small and the objects few; whether there was anything to do.

        What it uploads, it uploads without the lock.

        Args:
            crowded: only if the head has more references than it should.
        """
        local = self._local(fence.agent)
        known = local.known()
        if (
            known is None
            or known[1].fence != fence
            or not known[1].whole
            or (crowded and len(known[1].segs) <= self._limits.refs)
        ):
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
        local = self._local(fence.agent)
        self.push(fence)
        for _ in range(_REBASES):
            known = local.known()
            if known is None or known[1].base >= base:
                return
            if known[1].last <= base:
                break
            self.push(fence, reshape=Upkeep(local, self.bucket, self._limits).rebasing(known[1], base))
        what, reason = f"a log that begins above lsn {base}", "it does not go beyond that, or changes all the time"
        raise NotShipped(agent=fence.agent, what=what, remote=self.bucket.name, reason=reason)
