"""The same operations for asyncio programs: awaited, off the loop's thread.

Each client has one worker thread, so that the records of one session enter
the log in the order in which the calls were made, awaited or not.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Concatenate, ParamSpec, TypeVar

from store.agent import Agent, Context
from store.client import Client
from store.clock import Clock, Random
from store.errors import BadRecord

P = ParamSpec("P")
T = TypeVar("T")


class AsyncAgent:
    """``store.agent.Agent``, awaited; use it as an async context manager to release.

    Attributes:
        agent: the one that it stands for; its ``context`` and ``lease_held`` may be read at once.
    """

    def __init__(self, agent: Agent, worker: ThreadPoolExecutor) -> None:
        self.agent = agent
        self._worker = worker

    async def __aenter__(self) -> AsyncAgent:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    @property
    def id(self) -> str:
        return self.agent.id

    @property
    def context(self) -> Context:
        """As of the last resume, acquire or refresh."""
        return self.agent.context

    @property
    def lease_held(self) -> bool:
        return self.agent.lease_held

    @property
    def epoch(self) -> int:
        return self.agent.epoch

    @staticmethod
    def _awaited(
        method: Callable[Concatenate[Agent, P], T],
    ) -> Callable[Concatenate[AsyncAgent, P], Coroutine[Any, Any, T]]:
        @functools.wraps(method)
        async def call(self: AsyncAgent, /, *args: P.args, **kwargs: P.kwargs) -> T:
            return await _in(self._worker, functools.partial(method, self.agent, *args, **kwargs))

        return call

    acquire = _awaited(Agent.acquire)
    release = _awaited(Agent.release)
    refresh = _awaited(Agent.refresh)
    settle = _awaited(Agent.settle)
    update_working_state = _awaited(Agent.update_working_state)
    working_state_history = _awaited(Agent.working_state_history)
    milestone = _awaited(Agent.milestone)
    record_turn = _awaited(Agent.record_turn)
    recent_turns = _awaited(Agent.recent_turns)
    store_output = _awaited(Agent.store_output)
    fetch_output = _awaited(Agent.fetch_output)
    set_pointer = _awaited(Agent.set_pointer)
    remove_pointer = _awaited(Agent.remove_pointer)
    pointers = _awaited(Agent.pointers)
    begin_action = _awaited(Agent.begin_action)
    end_action = _awaited(Agent.end_action)
    retry_action = _awaited(Agent.retry_action)
    resolve_action = _awaited(Agent.resolve_action)
    amend_action = _awaited(Agent.amend_action)
    pending_actions = _awaited(Agent.pending_actions)
    reconcile = _awaited(Agent.reconcile)


def _resuming(
    method: Callable[Concatenate[Client, P], Agent],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, AsyncAgent]]:
    @functools.wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncAgent:
        client = await self.opened()
        agent = await _in(self._worker, functools.partial(method, client, *args, **kwargs))
        return AsyncAgent(agent, self._worker)

    return call


class AsyncClient:
    """``store.client.Client`` for asyncio; use it as an async context manager, or close it.

    Args:
        local_dir, lock_timeout, on_bad_record, clock, random: those of ``Client``.
    """

    def __init__(
        self,
        *,
        local_dir: str | os.PathLike[str] | None = None,
        lock_timeout: float = 30.0,
        on_bad_record: Callable[[BadRecord], None] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._make = functools.partial(
            Client,
            local_dir=local_dir,
            lock_timeout=lock_timeout,
            on_bad_record=on_bad_record,
            clock=clock,
            random=random,
        )
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recall")
        self._client: Client | None = None

    async def opened(self) -> Client:
        """The client, opened at the first use. Raises what ``Client`` raises."""
        if self._client is None:
            self._client = await _in(self._worker, self._make)
        return self._client

    async def __aenter__(self) -> AsyncClient:
        await self.opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    resume = _resuming(Client.resume)

    async def close(self) -> None:
        """Release what is held and give back the store's files; safe to call twice."""
        client, self._client = self._client, None
        if client is not None:
            await _in(self._worker, client.close)
        self._worker.shutdown(wait=False)


async def _in(worker: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    # Shielded: a cancelled await must not leave the caller unsure whether its record was cut short.
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(worker, work))
