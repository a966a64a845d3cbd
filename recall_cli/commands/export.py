"""``recall export``: agents' logs as lines of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from recall_cli.exits import READS
from recall_cli.filing import deliver
from recall_cli.options import Globals, Verbs
from recall_cli.session import reading
from store.errors import InvalidInput
from store.text import check_agent
from store.transfer import Transferred, export

app = Verbs()


@app.verb("export", exits=READS)
def run(
    ctx: typer.Context,
    agents: Annotated[
        list[str] | None, typer.Argument(metavar="[AGENT]...", help="Which agents; all unless given.")
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="A new file, or - for stdout.", show_default=True)
    ] = "-",
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    at: Annotated[
        int | None, typer.Option("--at", metavar="LSN", min=1, help="Only one agent's log, up to this record.")
    ] = None,
) -> None:
    """Write agents' logs, byte for byte, as lines of JSON.

    recall import takes them back into another directory: the same records, with the same
    hashes. FILE appears when it is complete, for this user alone (mode 0600): it holds
    everything that the agents ever saw.

    With --at it is a copy of the log as it was after that record, for looking at in another
    directory. An agent that is resumed from it does not know what was done since.
    """
    here = Globals.of(ctx)
    names = list(dict.fromkeys(check_agent(each) for each in agents or ()))
    if at is not None and len(names) != 1:
        raise InvalidInput(field="--at", reason="is a record of one agent's log", hint="name that agent")
    ended: list[Transferred] = []
    with reading(here) as backend:

        def watch(records: Iterable[Any], total: int) -> Iterator[Any]:
            return here.out.progress(records, "exporting", total)

        deliver(here.out, export(backend, names, at=at, watch=watch, done=ended.append), output, force=force)
    if output == "-":
        return
    value = {"path": output, "agents": [vars(each) for each in ended]}
    here.out.document(value, lambda: (f"{each.agent}\t{each.records}\t{each.lsn}:{each.hash}" for each in ended))
    count = sum(each.records for each in ended)
    here.out.message(
        f"exported {len(ended):,} agent(s) with {count:,} records to {output}",
        f"recall import {output} --dir OTHER-DIRECTORY",
    )
