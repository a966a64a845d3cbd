"""``recall verify``: whether the store still says what was written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from recall_cli.exits import READS, Exit
from recall_cli.options import Globals, Verbs
from recall_cli.session import reading
from store.errors import InvalidInput
from store.text import check_agent, quoted
from store.verify import Checked, Problem, Saved, verify

app = Verbs()

_HEAD = re.compile(r"(?:(?P<agent>[^:]+):)?(?P<lsn>[1-9]\d{0,15}):(?P<hash>[0-9a-fA-F]{64})", re.ASCII)


@app.verb("verify", exits=READS)
def run(
    ctx: typer.Context,
    agents: Annotated[
        list[str] | None, typer.Argument(metavar="[AGENT]...", help="Which agents; all unless given.")
    ] = None,
    head: Annotated[
        list[str] | None,
        typer.Option(
            "--head",
            metavar="[AGENT:]LSN:HASH",
            help="A head that an earlier verify printed; the record must still be there.",
        ),
    ] = None,
    remote: Annotated[
        bool, typer.Option("--remote", help="Check what is in the bucket instead, and that it is the same as here.")
    ] = False,
) -> None:
    """Check that the store still says what was written.

    Derives again what can be derived: every line's form and hash, the order of records and
    epochs, blobs, and the projection that reads are answered from. Prints the head of each
    agent's log. The exit code is 9 if anything is wrong; recall doctor --fix mends a
    projection, and nothing mends a record.

    What it cannot see by itself is a log that lost its newest records, or that somebody
    wrote anew with new hashes. Keep the heads that it prints somewhere else, and give one
    back with --head: then both are found.

    --remote reads every object that the agents need in the bucket, checks it against the
    head and the rules of a log, and compares with this store as far as that was shipped.
    Objects that nothing needs are counted; they are no damage (recall sync collect).
    """
    here = Globals.of(ctx)
    names = [check_agent(each) for each in agents or ()]
    if remote:
        if head:
            raise InvalidInput(field="--head", reason="cannot be combined with --remote", hint="give one of the two")
        _remote(here, names)
        return
    saved: dict[str, list[Saved]] = {}
    for each in head or ():
        agent, one = _head(each, names)
        saved.setdefault(agent, []).append(one)
    wanted = names or list(saved)
    found = 0
    with reading(here) as backend:

        def watch(records: Iterable[Any], total: int) -> Iterator[Any]:
            return here.out.progress(records, "verifying", total)

        def rows() -> Iterator[dict[str, Any]]:
            nonlocal found
            for each in verify(backend, wanted, saved, watch):
                found += isinstance(each, Problem)
                yield _row(each)

        here.out.lines(rows(), _line)
    if found:
        here.out.message(f"{found:,} problem(s) found", "copy the directory before anything else; see: recall doctor")
        raise typer.Exit(Exit.CORRUPT)


def _remote(here: Globals, names: list[str]) -> None:
    from recall_cli.verify_remote import rows

    found = 0
    with reading(here) as backend:

        def counted() -> Iterator[dict[str, Any]]:
            nonlocal found
            for row in rows(backend, names):
                found += row["type"] == "problem"
                yield row

        here.out.lines(counted(), _line)
    if found:
        here.out.message(f"{found:,} problem(s) found", "nothing was changed; see: recall remote repair --help")
        raise typer.Exit(Exit.CORRUPT)


def _head(value: str, agents: list[str]) -> tuple[str, Saved]:
    match = _HEAD.fullmatch(value)
    if match is None:
        raise InvalidInput(
            field="--head",
            reason=f"{quoted(value)} is not [AGENT:]LSN:HASH",
            hint="give one as recall verify prints it",
        )
    agent = match["agent"] or (agents[0] if len(agents) == 1 else "")
    if not agent:
        raise InvalidInput(field="--head", reason="does not say of which agent", hint="write it as AGENT:LSN:HASH")
    if agents and agent not in agents:
        raise InvalidInput(field="--head", reason=f"{quoted(agent)} is not among the agents to verify")
    return check_agent(agent), Saved(int(match["lsn"]), match["hash"].lower())


def _row(each: Problem | Checked) -> dict[str, Any]:
    if isinstance(each, Problem):
        named = {"agent": each.agent, "branch": each.branch, "lsn": each.lsn, "key": each.key}
        return {"type": "problem", **named, "reason": each.reason}
    counts = {"records": each.records, "lsn": each.lsn, "hash": each.hash, "problems": each.problems, "base": each.base}
    return {"type": "agent", "agent": each.agent, **counts}


def _line(row: Any) -> str:
    if row["type"] == "agent":
        state = "ok" if not row["problems"] else f"{row['problems']:,} problem(s)"
        state += f", begins above lsn {row['base']} (pruned)" if row["base"] else ""
        if "objects" in row:
            state += f", {row['objects']:,} objects in the bucket and {row['unreferenced']:,} that nothing needs"
            state += f", the same here up to lsn {row['compared']}" if row["compared"] else ""
        state += f", {row['records']:,} records, head {row['agent']}:{row['lsn']}:{row['hash']}"
        return f"{row['agent']}: {state}"
    place = [row["agent"] or "recall.db"]
    place += [f"branch {row['branch']}"] if row["branch"] > 1 else []
    place += [f"lsn {row['lsn']}"] if row["lsn"] else []
    place += [row["key"]] if row["key"] else []
    return f"{' '.join(place)}: {row['reason']}"
