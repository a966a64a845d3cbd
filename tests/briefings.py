"""The parts of briefings that their tests start from; the seed's example among them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from store.briefing_parts import BriefingParts
from store.values import Action, Pointer, Turn, WorkingState

NOW = datetime(2026, 11, 3, 19, 0, 0, tzinfo=timezone.utc)
KEY = "0123456789abcdef" * 2
EMPTY = BriefingParts(
    agent="billing-migrator",
    working_state=WorkingState(),
    pending=(),
    pending_total=0,
    pointers=(),
    pointers_total=0,
    outputs=(),
    outputs_total=0,
    turns=(),
    turns_total=0,
    now=NOW,
    fresh=False,
)
SEED = replace(
    EMPTY,
    working_state=WorkingState(
        goal="Move billing to the v2 API",
        plan=("find call sites", "migrate them", "run the tests"),
        progress="1 of 12 files migrated",
        last_milestone="call sites found",
        version=2,
        turn_seq=1,
        updated_at="2026-11-03T18:54:43.120000Z",
    ),
    pointers=(Pointer("wip", "git_ref", {"repo": "github.com/acme/billing", "branch": "agent/wip"}),),
    pointers_total=1,
    turns=(Turn(1, "assistant", "12 call sites found; migrating api/checkout.py first."),),
    turns_total=1,
)
SEED_TEXT = """\
You are agent billing-migrator, resuming after your previous process stopped. \
Continue from your notes and last turns below; check only what you have reason to doubt.

## Working state (version 2, step 0, written 2026-11-03T18:54:43Z)
Goal: Move billing to the v2 API
Plan:
1. find call sites
2. migrate them
3. run the tests
Progress: 1 of 12 files migrated
Last milestone: call sites found

## Where your work lives
- wip (git_ref): repo=github.com/acme/billing branch=agent/wip

## Your most recent turns, verbatim
[assistant #1] 12 call sites found; migrating api/checkout.py first."""


def action(seq: int = 7, class_: str = "external", status: str = "unknown", **more: Any) -> Action:
    values: dict[str, Any] = {"tool": "send_email", "key": KEY, "started_at": "2026-11-03T18:54:43Z"}
    return Action(seq=seq, class_=class_, status=status, **(values | more))


def pending(*actions: Action, **more: Any) -> BriefingParts:
    return replace(SEED, pending=actions, pending_total=len(actions), **more)
