"""The same operations for asyncio programs: awaited, off the loop's thread.

Each client has one worker thread, so that the records of one session enter
the log in the order in which the calls were made.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from store.agent import Agent
from store.client import Client
from store.clock import Clock, Random
from store.errors import BadRecord, RecallError, StoreClosed
from store.place import store_directory

if TYPE_CHECKING:
    from store.context import Context

P = ParamSpec("P")
T = TypeVar("T")


class AsyncAgent:
    """``store.agent.Agent``, awaited; use it as an async context manager to release.

    Attributes:
        agent: the one that it stands for; its ``context`` and ``lease_held`` may be read at once.
    """

    def __init__(self, agent: Agent, worker: _Worker) -> None:
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
            return await self._worker.run(functools.partial(method, self.agent, *args, **kwargs))

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
    permit_retry = _awaited(Agent.permit_retry)
    revise_step = _awaited(Agent.revise_step)
    resolve_action = _awaited(Agent.resolve_action)
    amend_action = _awaited(Agent.amend_action)
    fence_of = _awaited(Agent.fence_of)
    pending_actions = _awaited(Agent.pending_actions)
    reconcile = _awaited(Agent.reconcile)
    archive = _awaited(Agent.archive)
    unarchive = _awaited(Agent.unarchive)


def _resuming(
    method: Callable[Concatenate[Client, P], Agent],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, AsyncAgent]]:
    @functools.wraps(method)
    async def call(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncAgent:
        def resume() -> Agent:
            return method(self._open(), *args, **kwargs)

        # Nobody could release an agent that nobody got.
        return AsyncAgent(await self._worker.run(resume, unwanted=Agent.release), self._worker)

    return call


class AsyncClient:
    """``store.client.Client`` for asyncio; use it as an async context manager, or close it.

    It may be shared by tasks: the store is opened once, at the first use. A
    call that was begun is carried out, also when the await of it is cancelled
    (``asyncio.wait_for`` cancels): a record may be there although its caller
    saw a CancelledError, and later calls wait until it is. An agent whose
    ``resume`` was cancelled is released as soon as it is there.

    Args:
        local_dir, agent, ship, lock_timeout, on_bad_record, clock, random: those of ``Client``.

    Raises:
        StoreClosed: by every call after ``close``.
    """

    def __init__(
        self,
        *,
        local_dir: str | os.PathLike[str] | None = None,
        agent: bool = True,
        ship: str | None = None,
        lock_timeout: float = 30.0,
        on_bad_record: Callable[[BadRecord], None] | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        self._make = functools.partial(
            Client,
            local_dir=local_dir,
            agent=agent,
            ship=ship,
            lock_timeout=lock_timeout,
            on_bad_record=on_bad_record,
            clock=clock,
            random=random,
        )
        self._worker = _Worker(lambda: store_directory() if local_dir is None else local_dir)
        self._client: Client | None = None

    def _open(self) -> Client:
        """The client. Called by the worker alone, so that there is never a second one."""
        if self._client is None:
            self._client = self._make()
        return self._client

    async def opened(self) -> Client:
        """The client, opened at the first use. Raises what ``Client`` raises."""
        return await self._worker.run(self._open)

    async def __aenter__(self) -> AsyncClient:
        await self.opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    resume = _resuming(Client.resume)

    async def close(self) -> None:
        """Release what is held and give back the store's files, after the calls that were begun; safe to call twice."""

        def close() -> None:
            if self._client is not None:
                self._client.close()

        await self._worker.end(close)


class _Worker:
    """The one thread of a client, which does its work in the order in which it was given."""

    def __init__(self, path: Callable[[], object]) -> None:
        self._path = path  # of the store, for a refusal
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="recall")
        self._last: Future[object] | None = None

    async def run(self, work: Callable[[], T], *, unwanted: Callable[[T], object] = lambda made: None) -> T:
        """Do ``work`` in the thread.

        Args:
            unwanted: what becomes of its result if the await is cancelled.

        Raises:
            StoreClosed: the worker was ended.
        """
        if self._last is not None:
            raise StoreClosed(path=self._path())
        doing = self._thread.submit(work)
        try:
            # Shielded: a cancelled await must not leave the caller unsure whether its record was cut short.
            return await asyncio.shield(asyncio.wrap_future(doing))
        except asyncio.CancelledError:
            self._discard(doing, unwanted)
            raise

    def _discard(self, doing: Future[T], unwanted: Callable[[T], object]) -> None:
        def discard() -> None:
            if doing.exception() is None:
                with suppress(RecallError):
                    unwanted(doing.result())

        with suppress(RuntimeError):  # ended meanwhile, and with it what the client had
            self._thread.submit(discard)

    async def end(self, last: Callable[[], object]) -> None:
        """Do what was begun, then ``last``, and take no more."""
        if self._last is None:
            self._last = self._thread.submit(last)
            self._thread.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(self._last))
