"""What was measured at each size of a history, as tables."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from bench.report import Cell, Table

OPERATIONS = {
    "turn": "record a turn",
    "state": "update the working state",
    "begin": "begin an action",
    "end": "end it",
    "action": "begin and end",
    "brief": "brief",
    "resume": "resume",
}
NOTES = (
    (
        "A turn has 220 bytes. turns: what the history has before; it was made one turn at a time, but for LangGraph's"
        " beyond 1,000, which is a single step: each step stores the whole state again."
    ),
    (
        "recall, MCP and polign-recall: polign-recall's Python client, with the one's server and with the other's."
        " In recall, Python each call is durable when it returns; there is no other form."
    ),
    (
        'LangGraph: a step of a running graph that appends a message, or changes another field, with durability="sync";'
        " to resume is to connect, compile and get_state. It has no actions and no briefing."
    ),
    (
        "DBOS: a step of a running workflow, or set_event for the state. An action is one step, of which nothing is"
        " recorded before it has run. To resume is to launch in a new process, imports excluded, and to replay the"
        " workflow; DBOS looks once a second for what is to be recovered."
    ),
    (
        "recall and polign-recall resume in a process that runs: open the store, take the lease, settle, read the"
        " briefing. The working state is at most some hundred turns old, which matters to polign-recall."
    ),
)
SHORTER = "(turns): the history was not built in the time for it, and has so many in place of those of the row."
GROWTH_NOTES = (
    "KB: all files once it is closed, after what was done at this size. polign-recall's database server goes on.",
    "Memory: PSS of all the processes that it needs, with the Python program that calls it.",
)

Taken = Mapping[tuple[str, str], Sequence[float]]  # milliseconds, by contender and operation


class Tables:
    """They fill as the sizes are measured.

    Attributes:
        figures: what a text may quote: ``NAME OPERATION at TURNS`` is a p50 in milliseconds.
    """

    def __init__(self, names: Sequence[str], times: int, seconds: float, floor_us: float) -> None:
        self._names, self._times, self._seconds, self._floor_us = names, times, seconds, floor_us
        self._latency = Table("latency", ["operation", "turns", *names])
        self._growth = Table("latency-growth", ["", "turns", "KB", "KB more per 1,000 turns", "memory, MB"])
        self._shell = Table("latency-shell", ["command", "turns", "p50 ms", "p99 ms", "times"])
        self.figures: dict[str, Cell] = {}
        self._rows: dict[str, list[Sequence[Cell]]] = defaultdict(list)
        self._fewer: list[str] = []
        self._shorter: dict[tuple[str, int], int] = {}

    def shorter(self, name: str, turns: int, there: int) -> None:
        """A history that was not built in time, so that a shorter one stands in its place."""
        self._shorter[name, turns] = there

    def latencies(self, turns: int, taken: Taken) -> None:
        """Of the contenders at one size."""
        whole = dict(taken)
        for name in self._names:
            if (name, "begin") in whole:
                pairs = zip(whole[name, "begin"], whole[name, "end"], strict=True)
                whole[name, "action"] = [sum(pair) for pair in pairs]
        for operation, label in OPERATIONS.items():
            cells: list[Cell] = [label, turns]
            for name in self._names:
                figures = whole.get((name, operation))
                if not figures:
                    cells.append("-")
                    continue
                p50 = statistics.median(figures)
                cells.append(f"{p50:,.2f}" + (f" / {percentile(figures, 0.99):,.2f}" if len(figures) > 1 else ""))
                if (name, turns) in self._shorter:
                    cells[-1] = f"{cells[-1]} ({self._shorter[name, turns]:,} turns)"
                self.figures[f"{name} {operation} at {turns}"] = round(p50, 3)
                if len(figures) < self._times and operation not in ("begin", "end"):
                    self._fewer.append(f"{name}, {label} at {turns:,}: {len(figures)}")
            self._rows[operation].append(cells)

    def grown(self, name: str, turns: int, kilobytes: float, more: float, megabytes: float) -> None:
        """What a contender takes at one size, and how much more 1,000 turns add."""
        there = self._shorter.get((name, turns), turns)
        self._growth.rows.append((name, there, round(kilobytes), round(more, 1), round(megabytes, 1)))
        self.figures[f"{name} KB per 1,000 turns at {turns}"] = round(more, 1)
        self.figures[f"{name} MB at {turns}"] = round(megabytes, 1)

    def commands(self, turns: int, taken: Taken) -> None:
        """Of the shell at one size."""
        for (_, command), figures in taken.items():
            p50, p99 = statistics.median(figures), percentile(figures, 0.99)
            self._shell.rows.append((command, turns, round(p50, 1), round(p99, 1), len(figures)))
            self.figures[f"{command} at {turns}"] = round(p50, 1)

    def tables(self) -> list[Table]:
        self._latency.rows = [row for operation in OPERATIONS for row in self._rows[operation]]
        counted = (
            f"p50 / p99 in milliseconds, of {self._times} times each; of fewer where they took more than"
            f" {self._seconds:g} s together: {'; '.join(self._fewer) or 'nowhere'}."
        )
        floor = f"A bare write of 300 bytes with an fdatasync took {self._floor_us / 1000:.2f} ms here, on the mean."
        self._latency.notes = [counted, *([SHORTER] if self._shorter else []), floor, *NOTES]
        self._growth.notes = list(GROWTH_NOTES)
        self._shell.notes = ["Whole processes, from start to end; beside what none can be faster than."]
        return [self._latency, self._growth, self._shell]


def percentile(figures: Sequence[float], share: float) -> float:
    """The smallest figure that at least this share of them do not exceed."""
    return sorted(figures)[max(0, -int(-share * len(figures) // 1) - 1)]
