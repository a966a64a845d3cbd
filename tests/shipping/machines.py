"""Machines: each a store in a directory of its own, all on one place in a bucket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from store.agent import Agent
from store.backends.sqlite import SqliteBackend
from store.backends.sqlite.marks import Remote
from store.canonical import first_hash
from store.keeper import Keeper
from store.process import Process
from store.shipping.backend import ShippingBackend
from store.shipping.bucket import DEFAULT, Bucket, Location
from store.shipping.head import Head, HeadLease
from store.shipping.opening import open_shipping
from tests.shipping.memory import MEMORY, MemoryBucket

AGENT = "bot"
REMOTE = "r1"


def head_key(agent: str = AGENT) -> str:
    """Of an agent's head."""
    return f"agents/{agent}/head.json"


HEAD = head_key()


def attach(directory: Path, location: Location = MEMORY) -> None:
    """Attach a store that is not attached yet, without the probe and its requests."""
    with SqliteBackend(directory) as store:
        remote = Remote("attached", 1, REMOTE, json.dumps(vars(location)), DEFAULT.to_json(), "2026-11-03T18:54:43Z")
        if store.remote() is None:
            store.shipping(lambda ledger: ledger.put_remote(remote))


def machine(
    directory: Path, location: Location = MEMORY, bucket: Bucket | None = None, **options: Any
) -> ShippingBackend:
    """The store of a machine, attached to the bucket; it gives up at once what a bucket in memory does not answer."""
    attach(directory, location)
    with SqliteBackend(directory) as store:
        remote = store.remote()
    assert remote is not None
    patience = {"patience": 0.0} if isinstance(bucket, MemoryBucket) else {}
    given: dict[str, Any] = {"ship": "barrier", "background": False, "bucket": bucket, **patience, **options}
    return open_shipping(directory, remote, **given)


def agent_on(store: SqliteBackend, agent: str = AGENT, **options: Any) -> Agent:
    """The agent in this process, not resumed yet; without a renewing thread, unless the keeper's options say so."""
    given: dict[str, Any] = {"ttl_ms": 60_000, "background": False, **options}
    return Agent(store, agent, Keeper(store, agent, **given))


def resumed(store: SqliteBackend, agent: str = AGENT, **options: Any) -> Agent:
    """The agent, its lease taken."""
    it = agent_on(store, agent, **options)
    it.take()
    return it


# -- what is in a bucket ----------------------------------------------------------------------


def head_in(bucket: Bucket, agent: str = AGENT) -> Head:
    """The head as it is."""
    found = bucket.get(head_key(agent))
    assert found is not None
    return Head.parse(found.body, agent)


def names_in(bucket: MemoryBucket, kind: str, agent: str = AGENT) -> list[str]:
    """The keys of an agent's objects of a kind, below its prefix."""
    prefix = f"agents/{agent}/"
    return [key.removeprefix(prefix) for key in sorted(bucket.objects) if key.startswith(f"{prefix}{kind}/")]


def blank_head(agent: str = AGENT) -> Head:
    """The head of an empty log, under epoch 1."""
    lineage = "ab" * 16
    first = first_hash(lineage, agent)
    lease = HeadLease("i" * 32, "store", "holder", Process("h", "b", "n", 1, "s"), "barrier", 60_000)
    return Head(REMOTE, agent, lineage, "live", 1, "w", 1, lease, 0, first, 0, first, 1)
