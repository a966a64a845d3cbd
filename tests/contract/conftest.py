"""Two independent handles to one store, for each backend that there is."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from store.backend import Backend
from store.backends.sqlite import SqliteBackend
from store.clock import Clock
from store.opening import open_store
from tests.engine import SetClock
from tests.shipping.machines import attach
from tests.shipping.servers import CREDENTIALS, shared_server


def _sqlite(place: str, clock: Clock | None) -> Backend:
    return SqliteBackend(place, clock=clock)


def _shipping(place: str, clock: Clock | None) -> Backend:
    return open_store(place, clock=clock)


_OPENED = "from store.opening import open_store\nbackend = open_store(sys.argv[1])\n"

# name: (how a test opens a handle, the same as source text for another process)
BACKENDS = {
    "sqlite": (
        _sqlite,
        "from store.backends.sqlite import SqliteBackend as Opened\nbackend = Opened(sys.argv[1])\n",
        "store.backends.sqlite.backend.SqliteBackend",
    ),
    # On a real S3 server; where it is, the store itself knows.
    "shipping": (
        _shipping,
        f"os.environ.update({CREDENTIALS!r})\n{_OPENED}",
        "store.shipping.backend.ShippingBackend",
    ),
}


@dataclass
class Two:
    """Two handles that share nothing but the store.

    Attributes:
        preamble: source that opens ``backend`` on sys.argv[1] in another process, on the machine's clock.
        place: that argument.
        holds: for how many seconds its holder may write under a lease of 60.
    """

    name: str
    one: Backend
    other: Backend
    clock: SetClock
    place: str
    preamble: str
    open: Callable[[Clock | None], Backend]
    holds: float


@pytest.fixture(params=sorted(BACKENDS))
def two(request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    opening, source, class_name = BACKENDS[request.param]
    place, clock = str(tmp_path / "store"), SetClock()
    opened: list[Backend] = []
    if request.param == "shipping":
        os.environ.update(CREDENTIALS)
        attach(Path(place), shared_server("seaweedfs", tmp_path_factory).location())

    def open_one(given: Clock | None) -> Backend:
        opened.append(opening(place, given))
        # A job that believes to test one backend and tests another proves nothing.
        assert f"{type(opened[-1]).__module__}.{type(opened[-1]).__qualname__}" == class_name
        return opened[-1]

    preamble = "import os, sys, time\n" + source
    holds = 40.0 if request.param == "shipping" else 60.0  # a contender elsewhere has another clock
    yield Two(request.param, open_one(clock), open_one(clock), clock, place, preamble, open_one, holds)
    for backend in opened:
        backend.close()
