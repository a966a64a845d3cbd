"""Ten minutes of everything that goes wrong, at random, on a real store: ``python -m bench.soak --store bucket``.

Eight agents are worked by real processes (six by Python programs, two by shell
scripts below ``recall exec``) that record, and call a world outside. They are
killed, stopped past their leases and continued, taken over, and settled by a
person; on a bucket requests are lost, late, refused and slow, and machines are
changed, lost, and put back to old copies. What each process was told is
written down beside the store, what happened outside too, and every invariant
(``bench/soak/invariants.py``) is checked over the whole history every few
seconds, and over everything once more at the end. The first violation ends the
soak: the directory is kept, and the seed and the plan up to there are shown.

A seed replays the *plan*: which event follows after how many acknowledgements,
to which agent and machine, which fault and how often, how each process is
started, and what each one chooses to do. It cannot replay what the kernel and
the network do in between; so a violation may need several runs of its seed.

Power is not cut here: that a write survives it rests on fsync, which the crash
tests look at.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from bench.measure import carried_out, scratch
from bench.report import Cell, Result, Table, arguments, command, positive
from bench.soak.ground import Ground, Machines
from bench.soak.history import History
from bench.soak.invariants import must_be_refused
from bench.soak.outside import UNSURE
from bench.soak.plan import AGENTS, MACHINES
from bench.soak.supervisor import Supervisor, Violation
from tests.shipping.servers import end_own, own_server

COLUMNS = (
    "store",
    "minutes",
    "seed",
    "processes started",
    "SIGKILLs",
    "stops",
    "takeovers",
    "faults injected",
    "records acknowledged",
    "external effects",
    "settled by a resolver",
    "settled by a person",
    "set aside",
    "invariant checks",
    "violations",
)


def takeovers(history: History) -> Counter[str]:
    """How the leases were taken, by reason, as the logs say it."""
    taken: Counter[str] = Counter()
    for log in history.logs.values():
        taken.update(str(each.body["reason"]) for each in log.entries if each.body.get("event") == "acquired")
    return taken


def settled(history: History) -> Counter[str]:
    """How many interrupted calls were settled, by whom."""
    who: dict[tuple[str, int], str] = {}
    for agent, log in history.logs.items():
        for each in log.entries:
            if each.kind == "action" and each.body.get("status") in ("done", "abandoned"):
                by = "person" if each.body.get("by") else ""
                by = by or ("resolver" if "resolver" in str(each.body.get("resolution", "")) else "")
                who.setdefault((agent, each.seq), by)
    return Counter(who.values())


def soak(ground: Ground, seed: int, seconds: float, say: Callable[[str], None] = lambda line: None) -> Supervisor:
    """One whole soak. Raises Violation."""
    supervisor = Supervisor(ground, seed, seconds, say)
    try:
        supervisor.run()
    except Violation as problem:
        plan = "\n".join(supervisor.done)
        (ground.place / "plan").write_text(f"{plan}\n")
        raise Violation(f"{plan}\nviolation with seed {seed}:\n{problem}") from problem
    return supervisor


def table(done: Supervisor, minutes: float) -> Table:
    """What happened in one soak."""
    taken, who, counts = takeovers(done.history), settled(done.history), done.counts
    others = sum(number for reason, number in taken.items() if reason in ("dead", "expired", "broken"))
    overtaken = [life for life in done.history.lives.values() if life.overtaken]
    had_to = sum(map(must_be_refused, overtaken))
    injected = done.ground.injected
    row = (
        done.ground.store,
        minutes,
        str(done.seed),  # a name, not a number
        counts["processes"],
        counts["SIGKILLs"],
        counts["stops"],
        others,
        injected.total(),
        done.history.acknowledged(),
        done.history.effects(),
        who["resolver"],
        who["person"],
        counts["set aside"],
        done.checks,
        0,
    )
    notes = [
        f"Leases of {done.ground.store} were taken as: " + _counted(taken) + ".",
        f"{len(overtaken)} holders were stopped, overtaken and continued; no record of theirs is behind a successor's.",
        f"{had_to} of them had to be told so before they ended, and were, and wrote no more.",
        f"Done by the plan: {_counted(Counter({k: n for k, n in counts.items() if k not in _COLUMNS_OF_COUNTS}))}.",
    ]
    if injected:
        notes.append(f"Faults: {_counted(injected)}.")
    return Table("soak", COLUMNS, [row], notes)


_COLUMNS_OF_COUNTS = ("processes", "SIGKILLs", "stops", "set aside", "fault")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in counts.most_common())


def _one(store: str, place: Path, given_seed: int, minutes: float, say: Callable[[str], None]) -> Table:
    if store == "sqlite":
        return table(soak(Ground(place), given_seed, minutes * 60, say), minutes)
    server = own_server("seaweedfs", place / "server", "soak")
    try:
        with Machines(place, server) as ground:
            return table(soak(ground, given_seed, minutes * 60, say), minutes)
    finally:
        end_own(place / "server")


def kept(place: Path, name: str) -> Path:
    """The directory of a soak that broke, under a name by which it stays; one that another soak left is not touched."""
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    free = (place.with_name(f".bench-soak-{each}") for each in names)
    return place.rename(next(each for each in free if not each.exists()))


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--store", choices=("sqlite", "bucket", "both"), default="both")
    parser.add_argument("--minutes", type=positive, default=10.0, help="for each store (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=None, help="of the plan; a new one unless given")
    parser.add_argument("--verbose", action="store_true", help="print each event as it comes")
    given = parser.parse_args()
    seed = int.from_bytes(os.urandom(4), "big") if given.seed is None else given.seed
    stores = ("sqlite", "bucket") if given.store == "both" else (given.store,)
    made_by = command() if given.seed is not None else command("--seed", str(seed))
    print(f"seed {seed}: {made_by}", flush=True)
    whole = Table("soak", COLUMNS)
    for store in stores:
        with scratch() as place:
            try:
                found = _one(store, place, seed, given.minutes, print if given.verbose else lambda line: None)
            except Violation as problem:
                print(problem, flush=True)
                print(f"the directory is {kept(place, f'{store}-{seed}')}", flush=True)
                return 1
        whole.rows += found.rows
        whole.notes += found.notes
    whole.notes += [
        "Who has to be told: Python programs that are not killed. Of shells that is not checked.",
        f"A resolver cannot answer one question of {UNSURE}; then the call waits for a person.",
        f"Made by: --minutes {given.minutes:g} --seed {seed}; {AGENTS} agents, {MACHINES} machines.",
    ]
    result = Result("soak", made_by, [whole], _figures(whole))
    result.show()
    if given.save:
        result.save()
    return 0


def _figures(whole: Table) -> dict[str, Cell]:
    """The sums over the stores that a text would quote."""
    quoted = ("SIGKILLs", "stops", "takeovers", "faults injected", "records acknowledged", "violations")
    return {name: sum(int(row[COLUMNS.index(name)]) for row in whole.rows) for name in quoted}


if __name__ == "__main__":
    carried_out(main)
