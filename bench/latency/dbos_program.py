"""A DBOS workflow on SQLite: ``dbos_program DIRECTORY``, under the Python that has it.

The agent is one workflow. A turn is a step of it, whose output DBOS records;
so is a whole action, of which DBOS has no beginning. A change of the working
state is an event of the workflow. To resume is to launch in a new process and
have the workflow recovered, up to where it goes on: DBOS calls it again from
its start, and gives each step what it recorded. So the process has to be
killed before it is opened again.

Each step waits for what it is told. The time of one is from then on until it
is recorded and the next one has begun.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from queue import SimpleQueue
from threading import Event

from dbos import DBOS, SetWorkflowID

from bench.latency.serving import message, one_by_one, serve

STUCK = 60.0  # seconds after which a workflow that does not come on has failed

asked: SimpleQueue[tuple[str, str]] = SimpleQueue()  # what the step that waits has to be, and its content
reached: SimpleQueue[None] = SimpleQueue()  # the workflow waits
recorded: Counter[str] = Counter()  # the steps of the workflow, by kind, replayed ones too
replayed = Event()  # whether all is that was recorded before this process


@DBOS.step()
def step() -> tuple[str, str]:
    replayed.set()  # what is recorded is given back without a call
    reached.put(None)
    return asked.get()


@DBOS.workflow()
def agent() -> None:
    while True:
        kind, content = step()
        recorded[kind] += 1
        if kind == "state":
            if replayed.is_set():
                reached.put(None)
                asked.get()
            DBOS.set_event("progress", content)


class Dbos:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "dbos.sqlite"
        self._states = 0
        self.operations = {"turn": self._turn, "state": self._state, "action": self._action}

    @property
    def turns(self) -> int:
        return recorded["turn"]

    def open(self) -> None:
        fresh = not self._path.exists()
        DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{self._path}", "log_level": "CRITICAL"})
        DBOS.launch()
        if fresh:
            with SetWorkflowID("a"):
                DBOS.start_workflow(agent)
        reached.get(timeout=5 * STUCK)

    def close(self) -> None:
        """Nothing: a workflow that waits is ended with its process."""

    def fill(self, until: int, deadline: float) -> None:
        one_by_one(self, until, deadline)

    def _turn(self) -> None:
        asked.put(("turn", message(self.turns + 1)))
        reached.get(timeout=STUCK)

    def _action(self) -> None:
        asked.put(("action", "sent"))
        reached.get(timeout=STUCK)

    def _state(self) -> float:
        self._states += 1
        asked.put(("state", f"{self._states} files migrated"))
        reached.get(timeout=STUCK)  # a step, which tells a replay that an event comes here
        begun = time.perf_counter()
        asked.put(("go", ""))
        reached.get(timeout=STUCK)
        return (time.perf_counter() - begun) * 1e3


if __name__ == "__main__":
    serve(Dbos(Path(sys.argv[1])))
    os.kill(os.getpid(), signal.SIGKILL)
