"""The Makefile as somebody meets it who only types make."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_make_alone_lists_every_target_and_makes_nothing() -> None:
    """Each target is there with what it does."""
    told = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    listed = [re.split(r" {2,}", line.strip()) for line in told.stdout.splitlines()]
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    assert [name for name, _ in listed] == [f"make {each}" for each in phony[1].split()]
    assert all(len(text) > 5 for _, text in listed)
