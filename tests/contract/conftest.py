"""Two independent handles to one store, for each backend that there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from store.backend import Backend
from store.backends.sqlite import SqliteBackend
from store.clock import Clock
from tests.engine import SetClock


def _sqlite(place: str, clock: Clock | None) -> Backend:
    return SqliteBackend(place, clock=clock)


# name: (how a test opens a handle, the same as source text for another process)
BACKENDS = {
    "sqlite": (
        _sqlite,
        "from store.backends.sqlite import SqliteBackend as Opened\nbackend = Opened(sys.argv[1])\n",
        "store.backends.sqlite.backend.SqliteBackend",
    ),
}


@dataclass
class Two:
    """Two handles that share nothing but the store.

    Attributes:
        preamble: source that opens ``backend`` on sys.argv[1] in another process, on the machine's clock.
        place: that argument.
    """

    name: str
    one: Backend
    other: Backend
    clock: SetClock
    place: str
    preamble: str
    open: Callable[[Clock | None], Backend]


@pytest.fixture(params=sorted(BACKENDS))
def two(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Two]:
    opening, source, class_name = BACKENDS[request.param]
    place, clock = str(tmp_path / "store"), SetClock()
    opened: list[Backend] = []

    def open_one(given: Clock | None) -> Backend:
        opened.append(opening(place, given))
        # A job that believes to test one backend and tests another proves nothing.
        assert f"{type(opened[-1]).__module__}.{type(opened[-1]).__qualname__}" == class_name
        return opened[-1]

    yield Two(
        request.param, open_one(clock), open_one(clock), clock, place, "import os, sys, time\n" + source, open_one
    )
    for backend in opened:
        backend.close()
