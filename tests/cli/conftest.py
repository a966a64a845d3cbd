"""A store with a history where the command looks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.keeping import fill


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with every kind of record, made once for the tests of a module, which leave it as it is."""
    directory = tmp_path_factory.mktemp("filled") / "store"
    fill(directory)
    return directory


@pytest.fixture
def store(environment: dict[str, str], filled: Path) -> Path:
    """A copy of it in the command's directory, for one test to change."""
    directory = Path(environment["RECALL_DIR"])
    shutil.copytree(filled, directory)
    return directory
