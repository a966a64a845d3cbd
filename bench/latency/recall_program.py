"""Recall, in one Python process: ``recall_program DIRECTORY``."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.latency.serving import AgentProgram, serve
from recall_cli import Client


def recall(directory: Path) -> AgentProgram:
    """On a store in ``directory``."""
    return AgentProgram(lambda: Client(local_dir=directory))


if __name__ == "__main__":
    serve(recall(Path(sys.argv[1])))
