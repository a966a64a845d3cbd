"""The bucket's promises, on real servers, with real faults in between."""

from __future__ import annotations

import http.client
import multiprocessing
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from store.errors import RemoteRefused, RemoteUnreachable
from store.shipping.bucket import Location, Swap
from store.shipping.s3 import S3Bucket
from tests.shipping import faults
from tests.shipping.proxy import Fault, Proxy
from tests.shipping.servers import CREDENTIALS, REGION, Server

HEAD = "agents/x/head.json"


def holds(bucket: S3Bucket, key: str = HEAD) -> bytes | None:
    found = bucket.get(key)
    return None if found is None else found.body


def made(bucket: S3Bucket, body: bytes = b"one") -> str:
    swap = bucket.swap(HEAD, body, None)
    assert swap.outcome == "done"
    return swap.etag


# -- what a healthy store does ---------------------------------------------------


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
    """Eight threads write from the same version, five times: one is told that it won, and it is its bytes that stay."""
    etag = made(bucket)
    for turn in range(5):
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


@pytest.mark.parametrize("server", ["moto"], indirect=True)
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


# -- one attempt, and what may have become of it ------------------------------------


def test_a_lost_answer_is_one_put_and_unclear(bucket: S3Bucket, through: S3Bucket, proxy: Proxy) -> None:
    """The SDK does not send a swap again: one PUT is on the wire, it landed, and nobody claims to know."""
    lost = proxy.inject(faults.AnswerLost(), "put")
    answer = through.swap(HEAD, b"one", None)
    assert lost.happened == 1 and len(proxy.of("put")) == 1
    assert (answer.outcome, answer.status, answer.etag) == ("unclear", 0, "")
    assert holds(bucket) == b"one"


def test_a_lost_request_is_one_put_and_unclear(bucket: S3Bucket, through: S3Bucket, proxy: Proxy) -> None:
    """The same for one that never arrived: from here the two cannot be told apart."""
    lost = proxy.inject(faults.RequestLost(), "put")
    assert through.swap(HEAD, b"one", None).outcome == "unclear"
    assert lost.happened == 1 and len(proxy.of("put")) == 1
    assert bucket.get(HEAD) is None


def test_a_late_put_lands_after_a_read_showed_nothing(bucket: S3Bucket, through: S3Bucket, proxy: Proxy) -> None:
    """What was unclear and absent can still come, so absence proves nothing."""
    delayed = proxy.inject(faults.Delayed(), "put")
    assert through.swap(HEAD, b"late", None).outcome == "unclear"
    assert bucket.get(HEAD) is None
    assert delayed.land().status == 200 and delayed.happened == 1
    assert holds(bucket) == b"late"


def test_a_late_put_loses_to_one_that_came_before_it(bucket: S3Bucket, through: S3Bucket, proxy: Proxy) -> None:
    """A delayed PUT carries its condition with it."""
    delayed = proxy.inject(faults.Delayed(), "put")
    assert through.swap(HEAD, b"late", None).outcome == "unclear"
    made(bucket)
    assert delayed.land().status == 412 and delayed.happened == 1
    assert holds(bucket) == b"one"


def test_a_silent_store_is_given_up_in_time(location: Location, proxy: Proxy) -> None:
    """An answer that does not come within the deadline is unclear, and nothing is sent again."""
    hang = proxy.inject(faults.Hang(), "put")
    bucket = S3Bucket.open(replace(location, endpoint_url=proxy.endpoint), deadline=1.0)
    started = time.monotonic()
    answer = bucket.swap(HEAD, b"one", None)
    assert (answer.outcome, answer.reason) == ("unclear", "no answer in time")
    assert 0.6 < time.monotonic() - started < 15 and hang.happened == 1
    assert len(proxy.of("put")) == 1


def test_a_slow_answer_within_the_deadline_is_waited_for(through: S3Bucket, proxy: Proxy) -> None:
    """Slow is not lost."""
    slow = proxy.inject(faults.Slow(0.5), "put")
    assert through.swap(HEAD, b"one", None).outcome == "done"
    assert slow.happened == 1


OUTCOMES: list[tuple[Callable[[], Fault], str, str]] = [
    (lambda: faults.Answer(412, "PreconditionFailed"), "lost_race", "not the one that was expected"),
    (faults.conflict, "lost_race", "somebody else was writing"),
    (lambda: faults.Answer(404, "NoSuchKey"), "lost_race", "no such object"),
    (lambda: faults.Answer(404), "lost_race", "no such object"),
    (faults.slow_down, "unclear", "503 (SlowDown"),
    (lambda: faults.slow_down(applied=True), "unclear", "503 (SlowDown"),
    (lambda: faults.Answer(500, "InternalError", applied=True), "unclear", "500 (InternalError"),
    (lambda: faults.Answer(502, body=b"<html><h1>Bad gateway</h1>"), "unclear", "502"),
    (lambda: faults.Answer(504), "unclear", "504"),
    (faults.too_many, "unclear", "429"),
    (lambda: faults.Answer(408, "RequestTimeout"), "unclear", "408"),
    (lambda: faults.Answer(400, "RequestTimeout"), "unclear", "400 (RequestTimeout"),
    (lambda: faults.answer_headers({"ETag": None}), "unclear", "without an ETag"),
    (lambda: faults.Answer(400, "InvalidArgument"), "refused", "400 (InvalidArgument"),
    (lambda: faults.Answer(401), "refused", "access denied"),
    (lambda: faults.Answer(403, "AccessDenied"), "refused", "access denied"),
    (lambda: faults.Answer(403, body=b"<html>proxy login</html>"), "refused", "access denied"),
    (lambda: faults.Answer(403, "InvalidAccessKeyId"), "refused", "credentials are not valid"),
    (lambda: faults.Answer(403, "SignatureDoesNotMatch"), "refused", "credentials are not valid"),
    (faults.expired, "refused", "credentials have expired"),
    (lambda: faults.Answer(400, "ExpiredToken"), "refused", "credentials have expired"),
    (faults.skewed, "refused", "this machine's clock is wrong"),
    (lambda: faults.Answer(404, "NoSuchBucket"), "refused", "no such bucket"),
    (lambda: faults.Answer(501, "NotImplemented"), "refused", "does not implement"),
    (lambda: faults.Answer(400, "KMS.DisabledException"), "refused", "encryption key cannot be used"),
]


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"), OUTCOMES, ids=[f"{outcome}-{reason[:24]}" for _, outcome, reason in OUTCOMES]
)
def test_each_answer_has_its_meaning(
    bucket: S3Bucket, through: S3Bucket, proxy: Proxy, fault: Callable[[], Fault], outcome: str, reason: str
) -> None:
    """What the store says is told apart by whether the write may have been applied, in one line, from one PUT."""
    etag = made(bucket)
    said = proxy.inject(fault(), "put", times=None)
    answer = through.swap(HEAD, b"two", etag)
    assert (answer.outcome, answer.etag) == (outcome, "")
    assert reason in answer.reason and "\n" not in answer.reason and len(answer.reason) < 300
    assert said.happened == 1 and len(proxy.of("put")) == 1
    if outcome != "unclear":
        assert holds(bucket) == b"one"


def test_a_redirect_is_refused(bucket: S3Bucket, through: S3Bucket, proxy: Proxy) -> None:
    """Another region is named. The SDK may follow it once: what was redirected was not written."""
    redirect = proxy.inject(faults.Answer(307, "TemporaryRedirect"), "put", times=None)
    answer = through.swap(HEAD, b"one", None)
    assert answer.outcome == "refused" and "another region" in answer.reason
    assert redirect.happened in (1, 2) and bucket.get(HEAD) is None


def test_nobody_listening_is_unclear(server: Server) -> None:
    """A refused connection is worth another try later, so it is not called refused."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    bucket = S3Bucket.open(server.location(endpoint_url=f"http://127.0.0.1:{port}"), deadline=1.0)
    answer = bucket.swap(HEAD, b"one", None)
    assert answer.outcome == "unclear" and "Could not connect" in answer.reason
    with pytest.raises(RemoteUnreachable, match="cannot be reached: Could not connect"):
        bucket.get(HEAD)


def test_what_a_hostile_server_says_cannot_act(through: S3Bucket, proxy: Proxy) -> None:
    """An answer's text is shown on one line, cut, and without terminal codes."""
    said = b"<Error><Code>Odd</Code><Message>a\nb &#x9b;31m " + b"x" * 5000 + b"</Message></Error>"
    fault = proxy.inject(faults.Answer(400, body=said), "put")
    reason = through.swap(HEAD, b"one", None).reason
    assert fault.happened == 1
    assert "a b" in reason and "\n" not in reason and "\x9b" not in reason and len(reason) < 300


# -- what may be repeated is repeated ------------------------------------------------


@pytest.mark.parametrize(
    "fault", [faults.slow_down, faults.RequestLost, faults.cut_short], ids=lambda each: each.__name__
)
def test_a_read_is_tried_again(bucket: S3Bucket, through: S3Bucket, proxy: Proxy, fault: type[Fault]) -> None:
    """A read that met trouble once, also in the middle of the body, gives the whole object all the same."""
    body = b"x" * 100_000
    made(bucket, body)
    trouble = proxy.inject(fault(), "get")
    assert holds(through) == body
    assert trouble.happened == 1 and len(proxy.of("get")) == 2


@pytest.mark.parametrize("kind", ["get", "create", "delete", "list"])
def test_trouble_that_stays_is_unreachable(through: S3Bucket, proxy: Proxy, kind: str) -> None:
    """After a few attempts the error says which remote and why."""
    trouble = proxy.inject(faults.slow_down(), times=None)
    with pytest.raises(RemoteUnreachable, match=r"remote s3://recall-tests/\S+ cannot be reached: .*503 \(SlowDown"):
        call(through, kind)
    assert trouble.happened == 3


@pytest.mark.parametrize("kind", ["get", "create", "delete", "list"])
def test_a_refusal_is_not_tried_again(through: S3Bucket, proxy: Proxy, kind: str) -> None:
    """What nobody has mended yet is refused at once, by name."""
    refusal = proxy.inject(faults.skewed(), times=None)
    with pytest.raises(RemoteRefused, match=r"refuses: this machine's clock is wrong") as caught:
        call(through, kind)
    assert refusal.happened == 1 and caught.value.code == "remote_refused" and caught.value.hint


def call(bucket: S3Bucket, kind: str) -> object:
    if kind == "create":
        return bucket.create("seg/1", b"x")
    if kind == "delete":
        bucket.delete(HEAD)
    return bucket.get(HEAD) if kind == "get" else list(bucket.list(""))


def test_a_create_whose_answer_was_lost_finds_its_own_object(bucket: S3Bucket, through: S3Bucket, proxy: Proxy) -> None:
    """It is sent again, and False then means that the object of that name is there."""
    lost = proxy.inject(faults.AnswerLost(), "put")
    assert through.create("seg/1", b"one") is False
    assert lost.happened == 1 and len(proxy.of("put")) == 2
    assert holds(bucket, "seg/1") == b"one"


def test_a_create_in_conflict_is_sent_again(through: S3Bucket, proxy: Proxy) -> None:
    """409 says neither that it is there nor that it is not."""
    conflict = proxy.inject(faults.conflict(), "put")
    assert through.create("seg/1", b"one") is True
    assert conflict.happened == 1 and len(proxy.of("put")) == 2


@pytest.mark.parametrize("server", ["moto"], indirect=True)  # SeaweedFS makes the bucket
def test_no_such_bucket_is_named_everywhere(server: Server) -> None:
    """A bucket that does not exist is refused, never taken for an absent object."""
    location = Location.parse("s3://recall-no-such-bucket", endpoint_url=server.endpoint, region=REGION)
    bucket = S3Bucket.open(location)
    assert bucket.swap(HEAD, b"one", None).outcome == "refused"
    for kind in ("get", "list", "create"):
        with pytest.raises(RemoteRefused, match="there is no such bucket"):
            call(bucket, kind)


def test_a_listing_that_does_not_go_on_is_an_error(through: S3Bucket, proxy: Proxy) -> None:
    """A page that is cut without a token ends in an error, not in a short listing."""
    through.create("l/1", b"x")
    cut = proxy.inject(
        faults.Changed(
            lambda reply: replace(reply, body=reply.body.replace(b"<IsTruncated>false", b"<IsTruncated>true"))
        ),
        "list",
    )
    with pytest.raises(RemoteUnreachable, match="does not say where to go on"):
        list(through.list("l/"))
    assert cut.happened == 1


def test_a_page_that_is_not_s3s_is_an_error(through: S3Bucket, proxy: Proxy) -> None:
    """A login page in the place of a listing is trouble, not an empty listing."""
    portal = proxy.inject(faults.Answer(200, body=b"<html><body>Please log in"), "list", times=None)
    with pytest.raises(RemoteUnreachable):
        list(through.list("l/"))
    assert portal.happened >= 1


def test_dates_that_are_none_are_left_out(bucket: S3Bucket, through: S3Bucket, proxy: Proxy) -> None:
    """A store without a Date, or with an unreadable one, gives None, and its Expiration header is shown."""
    made(bucket)
    changed = proxy.inject(faults.answer_headers({"Date": "yesterday", "x-amz-expiration": 'rule-id="old"'}), "get")
    gone = proxy.inject(faults.answer_headers({"Date": None, "Last-Modified": None}), "get")
    first, second = through.get(HEAD), through.get(HEAD)
    assert changed.happened == 1 and gone.happened == 1
    assert first is not None and (first.date, first.expiration) == (None, 'rule-id="old"')
    assert second is not None and (second.date, second.modified) == (None, None)


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
