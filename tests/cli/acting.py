"""What the tests of the act commands share: a shell session's variables, and looking past the command."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store.backends.sqlite import SqliteBackend
from store.views import View
from tests.conftest import Ended, Run


def session(run: Run, agent: str = "x", *more: str, pid: int = 0) -> dict[str, str]:
    """Takes the lease as a shell would, with this process (or ``pid``) as the holder."""
    done = run("resume", agent, "--export", "--json", "--holder-pid", str(pid or os.getpid()), *more)
    assert done.code == 0, done.err
    return {"RECALL_AGENT": agent, "RECALL_LEASE": json.loads(done.out)["lease"]}


@contextmanager
def looking(tmp_path: Path, agent: str = "x") -> Iterator[View]:
    """The agent in the test's store, read through the engine."""
    backend = SqliteBackend(tmp_path / "recall-data", read_only=True)
    try:
        yield View(backend, agent)
    finally:
        backend.close()


def lsn(tmp_path: Path, agent: str = "x") -> int:
    """How long the agent's log is; 0 where there is no store or agent."""
    if not (tmp_path / "recall-data" / "recall.db").exists():
        return 0
    with looking(tmp_path, agent) as view:
        return 0 if view.backend.lease(agent) is None else view.backend.counters(agent).lsn


def document(done: Ended) -> Any:
    """What it printed as JSON, having succeeded."""
    assert done.code == 0, done.err
    return json.loads(done.out)
