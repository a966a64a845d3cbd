"""Drives other people's clients, as published, against our command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COMMAND
from tests.interop.clients import KEPT, locked

HERE = Path(__file__).parent


INSPECTOR = "@modelcontextprotocol/inspector@0.15.0"


@pytest.fixture(scope="session")
def inspector() -> Path:
    """The protocol's own inspector, where npm can install it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    home = KEPT / "inspector-0.15.0"
    with locked(home.with_suffix(".lock")):
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


def told(argv: Sequence[str | Path], env: Mapping[str, str], cwd: Path, *, timeout: float = 120) -> Any:
    """What a program prints, as JSON; it has to end well."""
    done = subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def drive(python: Path, environment: dict[str, str], tmp_path: Path) -> Drive:
    """Runs a script beside this file with the clients' Python: what it prints, as JSON."""

    def run(script: str, *arguments: str, **more: str) -> Any:
        plain = {name: value for name, value in environment.items() if name != "PYTHONWARNINGS"}
        own = {**plain, "RECALL": str(COMMAND), "LANGSMITH_TRACING": "false", **more}
        return told([python, HERE / script, *arguments], own, tmp_path, timeout=240)

    return run
