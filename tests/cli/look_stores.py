"""Stores for the tests of the look commands, and the commands that look."""

from __future__ import annotations

from pathlib import Path

from store.backends.sqlite import SqliteBackend
from store.client import Client
from store.keeper import Keeper
from store.records import ACTION, NEXT, TURN, Draft
from store.values import Action, Turn

AGENT = "billing-migrator"

# Every look command, with the arguments that make it show something of ``seeded``.
LOOKS = (
    ("agents", "list"),
    ("agents", "show", AGENT),
    ("briefing", AGENT),
    ("state", "show", AGENT),
    ("state", "history", AGENT),
    ("state", "diff", "-a", AGENT),
    ("turns", "list", AGENT),
    ("turns", "show", "-a", AGENT, "1"),
    ("pointers", "list", AGENT),
    ("outputs", "list", AGENT),
    ("outputs", "get", "-a", AGENT, "report"),
    ("actions", "list"),
    ("actions", "list", AGENT, "--pending"),
    ("actions", "show", "-a", AGENT, "1"),
    ("log", AGENT),
    ("records", AGENT),
)


def seed(directory: Path) -> None:
    """The example of the specification, in a store of its own."""
    with Client(local_dir=directory) as client, client.resume(AGENT, holder="worker") as agent:
        agent.update_working_state(
            goal="Move billing to the v2 API", plan=["find call sites", "migrate them", "run the tests"]
        )
        agent.set_pointer("wip", "git_ref", {"repo": "github.com/acme/billing", "branch": "agent/wip"})
        agent.record_turn("assistant", "12 call sites found; migrating api/checkout.py first.")
        agent.milestone("call sites found", progress="1 of 12 files migrated")


def seed_all(directory: Path) -> None:
    """The same agent with a record of every kind, and with texts that try to act."""
    seed(directory)
    with Client(local_dir=directory) as client, client.resume(AGENT, holder="worker") as agent:
        agent.store_output("line one\r\nline two\x1b[31m\u202e", tool="sh", summary="two lines", ref="report")
        agent.set_pointer("gone", "object", {"uri": "s3://bucket/key"})
        agent.remove_pointer("gone")
        agent.record_turn("user", "see\nthis \x1b]0;owned\x07 [bold]now[/bold]", message_id="m-1")
        agent.begin_action("send_email", "external", {"to": "a@example.com"})
        done = agent.begin_action("deploy", "idempotent", {"v": 2}, step="deploy-v2")
        agent.end_action(done.seq, "done", result="R" * 9000)
        agent.end_action(agent.begin_action("lint", "pure").seq, "failed", error="exit 1")


def grow(directory: Path, agent: str, turns: int, actions: int = 0) -> None:
    """An agent with many turns and finished actions, written in large batches."""
    backend = SqliteBackend(directory)
    keeper = Keeper(backend, agent, ttl_ms=600_000, holder="worker", background=False)
    keeper.acquire()
    turn = Turn(0, "assistant", "x" * 200).body()
    action = Action(0, "tool", "pure", "0" * 32, "done", started_at="2026-01-01T00:00:00Z").body()
    drafts = [Draft(TURN, turn, seq=NEXT)] * turns + [Draft(ACTION, action, seq=NEXT)] * actions
    for at in range(0, len(drafts), 2500):
        backend.append(keeper.fence, drafts[at : at + 2500])
    keeper.release()
    backend.close()
