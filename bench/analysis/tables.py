"""Tables of words and numbers, for the terminal and for a page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from html import escape

__all__ = ["COLUMNS", "NONE", "columns_here", "html_table", "text_table", "told"]

# The width outside of a terminal, as in a file.
COLUMNS = 120
BETWEEN = "  "
NONE = "\N{EN DASH}"


def columns_here() -> int:
    """Return the width of the terminal, or the default width without one."""
    return shutil.get_terminal_size((COLUMNS, 24)).columns


def text_table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
    indent: str = "",
    columns: int = COLUMNS,
) -> list[str]:
    """Format a table: words aligned left, numbers right. Empty without rows.

    left: the number of columns with words. columns: the maximum width. Columns that do not fit go below,
    with the words repeated.
    """
    if not rows:
        return []
    room = columns - len(indent)
    every = [tuple(head), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    align: list[Callable[[str, int], str]] = [
        str.ljust if number < left else str.rjust for number in range(len(widths))
    ]
    lines = []
    for shown in _blocks(widths, left, room):
        lines += [
            indent + BETWEEN.join(align[n](row[n], widths[n]) for n in shown).rstrip()
            for row in every
        ]
    return lines


def _blocks(widths: Sequence[int], left: int, room: int) -> list[list[int]]:
    """Distribute the columns over blocks. Each block has all columns of words and the others that fit."""
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


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    if not rows:
        return '<p class="note">Nothing.</p>'

    def line(cells: Sequence[str], tag: str) -> str:
        found = [
            f"<{tag}{' class=left' if number < left else ''}>{escape(cell)}</{tag}>"
            for number, cell in enumerate(cells)
        ]
        return f"<tr>{''.join(found)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table>{line(head, "th")}{body}</table></div>'


def told(value: float | None) -> str:
    """Format a number with three significant digits; a dash for None."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"
