"""Other people's programs, as published, in an environment of their own that is made once and shared."""

from __future__ import annotations

import fcntl
import hashlib
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engine import ROOT

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
KEPT = ROOT / ".interop"


class NotInstalled(Exception):
    """They cannot be had here; the message says why."""


def clients() -> Path:
    """The Python that has them.

    Raises:
        NotInstalled: installing them failed.
    """
    identity = REQUIREMENTS.read_bytes() + f"{sys.version}{platform.machine()}".encode()
    home = KEPT / hashlib.sha256(identity).hexdigest()[:16]
    with locked(home.with_suffix(".lock")):
        if not (home / "ready").exists():
            _make(home)
            (home / "ready").touch()
    return home / "bin" / "python"


def _make(home: Path) -> None:
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(REQUIREMENTS)]
    for argv in ([sys.executable, "-m", "venv", "--clear", str(home)], [str(home / "bin" / "python"), *pip]):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise NotInstalled(
                f"the published clients cannot be installed: {(done.stderr or done.stdout).strip()[-500:]}"
            )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process makes it; the others wait."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
