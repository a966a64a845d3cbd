"""Settling what another machine acts for: through the bucket's inbox, or under its lease.

In a store that ships, only the lease's holder writes to an agent's log. A
resolution for a holder elsewhere is queued in the bucket; it is done when a
record cites it. This module is loaded for such a store alone.
"""

from __future__ import annotations

import time

from recall_cli.options import Globals
from recall_cli.resolving import REFUSED, Row
from recall_cli.session import reading, writing
from store.actions import ActionEnd, already_closed
from store.backends.sqlite import SqliteBackend
from store.backends.sqlite.files import exists
from store.clock import rfc3339
from store.remote_errors import NotApplied, Queued
from store.shipping.backend import ShippingBackend
from store.shipping.inbox import Resolution
from store.views import View

QUEUED = "queued"
_FIRST_PAUSE, _MOST_PAUSE = 0.2, 3.0  # seconds between two looks


def fetch(here: Globals, agent: str) -> None:
    """Bring the log of an agent, or with "" those of all that the store knows, up to what the bucket has.

    Raises:
        Forked, RemoteUnreachable, RemoteRefused.
    """
    if not exists(str(here.directory)):
        return
    with reading(here) as backend:
        remote = backend.remote()
        if remote is None or remote.state != "attached":
            return
        agents = [agent] if agent else [each.agent for each in backend.leases()]
    with writing(here) as backend:
        for each in agents:
            shipping(backend).shipper.pull(each)


def shipping(backend: SqliteBackend) -> ShippingBackend:
    """The backend of a store that ships, as what it is."""
    assert isinstance(backend, ShippingBackend)
    return backend


def is_elsewhere(backend: SqliteBackend, agent: str) -> bool:
    """Whether the lease was last granted to another store, so that nothing may be appended from here."""
    head = shipping(backend).shipper.pull(agent)
    return head is not None and head.lease.dir != backend.store_id


def queue(backend: SqliteBackend, agent: str, rows: list[Row], end: ActionEnd, *, by: str, force: bool) -> None:
    """Leave an outcome of each of an agent's rows in the bucket; they stay open until its holder reads it."""
    ships = shipping(backend)
    for each in rows:
        action = each["action"]
        wanted = Resolution(
            agent=agent,
            seq=action.seq,
            key=action.key,
            status=end.status,
            result=str(end.result),
            error=end.error,
            reason=end.resolution,
            by=by,
            at=rfc3339(backend.clock.now().wall_us),
            force=force,
        )
        ulid = ships.inbox.put(wanted)
        remote = ships.shipper.bucket.name
        problem = Queued(agent=agent, seq=action.seq, status=end.status, remote=remote, ulid=ulid)
        each["outcome"], each["problem"] = QUEUED, problem


def wait(backend: SqliteBackend, agent: str, rows: list[Row], seconds: float) -> None:
    """Wait until each queued row is settled, by its resolution or otherwise, for so many seconds in all."""
    ships, deadline, pause = shipping(backend), time.monotonic() + seconds, _FIRST_PAUSE
    while True:
        waiting = [each for each in rows if each["outcome"] == QUEUED]
        if waiting:
            ships.shipper.pull(agent)
        for each in waiting:
            _look(ships, agent, each)
        left = deadline - time.monotonic()
        if left <= 0 or not any(each["outcome"] == QUEUED for each in rows):
            return
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _MOST_PAUSE)


def _look(backend: ShippingBackend, agent: str, row: Row) -> None:
    """What has become of a queued row, if anything has."""
    ulid = str(row["problem"].details["ulid"])
    now = row["action"] = View(backend, agent).action(row["seq"])
    if now.inbox == ulid:
        row["outcome"], row["problem"] = now.status, None
    elif not now.open:
        row["outcome"], row["problem"] = REFUSED, already_closed(now)
    elif reason := backend.inbox.rejected(agent, ulid):
        row["outcome"], row["problem"] = REFUSED, NotApplied(ulid=ulid, agent=agent, reason=reason)
