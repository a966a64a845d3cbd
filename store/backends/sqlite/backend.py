"""The backend on SQLite. Its promises are those of ``store.backend.Backend``."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn, TypeVar

from store.backend import Acquired, Branch, Inbox
from store.backends.sqlite import rows, sql
from store.backends.sqlite.handle import Handle
from store.backends.sqlite.importing import Import
from store.canonical import first_hash
from store.clock import Instant, rfc3339, rfc3339_seconds
from store.errors import InvalidInput, LeaseHeld, LeaseLost, Stale, StoreDamaged
from store.lease import Fence, Lease, LeaseRequest, check_fence, left_ms, takeover_reason
from store.log import seal
from store.process import provably_dead
from store.records import LEASE, Draft, Expect, Record, compact
from store.value import replace

if TYPE_CHECKING:
    from store.backends.sqlite.ledger import Ledger
    from store.backends.sqlite.pruning import Going

T = TypeVar("T")


class SqliteBackend(Handle):
    """``store.backend.Backend`` on a directory; the arguments and errors are those of ``Handle``."""

    ship = ""
    inbox: Inbox | None = None

    # -- leases -------------------------------------------------------------------

    def acquire(self, request: LeaseRequest) -> Acquired:
        return self.transact(lambda connection: self._acquire(connection, request))

    def _acquire(self, connection: sqlite3.Connection, request: LeaseRequest) -> Acquired:
        self._refuse_remote()
        now = self.clock.now()
        previous = self._lease(request.agent)
        dead = previous is not None and previous.state == "held" and provably_dead(previous.process)
        reason = takeover_reason(previous, request, now, dead=dead)
        if reason is None:
            raise _refusal(previous, request, now)
        lineage, branch = self._ground(connection, previous, request.agent, now)
        lease = Lease(
            agent=request.agent,
            lineage=lineage,
            branch=branch,
            epoch=previous.epoch + 1 if previous else 1,
            incarnation=request.incarnation,
            state="held",
            holder=request.holder,
            process=request.process,
            ttl_ms=request.ttl_ms,
            renewed=now,
            acquired_at=rfc3339(now.wall_us),
        )
        if previous:
            connection.execute(sql.LEASE_UPDATE, (*rows.of_lease(lease)[1:], lease.agent))
        else:
            connection.execute(sql.LEASE_INSERT, rows.of_lease(lease))
        body: dict[str, object] = {
            "event": "acquired",
            "reason": reason,
            "holder": lease.holder,
            "incarnation": lease.incarnation,
            **compact({"by": request.by, "why": request.why}),
        }
        if previous and previous.lineage != lineage:
            last, last_hash = self._last(request.agent, previous.branch)
            body["from"] = {"lineage": previous.lineage, "lsn": last, "hash": last_hash.hex()}
        self.write_records(connection, lease, [Draft(LEASE, body, seq=lease.epoch)], now)
        return Acquired(lease, reason, previous)

    def _refuse_remote(self) -> None:
        """Raise RemoteChanged if it is a bucket that decides who has a lease (``store.shipping``)."""
        remote = self.remote()
        if remote is not None and remote.state != "local":
            from store.remote_errors import RemoteChanged

            reason, hint = _REFUSED[remote.state]
            raise RemoteChanged(path=self.directory, reason=reason, hint=hint)

    def _ground(
        self, connection: sqlite3.Connection, previous: Lease | None, agent: str, now: Instant
    ) -> tuple[str, int]:
        """The lineage and branch to write on; a first record or an imported log makes new ones."""
        if previous and not previous.imported:
            return previous.lineage, previous.branch
        lineage, start = self.random.hex(32), 0
        number = 1 + max((each.number for each in self.branches(agent)), default=0)
        if previous:
            start, _ = self._last(agent, previous.branch)
        parent, reason = (previous.branch, "imported") if previous else (0, "first")
        start_hash, at = first_hash(lineage, agent), rfc3339(now.wall_us)
        connection.execute(sql.BRANCH_INSERT, (agent, number, lineage, parent, start, start_hash, reason, at))
        return lineage, number

    def renew(self, fence: Fence) -> Lease:
        return self.transact(lambda connection: self._renew(connection, fence))

    def _renew(self, connection: sqlite3.Connection, fence: Fence) -> Lease:
        now = self.clock.now()
        lease = check_fence(self._lease(fence.agent), fence, now)
        connection.execute(sql.LEASE_RENEW, (now.boot_id, now.boot_ms, now.wall_us, fence.agent))
        return replace(lease, renewed=now)

    def release(self, fence: Fence) -> bool:
        return self.transact(lambda connection: self._release(connection, fence))

    def _release(self, connection: sqlite3.Connection, fence: Fence) -> bool:
        lease = self._lease(fence.agent)
        if lease is None or lease.fence != fence or lease.state == "released":
            return False
        connection.execute(sql.LEASE_RELEASE, (fence.agent,))
        return True

    # -- the one write path --------------------------------------------------------

    def append(
        self, fence: Fence, drafts: Sequence[Draft], expect: Sequence[Expect] = (), *, renew: bool = False
    ) -> list[Record]:
        return self.transact(lambda connection: self._append(connection, fence, drafts, expect, renew))

    def _append(
        self,
        connection: sqlite3.Connection,
        fence: Fence,
        drafts: Sequence[Draft],
        expect: Sequence[Expect],
        renew: bool,
    ) -> list[Record]:
        now = self.clock.now()
        agent, kind = fence.agent, drafts[0].kind if drafts else ""
        token = (kind, agent, fence.lineage, fence.epoch, fence.incarnation)
        row = connection.execute(sql.FENCED, token).fetchone()
        if row is None:
            self._refuse(fence, now)
        branch, ttl_ms, boot_id, boot_ms, wall_us, last, last_hash, newest = row
        renewed = Instant(boot_id, boot_ms, wall_us)
        if left_ms(ttl_ms, renewed, now) <= 0:
            self._refuse(fence, now)
        for each in expect:
            self._check(connection, agent, each)
        end = (last, last_hash) if last is not None else self._last(agent, branch)
        records = self._store(connection, fence, branch, end, drafts, now, {kind: newest or 0})
        if renew:
            connection.execute(sql.LEASE_RENEW, (now.boot_id, now.boot_ms, now.wall_us, agent))
        # A process that was stopped since the first check must not land a late write.
        later = self.clock.now()
        if left_ms(ttl_ms, renewed, later) <= 0:
            self._refuse(fence, later)
        return records

    def _refuse(self, fence: Fence, now: Instant) -> NoReturn:
        """Say what is wrong with a fence, by the whole row of its lease."""
        check_fence(self._lease(fence.agent), fence, now)
        raise StoreDamaged(path=self.directory, reason=f"the lease of {fence.agent} cannot be read")

    def _check(self, connection: sqlite3.Connection, agent: str, each: Expect) -> None:
        row = connection.execute(sql.HEAD_LSN, (agent, each.kind, each.seq, each.name)).fetchone()
        found = row[0] if row else 0
        if found != each.lsn:
            raise Stale(key=f"{agent}:{each.kind}:{each.name or each.seq}", expected=each.lsn, found=found)

    def write_records(
        self, connection: sqlite3.Connection, lease: Lease, drafts: Sequence[Draft], now: Instant
    ) -> list[Record]:
        """Seal and store drafts, inside the transaction that has checked the fence."""
        end = self._last(lease.agent, lease.branch)
        return self._store(connection, lease.fence, lease.branch, end, drafts, now, {})

    def _store(
        self,
        connection: sqlite3.Connection,
        fence: Fence,
        branch: int,
        end: tuple[int, bytes],
        drafts: Sequence[Draft],
        now: Instant,
        newest: dict[str, int],
    ) -> list[Record]:
        """Store drafts after ``end``, the log's last lsn and hash; ``newest`` is what is known of their kinds' seqs."""
        agent = fence.agent
        last, last_hash = end
        if not last_hash:
            raise StoreDamaged(path=self.directory, reason=f"branch {branch} of {agent} is missing")

        def newest_seq(kind: str) -> int:
            if kind in newest:
                return newest[kind]
            row = connection.execute(sql.NEWEST_SEQ, (agent, kind)).fetchone()
            return row[0] if row else 0

        sealed = seal(
            drafts,
            agent=agent,
            branch=branch,
            epoch=fence.epoch,
            last=last,
            last_hash=last_hash,
            at=rfc3339(now.wall_us),
            newest_seq=newest_seq,
        )
        for r, key, blobs, is_open in sealed:
            for name, data in blobs.items():
                if connection.execute(sql.BLOB_THERE, (agent, name)).fetchone() is None:
                    connection.execute(sql.BLOB_INSERT, (agent, name, data))
            values = (agent, branch, r.lsn, r.epoch, key, r.kind, r.seq, r.name, r.line.decode(), r.at, r.hash)
            connection.execute(sql.RECORD_INSERT, values)
            connection.execute(sql.HEAD_WRITE, (agent, r.kind, r.seq, r.name, branch, r.lsn, is_open))
        return [each.record for each in sealed]

    def secure(self, fence: Fence, record: Record) -> None:
        pass

    def send(self, fence: Fence) -> None:
        pass

    def granted_here(self, agent: str) -> bool:
        return True

    # -- rare writes -----------------------------------------------------------------

    def set_aside(self, fence: Fence, keep: int, reason: str) -> Branch:
        return self.transact(lambda connection: self._set_aside(connection, fence, keep, reason))

    def _set_aside(self, connection: sqlite3.Connection, fence: Fence, keep: int, reason: str) -> Branch:
        now = self.clock.now()
        lease = check_fence(self._lease(fence.agent), fence, now)
        record = next(self.log(fence.agent, after=keep - 1, limit=1), None)
        if record is None or record.lsn != keep or keep >= self._last(fence.agent, lease.branch)[0]:
            raise InvalidInput(field="keep", reason=f"lsn {keep} is not inside the log of {fence.agent}")
        number = 1 + max(each.number for each in self.branches(fence.agent))
        values = (
            fence.agent,
            number,
            lease.lineage,
            record.branch,
            keep,
            record.hash,
            reason,
            rfc3339(now.wall_us),
        )
        connection.execute(sql.BRANCH_INSERT, values)
        connection.execute(sql.LEASE_BRANCH, (number, fence.agent))
        self.rebuild(connection, fence.agent, number)
        return self.branches(fence.agent)[-1]

    def check_prunable(self, agent: str) -> None:
        """Raise LeaseHeld if somebody acts for the agent whom this store cannot work beside."""

    def rebase(self, fence: Fence, base: int) -> None:
        """Let the log begin above lsn ``base`` wherever else it is, before ``cut`` does it here."""

    def going(self, agent: str, base: int, kept: frozenset[int] = frozenset()) -> Going:
        """What ``cut`` is going to take away, if the records ``kept`` are first written again."""
        from store.backends.sqlite.pruning import Pruning  # rare, as is all of a prune

        return Pruning(self, agent).going(base, kept)

    def cut(self, fence: Fence, base: int, before: Callable[[], None], after: Callable[[], None]) -> Going:
        """Take away what a log has up to lsn ``base``; see ``Pruning.cut``."""
        from store.backends.sqlite.pruning import Pruning

        return Pruning(self, fence.agent).cut(fence, base, before, after)

    def shrink(self) -> int:
        """Give free space back to the disk: how many bytes."""
        from store.backends.sqlite.pruning import shrink

        return shrink(self)

    def mend(self, agent: str) -> bool:
        """Make an agent's projection anew where it differs from its records; whether it did.

        Records, blobs and leases stay as they are, whatever is wrong with them.
        """
        if not self.differs(agent):
            return False
        return self.transact(lambda connection: self._mend(connection, agent))

    def _mend(self, connection: sqlite3.Connection, agent: str) -> bool:
        lease = self._lease(agent)
        if lease is None or not self.differs(agent):
            return False
        self.rebuild(connection, agent, lease.branch)
        return True

    def shipping(self, work: Callable[[Ledger], T], *, durable: bool = True) -> T:
        """Let ``work`` write what the bucket says; one transaction, committed when it returns.

        Args:
            durable: as for ``transact``; what the bucket would tell again need not be.
        """
        from store.backends.sqlite.ledger import Ledger  # a store without a bucket never needs it

        return self.transact(lambda connection: work(Ledger(self, connection)), durable=durable)

    def importing(self, work: Callable[[Import], T]) -> T:
        """Let ``work`` write absent agents whole; one transaction, committed when it returns."""
        return self.transact(lambda connection: work(Import(connection)))


# Why a store grants no lease by itself, and what to do, by the state of its remote.
_REFUSED = {
    "attaching": (
        "its attaching to a bucket was cut short",
        "go on with: recall remote attach URL; or undo it: recall remote detach",
    ),
    "attached": ("it was attached to a bucket since it was opened", "open the store again"),
    "detached": (
        "it was detached from its bucket, where its agents may live on; here they can be read",
        "attach it again, or see: recall remote detach --help (--take, --fork)",
    ),
}


def _refusal(previous: Lease | None, request: LeaseRequest, now: Instant) -> Exception:
    if previous is None or request.again is not None:
        epoch = request.again.epoch if request.again else 0
        holder = f"{previous.epoch}, of {previous.holder}" if previous else "none"
        return LeaseLost(agent=request.agent, epoch=epoch, now=holder)
    until = rfc3339_seconds(now.wall_us + max(0, previous.left_ms(now)) * 1000)
    return LeaseHeld(agent=request.agent, holder=previous.holder, epoch=previous.epoch, until=until)
