"""The states of the protocol's model: what is in two directories, in the bucket, and on its way there."""

from __future__ import annotations

from typing import NamedTuple


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
