"""Opening a store for writing: as it is, or as one that ships to the bucket it is attached to."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from store.backends.sqlite import SqliteBackend
from store.clock import Clock, Random
from store.errors import BadRecord, InvalidInput
from store.text import quoted

SHIP_MODES = ("barrier", "lazy", "off")


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

    Raises:
        Those of ``SqliteBackend``; RemoteRefused, if there are no credentials for the bucket.
    """
    mode = ship_mode(ship)
    backend = SqliteBackend(
        directory, clock=clock, random=random, lock_timeout=lock_timeout, on_bad_record=on_bad_record
    )
    remote = backend.remote()
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
