"""A store to prune."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.agent import Agent
from store.backends.sqlite import SqliteBackend
from store.client import Client
from store.errors import Stale
from store.keeper import Keeper
from store.pruning import prune

AGENT = "billing"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A store with every kind of record, what is needed of them early in a long log."""
    path = tmp_path / "store"
    with Client(local_dir=path) as client, client.resume(AGENT) as one:
        one.update_working_state(goal="Move billing to the v2 API", plan=["find", "migrate"])
        one.set_pointer("wip", "git_ref", {"repo": "github.com/acme/billing", "branch": "agent/wip"})
        one.set_pointer("gone", "external", {"id": "1"})
        one.remove_pointer("gone")
        one.store_output("o" * 50_000, ref="report")
        done = one.begin_action("deploy", "external", {"to": "prod"}, step="deploy-v2")
        one.end_action(done.seq, "done", result="deployed " + "d" * 40_000)
        failed = one.begin_action("notify", "external", step="notify")
        one.end_action(failed.seq, "failed", error="no such channel")
        closed = one.begin_action("search", "pure", {"q": 1})
        one.end_action(closed.seq, "done", result="y" * 40_000)
        one.begin_action("send_email", "external", {"to": "a@example.org", "body": "b" * 30_000})
        one.begin_action("charge", "idempotent", {"cents": 100})
        one.begin_run()
        for number in range(30):
            one.record_turn("assistant", f"turn {number}")
        one.record_turn("user", "z" * 30_000)
    return path


@pytest.fixture
def backend(directory: Path) -> Iterator[SqliteBackend]:
    one = SqliteBackend(directory)
    yield one
    one.close()


def acting(backend: SqliteBackend) -> Agent:
    """The agent as its next process resumes it."""
    one = Agent(backend, AGENT, Keeper(backend, AGENT, ttl_ms=60_000, background=False))
    one.take()
    return one


def prune_stopped(backend: SqliteBackend, base: int) -> None:
    """A prune that does all but the cut."""

    def refuse(*_: object) -> None:
        raise Stale(key="x", expected="", found="")

    backend.cut = refuse  # type: ignore[assignment, method-assign]
    prune(backend, AGENT, base)
