"""An image of a process by CRIU, where CRIU runs: what a checkpoint of the process costs in its records' place."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path


class NoImage(Exception):
    """It cannot be had here; the message is the reason, in one line."""


def check() -> None:
    """Raises NoImage where CRIU does not run, with what it says itself."""
    if shutil.which("criu") is None:
        raise NoImage("CRIU is not installed")
    _run("check")


def image_bytes(pid: int, directory: Path) -> int:
    """The size of the image of a process and its children, which go on. Raises NoImage."""
    directory.mkdir()
    _run("dump", "--tree", str(pid), "--images-dir", str(directory), "--leave-running", "--shell-job", "--file-locks")
    return sum(each.stat().st_size for each in directory.iterdir())


def _run(*arguments: str) -> None:
    done = subprocess.run(["criu", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        said = re.findall(r"^Error \([^)]*\): (.*)$", done.stderr + done.stdout, re.MULTILINE)
        told = [each.strip().rstrip(".") for each in said if not each.startswith("exited")]
        raise NoImage(f"criu {arguments[0]}: " + ("; ".join(told) or f"exit {done.returncode}"))
