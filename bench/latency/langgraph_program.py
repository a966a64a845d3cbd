"""A LangGraph graph on its SQLite checkpointer: ``langgraph_program DIRECTORY``, under the Python that has it.

A turn is one step of a running graph: its node appends a message to the
state, which the framework reduces with ``add_messages`` and checkpoints.
``durability="sync"`` has the step wait for that. A change of the working state
is a step that writes another field of the state.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

os.environ["LANGSMITH_TRACING"] = "false"

from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from bench.latency.serving import message, one_by_one, serve

CONFIG = {"configurable": {"thread_id": "a"}, "recursion_limit": 10**9}
ONE_BY_ONE = 1000  # turns; beyond, as each step stores the whole state again, they are added by a single step


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]
    progress: str


class LangGraph:
    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "checkpoints.sqlite"
        self.turns = self._states = 0
        self._next: dict[str, Any] = {}  # what the node is going to return
        self._stream: Iterator[Any] | None = None
        builder = StateGraph(State)
        builder.add_node("agent", lambda state: self._next)
        builder.add_edge(START, "agent")
        builder.add_edge("agent", "agent")
        self._builder = builder
        self.operations = {"turn": self._turn, "state": self._state}

    def open(self) -> None:
        self._connection = sqlite3.connect(self._path, check_same_thread=False)
        self._graph = self._builder.compile(checkpointer=SqliteSaver(self._connection))
        self.turns = len(self._graph.get_state(CONFIG).values.get("messages", ()))

    def close(self) -> None:
        self._stream = None
        self._connection.close()

    def fill(self, until: int, deadline: float) -> None:
        one_by_one(self, min(until, ONE_BY_ONE), deadline)
        if self.turns < until:
            self._step({"messages": [AIMessage(message(n + 1)) for n in range(self.turns, until)]})
            self.turns = until

    def _step(self, update: dict[str, Any]) -> None:
        self._next = update
        if self._stream is None:
            start = None if self.turns > 0 else {"messages": [], "progress": ""}
            self._stream = self._graph.stream(start, CONFIG, stream_mode="updates", durability="sync")
        next(self._stream)

    def _turn(self) -> None:
        self._step({"messages": [AIMessage(message(self.turns + 1))]})
        self.turns += 1

    def _state(self) -> None:
        self._states += 1
        self._step({"progress": f"{self._states} files migrated"})


if __name__ == "__main__":
    serve(LangGraph(Path(sys.argv[1])))
