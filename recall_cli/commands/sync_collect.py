"""``recall sync collect``: the objects in the bucket that nothing refers to any more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from recall_cli.exits import WRITES, Exit
from recall_cli.look import AnyAgent
from recall_cli.options import Globals, Verbs
from recall_cli.render import Column
from recall_cli.session import writing
from recall_cli.values import duration
from store.backends.sqlite import SqliteBackend
from store.errors import Corrupt, InvalidInput, NotFound, RecallError
from store.remote_errors import NotAttached
from store.shipping.backend import ShippingBackend
from store.shipping.place import agents_in
from store.shipping.upkeep import Collected, collect
from store.text import check_agent

_LEAST = 3600.0  # seconds; whoever reads by an earlier head is done with it by then


def register(app: Verbs) -> None:
    """Add the verb to ``recall sync``."""
    app.verb("collect", exits=WRITES)(collect_)


def collect_(
    ctx: typer.Context,
    agent: AnyAgent = "",
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="Only what is at least so old, by the bucket's clock.")
    ] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete the objects in the bucket that nothing refers to any more.

    Merging and pruning leave them, and so does a process that was killed. Deleted is what the
    present head, its log and its index do not need, what was written under an earlier epoch,
    and what is older than the grace: nothing that a later head can come to need. What was set
    aside stays.
    """
    here = Globals.of(ctx)
    age = duration("--grace", grace)
    if age < _LEAST:
        raise InvalidInput(field="--grace", reason=f"must be at least {_LEAST / 3600:g}h, for those who are reading")
    with writing(here) as store:
        shipping = _shipping(store)
        agents = [check_agent(agent)] if agent else list(agents_in(shipping.shipper.bucket))
        planned, problems = _each(shipping, agents, age, dry_run=True)
        total, size = sum(each.objects for each in planned), sum(each.bytes for each in planned)
        if dry_run or not total:
            _show(here, planned, problems)
            here.out.message(f"{total:,} objects would go, {size:,} bytes; nothing was changed")
        else:
            question = f"delete {total:,} objects ({size:,} bytes) in {shipping.shipper.bucket.name}?"
            if not here.out.confirm(question, yes=yes, first="--dry-run"):
                here.out.message("nothing was changed")
                return
            done, problems = _each(shipping, [each.agent for each in planned], age, dry_run=False)
            _show(here, done, problems)
            total, size = sum(each.objects for each in done), sum(each.bytes for each in done)
            here.out.message(f"{total:,} objects are deleted, {size:,} bytes", "recall verify --remote")
    if problems:
        raise typer.Exit(Exit.CORRUPT)


def _shipping(store: SqliteBackend) -> ShippingBackend:
    if not isinstance(store, ShippingBackend):
        raise NotAttached(path=store.directory)
    return store


def _each(
    store: ShippingBackend, agents: list[str], grace: float, *, dry_run: bool
) -> tuple[list[Collected], list[RecallError]]:
    """What was done for each agent; one whose head cannot be trusted is left alone, and the others go on."""
    done: list[Collected] = []
    problems: list[RecallError] = []
    for agent in agents:
        try:
            done.append(collect(store.shipper, agent, grace=grace, dry_run=dry_run))
        except (Corrupt, NotFound) as problem:
            if len(agents) == 1:
                raise
            problems.append(problem)
    return done, problems


def _show(here: Globals, done: list[Collected], problems: list[RecallError]) -> None:
    columns = [Column("agent", keep=True)]
    columns += [Column(name, right=True) for name in ("objects", "bytes", "referenced", "recent", "unknown")]

    def rows() -> Iterator[dict[str, Any]]:
        yield from map(vars, done)

    here.out.table(columns, rows(), empty="the bucket has no agents")
    for problem in problems:
        here.out.warn(problem)
