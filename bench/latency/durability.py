"""Who has synced before it answers: its fsync and fdatasync, counted by strace at the moment of the answer."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from bench.latency.contenders import Contender, opened
from bench.latency.tables import OPERATIONS
from bench.report import Table

SETTLES = 0.3  # seconds after which a sync that was put off has come
FIRST = 2  # times that do not count: a file that is new has more to sync
WRITES = ("turn", "state", "begin", "end", "action")


def syncs(contenders: Sequence[Contender], times: int) -> Table:
    """How many syncs an operation has made when it answers, and how many come afterwards.

    Args:
        contenders: traced, and not running.
    """
    table = Table("latency-durability", ["", "operation", "syncs before it answers", "later", "synced first"])
    for contender in contenders:
        wanted = [each for each in contender.operations if each in WRITES]
        before: dict[str, int] = defaultdict(int)
        later: dict[str, int] = {}
        with opened([contender]):
            for round_ in range(FIRST + times):
                for each in wanted:
                    start = _count(contender.log)
                    contender.do(each)
                    answered = _count(contender.log)
                    if round_ >= FIRST:
                        before[each] += answered - start
                    if round_ == FIRST + times - 1:
                        time.sleep(SETTLES)
                        later[each] = _count(contender.log) - answered
        for each in wanted:
            mean = before[each] / times
            table.rows.append(
                (contender.name, OPERATIONS[each], round(mean, 1), later[each], "yes" if mean >= 1 else "no")
            )
    table.notes = [
        f"fsync and fdatasync of all its processes, seen by strace: the mean of {times} operations of a short history.",
        f"later: in the {SETTLES:g} s after the answer of the last one.",
    ]
    return table


def _count(log: Path) -> int:
    """How many have ended. strace writes the line of each before it lets the call return."""
    return sum(line.endswith(" = 0") for line in log.read_text().splitlines())
