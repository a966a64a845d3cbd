"""Time and randomness, as the engine sees them: always injected.

Two clocks are read together. The *boot clock* counts through sleep and cannot
be set, but means nothing after a reboot or on another machine; the *wall
clock* is comparable everywhere, but jumps. Leases use the first within one
boot and the second otherwise.
"""

from __future__ import annotations

import os
import sys
import time
from datetime import datetime, timezone
from functools import lru_cache
from typing import Protocol

from store.value import value


@value
class Instant:
    """One moment, read off both clocks.

    Attributes:
        boot_id: names the boot that ``boot_ms`` counts from.
        boot_ms: milliseconds since that boot, sleep included.
        wall_us: microseconds since 1970-01-01 UTC by the wall clock.
    """

    boot_id: str
    boot_ms: int
    wall_us: int


class Clock(Protocol):
    """What the engine needs to know of time."""

    def now(self) -> Instant: ...


class Random(Protocol):
    """What the engine needs of randomness."""

    def hex(self, digits: int) -> str:
        """``digits`` random hexadecimal digits, fit for secrets."""
        ...


class SystemClock:
    """The machine's clocks."""

    # Darwin's CLOCK_MONOTONIC goes on counting while the machine sleeps, as
    # Linux's CLOCK_BOOTTIME does (clock_gettime(3) of both systems).
    _boot_clock = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 0))

    def now(self) -> Instant:
        return Instant(
            boot_id(),
            time.clock_gettime_ns(self._boot_clock) // 1_000_000,
            time.time_ns() // 1000,
        )


class SystemRandom:
    """The operating system's random numbers."""

    def hex(self, digits: int) -> str:
        return os.urandom((digits + 1) // 2).hex()[:digits]


@lru_cache(maxsize=1)
def boot_id() -> str:
    """The running boot's name; "" where the system does not tell."""
    if sys.platform == "linux":
        try:
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""
    import subprocess

    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def to_datetime(wall_us: int) -> datetime:
    """The wall clock's microseconds as an aware UTC datetime."""
    seconds, micros = divmod(wall_us, 1_000_000)
    return datetime.fromtimestamp(seconds, timezone.utc).replace(microsecond=micros)


def rfc3339(wall_us: int) -> str:
    """UTC with fractions, as lines and JSON carry it: ``2026-11-03T18:54:43.120000Z``."""
    seconds, micros = divmod(wall_us, 1_000_000)
    return f"{_second(seconds)}.{micros:06d}Z"


def rfc3339_seconds(wall_us: int) -> str:
    """UTC in whole seconds, as bodies and briefings carry it."""
    return _second(wall_us // 1_000_000) + "Z"


@lru_cache(maxsize=4)  # of the thousands of writes in one second
def _second(seconds: int) -> str:
    return to_datetime(seconds * 1_000_000).isoformat()[:19]


def parse_rfc3339(text: str) -> datetime:
    """A time that Recall or a person wrote, as an aware UTC datetime.

    Raises:
        ValueError: it is not RFC 3339.
    """
    moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{text} is outside the years 1 to 9999 in UTC") from None
