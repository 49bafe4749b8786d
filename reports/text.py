"""Numbers in words, and tables of them for a terminal, a file and a page."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from messagebus.terminal import duration

NONE = "\N{EN DASH}"
# Width of text in a file, without a terminal.
COLUMNS = 120
INDENT, BETWEEN = "  ", 2
ROWS_SHOWN_MAX = 40
# From here on a duration has two units: 2 min 3 s.
DURATION_FROM_MS = 100_000

Cell: TypeAlias = str | Callable[[Mapping[str, Any]], str]
"""Key of a row, or the function that makes the text of a cell from a row."""
Columns: TypeAlias = Mapping[str, Cell] | Sequence[str]
"""Heading -> cell, or keys alone, which are the headings too."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text cells.

    left: number of columns with words. left_out: names the rows that are not shown.
    """

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    left_out: str = ""


def table_of(
    rows: Iterable[Mapping[str, Any]],
    columns: Columns,
    *,
    left: int = 1,
    shown_max: int = ROWS_SHOWN_MAX,
) -> Table:
    """Make a table of the first rows; the rest is counted."""
    every = list(rows)
    columns = columns if isinstance(columns, Mapping) else {plain(key): key for key in columns}
    cells = tuple(
        tuple(cell(row[of]) if isinstance(of, str) else of(row) for of in columns.values())
        for row in every[:shown_max]
    )
    rest = len(every) - len(cells)
    left_out = f"{rest:,} more rows are in the JSON beside this page." if rest else ""
    return Table(tuple(columns), cells, left, left_out)


def cell(value: object) -> str:
    """Format a text, a count, a number with a fraction by `significant`, or nothing."""
    if value is None or value == "":
        return NONE
    if isinstance(value, float):
        return significant(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


def plain(name: str) -> str:
    """Put a name of a column, or a verdict, into words."""
    return name.replace("_", " ")


def significant(value: float | None) -> str:
    """Format a number with three significant digits, never as a power of ten; a dash for None."""
    if value is None:
        return NONE
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{Decimal(f'{value:.3g}'):f}"


def per_second(value: float) -> str:
    """Format a rate: 1,240/s, 12.3/s, 0.0014/s. Only a rate of 0 is shown as 0."""
    return f"{significant(value)}/s"


def milliseconds(value: float | None) -> str:
    """Format a duration for people: 85 µs, 1.24 ms, 120 ms, 1.03 s, 3 h 25 min; a dash for None."""
    if value is None:
        return NONE
    if value < 0.9995:
        return f"{value * 1000:.3g} µs"
    if value < 999.5:
        return f"{value:.3g} ms"
    return f"{value / 1000:.2f} s" if value < DURATION_FROM_MS else duration(value / 1000)


def megabytes(value: float) -> str:
    return f"{value / 1e6:,.1f}"


def columns_here() -> int:
    """Return the columns of the terminal, or COLUMNS."""
    return shutil.get_terminal_size((COLUMNS, 24)).columns


def text_table(
    table: Table, columns: int = COLUMNS, *, indent: str = INDENT, rows_max: int | None = None
) -> list[str]:
    """Format a table: words to the left, numbers to the right. Empty without rows.

    columns: its largest width; columns that do not fit go below, beside the words again.
    rows_max: rows that are shown; a page has them all.
    """
    if not table.rows:
        return []
    shown = table.rows[:rows_max]
    file = io.StringIO()
    # No width at which rich would fold a cell: the blocks are narrow enough, or cannot be narrower.
    console = Console(file=file, width=10_000, color_system=None, legacy_windows=False)
    for block in _blocks(table, shown, columns - len(indent)):
        grid = Grid.grid(padding=(0, BETWEEN, 0, 0))
        for number in block:
            grid.add_column(justify="left" if number < table.left else "right", no_wrap=True)
        for row in (table.head, *shown):
            grid.add_row(*(Text(row[number]) for number in block))
        console.print(grid)
    lines = [(indent + line).rstrip() for line in file.getvalue().splitlines()]
    if rest := len(table.rows) - len(shown):
        lines.append(f"{indent}{rest:,} more rows are on the page.")
    return lines + ([f"{indent}{table.left_out}"] if table.left_out else [])


def _blocks(table: Table, rows: Sequence[Sequence[str]], room: int) -> list[list[int]]:
    """Return the columns of each block: those of words in each, of the others as many as fit."""
    widths = [max(map(cell_len, column)) for column in zip(table.head, *rows, strict=True)]
    blocks = [list(range(table.left))]
    for number in range(table.left, len(widths)):
        block = [*blocks[-1], number]
        width = sum(widths[each] for each in block) + BETWEEN * (len(block) - 1)
        if width > room and len(blocks[-1]) > table.left:
            blocks.append([*blocks[0][: table.left], number])
        else:
            blocks[-1] = block
    return blocks
