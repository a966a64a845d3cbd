"""``recall prune`` and ``recall restore``: a log that begins later, and going back to earlier notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from recall_cli.exits import WRITES
from recall_cli.look import moment
from recall_cli.options import AgentArgument, Globals, Verbs
from recall_cli.render import Column
from recall_cli.session import operator, reading, require
from store import checks
from store.pruning import KEEP_TURNS, Plan, base_before, plan, prune
from store.rewinding import Rewind, rewind, rewind_plan
from store.text import check_agent, check_text

app = Verbs()

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.verb("prune", exits=WRITES)
def prune_(
    ctx: typer.Context,
    agent: AgentArgument,
    before: Annotated[
        str,
        typer.Option(
            "--before", metavar="LSN|TIME", help="What was written before this record, this time, or 90d ago."
        ),
    ],
    keep_turns: Annotated[
        int, typer.Option("--keep-turns", metavar="N", min=1, max=100_000, help="Keep the newest N turns in any case.")
    ] = KEEP_TURNS,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; kept in the log.")] = "",
    shrink: Annotated[
        bool, typer.Option("--shrink", help="Also give the space back to the disk; other writers wait meanwhile.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Let an agent's log begin later, and delete what came before.

    What is still needed is first written again, each record with the lsn and hash of the one
    that it stands for: the working state, the newest turns, pointers, outputs, open actions,
    and every named step with its outcome, so that a step that is done never runs again.
    Numbers go on where they were. What was set aside stays. An output goes only with the
    turn or the call that it belongs to.

    With a bucket the log begins later there too; the objects go with recall sync collect. A
    copy elsewhere that is older than the new beginning is set aside when it next looks.

    The space is used again by later records; --shrink gives it back to the disk.
    """
    here = Globals.of(ctx)
    check_agent(agent)
    reason = check_text("--reason", reason, limit=checks.REASON_LIMIT)
    with reading(here) as backend:
        require(backend, agent)
        base = _base(backend, agent, before)
        planned = plan(backend, agent, base, keep_turns=keep_turns)
    if dry_run or not planned.base:
        _report(here, planned)
        said = "nothing is that old" if not planned.base else "nothing was changed"
        here.out.message(said)
        return
    question = f"delete {planned.going.records:,} records of {agent} for good, up to lsn {planned.base}?"
    if not here.out.confirm(question, yes=yes, first="--dry-run"):
        here.out.message("nothing was changed")
        return
    from recall_cli.session import writing

    with writing(here) as store:
        done = prune(store, agent, planned.base, keep_turns=keep_turns, by=operator(), reason=reason)
        freed = store.shrink() if shrink else 0
    _report(here, done, freed=freed)
    text = f"the log of {agent} begins above lsn {done.base}"
    here.out.message(text + (f"; {freed:,} bytes were given back" if shrink else ""), f"recall verify {agent}")


def _base(backend: Any, agent: str, before: str) -> int:
    """The last lsn that ``--before`` lets go."""
    if before.isascii() and before.isdigit():
        return max(0, int(before[:19]) - 1)
    return base_before(backend, agent, moment("--before", before, backend.clock.now()))


def _report(here: Globals, one: Plan, **more: int) -> None:
    """The plan or what was done: one document, or a row for each kind and the sums on stderr."""
    rows = [
        {"kind": kind, "records": count, "bytes": size, "kept": one.kept.get(kind, 0)}
        for kind, (count, size) in sorted(one.going.kinds.items())
    ]
    if here.out.structured:
        sums = {"records": one.going.records, "bytes": one.going.bytes, "blobs": one.going.blobs}
        value = {"agent": one.agent, "base": one.base, "last": one.last, **sums, "kept": sum(one.kept.values())}
        kinds = {each.pop("kind"): each for each in rows}
        here.out.document({**value, "kinds": kinds, **more}, lambda: ())
    elif one.base:
        columns = [Column("kind", keep=True), *(Column(name, right=True) for name in ("records", "bytes"))]
        here.out.table([*columns, Column("kept", "WRITTEN AGAIN", right=True)], rows)
        said = f"{one.going.records:,} records and {one.going.blobs:,} blobs, {one.going.bytes:,} bytes"
        here.out.message(f"up to lsn {one.base} of {one.last}: {said}")


@app.verb("restore", exits=WRITES)
def restore(
    ctx: typer.Context,
    agent: AgentArgument,
    at: Annotated[int, typer.Option("--at", metavar="LSN", min=1, help="The record whose notes are wanted back.")],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Bring back the working state and the pointers that an agent had at an earlier record.

    They are written again as new records; nothing is taken back. Actions, steps and keys stay
    as they are: what was done in the world since is still done, and is not done again. Turns
    and outputs stay too, and pointers that were set since.

    To look at everything as it was: recall briefing AGENT --at LSN. For a copy of the log up
    to there, to be read in another directory: recall export AGENT --at LSN.
    """
    here = Globals.of(ctx)
    check_agent(agent)
    with reading(here) as backend:
        require(backend, agent)
        planned = rewind_plan(backend, agent, at)
    if planned.empty or dry_run:
        here.out.document(_rewind_row(planned), lambda: _rewind_shown(planned))
        here.out.message("they are the present ones" if planned.empty else "nothing was changed")
        return
    question = f"write the notes of {agent} at lsn {at} again?"
    if not here.out.confirm(question, yes=yes, first="--dry-run"):
        here.out.message("nothing was changed")
        return
    from recall_cli.session import writing
    from store.access import beside

    with writing(here) as store:
        done = beside(store, agent, lambda one: rewind(one, store, at), holder="operator:restore")
    here.out.document(_rewind_row(done), lambda: _rewind_shown(done))
    here.out.message(f"{agent} has its notes of lsn {at} again", f"recall briefing {agent}")


def _rewind_row(one: Rewind) -> dict[str, Any]:
    return {
        "agent": one.agent,
        "at": one.at,
        "version": one.version,
        "pointers": list(one.pointers),
        "later": list(one.later),
    }


def _rewind_shown(one: Rewind) -> Iterator[str]:
    if one.version:
        yield f"working state\tversion {one.version}"
    yield from (f"pointer\t{name}" for name in one.pointers)
    yield from (f"pointer stays\t{name}" for name in one.later)
