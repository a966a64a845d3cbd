"""The format of a store: recognising it, making it, bringing it up to date."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from store.backends.sqlite import files
from store.clock import Clock, Random, rfc3339
from store.errors import StoreForeign, StoreNewer
from store.value import value

APPLICATION_ID = 0x52434C4C  # "RCLL", in SQLite's header, where file(1) finds it
_MIGRATIONS = Path(__file__).with_name("migrations")


@value
class Format:
    """What a database file says that it is; version 0 is an empty one."""

    version: int
    empty: bool


def known_version() -> int:
    """The newest format that this code writes."""
    return _numbered()[-1][0]


def objects() -> dict[str, str]:
    """The SQL of everything that a store of the newest format consists of, by name."""
    connection = sqlite3.connect(":memory:")
    try:
        for _, script in _numbered():
            connection.executescript(script.read_text(encoding="utf-8"))
        return dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    finally:
        connection.close()


def look(connection: sqlite3.Connection, directory: str) -> Format:
    """Recognise a database.

    Raises:
        StoreForeign: it is some other program's.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION_ID:
        return Format(version, version == 0)
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application or version or tables:
        raise StoreForeign(path=files.database(directory), reason="it is another program's SQLite database")
    return Format(0, True)


def prepare(connection: sqlite3.Connection, directory: str, clock: Clock, random: Random) -> None:
    """Make the store, or bring it to the newest format; the caller has the write lock.

    Each migration is one transaction with its number, so that a kill leaves
    the format before it or after it. An existing store is copied first.

    Raises:
        StoreForeign, StoreNewer.
    """
    found = look(connection, directory)
    check_writable(found, directory)
    if found.version == known_version():
        return
    if found.empty:
        connection.execute("PRAGMA journal_mode = WAL")
    else:
        _back_up(connection, directory, found.version)
    for number, script in _numbered():
        if number <= found.version:
            continue
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in _statements(script.read_text(encoding="utf-8")):
                connection.execute(statement)
            if number == 1:
                created = rfc3339(clock.now().wall_us)
                connection.execute("INSERT INTO store VALUES (?, ?)", (random.hex(16), created))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    files.sync_directory(directory)


def check_writable(found: Format, directory: str) -> None:
    """Refuse a newer format. Raises StoreNewer."""
    if found.version > known_version():
        raise StoreNewer(path=directory, found=found.version, known=known_version())


def tune(connection: sqlite3.Connection) -> None:
    """The settings that a writer's promises rest on."""
    connection.execute("PRAGMA synchronous = FULL")  # a commit survives the loss of power
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # checkpoints run under the write lock only
    if sys.platform == "darwin":
        connection.execute("PRAGMA fullfsync = ON")  # plain fsync there stops at the drive's cache
        connection.execute("PRAGMA checkpoint_fullfsync = ON")


def _back_up(connection: sqlite3.Connection, directory: str, version: int) -> None:
    target = os.path.join(directory, f"recall.db.format-{version}.backup")
    partial = target + ".partial"
    if os.path.exists(target):
        return
    os.close(os.open(partial, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))
    copy = sqlite3.connect(partial)
    try:
        connection.backup(copy)
    finally:
        copy.close()
    os.replace(partial, target)
    files.sync_directory(directory)


@lru_cache(maxsize=1)  # every opening asks for the newest; only a new or an old store needs their texts
def _numbered() -> tuple[tuple[int, Path], ...]:
    return tuple((int(path.name.partition("_")[0]), path) for path in sorted(_MIGRATIONS.glob("[0-9]*.sql")))


def _statements(script: str) -> Iterator[str]:
    """Split a script where SQLite itself sees the end of a statement."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
