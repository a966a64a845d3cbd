"""The command's exit codes: fixed, one for each thing a caller can do next."""

from __future__ import annotations

from enum import IntEnum

from store import errors


class Exit(IntEnum):
    """An exit code; ``meaning`` says when it is given, ``todo`` what helps."""

    meaning: str
    todo: str

    def __new__(cls, code: int, meaning: str, todo: str = "") -> Exit:
        self = int.__new__(cls, code)
        self._value_ = code
        self.meaning = meaning
        self.todo = todo
        return self

    DONE = 0, "done, and durable", ""
    UNEXPECTED = 1, "unexpected error", "run again with RECALL_DEBUG=1 and report what it prints"
    USAGE = 2, "usage: the call or a value in it cannot be accepted", "change the call; nothing was written"
    NOT_FOUND = 3, "not found: no such store, agent or record", "check --dir, RECALL_DIR and the name"
    HELD = 4, "the lease is held by another process", "wait, or ask its holder"
    FENCED = 5, "fenced: the lease is lost, expired or not held", "stop acting; resume the agent to go on"
    CONFLICT = 6, "conflict: already settled, or bound to other arguments", "look at what is there"
    UNAVAILABLE = 7, "store or output busy, unreachable, read-only or out of space", "mend that and try again"
    UNSETTLED = 8, "an interrupted action needs settling first", "recall actions resolve"
    CORRUPT = 9, "corrupt or forked data", "recall verify, recall doctor"
    INTERRUPTED = 130, "interrupted from the keyboard", ""


# What nearly every command that reads, or writes, a store can end with, besides 0, 1, 2 and 130.
READS = (Exit.NOT_FOUND, Exit.UNAVAILABLE, Exit.CORRUPT)
WRITES = (Exit.NOT_FOUND, Exit.HELD, Exit.FENCED, Exit.CONFLICT, Exit.UNAVAILABLE, Exit.CORRUPT)

_BY_BASE: tuple[tuple[type[errors.RecallError], Exit], ...] = (
    (errors.InvalidInput, Exit.USAGE),
    (errors.NotFound, Exit.NOT_FOUND),
    (errors.LeaseHeld, Exit.HELD),
    (errors.Fenced, Exit.FENCED),
    (errors.Conflict, Exit.CONFLICT),
    (errors.Unavailable, Exit.UNAVAILABLE),
    (errors.NeedsSettling, Exit.UNSETTLED),
    (errors.Corrupt, Exit.CORRUPT),
)


def exit_of(problem: errors.RecallError) -> Exit:
    """The exit code of a refusal, by its base class."""
    return next((code for base, code in _BY_BASE if isinstance(problem, base)), Exit.UNEXPECTED)
