"""What one client has open: the store, and the agents that it resumed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recall_cli.mcp.log import complain
from store.agent import Agent
from store.backends.sqlite import SqliteBackend
from store.client import Client
from store.errors import BadRecord, Conflict, NotFound, RecallError
from store.keeper import Event
from store.text import check_agent
from store.views import View

_MOST_BAD_RECORDS = 1000  # that the log names


class AlreadyResumed(Conflict):
    """One session resumes an agent once: two of its users could not be told apart by the lease."""

    code = "already_resumed"
    template = "agent {agent} is already resumed in this session"
    hint_template = (
        "call agent_context for its briefing, agent_acquire for a lease that was deferred, or agent_release first to "
        "take it anew"
    )


class NotResumed(Conflict):
    """A write to an agent that this session has not resumed."""

    code = "not_resumed"
    template = "agent {agent} is not resumed in this session"
    hint_template = "call agent_resume first"


class ReadOnly(Conflict):
    """A server without --write changes nothing."""

    code = "read_only"
    template = "{tool} writes, and this server is read-only"
    hint_template = "it has to be started as: recall mcp --write"


class Session:
    """The store's directory, opened when something needs it. Its operations are called one after another.

    Args:
        write: whether agents may be resumed and written to.
        ship: when records have to be in the bucket that the store is attached to, as ``Client`` takes it.
    """

    def __init__(self, directory: Path, *, write: bool, ship: str | None = None) -> None:
        self.directory = directory
        self.write = write
        self._ship = ship
        self._client: Client | None = None
        self._agents: dict[str, Agent] = {}
        self._lost: set[str] = set()
        self._bad_records: set[str] = set()

    @property
    def client(self) -> Client:
        """The store, opened for writing; made if it is missing."""
        if self._client is None:
            self._client = Client(local_dir=self.directory, ship=self._ship, on_bad_record=self._say_bad_record)
        return self._client

    @contextmanager
    def reading(self, *, apart: bool = False) -> Iterator[SqliteBackend]:
        """The store to look at. Without a session of writing it is opened for the moment, and nothing is made.

        Args:
            apart: open it for the moment in any case, for what reads the files and trusts no handle.
        """
        if self._client is not None and not apart:
            yield self._client.backend
            return
        backend = SqliteBackend(self.directory, read_only=True, on_bad_record=self._say_bad_record)
        try:
            yield backend
        finally:
            backend.close()

    @contextmanager
    def viewing(self, agent_id: str) -> Iterator[View]:
        """One agent to look at, resumed or not.

        Raises:
            NotFound: it has no records, and this session did not resume it.
        """
        check_agent(agent_id)
        with self.reading() as backend:
            if agent_id not in self._agents and backend.lease(agent_id) is None:
                raise NotFound(what="agent", name=agent_id)
            yield View(backend, agent_id)

    def resume(self, agent_id: str, **options: Any) -> Agent:
        """Resume an agent and keep it for this session. Raises AlreadyResumed, LeaseHeld."""
        if check_agent(agent_id) in self._agents:
            if agent_id not in self._lost:
                raise AlreadyResumed(agent=agent_id)
            self.release(agent_id)

        def say(event: Event, epoch: int) -> None:
            if event == "lost":
                self._lost.add(agent_id)
            if event != "acquired":
                said = {"again": "lapsed and was acquired again", "lost": "was lost"}[event]
                complain(f"agent {agent_id}: the lease {said} (epoch {epoch})")

        self._lost.discard(agent_id)
        self._agents[agent_id] = self.client.resume(agent_id, on_lease=say, **options)
        return self._agents[agent_id]

    def take(self, agent: Agent) -> None:
        """Take a deferred or lost lease, once. Raises LeaseHeld."""
        agent.take()
        self._lost.discard(agent.id)

    def agent(self, agent_id: str) -> Agent:
        """An agent that was resumed here. Raises NotResumed."""
        agent = self._agents.get(check_agent(agent_id))
        if agent is None:
            raise NotResumed(agent=agent_id)
        return agent

    def release(self, agent_id: str) -> bool:
        """Give an agent's lease back and forget it here; False if it was not held."""
        agent = self._agents.get(check_agent(agent_id))
        if agent is None:
            return False
        released = agent.release()  # busy or full, it stays, to be released again
        del self._agents[agent_id]
        return released

    @property
    def agents(self) -> list[str]:
        """The agents that it resumed."""
        return list(self._agents)

    def held(self, agent_id: str) -> Agent | None:
        """The agent, if this session resumed it."""
        return self._agents.get(agent_id)

    def close(self) -> None:
        """Release all that is held. What cannot be released is free anyway, once this process is gone."""
        if self._client is not None:
            try:
                self._client.close()
            except RecallError as problem:
                complain(problem.message)

    def _say_bad_record(self, problem: BadRecord) -> None:
        """Name a record in the log that could not be read: once, however often it is met."""
        if problem.message not in self._bad_records and len(self._bad_records) < _MOST_BAD_RECORDS:
            self._bad_records.add(problem.message)
            complain(problem.message)
