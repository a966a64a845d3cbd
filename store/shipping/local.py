"""One agent's log in this store, as shipping sees it, and what comes into it from the bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING

from store.backend import all_leases
from store.backends.sqlite.ledger import Ledger
from store.backends.sqlite.marks import NEVER, Mark
from store.clock import Instant, rfc3339
from store.errors import BadRecord
from store.lease import Fence, Lease
from store.records import ACTION, Record
from store.shipping.fetch import Line, blobs_of, lines_after
from store.shipping.head import Head, Open, chained, lineage_starts
from store.shipping.protocol import Unshipped
from store.values import Action

if TYPE_CHECKING:
    from store.backends.sqlite import SqliteBackend
    from store.shipping.bucket import Bucket

_OPEN_SHOWN = 1000
_BLOBS_AT_ONCE = 64 * 1024 * 1024  # bytes in memory
_HEADS_KEPT = 16  # in memory; each has up to 64 KiB of lines

Heads = dict[str, tuple[str, Head]]  # by agent: an ETag, and the head that has it


class Local:
    """One agent in one store. Methods that write are one transaction each.

    Args:
        heads: those that were read or written last, to be kept from one call to the next.
    """

    def __init__(self, store: SqliteBackend, agent: str, heads: Heads | None = None) -> None:
        self.store, self.agent = store, agent
        self._heads: Heads = {} if heads is None else heads

    # -- reading ----------------------------------------------------------------------------

    def last(self) -> tuple[int, bytes]:
        """The last record's lsn and hash; (0, b"") of an agent that is not there."""
        return self.store.end(self.agent)

    def hash_at(self, lsn: int) -> bytes | None:
        """The chain's hash at an lsn of this log, or None if it does not go through there."""
        link = self.store.hash_on_branch(self.agent, lsn)
        if link is not None:
            return link
        record = next(self.store.log(self.agent, after=lsn - 1, limit=1), None)
        if record is not None and record.lsn == lsn:
            return record.hash
        root = next((number for number, _, _ in self.store.path(self.agent)), 0)
        starts = (each for each in self.store.branches(self.agent) if each.number == root and each.start == lsn)
        return next((each.start_hash for each in starts), None)

    def lines(self, head: Head, after: tuple[int, bytes], last: int) -> list[bytes]:
        """The lines of a head's log above one record, up to another; none if one of them is damaged here.

        Each is held to its own hash: that of the last says nothing of those before a new lineage.

        Args:
            after: the lsn of the record, and the chain's hash after it.
        """
        found = list(self.records(after[0], last))
        lines = [each.line for each in found]
        return lines if list(chained(head, lines, *after)) == [(each.lsn, each.hash) for each in found] else []

    def _tail_of(self, head: Head) -> list[bytes]:
        return self.lines(head, head.spilled, head.last)

    def records(self, after: int, last: int) -> Iterator[Record]:
        """The records above one lsn, up to another."""
        return islice(self.store.log(self.agent, after=after), last - after)

    def unshipped(self, after: int, link: bytes) -> Unshipped:
        """What this log has above a record that the bucket has."""
        epochs = frozenset(each.epoch for each in self.store.log(self.agent, after=after))
        return Unshipped(after, link, epochs)

    def opened(self) -> list[Open]:
        """The actions without an outcome, oldest first."""
        found = []
        for record in self.store.in_force(self.agent, ACTION, limit=_OPEN_SHOWN):
            try:
                action = Action.read(record)
            except BadRecord:
                continue  # it ships as it is; here it could not be told what it is
            found.append(Open(record.lsn, action.key, action.class_, action.max_ms))
        return found

    def known(self) -> tuple[Mark, Head] | None:
        """What this store knows of the bucket."""
        mark, kept = self.store.mark(self.agent), self._heads.get(self.agent)
        if mark is not None and kept is not None and (kept[0], kept[1].rev) == (mark.etag, mark.rev):
            return mark, kept[1]
        with self.store.reading():
            mark = self.store.mark(self.agent)
            # A mark without a head says only when a contender's revision was first seen.
            if mark is None or not mark.head:
                return None
            head = Head.parse(mark.head, self.agent, self._tail_of)
            self._keep(mark.etag, head)
            return mark, head

    def _keep(self, etag: str, head: Head) -> None:
        """Remember a head that was read or written, so that the next barrier need not parse and check it."""
        self._heads.pop(self.agent, None)
        self._heads[self.agent] = (etag, head)
        if len(self._heads) > _HEADS_KEPT:
            self._heads.pop(next(iter(self._heads)), None)

    def sight(self, rev: int) -> Instant | None:
        """Since when this store knows that the head has this revision."""
        mark = self.store.mark(self.agent)
        if mark is None:
            return None
        known = ((mark.rev, mark.sent), (mark.sight_rev, mark.sight))
        return next((at for each, at in known if each == rev and at != NEVER), None)

    # -- writing -----------------------------------------------------------------------------

    def learn(
        self,
        head: Head,
        etag: str,
        *,
        lease: Lease | None = None,
        sent: Instant | None = None,
        body: bytes | None = None,
    ) -> None:
        """Keep what the bucket has; with ``lease`` that row too. The head is a prefix of this log.

        Args:
            body: the head's bytes, where they are known.
        """

        def work(ledger: Ledger) -> None:
            self.learn_in(ledger, head, etag, sent=sent, body=body)
            if lease is not None:
                ledger.put_lease(lease)

        self.store.shipping(work, durable=False)  # lost with the power, it is found again by its hash
        self._keep(etag, head)

    def follow(self, head: Head, etag: str) -> None:
        """Keep what the bucket has, and who has the lease there: also of a log that nothing was written to yet."""
        row, mark, now = self.store.lease(self.agent), self.store.mark(self.agent), self.store.clock.now()

        def work(ledger: Ledger) -> None:
            lease = cached(head, row, now)
            if row is None:
                branch = ledger.new_branch(
                    self.agent,
                    lease.lineage,
                    parent=0,
                    start=head.base,
                    start_hash=head.base_hash,
                    reason="from the bucket",
                    at=now,
                )
                lease = replace(lease, branch=branch)
            if row is None or mark is None or mark.rev != head.rev:
                ledger.put_lease(lease)
            self.learn_in(ledger, head, etag)

        self.store.shipping(work)

    def learn_in(
        self, ledger: Ledger, head: Head, etag: str, *, sent: Instant | None = None, body: bytes | None = None
    ) -> None:
        """The same inside a transaction."""
        before, kept = self.store.mark(self.agent), self._kept(head, body or head.encode())
        mark = Mark(self.agent, head.rev, etag, head.last, head.hash, kept, sent or NEVER)
        if before is not None and before.sight_rev == head.rev:
            mark = replace(mark, sight_rev=before.sight_rev, sight=before.sight)
        # Of a version that another one sent it is not known when, and an older time would pass for a sight of it.
        if before is not None and before.rev == head.rev and before.etag == etag and sent is None:
            mark = replace(mark, sent=before.sent)
        ledger.put_mark(mark)

    def _kept(self, head: Head, body: bytes) -> bytes:
        """A head as the store keeps it: without the lines that the log here has."""
        # It may begin later than the bucket's, if it was pruned while it was detached.
        return body if self.hash_at(head.tail_first - 1) is None else Head.without_tail(body)

    def note_sight(self, rev: int, now: Instant) -> None:
        """Keep when a revision of another holder was first seen, so that repeated short attempts add up (rule 15)."""
        mark = self.store.mark(self.agent) or Mark(self.agent, 0, "", 0, b"", b"")
        self.store.shipping(lambda ledger: ledger.put_mark(replace(mark, sight_rev=rev, sight=now)))

    def note_trouble(self, kind: str) -> None:
        """Write nothing more for this agent until a person has looked."""
        mark = self.store.mark(self.agent)
        if mark is not None:
            self.store.shipping(lambda ledger: ledger.put_mark(replace(mark, trouble=kind)))

    def note_lost(self, head: Head, fence: Fence) -> None:
        """The lease is another's: its row says so from now on, so that nothing enters the log under ours."""
        lease = self.store.lease(self.agent)
        if lease is None or not lease.is_of(fence):
            return
        now = self.store.clock.now()
        foreign = cached(head, lease, now)
        if foreign.fence == fence:  # a clone of us: the same in all but the records
            foreign = replace(foreign, state="released", incarnation=f"lost-{fence.incarnation}")
        self.store.shipping(lambda ledger: ledger.put_lease(foreign))

    def set_aside(self, keep: int, link: bytes, reason: str) -> None:
        """Leave what this log has above ``keep`` on a branch of its own."""
        lease = self.store.lease(self.agent)
        assert lease is not None
        now = self.store.clock.now()
        self.store.shipping(lambda ledger: ledger.set_aside(lease, keep, link, reason, now))

    def catch_up(self, bucket: Bucket, head: Head, shipped: tuple[int, bytes]) -> bool:
        """Take in what the bucket has above ``shipped``; what contradicts it here is set aside.

        It needs no lease: the head says what the log is.

        Returns:
            whether anything was set aside.

        Raises:
            Forked, BadHead, Replaced.
        """
        last, _ = self.last()
        if self.hash_at(head.last) == head.hash and last >= head.last:
            return False
        before, shipped = shipped[0], self._at_base(head, shipped)
        aside = before < shipped[0] and before < last  # of what was set aside whole, more than a copy
        last, _ = self.last()
        for chunk in lines_after(bucket, head, *shipped):
            new = [each for each in chunk if each[0] > last or self.hash_at(each[0]) != each[2]]
            if not new:
                shipped = (chunk[-1][0], chunk[-1][2])
                continue
            before_it = next((each[2] for each in chunk if each[0] == new[0][0] - 1), shipped[1])
            aside = self._take_in(bucket, head, new, before_it) or aside
            last, shipped = new[-1][0], (new[-1][0], new[-1][2])
        return aside

    def _at_base(self, head: Head, shipped: tuple[int, bytes]) -> tuple[int, bytes]:
        """Where to read on: above what was pruned, whose successor here is set aside whole (rule 19)."""
        if shipped[0] >= head.base:
            return shipped
        if self.last()[0] and self.hash_at(head.base) != head.base_hash:
            reason = f"the bucket's log begins above lsn {head.base}: what came before was pruned"
            now = self.store.clock.now()

            def work(ledger: Ledger) -> None:
                lease = self.store.lease(self.agent)
                lineage = lineage_at(head, head.base + 1)
                number = ledger.new_branch(
                    self.agent, lineage, parent=0, start=head.base, start_hash=head.base_hash, reason=reason, at=now
                )
                ledger.go_to(replace(cached(head, lease, now), branch=number, lineage=lineage))
                # Its tail is not here yet, so it cannot be kept as the head that this store knows.
                ledger.put_mark(Mark(self.agent, head.rev, "", head.base, head.base_hash, b""))

            self.store.shipping(work)
        return head.base, head.base_hash

    def _take_in(self, bucket: Bucket, head: Head, lines: Sequence[Line], link: bytes) -> bool:
        """Add lines of the bucket; what this log has in their place is set aside in the same transaction.

        Args:
            link: the chain's hash before the first of them.

        Returns:
            whether anything was set aside.
        """
        blobs: dict[str, bytes] = {}
        for _, line, _ in lines:
            blobs.update(blobs_of(bucket, head, line))
            if sum(map(len, blobs.values())) > _BLOBS_AT_ONCE:
                self._store_blobs(blobs)
                blobs.clear()
        self._store_blobs(blobs)

        def work(ledger: Ledger) -> bool:
            lease = self.store.lease(self.agent)
            now, first = self.store.clock.now(), lines[0][0]
            # Looked at here and not before: another thread may have written while the bucket was asked.
            aside = lease is not None and self.last()[0] >= first
            if lease is not None and aside:
                reason = f"the bucket's log went on otherwise from lsn {first}"
                lease = ledger.set_aside(lease, first - 1, link, reason, now)
            for branch, lineage, part in self._by_branch(ledger, head, lease.branch if lease else 0, lines, now):
                lease = self.store.lease(self.agent)
                ledger.put_lease(replace(cached(head, lease, now), branch=branch, lineage=lineage))
                ledger.extend(self.agent, branch, part)
            return aside

        return self.store.shipping(work)

    def _store_blobs(self, blobs: dict[str, bytes]) -> None:
        def work(ledger: Ledger) -> None:
            for name, data in blobs.items():
                ledger.blob(self.agent, name, data)

        if blobs:
            self.store.shipping(work)

    def _by_branch(
        self, ledger: Ledger, head: Head, branch: int, lines: Sequence[Line], now: Instant
    ) -> Iterator[tuple[int, str, Iterable[Line]]]:
        """The lines by the branch that they belong on; a branch for each lineage, made where there is none."""
        starts = lineage_starts(head)
        cuts = [0] + [i for i, (lsn, _, _) in enumerate(lines) if i and lsn - 1 in starts] + [len(lines)]
        lineages = {each.number: each.lineage for each in self.store.branches(self.agent)}
        for low, high in pairwise(cuts):
            start = lines[low][0] - 1
            lineage = lineage_at(head, start + 1)
            if lineages.get(branch) != lineage:
                link = starts.get(start, head.base_hash)
                branch = ledger.new_branch(
                    self.agent, lineage, parent=branch, start=start, start_hash=link, reason="from the bucket", at=now
                )
                lineages[branch] = lineage
            yield branch, lineage, lines[low:high]


def lineage_at(head: Head, lsn: int) -> str:
    """The lineage that a record of a head's log was written in."""
    return next((each.lineage for each in head.origins if lsn <= each.last), head.lineage)


def cached(head: Head, lease: Lease | None, now: Instant) -> Lease:
    """A head's lease as this store's row; the branch is the one that it is on."""
    return Lease(
        agent=head.agent,
        lineage=lease.lineage if lease else head.lineage,
        branch=lease.branch if lease else 0,
        epoch=max(head.epoch, lease.epoch if lease else 0),
        incarnation=head.lease.inc,
        state="held" if head.state == "live" else "released",
        holder=head.lease.holder,
        process=head.lease.process,
        ttl_ms=head.lease.ttl_ms,
        renewed=now,
        acquired_at=rfc3339(now.wall_us),
    )


def agents_of(store: SqliteBackend) -> list[str]:
    """All agents of a store, by id."""
    return [each.agent for each in all_leases(store)]
