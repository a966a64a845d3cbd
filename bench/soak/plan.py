"""What is done to the processes, from a seed: which event, to whom, after how much more was acknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from store.value import value

AGENTS = 8
MACHINES = 3
# Agents 0 to 5 are worked by Python programs, the others by shell scripts; the odd ones have no resolver.
SHELLS = (6, 7)

_LOCAL = {
    "kill": 30,  # SIGKILL; another process follows
    "stop and take over": 12,  # SIGSTOP until another process has the lease, then SIGCONT
    "stop": 5,  # SIGSTOP past the ttl, and nobody else comes
    "contend": 6,  # a second process waits for the lease; then SIGKILL for the first
    "break": 4,  # an operator ends the lease of a live process
    "end": 7,  # SIGTERM
    "person": 10,  # somebody settles what waits for a person
    "look": 4,  # read commands, while others write
}
_REMOTE = {
    "fault": 60,  # something happens to the next requests
    "move": 8,  # SIGKILL, and the next process is on another machine
    "stop and move": 6,  # SIGSTOP until a process on another machine has the lease
    "lose": 3,  # SIGKILL for all of a machine, and its directory is deleted
    "copy": 3,  # a machine's directory is copied, as a backup that is taken of a frozen machine
    "restore": 3,  # SIGKILL for all of a machine, and its directory is put back to the copy
}
FAULTS = (
    "answer lost",
    "request lost",
    "late PUT",
    "503",
    "503, and done",
    "429",
    "409",
    "slow",
    "cut short",
    "no answer",
)


@value
class Event:
    """One thing that is done.

    Attributes:
        gap: how many more acknowledgements there are to be before it.
        agent: whose process it is about.
        machine: which machine, where one is meant.
        fault, times, head_only: what happens to requests, how often, and whether to those for heads alone.
        pick: a number from 0 to 1, for what is left to choose.
    """

    number: int
    gap: int
    kind: str
    agent: int
    machine: int
    fault: str
    times: int
    head_only: bool
    pick: float

    def __str__(self) -> str:
        more = f" ({self.fault}, {self.times} times)" if self.kind == "fault" else ""
        return f"{self.number:5} after {self.gap:3} more: {self.kind}, agent {self.agent}, machine {self.machine}{more}"


@value
class Start:
    """How one process is started.

    Attributes:
        ttl: seconds; the least that is allowed is 1.
        budget: of its briefing, in tokens.
        most: operations, and then it ends by itself.
    """

    seed: int
    ttl: float
    budget: int
    most: int


def events(seed: int, store: str) -> Iterator[Event]:
    """The same ones for the same seed, without end."""
    chance = Random(f"events {seed}")
    weights = {**_LOCAL, **(_REMOTE if store == "bucket" else {})}
    number = 0
    while True:
        number += 1
        [kind] = chance.choices(list(weights), list(weights.values()))
        yield Event(
            number,
            gap=chance.randint(5, 40 if store == "bucket" else 120),
            kind=kind,
            agent=chance.randrange(AGENTS),
            machine=chance.randrange(MACHINES),
            fault=chance.choice(FAULTS),
            times=chance.randint(1, 3),
            head_only=chance.random() < 0.8,
            pick=chance.random(),
        )


def starts(seed: int, agent: int) -> Iterator[Start]:
    """How the processes of one agent are started, one after the other."""
    chance = Random(f"agent {agent} {seed}")
    while True:
        yield Start(
            chance.randrange(2**32),
            ttl=chance.choice((1.0, 1.0, 1.5, 3.0)),
            budget=chance.choice((512, 700, 2_000, 8_000)),
            most=chance.randint(20, 400),
        )
