"""``recall lease``: who may act for an agent."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from recall_cli.exits import READS, WRITES
from recall_cli.look import break_of, labelled
from recall_cli.options import AgentArgument, AgentOption, Globals, Noun
from recall_cli.session import operator, reading, require, writing
from recall_cli.values import age
from store import checks
from store.access import break_lease
from store.clock import Instant, rfc3339
from store.errors import NotFound
from store.lease import Lease
from store.process import provably_dead, stopped
from store.text import check_agent, check_text

app = Noun("Who may act for an agent.", default="show")


@app.verb("show", exits=READS)
def show(ctx: typer.Context, agent: AgentArgument) -> None:
    """Show who holds an agent's lease, until when, and whether that process lives.

    The state is held, expired, dead (its process has ended) or released; all
    but held are free to be taken.
    """
    here = Globals.of(ctx)
    check_agent(agent)
    with reading(here) as backend:
        require(backend, agent)
        lease = backend.lease(agent)
        assert lease is not None
        value = row_of(lease, backend.clock.now())
        value["broken"] = break_of(backend, agent, lease.epoch)
    here.out.document(value, lambda: labelled(_shown(value)))
    if value["stopped"]:
        here.out.message(
            "its holder is stopped by a signal: continue or end that process",
            f"or fence it: recall lease break -a {agent} --reason TEXT",
        )


@app.verb("break", exits=WRITES, agent_first=True)
def break_(
    ctx: typer.Context,
    agent: AgentOption,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept in the log.")],
    by: Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who decided it [default: user@host].")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """End an agent's lease, whoever holds it.

    Its holder is fenced: nothing that it writes from then on enters the log,
    though a tool that it is running goes on. The next resume settles what it
    left open.
    """
    here = Globals.of(ctx)
    check_agent(agent)
    reason = check_text("--reason", here.values.read("--reason", reason), limit=checks.REASON_LIMIT, empty=False)
    by = check_text("--by", operator() if by is None else by, limit=checks.NAME_LIMIT * 2, empty=False)
    with reading(here) as backend:
        require(backend, agent)
        lease = backend.lease(agent)
        assert lease is not None
        before = row_of(lease, backend.clock.now())
    if before["state"] == "released":
        raise NotFound(
            what="lease to break:",
            name=f"{agent} is released (epoch {lease.epoch})",
            hint=f"it is free to be taken: recall resume {agent}",
        )
    question = f"end the lease of {agent}, held by {lease.holder} ({before['state']}, epoch {lease.epoch})?"
    if not here.out.confirm(question, yes=yes, first=f"recall lease show {agent}"):
        here.out.message("nothing was changed")
        return
    with writing(here) as backend:
        acquired = break_lease(backend, agent, by=by, why=reason)
    fenced = acquired.previous or lease
    value = {
        "agent_id": agent,
        "epoch": acquired.lease.epoch,
        "fenced": {"epoch": fenced.epoch, "holder": fenced.holder, "pid": fenced.process.pid},
        "by": by,
        "reason": reason,
    }
    text = (
        f"lease of {agent} is broken: {fenced.holder} (epoch {fenced.epoch}) is fenced by epoch {acquired.lease.epoch}"
    )
    here.out.change(value, text, f"recall resume {agent}")


def row_of(lease: Lease, now: Instant) -> dict[str, Any]:
    """A lease as JSON has it; ``state`` says what the next contender would meet."""
    state: str = lease.state
    if state == "held" and provably_dead(lease.process):
        state = "dead"
    elif state == "held" and not lease.live(now):
        state = "expired"
    left_ms = lease.left_ms(now)
    return {
        "agent_id": lease.agent,
        "state": state,
        "epoch": lease.epoch,
        "holder": lease.holder,
        "host": lease.process.host,
        "pid": lease.process.pid,
        "stopped": state == "held" and stopped(lease.process.pid),
        "acquired_at": lease.acquired_at,
        "expires_at": rfc3339(now.wall_us + left_ms * 1000) if lease.state == "held" else "",
        "ttl": lease.ttl_ms / 1000,
        "left": max(0, left_ms) / 1000 if lease.state == "held" else 0,
        "lineage": lease.lineage,
        "incarnation": lease.incarnation,
    }


def _shown(value: dict[str, Any]) -> list[tuple[str, str]]:
    rows = [
        ("agent", value["agent_id"]),
        ("state", value["state"] + (" (the process is stopped)" if value["stopped"] else "")),
        ("epoch", str(value["epoch"])),
        ("holder", value["holder"]),
        ("process", f"{value['pid']} on {value['host']}"),
        ("acquired", value["acquired_at"]),
        ("broken", value["broken"].removeprefix("broken ")),
    ]
    if value["expires_at"]:
        rows.append(("expires", value["expires_at"] + (f" (in {age(value['left'])})" if value["left"] else "")))
    return rows
