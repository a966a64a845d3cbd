"""What a briefing is made of, and how large it may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from datetime import datetime

from store.text import check_count
from store.value import value
from store.values import Action, OutputRef, Pointer, Turn, WorkingState

LEAST_BUDGET = 512  # tokens: room for every section's heading and count, whatever is stored
DEFAULT_BUDGET = 8000
MOST_BUDGET = 10_000_000


@value
class BriefingParts:
    """What a briefing is made of, as the store held it at one moment.

    Attributes:
        working_state: its newest version; version 0 when there is none.
        pending: unfinished actions, oldest first, at most MOST_ACTIONS.
        pointers: by name.
        outputs: newest first.
        turns: the newest ones of the agent, oldest first.
        pending_total, pointers_total, outputs_total, turns_total: how many there are in all.
        turns_pruned: how many there were before the oldest that is still there.
        now: aware; ages are told against it.
        viewer: the incarnation that reads; actions that it has started are running, not interrupted.
        still_running: ``pid N`` by the seq of an action whose command outlived its runner.
        may_run: by the seq of a call that may still run on a machine that cannot be asked, until when and where.
        fresh: the log has nothing but lease records.
        at: the lsn of an earlier moment that the parts are of, or None for the present.
    """

    agent: str
    working_state: WorkingState
    pending: tuple[Action, ...]
    pending_total: int
    pointers: tuple[Pointer, ...]
    pointers_total: int
    outputs: tuple[OutputRef, ...]
    outputs_total: int
    turns: tuple[Turn, ...]
    turns_total: int
    now: datetime
    fresh: bool
    viewer: str = ""
    still_running: Mapping[int, str] = field(default_factory=dict)
    may_run: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    at: int | None = None
    turns_pruned: int = 0


def check_budget(value: object) -> int:
    """A token budget, or InvalidInput."""
    return check_count("token_budget", value, least=LEAST_BUDGET, most=MOST_BUDGET)
