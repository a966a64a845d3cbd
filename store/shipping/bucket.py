"""A bucket, as shipping needs it: whole objects, and one conditional write that nobody else can win.

The promises stand on ``Bucket``. Keys are relative to the remote's prefix, as
in ``agents/x/head.json``. Nothing of an SDK is imported here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, Protocol

from store.errors import InvalidInput
from store.value import value


@value
class Object:
    """One object as it was read.

    Attributes:
        body: its bytes.
        etag: its version, verbatim: opaque, and with the quotes that the store gave it.
        date: the answer's ``Date``, the store's clock, in seconds since 1970 UTC; None where it gave none.
        modified: ``Last-Modified`` on the same clock, in whole seconds; None where it gave none.
        expiration: ``x-amz-expiration``: a lifecycle rule is going to delete the object; "" without one.
    """

    body: bytes
    etag: str
    date: float | None
    modified: float | None
    expiration: str = ""


@value
class Listed:
    """One object in a listing: its key, its size in bytes, when it was written (seconds since 1970 UTC)."""

    key: str
    size: int
    modified: float


@value
class Swap:
    """What became of one conditional write.

    Attributes:
        outcome: ``done``: the store answered 200 and named the new ETag.
            ``lost_race``: certainly not written; the condition did not hold, or somebody else was writing (412, 409,
            404). ``unclear``: it may have been written, or may yet be (a time-out, a connection cut or never made,
            429, 5xx, 200 without an ETag); only a later look at what the object holds can tell. ``refused``: certainly
            not written, and the same call again would not be either (no access, no such bucket, a clock that is wrong).
        etag: the new ETag, verbatim; "" unless done.
        reason: one clear line for a person; "" when done.
        status: the HTTP status, or 0 where no answer came.
    """

    outcome: Literal["done", "refused", "unclear", "lost_race"]
    etag: str = ""
    reason: str = ""
    status: int = 0


class Bucket(Protocol):
    """A prefix of a bucket.

    Safe to use from several threads. ``get``, ``create``, ``delete`` and
    ``list`` retry what is safe to repeat; what then still fails is raised as
    ``RemoteUnreachable`` (trying later may help) or ``RemoteRefused`` (somebody
    has to change something first). An object is read whole or not at all, and
    after a write was answered every read shows it.
    """

    @property
    def name(self) -> str:
        """``s3://BUCKET/PREFIX``, for messages."""
        ...

    def get(self, key: str) -> Object | None:
        """The object, or None if there is none."""
        ...

    def swap(self, key: str, body: bytes, etag: str | None) -> Swap:
        """Write ``body`` if the object's ETag is ``etag``, or with None if there is no such object.

        One attempt, since a resent write reports the first one's success as a lost race. It is sent again only where
        the store certainly turned the first away before looking at it: for credentials that had expired and have been
        replaced since, or to the region where the bucket is. Raises nothing for what the server or the network does.
        """
        ...

    def create(self, key: str, body: bytes) -> bool:
        """Write an object that never changes. True: made now; False: one of that name was there.

        False may also be our own, from an attempt whose answer was lost, so the
        name has to say what the object holds.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete the object, if it is there."""
        ...

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """The objects whose keys start with ``prefix`` and come after ``after``, by key (as UTF-8 bytes).

        Any number of them, read page by page as they are asked for.
        """
        ...


@value
class Dialect:
    """How one store speaks S3, as the probe found it; kept in ``recall.json``.

    Attributes:
        quoted: whether ``If-Match`` takes the ETag with its quotes.
        missing: the status of a write with ``If-Match`` where no object is: 404 as S3, or 412.
        min_interval: seconds between two writes of one key that the store allows; 0 for any.
        warnings: what a person should know about this store, a line each.
    """

    quoted: bool = True
    missing: int = 404
    min_interval: float = 0.0
    warnings: tuple[str, ...] = ()

    def if_match(self, etag: str) -> str:
        """``etag`` as this store wants it in a condition."""
        bare = etag.strip('"')
        return etag if etag.startswith("W/") else f'"{bare}"' if self.quoted else bare

    def to_json(self) -> str:
        """As one JSON object."""
        return json.dumps(
            {
                "quoted": self.quoted,
                "missing": self.missing,
                "min_interval": self.min_interval,
                "warnings": list(self.warnings),
            },
            sort_keys=True,
        )

    @classmethod
    def from_json(cls, text: str) -> Dialect:
        """What ``to_json`` made; fields of a newer Recall are passed over.

        Raises:
            InvalidInput: it is something else.
        """
        try:
            found: Any = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise InvalidInput(field="dialect", reason="must be a JSON object")
        quoted, missing = found.get("quoted", True), found.get("missing", 404)
        interval, warnings = found.get("min_interval", 0), found.get("warnings", [])
        if (
            not isinstance(quoted, bool)
            or missing not in (404, 412)
            or not _is_number(interval)
            or not isinstance(warnings, list)
            or not all(isinstance(each, str) for each in warnings)
        ):
            raise InvalidInput(field="dialect", reason="has a value that no probe writes")
        return cls(quoted, missing, float(interval), tuple(warnings))


DEFAULT = Dialect()


def _is_number(found: object) -> bool:
    return isinstance(found, (int, float)) and not isinstance(found, bool) and 0 <= found < 3600


SSE = ("AES256", "aws:kms", "aws:kms:dsse")

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_SEGMENT = re.compile(r"[A-Za-z0-9!_.*'()@=+,-]+")
_LONGEST_PREFIX = 512  # of the 1,024 bytes of a key; the names below a prefix need less than the other half


@value
class Location:
    """Where a remote is, and how its objects are to be kept.

    Attributes:
        bucket: the bucket's name.
        prefix: what all its keys start with, without a slash at either end; "" for the whole bucket.
        endpoint_url: the store's address; "" for AWS, or what the AWS configuration says.
        region: "" for what the AWS configuration says.
        profile: a profile of the AWS configuration; "" for the default one.
        sse: server-side encryption asked for with each write, one of ``SSE``; "" for the bucket's own setting.
        sse_kms_key: the key of ``aws:kms``; "" for the account's default one.
    """

    bucket: str
    prefix: str = ""
    endpoint_url: str = ""
    region: str = ""
    profile: str = ""
    sse: str = ""
    sse_kms_key: str = ""

    @property
    def url(self) -> str:
        """``s3://BUCKET/PREFIX``."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        endpoint_url: str = "",
        region: str = "",
        profile: str = "",
        sse: str = "",
        sse_kms_key: str = "",
    ) -> Location:
        """Check what a person gave.

        Raises:
            InvalidInput: in one line, what cannot be a remote and why.
        """
        bucket, prefix = _bucket_and_prefix(url)
        _check_endpoint(endpoint_url)
        if region and not re.fullmatch(r"[A-Za-z0-9-]{1,63}", region):
            raise InvalidInput(field="region", reason=f"must be a name such as eu-central-1, not {region!r}")
        if sse and sse not in SSE:
            raise InvalidInput(field="encryption", reason=f"must be one of {', '.join(SSE)}, not {sse!r}")
        if sse_kms_key and not sse.startswith("aws:kms"):
            raise InvalidInput(field="encryption key", reason="needs the encryption to be aws:kms")
        return cls(bucket, prefix, endpoint_url.rstrip("/"), region, profile, sse, sse_kms_key)


_OPTIONS = ("endpoint_url", "region", "profile", "sse", "sse_kms_key")


def location_named(field: str, text: str) -> Location:
    """The location that one text names: ``s3://BUCKET/PREFIX?endpoint_url=URL&region=NAME``, with any of the options.

    Raises:
        InvalidInput: it names none.
    """
    from urllib.parse import parse_qsl

    url, _, query = text.partition("?")
    options = parse_qsl(query, keep_blank_values=True, separator="&")
    for name, _ in options:
        if name not in _OPTIONS:
            raise InvalidInput(field=field, reason=f"has an option {name!r}; it takes {', '.join(_OPTIONS)}")
    try:
        return Location.parse(url, **dict(options))
    except InvalidInput as problem:
        raise InvalidInput(field=field, reason=problem.message, hint=problem.hint) from None


def _bucket_and_prefix(url: str) -> tuple[str, str]:
    def refuse(reason: str, hint: str = "give it as s3://BUCKET/PREFIX") -> InvalidInput:
        return InvalidInput(field="remote", reason=reason, hint=hint)

    scheme, mark, rest = url.partition("://")
    if not mark or scheme.lower() != "s3":
        raise refuse(f"must start with s3://, not {url!r}")
    bucket, _, prefix = rest.partition("/")
    if ".mrap" in rest or "s3-global" in rest:
        raise refuse(
            "must not be a multi-region access point: its buckets are independent, so two writers could both win",
            "name one bucket",
        )
    if bucket.startswith("arn:"):
        raise refuse("must be a bucket's name or an access point's alias, not an ARN")
    if bucket.endswith("--x-s3"):
        raise refuse("must not be a directory bucket: it does not list by key", "name a general purpose bucket")
    if "@" in (rest if ":" in bucket else bucket):  # not shown: it may be a secret
        raise refuse("must not have credentials in it", "they come from the AWS chain: environment, profile, role")
    if not _BUCKET.fullmatch(bucket):
        raise refuse(f"has no valid bucket name: {bucket!r}")
    prefix = prefix.rstrip("/")
    if len(prefix) > _LONGEST_PREFIX:
        raise refuse(f"has a prefix of {len(prefix)} characters; at most {_LONGEST_PREFIX} leave room for the names")
    for segment in prefix.split("/") if prefix else ():
        if segment in (".", "..") or not _SEGMENT.fullmatch(segment):
            raise refuse(
                f"has a prefix that not every store keeps as it is: {segment!r}",
                "use letters, digits and ! _ . * ' ( ) @ = + , - between single slashes",
            )
    return bucket, prefix


def _check_endpoint(url: str) -> None:
    if not url:
        return
    scheme, _, rest = url.partition("://")
    if "@" in rest:
        hint = "they come from the AWS chain: environment, profile, role"
        raise InvalidInput(field="endpoint", reason="must not have credentials in it", hint=hint)
    if scheme not in ("http", "https") or not rest.strip("/") or re.search(r"[\s?#]", rest):
        raise InvalidInput(field="endpoint", reason=f"must be an http or https address, not {url!r}")
    if "s3-global" in rest:
        raise InvalidInput(field="endpoint", reason="must not be a multi-region one: its buckets are independent")
