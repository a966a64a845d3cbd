"""What the simulation runs on: clocks that jump, and a bucket in memory that loses, delays and forgets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Protocol

from store.clock import Instant
from store.remote_errors import RemoteUnreachable
from store.shipping.bucket import Listed, Object, Swap
from store.value import value
from tests.shipping.memory import MemoryBucket

HEAD = "head.json"


class Died(BaseException):
    """The process that made this call to the bucket was killed in it."""


class Time:
    """The time that all clocks go by: seconds since the simulation began."""

    def __init__(self) -> None:
        self.now = 0.0


class HostClock:
    """One machine's clocks: either may be set, or stand still, against the time of the others."""

    def __init__(self, time: Time, boot: str) -> None:
        self._time, self.boot = time, boot
        self.wall = 1_790_000_000.0
        self.asleep = 0.0

    def now(self) -> Instant:
        at = self._time.now
        return Instant(self.boot, round((1000 + at - self.asleep) * 1000), round((self.wall + at) * 1_000_000))


class Digits:
    """Random digits from the seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def hex(self, digits: int) -> str:
        return f"{self._random.getrandbits(digits * 4):0{digits}x}"


@value
class Late:
    """A PUT that was sent, is not answered, and may yet land."""

    key: str
    body: bytes
    etag: str | None


class Watcher(Protocol):
    """Sees every head that lands, and what each machine sends."""

    def landed(self, body: bytes) -> None: ...

    def sends(self, machine: str, body: bytes) -> None: ...


@value
class Odds:
    """How often, of a thousand calls to the bucket, what goes wrong."""

    lost: int = 60  # it landed, and the answer did not come
    late: int = 60  # no answer, and it may land later
    never: int = 40  # no answer, and it was not applied
    refused: int = 10
    conflict: int = 30  # 409: somebody else was writing
    died: int = 25  # the process is killed, before, after or with the write on its way
    unread: int = 30  # a read fails

    @staticmethod
    def none() -> Odds:
        return Odds(0, 0, 0, 0, 0, 0, 0)


class LossyBucket(MemoryBucket):
    """A bucket, and the writes that are still on their way to it."""

    def __init__(self, random: Random, time: Time, watcher: Watcher) -> None:
        super().__init__(HostClock(time, "bucket"))
        self.late: list[Late] = []
        self.odds = Odds()
        self.faults: dict[str, int] = {}
        self.meanwhile: Callable[[str], None] = lambda machine: None
        self._random, self._watcher = random, watcher

    def chance(self, name: str) -> bool:
        """Whether this goes wrong now."""
        if self._random.randrange(1000) >= getattr(self.odds, name):
            return False
        self.faults[name] = self.faults.get(name, 0) + 1
        return True

    def write(self, late: Late) -> str:
        """Apply one PUT if its condition holds: the new ETag, or ""."""
        landed = self.swap(late.key, late.body, late.etag)
        if landed.outcome == "done":
            self._watcher.landed(late.body)
        return landed.etag

    def land_one(self) -> bool:
        """Let one of the late PUTs arrive; whether its condition still held."""
        if not self.late:
            return False
        return bool(self.write(self.late.pop(self._random.randrange(len(self.late)))))

    def asked(self, machine: str) -> None:
        """What may happen before any call is answered."""
        if self.late and self._random.random() < 0.15 and self.land_one():
            self.faults["landed late"] = self.faults.get("landed late", 0) + 1
        self.meanwhile(machine)

    def sending(self, machine: str, body: bytes) -> None:
        self._watcher.sends(machine, body)


class View:
    """The bucket as one machine's process sees it."""

    def __init__(self, bucket: LossyBucket, machine: str) -> None:
        self._bucket, self._machine = bucket, machine

    name = "s3://memory"

    def _begin(self) -> None:
        self._bucket.asked(self._machine)
        if self._bucket.chance("died"):
            raise Died

    def get(self, key: str) -> Object | None:
        self._begin()
        if self._bucket.chance("unread"):
            raise RemoteUnreachable(remote=self.name, reason="no answer")
        return self._bucket.get(key)

    def swap(self, key: str, body: bytes, etag: str | None) -> Swap:
        self._bucket.sending(self._machine, body)
        self._begin()
        put, bucket = Late(key, body, etag), self._bucket
        if bucket.chance("refused"):
            return Swap("refused", reason="access denied", status=403)
        if bucket.chance("conflict"):
            return Swap("lost_race", reason="conflict", status=409)
        if bucket.chance("never"):
            return Swap("unclear", reason="no answer")
        if bucket.chance("late"):
            bucket.late.append(put)
            self._may_die()
            return Swap("unclear", reason="no answer")
        new = bucket.write(put)
        self._may_die()
        if new and bucket.chance("lost"):
            return Swap("unclear", reason="no answer")
        return Swap("done", new) if new else Swap("lost_race", reason="precondition failed", status=412)

    def create(self, key: str, body: bytes) -> bool:
        self._begin()
        if self._bucket.chance("never"):
            raise RemoteUnreachable(remote=self.name, reason="no answer")
        if not self._bucket.create(key, body):
            return False
        self._may_die()
        if self._bucket.chance("lost"):
            raise RemoteUnreachable(remote=self.name, reason="no answer")
        return True

    def _may_die(self) -> None:
        if self._bucket.chance("died"):
            raise Died

    def delete(self, key: str) -> None:
        self._begin()
        self._bucket.delete(key)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        self._begin()
        yield from self._bucket.list(prefix, after)
