"""``recall remote``: the bucket that a store ships to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any

import typer

from recall_cli.exits import WRITES, Exit
from recall_cli.look import labelled
from recall_cli.options import AgentArgument, Choice, Globals, Noun
from recall_cli.session import reading
from store.backends.sqlite import SqliteBackend
from store.backends.sqlite.files import exists
from store.backends.sqlite.marks import Remote
from store.errors import InvalidInput, StoreMissing
from store.opening import ship_mode
from store.remote_errors import NotAttached
from store.shipping.attaching import Attached, attach, connect
from store.shipping.bringing import Report
from store.shipping.bucket import SSE, Location
from store.shipping.checking import steps
from store.shipping.detaching import detach
from store.shipping.local import agents_of
from store.shipping.opening import dialect_of, location_of, open_bucket
from store.shipping.place import agents_in
from store.shipping.repairing import Finding, Repairing, examine
from store.text import check_agent

app = Noun("The bucket that the store ships to, where its agents survive the machine.", default="show")

_MOST_COUNTED = 1000
_SAID = {
    "shipped": "the bucket has its log now",
    "continued": "the bucket had it, and goes on from there",
    "fetched": "the bucket had more of it, which is here now",
    "adopted": "its log here was set aside for the bucket's",
    "imported": "a copy: shipped under a lineage of its own from its next lease on",
    "taken": "goes on here; in the bucket it ends",
    "forked": "goes on here under a lineage of its own",
    "kept": "lives on in the bucket; here it can be read",
    "damaged": "is not in the bucket, and nothing is written to it",
    "trouble": "has to be mended",
}
_PROMISES = {
    "barrier": "a call that may touch the world starts only when the bucket has its intent",
    "lazy": "records reach the bucket at each renewal and release; the last of them are lost with the machine",
    "off": "records stay here until: recall sync push",
}

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.verb("attach", exits=WRITES)
def attach_(
    ctx: typer.Context,
    url: Annotated[str, typer.Argument(metavar="URL", help="Where to: s3://BUCKET/PREFIX.")],
    endpoint_url: Annotated[
        str, typer.Option("--endpoint-url", metavar="URL", help="The S3 server, unless the AWS configuration says it.")
    ] = "",
    region: Annotated[str, typer.Option("--region", metavar="NAME", help="The bucket's region.")] = "",
    profile: Annotated[str, typer.Option("--profile", metavar="NAME", help="A profile of the AWS configuration.")] = "",
    sse: Annotated[
        str | None, typer.Option("--sse", click_type=Choice(SSE), help="Encryption to ask for with each write.")
    ] = None,
    sse_kms_key: Annotated[
        str, typer.Option("--sse-kms-key", metavar="KEY", help="The KMS key, with --sse aws:kms.")
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Fence whoever acts for an agent here.")] = False,
    adopt_remote: Annotated[
        bool,
        typer.Option("--adopt-remote", help="Where the bucket has another log of an agent: set the one here aside."),
    ] = False,
    pull: Annotated[bool, typer.Option("--pull", help="Fetch the bucket's agents too.")] = False,
) -> None:
    """Ship this store to a bucket from now on.

    The bucket is probed first, since not every store keeps to conditional writes. Then each
    agent's log is uploaded. Cut short, it goes on when called again; until then the store
    takes no lease. Once attached, the bucket decides who may act for an agent, wherever.

    On a second machine attach an empty directory to the same URL: resume an agent there, and
    its log comes. A container needs no command for it: RECALL_REMOTE=URL attaches a fresh store
    at its first write. Credentials come from the AWS chain alone (environment, profile, role).
    """
    here = Globals.of(ctx)
    location = Location.parse(
        url, endpoint_url=endpoint_url, region=region, profile=profile, sse=sse or "", sse_kms_key=sse_kms_key
    )
    from store.clock import SystemRandom

    here.out.message(f"probing {location.url}")
    connected = connect(location, SystemRandom())  # before a store is made for nothing

    def watch(agents: list[str]) -> Iterable[str]:
        return here.out.progress(agents, "attaching", len(agents))

    with SqliteBackend(here.directory, on_bad_record=here.out.warn) as store:
        done = attach(store, location, force=force, adopt=adopt_remote, watch=watch, connected=connected)
        known = set(agents_of(store))
        more = sum(1 for each in islice(agents_in(connected[0]), _MOST_COUNTED) if each not in known)
    value = {**_remote_row(done.remote), "made": done.made, "already": done.already, "warnings": list(done.warnings)}
    pulled: list[dict[str, Any]] = []
    code = Exit.CORRUPT if any(each.outcome in ("damaged", "trouble") for each in done.reports) else Exit.DONE
    if pull and more:
        from recall_cli.commands.sync import fetch_all

        pulled, failed = fetch_all(here)
        code = code or failed
    value |= {"agents": list(map(_report, done.reports)), "in_bucket": more, "pulled": pulled}
    lines = [*map(_line, done.reports), *(f"{each['agent']}: {each['outcome']}, lsn {each['lsn']}" for each in pulled)]
    here.out.document(value, lambda: lines)
    _say_attached(here, done, location, more, pull)
    if code:
        raise typer.Exit(code)


def _say_attached(here: Globals, done: Attached, location: Location, more: int, pull: bool) -> None:
    for each in done.warnings:
        here.out.message(f"warning: {each}")
    if done.already:
        here.out.message(f"it was attached to {location.url} already; its settings are as given now")
    else:
        here.out.message(f"attached to {location.url}: {len(done.reports):,} agent(s)", "recall sync status")
    if more and not pull:
        count = f"{more:,}" if more < _MOST_COUNTED else f"{more:,} or more"
        here.out.message(
            f"the bucket has {count} agent(s) that are not here yet", "resume one, or fetch all: recall sync pull --all"
        )
    damaged = [each.agent for each in done.reports if each.outcome == "damaged"]
    if damaged:
        here.out.message(f"{len(damaged):,} agent(s) have a damaged record", f"recall verify {damaged[0]}")
    troubled = [each.agent for each in done.reports if each.outcome == "trouble"]
    if troubled:
        here.out.message(f"{len(troubled):,} agent(s) have to be mended", f"recall remote repair {troubled[0]}")


@app.verb("show", exits=(Exit.NOT_FOUND, Exit.UNAVAILABLE, Exit.CORRUPT))
def show(ctx: typer.Context) -> None:
    """Show where the store ships to, since when, and what that promises."""
    here = Globals.of(ctx)
    mode = ship_mode(here.ship or None)
    with reading(here) as store:
        value = {**_remote_row(attached(store)), "ship": mode, "promise": _PROMISES[mode]}
        marks = [mark for agent in agents_of(store) if (mark := store.mark(agent)) is not None and mark.head]
    value |= {"agents": len(marks), "trouble": [each.agent for each in marks if each.trouble]}
    shown = {key.replace("_", " "): each for key, each in value.items() if each not in ("", [])}
    shown["dialect"] = _spoken(value["dialect"])
    here.out.document(value, lambda: labelled(shown.items()))


@app.verb("check", exits=(Exit.NOT_FOUND, Exit.UNAVAILABLE, Exit.CORRUPT, Exit.CONFLICT))
def check(ctx: typer.Context) -> None:
    """Ask the bucket: credentials, recall.json, a head, and the probe of its conditional writes again.

    Each step that passes is a line; the one that fails is the error, with exit code 7.
    """
    here = Globals.of(ctx)
    with reading(here) as store:
        remote = attached(store)
        rows = ({"step": name, "detail": detail} for name, detail in steps(store, remote))
        here.out.lines(rows, lambda row: f"ok {row['step']}: {row['detail']}", live=True)


@app.verb("detach", exits=WRITES)
def detach_(
    ctx: typer.Context,
    take: Annotated[bool, typer.Option("--take", help="The agents go on here, and end in the bucket.")] = False,
    fork: Annotated[
        bool, typer.Option("--fork", help="The agents go on here under new lineages, and in the bucket too.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Fence whoever acts for an agent here; leave behind what is not shipped.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Ship to the bucket no more.

    Without an option the agents live on in the bucket; here they can be read, and written
    again once the store is attached again. --take and --fork make them this store's own; an
    agent that is not here stays in the bucket in any case.
    """
    here = Globals.of(ctx)
    if take and fork:
        raise InvalidInput(field="--fork", reason="cannot be combined with --take", hint="give one of the two")
    with opened(here) as store:
        remote = attached(store)
        url = location_of(remote).url
        what = "take its agents out of" if take else "fork its agents from" if fork else "detach it from"
        if not here.out.confirm(f"{store.directory}: {what} {url}?", yes=yes):
            here.out.message("nothing was changed")
            return
        how = "take" if take else "fork" if fork else "keep"

        def watch(agents: list[str]) -> Iterable[str]:
            return here.out.progress(agents, "detaching", len(agents))

        reports = detach(store, open_bucket(remote), how, force=force, watch=watch)  # type: ignore[arg-type]
        after = store.remote()
        assert after is not None
    value = {**_remote_row(after), "agents": list(map(_report, reports))}
    here.out.document(value, lambda: map(_line, reports))
    then = "take or fork them, or attach again: recall remote attach" if after.state == "detached" else ""
    here.out.message(f"detached from {url}: {len(reports):,} agent(s)", then)


@app.verb("repair", exits=WRITES)
def repair(
    ctx: typer.Context,
    agent: AgentArgument,
    keep: Annotated[
        str | None,
        typer.Option("--keep", click_type=Choice(("here", "remote")), help="Which of the two logs to go on with."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Fence whoever acts for the agent.")] = False,
    yes: Yes = False,
) -> None:
    """Mend an agent whose log here and in the bucket contradict each other.

    Without --keep it shows what contradicts what. With it, that log goes on under a new
    lineage and an epoch above every other; what only the other log has is set aside as
    evidence, here (recall aside list) or in the bucket, and never merged.
    """
    here = Globals.of(ctx)
    check_agent(agent)
    with opened(here) as store:
        remote = attached(store)
        if remote.state != "attached":
            raise NotAttached(path=store.directory)
        bucket = open_bucket(remote)
        found = examine(store, bucket, agent)
        value = {**vars(found), "here": vars(found.here), "remote": vars(found.remote) if found.remote else None}
        value |= {"choices": list(found.choices), "repaired": None}
        if keep is None or dry_run or not found.trouble:
            here.out.document(value, lambda: _found(found))
            _say_found(here, found, keep)
            return
        if keep not in found.choices:
            reason = f"cannot be {keep}: {found.trouble}: {found.reason}"
            raise InvalidInput(field="--keep", reason=reason, hint=f"it can be: {', '.join(found.choices)}")
        if not here.out.structured:
            for line in _found(found):
                here.out.message(line)
        if not here.out.confirm(_question(found, keep), yes=yes, first="--dry-run"):
            here.out.message("nothing was changed")
            return
        done = Repairing(store, bucket, remote, force=force).repair(found, keep)
    here.out.document({**value, "repaired": dict(vars(done))}, lambda: ())
    where = f"recall aside list {agent}" if done.kept == "remote" else "agents/…/aside/ in the bucket"
    here.out.message(
        f"agent {agent} goes on from lsn {done.last} at epoch {done.epoch}, lineage {done.lineage}; "
        f"{done.aside:,} record(s) of the other log are kept as evidence: {where}",
        f"recall resume {agent}",
    )


def _question(found: Finding, keep: str) -> str:
    other = found.remote if keep == "here" else found.here
    alone = other.alone if other else 0
    whose = "this store's" if keep == "here" else "the bucket's"
    return f"{found.agent}: go on with {whose} log, and set {alone:,} record(s) of the other aside?"


def _found(found: Finding) -> Iterator[str]:
    yield f"{found.agent}: {found.trouble or 'nothing to mend'}: {found.reason}"
    for name, side in (("here", found.here), ("remote", found.remote)):
        if side is None:
            yield f"  {name}: cannot be read"
            continue
        who = f"{side.state} by {side.holder}" if side.holder else side.state
        yield f"  {name}: up to lsn {side.last}, epoch {side.epoch}, lineage {side.lineage[:8]}…, {who}"
    if found.remote is not None:
        alone = f"only here {found.here.alone:,}, only there {found.remote.alone:,}"
        yield f"  both: the same up to lsn {found.common}; {alone}"


def _say_found(here: Globals, found: Finding, keep: str | None) -> None:
    if not found.trouble:
        here.out.message("nothing was changed")
    elif keep is None:
        choices = " or ".join(f"--keep {each}" for each in found.choices)
        here.out.message("nothing was changed", f"choose: recall remote repair {found.agent} {choices}")
    else:
        here.out.message(f"nothing was changed; it would be asked: {_question(found, keep)}")


# -- parts ---------------------------------------------------------------------------------------


def attached(store: SqliteBackend) -> Remote:
    """What a store ships to, or did until it was detached. Raises NotAttached."""
    remote = store.remote()
    if remote is None or remote.state == "local":
        raise NotAttached(path=store.directory)
    return remote


@contextmanager
def opened(here: Globals) -> Iterator[SqliteBackend]:
    """The store as it is, for writing what it knows of its bucket; none is made."""
    if not exists(str(here.directory)):
        raise StoreMissing(path=str(here.directory))
    with SqliteBackend(here.directory, on_bad_record=here.out.warn) as store:
        yield store


def _remote_row(remote: Remote) -> dict[str, Any]:
    location = location_of(remote)
    return {
        "state": remote.state,
        "remote": location.url,
        **{name: each for name, each in vars(location).items() if name not in ("bucket", "prefix")},
        "id": remote.remote_id,
        "generation": remote.generation,
        "since": remote.at,
        "dialect": {**vars(dialect_of(remote)), "warnings": list(dialect_of(remote).warnings)},
    }


def _spoken(dialect: dict[str, Any]) -> str:
    etag = "ETags quoted" if dialect["quoted"] else "ETags bare"
    pause = f", {dialect['min_interval']:g} s between writes of one object" if dialect["min_interval"] else ""
    warnings = "".join(f"; {each}" for each in dialect["warnings"])
    return f"{etag}, {dialect['missing']} for a missing object{pause}{warnings}"


def _report(each: Report) -> dict[str, Any]:
    return dict(vars(each))


def _line(each: Report) -> str:
    detail = f": {each.detail}" if each.detail else ""
    return f"{each.agent}: {each.outcome}, lsn {each.lsn}: {_SAID[each.outcome]}{detail}"
