"""The probe finds out how a store speaks, and refuses one that cannot decide a lease, by the step that failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from store.clock import SystemRandom
from store.remote_errors import BucketUnfit, RemoteRefused, RemoteUnreachable
from store.shipping.bucket import Dialect
from store.shipping.probe import STEPS, probe
from store.shipping.s3 import S3Bucket
from tests.shipping import faults
from tests.shipping.proxy import Fault, Forward, Proxy, Reply, Request
from tests.shipping.servers import Server, one_server

# Which PUT of a probe is whose: the sequential steps come first, in this order.
CREATE, CREATE_AGAIN, UPDATE, STALE, NOTHING, RACES = 0, 1, 2, 3, 4, 7


def run(bucket: S3Bucket, slept: list[float] | None = None) -> Dialect:
    return probe(bucket, SystemRandom(), sleep=([] if slept is None else slept).append)


def test_a_sound_store_passes_and_its_dialect_is_found(server: Server, bucket: S3Bucket) -> None:
    """Both servers decide a lease; they differ in what they answer for a missing object."""
    assert run(bucket) == Dialect(quoted=True, missing={"moto": 404, "seaweedfs": 412}[server.name])
    assert list(bucket.list("")) == []


def test_every_step_reads_as_what_the_store_promises() -> None:
    """A step's name and its docstring are a sentence each."""
    assert len({step.__name__ for step in STEPS}) == len(STEPS) == 9
    assert all(step.__doc__ and step.__doc__.endswith(".") for step in STEPS)


def answered(change: Callable[[Reply], Reply]) -> Callable[[], Fault]:
    return lambda: faults.Changed(change)


def set_etag(etag: str) -> Callable[[], Fault]:
    return lambda: faults.answer_headers({"ETag": etag})


def last_key_hidden(reply: Reply) -> Reply:
    head, mark, _ = reply.body.rpartition(b"<Contents>")
    return replace(reply, body=head + b"</ListBucketResult>") if mark else reply


BROKEN: list[tuple[str, str, Callable[[], Fault], int]] = [
    # the step that finds it, the kind of request, what the store does wrong, and from which request of the kind on
    ("create an object: nothing is there", "put", faults.precondition_failed, CREATE),
    ("create an object: the store does not implement", "put", lambda: faults.Answer(501, "NotImplemented"), CREATE),
    ("create it again: it replaced the object", "put", faults.ConditionIgnored, CREATE_AGAIN),
    ("read it back: it is not there", "get", lambda: faults.Answer(404, "NoSuchKey"), 0),
    ("read it back: its bytes are not those", "get", faults.byte_changed, 0),
    ("read it back: its ETag is", "get", set_etag('"another"'), 0),
    ("read it back: its ETag W/", "get", set_etag('W/"weak"'), 0),
    ("update it: nobody wrote in between", "put", faults.precondition_failed, UPDATE),
    ("update it with a stale ETag: it replaced", "put", faults.ConditionIgnored, STALE),
    ("update what is not there: it made an object", "put", faults.ConditionIgnored, NOTHING),
    ("list them: it does not show", "list", lambda: faults.Changed(last_key_hidden), 0),
    ("create one object from eight writers at once: 8 of them", "put", faults.ConditionIgnored, RACES),
]


@one_server
@pytest.mark.parametrize(("said", "kind", "fault", "skip"), BROKEN, ids=[said for said, *_ in BROKEN])
def test_a_store_that_breaks_one_promise_is_refused_by_that_step(
    bucket: S3Bucket, through: S3Bucket, proxy: Proxy, said: str, kind: str, fault: Callable[[], Fault], skip: int
) -> None:
    """All else is right, and the probe names the step, says what that means, and leaves nothing behind."""
    broken = proxy.inject(fault(), kind, skip=skip, times=None)
    with pytest.raises(BucketUnfit) as caught:
        run(through)
    assert broken.happened >= 1
    assert f"cannot be used: {said}" in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.code == "bucket_unfit" and caught.value.details["step"] == said.partition(":")[0]
    assert list(bucket.list("")) == []


def updates(request: Request) -> bool:
    return "if-match" in request.headers


@one_server
def test_updates_that_ignore_each_other_are_found_by_the_race(through: S3Bucket, proxy: Proxy) -> None:
    """A store that is right for one writer at a time, and lets all of eight win, passes every step but the last."""
    racy = proxy.inject(faults.ConditionIgnored(), "put", when=updates, skip=3, times=None)
    with pytest.raises(BucketUnfit, match="update one object from eight writers at once: 8 of them were told"):
        run(through)
    assert racy.happened == 8


class SameETag(Fault):
    """A store whose ETags do not tell versions apart."""

    first = ""

    def act(self, request: Request, forward: Forward) -> Reply:
        reply = forward(request)
        self.first = self.first or reply.headers["etag"]
        return replace(reply, headers={**reply.headers, "etag": self.first})


@one_server
def test_an_etag_that_stays_is_refused(through: S3Bucket, proxy: Proxy) -> None:
    """Where an update has the ETag of what it replaced, a stale writer could not be told."""
    same = proxy.inject(SameETag(), "put", when=lambda request: request.body != b"", times=None)
    with pytest.raises(BucketUnfit, match="stale ETag: an update did not change the ETag"):
        run(through)
    assert same.happened >= 2


class WinsBehindItsBack(faults.ConditionIgnored):
    """A store that writes whatever comes, and tells only the first that it did."""

    def __init__(self) -> None:
        super().__init__()
        self._one_at_a_time = threading.Lock()

    def act(self, request: Request, forward: Forward) -> Reply:
        with self._one_at_a_time:
            reply = super().act(request, forward)
            self.told, first = True, not getattr(self, "told", False)
            return reply if first else replace(reply, status=412, body=b"", headers={})


@one_server
def test_a_winner_that_was_overwritten_is_found(through: S3Bucket, proxy: Proxy) -> None:
    """One answer of success is not enough: its bytes must be the ones that stay."""
    lies = proxy.inject(WinsBehindItsBack(), "put", skip=RACES, times=8)
    with pytest.raises(BucketUnfit, match="eight writers at once: one was told that it won, and another one's bytes"):
        run(through)
    assert lies.happened == 8


@one_server
def test_a_refusal_that_wrote_is_found(through: S3Bucket, proxy: Proxy) -> None:
    """A stale write that is answered with 412 and done all the same does not pass."""
    lies = WinsBehindItsBack()
    lies.told = True
    proxy.inject(lies, "put", skip=STALE)
    with pytest.raises(BucketUnfit, match="stale ETag: it was answered with a refusal, and yet the object changed"):
        run(through)
    assert lies.happened == 1


@one_server
def test_a_race_that_nobody_wins_is_refused(through: S3Bucket, proxy: Proxy) -> None:
    """A store that turns all of eight away, each time, could never grant a lease under contention."""
    locked = proxy.inject(faults.conflict(), "put", skip=RACES, times=None)
    with pytest.raises(BucketUnfit, match="eight writers at once: nobody ever won"):
        run(through)
    assert locked.happened == 24


@one_server
def test_a_store_in_trouble_is_not_called_unfit(through: S3Bucket, proxy: Proxy) -> None:
    """503 to everything says nothing about the store's promises."""
    trouble = proxy.inject(faults.slow_down(), "put", times=None)
    slept: list[float] = []
    with pytest.raises(RemoteUnreachable, match="503"):
        run(through, slept)
    assert trouble.happened == 8 and sum(slept) > 2
    proxy.heal()
    in_races = proxy.inject(faults.slow_down(), "put", skip=RACES, times=None)
    with pytest.raises(RemoteUnreachable, match="503"):
        run(through)
    assert in_races.happened == 24


@one_server
def test_no_access_is_refused_as_such(through: S3Bucket, proxy: Proxy) -> None:
    """A policy that denies is not the store's fault."""
    denied = proxy.inject(faults.Answer(403, "AccessDenied"), "put", skip=UPDATE, times=None)
    with pytest.raises(RemoteRefused, match="access denied"):
        run(through)
    assert denied.happened == 1


@one_server
def test_trouble_in_between_is_looked_through(bucket: S3Bucket, through: S3Bucket, proxy: Proxy) -> None:
    """An answer lost, a conflict and a 503 do not fail a sound store: what was written is looked at, and told apart."""
    met = [
        proxy.inject(faults.AnswerLost(), "put"),
        proxy.inject(faults.conflict(), "put", skip=1),
        proxy.inject(faults.slow_down(applied=True), "put", when=updates),
    ]
    assert run(through) == Dialect()
    assert [each.happened for each in met] == [1, 1, 1]
    assert list(bucket.list("")) == []


@one_server
def test_bare_etags_are_found_out(through: S3Bucket, proxy: Proxy) -> None:
    """A store that matches no quoted ETag is spoken to without quotes, in every step after that."""
    picky = proxy.inject(
        faults.RequestHeader("if-match", lambda given: '"never"' if given.startswith('"') else f'"{given}"'),
        "put",
        when=updates,
        times=None,
    )
    assert run(through) == Dialect(quoted=False)
    assert picky.happened == 1 + 3 + 24


@one_server
def test_a_store_with_a_pace_is_learnt(through: S3Bucket, proxy: Proxy) -> None:
    """429 for a second write within a second: the pace is found and kept while probing goes on."""
    pace = proxy.inject(faults.too_many(), "put", when=updates)
    slept: list[float] = []
    assert run(through, slept) == Dialect(min_interval=1.0)
    assert pace.happened == 1 and 1.0 in slept


@one_server
def test_a_lifecycle_rule_and_missing_dates_are_warned_of(through: S3Bucket, proxy: Proxy) -> None:
    """What does not make a store unfit, but will hurt, is kept with the dialect."""
    headers = {"x-amz-expiration": 'expiry-date="Fri, 01 Jan 2027 00:00:00 GMT", rule-id="tidy"', "Date": None}
    told = proxy.inject(faults.answer_headers(headers), "get")
    rule, dates = sorted(run(through).warnings)
    assert told.happened == 1
    assert rule.startswith("a lifecycle rule will delete objects under this prefix") and 'rule-id="tidy"' in rule
    assert dates.startswith("answers without Date or Last-Modified")


@one_server
def test_leftovers_are_named_where_nothing_may_be_deleted(bucket: S3Bucket, through: S3Bucket, proxy: Proxy) -> None:
    """A bucket that allows no deletions is fit; what the probe had to leave is said."""
    denied = proxy.inject(faults.Answer(403, "AccessDenied"), "delete", times=None)
    (warning,) = run(through).warnings
    assert denied.happened == 1
    left = {each.key.rpartition("/")[0] for each in bucket.list("")}
    assert len(left) == 1 and left.pop() in warning and "access denied" in warning
