"""Filling, reading and being refused: what the tests of odd stores and disks share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from store.backends.sqlite import SqliteBackend
from store.errors import (
    RecallError,
)
from store.records import TURN, Draft
from tests.engine import hold


def fill(place: Path, turns: int = 3, *, close: bool = True) -> SqliteBackend:
    backend = SqliteBackend(place)
    fence = hold(backend, "a")
    drafts = [Draft(TURN, {"role": "user", "content": f"{n} " + "x" * 500}, seq=-1) for n in range(turns)]
    backend.append(fence, drafts)
    if close:
        backend.release(fence)
        backend.close()
    return backend


def read(place: Path) -> int:
    backend = SqliteBackend(place, read_only=True)
    try:
        return len(list(backend.log("a"))) + len(backend.tail("a", TURN, limit=5)) - backend.counters("a").turns
    finally:
        backend.close()


def refused(kind: type[RecallError], work: Callable[[], object]) -> RecallError:
    with pytest.raises(kind) as caught:
        work()
    assert "\n" not in caught.value.message
    return caught.value
