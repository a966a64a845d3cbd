from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol

from store.value import value


@value
class Object:
    body: bytes
    etag: str
    date: float | None
    modified: float | None
    expiration: str = ""


@value
class Listed:
    key: str
    size: int
    modified: float


@value
class Swap:
    outcome: Literal["done", "refused", "unclear", "lost_race"]
    etag: str = ""
    reason: str = ""


class Bucket(Protocol):
    name: str

    def get(self, key: str) -> Object | None: ...
    def swap(self, key: str, body: bytes, etag: str | None) -> Swap: ...
    def create(self, key: str, body: bytes) -> bool: ...
    def delete(self, key: str) -> None: ...
    def list(self, prefix: str, after: str = "") -> Iterator[Listed]: ...
