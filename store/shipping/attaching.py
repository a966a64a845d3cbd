"""Attaching a store to a bucket, which from then on decides about its leases (rule 17).

It can be cut short at any moment and called again. While a store is being
attached it grants no lease; it counts as attached only when the bucket has a
head of every agent. Nothing is ever merged: a log of another lineage under an
agent's name is refused, or the log here is set aside.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from store.backend import all_leases
from store.backends.sqlite.ledger import Ledger
from store.backends.sqlite.marks import Remote
from store.clock import Random, rfc3339
from store.remote_errors import AttachedElsewhere, BadHead, Forked, NotShipped, OtherLog
from store.shipping import protocol
from store.shipping.bringing import (
    TRIES,
    Bringing,
    Outcome,
    Report,
    Watch,
    changed_too_fast,
    set_all_aside,
    store_lock,
)
from store.shipping.bucket import Bucket, Dialect, Location
from store.shipping.fetch import Replaced, lines_after
from store.shipping.head import Head
from store.shipping.local import Local, agents_of, cached
from store.shipping.looking import Seen
from store.shipping.opening import open_location
from store.shipping.place import Place, find, find_or_make
from store.shipping.probe import probe
from store.value import value

if TYPE_CHECKING:
    from store.backends.sqlite import SqliteBackend


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
    with store_lock(store):
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


class Attaching(Bringing):
    """The agents of a store on their way into a bucket."""

    def __init__(self, store: SqliteBackend, bucket: Bucket, remote: Remote, *, force: bool, adopt: bool) -> None:
        super().__init__(store, bucket, remote, force=force)
        self._adopt = adopt

    def refuse_others(self) -> None:
        """Look at the bucket's heads before anything is changed. Raises OtherLog or BadHead."""
        for lease in all_leases(self.store):
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
                for number in range(TRIES):
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
            except NotShipped as problem:  # nobody gets its lease, for the same reason; the others go on
                return Report(agent, "damaged", local.last()[0], problem.message)
        raise changed_too_fast(self.bucket, agent)

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
