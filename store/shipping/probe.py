"""Whether a store can decide a lease: asked of the store itself, before anything depends on it.

Stores that speak S3 differ where it matters: some ignore a condition, some let
two writers win. Each step below is one thing that the protocol relies on, asked
on objects of the probe's own; the first that fails refuses the store, by name.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from store.clock import Random
from store.errors import RecallError
from store.remote_errors import BucketUnfit, RemoteRefused, RemoteUnreachable
from store.shipping.bucket import Bucket, Dialect, Swap

WRITERS = 8  # at once, in a race
ROUNDS = 3  # of each kind of race: one round may miss a store that lets two win now and then
_PATIENCE = 8  # attempts at one write that the store neither does nor refuses

Sleep = Callable[[float], None]


class _Speaking(Protocol):
    """A bucket that can be spoken to in another dialect."""

    def speaking(self, dialect: Dialect) -> Bucket: ...


def probe(bucket: _Speaking, random: Random, *, sleep: Sleep = time.sleep) -> Dialect:
    """Find out how the store behind ``bucket`` speaks, and that it keeps what shipping relies on.

    It writes ten small objects under ``probe/`` and deletes them again, whatever happens, in some eighty requests.

    Args:
        bucket: the remote, as ``S3Bucket.open`` gives it.
        random: for the names and contents of the probe's objects.
        sleep: waits so many seconds.

    Raises:
        BucketUnfit: a step failed; the error names it and says what that means.
        RemoteUnreachable: the store gave no usable answers for too long.
        RemoteRefused: it does not let us in.
    """
    probing = _Probe(bucket, random, sleep)
    try:
        for step in STEPS:
            step(probing)
    finally:
        probing.clean_up()
    return probing.dialect


class _Probe:
    """What the steps share: the bucket in the dialect found so far, and the objects made."""

    def __init__(self, speaking: _Speaking, random: Random, sleep: Sleep) -> None:
        self._speaking = speaking
        self._random = random
        self._sleep = sleep
        self._made: list[str] = []
        self._place = f"probe/{random.hex(16)}"
        self.learn()
        self.key, self.body, self.etag = self.new_key(), b"", ""  # the object that the steps work on
        self.stale = ""  # an ETag that it had before
        self.trouble = ""  # why a race had an unclear answer

    def learn(self, **found: object) -> None:
        """From now on speak the dialect with this in it."""
        known = getattr(self, "dialect", Dialect())
        self.dialect = Dialect(**{**vars(known), **found})
        self.bucket = self._speaking.speaking(self.dialect)

    def warn(self, warning: str) -> None:
        """Remember something that a person should know."""
        if warning not in self.dialect.warnings:
            self.learn(warnings=(*self.dialect.warnings, warning))

    def new_key(self) -> str:
        """The key of another object, to be deleted in the end."""
        self._made.append(f"{self._place}/{len(self._made):03}")
        return self._made[-1]

    @property
    def place(self) -> str:
        """What the keys of this probe start with."""
        return f"{self._place}/"

    def new_body(self) -> bytes:
        """Bytes that nobody else writes, with every byte value among them."""
        return self._random.hex(32).encode() + bytes(range(256)) + b"\r\n\r\n"

    def swap(self, key: str, body: bytes, etag: str | None) -> Swap:
        """One conditional write, repeated until the store has done it or said no.

        What may have been written is looked at first: the body tells whose it is.
        """
        for attempt in range(_PATIENCE):
            answer = self.bucket.swap(key, body, etag)
            if answer.outcome == "unclear":
                if answer.status == 429:
                    self.learn(min_interval=1.0)
                found = self.bucket.get(key)
                if found is not None and found.body == body:
                    return Swap("done", found.etag)
            elif answer.outcome == "refused":
                raise _refusal(self.bucket, answer)
            elif answer.status != 409:
                self.pause()
                return answer
            self._sleep(max(self.dialect.min_interval, min(2.0, 0.1 * 2**attempt)))
        raise RemoteUnreachable(remote=self.bucket.name, reason=answer.reason)

    def pause(self) -> None:
        """Wait as long as the store wants between writes of one key."""
        if self.dialect.min_interval:
            self._sleep(self.dialect.min_interval)

    def race(self, key: str, etag: str | None) -> list[bytes]:
        """Write one object from many threads at once; the bodies of those that won."""
        bodies = [self.new_body() for _ in range(WRITERS)]
        answers: list[Swap | None] = [None] * WRITERS
        start = threading.Barrier(WRITERS)

        def write(number: int) -> None:
            start.wait()
            answers[number] = self.bucket.swap(key, bodies[number], etag)

        threads = [threading.Thread(target=write, args=(number,), daemon=True) for number in range(WRITERS)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        won = []
        for body, answer in zip(bodies, answers, strict=True):
            assert answer is not None, "a writer of the race raised"
            if answer.outcome == "refused":
                raise _refusal(self.bucket, answer)
            if answer.status == 429:
                self.learn(min_interval=1.0)
            if answer.outcome == "unclear":
                self.trouble = answer.reason
            if answer.outcome == "done":
                won.append(body)
        self.pause()
        return won

    def clean_up(self) -> None:
        """Delete what was made; where that is not allowed, say so instead of failing."""
        for key in self._made:
            try:
                self.bucket.delete(key)
            except RecallError as problem:
                self.warn(f"the probe's objects under {self._place}/ could not be deleted: {problem}")
                return


class _NotImplemented(Exception):
    """The store answered 501 to a conditional write."""


def _refusal(bucket: Bucket, answer: Swap) -> Exception:
    if answer.status == 501:
        return _NotImplemented(answer.reason)
    return RemoteRefused(remote=bucket.name, reason=answer.reason)


Step = Callable[[_Probe], None]
StepT = TypeVar("StepT", bound=Step)


class _Failed(Exception):
    """What a step found, in words."""


def _named(name: str) -> Callable[[Step], Step]:
    """A step that fails under ``name``, which reads on with what went wrong."""

    def wrap(step: Step) -> Step:
        def run(probing: _Probe) -> None:
            try:
                step(probing)
            except (_Failed, _NotImplemented) as problem:
                raise BucketUnfit(remote=probing.bucket.name, step=name, reason=str(problem)) from None

        run.__name__, run.__doc__ = step.__name__, step.__doc__
        return run

    return wrap


@_named("create an object")
def an_object_can_be_created(probing: _Probe) -> None:
    """A write on the condition that nothing is there makes the object, and its answer names its ETag."""
    probing.body = probing.new_body()
    made = probing.swap(probing.key, probing.body, None)
    if made.outcome != "done":
        raise _Failed(f"nothing is there, and yet {made.reason}")
    probing.etag = made.etag


@_named("create it again")
def a_second_creation_fails(probing: _Probe) -> None:
    """The same write again is refused: a head cannot be started twice."""
    if probing.swap(probing.key, probing.new_body(), None).outcome == "done":
        raise _Failed("it replaced the object, so If-None-Match is ignored and any writer overwrites any other")


@_named("read it back")
def it_reads_back_byte_for_byte(probing: _Probe) -> None:
    """A read after the answer gives the bytes that were written, under the ETag that was answered."""
    found = probing.bucket.get(probing.key)
    if found is None:
        raise _Failed("it is not there, so a read does not show what was written before it")
    if found.body != probing.body:
        raise _Failed("its bytes are not those that were written: something on the way changes them")
    if found.etag.startswith("W/"):
        raise _Failed(f"its ETag {found.etag} is a weak one, which no condition matches; a proxy may have made it so")
    if found.etag.strip('"') != probing.etag.strip('"'):
        raise _Failed(f"its ETag is {found.etag}, but the write was answered with {probing.etag}")
    if found.date is None or found.modified is None:
        probing.warn("answers without Date or Last-Modified: a dead agent is taken over by this machine's clock only")
    if found.expiration:
        probing.warn(
            f"a lifecycle rule will delete objects under this prefix ({found.expiration}): "
            "exempt it, or agents lose their history"
        )


@_named("update it")
def an_update_succeeds(probing: _Probe) -> None:
    """A write with the present ETag goes through, the ETag quoted as HTTP has it, or else bare."""
    body = probing.new_body()
    answer = probing.swap(probing.key, body, probing.etag)
    if answer.outcome != "done":
        probing.learn(quoted=False)
        answer = probing.swap(probing.key, body, probing.etag)
    if answer.outcome != "done":
        raise _Failed(f"nobody wrote in between, and yet {answer.reason}: If-Match does not work")
    probing.stale, probing.etag, probing.body = probing.etag, answer.etag, body


@_named("update it with a stale ETag")
def a_stale_update_fails(probing: _Probe) -> None:
    """A write with the ETag before the present one is refused, and changes nothing."""
    if probing.etag == probing.stale:
        raise _Failed("an update did not change the ETag, so a stale writer cannot be told from the present one")
    if probing.swap(probing.key, probing.new_body(), probing.stale).outcome == "done":
        raise _Failed("it replaced the object, so If-Match is ignored and a fenced writer overwrites its successor")
    found = probing.bucket.get(probing.key)
    if found is None or found.body != probing.body:
        raise _Failed("it was answered with a refusal, and yet the object changed")


@_named("update what is not there")
def an_update_of_nothing_fails(probing: _Probe) -> None:
    """A write with an ETag where no object is makes none: a head that was deleted stays deleted."""
    key = probing.new_key()
    answer = probing.swap(key, probing.new_body(), probing.etag)
    if answer.outcome == "done" or probing.bucket.get(key) is not None:
        raise _Failed("it made an object, so a lost head would come back with an old epoch")
    if answer.status in (404, 412):
        probing.learn(missing=answer.status)


@_named("list them")
def a_listing_shows_what_was_written(probing: _Probe) -> None:
    """A listing has every object that was written before it, in the order of keys, and goes on after any of them."""
    keys = [probing.key, *(probing.new_key() for _ in range(2))]
    for key in keys[1:]:
        probing.bucket.create(key, probing.new_body())
    if [each.key for each in probing.bucket.list(probing.place)] != keys:
        raise _Failed("it does not show the objects written before it, each once and in the order of their keys")
    if [each.key for each in probing.bucket.list(probing.place, after=keys[0])] != keys[1:]:
        raise _Failed("it does not go on after a given key")


@_named("create one object from eight writers at once")
def of_eight_creations_one_wins(probing: _Probe) -> None:
    """When many create the same object at once, at most one is told that it did, and it is the one that did."""
    _race(probing, lambda: (probing.new_key(), None))


@_named("update one object from eight writers at once")
def of_eight_updates_one_wins(probing: _Probe) -> None:
    """When many update the same object from the same ETag at once, at most one is told that it did."""

    def prepare() -> tuple[str, str]:
        key = probing.new_key()
        made = probing.swap(key, probing.new_body(), None)
        if made.outcome != "done":
            raise _Failed(f"nothing is there, and yet {made.reason}")
        return key, made.etag

    _race(probing, prepare)


def _race(probing: _Probe, prepare: Callable[[], tuple[str, str | None]]) -> None:
    decided = 0
    for _ in range(ROUNDS):
        key, etag = prepare()
        won = probing.race(key, etag)
        if len(won) > 1:
            raise _Failed(f"{len(won)} of them were told that they won, so two processes can both hold a lease")
        found = probing.bucket.get(key)
        if won and (found is None or found.body != won[0]):
            raise _Failed("one was told that it won, and another one's bytes are there")
        decided += len(won)
    if not decided and probing.trouble:
        raise RemoteUnreachable(remote=probing.bucket.name, reason=probing.trouble)
    if not decided:
        raise _Failed("nobody ever won, so a lease could not be taken while others try")


STEPS: tuple[Step, ...] = (
    an_object_can_be_created,
    a_second_creation_fails,
    it_reads_back_byte_for_byte,
    an_update_succeeds,
    a_stale_update_fails,
    an_update_of_nothing_fails,
    a_listing_shows_what_was_written,
    of_eight_creations_one_wins,
    of_eight_updates_one_wins,
)
