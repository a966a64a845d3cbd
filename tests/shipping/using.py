"""What several tests of the bucket say."""

from __future__ import annotations

import pytest

from store.shipping.s3 import S3Bucket

HEAD = "agents/x/head.json"

# For what the proxy answers by itself, or the client decides: which server stands behind makes no difference.
one_server = pytest.mark.parametrize("server", ["moto"], indirect=True)


def holds(bucket: S3Bucket, key: str = HEAD) -> bytes | None:
    found = bucket.get(key)
    return None if found is None else found.body


def made(bucket: S3Bucket, body: bytes = b"one") -> str:
    swap = bucket.swap(HEAD, body, None)
    assert swap.outcome == "done"
    return swap.etag
