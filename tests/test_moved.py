"""A store that is moved away while it is open."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from recall_cli import Client, StoreMoved


def _replaced(directory: Path) -> None:
    directory.rename(directory.with_name("elsewhere"))
    with Client(local_dir=directory) as client, client.resume("other") as other:
        other.record_turn("user", "in the new store")


def _restored(directory: Path) -> None:
    copy = directory / "copy"
    shutil.copyfile(directory / "recall.db", copy)
    copy.rename(directory / "recall.db")


def _deleted(directory: Path) -> None:
    (directory / "recall.db").unlink()


@pytest.mark.parametrize("happen", [_replaced, _restored, _deleted])
def test_nothing_is_written_to_files_that_nobody_finds(tmp_path: Path, happen: Callable[[Path], None]) -> None:
    """A write is refused once the store's file is not the one that was opened; what stands in its place is intact."""
    directory = tmp_path / "store"
    client = Client(local_dir=directory)
    agent = client.resume("a")
    agent.record_turn("user", "kept")
    happen(directory)
    with pytest.raises(StoreMoved, match="nothing was written"):
        agent.record_turn("user", "would be lost")
    with pytest.raises(StoreMoved):  # the lease could not be given back
        client.close()
    if happen is _replaced:
        with Client(local_dir=directory) as anew:
            assert [each.content for each in anew.resume("other").recent_turns()] == ["in the new store"]


def test_a_store_that_is_put_back_goes_on(tmp_path: Path) -> None:
    """Moved away and back it is the same file, and the session writes on."""
    directory, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    with Client(local_dir=directory) as client, client.resume("a") as agent:
        directory.rename(elsewhere)
        elsewhere.rename(directory)
        assert agent.record_turn("user", "written").seq == 1
