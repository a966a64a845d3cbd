"""``recall aside``: what was set aside, kept to be looked at and exported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from recall_cli.evidence import bucket_of, collected
from recall_cli.exits import READS
from recall_cli.filing import deliver
from recall_cli.options import AgentArgument, Globals, Noun, Remote
from recall_cli.render import Column
from recall_cli.session import reading, require
from store.asides import Aside, aside, asides, export, records
from store.backend import all_leases
from store.records import Record
from store.text import check_agent

if TYPE_CHECKING:
    from store.shipping.bucket import Bucket

app = Noun("What was set aside: records that an agent's log no longer goes through.", default="list")

Number = Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="The aside's number, as recall aside list says.")]


@app.verb("list", exits=READS)
def list_(
    ctx: typer.Context,
    agent: Annotated[
        str,
        typer.Argument(metavar="[AGENT]", envvar="RECALL_AGENT", show_envvar=True, help="The agent's id; all without."),
    ] = "",
    remote: Remote = False,
) -> None:
    """List what was set aside, with its reason.

    A log is set aside from some point on when it cannot be reconciled with another copy of
    itself. Nothing merges it and nothing deletes it.

    With --remote: the objects in the bucket instead, where every machine files what it sets
    aside, and where a queued resolution that could not be carried out is kept.
    """
    here = Globals.of(ctx)
    with reading(here) as backend:
        if agent and not remote:
            require(backend, check_agent(agent))
        if remote:
            names = [check_agent(agent)] if agent else [each.agent for each in all_leases(backend)]
            bucket = bucket_of(backend)
            there = [
                Column("agent", keep=True),
                Column("name", keep=True),
                Column("store"),
                Column("records", right=True),
            ]
            there += [Column("first", right=True), Column("last", right=True), Column("at"), Column("reason")]
            rows = (each for name in names for each in _filed(bucket, name))
            here.out.table(there, rows, empty="nothing was set aside in the bucket")
            return
        columns = [Column("agent", keep=True), Column("number", right=True, keep=True), Column("records", right=True)]
        columns += [Column("first", right=True), Column("last", right=True), Column("at"), Column("reason")]
        looked_at = [agent] if agent else (each.agent for each in all_leases(backend))
        found = (each for name in looked_at for each in asides(backend, name))
        here.out.table(columns, map(_row, found), empty="nothing was set aside")


def _filed(bucket: Bucket, agent: str) -> Iterator[dict[str, Any]]:
    """The objects of an agent in the bucket that hold what was set aside, one row each."""
    from store.shipping import evidence

    for left in evidence.filed(bucket, agent):
        yield {**vars(left), "records": left.last - left.first + 1}
    for each in evidence.rejected(bucket, agent):
        row = {"agent": agent, "name": each.name, "store": each.by, "records": 0, "first": 0, "last": 0}
        yield {**row, "at": each.at, "reason": each.reason, "resolution": each.resolution}


def _row(one: Aside) -> dict[str, Any]:
    return {**vars(one), "records": one.records}


@app.verb("show", exits=READS)
def show(ctx: typer.Context, agent: AgentArgument, number: Number) -> None:
    """Show the records of one, in the order of their lsn.

    VERDICT, at the last record of a call without an outcome: "never executed"
    where that is proven, else "may have run".
    """
    here = Globals.of(ctx)
    with reading(here) as backend:
        require(backend, check_agent(agent))
        one = aside(backend, agent, number)
        columns = [Column("lsn", right=True, keep=True), Column("at", keep=True), Column("epoch", right=True)]
        columns += [Column("key", keep=True), Column("verdict"), Column("body")]
        judged = {
            each.lsn: each.verdict
            for each in collected(backend, agent, remote=False)
            if each.source == f"aside {number}"
        }
        here.out.table(columns, (_record(each, judged.get(each.lsn, "")) for each in records(backend, one)))


def _record(record: Record, verdict: str) -> dict[str, Any]:
    names = ("agent", "branch", "lsn", "epoch", "key", "kind", "at", "body")
    return {**{name: getattr(record, name) for name in names}, "hash": record.hash.hex(), "verdict": verdict}


@app.verb("export", exits=READS)
def export_(
    ctx: typer.Context,
    agent: AgentArgument,
    number: Number,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="A new file, or - for stdout.", show_default=True)
    ] = "-",
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
) -> None:
    """Write the records of one, with their blobs, as lines of JSON.

    The lines are those of recall export, under a format of their own: an import refuses them.
    """
    here = Globals.of(ctx)
    with reading(here) as backend:
        require(backend, check_agent(agent))
        one = aside(backend, agent, number)
        deliver(here.out, here.out.progress(export(backend, one), "exporting"), output, force=force)
    if output != "-":
        here.out.document({"path": output, **_row(one)}, lambda: ())
        here.out.message(f"exported {one.records:,} records to {output}")
