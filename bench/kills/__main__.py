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

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from subprocess import SubprocessError

from bench.kills.contenders import Contender, ours
from bench.kills.peers import KEYS, peers
from bench.kills.programs.world import ORDER, POINTS
from bench.kills.tally import UNSURE, Planned, Tally, keep, result
from bench.kills.trial import HarnessFailed, Kill, calls, run, undisturbed
from bench.measure import carried_out, compiled, scratch
from bench.report import arguments, whole
from store.shipping.bucket import Location
from tests.shipping.servers import server_named

ANYWHERE = Location("anywhere")  # names the contenders with a bucket before there is one
ATTEMPTS = 5  # at a kill at random: a program may have ended before the moment came


def points(contender: Contender, trials: int) -> Iterator[Planned]:
    """Each setup, tool and point, ``trials`` times."""
    for setup, tool, point, number in itertools.product(contender.setups, ORDER, POINTS, range(trials)):
        yield contender, setup, "points", iter([Kill(f"{tool}:{point}", unsure=number % UNSURE == 1)])


def moments(contender: Contender, count: int, seed: int, base: Path) -> Iterator[Planned]:
    """Random moments of an undisturbed run, over the setups in turn; every other kill meets one process alone."""
    lasts = {setup: undisturbed(contender, setup, base / f"lasts-{setup}") for setup in contender.setups if count}
    for number in range(count):
        setup = contender.setups[number % len(contender.setups)]
        random = Random(f"{seed}/{contender.key}/moment/{number}")
        alone, unsure = contender.parts and number % 2, random.randrange(UNSURE) == 0
        kills = (
            Kill(after=random.uniform(0, lasts[setup]), part=random.randrange(1, 100) if alone else 0, unsure=unsure)
            for _ in range(ATTEMPTS)
        )
        yield contender, setup, "moments", kills


def counted(contender: Contender, count: int, seed: int, base: Path) -> Iterator[Planned]:
    """Random system calls of an undisturbed run, over the setups in turn."""
    made = {setup: calls(contender, setup, base / f"calls-{setup}") for setup in contender.setups if count}
    for number in range(count):
        setup = contender.setups[number % len(contender.setups)]
        random = Random(f"{seed}/{contender.key}/call/{number}")
        unsure = random.randrange(UNSURE) == 0
        kills = (Kill(call=random.choice(made[setup]), unsure=unsure) for _ in range(ATTEMPTS))
        yield contender, setup, "calls", kills


def carry_out(planned: Sequence[Planned], base: Path, jobs: int) -> list[Tally]:
    """All of them, ``jobs`` at once; by contender, setup and kind of kill."""
    tallies: dict[tuple[str, str, str], Tally] = {}
    done = itertools.count(1)

    def one(number: int, plan: Planned) -> None:
        contender, setup, kind, kills = plan
        tally = tallies[contender.key, setup, kind]
        for attempt, kill in enumerate(kills):
            try:
                ended = run(contender, setup, kill, base / f"{number}-{attempt}")
            except (HarnessFailed, AssertionError, OSError, SubprocessError) as problem:
                tally.failures.append(f"{contender.key} {setup} {kill}: {problem}")
                continue
            if ended.killed:
                tally.killed.append((kill, ended))
                break
            if kill.point:
                tally.failures.append(f"{contender.key} {setup} {kill}: it ended without having come to its point")
            else:
                tally.missed.append(ended)
        if sys.stderr.isatty():
            print(f"\r{contender.key}: {next(done)} of {len(planned)} ", end="", file=sys.stderr, flush=True)

    for contender, setup, kind, _ in planned:
        tallies.setdefault((contender.key, setup, kind), Tally(contender, setup, kind))
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, range(len(planned)), planned))
    return list(tallies.values())


def contenders(only: Sequence[str], base: Path) -> list[Contender]:
    """Those whose key begins with one of ``only``; what they need is started or installed only if one is among them."""

    def wanted(some: list[Contender]) -> list[Contender]:
        return [each for each in some if each.key.startswith(tuple(only))]

    chosen = wanted(ours())
    if len(wanted(ours(ANYWHERE))) > len(chosen):
        chosen = wanted(ours(server_named("seaweedfs", base).location()))
    if any(each.startswith(tuple(only)) for each in KEYS):
        chosen += wanted(peers())
    return chosen


def known(text: str) -> str:
    """A type of option: how the key of a contender begins."""
    keys = [*(each.key for each in ours(ANYWHERE)), *KEYS]
    if any(each.startswith(text) for each in keys):
        return text
    raise argparse.ArgumentTypeError(f"none begins with {text!r}; there are {', '.join(keys)}")


def part_of(count: int, share: float, contender: Contender) -> int:
    """A contender's part of a count; one for each of its setups at least, if it has a share."""
    return max(len(contender.setups), round(count * share)) if count and share else 0


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument(
        "--only", nargs="+", type=known, default=[""], metavar="KEY", help="contenders whose key begins like this"
    )
    parser.add_argument(
        "--trials", type=whole(), default=20, help="for each setup, tool and point (default: %(default)d)"
    )
    parser.add_argument(
        "--moments",
        type=whole(),
        default=2000,
        help="kills of Recall at a random moment, shared out over its faces and stores (default: %(default)d)",
    )
    parser.add_argument(
        "--calls",
        type=whole(),
        default=500,
        help="kills of it after a random number of system calls, likewise (default: %(default)d)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the kills at random (default: %(default)d)")
    parser.add_argument("--jobs", type=whole(1), help="trials at once; as each contender bears unless given")
    given = parser.parse_args()
    compiled()
    tallies: list[Tally] = []
    with scratch() as base:
        for contender in contenders(given.only, base):
            own = base / contender.key.replace("/", "-")
            in_time, by_calls = contender.share
            planned = [
                *points(contender, given.trials),
                *moments(contender, part_of(given.moments, in_time, contender), given.seed, own),
                *counted(contender, part_of(given.calls, by_calls, contender), given.seed, own),
            ]
            tallies += carry_out(planned, own, given.jobs or contender.jobs)
        told = result(tallies, given.seed)
    told.show()
    failures = [failure for tally in tallies for failure in tally.failures]
    for failure in failures[:5]:
        print(f"\n{failure}", file=sys.stderr)
    if given.save:
        keep(told)
    return int(any(tally.broken() for tally in tallies))


if __name__ == "__main__":
    carried_out(main)
