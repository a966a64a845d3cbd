"""What the log holds: its kinds of records, what is appended, and what it has become.

A record's body is JSON whose fields depend on its kind; ``values.py`` gives
those that callers get a type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from store.canonical import decode, key_of
from store.errors import BadRecord
from store.value import value

WORKING_STATE, TURN, POINTER, OUTPUT = "working_state", "turn", "pointer", "output"
ACTION, LEASE, STEP, LIFECYCLE = "action", "lease", "step", "lifecycle"
TOOL, RUN = "tool", "run"
ARCHIVED = "archived"  # the name of the lifecycle record that says whether an agent is archived
PRUNED = "pruned"  # the name of the one that says where the log begins, and who decided it
CARRIED = "carried"  # the field of a record that a prune wrote again: the lsn, hash and time of the one before

# Of actions: what running one again would do, and what became of one.
CLASSES = ("pure", "idempotent", "external")
OPEN_STATUSES = ("started", "unknown")
CLOSED_STATUSES = ("done", "failed", "abandoned")
STATUSES = OPEN_STATUSES + CLOSED_STATUSES

NEXT = -1  # a draft's seq: the next free number of its kind

FetchBlob = Callable[[str], bytes]


@value
class Draft:
    """A record about to be appended; the log gives it lsn, epoch, time and hash.

    Attributes:
        seq: a number, NEXT for the next free one of the kind, or 0 for a named record.
        name: the name of a named record, or "".
    """

    kind: str
    body: Mapping[str, Any]
    seq: int = 0
    name: str = ""


@value
class Expect:
    """What must be true of a key for an append to happen: its newest lsn, 0 for none."""

    kind: str
    lsn: int
    seq: int = 0
    name: str = ""


@value
class Record:
    """One entry of an agent's log. ``line`` holds the canonical bytes."""

    agent: str
    branch: int
    lsn: int
    epoch: int
    kind: str
    seq: int
    name: str
    body: str
    at: str
    line: bytes
    hash: bytes

    @property
    def key(self) -> str:
        """The key below the agent, such as ``turn:1``."""
        return key_of(self.kind, self.seq, self.name)

    def wrapper(self, kind: str = "") -> str:
        """The JSON value that operators and the peer's readers know: ``recall records`` prints it."""
        named = {"name": self.name} if self.name else {"seq": str(self.seq)}
        head = {"record": kind or self.kind, **({} if kind else named), "epoch": str(self.epoch), "body": self.body}
        return json.dumps(head, ensure_ascii=False, separators=(",", ":"))

    def bad(self, reason: str) -> BadRecord:
        return BadRecord(agent=self.agent, key=self.key, lsn=self.lsn, reason=reason)

    def fields(self, fetch: FetchBlob | None = None) -> dict[str, Any]:
        """The body's fields; those that were moved to blobs are fetched with ``fetch``.

        Without ``fetch`` they stay out, which is what listings want.

        Raises:
            BadRecord: the body is not a JSON object, or a blob is gone.
        """
        try:
            body = decode(self.body)
        except (ValueError, RecursionError):
            raise self.bad("its body is not JSON") from None
        if not isinstance(body, dict):
            raise self.bad("its body is not a JSON object")
        moved = body.pop("blobs", None)
        if moved is None or fetch is None:
            return body
        try:
            for name, (blob, _size, form) in moved.items():
                text = fetch(blob).decode()
                body[name] = text if form == "text" else json.loads(text)
        except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as problem:
            raise self.bad(f"a blob of it cannot be read ({problem})") from None
        return body


def written_at(record: Record, body: Mapping[str, Any]) -> str:
    """When a record was first written: of one that a prune wrote again, the time of the one that it stands for."""
    carried = body.get(CARRIED)
    at = carried.get("at") if isinstance(carried, Mapping) else None
    return at if isinstance(at, str) else record.at


def in_seconds(at: str) -> str:
    """An RFC 3339 time of ours without its fraction, as bodies and briefings have it."""
    return at[:19] + "Z" if len(at) > 20 else at


IN_FORCE, TO_SETTLE = 1, 2


def in_force(kind: str, body: Mapping[str, Any]) -> int:
    """Whether a key with this newest body still counts: the ``open`` of the projection.

    Returns:
        0: not; IN_FORCE; or TO_SETTLE: it is an open action too, and the next
        incarnation has to settle it (``store.actions.after_takeover``).
    """
    if kind == ACTION:
        if body.get("status") == "started" and body.get("class") in ("pure", "external"):
            return TO_SETTLE
        return int(body.get("status") in OPEN_STATUSES)
    if kind == RUN:
        return int(body.get("status") == "started")
    return int(kind == OUTPUT or (kind == POINTER and not body.get("removed")))


def compact(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without the empty and zero fields, as bodies are written."""
    return {name: each for name, each in values.items() if each}
