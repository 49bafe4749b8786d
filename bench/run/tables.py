"""Tables of text: the first column to the left, the others to the right."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["NONE", "table", "told"]

NONE = "\N{EN DASH}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A line of each row, the head first; no space at the ends of lines."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    ]


def told(value: float | None) -> str:
    """Three digits that say something; a dash for what is not known."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"
