"""Opening the bucket that a store is attached to."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from store.backends.sqlite.marks import Remote
from store.shipping.backend import ShippingBackend
from store.shipping.bucket import Bucket, Dialect, Listed, Location, Object, Swap
from store.shipping.protocol import as_mode

if TYPE_CHECKING:
    from store.shipping.s3 import S3Bucket


class OnDemand:
    """A remote's bucket, opened when something is asked of it: most short commands ask nothing of it."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self.name = location_of(remote).url

    @cached_property
    def _bucket(self) -> Bucket:
        return open_location(location_of(self._remote)).speaking(dialect_of(self._remote))

    def get(self, key: str) -> Object | None:
        return self._bucket.get(key)

    def swap(self, key: str, body: bytes, etag: str | None) -> Swap:
        return self._bucket.swap(key, body, etag)

    def create(self, key: str, body: bytes) -> bool:
        return self._bucket.create(key, body)

    def delete(self, key: str) -> None:
        self._bucket.delete(key)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        return self._bucket.list(prefix, after)


def open_location(location: Location) -> S3Bucket:
    """What is at a location. Nothing is asked of it yet, but the SDK is loaded."""
    from store.shipping.s3 import S3Bucket

    return S3Bucket.open(location)


def open_bucket(remote: Remote) -> Bucket:
    """The bucket of a remote. Nothing is asked of it yet."""
    return OnDemand(remote)


def location_of(remote: Remote) -> Location:
    """Where a remote is."""
    return Location(**json.loads(remote.location))


def dialect_of(remote: Remote) -> Dialect:
    """How its store speaks, as the probe found."""
    return Dialect.from_json(remote.dialect)


def open_shipping(
    directory: str | os.PathLike[str],
    remote: Remote,
    *,
    ship: str,
    background: bool,
    bucket: Bucket | None = None,
    **options: Any,
) -> ShippingBackend:
    """A store that ships, opened for writing.

    Args:
        bucket: instead of the one that the remote names.
        options: those of ``ShippingBackend``.
    """
    return ShippingBackend(
        directory,
        bucket or open_bucket(remote),
        ship=as_mode(ship),
        background=background,
        interval=dialect_of(remote).min_interval,
        **options,
    )
