"""The newest record of every key of an agent, in the fixed form of keys and values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from store.errors import BadRecord
from store.records import ACTION, LEASE, LIFECYCLE, OUTPUT, POINTER, RUN, STEP, TOOL, TURN, WORKING_STATE, Record
from store.views import View

_ORDER = (WORKING_STATE, TURN, POINTER, OUTPUT, ACTION, STEP, TOOL, RUN, LIFECYCLE)


def newest_records(view: View, kind: str = "") -> Iterator[tuple[str, str]]:
    """Each key's newest record, as key and value; of one kind, or of all but leases."""
    if kind in ("", WORKING_STATE):
        for newest in view.backend.tail(view.agent, WORKING_STATE, limit=1):
            yield f"{view.agent}:ws:head", newest.wrapper("working_state_head")
    for each in (kind,) if kind else _kinds(view):
        for record in view.newest_of(each):
            if each != POINTER or not _removed(record):
                yield f"{view.agent}:{record.key}", record.wrapper()


def _kinds(view: View) -> Iterator[str]:
    """The kinds in their order; those of a newer version, which are not known here, at the end."""
    yield from _ORDER
    yield from (kind for kind in view.kinds() if kind not in (*_ORDER, LEASE))


def _removed(record: Record) -> bool:
    try:
        fields: dict[str, Any] = record.fields()
    except BadRecord:
        return False
    return bool(fields.get("removed"))
