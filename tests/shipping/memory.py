"""A bucket in memory, for what does not need a server: tables of states, and every state of a small configuration."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator

from store.shipping.bucket import Listed, Object, Swap


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

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        self._ask("list", prefix)
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > after:
                yield Listed(key, len(self.objects[key][0]), self.objects[key][2])

    def _put(self, key: str, body: bytes) -> str:
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        self.objects[key] = (body, etag, time.time())
        return etag
