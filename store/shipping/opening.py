"""Opening the bucket that a store is attached to."""

from __future__ import annotations

import json
import os
from typing import Any

from store.backends.sqlite.marks import Remote
from store.shipping.backend import ShippingBackend
from store.shipping.bucket import Bucket, Dialect, Location
from store.shipping.protocol import as_mode


def open_bucket(remote: Remote) -> Bucket:
    """The bucket of a remote. Nothing is asked of it yet."""
    from store.shipping.s3 import S3Bucket

    return S3Bucket.open(location_of(remote), dialect_of(remote))


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
