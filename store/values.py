"""The typed values inside the bodies of records.

A value's ``body()`` is its fixed form (docs/design.md): fields in this
order, empty and zero ones left out, times in whole seconds. Reading takes
fields that it knows and leaves the rest, so that a newer writer's records can
still be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, is_dataclass
from typing import Any

from store.records import CLASSES, OPEN_STATUSES, STATUSES, FetchBlob, Record, compact, in_seconds, written_at
from store.value import names_of, value


class _Reader:
    """Takes typed fields out of a body that some other version may have written."""

    def __init__(self, record: Record, body: Mapping[str, Any]) -> None:
        self.record, self.body = record, body

    @property
    def at(self) -> str:
        return written_at(self.record, self.body)

    def text(self, name: str) -> str:
        value = self.body.get(name, "")
        if not isinstance(value, str):
            raise self.record.bad(f"{name} is not text")
        return value

    def every_text(self, names: tuple[str, ...]) -> dict[str, str]:
        found = {name: self.body.get(name, "") for name in names}
        for name, each in found.items():
            if not isinstance(each, str):
                raise self.record.bad(f"{name} is not text")
        return found

    def number(self, name: str) -> int:
        value = self.body.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.record.bad(f"{name} is not a whole number")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.body.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self.record.bad(f"{name} is not a list of texts")
        return tuple(value)


@value
class WorkingState:
    """The agent's note to its next instance; each update is a version.

    Attributes:
        version: from 1; 0 is the empty state before the first update.
        turn_seq, action_seq: the newest turn and action when it was written.
        updated_at: RFC 3339, UTC.
        is_milestone: this version was written by a milestone.
    """

    goal: str = ""
    plan: tuple[str, ...] = ()
    progress: str = ""
    focus: str = ""
    decisions: tuple[str, ...] = ()
    open_questions: tuple[str, ...] = ()
    notes: str = ""
    step: int = 0
    last_milestone: str = ""
    version: int = 0
    turn_seq: int = 0
    action_seq: int = 0
    updated_at: str = ""
    is_milestone: bool = False

    def body(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names_of(self)}
        values["milestone"] = values.pop("is_milestone")
        values["updated_at"] = in_seconds(self.updated_at)
        return compact(values)

    @staticmethod
    def read(record: Record, fetch: FetchBlob | None = None) -> WorkingState:
        body = record.fields(fetch)
        take = _Reader(record, body)
        return WorkingState(
            goal=take.text("goal"),
            plan=take.texts("plan"),
            progress=take.text("progress"),
            focus=take.text("focus"),
            decisions=take.texts("decisions"),
            open_questions=take.texts("open_questions"),
            notes=take.text("notes"),
            step=take.number("step"),
            last_milestone=take.text("last_milestone"),
            version=record.seq,
            turn_seq=take.number("turn_seq"),
            action_seq=take.number("action_seq"),
            updated_at=take.at,
            is_milestone=body.get("milestone") is True,
        )


STATE_LISTS = ("plan", "decisions", "open_questions")
STATE_FIELDS = ("goal", "plan", "progress", "focus", "decisions", "open_questions", "notes", "step")


@value
class Turn:
    """One message, verbatim.

    Attributes:
        seq: from 1 over all epochs.
        output_ref: where the whole content is, when ``content`` is only its opening.
        brief: what a briefing shows in the content's place, or "".
        at: RFC 3339, UTC.
    """

    seq: int
    role: str
    content: str = ""
    name: str = ""
    output_ref: str = ""
    message_id: str = ""
    brief: str = ""
    at: str = ""

    def body(self) -> dict[str, Any]:
        return turn_body(vars(self))

    @staticmethod
    def read(record: Record, fetch: FetchBlob | None = None) -> Turn:
        take = _Reader(record, record.fields(fetch))
        return Turn(seq=record.seq, at=take.at, **take.every_text(_TURN_TEXTS))


_TURN_TEXTS = ("role", "content", "name", "output_ref", "message_id", "brief")


def turn_body(values: Mapping[str, str]) -> dict[str, str]:
    """The body of a turn with these values."""
    return {name: values[name] for name in _TURN_TEXTS if values.get(name)}


ROLES = ("system", "user", "assistant", "tool")


@value
class Pointer:
    """Where a piece of work lives. ``removed`` ones stay in the log only."""

    name: str
    type: str
    fields: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    at: str = ""
    removed: bool = False

    def body(self) -> dict[str, Any]:
        if self.removed:
            return {"removed": True}
        return {"type": self.type, "fields": dict(self.fields), **compact({"note": self.note})}

    @staticmethod
    def read(record: Record, fetch: FetchBlob | None = None) -> Pointer:
        body = record.fields(fetch)
        take = _Reader(record, body)
        values = body.get("fields", {})
        if not isinstance(values, dict) or not all(isinstance(each, str) for each in values.values()):
            raise record.bad("fields is not an object of texts")
        removed = body.get("removed") is True
        return Pointer(record.name, take.text("type"), values, take.text("note"), take.at, removed)


# type: (its own fields in order, the fields of which at least one is needed)
POINTER_TYPES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "git_ref": (("repo", "branch", "sha"), ("sha", "branch")),
    "object": (("uri",), ("uri",)),
    "env": (("image", "lockfile_hash", "setup"), ("image", "lockfile_hash", "setup")),
    "external": (("kind", "id", "url"), ("id", "url")),
    "process": (("command", "port"), ("command",)),
}


@value
class OutputRef:
    """A stored output without its content. ``tokens`` is its size, four UTF-8 bytes each."""

    ref: str
    tool: str = ""
    summary: str = ""
    tokens: int = 0
    at: str = ""

    @staticmethod
    def read(record: Record, fetch: FetchBlob | None = None) -> OutputRef:
        take = _Reader(record, record.fields(None))
        return OutputRef(record.name, take.text("tool"), take.text("summary"), take.number("tokens"), take.at)


@value
class Output:
    """A large text kept whole under a ref."""

    ref: str
    content: str
    tool: str = ""
    summary: str = ""
    at: str = ""

    def body(self) -> dict[str, Any]:
        tokens = tokens_of(self.content)
        return compact({"tool": self.tool, "summary": self.summary, "tokens": tokens, "content": self.content})

    @staticmethod
    def read(record: Record, fetch: FetchBlob | None = None) -> Output:
        take = _Reader(record, record.fields(fetch))
        return Output(record.name, take.text("content"), take.text("tool"), take.text("summary"), take.at)


@value
class Action:
    """One tool call that may touch the world.

    Attributes:
        class_: ``pure``, ``idempotent`` or ``external``: what running it again would do.
        key: the idempotency key, the same for every retry.
        status: ``started``, ``done``, ``failed``, ``abandoned`` or ``unknown``.
        args_ref, result_ref: the outputs that hold what was too large, or "".
        resolution: how it was settled, when it did not close itself.
        by: who settled it by hand.
        step, run: the step's name and its run, or "".
        retry_of: the seq of the action that this one is a new attempt of, or 0.
        retried_as: the seq of the attempt that somebody made of it after its close, or 0.
        epoch, incarnation: under which it was last started; its owner.
        started_at, ended_at: RFC 3339, UTC, in seconds.
        notes: amendments after the close, oldest first.
        ship: what its beginning waited for, in a store that ships: ``barrier`` (the bucket had the intent
            before the tool ran), ``lazy`` or ``off``; "" in a store that does not.
        max_ms: the most milliseconds that the tool runs, or 0 where nobody said.
        inbox: the id of the queued resolution that settled it from another machine, or "".
        command: of a shell step: its process (``store.running``), and after its end its exit status and stderr.
    """

    seq: int
    tool: str
    class_: str
    key: str
    status: str
    args: str = ""
    args_ref: str = ""
    result: str = ""
    result_ref: str = ""
    error: str = ""
    resolution: str = ""
    by: str = ""
    step: str = ""
    run: str = ""
    retry_of: int = 0
    retried_as: int = 0
    epoch: int = 0
    incarnation: str = ""
    started_at: str = ""
    ended_at: str = ""
    notes: tuple[str, ...] = ()
    command: Mapping[str, Any] = field(default_factory=dict)
    ship: str = ""
    max_ms: int = 0
    inbox: str = ""

    @property
    def open(self) -> bool:
        """Whether it has no outcome yet."""
        return self.status in OPEN_STATUSES

    def body(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in names_of(self) if name != "seq"}
        return compact({"class" if name == "class_" else name: value for name, value in values.items()})

    @staticmethod
    def read(record: Record, fetch: FetchBlob | None = None) -> Action:
        take = _Reader(record, record.fields(fetch))
        command = take.body.get("command", {})
        if not isinstance(command, dict):
            raise record.bad("command is not an object")
        action = Action(
            seq=record.seq,
            command=command,
            class_=take.text("class"),
            retry_of=take.number("retry_of"),
            retried_as=take.number("retried_as"),
            epoch=take.number("epoch"),
            max_ms=take.number("max_ms"),
            notes=take.texts("notes"),
            **take.every_text(_ACTION_TEXTS),
        )
        if action.status not in STATUSES or action.class_ not in CLASSES:
            raise record.bad(f"status {action.status!r} or class {action.class_!r} is not known")
        return action


def plain(value: Any, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """A value of ours under the names that programs know (``class``, not ``class_``), every field there."""
    return {
        "class" if name == "class_" else name: _plain(getattr(value, name))
        for name in names_of(value)
        if name not in without
    }


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return plain(value) if is_dataclass(value) else value


_CALL_TEXTS = ("tool", "key", "status", "args", "args_ref", "step", "run", "incarnation", "started_at", "ship")
_OUTCOME_TEXTS = ("result", "result_ref", "error", "resolution", "by", "ended_at", "inbox")
_ACTION_TEXTS = _CALL_TEXTS + _OUTCOME_TEXTS


def tokens_of(text: str) -> int:
    """The size of a text in tokens: four UTF-8 bytes each, rounded up (the peer's measure)."""
    return (len(text.encode("utf-8", "surrogatepass")) + 3) // 4
