"""Whole machines on one bucket, with faults at random, keep every promise over their whole history."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import pytest

from tests.shipping.history import Broken
from tests.shipping.simulated import Late, LossyBucket
from tests.shipping.simulation import MEMORY, World, run

PARTS, SECONDS, LEAST = 4, 3.0, 4


def _run(seed: int, kind: type[LossyBucket] = LossyBucket) -> World:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        return run(seed, Path(place), kind=kind)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_histories_keep_every_promise(part: int) -> None:
    """Lost answers, late PUTs, kills, copies, restored backups, jumping clocks: nothing durable is lost."""
    until, seed = time.monotonic() + SECONDS, 1000 * part
    happened: dict[str, int] = {}
    while seed < 1000 * part + LEAST or time.monotonic() < until:
        world = _run(seed)
        for name, number in (world.bucket.faults | world.happened).items():
            happened[name] = happened.get(name, 0) + number
        seed += 1
    happened["no answer"] = sum(happened.get(each, 0) for each in ("lost", "late", "never"))
    for fault in ("no answer", "died", "unread", "a copy", "a machine lost"):
        assert happened.get(fault), f"no {fault} in seeds {1000 * part} to {seed - 1}"
    assert any("LeaseLost" in each for each in happened), f"nobody was fenced in seeds {1000 * part} to {seed - 1}"
    for outcome in ("begin: done", "secure: done", "acquire: done", "acquire: LeaseHeld"):
        assert happened.get(outcome), f"never {outcome} in seeds {1000 * part} to {seed - 1}"


def test_a_seed_is_one_history(tmp_path: Path) -> None:
    """The same seed gives the same steps, so that what it found can be looked at again."""
    first: list[str] = []
    second: list[str] = []
    for number, said in enumerate((first, second)):
        place = tmp_path / str(number)
        place.mkdir()
        run(7, place, said.append)
    assert first == second
    assert len(first) > 50


class IgnoringBucket(LossyBucket):
    """A store that ignores the conditions of a PUT."""

    def write(self, late: Late) -> str:
        there = self.objects.get(late.key)
        return super().write(Late(late.key, late.body, there[1] if there else None))


def test_the_simulation_finds_a_store_that_ignores_conditions() -> None:
    """Without conditional writes two machines overwrite each other, and a seed shows it."""

    def search() -> None:
        for seed in range(10):
            _run(seed, IgnoringBucket)

    with pytest.raises(Broken, match=r"replay: python -m tests\.shipping\.simulation \d"):
        search()
