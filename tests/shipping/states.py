"""The states of the protocol's model: what is in two directories, in the bucket, and on its way there; its mutants."""

from __future__ import annotations

from typing import NamedTuple

from store.lease import Fence, LeaseRequest
from store.process import Process
from tests.shipping.chains import AGENT

TTL_MS = 60_000
NOBODY = Process("host", "boot", "", 1, "1")


class Place(NamedTuple):
    """A directory: the id of its store, its log, the head that it last knew of, and its lease row."""

    id: int
    log: int
    mark: int
    epoch: int
    inc: int


class Actor(NamedTuple):
    """A process that is still running.

    Attributes:
        phase: ``want`` (the lease), ``take`` (its takeover is sent), ``idle`` (it has the lease), ``push`` (sent),
            ``parked`` (released; it may take the lease again if nobody acted meanwhile).
        new: the head whose PUT it waits for.
        mine: bits: the intents whose barrier it waits for.
    """

    place: int
    inc: int
    epoch: int
    phase: str
    new: int
    mine: int


class State(NamedTuple):
    """One state.

    Attributes:
        flight: the PUTs that may yet land: the head that each expects, and its own.
        sent, began: how many PUTs were sent, how many incarnations began.
        intents: lsn and epoch of each that was ever appended.
        durable: the longest log that was ever called durable.
        ran, declared: bits: intents whose tool was started; that somebody may have called never executed.
        top: the highest epoch that there was.
    """

    head: int
    flight: tuple[tuple[int, int], ...]
    sent: int
    began: int
    intents: tuple[tuple[int, int], ...]
    places: tuple[Place, Place]
    actors: tuple[Actor, ...]
    copied: bool
    crashed: bool
    durable: int
    ran: int
    declared: int
    top: int


class Config(NamedTuple):
    """How much may happen."""

    incarnations: int = 3
    puts: int = 3
    intents: int = 2
    crashes: bool = True
    copies: bool = True


def lineage(number: int) -> str:
    return f"{number:032x}"


def incarnation(number: int) -> str:
    return f"{number:032x}"


def request(inc: int, again: Fence | None = None) -> LeaseRequest:
    return LeaseRequest(AGENT, incarnation(inc), "holder", NOBODY, TTL_MS, again)


def bits(mask: int) -> list[int]:
    return [each for each in range(mask.bit_length()) if mask >> each & 1]


def placed(s: State, at: int, place: Place) -> State:
    return s._replace(places=(place, s.places[1]) if at == 0 else (s.places[0], place))


def moved(s: State, a: Actor) -> State:
    return s._replace(actors=tuple(sorted((*s.actors, a))))


# Each takes a rule out, by its number.
MUTANTS = {
    "release deletes the head": "1",
    "a record that a GET did not show is dropped": "2",
    "a record is looked for by lsn, not by hash": "3",
    "a barrier waits for an lsn, not for its record": "3",
    "landed but fenced counts as durable": "4",
    "a copied directory goes on under the same epoch": "5",
    "a tail is carried whatever its epoch": "5",
    "an epoch is granted without the bucket": "14",
    "what was appended during a takeover stays": "16",
    "a lapsed lease is taken again after a copy has acted": "15",
}

# What it takes for a mutant to go wrong, where that is not one intent in the usual configuration.
NEEDS = {
    "": Config(),
    "a record is looked for by lsn, not by hash": Config(2, 3, 2, crashes=False),
    "a barrier waits for an lsn, not for its record": Config(1, 4, 1, crashes=False, copies=False),
}
