"""Foreign SQL on a store, by a connection that can only read.

``query_only`` is not enough for that: it lets ATTACH and VACUUM INTO make
files. So SQLite asks the authorizer here about every step of a statement
before it runs (sqlite.org/c3ref/set_authorizer.html), and only reading is let
through.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

from store.backends.sqlite import faults, files, schema
from store.errors import InvalidInput
from store.value import value

# Functions that reach outside the database in one build of SQLite or another.
_OUTSIDE = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit", "fsdir", "lsmode", "sqlite_dbpage"}
_OUTSIDE_TABLES = {"fsdir", "sqlite_dbpage", "csv", "zipfile"}
# Pragmas that tell the shape of the database; those below the line change something when given a value.
_TELLING = {
    "table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list",
    "function_list", "collation_list", "compile_options", "database_list",
}  # fmt: skip
_TELLING_ALONE = {"user_version", "application_id", "page_count", "page_size", "freelist_count", "encoding"}
_STEPS = 10_000  # of SQLite's virtual machine between two looks for Ctrl-C
# What the machine or the file, and not the statement, is to blame for: how SQLite's own texts begin. Elsewhere in
# a message may stand what the statement said ("no such column: disk I/O error").
_OURS = (
    "database disk image is malformed", "malformed database schema", "file is not a database", "disk i/o error",
    "database is locked", "database table is locked", "database schema is locked", "unable to open database",
    "database or disk is full",
)  # fmt: skip
# Python's words for a parameter that got no value: by its name, or by its number before 3.12.
_UNBOUND = re.compile(r"did not supply a value for binding (?:parameter )?(:?\w+)")


@value
class Answer:
    """The columns of a statement, each name once, and its rows as they come."""

    columns: list[str]
    rows: Iterator[tuple[Any, ...]]


@contextmanager
def querying(directory: str, statement: str, values: Mapping[str, str]) -> Iterator[Answer]:
    """Run one statement; the store is open while the block runs.

    Args:
        values: of the statement's ``:name`` parameters.

    Raises:
        InvalidInput: it is not a statement that reads, or SQLite refuses it.
        StoreMissing, StoreForeign, Unavailable, Corrupt: the store cannot be read.
    """
    way = files.for_reading(directory)
    connection = None
    try:
        with faults.translated(directory):
            connection = files.connect(way.uri)
            schema.look(connection, directory)
        connection.text_factory = _text
        _warm(connection)
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(lambda: 0, _STEPS)  # Python raises KeyboardInterrupt in it
        with _refusals(directory):
            cursor = connection.execute(statement, dict(values))
            if cursor.description is None:
                raise InvalidInput(field="SQL", reason="is not a statement that answers", hint="write a SELECT")
            # Closed with the block, since a reader that stops early leaves it unfinished.
            with closing(_rows(cursor, directory)) as found:
                yield Answer(_distinct([each[0] for each in cursor.description]), found)
    finally:
        if connection is not None:
            connection.close()
        way.discard()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")  # SQL can make text of any bytes


def _warm(connection: sqlite3.Connection) -> None:
    """Make known the virtual tables that come with SQLite.

    It declares each at its first use, by steps that look to an authorizer
    like changes of the schema.
    """
    for name in ("json_each", "json_tree", *(f"pragma_{each}" for each in sorted(_TELLING))):
        with suppress(sqlite3.Error):  # an older SQLite may not have it
            connection.execute(f"SELECT 1 FROM {name}('[]') LIMIT 0")


def _rows(cursor: sqlite3.Cursor, directory: str) -> Generator[tuple[Any, ...], None, None]:
    with _refusals(directory):
        yield from cursor


def _authorize(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    if action == sqlite3.SQLITE_SELECT or action == sqlite3.SQLITE_RECURSIVE:
        allowed = True
    elif action == sqlite3.SQLITE_READ:
        allowed = (first or "").lower() not in _OUTSIDE_TABLES
    elif action == sqlite3.SQLITE_FUNCTION:
        allowed = (second or "").lower() not in _OUTSIDE
    elif action == sqlite3.SQLITE_PRAGMA:
        name = (first or "").lower()
        allowed = name in _TELLING or (name in _TELLING_ALONE and not second)
    else:
        allowed = False
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY


@contextmanager
def _refusals(directory: str) -> Iterator[None]:
    """SQLite's refusals of a statement as ours; an interrupted one is Ctrl-C."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as problem:
        text = str(problem)
        if text == "interrupted":
            raise KeyboardInterrupt from None
        if isinstance(problem, sqlite3.DatabaseError) and text.lower().startswith(_OURS):
            raise faults.translate(problem, directory) or problem from problem
        if any(part in text for part in ("not authorized", "prohibited", "authorization denied")):
            raise InvalidInput(
                field="SQL", reason=f"only reading is allowed ({text})", hint="write with the other commands of recall"
            ) from problem
        hint = "the tables and views: recall query --tables" if "no such" in text else "see: recall query --help"
        missing = _UNBOUND.search(text)
        if missing is not None:
            text = f"has {missing[1]}, and no value was given for it"
            hint = f"give it with: -p {missing[1].lstrip(':@$')}=VALUE"
        if "has no name" in text:
            text, hint = "has a parameter without a name", "name it as in :NAME, and give it with: -p NAME=VALUE"
        raise InvalidInput(field="SQL", reason=text.rstrip("."), hint=hint) from problem


def _distinct(names: list[str]) -> list[str]:
    """Column names, later ones of the same name numbered: JSON objects have each field once."""
    found: list[str] = []
    for name in names:
        number, unique = 1, name
        while unique in found:
            number += 1
            unique = f"{name}_{number}"
        found.append(unique)
    return found
