"""Small file systems, and filling them up."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def mounted(*arguments: str) -> bool:
    """Whether mount(8) did what these arguments say."""
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def small_disk(place: Path, size: str = "1m") -> Iterator[Path]:
    """A file system of that size, made at ``place``; the test is skipped where mounting is not permitted."""
    place.mkdir()
    if os.getuid() or not mounted("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)):
        pytest.skip("mounting is not permitted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill_up(disk: Path, leave: int) -> Path:
    """The file that takes all room but ``leave`` bytes."""
    ballast = disk / "ballast"
    room = os.statvfs(disk)
    with ballast.open("wb") as file, contextlib.suppress(OSError):
        file.write(b"x" * (room.f_bavail * room.f_frsize - leave))
        file.flush()
    return ballast
