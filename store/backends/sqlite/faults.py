"""SQLite's errors, translated in one place; the cause is kept."""

from __future__ import annotations

import sqlite3

from store.errors import (
    RecallError,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreForeign,
    StoreFull,
    StoreReadOnly,
    StoreUnreadable,
)

# Matched on the message: error codes come with Python 3.11 only, and these
# texts have not changed since SQLite 3.7 (sqlite3ErrStr in its main.c).
_SITUATIONS = (
    ("database or disk is full", StoreFull),
    ("database is locked", StoreBusy),
    ("database table is locked", StoreBusy),
    ("readonly database", StoreReadOnly),
    ("not a database", StoreForeign),
    ("disk image is malformed", StoreDamaged),
    ("no such table", StoreDamaged),
    ("no such column", StoreDamaged),
    ("unable to open", StoreUnreadable),
    ("disk i/o error", StoreUnreadable),
    ("authorization denied", StoreReadOnly),
    ("closed database", StoreClosed),
)


def translate(problem: sqlite3.Error, directory: str) -> RecallError | None:
    """The situation that a driver's error means; None for a misuse of the driver, which is a defect of ours."""
    text = str(problem)
    lowered = text.lower()
    for part, situation in _SITUATIONS:
        if part in lowered:
            if situation is StoreUnreadable and _disk_is_full(directory):
                return StoreFull(path=directory)
            return situation(path=directory, reason=text, holder="another program", waited="5")
    misused = isinstance(problem, (sqlite3.ProgrammingError, sqlite3.InterfaceError))
    return None if misused else StoreDamaged(path=directory, reason=text)


class translated:  # noqa: N801 (it reads as a statement)
    """Raise driver errors of the block as Recall's own. A class: the generator form costs a hot path twice as much."""

    __slots__ = ("_directory",)

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if isinstance(problem, sqlite3.Error):
            situation = translate(problem, self._directory)
            if situation is not None:
                raise situation from problem


def _disk_is_full(directory: str) -> bool:
    # SQLite reports a WAL index that cannot grow as an I/O error or a failed open.
    import os

    try:
        room = os.statvfs(directory)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < 64 * 1024
