"""The kill test: what SIGKILL does to an agent that looks a customer up, saves an invoice and sends an email.

A program is killed once, then started again until it has finished; effects are
counted in files outside of its store. Points: the call is recorded and has no
effect yet; it had its effect and has not returned; it has returned, and the
next step has not begun. Then at random moments, and after a random number of
system calls.

    python -m bench.kills                               all of it
    python -m bench.kills --only recall/shell --trials 2 --moments 10 --calls 0
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.kills.contenders import SETUPS, TITLES, Contender, ours
from bench.kills.programs.world import ORDER, POINTS
from bench.kills.trial import Ended, HarnessFailed, Kill, calls, chance, run, undisturbed
from bench.measure import compiled, scratch
from bench.report import RESULTS, Result, Table, arguments, load

COLUMNS = ("program", "face", "store", "tools", "killed", *"trials duplicates losses waiting finished missed".split())
KINDS = {"points": "at a point", "moments": "at a moment", "calls": "after some calls"}


@dataclass
class Tally:
    """The trials of one contender in one setup with one kind of kill."""

    contender: Contender
    setup: str
    kind: str
    ended: list[Ended] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def row(self) -> list[str | int]:
        killed = [each for each in self.ended if each.killed]
        return [
            *(self.contender.name, self.contender.face, self.contender.store),
            *(TITLES.get(self.setup, self.setup), KINDS[self.kind]),
            len(killed),
            sum(each.duplicates for each in self.ended),
            sum(each.losses for each in self.ended),
            sum(each.waited for each in killed),
            sum(not each.waited for each in killed),
            len(self.ended) - len(killed) + len(self.failures),
        ]


Planned = tuple[Contender, str, str, Kill]


def points(contender: Contender, trials: int) -> Iterator[Planned]:
    """Each setup, tool and point, ``trials`` times."""
    for setup, tool, point, _ in itertools.product(contender.setups, ORDER, POINTS, range(trials)):
        yield contender, setup, "points", Kill(f"{tool}:{point}")


def moments(contender: Contender, count: int, seed: int, base: Path) -> Iterator[Planned]:
    """Random moments of an undisturbed run, over the setups in turn; every other kill meets one process alone."""
    lasts = {setup: undisturbed(contender, setup, base / f"lasts-{setup}") for setup in contender.setups}
    for number in range(count):
        setup = contender.setups[number % len(contender.setups)]
        random = chance(seed, contender.key, "moment", number)
        part = random.randrange(1, 100) if contender.parts and number % 2 else 0
        yield contender, setup, "moments", Kill(after=random.uniform(0, lasts[setup]), part=part)


def counted(contender: Contender, count: int, seed: int, base: Path) -> Iterator[Planned]:
    """Random system calls of an undisturbed run, over the setups in turn."""
    made = {setup: calls(contender, setup, base / f"calls-{setup}") for setup in contender.setups}
    for number in range(count):
        setup = contender.setups[number % len(contender.setups)]
        yield contender, setup, "calls", Kill(calls=chance(seed, contender.key, "calls", number).choice(made[setup]))


def carry_out(planned: Sequence[Planned], base: Path, *, jobs: int) -> list[Tally]:
    """All of them, ``jobs`` at once, in the order of the tallies' first trials."""
    tallies: dict[tuple[str, str, str], Tally] = {}
    done = itertools.count(1)

    def one(number: int, plan: Planned) -> None:
        contender, setup, kind, kill = plan
        tally = tallies[contender.key, setup, kind]
        try:
            tally.ended.append(run(contender, setup, kill, base / str(number)))
        except (HarnessFailed, AssertionError) as problem:
            tally.failures.append(str(problem))
        print(f"\r{contender.key}: {next(done)} of {len(planned)} ", end="", file=sys.stderr, flush=True)

    for contender, setup, kind, _ in planned:
        tallies.setdefault((contender.key, setup, kind), Tally(contender, setup, kind))
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, range(len(planned)), planned))
    print(file=sys.stderr)
    return list(tallies.values())


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="*", default=[""], help="contenders whose key begins like this")
    parser.add_argument("--trials", type=int, default=20, help="for each setup, tool and point")
    parser.add_argument("--moments", type=int, default=2000, help="kills at a random moment, over all of Recall's faces")
    parser.add_argument("--calls", type=int, default=500, help="kills after a random number of system calls, likewise")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=0, help="trials at once; as each contender bears unless given")
    given = parser.parse_args()
    compiled()
    tallies: list[Tally] = []
    with scratch() as base:
        chosen = [each for each in contenders(base) if each.key.startswith(tuple(given.only))]
        for contender in chosen:
            own = base / contender.key.replace("/", "-")
            plan = [
                *points(contender, given.trials),
                *moments(contender, round(given.moments * contender.moments), given.seed, own),
                *counted(contender, round(given.calls * contender.calls), given.seed, own),
            ]
            tallies += carry_out(plan, own, jobs=given.jobs or contender.jobs)
    result = report(tallies, given.seed)
    result.show()
    failures = [failure for tally in tallies for failure in tally.failures]
    print(*failures[:5], sep="\n", file=sys.stderr)
    if given.save:
        result.save()
    return 1 if failures else 0


def report(tallies: list[Tally], seed: int) -> Result:
    raise NotImplementedError


def contenders(base: Path) -> list[Contender]:
    from tests.shipping.servers import server_named

    return ours(server_named("seaweedfs", base / "server").location)


if __name__ == "__main__":
    sys.exit(main())
