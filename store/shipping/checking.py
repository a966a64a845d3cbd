"""Whether the bucket of a store still is what the store was attached to, asked of the bucket."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from store.backends.sqlite.marks import Remote
from store.remote_errors import Forked, RemoteForeign
from store.shipping.opening import location_of, open_location
from store.shipping.place import NAME, find
from store.shipping.probe import probe
from store.shipping.syncing import look

if TYPE_CHECKING:
    from store.backends.sqlite import SqliteBackend


def steps(store: SqliteBackend, remote: Remote) -> Iterator[tuple[str, str]]:
    """Each step that passed, with what it found; nothing is changed but for the probe's own objects.

    Raises:
        RemoteUnreachable, RemoteRefused: credentials, the network, the bucket.
        RemoteForeign: the prefix is no remote any more, or another one.
        Forked, BadHead: a head contradicts what this store has seen.
        BucketUnfit: a step of the probe failed.
    """
    bucket = open_location(location_of(remote))
    place = find(bucket)
    yield "credentials", "the bucket lets us read"
    if place is None:
        raise RemoteForeign(
            remote=bucket.name, reason=f"{NAME} is gone", hint="put it back, from a version or a copy of it"
        )
    if place.id != remote.remote_id:
        raise RemoteForeign(
            remote=bucket.name,
            reason=f"{NAME} is of another remote ({place.id[:8]}…, not {remote.remote_id[:8]}…)",
            hint="attach this store to it, or put back what was there",
        )
    yield NAME, f"remote {place.id}"
    agent = next((each.agent for each in store.marks() if each.head and not each.trouble), "")
    if agent:
        seen = look(store, bucket, agent)
        if seen.trouble:
            kind, _, reason = seen.trouble.partition(": ")
            raise Forked(agent=agent, trouble=kind, reason=reason)
        yield "head", f"{agent}: {seen.lease}, epoch {seen.epoch}, up to lsn {seen.lsn}"
    found = probe(bucket, store.random)
    yield "probe", "conditional writes hold, alone and from eight writers at once"
    for warning in found.warnings:
        yield "warning", warning
