"""The asyncio front door: one store however many tasks, one order, and an end that is one."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from store.agent import Agent
from store.aio import AsyncAgent, AsyncClient
from store.client import Client
from store.errors import LeaseNotHeld, NotFound, StoreClosed
from tests.keeping import problems

# For the command, which does them through Agent itself.
_OF_THE_COMMAND = set(
    "token refuse_archived take open_run begin_run stepped end_run last_of_step tool_class settle_step".split()
)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def lease_is_free(directory: Path, agent: str) -> bool:
    """Whether another client gets the agent at once."""
    with Client(local_dir=directory) as client, client.resume(agent, defer_lease=True) as other:
        return other.acquire()


def test_it_does_what_the_plain_client_does(tmp_path: Path) -> None:
    """Every operation is awaited, and what it wrote is there for the next process."""

    async def work() -> None:
        async with AsyncClient(local_dir=tmp_path, agent=True) as client, await client.resume("a") as agent:
            assert (agent.id, agent.epoch, agent.lease_held, agent.context.fresh) == ("a", 1, True, True)
            await agent.update_working_state(goal="g", add={"decisions": ["d"]})
            await agent.milestone("m")
            await agent.set_pointer("wip", "env", {"image": "x"})
            turn = await agent.record_turn("user", "hello")
            assert [each.content for each in await agent.recent_turns()] == ["hello"]
            ref = await agent.store_output("o" * 100, ref="big")
            assert (await agent.fetch_output(ref.ref)).content == "o" * 100
            action = await agent.begin_action("t", "external", {"x": 1})
            assert (await agent.end_action(action.seq, "done", "r")).status == "done"
            await agent.begin_action("t", "pure", {"x": 2})
            assert [each.seq for each in await agent.pending_actions()] == [2]
            assert turn.seq == 1
            with pytest.raises(NotFound):
                await agent.fetch_output("none")
        async with AsyncClient(local_dir=tmp_path) as client, await client.resume("a") as agent:
            assert agent.context.working_state.goal == "g"
            assert not agent.context.fresh

    run(work())
    assert problems(tmp_path) == []


def test_it_has_every_operation_of_an_agent() -> None:
    """What the plain agent can do can be awaited, with the same parameters."""
    plain = {name for name, _ in inspect.getmembers(Agent, callable) if not name.startswith("_")}
    awaited = {name for name, _ in inspect.getmembers(AsyncAgent, callable) if not name.startswith("_")}
    assert plain - _OF_THE_COMMAND - awaited == set()
    for name in plain & awaited:
        assert inspect.signature(getattr(Agent, name)) == inspect.signature(getattr(AsyncAgent, name))
    client = inspect.signature(AsyncClient).parameters
    assert list(inspect.signature(Client).parameters) == list(client)


def test_tasks_that_come_first_at_once_share_one_store(tmp_path: Path) -> None:
    """Two resumes of a client that nobody opened have one client under them, and closing it releases both."""

    async def work() -> None:
        client = AsyncClient(local_dir=tmp_path)
        a, b = await asyncio.gather(client.resume("a"), client.resume("b"))
        one, other = await asyncio.gather(client.opened(), client.opened())
        assert one is other
        assert a.agent._backend is b.agent._backend is one.backend
        await client.close()

    run(work())
    assert lease_is_free(tmp_path, "a")
    assert lease_is_free(tmp_path, "b")


def test_calls_enter_the_log_in_their_order(tmp_path: Path) -> None:
    """A hundred tasks that each record a turn: the turns have the order in which the tasks were made."""

    async def work() -> None:
        async with AsyncClient(local_dir=tmp_path) as client, await client.resume("a") as agent:
            turns = await asyncio.gather(*(agent.record_turn("user", str(n)) for n in range(100)))
            assert [each.seq for each in turns] == list(range(1, 101))
            assert [each.content for each in await agent.recent_turns(100)] == [str(n) for n in range(100)]

    run(work())


def test_after_its_end_every_call_says_so(tmp_path: Path) -> None:
    """A closed client, and the agents that it had, raise ``closed``; closing again, at once too, does nothing."""

    async def work() -> None:
        client = AsyncClient(local_dir=tmp_path)
        agent = await client.resume("a")
        pending = asyncio.ensure_future(agent.record_turn("user", "before"))
        await asyncio.sleep(0)  # it is begun
        await asyncio.gather(client.close(), client.close())
        assert (await pending).seq == 1
        for call in (client.resume("b"), client.opened(), agent.record_turn("user", "late"), agent.release()):
            with pytest.raises(StoreClosed) as caught:
                await call
            assert (caught.value.code, caught.value.message) == ("closed", f"store {tmp_path}: this handle is closed")
        await client.close()
        unopened = AsyncClient(local_dir=tmp_path / "none")
        await unopened.close()
        with pytest.raises(StoreClosed):
            await unopened.resume("a")

    run(work())
    assert not (tmp_path / "none").exists()
    assert lease_is_free(tmp_path, "a")


def test_after_its_end_the_plain_client_says_so_too(tmp_path: Path) -> None:
    """``resume`` of a closed client raises ``closed``; an agent that it released has no lease."""
    client = Client(local_dir=tmp_path)
    agent = client.resume("a")
    client.close()
    client.close()
    with pytest.raises(StoreClosed):
        client.resume("b")
    with pytest.raises((StoreClosed, LeaseNotHeld)):
        agent.record_turn("user", "late")


def test_an_agent_that_nobody_waited_for_is_released(tmp_path: Path) -> None:
    """A resume that is cancelled while it waits for another holder takes no lease that stays."""
    holder = Client(local_dir=tmp_path)
    held = holder.resume("a")

    async def work() -> None:
        client = AsyncClient(local_dir=tmp_path)
        await client.opened()
        resuming = asyncio.ensure_future(client.resume("a", wait=30))
        await asyncio.sleep(0.2)
        resuming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await resuming
        await asyncio.to_thread(held.release)
        opened = await client.opened()  # after the resume and what became of it
        assert opened._resumed == set()
        free = await asyncio.to_thread(lease_is_free, tmp_path, "a")
        assert free
        await client.close()

    run(work())
    holder.close()


def test_a_cancelled_write_is_whole_or_was_not_begun(tmp_path: Path) -> None:
    """A turn whose await was cancelled is recorded once, before what comes after it."""

    async def work() -> None:
        async with AsyncClient(local_dir=tmp_path) as client, await client.resume("a") as agent:
            gate = threading.Event()
            waiting = asyncio.ensure_future(agent._worker.run(gate.wait))
            await asyncio.sleep(0)
            recording = asyncio.ensure_future(agent.record_turn("user", "cancelled"))
            await asyncio.sleep(0)
            recording.cancel()
            with pytest.raises(asyncio.CancelledError):
                await recording
            gate.set()
            await waiting
            await agent.record_turn("user", "after")
            assert [each.content for each in await agent.recent_turns()] == ["cancelled", "after"]

    run(work())


def test_the_loop_goes_on_while_a_write_waits(tmp_path: Path) -> None:
    """While another program has the store's write lock, the loop runs other tasks."""
    from store.backends.sqlite.lock import WriteLock

    async def work() -> None:
        async with AsyncClient(local_dir=tmp_path) as client, await client.resume("a") as agent:
            lock = WriteLock(str(tmp_path), 5)
            with lock:
                recording = asyncio.ensure_future(agent.record_turn("user", "x"))
                for _ in range(20):
                    await asyncio.sleep(0.01)
                assert not recording.done()
            assert (await recording).seq == 1
            lock.close()

    run(work())
