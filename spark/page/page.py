"""The page of a job: figures, charts, bars and tables as one value, shown as HTML and as plain text.

The HTML needs no other files. Bars are plain HTML: they are as wide as the screen is, and their text is
never shrunk or covered. Each look has a pattern besides its colour, so that readers in print and with
colour blindness can tell them apart.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from messagebus.terminal import plural
from spark.measures.faults import PROMISE
from spark.page.drawing import milliseconds

__all__ = [
    "BARS_MAX",
    "COLUMNS",
    "LOOKS",
    "NO_BARS",
    "Bar",
    "Bars",
    "Figure",
    "Page",
    "Part",
    "Section",
    "Table",
    "against_mean",
    "columns_here",
    "environment",
    "render_html",
    "render_text",
    "table_of",
    "text_table",
]

TEMPLATES = Path(__file__).resolve().parent / "templates"
PAGE = "page.html.j2"
# Classes of the page's style, look-0 and so on.
LOOKS = 8
BARS_MAX = 20
ROWS_SHOWN_MAX = 40
# Rows in a terminal; a page has them all.
TEXT_ROWS_MAX = 25
# Width of text in a file, without a terminal.
COLUMNS = 120
INDENT, BETWEEN = "  ", "  "


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bar. what: name in the legend. look: 0 to LOOKS - 1, or "alarm"."""

    what: str
    value: float
    look: int | str = 0


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. told: text beside the bar."""

    name: str
    parts: tuple[Part, ...]
    told: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of one scale. mean: a line through all of them, None for none. note: names what is left out."""

    bars: tuple[Bar, ...] = ()
    mean: float | None = None
    note: str = ""

    @property
    def whole(self) -> float:
        """The number that the full width stands for."""
        sums = [sum(part.value for part in bar.parts) for bar in self.bars]
        return max([*sums, self.mean or 0.0]) or 1.0

    @property
    def legend(self) -> list[Part]:
        """The legend of bars with several parts: each part with its sum; parts of 0 are left out."""
        found: dict[str, Part] = {}
        for bar in self.bars:
            for part in bar.parts:
                earlier = found.get(part.what, Part(part.what, 0, part.look))
                found[part.what] = Part(part.what, earlier.value + part.value, part.look)
        return [part for part in found.values() if part.value] if _is_stacked(self.bars) else []


NO_BARS = Bars()


def _is_stacked(bars: Sequence[Bar]) -> bool:
    return any(len(bar.parts) > 1 for bar in bars)


def against_mean(
    loads: Sequence[tuple[str, float]], what: str, *, mean: float, total: float, count: int
) -> Bars:
    """Return one bar for each of the largest loads, with its share, beside the mean of all.

    loads: name and load, the largest first; count, total: over all loads, also those not in `loads`.
    """
    shown = loads[:BARS_MAX]
    rest = count - len(shown)
    more = f" The {len(shown)} largest of {count:,}." if rest > 0 else ""
    return Bars(
        tuple(
            Bar(name, (Part(what, load),), f"{load:,.0f} ({load / total:.1%})")
            for name, load in shown
        )
        if total
        else (),
        mean,
        f"Upright line: the mean, {mean:,.0f} {what}.{more}",
    )


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
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: int = 1,
    shown_max: int = ROWS_SHOWN_MAX,
) -> Table:
    """Make a table of the first rows; the rest is counted."""
    shown = tuple(tuple(row) for row in rows[:shown_max])
    rest = len(rows) - len(shown)
    left_out = f"{rest:,} more rows are in the JSON beside this page." if rest else ""
    return Table(tuple(head), shown, left, left_out)


def columns_here() -> int:
    """Return the columns of the terminal, or COLUMNS."""
    return shutil.get_terminal_size((COLUMNS, 24)).columns


def text_table(table: Table, columns: int = COLUMNS) -> list[str]:
    """Format a table: words to the left, numbers to the right.

    columns: its largest width; columns that do not fit go below, beside the words again.
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
    """Return the columns of each block: those of words in each, of the others as many as fit."""
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


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that a reader looks for first."""

    value: str
    what: str
    more: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of a page. chart: SVG, "" for none. bars: beside it or instead."""

    title: str
    note: str = ""
    chart: str = ""
    bars: Bars = NO_BARS
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page of a job. faults: reasons why it does not hold; empty when it does.

    words: (word, its meaning or its exceptions).
    verdict: replaced by `broken` where a fault breaks the promise, by `unshown` where others leave it
    open; "" for the verdict itself. notes: limits of the page, on the first line. tables: the names
    of the lake's tables that the page was made from.
    """

    job: str
    title: str
    meta: str
    verdict: str
    broken: str = ""
    unshown: str = ""
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    comment: str = ""
    figures: tuple[Figure, ...] = ()
    sections: tuple[Section, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    tables: str = ""

    @property
    def first(self) -> str:
        """The verdict as it stands, with the notes."""
        is_broken = any(getattr(fault, "name", "") in PROMISE for fault in self.faults)
        said = (self.broken if is_broken else self.unshown) if self.faults else ""
        return " ".join((said or self.verdict, *self.notes))

    @property
    def shown(self) -> list[Section]:
        """The sections with any content."""
        return [
            each
            for each in self.sections
            if each.chart or each.bars.bars or any(table.rows for table in each.tables)
        ]


def environment() -> Environment:
    """Make the environment of all templates."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=lambda name: name is not None and ".html" in name,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters |= {
        "number": lambda value: f"{value:,.0f}",
        "ms": milliseconds,
        "plural": plural,
        "look": lambda value: value if isinstance(value, str) else value % LOOKS,
        "words": lambda text: text.replace("_", " "),
    }
    return made


def render_html(page: Page) -> str:
    """Render a page with its charts inline; nothing is fetched."""
    return environment().get_template(PAGE).render(page=page)


def render_text(page: Page, columns: int = COLUMNS) -> str:
    """Render the same without the charts and the words' meaning."""
    lines = [
        f"{page.job}, {page.title}: {page.first}",
        *[f"  ! {fault}" for fault in page.faults],
        f"  {page.meta}",
        "",
        *_figures(page.figures),
    ]
    for section in page.shown:
        for table in section.tables:
            if table.rows:
                lines += ["", f"  {section.title}", *text_table(table, columns)]
    return "\n".join(lines)


def _figures(figures: Sequence[Figure]) -> list[str]:
    width = max((len(each.value) for each in figures), default=0)
    return [
        f"  {each.value:>{width}}  {each.what}" + (f" ({each.more})" if each.more else "")
        for each in figures
    ]
