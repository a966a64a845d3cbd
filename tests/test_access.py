"""Writing to an agent without resuming it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from store.access import beside
from store.actions import ActionEnd
from store.agent import Agent
from store.backends.sqlite import SqliteBackend
from store.client import Client
from store.errors import ActionNotUnknown
from store.values import Action

_DIES_IN_A_CALL = """
import os, signal, sys
from store.client import Client
agent = Client(local_dir=sys.argv[1]).resume("a")
agent.begin_action("send_email", "external")
os.kill(os.getpid(), signal.SIGKILL)
"""


def _resolve(agent: Agent) -> Action:
    return agent.resolve_action(1, ActionEnd("done", resolution="seen in the log"), by="dana")


def test_the_action_of_a_killed_process_is_resolved_without_waiting_and_without_force(tmp_path: Path) -> None:
    """A provably dead holder runs nothing: the resolution takes an epoch of its own and gives it back."""
    died = subprocess.run([sys.executable, "-c", _DIES_IN_A_CALL, tmp_path / "s"], cwd=os.getcwd(), check=False)
    assert died.returncode == -signal.SIGKILL
    backend = SqliteBackend(tmp_path / "s")
    try:
        before = backend.lease("a")
        assert before is not None
        assert before.live(backend.clock.now())
        assert beside(backend, "a", _resolve).status == "done"
        after = backend.lease("a")
        assert after is not None
        assert (after.epoch, after.state) == (before.epoch + 1, "released")
    finally:
        backend.close()


def test_an_action_that_a_live_process_may_be_running_is_not_resolved(tmp_path: Path) -> None:
    """While its holder lives, a started action is refused, and the holder keeps its lease."""
    with Client(local_dir=tmp_path / "s") as client, client.resume("a") as agent:
        agent.begin_action("send_email", "external")
        with pytest.raises(ActionNotUnknown):
            beside(client.backend, "a", _resolve)
        assert agent.end_action(1, "failed", error="no route").status == "failed"
