"""The 16-file example of examples/migrate, undisturbed and under SIGKILL."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.shell import storm

# Four kills and more in each of five runs; python -m tests.shell.storm --runs 100 is the long form.
RUNS = [(seed, seed % 5 != 4) for seed in range(5)]


def test_undisturbed_it_migrates_commits_and_mails_once(tmp_path: Path) -> None:
    """One start migrates 16 files with a commit each and mails once; a second start does nothing again."""
    with storm.place(tmp_path, resolver=True, slowness=0) as at:
        for _ in range(2):
            assert storm.start(at).wait(timeout=120) == 0
            storm.check(at)
        assert len(storm.actions(at)) == 17


@pytest.mark.parametrize(("seed", "resolver"), RUNS)
def test_killed_at_random_it_ends_as_if_undisturbed(seed: int, resolver: bool, tmp_path: Path) -> None:
    """Script, runner, command and exec die inside steps and the email; each file, commit and mail still comes once."""
    told = storm.run(seed, tmp_path, resolver=resolver, kills=3, mail_kills=1)
    assert told.starts > 1
    sys.stdout.write(storm.report([told]) + "\n")
