"""The kill test's harness on other people's programs: what it promises, and not how they do."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.kills.contenders import Contender
from bench.kills.peers import peers
from bench.kills.programs.world import ORDER
from bench.kills.trial import Ended, Kill, run


def test_a_trial_of_each_peer(python: Path, tmp_path: Path) -> None:
    """Each of them is killed where its email has left, and runs again until it has finished."""
    assert python.exists()

    def trial(contender: Contender, setup: str) -> Ended:
        return run(contender, setup, Kill("email:effect"), tmp_path / f"{contender.key}/{setup}".replace("/", "-"))

    with ThreadPoolExecutor() as pool:  # at once, for most of a trial is waiting
        ended = {
            (contender.key, setup): pool.submit(trial, contender, setup)
            for contender in peers()
            for setup in contender.setups
        }
    assert len(ended) == 6
    for (key, setup), each in ended.items():
        result = each.result()
        assert result.killed, (key, setup)
        assert min(result.effects[tool] for tool in ORDER) >= 1, (key, setup, result)
        assert list(tmp_path.iterdir()) == []
