"""Latency and growth: what an operation costs at 0 to 100,000 turns of history, here and with what people use today.

Recall (in a Python program, as an MCP server, as commands of a shell) beside
polign-recall, LangGraph's SQLite checkpointer and DBOS on SQLite. Each is a
process of its own on a store of its own; they do each operation in turn, so
that a drift of the machine hits all alike. Without the peers (where they
cannot be installed) Recall is measured alone.
"""

from __future__ import annotations

import shutil
import sys
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bench.latency.contenders import Contender, Shell, everybody, opened
from bench.latency.durability import syncs
from bench.latency.tables import Tables
from bench.measure import carried_out, compiled, fdatasync_us, megabytes, scratch
from bench.report import Result, arguments, command, listed, peer_versions, positive, whole
from tests.interop.clients import NotInstalled, clients

GROUPS = (("turn",), ("state",), ("begin", "end"), ("action",), ("brief",))  # what is done together
PEERS = ("polign-recall", "langgraph", "langgraph-checkpoint-sqlite", "dbos")


class Measured(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def operations(self) -> Sequence[str]: ...

    def do(self, operation: str) -> float: ...


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def in_turn(
    contenders: Sequence[Measured], groups: Sequence[Sequence[str]], times: int, seconds: float
) -> dict[tuple[str, str], list[float]]:
    """Milliseconds by contender and operation, each done in turn, ``times`` after a first time that does not count.

    One that has used up its seconds for a group of operations does no more of it.
    """
    taken: dict[tuple[str, str], list[float]] = defaultdict(list)
    spent: dict[tuple[str, Sequence[str]], float] = defaultdict(float)
    for round_ in range(times + 1):
        for group in groups:
            for each in contenders:
                wanted = [operation for operation in group if operation in each.operations]
                if not wanted or spent[each.name, group] > seconds:
                    continue
                begun = time.monotonic()
                figures = [each.do(operation) for operation in wanted]
                spent[each.name, group] += time.monotonic() - begun
                if round_ or spent[each.name, group] > seconds:
                    for operation, figure in zip(wanted, figures, strict=True):
                        taken[each.name, operation].append(figure)
    return taken


def grown(each: Contender, most: int, seconds: float) -> tuple[float, float]:
    """KB of its files when it is closed, and what 1,000 turns add to them, by up to ``most`` turns."""
    before = each.bytes()
    until, turns = time.monotonic() + seconds, 0
    while turns < most and (time.monotonic() < until or not turns):
        each.do("turn")
        turns += 1
    return before / 1000, (each.bytes() - before) / turns


def measure(contenders: Sequence[Contender], shell: Shell, turns: int, given: Namespace, tables: Tables) -> None:
    """Everything at one size of the history, to which it is filled first."""
    times, seconds = given.times, given.seconds
    for each in contenders:
        begun = time.monotonic()
        there = each.fill(turns, given.build)
        taken = time.monotonic() - begun
        say(f"{turns:,} turns: {each.name} has {there:,} after {taken:.0f} s")
        if there < turns:
            tables.shorter(each.name, turns, there)
        each.do("state")  # as an agent does at times: polign-recall reads all turns since
    latencies = in_turn(contenders, GROUPS, times, seconds)
    say(f"{turns:,} turns: resuming")
    tables.latencies(turns, latencies | in_turn(contenders, [("resume",)], times, seconds))
    say(f"{turns:,} turns: growing")
    for each in contenders:
        memory = megabytes(each.processes())
        tables.grown(each.name, turns, *grown(each, min(max(50, turns // 5), 1000), seconds), memory)
    say(f"{turns:,} turns: the shell")
    shell.fill(turns, given.build)
    tables.commands(turns, in_turn([shell], [(each,) for each in shell.operations], times, seconds))


def main(argv: Sequence[str] | None = None) -> Result:
    parser = arguments(__doc__)
    parser.add_argument("--sizes", type=listed(whole()), default="0,1000,10000,100000", help="turns of history, rising")
    parser.add_argument("--times", type=whole(1), default=300, help="how often each operation is done at each size")
    parser.add_argument("--seconds", type=positive, default=6.0, help="the most for one operation of one contender")
    parser.add_argument(
        "--build", type=positive, default=240.0, help="the most seconds to fill one history to one size"
    )
    parser.add_argument("--traced", type=whole(1), default=20, help="of how many of each operation syncs are counted")
    parser.add_argument("--alone", action="store_true", help="without the peers")
    given = parser.parse_args(argv)
    compiled()
    python: Path | None = None
    try:
        python = None if given.alone else clients()
    except NotInstalled as problem:
        say(f"Recall alone: {problem}")
    with scratch() as directory:
        durability = []
        if shutil.which("strace"):
            say("syncs")
            durability = [syncs(everybody(directory / "traced", python, traced=True), given.traced)]
        else:
            say("no strace here: who syncs is not shown")
        contenders, shell = everybody(directory, python), Shell(directory / "shell")
        floor_us = fdatasync_us(directory / "bare", 300, 300)
        tables = Tables([each.name for each in contenders], given.times, given.seconds, floor_us)
        with opened(contenders):
            for turns in given.sizes:
                measure(contenders, shell, turns, given, tables)
    versions = peer_versions(python, PEERS) if python else {}
    result = Result(
        "latency",
        command(),
        tables.tables() + durability,
        figures=tables.figures,
        versions=versions,
    )
    result.show()
    if given.save:
        result.save()
    return result


if __name__ == "__main__":
    carried_out(main)
