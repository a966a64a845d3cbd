"""What may be repeated is repeated, what may not is refused, and nothing is taken for an answer that is none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from store.remote_errors import RemoteRefused, RemoteUnreachable
from store.shipping.bucket import Location
from store.shipping.s3 import S3Bucket
from tests.shipping import faults
from tests.shipping.proxy import Fault, Proxy
from tests.shipping.servers import HEAD, REGION, Server, holds, made, one_server


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


@one_server
@pytest.mark.parametrize("kind", ["get", "create", "delete", "list"])
def test_trouble_that_stays_is_unreachable(through: S3Bucket, proxy: Proxy, kind: str) -> None:
    """After a few attempts the error says which remote and why."""
    trouble = proxy.inject(faults.slow_down(), times=None)
    with pytest.raises(RemoteUnreachable, match=r"remote s3://recall-tests/\S+ cannot be reached: .*503 \(SlowDown"):
        call(through, kind)
    assert trouble.happened == 3


@one_server
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


@one_server  # SeaweedFS makes the bucket
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


@one_server
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("list", lambda: faults.Answer(200, body=b"<html><body>Please log in")),
        ("list", lambda: faults.Answer(200, body=b"<html><body>Please log in</body></html>")),
        ("list", lambda: faults.Answer(200)),
        ("get", lambda: faults.Answer(200, body=b"<html><body>Please log in</body></html>")),
        ("get", lambda: faults.Answer(404, body=b"<html><body>Not found</body></html>")),
        ("get", lambda: faults.Answer(404)),
    ],
)
def test_an_answer_that_is_not_s3s_proves_nothing(
    through: S3Bucket, proxy: Proxy, kind: str, fault: Callable[[], Fault]
) -> None:
    """A login page, or a 404 of something in between, is trouble: neither an empty listing nor an absent object."""
    through.create(HEAD, b"x")
    portal = proxy.inject(fault(), kind, times=None)
    with pytest.raises(RemoteUnreachable):
        call(through, kind)
    assert portal.happened >= 1


GARBAGE = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "a bad length": b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
    "a bad chunk": b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nETag: "a"\r\n\r\nzz\r\n',
    "a cut answer": b'HTTP/1.1 200 OK\r\nContent-Length: 50\r\nETag: "a"\r\n\r\nabc',
    "an endless header": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    "an unknown status": b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",
    "no content": b'HTTP/1.1 204 No\r\nETag: "a"\r\n\r\n',
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE.keys())
def test_whatever_is_at_the_other_end_is_never_a_traceback(said: bytes) -> None:
    """A swap that meets something else than a store is unclear, and a read says that it is unreachable."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        thread = threading.Thread(target=_say, args=(other, said), daemon=True)
        thread.start()
        endpoint = f"http://127.0.0.1:{other.getsockname()[1]}"
        bucket = S3Bucket.open(Location.parse("s3://anything", endpoint_url=endpoint, region=REGION), deadline=1.0)
        assert bucket.swap(HEAD, b"one", None).outcome == "unclear"
        with pytest.raises(RemoteUnreachable, match="remote s3://anything cannot be reached: "):
            bucket.get(HEAD)


def _say(other: socket.socket, said: bytes) -> None:
    while True:
        try:
            connection, _ = other.accept()
        except OSError:
            return
        with connection:
            try:
                connection.settimeout(0.5)
                connection.recv(65536)
                connection.sendall(said)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:
                pass


def test_dates_that_are_none_are_left_out(bucket: S3Bucket, through: S3Bucket, proxy: Proxy) -> None:
    """A store without a Date, or with an unreadable one, gives None, and its Expiration header is shown."""
    made(bucket)
    changed = proxy.inject(faults.answer_headers({"Date": "yesterday", "x-amz-expiration": 'rule-id="old"'}), "get")
    gone = proxy.inject(faults.answer_headers({"Date": None, "Last-Modified": None}), "get")
    first, second = through.get(HEAD), through.get(HEAD)
    assert changed.happened == 1 and gone.happened == 1
    assert first is not None and (first.date, first.expiration) == (None, 'rule-id="old"')
    assert second is not None and (second.date, second.modified) == (None, None)
