"""Tools that only some tests need: strace, and the shells other than the system's own."""

from __future__ import annotations

import os
import shutil

import pytest


def need(tool: str) -> str:
    """The path of ``tool``. Without it the test is skipped; in CI, which installs them all, it fails."""
    found = shutil.which(tool)
    if found is None and os.environ.get("CI"):
        pytest.fail(f"{tool} is missing, and CI must run every test")
    if found is None:
        pytest.skip(f"{tool} is not installed")
    return found
