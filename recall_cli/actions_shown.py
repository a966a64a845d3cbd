"""One action, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from shutil import get_terminal_size
from typing import Any

from recall_cli.evidence import collected, line, of_action
from recall_cli.look import age_of, labelled, log_row
from recall_cli.render import Column
from store.clock import Instant
from store.records import ACTION, Record
from store.running import still_running
from store.values import Action, plain
from store.views import MayRun, View

STYLES = {"done": "green", "failed": "red", "unknown": "yellow", "started": "cyan", "abandoned": "dim"}
_WIDE = 140  # columns of a terminal that has room for a key of 32 digits
_AROUND = 3  # records of the log shown before and after


def as_row(view: View, action: Action) -> dict[str, Any]:
    """An action for programs. Its owner's incarnation, half of a fencing token, stays out."""
    running = still_running(view.backend.directory, action)
    waits = view.may_run(action)
    return {
        "agent": view.agent,
        **plain(action, without=("incarnation",)),
        "still_running": running or None,
        "may_run_until": waits.until if waits else None,
        "may_run_on": waits.holder if waits else None,
    }


def status_of(row: dict[str, Any]) -> str:
    if row["still_running"]:
        return f"{row['status']} (still running as {row['still_running']})"
    if row["may_run_until"]:
        return f"{row['status']} ({MayRun(row['may_run_until'], row['may_run_on'])})"
    return str(row["status"])


def columns(terminal: bool) -> list[Column]:
    """The columns of a list of actions."""
    shown = [
        Column("agent", keep=True),
        Column("seq", right=True, keep=True),
        Column("status", keep=True, style=lambda status: STYLES.get(status.split()[0], "")),
        Column("class", keep=True),
        Column("tool"),
        Column("step"),
        Column("age", keep=True) if terminal else Column("started_at"),
        Column("key", keep=True),
        Column("args"),
    ]
    if terminal and get_terminal_size().columns < _WIDE:
        shown = [column for column in shown if column.key != "key"]  # `actions show` has it
    return shown


ASIDE_COLUMNS = [Column("verdict", keep=True), Column("set_aside", keep=True), Column("store")]


def for_people(row: dict[str, Any], now: Instant) -> dict[str, Any]:
    """What a row of ``as_row`` shows differently to a person."""
    args = f"(in output {row['args_ref']})" if row["args_ref"] else row["args"]
    return {"status": status_of(row), "age": age_of(row["started_at"], now), "args": args}


def details(view: View, seq: int, *, remote: bool = False) -> dict[str, Any]:
    """All that the store, and with ``remote`` the bucket, knows of an action. Raises NotFound."""
    action = view.action(seq)
    whole = replace(
        action,
        args=view.content(action.args_ref) if action.args_ref else action.args,
        result=view.content(action.result_ref) if action.result_ref else action.result,
    )
    records = view.backend.history(view.agent, ACTION, seq=seq)
    return {
        **as_row(view, whole),
        "versions": [_version(record, view) for record in records],
        "around": [log_row(record) for record in _around(view, records)],
        "evidence": of_action(collected(view.backend, view.agent, remote=remote), action),
    }


def _version(record: Record, view: View) -> dict[str, Any]:
    at = next(view.each([record], Action.read, blobs=False), None)
    values = {} if at is None else {name: getattr(at, name) for name in ("status", "resolution", "by", "error")}
    return {"lsn": record.lsn, "at": record.at, "epoch": record.epoch, **values}


def _around(view: View, records: list[Record]) -> list[Record]:
    """A few records before and after the action's first record and its newest."""
    found: dict[int, Record] = {}
    for lsn in {records[0].lsn, records[-1].lsn} if records else set[int]():
        first = max(0, lsn - _AROUND - 1)
        found |= {each.lsn: each for each in view.backend.log(view.agent, after=first, limit=lsn + _AROUND - first)}
    return [found[lsn] for lsn in sorted(found)]


def shown(found: dict[str, Any], now: Instant) -> Iterator[str]:
    own = {version["lsn"] for version in found["versions"]}
    yield from labelled(
        (
            ("action", f"{found['seq']} of {found['agent']}"),
            ("status", status_of(found)),
            ("tool", found["tool"]),
            ("class", found["class"]),
            ("key", found["key"]),
            ("step", found["step"]),
            ("run", found["run"]),
            ("retry of", found["retry_of"] or None),
            ("epoch", found["epoch"]),
            ("started", f"{found['started_at']} ({age_of(found['started_at'], now)} ago)"),
            ("ended", found["ended_at"]),
            ("resolution", found["resolution"]),
            ("by", found["by"]),
            ("error", found["error"]),
            ("args", found["args"]),
            ("result", found["result"]),
            ("notes", found["notes"]),
        )
    )
    yield "versions:"
    for version in found["versions"]:
        said = ", ".join(str(version[name]) for name in ("status", "resolution", "error") if version.get(name))
        by = f" by {version['by']}" if version.get("by") else ""
        yield f"  lsn {version['lsn']}  {version['at']}  epoch {version['epoch']}  {' '.join(said.split())}{by}"
    if found["evidence"]:
        yield "set aside:"
        yield from (f"  {line(each)}" for each in found["evidence"])
    yield "log:"
    for row in found["around"]:
        mark = ">" if row["lsn"] in own else " "
        yield f"{mark} {row['lsn']:>6}  {row['at']}  {row['key']}  {row['summary']}"
