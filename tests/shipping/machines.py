"""Machines: each a store in a directory of its own, all on one place in a bucket."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store.agent import Agent
from store.backends.sqlite import SqliteBackend
from store.backends.sqlite.marks import Remote
from store.keeper import Keeper
from store.shipping.backend import ShippingBackend
from store.shipping.bucket import DEFAULT, Bucket, Location
from store.shipping.opening import open_shipping

AGENT = "billing-migrator"
HEAD = f"agents/{AGENT}/head.json"


def attach(directory: Path, location: Location) -> None:
    """Attach a new store, without the probe and its requests."""
    with SqliteBackend(directory) as store:
        remote = Remote("attached", 1, "test", json.dumps(vars(location)), DEFAULT.to_json(), "2026-11-03T18:54:43Z")
        if store.remote() is None:
            store.shipping(lambda ledger: ledger.put_remote(remote))


def machine(directory: Path, location: Location, bucket: Bucket | None = None, **options: Any) -> ShippingBackend:
    """The store of a machine, attached to the bucket."""
    attach(directory, location)
    with SqliteBackend(directory) as store:
        remote = store.remote()
    assert remote is not None
    given: dict[str, Any] = {"ship": "barrier", "background": False, "bucket": bucket, **options}
    return open_shipping(directory, remote, **given)


def resumed(
    store: ShippingBackend, agent: str = AGENT, *, ttl_ms: int = 60_000, on_event: Callable[..., None] = lambda *_: None
) -> Agent:
    """The agent, resumed in this process, without a renewing thread."""
    it = Agent(store, agent, Keeper(store, agent, ttl_ms=ttl_ms, background=False, on_event=on_event))
    it.take()
    return it
