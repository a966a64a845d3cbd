"""What git may track: tools/tracked.py, which lint and the wheel's trial run first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def git(directory: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "init.defaultBranch=main", *words], cwd=directory, check=True, capture_output=True)


def look(directory: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, ROOT / "tools/tracked.py"], cwd=directory, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr.splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init")
    (tmp_path / "a-file_1.py").touch()
    git(tmp_path, "add", "a-file_1.py")
    return tmp_path


def test_plain_files_are_let_through(checkout: Path) -> None:
    """Regular files of plain names are nothing to speak of, and neither is what git does not track."""
    (checkout / "not: tracked").touch()
    (checkout / "link").symlink_to("nowhere")
    assert look(checkout) == (0, [])


def test_a_link_or_an_odd_name_is_refused_in_a_line_of_its_own(checkout: Path) -> None:
    """Links, dangling or not, and names that a script would have to quote are each named, with why."""
    (checkout / "X11").symlink_to("nowhere")
    (checkout / "same").symlink_to("a-file_1.py")
    (checkout / "bin:").touch()
    (checkout / "two\nlines").touch()
    git(checkout, "add", ".")
    code, lines = look(checkout)
    assert code == 1
    assert [line.split(";")[0] for line in lines] == [
        "'X11' is tracked by git, but is a symbolic link, not a file",
        "'bin:' is tracked by git, but has a name with other characters than A-Z a-z 0-9 . _ - /",
        "'same' is tracked by git, but is a symbolic link, not a file",
        r"'two\nlines' is tracked by git, but has a name with other characters than A-Z a-z 0-9 . _ - /",
    ]
