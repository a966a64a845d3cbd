"""A bucket in memory that keeps the promises of ``Bucket``, for the tests of what is done with one."""

from __future__ import annotations

import builtins
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store.agent import Agent
from store.backends.sqlite import SqliteBackend
from store.backends.sqlite.marks import Remote
from store.keeper import Keeper
from store.shipping.backend import ShippingBackend
from store.shipping.bucket import DEFAULT, Location, Object, Swap
from store.shipping.bucket import Listed as Entry
from store.shipping.head import Head

AGENT = "billing"


@dataclass
class MemoryBucket:
    """Objects in a dict, and a clock of the store's own to set.

    Attributes:
        calls: each call with its key, in order.
    """

    name: str = "s3://memory/x"
    now: float = 1_000_000_000.0
    objects: dict[str, tuple[bytes, str, float]] = field(default_factory=dict)
    calls: builtins.list[tuple[str, str]] = field(default_factory=list)

    def get(self, key: str) -> Object | None:
        self.calls.append(("get", key))
        found = self.objects.get(key)
        return Object(found[0], found[1], self.now, found[2]) if found else None

    def swap(self, key: str, body: bytes, etag: str | None) -> Swap:
        self.calls.append(("swap", key))
        found = self.objects.get(key)
        if (found[1] if found else None) != etag:
            return Swap("lost_race", reason="412", status=412)
        new = f'"{hashlib.md5(body).hexdigest()}"'
        self.objects[key] = (body, new, self.now)
        return Swap("done", new)

    def create(self, key: str, body: bytes) -> bool:
        self.calls.append(("create", key))
        if key in self.objects:
            return False
        self.objects[key] = (body, '"made"', self.now)
        return True

    def delete(self, key: str) -> None:
        self.calls.append(("delete", key))
        self.objects.pop(key, None)

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        self.calls.append(("list", prefix))
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > after and key in self.objects:
                yield Entry(key, len(self.objects[key][0]), self.objects[key][2])

    # -- looking ------------------------------------------------------------------------

    def head(self, agent: str = AGENT) -> Head:
        """The head as it is."""
        return Head.parse(self.objects[f"agents/{agent}/head.json"][0], agent)

    def keys(self, kind: str, agent: str = AGENT) -> builtins.list[str]:
        """The keys of an agent's objects of a kind, below its prefix."""
        prefix = f"agents/{agent}/"
        return [key.removeprefix(prefix) for key in sorted(self.objects) if key.startswith(f"{prefix}{kind}/")]


def attach(directory: Path) -> None:
    """Make a store that is attached to some bucket, as ``recall remote attach`` leaves it."""
    backend = SqliteBackend(directory)
    location = json.dumps(vars(Location("memory", "x")))
    backend.shipping(lambda it: it.put_remote(Remote("attached", 1, "r1", location, DEFAULT.to_json(), "")))
    backend.close()


def opened(directory: Path, bucket: Any, **options: Any) -> ShippingBackend:
    """The store, attached if it is new, opened on a bucket."""
    if not (directory / "recall.db").exists():
        attach(directory)
    return ShippingBackend(directory, bucket, **options)


def resumed(backend: SqliteBackend, agent: str = AGENT) -> Agent:
    """The agent under a lease of its own."""
    one = Agent(backend, agent, Keeper(backend, agent, ttl_ms=60_000, background=False))
    one.take()
    return one


class Memory:
    """``store.shipping.bucket.Bucket`` as the protocol wants it, with a place to make it fail.

    Attributes:
        objects: body, ETag and time of writing, by key.
        asked: what was asked, in order, such as ``get agents/x/head.json``.
        before: called with each such line before it is done; what it raises comes out of the call.
    """

    name = "s3://memory/place"

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str, float]] = {}
        self.asked: list[str] = []
        self.before: Callable[[str], None] = lambda asked: None
        self.expiration = ""
        self._lock = threading.Lock()

    def _ask(self, what: str, key: str) -> None:
        self.asked.append(f"{what} {key}")
        self.before(self.asked[-1])

    def get(self, key: str) -> Object | None:
        self._ask("get", key)
        found = self.objects.get(key)
        return Object(found[0], found[1], time.time(), found[2], self.expiration) if found else None

    def swap(self, key: str, body: bytes, etag: str | None) -> Swap:
        self._ask("swap", key)
        with self._lock:
            found = self.objects.get(key)
            if (found[1] if found else None) != etag:
                return Swap("lost_race", reason="the object is not the one that was expected", status=412)
            return Swap("done", self._put(key, body))

    def create(self, key: str, body: bytes) -> bool:
        self._ask("create", key)
        with self._lock:
            if key in self.objects:
                return False
            self._put(key, body)
            return True

    def delete(self, key: str) -> None:
        self._ask("delete", key)
        self.objects.pop(key, None)

    def list(self, prefix: str, after: str = "") -> Iterator[Entry]:
        self._ask("list", prefix)
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > after:
                yield Entry(key, len(self.objects[key][0]), self.objects[key][2])

    def _put(self, key: str, body: bytes) -> str:
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        self.objects[key] = (body, etag, time.time())
        return etag
