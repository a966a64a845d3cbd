"""The bucket's promises, on real servers."""

from __future__ import annotations

import http.client
import multiprocessing
import os
import threading
import time
from collections import Counter
from dataclasses import replace

from store.shipping.bucket import Location, Swap
from store.shipping.s3 import S3Bucket
from tests.shipping import faults
from tests.shipping.proxy import Proxy
from tests.shipping.servers import CREDENTIALS, HEAD, REGION, Server, holds, made, one_server


def test_a_swap_without_an_etag_creates_only_what_is_not_there(bucket: S3Bucket) -> None:
    """A swap with no ETag makes the object, and never replaces one."""
    first = bucket.swap(HEAD, b"one", None)
    assert (first.outcome, first.status) == ("done", 200) and first.etag
    again = bucket.swap(HEAD, b"two", None)
    assert (again.outcome, again.status, again.etag) == ("lost_race", 412, "") and again.reason
    assert holds(bucket) == b"one"


def test_a_swap_with_an_etag_replaces_that_version_only(bucket: S3Bucket) -> None:
    """The present ETag lets a write through, once; the same one again is stale."""
    etag = made(bucket)
    second = bucket.swap(HEAD, b"two", etag)
    assert second.outcome == "done" and second.etag != etag
    assert bucket.swap(HEAD, b"three", etag).outcome == "lost_race"
    assert holds(bucket) == b"two"
    assert bucket.swap(HEAD, b"three", second.etag).outcome == "done"


def test_a_swap_of_what_is_not_there_makes_nothing(bucket: S3Bucket) -> None:
    """With an ETag and no object the race is lost, and a head that is gone stays gone."""
    etag = made(bucket)
    bucket.delete(HEAD)
    gone = bucket.swap(HEAD, b"two", etag)
    assert gone.outcome == "lost_race" and gone.status in (404, 412)
    assert bucket.get(HEAD) is None


def test_a_read_gives_bytes_version_and_the_stores_clock(bucket: S3Bucket) -> None:
    """Every byte comes back, with the ETag that the write was answered with, and times of the store's clock."""
    body = bytes(range(256)) * 5000 + b"\r\n"
    etag = made(bucket, body)
    found = bucket.get(HEAD)
    assert found is not None
    assert found.body == body and found.etag == etag and found.etag.startswith('"') and found.expiration == ""
    assert found.date is not None and abs(found.date - time.time()) < 5
    assert found.modified is not None and 0 <= found.date - found.modified < 5


def test_of_many_swaps_at_once_one_wins(bucket: S3Bucket) -> None:
    """Eight threads write from the same version, twice: one is told that it won, and it is its bytes that stay."""
    etag = made(bucket)
    for turn in range(2):
        answers: dict[bytes, Swap] = {}
        start = threading.Barrier(8)

        def write(body: bytes, etag: str, start: threading.Barrier, answers: dict[bytes, Swap]) -> None:
            start.wait()
            answers[body] = bucket.swap(HEAD, body, etag)

        bodies = [f"{turn} {number}".encode() for number in range(8)]
        threads = [threading.Thread(target=write, args=(body, etag, start, answers)) for body in bodies]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        outcomes = Counter(each.outcome for each in answers.values())
        assert outcomes == {"done": 1, "lost_race": 7}
        winner = next(body for body, each in answers.items() if each.outcome == "done")
        assert holds(bucket) == winner
        etag = answers[winner].etag


def test_create_makes_an_object_once(bucket: S3Bucket) -> None:
    """True for the first, False for the second, whose bytes go nowhere."""
    assert bucket.create("seg/1", b"one") is True
    assert bucket.create("seg/1", b"two") is False
    assert holds(bucket, "seg/1") == b"one"


def test_delete_needs_no_object(bucket: S3Bucket) -> None:
    """An object is gone after its deletion, and deleting it again is no error."""
    bucket.create("seg/1", b"one")
    bucket.delete("seg/1")
    assert bucket.get("seg/1") is None
    bucket.delete("seg/1")


def test_a_listing_pages_through_any_number_by_key(location: Location, bucket: S3Bucket, proxy: Proxy) -> None:
    """Pages of 20 give 45 objects once each, in the order of their keys as bytes, with sizes and times."""
    keys = [f"l/{number:02}" for number in range(40)] + ["l/A", "l/a", "l/B", "l/a b+c&d", "l/é"]
    for key in [*keys, "k/before", "m/after"]:
        bucket.create(key, b"x" * len(key))
    small = proxy.inject(faults.Rewritten(lambda request: f"{request.target}&max-keys=20"), "list", times=None)
    requests: list[str] = []
    through = S3Bucket.open(replace(location, endpoint_url=proxy.endpoint), on_request=requests.append)
    listed = list(through.list("l/"))
    expected = sorted(keys, key=str.encode)
    assert [each.key for each in listed] == expected
    assert all(each.size == len(each.key) and abs(each.modified - time.time()) < 120 for each in listed)
    assert small.happened == 3 and requests == ["list"] * 3
    assert [each.key for each in through.list("l/", after="l/07")] == expected[8:]
    assert [each.key for each in through.list("l/", after="l/07x")] == expected[8:]
    assert list(through.list("l/", after=expected[-1])) == []
    assert list(through.list("none/")) == []


@one_server
def test_a_listing_of_more_than_a_thousand(server: Server, location: Location) -> None:
    """The store's own limit of a page hides nothing."""
    names = [f"{number:04}" for number in range(1005)]
    connection = http.client.HTTPConnection(server.endpoint.removeprefix("http://"))
    for name in names:  # without the SDK, which would take most of the time
        unsigned = {"Authorization": f"AWS4-HMAC-SHA256 Credential=x/20260101/{REGION}/s3/aws4_request"}
        connection.request("PUT", f"/{location.bucket}/{location.prefix}/l/{name}", b"x", unsigned)
        assert connection.getresponse().read() == b""
    connection.close()
    requests: list[str] = []
    listed = S3Bucket.open(location, on_request=requests.append).list("l/")
    assert [each.key for each in listed] == [f"l/{name}" for name in names]
    assert requests == ["list", "list"]


def test_a_listing_reads_pages_as_they_are_asked_for(server: Server) -> None:
    """Who stops after the first object has paid for one page."""
    requests: list[str] = []
    bucket = S3Bucket.open(server.location(), on_request=requests.append)
    bucket.create("l/1", b"x")
    listing = bucket.list("l/")
    assert requests == ["create"]
    assert next(listing).key == "l/1"
    assert requests == ["create", "list"]


def test_a_remote_can_be_a_whole_bucket(server: Server) -> None:
    """Without a prefix the keys are the bucket's own."""
    location = Location.parse(f"s3://{server.new_bucket()}", endpoint_url=server.endpoint, region=REGION)
    bucket = S3Bucket.open(location)
    assert bucket.name == f"s3://{location.bucket}"
    bucket.create("agents/x", b"x")
    assert [each.key for each in bucket.list("")] == ["agents/x"]
    assert holds(bucket, "agents/x") == b"x"


def test_two_prefixes_share_nothing(server: Server) -> None:
    """One remote sees none of another's objects, also where one prefix starts like the other."""
    one, two = S3Bucket.open(server.location("team")), S3Bucket.open(server.location("team-2"))
    one.create("a", b"x")
    assert two.get("a") is None and list(two.list("")) == []


def test_a_forked_process_makes_its_own_connections(server: Server) -> None:
    """Parent and child use one S3Bucket side by side, and neither reads the other's answers."""
    location = server.location()
    with Proxy(server.endpoint) as proxy:
        bucket = S3Bucket.open(replace(location, endpoint_url=proxy.endpoint))
        bucket.create("parent", b"p" * 1000)
        context = multiprocessing.get_context("fork")
        child = context.Process(target=_read_often, args=(bucket, "child"))
        bucket.create("child", b"c" * 1000)
        child.start()
        _read_often(bucket, "parent")
        child.join(60)
        assert child.exitcode == 0


def _read_often(bucket: S3Bucket, key: str) -> None:
    for _ in range(30):
        assert holds(bucket, key) == key[:1].encode() * 1000


def test_the_environment_of_the_tests_is_the_tests_own() -> None:
    """No credentials but those of the test servers are in reach."""
    assert {name: text for name, text in os.environ.items() if name.startswith("AWS_")} == CREDENTIALS
