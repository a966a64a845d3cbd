"""Exhaustive search over the states of a model, breadth first, so that a counterexample is a shortest one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from store.value import value

S = TypeVar("S", bound=Hashable)


class Violation(Exception):
    """A step after which an invariant does not hold."""


@value
class Found(Generic[S]):
    """What a search has found.

    Attributes:
        trace: the steps that lead to a violation, or ().
    """

    states: int
    problem: str
    trace: tuple[str, ...]


Step = tuple[str, Callable[[], S]]


def search(start: S, steps: Callable[[S], Iterator[Step[S]]], *, most: int = 10_000_000) -> Found[S]:
    """Visit every state that can be reached; stop at the first violation.

    Raises:
        AssertionError: there are more than ``most`` states, so nothing would be proven.
    """
    came: dict[S, tuple[S | None, str]] = {start: (None, "")}
    level = [start]
    while level:
        following = []
        for state in level:
            for label, step in steps(state):
                try:
                    new = step()
                except Violation as problem:
                    return Found(len(came), str(problem), (*_trace(came, state), label))
                if new not in came:
                    came[new] = (state, label)
                    following.append(new)
        level = following
        assert len(came) <= most, f"more than {most} states"
    return Found(len(came), "", ())


def _trace(came: dict[S, tuple[S | None, str]], state: S) -> list[str]:
    labels: list[str] = []
    at: S | None = state
    while at is not None:
        at, label = came[at]
        labels.append(label)
    return labels[-2::-1]
