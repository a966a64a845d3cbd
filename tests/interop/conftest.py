"""Other people's clients, as published, in an environment of their own that is made once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COMMAND, ROOT

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"


@pytest.fixture(scope="session")
def python() -> Path:
    """A Python that has the clients. Without them the tests are skipped; in CI, which can get them, they fail."""
    identity = REQUIREMENTS.read_bytes() + f"{sys.version}{platform.machine()}".encode()
    home = ROOT / ".interop" / hashlib.sha256(identity).hexdigest()[:16]
    with _locked(home.with_suffix(".lock")):
        if not (home / "ready").exists():
            made = _make(home)
            if made and os.environ.get("CI"):
                pytest.fail(made)
            if made:
                pytest.skip(made)
            (home / "ready").touch()
    return home / "bin" / "python"


def _make(home: Path) -> str:
    """Install the clients; why that failed, or ""."""
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", str(REQUIREMENTS)]
    for argv in ([sys.executable, "-m", "venv", "--clear", str(home)], [str(home / "bin" / "python"), *pip]):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            return f"the published clients cannot be installed: {(done.stderr or done.stdout).strip()[-500:]}"
    return ""


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Only one worker makes it; the others wait."""
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


INSPECTOR = "@modelcontextprotocol/inspector@0.15.0"


@pytest.fixture(scope="session")
def inspector() -> Path:
    """The protocol's own inspector, where npm can install it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    home = ROOT / ".interop" / "inspector-0.15.0"
    with _locked(home.with_suffix(".lock")):
        if not (home / "ready").exists():
            argv = [npm, "install", "--prefix", str(home), "--no-audit", "--no-fund", "--loglevel=error", INSPECTOR]
            own = {**os.environ, "HOME": str(home), "npm_config_cache": str(home / "cache")}
            done = subprocess.run(argv, env=own, capture_output=True, text=True, timeout=600, check=False)
            shutil.rmtree(home / "cache", ignore_errors=True)
            if done.returncode:
                pytest.skip(f"the inspector cannot be installed: {(done.stderr or done.stdout).strip()[-500:]!r}")
            (home / "ready").touch()
    return home / "node_modules" / ".bin" / "mcp-inspector"


Drive = Callable[..., Any]


@pytest.fixture
def drive(python: Path, environment: dict[str, str], tmp_path: Path) -> Drive:
    """Runs a script beside this file with the clients' Python: what it prints, as JSON."""

    def run(script: str, *arguments: str, **more: str) -> Any:
        plain = {name: value for name, value in environment.items() if name != "PYTHONWARNINGS"}
        done = subprocess.run(
            [python, HERE / script, *arguments],
            env={**plain, "RECALL": str(COMMAND), "LANGSMITH_TRACING": "false", **more},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
