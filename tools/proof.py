"""Puts what the benches measured into the texts: tables into ``docs/proof.md``, figures into it and the README.

A text says where by comments. ``<!-- table: RESULT/TABLE -->`` and
``<!-- end -->`` stand around a table of ``bench/results/RESULT.json``, with
what it was measured on below it; ``<!-- of: RESULT/FIGURE -->`` and
``<!-- end -->`` around one number in a sentence.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path

from bench.report import Cell, Result, Table, load

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("docs/proof.md", "README.md")
_TABLE = re.compile(r"<!-- table: ([\w-]+)/([^>]+?) -->\n.*?<!-- end -->", re.DOTALL)
_FIGURE = re.compile(r"<!-- of: ([\w-]+)/([^>]+?) -->[^<]*<!-- end -->")
_END = "<!-- end -->"
_result = functools.cache(load)


def filled(text: str, result: Callable[[str], Result] = _result) -> str:
    """The text with what was measured last.

    Args:
        result: finds one by its name.

    Raises:
        KeyError: it asks for a table or a figure that no result has.
    """
    text = _TABLE.sub(lambda at: f"<!-- table: {at[1]}/{at[2]} -->\n{_table(result(at[1]), at[2])}{_END}", text)
    return _FIGURE.sub(lambda at: f"<!-- of: {at[1]}/{at[2]} -->{_figure(result(at[1]), at[2])}{_END}", text)


def _table(of: Result, name: str) -> str:
    table = next((each for each in of.tables if each.name == name), None)
    if table is None:
        raise KeyError(f"{of.name} has no table {name}; it has {', '.join(each.name for each in of.tables)}")
    notes = "".join(f"- {note}\n" for note in table.told())
    return f"\n{_markdown(table)}\n{notes}\n" if notes else f"\n{_markdown(table)}\n"


def _markdown(table: Table) -> str:
    numeric = [all(isinstance(row[n], int | float) for row in table.rows) for n in range(len(table.columns))]
    lines = [list(table.columns), ["---:" if each else "---" for each in numeric], *table.cells()]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def _figure(of: Result, name: str) -> str:
    known = {**of.figures, "measured on": _machine(of)}
    if name not in known:
        raise KeyError(f"{of.name} has no figure {name}; it has {', '.join(known)}")
    return _shown(known[name])


def _shown(figure: Cell) -> str:
    if isinstance(figure, float):
        return f"{figure:,.2f}" if figure < 10 else f"{figure:,.0f}"
    return f"{figure:,}" if isinstance(figure, int) else figure


def _machine(of: Result) -> str:
    machine = ", ".join(of.machine.values())
    versions = ", ".join(
        f"{name.replace('recall-memory', 'Recall')} {version}" for name, version in of.versions.items()
    )
    ways = {how for table in of.tables for how in table.made.values()}
    others = " and others, named below the tables," if len(ways) > 1 else ""
    return f"{of.measured} by `{of.command}`{others} on {machine}; {versions}"
