"""What can be a remote, and how a store's dialect is kept."""

from __future__ import annotations

import json

import pytest

from store.errors import InvalidInput
from store.shipping.bucket import DEFAULT, Dialect, Location


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://team-memory", "team-memory", ""),
        ("s3://team-memory/", "team-memory", ""),
        ("S3://team.memory/agents/prod/", "team.memory", "agents/prod"),
        ("s3://my-point-abc123-s3alias/x", "my-point-abc123-s3alias", "x"),
    ],
)
def test_a_location_is_a_bucket_and_a_prefix(url: str, bucket: str, prefix: str) -> None:
    """What is given comes back as one name, without a slash at the end."""
    location = Location.parse(url)
    assert (location.bucket, location.prefix) == (bucket, prefix)
    assert location.url == f"s3://{bucket}/{prefix}".rstrip("/")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "must start with s3://"),
        ("team-memory", "must start with s3://"),
        ("https://team-memory/x", "must start with s3://"),
        ("s3://", "no valid bucket name"),
        ("s3:///x", "no valid bucket name"),
        ("s3://ab", "no valid bucket name"),
        ("s3://-team/x", "no valid bucket name"),
        ("s3://te am/x", "no valid bucket name"),
        ("s3://team/a//b", "not every store keeps"),
        ("s3://team//a", "not every store keeps"),
        ("s3://team/a/../b", "not every store keeps"),
        ("s3://team/a\nb", "not every store keeps"),
        ("s3://team/a?b", "not every store keeps"),
        ("s3://team/" + "x" * 513, "513 characters"),
        ("s3://arn:aws:s3::123456789012:accesspoint/abc.mrap/x", "multi-region access point"),
        ("s3://abc.mrap/x", "multi-region access point"),
        ("s3://arn:aws:s3:eu-central-1:123456789012:accesspoint/a", "not an ARN"),
        ("s3://team--euc1-az1--x-s3/x", "directory bucket"),
    ],
)
def test_what_cannot_be_a_remote_is_refused_in_one_line(url: str, reason: str) -> None:
    """The line says what is wrong, and the hint what to give instead."""
    with pytest.raises(InvalidInput) as caught:
        Location.parse(url)
    assert reason in str(caught.value) and "\n" not in str(caught.value) and caught.value.hint


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"endpoint_url": "localhost:9000"}, "must be an http or https address"),
        ({"endpoint_url": "http://"}, "must be an http or https address"),
        ({"endpoint_url": "http://user:password@host"}, "must not have credentials in it"),
        ({"endpoint_url": "https://abc.accesspoint.s3-global.amazonaws.com"}, "multi-region"),
        ({"region": "eu central"}, "must be a name such as"),
        ({"sse": "AES128"}, "must be one of AES256, aws:kms"),
        ({"sse_kms_key": "k"}, "needs the encryption to be aws:kms"),
        ({"sse": "AES256", "sse_kms_key": "k"}, "needs the encryption to be aws:kms"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, str], reason: str) -> None:
    """Each option is checked before anything is asked of a store."""
    with pytest.raises(InvalidInput, match=reason):
        Location.parse("s3://team-memory", **options)


@pytest.mark.parametrize(
    "dialect", [DEFAULT, Dialect(quoted=False, missing=412, min_interval=1.0, warnings=("a rule", "another"))]
)
def test_a_dialect_comes_back_from_json(dialect: Dialect) -> None:
    """What the probe found is kept as JSON, and a newer Recall's fields do not matter."""
    kept = json.loads(dialect.to_json())
    assert Dialect.from_json(dialect.to_json()) == dialect
    assert Dialect.from_json(json.dumps({**kept, "newer": [1]})) == dialect


@pytest.mark.parametrize(
    "text", ["", "[]", '{"quoted":1}', '{"missing":500}', '{"min_interval":-1}', '{"warnings":[1]}']
)
def test_a_dialect_that_no_probe_wrote_is_refused(text: str) -> None:
    """A damaged dialect is named, not guessed at."""
    with pytest.raises(InvalidInput, match="dialect"):
        Dialect.from_json(text)


@pytest.mark.parametrize(
    ("quoted", "etag", "sent"),
    [(True, '"a"', '"a"'), (True, "a", '"a"'), (False, '"a"', "a"), (False, "a", "a"), (True, 'W/"a"', 'W/"a"')],
)
def test_an_etag_is_sent_as_the_store_wants_it(quoted: bool, etag: str, sent: str) -> None:
    """With quotes or without them; what is between them stays as it is."""
    assert Dialect(quoted=quoted).if_match(etag) == sent


@pytest.mark.parametrize("url", ["s3://KEY:s3cret@team/x", "s3://KEY:s3c/ret@team/x", "s3://s3cret@team"])
def test_a_secret_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    """Credentials come from the AWS chain; one that was given here ends in no message, and so in no log."""
    for given, endpoint in ((url, ""), ("s3://team", f"http{url[2:]}")):
        with pytest.raises(InvalidInput, match="must not have credentials in it") as caught:
            Location.parse(given, endpoint_url=endpoint)
        assert "s3c" not in f"{caught.value} {caught.value.hint}"
