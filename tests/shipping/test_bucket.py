"""The bucket's promises, on real servers."""

from __future__ import annotations

from store.shipping.s3 import S3Bucket


def test_a_swap_creates_only_what_is_not_there(bucket: S3Bucket) -> None:
    """A swap with no ETag makes the object, and never replaces one."""
    made = bucket.swap("head.json", b"one", None)
    assert made.outcome == "done" and made.etag
    again = bucket.swap("head.json", b"two", None)
    assert again.outcome == "lost_race" and again.status == 412
    found = bucket.get("head.json")
    assert found is not None and found.body == b"one" and found.etag == made.etag
