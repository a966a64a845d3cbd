"""Detaching a store from its bucket: the store decides about its leases again, or nothing is written here (rule 17).

It can be cut short at any moment and called again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from store.backends.sqlite.ledger import Ledger
from store.clock import rfc3339
from store.remote_errors import BadHead, NotAttached, NotShipped
from store.shipping.bringing import TRIES, Bringing, Outcome, Report, Watch, changed_too_fast, store_lock
from store.shipping.bucket import Bucket
from store.shipping.local import Local, agents_of

if TYPE_CHECKING:
    from store.backends.sqlite import SqliteBackend

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
    with store_lock(store):
        remote = store.remote()
        if remote is None or remote.state == "local":
            raise NotAttached(path=store.directory)
        after = replace(remote, generation=remote.generation + 1, at=rfc3339(store.clock.now().wall_us))
        work = Detaching(store, bucket, remote, force=force)
        marked = [each for each in agents_of(store) if (mark := store.mark(each)) is not None and mark.head]
        if how == "take":
            store.shipping(work.end_leases)
            reports = [work.take(each) for each in watch(marked)]

            def end(ledger: Ledger) -> None:
                _keep_whole(store, ledger, marked)
                ledger.put_remote(replace(after, state="local"))

            store.shipping(end)
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
            _keep_whole(store, ledger, marked if how == "fork" else ())
            ledger.put_remote(replace(after, state=state))

        store.shipping(finish)
        outcome: Outcome = "forked" if how == "fork" else "kept"
        return [Report(each, outcome, store.counters(each).lsn) for each in marked]


def _keep_whole(store: SqliteBackend, ledger: Ledger, agents: Iterable[str]) -> None:
    """Keep what is known of these heads with its lines: the log here may be pruned while no bucket is told."""
    for agent in agents:
        with suppress(BadHead):
            known = Local(store, agent).known()
            if known is not None and known[1].whole:
                ledger.put_mark(replace(known[0], head=known[1].encode()))


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
            for _ in range(TRIES):
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
        raise changed_too_fast(self.bucket, agent)
