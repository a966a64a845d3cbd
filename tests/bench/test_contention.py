"""The quick form of ``python -m bench.contention``."""

from __future__ import annotations

from bench.contention.__main__ import COLUMNS, LABELS, measure
from bench.report import Cell


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
