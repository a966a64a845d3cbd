"""The quick form of ``python -m bench.contention``."""

from __future__ import annotations

import pytest

from bench.contention.__main__ import COLUMNS, LABELS, broken, measure
from bench.report import Cell, Table


def column(rows: list[list[Cell]], name: str) -> list[Cell]:
    return [row[COLUMNS.index(name)] for row in rows]


def test_several_processes_lose_nothing_and_starve_nobody() -> None:
    """All that was acknowledged to 1 and to 4 processes is there and verifies, after a sync for each write."""
    table, figures = measure([1, 4], seconds=0.5, timeout=5)
    rows = [list(row) for row in table.rows]
    assert column(rows, "processes") == [1, 1, 4, 1, 4, 1, 4, 1, 4]
    assert {*column(rows, "load")} == {*LABELS.values()}
    assert all(isinstance(rate, int) and rate > 0 for rate in column(rows, "writes/s"))
    assert all(each == "" or float(each) >= 1 for each in column(rows, "syncs a write"))
    ours = [row for row in rows if str(row[0]).startswith("Recall")]
    assert len(ours) == 4
    for name in ("refused", "not stored", "problems"):
        assert column(ours, name) == [0] * 4
    assert all(isinstance(each, float) and each > 0 for each in column(ours, "slowest : fastest"))
    assert figures["steps 4 lost"] == 0
    assert not broken(table)


@pytest.mark.parametrize(
    ("load", "column_", "cell", "said"),
    [
        ("turns", "syncs a write", 0.99, ["Recall, turns, 4 processes: 0.99 syncs a write"]),
        ("turns", "syncs a write", "", []),  # no strace here
        ("sqlite", "syncs a write", 0.5, []),
        ("steps", "not stored", 2, ["Recall, steps, 4 processes: 2 acknowledged and not stored, 0 problems"]),
        ("sqlite", "not stored", 1, ["plain SQLite, WAL, 4 processes: 1 acknowledged and not stored, 0 problems"]),
        ("turns", "problems", 1, ["Recall, turns, 4 processes: 0 acknowledged and not stored, 1 problems"]),
    ],
)
def test_what_is_no_success(load: str, column_: str, cell: Cell, said: list[str]) -> None:
    """What is acknowledged before it is durable, or is not there afterwards, is said, and the bench exits with 1."""
    cells: dict[str, Cell] = {**dict.fromkeys(COLUMNS, 0), "load": LABELS[load], "processes": 4, "syncs a write": 1.0}
    assert broken(Table("concurrency", COLUMNS, [list({**cells, column_: cell}.values())])) == said
