"""What the look commands share: moments, ages, agents' states, and records in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import typer

from recall_cli.render import Column, Out
from recall_cli.values import age, duration
from store.backend import Backend
from store.clock import Instant, parse_rfc3339, rfc3339
from store.errors import BadRecord, InvalidInput
from store.lease import Lease
from store.process import provably_dead, this_process
from store.records import ACTION, LEASE, LIFECYCLE, OUTPUT, POINTER, STEP, TURN, WORKING_STATE, Record, in_seconds
from store.text import check_count, cut, neutral, neutral_line, quoted
from store.views import View

T = TypeVar("T")
SUMMARY_BYTES = 160
MOST_ROWS = 2**31

Limit = Annotated[int | None, typer.Option("--limit", metavar="N", help="At most this many.")]
AnyAgent = Annotated[
    str,
    typer.Argument(
        metavar="[AGENT]", envvar="RECALL_AGENT", show_envvar=True, show_default=False, help="Only this agent's."
    ),
]


def say_pruned(out: Out, view: View) -> None:
    """Say that a listing begins where the log does, if something was pruned before it."""
    said = view.pruned()
    if said:
        by = f" by {neutral_line(str(said['by']))}" if said.get("by") else ""
        out.message(f"what was written up to lsn {said['lsn']} was pruned{by}, {in_seconds(said['at'])}")


def check_limit(limit: int | None) -> int | None:
    """A ``--limit``, or InvalidInput."""
    return None if limit is None else check_count("--limit", limit, least=1, most=MOST_ROWS)


# -- times -----------------------------------------------------------------------------------


def moment(field: str, value: str, now: Instant) -> str:
    """The RFC 3339 time that ``2026-11-03T18:00:00Z`` names, or ``90s`` or ``2h`` before ``now``.

    Raises:
        InvalidInput: it is neither.
    """
    try:
        named = parse_rfc3339(value)
    except (ValueError, OverflowError):
        named = None
    if named is not None:
        return named.isoformat(timespec="microseconds")[:26] + "Z"
    try:
        seconds = duration(field, value)
    except InvalidInput:
        raise InvalidInput(
            field=field,
            reason=f"{quoted(value)} is neither a time nor a duration",
            hint="write it as 2026-11-03T18:00:00Z, 2026-11-03, 90s, 15m or 2h",
        ) from None
    return rfc3339(max(0, now.wall_us - int(seconds * 1_000_000)))


def seconds_since(at: str, now: Instant) -> float | None:
    """How long ago a stored time was; None for what is no time."""
    try:
        return now.wall_us / 1e6 - parse_rfc3339(at).timestamp()
    except (ValueError, OverflowError):
        return None


def age_of(at: str, now: Instant) -> str:
    """How long ago, for a person; "" for what is no time."""
    seconds = seconds_since(at, now)
    return "" if seconds is None else age(seconds)


def time_column(out: Out, key: str, title: str = "") -> Column:
    """A time: exact in a pipe, in seconds on a terminal."""
    return Column(key, title=title, show=in_seconds if out.terminal else None, keep=True)


class counted(Iterator[T]):  # noqa: N801 (it reads as a function)
    """Items as they come, and how many have come."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self.count = 0

    def __next__(self) -> T:
        item = next(self._items)
        self.count += 1
        return item


def say_kinds(out: Out, view: View, kind: str, there: str = "") -> None:
    """Say on stderr that an agent has no record of ``kind``, and of which kinds it has."""
    known = ", ".join(view.kinds())
    out.message(f"no record of the kind {quoted(kind)}{there}; {view.agent} has: {known}")


# -- agents ----------------------------------------------------------------------------------


def lease_state(lease: Lease, now: Instant) -> str:
    """``live``, ``lapsed`` (its time is over), ``dead`` (its holder provably is) or ``released``."""
    if lease.state == "released":
        return "released"
    if provably_dead(lease.process):
        return "dead"
    return "live" if lease.live(now) else "lapsed"


def holder_alive(lease: Lease) -> str:
    """``alive``, ``dead``, or ``unknown`` from here: another host, boot or container."""
    if provably_dead(lease.process):
        return "dead"
    ours, its = this_process(), lease.process
    return "alive" if its.boot and (its.host, its.boot, its.pidns) == (ours.host, ours.boot, ours.pidns) else "unknown"


def every_lease(backend: Backend) -> Iterator[Lease]:
    """The lease rows of all agents, by agent."""
    after = ""
    while page := backend.leases(after=after, limit=200):
        yield from page
        after = page[-1].agent


def agent_row(backend: Backend, lease: Lease, now: Instant) -> dict[str, Any]:
    """An agent in a list: who acts for it, and how far it is."""
    view = View(backend, lease.agent)
    with backend.reading():
        counters = backend.counters(lease.agent)
        _, pending = backend.in_force_newest(lease.agent, ACTION, limit=0)
        newest = next(backend.log(lease.agent, after=counters.lsn - 1, limit=1), None)
        state = view.working_state()
        archived = bool(view.archived())
    return {
        "agent": lease.agent,
        "state": "archived" if archived else lease_state(lease, now),
        "holder": lease.holder,
        "epoch": lease.epoch,
        "turns": counters.turns,
        "pending": pending,
        "last_at": newest.at if newest else "",
        "goal": state.goal,
    }


# -- records in one line -----------------------------------------------------------------------


def log_columns(out: Out) -> list[Column]:
    """The columns of a log."""
    return [
        Column("lsn", right=True, keep=True),
        time_column(out, "at"),
        Column("epoch", right=True, keep=True),
        Column("key", keep=True),
        Column("summary"),
    ]


def log_row(record: Record) -> dict[str, Any]:
    """A record as ``log`` shows it."""
    return {
        "agent": record.agent,
        "lsn": record.lsn,
        "at": record.at,
        "epoch": record.epoch,
        "key": record.key,
        "kind": record.kind,
        "summary": summary(record),
        "line": record.line.decode("utf-8", "replace"),
        "hash": record.hash.hex(),
    }


def summary(record: Record) -> str:
    """What a record says, in one line of at most ``SUMMARY_BYTES``."""
    try:
        body = record.fields()
    except BadRecord as problem:
        return f"({problem.details['reason']})"
    text = _SUMMARIES.get(record.kind, _any)({name: _text(value) for name, value in body.items()})
    text = " ".join(text.split())
    return text if len(text.encode()) <= SUMMARY_BYTES else cut(text, SUMMARY_BYTES) + "…"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_text(each)}" for name, each in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)


def _state(body: Mapping[str, str]) -> str:
    if body.get("milestone"):
        return f"milestone: {body.get('last_milestone', '')}"
    return "; ".join(f"{name}: {body[name]}" for name in ("goal", "progress", "focus", "notes") if name in body)


def _turn(body: Mapping[str, str]) -> str:
    return f"{body.get('role', '')} {body.get('name', '')}".rstrip() + ": " + (body.get("brief") or _content(body))


def _content(body: Mapping[str, str]) -> str:
    return body.get("content") or ("(large)" if "blobs" in body else "")


def _pointer(body: Mapping[str, str]) -> str:
    return "removed" if body.get("removed") else f"{body.get('type', '')} {body.get('fields', '')}"


def _output(body: Mapping[str, str]) -> str:
    return f"{body.get('tool', '')} ~{body.get('tokens', '0')} tokens: {body.get('summary', '')}"


def _action(body: Mapping[str, str]) -> str:
    step = f" step {body['step']}" if "step" in body else ""
    said = next((body[name] for name in ("error", "result", "resolution", "args") if body.get(name)), "")
    return f"{body.get('status', '')}: {body.get('class', '')} {body.get('tool', '')}{step} {said}"


# Why a lease could be had: a word about the holder before, which could be misread for one about this one.
_HAD = {
    "first": "first",
    "released": "",
    "expired": "the lease before had lapsed",
    "dead": "the holder before was dead",
    "again": "its own had lapsed",
}


def _lease(body: Mapping[str, str]) -> str:
    event, holder, reason = body.get("event", ""), body.get("holder", ""), body.get("reason", "")
    if reason == "broken" and event == "acquired":
        return broken(body)
    why = _HAD.get(reason, reason) if event == "acquired" else ""
    return f"{event} by {holder}" + (f" ({why})" if why else "")


def broken(body: Mapping[str, Any]) -> str:
    """Who broke a lease, and why; "" of a lease record that says something else."""
    if body.get("reason") != "broken":
        return ""
    return f"broken by {body.get('by') or body.get('holder', '')}: {body.get('why', '')}"


def break_of(backend: Backend, agent: str, epoch: int) -> str:
    """Who made ``epoch`` by breaking the lease before it, and why; "" if nobody did."""
    record = backend.newest(agent, LEASE, seq=epoch)
    try:
        return broken(record.fields()) if record else ""
    except BadRecord:
        return ""


def _lifecycle(body: Mapping[str, str]) -> str:
    by = f" by {body['by']}" if "by" in body else ""
    reason = f": {body['reason']}" if body.get("reason") else ""
    upto = f" up to lsn {body['lsn']}" if "lsn" in body else ""
    return f"{body.get('event', '')}{upto}{by}{reason}"


def _any(body: Mapping[str, str]) -> str:
    return _text(dict(body))


_SUMMARIES = {
    WORKING_STATE: _state,
    TURN: _turn,
    POINTER: _pointer,
    OUTPUT: _output,
    ACTION: _action,
    LEASE: _lease,
    STEP: _any,
    LIFECYCLE: _lifecycle,
}


# -- one thing, for a person -------------------------------------------------------------------


def labelled(pairs: Iterable[tuple[str, Any]], width: int = 15) -> Iterator[str]:
    """A label and a value a line, without the empty ones; further lines of a value are indented."""
    for label, value in pairs:
        if value in ("", None, (), [], {}):
            continue
        if isinstance(value, (list, tuple)):
            yield f"{label}:"
            yield from (f"  {at}. {indented(str(each), 5)}" for at, each in enumerate(value, 1))
        elif isinstance(value, str) and "\n" in value:
            yield f"{label}:\n  {indented(value, 2)}"
        else:
            yield f"{label + ':':<{width}} {neutral_line(str(value))}"


def indented(text: str, columns: int = 4) -> str:
    """A stored text whose further lines cannot pass for lines of ours."""
    return neutral(text).replace("\n", "\n" + " " * columns)
