"""``recall agents``: who is in a store, who acts for them, and how far they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice
from typing import Annotated, Any

import typer

from recall_cli.exits import READS, WRITES
from recall_cli.look import (
    Limit,
    age_of,
    agent_row,
    break_of,
    check_limit,
    every_lease,
    holder_alive,
    labelled,
    lease_state,
    seconds_since,
)
from recall_cli.options import AgentArgument, AgentOption, Choice, Globals, Noun
from recall_cli.pending import any_stuck
from recall_cli.render import Column
from recall_cli.session import operator, reading, require, viewing, writing
from recall_cli.values import duration
from store.backends.sqlite import SqliteBackend, files
from store.clock import Instant, rfc3339
from store.lease import Lease
from store.text import check_agent
from store.views import View

app = Noun("List agents, show one, archive it.", default="list")

STATES = ("live", "lapsed", "dead", "released", "archived")
STYLES = {"live": "green", "dead": "red", "lapsed": "yellow", "archived": "dim"}


@app.verb("list", exits=READS)
def list_agents(
    ctx: typer.Context,
    match: Annotated[str, typer.Option("--match", metavar="TEXT", help="Whose id has TEXT, or fits a pattern.")] = "",
    status: Annotated[str | None, typer.Option("--status", click_type=Choice(STATES), help="In this state.")] = None,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="DURATION", help="Whose last record is at least so old: 30m, 2d.")
    ] = "",
    only_stuck: Annotated[
        bool, typer.Option("--stuck", help="Only those with an action that nobody sees to; see: actions list --stuck.")
    ] = False,
    limit: Limit = None,
) -> None:
    """List the agents of the store.

    STATE is live, lapsed (the lease's time is over), dead (its holder is
    provably gone), released or archived. In a pipe each is a line with tabs
    and no heading, and LAST is the exact time.
    """
    here = Globals.of(ctx)
    least = duration("--older-than", older_than) if older_than else 0.0
    most = check_limit(limit)
    filtered = match or status or only_stuck or least
    with reading(here) as backend:
        now = backend.clock.now()
        rows = (agent_row(backend, lease, now) for lease in every_lease(backend) if _fits(lease.agent, match))
        rows = (row for row in rows if status in (None, row["state"]))
        rows = (row for row in rows if not only_stuck or (row["pending"] and any_stuck(backend, row["agent"])))
        rows = (row for row in rows if not least or (seconds_since(row["last_at"], now) or 0) >= least)
        shown_age = (lambda at: age_of(at, now)) if here.out.terminal else None
        columns = [
            Column("agent", keep=True),
            Column("state", keep=True, style=lambda state: STYLES.get(state, "")),
            Column("holder"),
            Column("epoch", right=True, keep=True),
            Column("turns", right=True, keep=True),
            Column("pending", right=True, keep=True, style=lambda count: "yellow" if count else ""),
            Column("last_at", title="LAST", show=shown_age, keep=True),
            Column("goal"),
        ]
        here.out.table(columns, islice(rows, most), empty="no agent that fits" if filtered else _nothing(backend))


def _nothing(backend: SqliteBackend) -> str:
    remote = backend.remote()
    if remote is None or remote.state != "attached":
        return "no agents"
    return "no agents here; the bucket may have some: recall sync pull --all"


def _fits(agent: str, match: str) -> bool:
    return fnmatchcase(agent, match) if any(each in match for each in "*?[") else match in agent


@app.verb("show", exits=READS)
def show(ctx: typer.Context, agent: AgentArgument) -> None:
    """Show all about one agent: its lease, its log, its counters."""
    here = Globals.of(ctx)
    with viewing(here, agent) as view:
        lease = view.backend.lease(agent)
        assert lease is not None
        found = _details(view, lease, str(here.directory))
        here.out.document(found, lambda: _shown(found, view.backend.clock.now()))


def _details(view: View, lease: Lease, directory: str) -> dict[str, Any]:
    backend, now = view.backend, view.backend.clock.now()
    row = agent_row(backend, lease, now)
    with backend.reading():
        counters, state = backend.counters(lease.agent), view.working_state()
        branches = backend.branches(lease.agent)
    held = lease.state == "held"
    return row | {
        "archived": dict(view.archived()) or None,
        "lease": {
            "state": lease_state(lease, now),
            "epoch": lease.epoch,
            "holder": lease.holder,
            "host": lease.process.host,
            "pid": lease.process.pid,
            "process": holder_alive(lease),
            "acquired_at": lease.acquired_at,
            "renewed_at": rfc3339(lease.renewed.wall_us),
            "until": rfc3339(now.wall_us + lease.left_ms(now) * 1000) if held else None,
            "ttl_seconds": lease.ttl_ms / 1000,
            "imported": lease.imported,
            "broken": break_of(backend, lease.agent, lease.epoch),
        },
        "lineage": lease.lineage,
        "branch": lease.branch,
        "branches": len(branches),
        "lsn": counters.lsn,
        "hash": counters.hash.hex(),
        "version": counters.version,
        "actions": counters.actions,
        "last_milestone": state.last_milestone,
        "store_bytes": _size(directory),
    }


def _size(directory: str) -> int:
    return os.stat(files.database(directory)).st_size + files.wal_size(directory)


def _shown(found: dict[str, Any], now: Instant) -> Iterator[str]:
    lease, archived = found["lease"], found["archived"]
    until = f"{lease['until']}" if lease["until"] else ""
    other = f" ({found['branches']} in all)" if found["branches"] > 1 else ""
    yield from labelled(
        (
            ("agent", found["agent"]),
            ("state", found["state"]),
            ("archived", f"{archived['at']} by {archived.get('by', '')}: {archived['reason']}" if archived else ""),
            ("goal", found["goal"]),
            ("last milestone", found["last_milestone"]),
            ("turns", found["turns"]),
            ("actions", f"{found['actions']} ({found['pending']} pending)"),
            ("state version", found["version"]),
            ("last record", f"{found['last_at']} ({age_of(found['last_at'], now)} ago)"),
            ("lease", f"{lease['state']}, epoch {lease['epoch']}{', imported' if lease['imported'] else ''}"),
            ("broken", lease["broken"].removeprefix("broken ")),
            ("holder" if until else "last holder", lease["holder"]),
            ("process", f"pid {lease['pid']} on {lease['host']}: {lease['process']}" if until else ""),
            ("since", lease["acquired_at"]),
            ("until", f"{until} (ttl {lease['ttl_seconds']:g} s)" if until else ""),
            ("lineage", found["lineage"]),
            ("branch", f"{found['branch']}{other}"),
            ("log", f"lsn {found['lsn']}, hash {found['hash']}"),
            ("store", f"{found['store_bytes']:,} bytes"),
        )
    )


Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the log.")]
By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who decided it; user@host unless given.")]


@app.verb("archive", exits=WRITES, agent_first=True)
def archive(ctx: typer.Context, agent: AgentOption, reason: Reason, by: By = "") -> None:
    """End an agent: nobody resumes it, or writes to it, until unarchive.

    Its records and its epochs stay. An agent that somebody acts for is
    refused; end its lease first.
    """
    _end(Globals.of(ctx), agent, reason, by, back=False)


@app.verb("unarchive", exits=WRITES, agent_first=True)
def unarchive(ctx: typer.Context, agent: AgentOption, reason: Reason, by: By = "") -> None:
    """Bring an archived agent back."""
    _end(Globals.of(ctx), agent, reason, by, back=True)


def _end(here: Globals, agent: str, reason: str, by: str, *, back: bool) -> None:
    from store.access import once

    check_agent(agent)
    reason, by = here.values.read("--reason", reason), by or operator()
    with reading(here) as backend:  # a wrong name must not make an agent
        require(backend, agent)
    with writing(here) as backend:
        once(backend, agent, lambda one: (one.unarchive if back else one.archive)(reason, by), archived=back)
    word = "unarchived" if back else "archived"
    then = f"recall resume {agent}" if back else f"recall agents unarchive -a {agent} --reason TEXT"
    if here.out.structured:
        here.out.document({"agent": agent, "archived": not back, "reason": reason, "by": by}, lambda: ())
    here.out.message(f"{word} {agent}", then)
