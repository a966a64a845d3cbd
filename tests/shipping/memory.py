"""A bucket in memory that keeps the promises of ``Bucket``, and breaks a call when it is told to."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping

from store.clock import Clock, SystemClock
from store.remote_errors import RemoteRefused, RemoteUnreachable
from store.shipping.bucket import Listed, Location, Object, Swap

DOWN, LOST, REFUSED = "down", "lost", "refused"
MEMORY = Location("memory", "place")


class MemoryBucket:
    """Objects in a dict.

    Attributes:
        objects: body, ETag and time of writing, by key.
        calls: the verb and key of each call, in their order.
        before: given the verb and key of each call before it is done. What it raises comes out of the call; it
            returns "" or a fault. ``down``: no answer, and nothing done; ``lost``: done, and no answer;
            ``refused``. A read knows no difference between the first two.
        expiration: what a read says of the object's expiry.
    """

    name = MEMORY.url

    def __init__(
        self, clock: Clock | None = None, objects: Mapping[str, tuple[bytes, str, float]] | None = None
    ) -> None:
        self.objects = dict(objects or {})
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], str] = nothing
        self.expiration = ""
        self._clock, self._ahead = clock or SystemClock(), 0.0
        self._lock = threading.Lock()

    @property
    def now(self) -> float:
        """The time by the bucket's clock, in seconds; it can be set, and goes on from there."""
        return self._clock.now().wall_us / 1_000_000 + self._ahead

    @now.setter
    def now(self, seconds: float) -> None:
        self._ahead += seconds - self.now

    def get(self, key: str) -> Object | None:
        self._break_unless_done("get", key)
        found = self.objects.get(key)
        return Object(found[0], found[1], self.now, float(int(found[2])), self.expiration) if found else None

    def swap(self, key: str, body: bytes, etag: str | None) -> Swap:
        fault = self._called("swap", key)
        if fault == DOWN:
            return Swap("unclear", reason="no answer")
        if fault == REFUSED:
            return Swap("refused", reason="access denied", status=403)
        with self._lock:
            there = self.objects.get(key)
            if (there[1] if there else None) != etag:
                return Swap("lost_race", reason="the condition does not hold", status=412)
            new = self.put(key, body)
        return Swap("unclear", reason="no answer") if fault == LOST else Swap("done", new)

    def create(self, key: str, body: bytes) -> bool:
        fault = self._called("create", key)
        if fault != LOST:
            self._raise(fault)
        with self._lock:
            fresh = key not in self.objects
            if fresh:
                self.put(key, body)
        self._raise(fault)
        return fresh

    def delete(self, key: str) -> None:
        self._break_unless_done("delete", key)
        self.objects.pop(key, None)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        self._break_unless_done("list", prefix)
        with self._lock:
            found = [Listed(key, len(each[0]), each[2]) for key, each in sorted(self.objects.items())]
        yield from (each for each in found if each.key.startswith(prefix) and each.key > after)

    # -- without a call ---------------------------------------------------------------------------

    def put(self, key: str, body: bytes) -> str:
        """Put an object there, whatever was; its ETag."""
        etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        self.objects[key] = (body, etag, self.now)
        return etag

    def _called(self, verb: str, key: str) -> str:
        self.calls.append((verb, key))
        return self.before(verb, key)

    def _break_unless_done(self, verb: str, key: str) -> None:
        self._raise(self._called(verb, key))

    def _raise(self, fault: str) -> None:
        if fault == REFUSED:
            raise RemoteRefused(remote=self.name, reason="access denied")
        if fault:
            raise RemoteUnreachable(remote=self.name, reason="no answer")


def nothing(verb: str, key: str) -> str:
    """No fault at any call."""
    return ""


def on(faulty: str, fault: str) -> Callable[[str, str], str]:
    """A fault at each call of one verb."""
    return lambda verb, key: fault if verb == faulty else ""
