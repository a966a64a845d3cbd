"""A table on a terminal: aligned, coloured, one line a row, as wide as the window.

Nothing is held but the first page of the rows, which sets the widths.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recall_cli.render import Column, Row, output_failed

_PAGE = 200  # rows that set the widths


def print_table(columns: Sequence[Column], rows: Iterator[Row], file: TextIO | None, *, color: bool) -> None:
    """Print ``rows`` to ``file``.

    Raises:
        OutputFailed: it is full or broken.
        BrokenPipeError: the reader is gone.
    """
    console = Console(
        file=file,
        no_color=not color,
        color_system="standard" if color else None,
        force_terminal=True,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    page = list(itertools.islice(rows, _PAGE))
    widths: list[int] = []
    while page:
        cells = [[column.text(row)[: None if column.keep else console.width] for column in columns] for row in page]
        table = Table(box=None, show_header=not widths, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        if not widths:
            widths = [
                max(cell_len(column.heading), *(cell_len(line[at]) for line in cells))
                for at, column in enumerate(columns)
            ]
            widths = _fit(widths, [column.keep for column in columns], console.width - 2 * len(columns))
            # Too narrow for what must stay whole: the terminal wraps the lines, and no column is left out.
            console.width = max(console.width, sum(widths) + 2 * len(columns))
        for column, width in zip(columns, widths, strict=True):
            table.add_column(
                Text(column.heading),
                width=width,
                no_wrap=True,
                overflow="ellipsis",
                justify="right" if column.right else "left",
            )
        for row, texts in zip(page, cells, strict=True):
            table.add_row(
                *(Text(text, style=column.style_of(row)) for column, text in zip(columns, texts, strict=True))
            )
        try:
            console.print(table)
        except OSError as problem:
            raise output_failed(problem) from problem
        page = list(itertools.islice(rows, _PAGE))


def _fit(widths: list[int], keep: list[bool], room: int) -> list[int]:
    """``widths`` made to sum up to at most ``room`` by shortening the widest that may be."""
    widths = list(widths)
    while sum(widths) > room:
        widest = max((at for at in range(len(widths)) if not keep[at]), key=lambda at: widths[at], default=None)
        if widest is None or widths[widest] <= 8:
            break
        widths[widest] -= min(sum(widths) - room, max(1, widths[widest] // 8))
        widths[widest] = max(8, widths[widest])
    return widths
