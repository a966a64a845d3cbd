"""What goes over the wire to S3, and where the credentials come from."""

from __future__ import annotations

import base64
import hashlib
import socket
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import recall_cli
from store.remote_errors import RemoteRefused
from store.shipping.bucket import Location, Swap
from store.shipping.s3 import S3Bucket
from tests.shipping import faults
from tests.shipping.proxy import Proxy, Request
from tests.shipping.serve import ACCESS_KEY, SECRET_KEY
from tests.shipping.servers import HEAD, Server

signatures_checked = pytest.mark.parametrize("server", ["seaweedfs"], indirect=True)  # moto does not


def test_requests_carry_nothing_that_a_store_may_not_know(through: S3Bucket, proxy: Proxy) -> None:
    """No Expect, no newer checksums, no chunks, no empty body; who asks is in the user agent."""
    etag = through.swap(HEAD, b"one", None).etag
    assert through.swap(HEAD, b"two", etag).outcome == "done"
    assert through.create("seg/1", b"x")
    assert through.get(HEAD) is not None
    assert list(through.list("seg/"))
    through.delete("seg/1")
    assert Counter(each.request.kind for each in proxy.seen) == {"put": 3, "get": 1, "list": 1, "delete": 1}
    for each in proxy.seen:
        headers = each.request.headers
        assert not [name for name in headers if "checksum" in name or name == "expect"]
        assert "transfer-encoding" not in headers and "content-encoding" not in headers
        assert f"recall/{recall_cli.__version__}" in headers["user-agent"].split()
        assert each.request.kind != "put" or each.request.body
    conditions = [
        (each.request.headers.get("if-match"), each.request.headers.get("if-none-match")) for each in proxy.of("put")
    ]
    assert conditions == [(None, "*"), (etag, None), (None, "*")]


def test_a_write_whose_sender_was_killed_leaves_the_object_as_it_was(
    server: Server, through: S3Bucket, proxy: Proxy
) -> None:
    """Its headers have left, its body has not, or not all of it: no store takes the rest for the whole."""
    etag = through.swap(HEAD, b"one", None).etag
    through.swap(HEAD, b"two", etag)
    request = proxy.of("put")[-1].request
    assert request.headers["content-md5"] == base64.b64encode(hashlib.md5(b"two").digest()).decode()
    there = server.location()
    for sent in (b"", b"t"):
        cut = replace(request, target=f"/{there.bucket}/{there.prefix}/{HEAD}").with_header("if-match", None)
        _send(server, cut, sent)
    assert S3Bucket.open(there).get(HEAD) is None
    _send(server, cut, b"two")
    found = S3Bucket.open(there).get(HEAD)
    assert found is not None and found.body == b"two"


def _send(server: Server, request: Request, body: bytes) -> None:
    """A request with another body than its headers announce, from a sender that dies then."""
    address = urlsplit(server.endpoint)
    lines = [
        f"{request.method} {request.target} HTTP/1.1",
        *(f"{name}: {text}" for name, text in request.headers.items()),
    ]
    with socket.create_connection((str(address.hostname), address.port or 80)) as sender:
        sender.sendall("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + body)
        time.sleep(0.2)
    time.sleep(0.3)


@signatures_checked
def test_an_empty_body_is_never_sent(through: S3Bucket, proxy: Proxy) -> None:
    """Some versions of the SDK would send it twice; nothing that Recall writes is empty."""
    for write in (lambda: through.swap(HEAD, b"", None), lambda: through.create(HEAD, b"")):
        with pytest.raises(ValueError, match="never written"):
            write()
    assert proxy.seen == []


@pytest.mark.parametrize("server", ["moto"], indirect=True)
@pytest.mark.parametrize(
    ("sse", "key", "sent"),
    [
        ("", "", {}),
        ("AES256", "", {"x-amz-server-side-encryption": "AES256"}),
        ("aws:kms", "", {"x-amz-server-side-encryption": "aws:kms"}),
        (
            "aws:kms",
            "arn:aws:kms:us-east-1:123456789012:key/1",
            {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": "arn:aws:kms:us-east-1:123456789012:key/1",
            },
        ),
    ],
)
def test_encryption_is_asked_for_with_each_write(
    server: Server, proxy: Proxy, sse: str, key: str, sent: dict[str, str]
) -> None:
    """Both kinds of PUT carry the setting, and nothing else does."""
    bucket = S3Bucket.open(server.location(endpoint_url=proxy.endpoint, sse=sse, sse_kms_key=key))
    assert bucket.swap(HEAD, b"one", None).outcome == "done"
    assert bucket.create("seg/1", b"x")
    assert bucket.get(HEAD) is not None
    for each in proxy.seen:
        found = {name: text for name, text in each.request.headers.items() if name.startswith("x-amz-server-side")}
        assert found == (sent if each.request.kind == "put" else {})


@signatures_checked
def test_a_store_that_wants_bare_etags_gets_them(through: S3Bucket, proxy: Proxy) -> None:
    """The dialect decides how If-Match is written, over the same connections."""
    etag = through.swap(HEAD, b"one", None).etag
    bare = through.speaking(replace(through.dialect, quoted=False))
    bare.swap(HEAD, b"two", etag)
    assert proxy.of("put")[-1].request.headers["if-match"] == etag.strip('"')


@signatures_checked
def test_every_request_is_counted_by_kind(server: Server, proxy: Proxy) -> None:
    """The hook hears of each request on the wire, repeated ones too."""
    kinds: list[str] = []
    bucket = S3Bucket.open(server.location(endpoint_url=proxy.endpoint), on_request=kinds.append)
    trouble = proxy.inject(faults.slow_down(), "get")
    bucket.swap(HEAD, b"one", None)
    bucket.create("seg/1", b"x")
    bucket.get(HEAD)
    bucket.delete("seg/1")
    list(bucket.list(""))
    assert trouble.happened == 1
    assert kinds == ["swap", "create", "get", "get", "delete", "list"] and len(proxy.seen) == len(kinds)


@signatures_checked
def test_many_threads_share_one_bucket(location: Location) -> None:
    """The first use from eight threads at once makes each client once, and all of them get through."""
    bucket = S3Bucket.open(location)
    start = threading.Barrier(8)
    made: list[bool] = []

    def work(number: int) -> None:
        start.wait()
        made.append(bucket.create(f"seg/{number}", b"x") and bucket.get(f"seg/{number}") is not None)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert made == [True] * 8


# -- credentials -----------------------------------------------------------------------


def without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)


def credentials_file(tmp_path: Path, key: str = ACCESS_KEY, secret: str = SECRET_KEY, token: str = "") -> Path:
    path = tmp_path / "credentials"
    lines = ["[prod]", f"aws_access_key_id = {key}", f"aws_secret_access_key = {secret}"]
    path.write_text("\n".join([*lines, *([f"aws_session_token = {token}"] if token else [])]) + "\n")
    return path


@signatures_checked
def test_a_profile_of_the_shared_file_lets_in(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing in the environment, the profile's credentials are used."""
    without_credentials(monkeypatch)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials_file(tmp_path)))
    bucket = S3Bucket.open(server.location(profile="prod"))
    assert bucket.swap(HEAD, b"one", None).outcome == "done"


@signatures_checked
@pytest.mark.parametrize(
    ("environment", "profile", "reason"),
    [
        ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, "", "no credentials were found"),
        ({"AWS_SECRET_ACCESS_KEY": None}, "", "Partial credentials"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, "", "credentials are not valid here"),
        ({"AWS_ACCESS_KEY_ID": "NOBODY"}, "", "credentials are not valid here"),
        ({}, "absent", "profile"),
    ],
)
def test_without_good_credentials_everything_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str | None], profile: str, reason: str
) -> None:
    """One line says what is wrong with them; a swap answers with it, the rest raise it."""
    for name, text in environment.items():
        if text is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, text)
    bucket = S3Bucket.open(server.location(profile=profile))
    answer = bucket.swap(HEAD, b"one", None)
    assert answer.outcome == "refused" and reason in answer.reason and "\n" not in answer.reason
    with pytest.raises(RemoteRefused, match=reason):
        bucket.get(HEAD)
    with pytest.raises(RemoteRefused, match=reason):
        list(bucket.list(""))


@signatures_checked
def test_expired_credentials_are_asked_for_again(
    server: Server, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store calls them expired and the chain has others by then, the write goes through with those."""
    without_credentials(monkeypatch)
    path = credentials_file(tmp_path, key="OLD", secret="old")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    bucket = S3Bucket.open(server.location(endpoint_url=proxy.endpoint, profile="prod"))

    def old(request: Request) -> bool:
        return "Credential=OLD/" in request.headers["authorization"]

    expired = proxy.inject(faults.expired(), "put", when=old, times=None)
    refused = bucket.swap(HEAD, b"one", None)
    assert (refused.outcome, refused.reason) == ("refused", "the credentials have expired")
    assert len(proxy.of("put")) == expired.happened == 1
    credentials_file(tmp_path)
    assert bucket.swap(HEAD, b"one", None).outcome == "done"
    assert expired.happened == 2 and len(proxy.of("put")) == 3


@signatures_checked
def test_all_threads_use_the_new_credentials(
    server: Server, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Credentials that expire under four writers are replaced for all of them, whoever notices first."""
    without_credentials(monkeypatch)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials_file(tmp_path, key="OLD", secret="old")))
    bucket = S3Bucket.open(server.location(endpoint_url=proxy.endpoint, profile="prod"))
    gate = proxy.inject(faults.Pause(then=faults.expired()), "put", times=4)
    answers: list[Swap] = []
    threads = [
        threading.Thread(target=lambda key: answers.append(bucket.swap(key, b"x", None)), args=(f"agents/{number}",))
        for number in range(4)
    ]
    for each in threads:
        each.start()
    gate.wait_for_waiting(4)
    credentials_file(tmp_path)
    gate.release()
    for each in threads:
        each.join()
    assert [each.outcome for each in answers] == ["done"] * 4
    assert gate.happened == 4 and len(proxy.of("put")) == 8


@signatures_checked
def test_an_endpoint_that_is_none_is_refused(server: Server) -> None:
    """An address that the SDK cannot use is the configuration's fault, and swap says so without raising."""
    bucket = S3Bucket.open(replace(server.location(), endpoint_url="http://ho st:1"))
    answer = bucket.swap(HEAD, b"one", None)
    assert answer.outcome == "refused" and "Invalid endpoint" in answer.reason
    with pytest.raises(RemoteRefused, match="Invalid endpoint"):
        bucket.delete(HEAD)
