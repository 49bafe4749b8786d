"""Tables of words and numbers: as a page shows them, and as text for a terminal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["COLUMNS", "Table", "columns_here", "table_of", "text_table"]

ROWS_SHOWN_MAX = 40
# In a terminal; a page has them all.
TEXT_ROWS_MAX = 25
# Where nobody looks on: in a file.
COLUMNS = 120
INDENT, BETWEEN = "  ", "  "


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text. left: how many columns are words. left_out: which rows are not shown."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    left_out: str = ""


def table_of(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
    shown_max: int = ROWS_SHOWN_MAX,
) -> Table:
    """A table of the first rows; the rest is counted."""
    shown = tuple(tuple(row) for row in rows[:shown_max])
    rest = len(rows) - len(shown)
    left_out = f"{rest:,} more rows are in the JSON beside this page." if rest else ""
    return Table(tuple(head), shown, left, left_out)


def columns_here() -> int:
    """Of the terminal, if there is one."""
    return shutil.get_terminal_size((COLUMNS, 24)).columns


def text_table(table: Table, columns: int = COLUMNS) -> list[str]:
    """Words to the left, numbers to the right.

    columns: how wide it may be; what does not fit goes below, beside its words again.
    """
    every = (table.head, *table.rows[:TEXT_ROWS_MAX])
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    align: list[Callable[[str, int], str]] = [
        str.ljust if number < table.left else str.rjust for number in range(len(widths))
    ]
    lines = []
    for shown in _blocks(widths, table.left, columns - len(INDENT)):
        lines += [
            INDENT + BETWEEN.join(align[n](row[n], widths[n]) for n in shown).rstrip()
            for row in every
        ]
    if (rest := len(table.rows) - TEXT_ROWS_MAX) > 0:
        lines.append(f"{INDENT}{rest:,} more rows are on the page.")
    return lines + ([f"{INDENT}{table.left_out}"] if table.left_out else [])


def _blocks(widths: Sequence[int], left: int, room: int) -> list[list[int]]:
    """The columns of each block: those of words in each, of the others as many as fit."""
    words = list(range(left))
    blocks = [words[:]]
    for number in range(left, len(widths)):
        shown = [*blocks[-1], number]
        width = sum(widths[n] for n in shown) + len(BETWEEN) * (len(shown) - 1)
        if width > room and len(blocks[-1]) > left:
            blocks.append([*words, number])
        else:
            blocks[-1].append(number)
    return blocks
