"""An agent on a clock that stands still, and the next process that resumes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recall_cli import Client
from store.agent import Agent
from store.keeper import Keeper
from tests.engine import AGENT, SetClock


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def client(tmp_path: Path, clock: SetClock) -> Iterator[Client]:
    with Client(local_dir=tmp_path / "recall-data", clock=clock) as opened:
        yield opened


@pytest.fixture
def agent(client: Client) -> Agent:
    return client.resume(AGENT)


def again(client: Client, agent: Agent, **options: Any) -> Agent:
    """The same agent, as the next process resumes it."""
    agent.release()
    return client.resume(AGENT, **options)


def adopted(client: Client, *, renew: bool = False) -> Agent:
    lease = client.backend.lease(AGENT)
    assert lease is not None
    return Agent(client.backend, AGENT, Keeper.adopt(client.backend, lease.fence, renew=renew))
