"""Attaching a store to a bucket and detaching it: who decides about a lease, the store or the bucket (rule 17).

Both can be cut short at any moment and called again. While a store is being
attached it grants no lease; it counts as attached only when the bucket has a
head of every agent. Nothing is ever merged: a log of another lineage under an
agent's name is refused, or the log here is set aside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from store.backends.sqlite.ledger import Ledger
from store.backends.sqlite.marks import Remote
from store.clock import Random, rfc3339
from store.errors import (
    AttachedElsewhere,
    BadHead,
    Forked,
    LeaseHeld,
    NotAttached,
    NotShipped,
    OtherLog,
    RemoteRefused,
    RemoteUnreachable,
)
from store.lease import DEFAULT_TTL_MS, Lease, LeaseRequest
from store.process import provably_dead, this_process
from store.shipping import protocol
from store.shipping.bucket import Bucket, Dialect, Location
from store.shipping.fetch import Replaced, lines_after, prefix
from store.shipping.head import Head, lineage_starts
from store.shipping.local import Local, cached, lineage_at
from store.shipping.locking import agent_lock
from store.shipping.looking import Seen, Tries
from store.shipping.opening import open_location
from store.shipping.place import Place, find, find_or_make
from store.shipping.probe import probe
from store.shipping.shipper import Shipper
from store.value import value

if TYPE_CHECKING:
    from store.backends.sqlite import SqliteBackend

Outcome = Literal["shipped", "continued", "fetched", "adopted", "imported", "taken", "forked", "kept", "trouble"]
Watch = Callable[[list[str]], Iterable[str]]

_TRIES = 5
_LOCK = "this store"  # has a space, so it is no agent's
_LOCK_TIMEOUT = 30.0


@value
class Report:
    """What became of one agent.

    Attributes:
        outcome: ``shipped``: the bucket has its log now. ``continued``: it had it, and goes on from there.
            ``fetched``: it had more of it, and that is here now. ``adopted``: the log here was set aside for the
            bucket's. ``imported``: a copy, which is shipped under a lineage of its own from its first lease on.
            ``taken``, ``forked``, ``kept``: of a detaching. ``trouble``: it has to be mended first.
        lsn: of its last record here.
        detail: what the trouble is, or "".
    """

    agent: str
    outcome: Outcome
    lsn: int
    detail: str = ""


@value
class Attached:
    """What an attaching came to.

    Attributes:
        remote: what the store now says of it.
        made: the prefix was empty, and became a remote.
        already: the store was attached to it; its settings are the location's now.
        warnings: what a person should know, a line each.
    """

    remote: Remote
    made: bool
    already: bool
    warnings: tuple[str, ...]
    reports: tuple[Report, ...]


def attach(
    store: SqliteBackend,
    location: Location,
    *,
    force: bool = False,
    adopt: bool = False,
    watch: Watch = lambda agents: agents,
    connected: tuple[Bucket, Dialect] | None = None,
) -> Attached:
    """Ship a store to a bucket from now on, its agents one after another.

    The bucket is probed first. Called again it goes on where it was cut short;
    of a store that is attached to this very remote it takes over the location's
    settings.

    Args:
        force: end the leases that are held here.
        adopt: set a log here aside where the bucket has another one of its name.
        watch: is given the agents and yields them again, for a display of progress.
        connected: the location's bucket and its dialect, if they are known already.

    Raises:
        BucketUnfit: the probe found that it cannot decide a lease.
        AttachedElsewhere: the store ships to another remote, or its agents live on there.
        LeaseHeld: somebody acts for an agent.
        RemoteForeign: the prefix is somebody else's.
        OtherLog: the bucket has another log of an agent; nothing was changed.
        BadHead, RemoteUnreachable, RemoteRefused.
    """
    bucket, dialect = connected or connect(location, store.random)
    place = find_or_make(bucket, location, dialect, store.clock, store.random)
    warnings = list(dialect.warnings)
    if place.expiration:
        warnings.append(f"a lifecycle rule will delete objects under this prefix: {place.expiration}")
    with agent_lock(store.directory, _LOCK, _LOCK_TIMEOUT):
        before = store.remote()
        _refuse_elsewhere(store, before, place)
        remote = Remote(
            "attaching",
            before.generation + 1 if before else 1,
            place.id,
            json.dumps(vars(location), sort_keys=True),
            dialect.to_json(),
            rfc3339(store.clock.now().wall_us),
        )
        done = replace(remote, state="attached")
        if before is not None and before.state == "attached":
            # The generation stays: who has the store open goes on with the settings that he knows.
            same = replace(before, location=remote.location, dialect=remote.dialect)
            if same != before:
                store.shipping(lambda ledger: ledger.put_remote(same))
            return Attached(same, False, True, tuple(warnings), ())
        work = Attaching(store, bucket, remote, force=force, adopt=adopt)
        if not place.made and not adopt:
            work.refuse_others()
        work.begin(before)
        reports = [work.bring(each, fresh=place.made) for each in watch(agents_of(store))]
        store.shipping(lambda ledger: ledger.put_remote(done))
        return Attached(done, place.made, False, tuple(warnings), tuple(reports))


def attach_fresh(store: SqliteBackend, location: Location) -> None:
    """Attach a store that was never used, without a person: a container that has nothing but a bucket's name.

    A bucket that was found fit when its remote was made is not probed again.

    Raises:
        As ``attach``.
    """
    attach(store, location, connected=connect(location, store.random, trusting=True))


def connect(location: Location, random: Random, *, trusting: bool = False) -> tuple[Bucket, Dialect]:
    """A location's bucket, and how it speaks.

    Args:
        trusting: do not probe a bucket that a probe was content with before.

    Raises:
        BucketUnfit: the probe found that it cannot decide a lease.
        RemoteForeign, RemoteUnreachable, RemoteRefused.
    """
    bucket = open_location(location)
    place = find(bucket) if trusting else None
    dialect = place.dialect if place else probe(bucket, random)
    return bucket.speaking(dialect), dialect


def _refuse_elsewhere(store: SqliteBackend, before: Remote | None, place: Place) -> None:
    if before is not None and before.state in _STATES and before.remote_id != place.id:
        url = Location(**json.loads(before.location)).url
        raise AttachedElsewhere(path=store.directory, state=_STATES[before.state], remote=url)


_STATES = {"attached": "attached to", "attaching": "half attached to", "detached": "detached from"}


def agents_of(store: SqliteBackend) -> list[str]:
    """All agents of a store, by id."""
    return [each.agent for each in _leases(store)]


def _leases(store: SqliteBackend) -> Iterator[Lease]:
    page = store.leases()
    while page:
        yield from page
        page = store.leases(after=page[-1].agent)


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
        key = prefix(agent) + "head.json"
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
        for lease in _leases(self.store):
            if not _held_here(self.store, lease):
                continue
            if not self.force:
                until = rfc3339(now.wall_us + max(0, lease.left_ms(now)) * 1000)[:19] + "Z"
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


class Attaching(Bringing):
    """The agents of a store on their way into a bucket."""

    def __init__(self, store: SqliteBackend, bucket: Bucket, remote: Remote, *, force: bool, adopt: bool) -> None:
        super().__init__(store, bucket, remote, force=force)
        self._adopt = adopt

    def refuse_others(self) -> None:
        """Look at the bucket's heads before anything is changed. Raises OtherLog or BadHead."""
        for lease in _leases(self.store):
            if lease.imported or self.store.mark(lease.agent) is not None:
                continue
            local = Local(self.store, lease.agent)
            seen = self._look(local)
            reason = self._contradiction(local, seen.head) if seen.head else ""
            if reason:
                raise OtherLog(agent=lease.agent, remote=self.bucket.name, reason=reason)

    def begin(self, before: Remote | None) -> None:
        """From here on until it is attached, or detached, the store grants no lease."""

        def work(ledger: Ledger) -> None:
            self.end_leases(ledger)
            if before is not None and before.remote_id != self.remote.remote_id:
                for agent in agents_of(self.store):
                    ledger.drop_mark(agent)
            ledger.put_remote(self.remote)

        self.store.shipping(work)

    def bring(self, agent: str, *, fresh: bool) -> Report:
        """See to it that the bucket has a head of the agent, of this store's log.

        Args:
            fresh: nobody else can have made one.
        """
        with self._locked(agent):
            local = Local(self.store, agent)
            row = self.store.lease(agent)
            assert row is not None
            if row.imported:
                return Report(agent, "imported", local.last()[0])
            try:
                for number in range(_TRIES):
                    seen = Seen(None, "", None) if fresh and not number else self._look(local)
                    try:
                        outcome = self._joined(local, seen) if seen.head else self._created(local)
                    except Replaced:
                        continue
                    if outcome is not None:
                        return Report(agent, outcome, local.last()[0])
            except (Forked, BadHead) as problem:
                if self.store.mark(agent) is None:
                    raise
                return Report(agent, "trouble", local.last()[0], problem.message)
        raise RemoteUnreachable(remote=self.bucket.name, reason=f"the head of {agent} changed faster than it was read")

    def _created(self, local: Local) -> Outcome | None:
        request = self.request(local.agent)
        head = self._packer(local).new_log(self.remote.remote_id, request)
        return "shipped" if self.written(local, head, request, "") else None

    def _joined(self, local: Local, seen: Seen) -> Outcome | None:
        """Go on from a head that is there; None if it changed meanwhile."""
        assert seen.head is not None
        outcome: Outcome = "continued"
        reason = self._contradiction(local, seen.head)
        if reason:
            if not self._adopt:
                raise OtherLog(agent=local.agent, remote=self.bucket.name, reason=reason)
            set_all_aside(local, seen.head, f"the bucket's log was taken in its place: {reason}")
            outcome = "adopted"
        before, _ = local.last()
        seen = self._read_up(local, seen)
        assert seen.head is not None
        head, etag = seen.head, seen.etag
        last, _ = local.last()
        if last > before and outcome == "continued":
            outcome = "fetched"
        row = self.store.lease(local.agent)
        assert row is not None
        returned = head.state == "deleted" and head.lease.dir == self.store.store_id
        if last <= head.last and not returned:
            local.learn(head, etag, lease=cached(head, row, self.store.clock.now()))
            return outcome
        request = self.request(local.agent)
        if not returned:
            self._reason(local, seen, request)
        packer = self._packer(local)
        log = replace(head, lineage=row.lineage, origins=packer.origins(last)) if last > head.last else head
        return outcome if self.written(local, packer.carry(log, last), request, etag) else None

    def _contradiction(self, local: Local, head: Head) -> str:
        """Why the log here is not the bucket's, or a beginning of it, or that with more; "" if it is.

        What is here beyond the bucket's is of epochs that the bucket never had a
        higher one than: else somebody may have been told that it never was.

        Raises:
            Replaced: the head is to be read again.
        """
        last, link = local.last()
        if head.last > last:
            try:
                next(lines_after(self.bucket, head, last, link), None)
            except Forked as problem:
                return _lineages(local, head) or str(problem.details["reason"])
            return ""
        if local.hash_at(head.last) != head.hash:
            return _lineages(local, head) or f"they differ at or below lsn {head.last}"
        if last > head.last:
            if head.state == "deleted" and head.lease.dir != self.store.store_id:
                return f"it was taken out of the bucket by {head.lease.holder}"
            tail = local.unshipped(head.last, head.hash)
            # Epochs that this store gave out by itself say nothing of who the bucket's are: a copy has its id too.
            carried = local.known() is not None and protocol.may_carry(head, self.store.store_id, tail)
            if not carried and min(tail.epochs) <= head.epoch:
                return f"it is at epoch {head.epoch}, without what was written here under epoch {min(tail.epochs)}"
        return ""


def _lineages(local: Local, head: Head) -> str:
    """That two logs have no lineage in common, or ""."""
    ours = {each.lineage for each in local.store.branches(local.agent)}
    theirs = {head.lineage, *(each.lineage for each in head.origins)}
    return "" if ours & theirs else f"it is of lineage {head.lineage[:8]}…, the one here of {min(ours)[:8]}…"


def set_all_aside(local: Local, head: Head, reason: str) -> None:
    """Leave the log here as evidence, and start with the bucket's."""
    lease = local.store.lease(local.agent)
    assert lease is not None
    now = local.store.clock.now()
    lineage = lineage_at(head, head.base + 1)
    base_hash = lineage_starts(head).get(head.base, head.base_hash)
    local.store.shipping(lambda ledger: ledger.start_over(lease, lineage, head.base, base_hash, reason, now))


# -- detaching -----------------------------------------------------------------------------------

How = Literal["keep", "take", "fork"]


def detach(
    store: SqliteBackend,
    bucket: Bucket,
    how: How,
    *,
    force: bool = False,
    watch: Watch = lambda agents: agents,
) -> list[Report]:
    """Ship to the bucket no more.

    Args:
        how: ``keep``: the agents live on in the bucket; here they can be read. ``take``: they go on here, in their
            lineage, and nobody can go on from the bucket. ``fork``: they go on here under new lineages, and
            whoever has the bucket goes on with the old ones; the bucket is not asked.
        force: end leases that are held here, and give up what was not shipped (with ``keep``).

    Raises:
        NotAttached; LeaseHeld; NotShipped: with ``keep``, records would be neither there nor writable here.
        Forked, TakenAway, RemoteUnreachable, RemoteRefused: with ``take``.
    """
    with agent_lock(store.directory, _LOCK, _LOCK_TIMEOUT):
        remote = store.remote()
        if remote is None or remote.state == "local":
            raise NotAttached(path=store.directory)
        after = replace(remote, generation=remote.generation + 1, at=rfc3339(store.clock.now().wall_us))
        work = Detaching(store, bucket, remote, force=force)
        marked = [each for each in agents_of(store) if (mark := store.mark(each)) is not None and mark.head]
        if how == "take":
            store.shipping(work.end_leases)
            reports = [work.take(each) for each in watch(marked)]
            store.shipping(lambda ledger: ledger.put_remote(replace(after, state="local")))
            return reports
        state = "local" if how == "fork" or not marked else "detached"
        if how == "keep" and not force:
            _refuse_unshipped(store, bucket.name, marked)

        def finish(ledger: Ledger) -> None:
            work.end_leases(ledger)
            for agent in marked if how == "fork" else ():
                lease = store.lease(agent)
                assert lease is not None
                # A copy of a log that may live on elsewhere, which is what an import is too.
                ledger.put_lease(replace(lease, state="released", imported=True))
            ledger.put_remote(replace(after, state=state))

        store.shipping(finish)
        outcome: Outcome = "forked" if how == "fork" else "kept"
        return [Report(each, outcome, store.counters(each).lsn) for each in marked]


def _refuse_unshipped(store: SqliteBackend, remote: str, agents: Iterable[str]) -> None:
    for agent in agents:
        mark, last = store.mark(agent), store.counters(agent).lsn
        if mark is not None and last > mark.lsn and not mark.trouble:
            raise NotShipped(
                agent=agent,
                what=f"the log from lsn {mark.lsn + 1} to {last}",
                remote=remote,
                reason="it was not pushed",
                hint=f"push it first: recall sync push {agent}; or leave it behind with --force",
            )


class Detaching(Bringing):
    """The agents of a store on their way out of a bucket."""

    def take(self, agent: str) -> Report:
        """End an agent's log in the bucket: it goes on here."""
        with self._locked(agent):
            local = Local(self.store, agent)
            for _ in range(_TRIES):
                seen = self._look(local)
                if seen.head is None:
                    raise BadHead(agent=agent, reason="it is missing")
                if seen.head.state == "deleted" and seen.head.lease.dir == self.store.store_id:
                    return Report(agent, "taken", local.last()[0])  # by a call that was cut short
                request = self.request(agent)
                self._reason(local, seen, request)
                head = self._caught_up(local, seen, request)
                if self.written(local, head, request, seen.etag, deleted=True):
                    return Report(agent, "taken", local.last()[0])
        raise RemoteUnreachable(remote=self.bucket.name, reason=f"the head of {agent} changed faster than it was read")
