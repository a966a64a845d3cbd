"""A conditional write is one attempt, and what may have become of it is never overstated."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from store.remote_errors import RemoteUnreachable
from store.shipping.bucket import Location
from store.shipping.s3 import S3Bucket
from tests.shipping import faults
from tests.shipping.proxy import Fault, Proxy
from tests.shipping.servers import HEAD, Server, holds, made, one_server


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


@one_server
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
    (lambda: faults.Answer(404), "lost_race", "404"),
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


@one_server
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


@one_server
def test_a_redirect_is_refused(bucket: S3Bucket, through: S3Bucket, proxy: Proxy) -> None:
    """Another region is named. The SDK may follow it once: what was redirected was not written."""
    redirect = proxy.inject(faults.Answer(307, "TemporaryRedirect"), "put", times=None)
    answer = through.swap(HEAD, b"one", None)
    assert answer.outcome == "refused" and "another region" in answer.reason
    assert redirect.happened in (1, 2) and bucket.get(HEAD) is None


@one_server
def test_nobody_listening_is_unclear(server: Server) -> None:
    """A refused connection is worth another try later, so it is not called refused."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    bucket = S3Bucket.open(server.location(endpoint_url=f"http://127.0.0.1:{port}"), deadline=1.0)
    answer = bucket.swap(HEAD, b"one", None)
    assert answer.outcome == "unclear" and "Could not connect" in answer.reason
    with pytest.raises(RemoteUnreachable, match="cannot be reached: Could not connect"):
        bucket.get(HEAD)


@one_server
def test_what_a_hostile_server_says_cannot_act(through: S3Bucket, proxy: Proxy) -> None:
    """An answer's text is shown on one line, cut, and without terminal codes."""
    said = b"<Error><Code>Odd</Code><Message>a\nb &#x9b;31m " + b"x" * 5000 + b"</Message></Error>"
    fault = proxy.inject(faults.Answer(400, body=said), "put")
    reason = through.swap(HEAD, b"one", None).reason
    assert fault.happened == 1
    assert "a b" in reason and "\n" not in reason and "\x9b" not in reason and len(reason) < 300
