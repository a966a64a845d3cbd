"""Opening a store for writing: as it is, or as one that ships to the bucket it is attached to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from store.backends.sqlite import SqliteBackend
from store.backends.sqlite.marks import Remote
from store.clock import Clock, Random
from store.errors import BadRecord, InvalidInput
from store.place import SHIP_MODES
from store.text import quoted


def ship_mode(given: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """When records have to be in the bucket: given, else RECALL_SHIP, else ``barrier``.

    Raises:
        InvalidInput: it is none of the modes.
    """
    mode = given or environ.get("RECALL_SHIP") or SHIP_MODES[0]
    if mode not in SHIP_MODES:
        field = "ship" if given else "RECALL_SHIP"
        raise InvalidInput(field=field, reason=f"must be one of {', '.join(SHIP_MODES)}, not {quoted(mode)}")
    return mode


def open_store(
    directory: str | os.PathLike[str],
    *,
    ship: str | None = None,
    background: bool = False,
    clock: Clock | None = None,
    random: Random | None = None,
    lock_timeout: float = 30.0,
    on_bad_record: Callable[[BadRecord], None] = lambda problem: None,
) -> SqliteBackend:
    """A store, opened for writing; made if it is missing.

    Args:
        ship: ``barrier``, ``lazy`` or ``off``; RECALL_SHIP unless given. Of no
            account in a store that is not attached to a bucket.
        background: a thread of this process may ship what nobody waits for.

    Where RECALL_REMOTE names a bucket, a store that was never used is attached to it first.

    Raises:
        Those of ``SqliteBackend``.
        InvalidInput: RECALL_REMOTE names another bucket than the one that the store is attached to.
        BucketUnfit, RemoteForeign, RemoteUnreachable, RemoteRefused: the store cannot be attached.
    """
    mode = ship_mode(ship)
    backend = SqliteBackend(
        directory, clock=clock, random=random, lock_timeout=lock_timeout, on_bad_record=on_bad_record
    )
    try:
        remote = _remote(backend, os.environ.get("RECALL_REMOTE", ""))
    except BaseException:
        backend.close()
        raise
    if remote is None or remote.state != "attached":
        return backend
    backend.close()
    from store.shipping.opening import open_shipping  # nothing of it in a store without a bucket

    return open_shipping(
        directory,
        remote,
        ship=mode,
        background=background,
        clock=clock,
        random=random,
        lock_timeout=lock_timeout,
        on_bad_record=on_bad_record,
    )


def _remote(backend: SqliteBackend, named: str) -> Remote | None:
    """What the store ships to; attached now if ``named`` says where, and nothing was ever done in it."""
    remote = backend.remote()
    if not named:
        return remote
    from store.shipping.bucket import location_named

    location = location_named("RECALL_REMOTE", named)
    fresh = remote is None or remote.state == "attaching"
    if fresh and not backend.leases(limit=1):
        from store.shipping.attaching import attach_fresh

        attach_fresh(backend, location)
        return backend.remote()
    found = ""
    if remote is not None and remote.state != "local":
        from store.shipping.opening import location_of

        found = location_of(remote).url
    if found != location.url:
        where = f"attached to {found}" if found else "not attached to it, and has agents"
        raise InvalidInput(
            field="RECALL_REMOTE",
            reason=f"is {location.url}, but the store in {backend.directory} is {where}",
            hint=f"unset it, use another directory, or: recall remote attach {location.url}",
        )
    return remote
