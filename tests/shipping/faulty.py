"""A bucket in memory, with faults on order, and directories that stand for machines."""

from __future__ import annotations

import builtins
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from store.agent import Agent
from store.backends.sqlite import SqliteBackend
from store.backends.sqlite.marks import Remote
from store.clock import Clock, SystemClock
from store.errors import RemoteRefused, RemoteUnreachable
from store.keeper import Keeper
from store.shipping.backend import ShippingBackend
from store.shipping.bucket import DEFAULT, Bucket, Listed, Location, Object, Swap

DOWN, LOST, REFUSED = "down", "lost", "refused"


class MemoryBucket:
    """Keeps the promises of ``Bucket``; ``fault`` may break a call.

    Attributes:
        calls: the verb and key of each call, in their order.
        fault: given a verb and a key: "" for none; ``down``: no answer, and nothing done; ``lost``: done, and
            no answer; ``refused``. A read knows no difference between the first two.
    """

    name = "s3://memory"

    def __init__(self, clock: Clock | None = None) -> None:
        self.objects: dict[str, tuple[bytes, str, float]] = {}
        self.calls: list[tuple[str, str]] = []
        self.fault: Callable[[str, str], str] = lambda verb, key: ""
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()

    def get(self, key: str) -> Object | None:
        with self._lock:
            self._break_read("get", key)
            found = self.objects.get(key)
            return Object(found[0], found[1], self._now(), float(int(found[2]))) if found else None

    def swap(self, key: str, body: bytes, etag: str | None) -> Swap:
        with self._lock:
            fault = self._called("swap", key)
            if fault == DOWN:
                return Swap("unclear", reason="no answer")
            if fault == REFUSED:
                return Swap("refused", reason="access denied", status=403)
            there = self.objects.get(key)
            if (there[1] if there else None) != etag:
                return Swap("lost_race", reason="the condition does not hold", status=412)
            new = self._put(key, body)
            return Swap("unclear", reason="no answer") if fault == LOST else Swap("done", new)

    def create(self, key: str, body: bytes) -> bool:
        with self._lock:
            fault = self._called("create", key)
            if fault == REFUSED:
                raise RemoteRefused(remote=self.name, reason="access denied")
            if fault == DOWN:
                raise RemoteUnreachable(remote=self.name, reason="no answer")
            fresh = key not in self.objects
            if fresh:
                self._put(key, body)
            if fault == LOST:
                raise RemoteUnreachable(remote=self.name, reason="no answer")
            return fresh

    def delete(self, key: str) -> None:
        with self._lock:
            self._break_read("delete", key)
            self.objects.pop(key, None)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        with self._lock:
            self._break_read("list", prefix)
            found = [Listed(key, len(each[0]), each[2]) for key, each in sorted(self.objects.items())]
        yield from (each for each in found if each.key.startswith(prefix) and each.key > after)

    def keys(self, prefix: str) -> builtins.list[str]:
        """The keys below a prefix, without a call."""
        return sorted(key for key in self.objects if key.startswith(prefix))

    def _put(self, key: str, body: bytes) -> str:
        etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        self.objects[key] = (body, etag, self._now())
        return etag

    def _now(self) -> float:
        return self._clock.now().wall_us / 1_000_000

    def _called(self, verb: str, key: str) -> str:
        self.calls.append((verb, key))
        return self.fault(verb, key)

    def _break_read(self, verb: str, key: str) -> None:
        fault = self._called(verb, key)
        if fault == REFUSED:
            raise RemoteRefused(remote=self.name, reason="access denied")
        if fault:
            raise RemoteUnreachable(remote=self.name, reason="no answer")


def attach(directory: Path, location: Location | None = None) -> None:
    """Make a store that ships to a bucket: to a real one, if its location is given."""
    backend = SqliteBackend(directory)
    where = json.dumps(vars(location)) if location else "{}"
    remote = Remote("attached", 1, "remote-1", where, DEFAULT.to_json(), "2026-11-03T18:54:43Z")
    backend.shipping(lambda ledger: ledger.put_remote(remote))
    backend.close()


class Machine:
    """A directory of its own on one bucket; a name of its own for the host, where that matters."""

    def __init__(self, directory: Path, bucket: Bucket, location: Location | None = None, **options: Any) -> None:
        attach(directory, location)
        self.directory = directory
        options.setdefault("patience", 0.0)
        self.backend = ShippingBackend(directory, bucket, **options)

    def agent(self, name: str = "bot", **options: Any) -> Agent:
        """The agent, not resumed yet."""
        given: dict[str, Any] = {"background": False, "ttl_ms": 60_000, **options}
        return Agent(self.backend, name, Keeper(self.backend, name, **given))

    def resume(self, name: str = "bot", **options: Any) -> Agent:
        """The agent, its lease taken."""
        agent = self.agent(name, **options)
        agent.take()
        return agent


class Breaking:
    """A real bucket whose conditional writes do not arrive while ``down`` is set."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.name = bucket.name
        self.down = False

    def get(self, key: str) -> Object | None:
        return self._bucket.get(key)

    def swap(self, key: str, body: bytes, etag: str | None) -> Swap:
        return Swap("unclear", reason="no answer") if self.down else self._bucket.swap(key, body, etag)

    def create(self, key: str, body: bytes) -> bool:
        return self._bucket.create(key, body)

    def delete(self, key: str) -> None:
        self._bucket.delete(key)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        return self._bucket.list(prefix, after)
