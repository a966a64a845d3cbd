"""One agent in many threads and signal handlers, and records that cannot be read."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from recall_cli import Client
from store.agent import Agent
from store.errors import NeedsSettling, RecallError
from store.values import Action
from tests.engine import AGENT, SetClock, verified


def begin(agent: Agent, class_: str = "external", args: Any = "a", **options: Any) -> Action:
    return agent.begin_action("deploy", class_, args, step="deploy-v2", **options)


def test_threads_share_an_agent(tmp_path: Path) -> None:
    """Twenty-four threads write all kinds through one agent: nothing is lost, nothing fails, all is dense."""
    problems: list[RecallError] = []
    with Client(local_dir=tmp_path / "store") as client:
        agent = client.resume(AGENT)
        ended: list[int] = []

        def work(number: int) -> None:
            try:
                for each in range(4):
                    agent.record_turn("user", f"{number} {each}" + "x" * (9000 if each == 3 else 0))
                    action = agent.begin_action("t", "pure", "y" * (9000 if each == 3 else 1))
                    agent.update_working_state(step=number)
                    agent.set_pointer(f"p-{number}", "object", {"uri": str(each)})
                    agent.end_action(action.seq, "done", "z")
                    agent.recent_turns()
                ended.append(number)
            except RecallError as problem:
                problems.append(problem)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(24)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert problems == []
        assert len(ended) == 24
        counters = client.backend.counters(AGENT)
        assert (counters.turns, counters.actions, counters.version) == (96, 96, 96)
        assert agent.pending_actions() == []
        assert len(agent.pointers()) == 24
    verified(tmp_path / "store")


@pytest.mark.parametrize(("class_", "told"), [("external", 1), ("idempotent", 8)])
def test_threads_that_begin_one_step_begin_one_action(agent: Agent, class_: str, told: int) -> None:
    """Of eight threads that begin the same step at once one is told to run it, where it must not run twice."""
    seen: list[int] = []
    refused: list[str] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        try:
            seen.append(begin(agent, class_).seq)
        except NeedsSettling as problem:
            refused.append(problem.code)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert seen == [1] * told
    assert refused == ["still_running"] * (8 - told)


def test_a_signal_handler_that_writes_in_the_middle_of_a_write_is_refused(tmp_path: Path) -> None:
    """A write inside the same thread's transaction does not break it: the inner is refused, the outer lands whole."""
    inner: list[str] = []
    agents: list[Agent] = []

    class Interrupting(SetClock):
        armed = False

        def now(self) -> Any:
            if self.armed:
                self.armed = False
                try:
                    agents[0].record_turn("user", "from the handler")
                except RecallError as problem:
                    inner.append(problem.code)
            return super().now()

    clock = Interrupting()
    with Client(local_dir=tmp_path / "store", clock=clock) as client:
        agent = client.resume(AGENT)
        agents.append(agent)
        clock.armed = True
        agent.record_turn("user", "outer")
        assert inner == ["store_busy"]
        assert [each.content for each in agent.recent_turns()] == ["outer"]
    verified(tmp_path / "store")


def test_a_bad_record_bricks_nothing(tmp_path: Path) -> None:
    """A record that cannot be read is named once, and the others and the briefing are there."""
    import contextlib
    import sqlite3

    with Client(local_dir=tmp_path / "store") as client, client.resume(AGENT) as agent:
        for each in range(3):
            agent.record_turn("user", f"turn {each}")
    with contextlib.closing(sqlite3.connect(tmp_path / "store" / "recall.db")) as connection:
        connection.execute("DROP TRIGGER records_no_update")
        (line,) = connection.execute("SELECT line FROM records WHERE kind = 'turn' AND seq = 2").fetchone()
        broken = json.dumps({**json.loads(line), "body": "{not json"})
        connection.execute("UPDATE records SET line = ? WHERE kind = 'turn' AND seq = 2", (broken,))
        connection.commit()
    told: list[str] = []
    with Client(local_dir=tmp_path / "store", on_bad_record=lambda problem: told.append(problem.message)) as client:
        agent = client.resume(AGENT)
        assert [each.content for each in agent.recent_turns()] == ["turn 0", "turn 2"]
        assert "turn 2" in agent.context.briefing
        assert agent.record_turn("user", "goes on").seq == 4
    assert any("turn:2" in each for each in told)
