"""``recall query``: SQL that reads."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from recall_cli.exits import READS
from recall_cli.options import Globals, Verbs
from recall_cli.render import Column
from store.backends.sqlite.querying import Answer, querying
from store.errors import InvalidInput
from store.text import neutral, quoted

app = Verbs()

_TYPED = ("agent", "seq", "lsn", "key", "name", "ref", "status")  # what other commands are given is shown whole
_TABLES = (
    "SELECT m.name, m.type, group_concat(i.name, ', ') AS columns FROM sqlite_master m, pragma_table_info(m.name) i "
    "WHERE m.type IN ('table', 'view') GROUP BY m.name ORDER BY m.type DESC, m.name"
)


@app.verb("query", exits=READS)
def run(
    ctx: typer.Context,
    sql: Annotated[str, typer.Argument(metavar="[SQL]", help="One SELECT; - reads stdin, @FILE a file.")] = "",
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param", "-p", metavar="NAME=VALUE", help="The value of :NAME in the statement; may be repeated."
        ),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a heading.")] = False,
    tables: Annotated[bool, typer.Option("--tables", help="List the tables and views with their columns.")] = False,
) -> None:
    """Answer a SELECT over the store.

    The views turns, actions, pending_actions, working_states, pointers, outputs and agents
    have plain columns. agents.lease is the state as it is stored, held or released: whether
    the holder lives is not in the database, and recall agents list tells.

    Nothing but reading is allowed: a statement that would write, attach a file or change a
    setting is refused. Blobs are shown in hexadecimal.

    \b
    recall query "SELECT agent, tool, started_at FROM pending_actions"
    recall query "SELECT seq, content FROM turns WHERE agent = :a" -p a=billing --json
    """
    here = Globals.of(ctx)
    if as_csv and here.out.structured:
        raise InvalidInput(field="--csv", reason="cannot be combined with --json or --jsonl", hint="give one of them")
    if bool(sql) == tables:
        raise InvalidInput(field="SQL", reason="give one statement, or --tables", hint="see: recall query --help")
    statement = _TABLES if tables else here.values.read("SQL", sql)
    if "\x00" in statement or not statement.strip():
        raise InvalidInput(field="SQL", reason="has no statement" if not statement.strip() else "has a NUL character")
    values = dict(_pair(each) for each in param or ())
    with querying(str(here.directory), statement, values) as answer:
        if as_csv:
            _csv(here, answer)
            return
        rows = (dict(zip(answer.columns, map(_shown, row), strict=True)) for row in answer.rows)
        columns = [Column(each, title=each, keep=each in _TYPED) for each in answer.columns]
        here.out.table(columns, rows, empty="no rows")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidInput(
            field="--param", reason=f"{quoted(text)} is not NAME=VALUE", hint="for :NAME in the statement"
        )
    return name, value


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _csv(here: Globals, answer: Answer) -> None:
    def lines() -> Iterator[str]:
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        yield from _line(writer, buffer, answer.columns)
        for row in answer.rows:
            yield from _line(writer, buffer, ["" if each is None else str(_shown(each)) for each in row])

    for line in lines():
        here.out.write(line)


def _line(writer: Any, buffer: io.StringIO, values: list[str]) -> Iterator[str]:
    writer.writerow([neutral(each) for each in values])
    yield buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
