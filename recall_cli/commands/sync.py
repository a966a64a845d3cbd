"""``recall sync``: how far the logs are in the bucket, and bringing either side up to the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import typer

from recall_cli.commands import sync_collect
from recall_cli.commands.remote import attached
from recall_cli.exits import WRITES, Exit, exit_of
from recall_cli.look import AnyAgent, age_of, seconds_since
from recall_cli.options import Globals, Noun
from recall_cli.render import Column
from recall_cli.session import reading
from recall_cli.values import duration
from recall_cli.waiting import pause
from store.backends.sqlite import SqliteBackend
from store.backends.sqlite.files import exists
from store.clock import Instant
from store.errors import Corrupt, InvalidInput, LeaseHeld, NotFound, RecallError, StoreMissing, Unavailable
from store.opening import open_store
from store.remote_errors import NotAttached, NotShipped, RemoteNewer, RemoteUnreachable, TakenAway
from store.shipping.backend import ShippingBackend
from store.shipping.bucket import Bucket
from store.shipping.opening import open_bucket
from store.shipping.place import agents_in
from store.shipping.syncing import Pulled, Pushed, Status, look, pull, push, status, statuses
from store.text import check_agent

app = Noun("How far the logs are in the bucket, and bringing either side up to the other.", default="status")

_READS = (Exit.NOT_FOUND, Exit.UNAVAILABLE, Exit.CORRUPT)
Done = TypeVar("Done", Pushed, Pulled)
_DONE = (
    Column("agent", keep=True),
    Column("outcome", keep=True),
    Column("records", right=True, keep=True),
    Column("lsn", right=True, keep=True),
    Column("detail"),
)
_RETRY = 1.0  # seconds between attempts while --wait lasts

sync_collect.register(app)

Agents = Annotated[
    list[str] | None,
    typer.Argument(metavar="[AGENT]...", envvar="RECALL_AGENT", show_envvar=True, help="Which agents."),
]
Wait = Annotated[
    str,
    typer.Option(
        "--wait", metavar="DURATION", help="How long to go on trying while the bucket, or a lease, is out of reach."
    ),
]
Check = Annotated[bool, typer.Option("--check", help="Ask the bucket too; otherwise nothing leaves this machine.")]


@app.verb("status", exits=_READS)
def status_(
    ctx: typer.Context,
    agent: AnyAgent = "",
    check: Check = False,
    pending_older_than: Annotated[
        str, typer.Option("--pending-older-than", metavar="DURATION", help="Only what is pending for so long: 5m.")
    ] = "",
    fail_if_any: Annotated[
        bool,
        typer.Option(
            "--fail-if-any", help="Exit with 7 if an agent is pending, with 9 if one is in trouble: an alert."
        ),
    ] = False,
) -> None:
    """Show what is stored here, and what of it is known to be in the bucket.

    STORED and SHIPPED are lsns; what lies between is PENDING, and would be lost with this
    machine. LEASE is as this store last saw it. In a pipe times are exact.
    """
    here = Globals.of(ctx)
    least = duration("--pending-older-than", pending_older_than) if pending_older_than else -1.0
    worst = 0
    with reading(here) as store:
        bucket = _asked(store, check)
        now = store.clock.now()

        def rows() -> Iterator[dict[str, Any]]:
            nonlocal worst
            for one in [status(store, check_agent(agent))] if agent else statuses(store):
                row = _row(store, one, bucket)
                if least >= 0 and not _pending_for(one, now, least):
                    continue
                if row["trouble"]:
                    worst = Exit.CORRUPT
                elif one.pending_records:
                    worst = worst or Exit.UNAVAILABLE
                yield row

        here.out.table(_columns(here, now, check=check), rows(), empty=_nothing(least))
    if fail_if_any and worst:
        raise typer.Exit(worst)


def _nothing(least: float) -> str:
    return (
        "nothing is pending for so long"
        if least >= 0
        else "no agents here; the bucket may have some: recall sync pull --all"
    )


def _pending_for(one: Status, now: Instant, least: float) -> bool:
    return bool(one.pending_records) and (seconds_since(one.pending_since, now) or 0.0) >= least


def _asked(store: SqliteBackend, check: bool) -> Bucket | None:
    remote = attached(store)
    return open_bucket(remote) if check else None


def _row(store: SqliteBackend, one: Status, bucket: Bucket | None) -> dict[str, Any]:
    row = dict(vars(one))
    if bucket is not None:
        seen = look(store, bucket, one.agent)
        row["bucket"] = {name: each for name, each in vars(seen).items() if name != "trouble"}
        row["trouble"] = one.trouble or seen.trouble
    return row


def _columns(here: Globals, now: Instant, *, check: bool) -> list[Column]:
    people = here.out.terminal
    columns = [
        Column("agent", keep=True),
        Column("stored", right=True, keep=True),
        Column("shipped", right=True, keep=True),
        Column("pending_records", title="PENDING", right=True, keep=True, style=lambda n: "yellow" if n else ""),
        Column("pending_bytes", title="BYTES", right=True, keep=True),
        Column("pending_since", title="SINCE", show=(lambda at: age_of(at, now)) if people else None, keep=True),
        Column("shipped_at", title="LAST SHIPPED", show=(lambda at: age_of(at, now)) if people else None, keep=True),
        Column("ship", title="MODE", keep=True),
        Column("lease", keep=True),
        Column("epoch", right=True, keep=True),
        Column("holder"),
        Column("asides", right=True, keep=True),
        Column("trouble", keep=True, style="red"),
    ]
    if check:
        columns.insert(3, Column("bucket", show=lambda seen: str(seen["lsn"]), right=True, keep=True))
    return columns


@app.verb("push", exits=WRITES)
def push_(
    ctx: typer.Context,
    agents: Agents = None,
    every: Annotated[
        bool, typer.Option("--all", help="All agents, whatever RECALL_AGENT says, and imported copies too.")
    ] = False,
    wait: Wait = "",
) -> None:
    """Ship what is pending, of the agents named or of all.

    Under the lease of a process here that acts for the agent; else the lease is taken for it
    and given back. What was set aside here is put into the bucket too, as evidence. An imported
    copy is left alone unless it is named, or with --all: it gets a lineage of its own.
    """
    here = Globals.of(ctx)
    patience, named = _patience(wait), _named(agents, every)
    with _shipping(here) as store:
        names = named or [
            each.agent for each in statuses(store) if each.pending_records or each.asides or (every and each.imported)
        ]
        _each(here, names, "pushing", lambda name: push(store, name), _pushed, patience)
    if not names:
        here.out.message("nothing is pending")


def _pushed(done: Pushed) -> str:
    if done.outcome == "aside":
        return f"another one acted meanwhile; what was pending here: recall aside list {done.agent}"
    return {"nothing": "nothing was pending", "carried": "under a lease taken for it"}.get(done.outcome, "")


@app.verb("pull", exits=WRITES)
def pull_(
    ctx: typer.Context,
    agents: Agents = None,
    every: Annotated[bool, typer.Option("--all", help="All agents that the bucket has.")] = False,
    wait: Wait = "",
) -> None:
    """Fetch what the bucket has and this store has not; no lease is taken.

    So an agent that works elsewhere can be looked at here. What contradicts the bucket's log
    here is set aside, never merged.
    """
    here = Globals.of(ctx)
    names = _named(agents, every)
    if not names and not every:
        raise InvalidInput(
            field="AGENT", reason="is needed", hint="name agents, or fetch all of the bucket's with --all"
        )
    _pull(here, names, _patience(wait))


def fetch_all(here: Globals) -> tuple[list[dict[str, Any]], Exit]:
    """Fetch all that the bucket has: the rows that a pull prints, and the exit code that it ends with."""
    failed: list[RecallError] = []
    with _shipping(here) as store:
        names = here.out.progress(agents_in(store.shipper.bucket), "pulling")
        rows = [_row_of(here, name, lambda name: pull(store, name), _pulled, 0.0, failed) for name in names]
    return rows, exit_of(failed[0]) if failed else Exit.DONE


def _pull(here: Globals, names: Sequence[str], wait: float) -> None:
    with _shipping(here) as store:
        found: Iterable[str] = names or agents_in(store.shipper.bucket)
        _each(here, found, "pulling", lambda name: pull(store, name), _pulled, wait)


def _pulled(done: Pulled) -> str:
    if done.outcome == "absent":
        return "the bucket has no such agent"
    return f"what contradicted it was set aside: recall aside list {done.agent}" if done.aside else ""


@app.verb("watch", exits=_READS)
def watch(
    ctx: typer.Context,
    agent: AnyAgent = "",
    interval: Annotated[
        str, typer.Option("--interval", metavar="DURATION", help="How long between two looks.", show_default=True)
    ] = "2s",
    check: Check = False,
) -> None:
    """Print the status of each agent, and again whenever it changes, until interrupted."""
    here = Globals.of(ctx)
    every = duration("--interval", interval)
    if every < 0.1:
        raise InvalidInput(field="--interval", reason="must be at least 100ms")
    with reading(here) as store:
        now = store.clock.now()
        attached(store)
    here.out.table(_columns(here, now, check=check), _changes(here, agent, every, check), live=True)


def _changes(here: Globals, agent: str, every: float, check: bool) -> Iterator[dict[str, Any]]:
    """Rows that are new or changed; the store is opened anew for each look, so that none is in the way."""
    last: dict[str, dict[str, Any]] = {}
    told = ""
    while True:
        try:
            with reading(here) as store:
                bucket = _asked(store, check)
                found = [status(store, check_agent(agent))] if agent else statuses(store)
                for row in (_row(store, one, bucket) for one in found):
                    if last.get(row["agent"]) != row:
                        last[row["agent"]] = row
                        yield row
            told = ""
        except Unavailable as problem:
            if problem.message != told:
                here.out.warn(problem)
            told = problem.message
        pause(every)


# -- parts ---------------------------------------------------------------------------------------


@contextmanager
def _shipping(here: Globals) -> Iterator[ShippingBackend]:
    """The store, opened for shipping all it has, whatever the mode of the others is.

    Raises:
        StoreMissing, NotAttached.
    """
    if not exists(str(here.directory)) and not here.environment.get("RECALL_REMOTE"):
        raise StoreMissing(path=str(here.directory))
    store = open_store(here.directory, ship="barrier", on_bad_record=here.out.warn)
    try:
        if not isinstance(store, ShippingBackend):
            raise NotAttached(path=store.directory)
        yield store
    finally:
        store.leave()


def _patience(wait: str) -> float:
    return duration("--wait", wait) if wait else 0.0


def _named(agents: Sequence[str] | None, every: bool) -> list[str]:
    return [] if every else [check_agent(each) for each in agents or ()]


def _each(
    here: Globals,
    names: Iterable[str],
    label: str,
    work: Callable[[str], Done],
    said: Callable[[Done], str],
    wait: float,
) -> None:
    """Do ``work`` on each agent and print what it came to; one that fails does not stop the others.

    A bucket that cannot be reached stops them all.
    """
    deadline, named = time.monotonic() + wait, isinstance(names, list)
    failed: list[RecallError] = []

    def rows() -> Iterator[dict[str, Any]]:
        for name in here.out.progress(names, label):
            row = _row_of(here, name, work, said, deadline, failed)
            if named and row["outcome"] == "absent":
                failed.append(NotFound(what="agent", name=name))
            yield row

    here.out.table(_DONE, rows(), live=True)
    if failed:
        raise typer.Exit(exit_of(failed[0]))


def _row_of(
    here: Globals,
    name: str,
    work: Callable[[str], Done],
    said: Callable[[Done], str],
    deadline: float,
    failed: list[RecallError],
) -> dict[str, Any]:
    try:
        done = _patiently(work, name, deadline)
    except (LeaseHeld, NotFound, TakenAway, RemoteNewer, Corrupt) as problem:
        failed.append(problem)
        here.out.warn(problem)
        return {"agent": name, "outcome": "failed", "records": 0, "lsn": 0, "detail": problem.message}
    return {"agent": done.agent, **vars(done), "detail": said(done)}


def _patiently(work: Callable[[str], Done], name: str, deadline: float) -> Done:
    while True:
        try:
            return work(name)
        except (LeaseHeld, RemoteUnreachable, NotShipped):
            if time.monotonic() + _RETRY >= deadline:
                raise
        time.sleep(_RETRY)
