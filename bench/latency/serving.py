"""The other end of a contender: a program that does one operation at a time as it is told to, and times it.

It reads a JSON value a line, and answers each with one. It is run by other
people's Python too, so it needs nothing but the standard library.

Time is taken here, around the call alone: the pipe to the bench is not in it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

TEXT = "12 call sites found; migrating api/checkout.py first. " * 4  # of a turn: 216 bytes


def message(number: int) -> str:
    """The content of a turn; the same for every contender."""
    return f"{number} {TEXT}"


class Program(Protocol):
    """One contender, on one store."""

    @property
    def turns(self) -> int:
        """How many it has recorded or found."""

    @property
    def operations(self) -> Mapping[str, Callable[[], float | None]]:
        """What it can do, by name; one that has to time itself gives milliseconds."""

    def open(self) -> None:
        """Open the store and resume the agent, to a briefing or a state in hand."""

    def close(self) -> None:
        """Give back whatever ``open`` took."""

    def fill(self, until: int, deadline: float) -> None:
        """Make the history ``until`` turns long, or as long as it gets until ``time.monotonic()`` is ``deadline``."""


def serve(program: Program) -> None:
    """Do what stdin asks for, until it ends."""
    for line in sys.stdin:
        print(json.dumps(_answer(program, *json.loads(line))), flush=True)
    program.close()


def _answer(program: Program, asked: str, *arguments: Any) -> float:
    """The milliseconds of an operation, of ``open`` or of ``close``; of ``fill`` how many turns there are."""
    if asked == "fill":
        until, seconds = arguments
        program.fill(until, time.monotonic() + seconds)
        return program.turns
    call = {"open": program.open, "close": program.close, **program.operations}[asked]
    begun = time.perf_counter()
    itself = call()
    return itself or (time.perf_counter() - begun) * 1e3


def one_by_one(program: Program, until: int, deadline: float) -> None:
    """Fill a history as a user does: a turn at a time."""
    record = program.operations["turn"]
    while program.turns < until and time.monotonic() < deadline:
        record()


class AgentProgram:
    """A program whose agent is one of Recall's or of polign-recall's, which have the same names for the same things.

    Args:
        client: makes one.
    """

    def __init__(self, client: Callable[[], Any]) -> None:
        self._make = client
        self.turns = self._states = self._action = 0
        self.operations: Mapping[str, Callable[[], float | None]] = {
            "turn": self._turn,
            "state": self._state,
            "begin": self._begin,
            "end": self._end,
            "brief": self._brief,
        }

    def open(self) -> None:
        self._client = self._make()
        self._agent = self._client.resume("a")
        self.turns = self._agent.context.turn_seq

    def close(self) -> None:
        self._agent.release()
        self._client.close()

    def fill(self, until: int, deadline: float) -> None:
        one_by_one(self, until, deadline)

    def _turn(self) -> None:
        self.turns += 1
        self._agent.record_turn("assistant", message(self.turns))

    def _state(self) -> None:
        self._states += 1
        self._agent.update_working_state(progress=f"{self._states} files migrated")

    def _begin(self) -> None:
        self._action = self._agent.begin_action("send", "external", {"to": "x"}).seq

    def _end(self) -> None:
        self._agent.end_action(self._action, "done", "sent")

    def _brief(self) -> None:
        self._agent.refresh()
