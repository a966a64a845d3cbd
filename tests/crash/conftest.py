"""Where the stores of the crash tests are."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = "/dev/shm"


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where there is one.

    SIGKILL does not lose what the kernel has, so a sync that costs nothing
    changes no outcome of it, and a slow disk does not make the kills few.
    """
    if not os.access(_MEMORY, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="recall-test-", dir=_MEMORY, ignore_cleanup_errors=True) as place:
        yield Path(place)
