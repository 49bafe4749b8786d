"""What a job has to say, as one value: shown as a page that needs nothing beside it, and as plain text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from spark.charts import milliseconds

__all__ = [
    "Figure",
    "Page",
    "Section",
    "Table",
    "environment",
    "render_html",
    "render_text",
    "table_of",
    "text_table",
]

TEMPLATES = Path(__file__).resolve().parent / "templates"
PAGE = "page.html.j2"
ROWS_SHOWN_MAX = 40


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that a reader looks for first."""

    value: str
    what: str
    more: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells are text. left: how many columns are words. left_out: which rows are not shown."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    left_out: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """chart: SVG, "" for none."""

    title: str
    note: str = ""
    chart: str = ""
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """faults: why it does not hold; empty when it does. words: (word, what it means or leaves out).

    tables: the names of the lake's tables that the page was made from.
    """

    job: str
    title: str
    meta: str
    verdict: str
    faults: tuple[str, ...] = ()
    comment: str = ""
    figures: tuple[Figure, ...] = ()
    sections: tuple[Section, ...] = ()
    words: tuple[tuple[str, str], ...] = ()
    tables: str = ""

    @property
    def shown(self) -> list[Section]:
        """The sections with something in them."""
        return [
            each for each in self.sections if each.chart or any(table.rows for table in each.tables)
        ]


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


def environment() -> Environment:
    """Of all templates."""
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
        "words": lambda text: text.replace("_", " "),
    }
    return made


def render_html(page: Page) -> str:
    """Charts inline, nothing fetched."""
    return environment().get_template(PAGE).render(page=page)


def render_text(page: Page) -> str:
    """The same without the charts and the words' meaning."""
    lines = [
        f"{page.job}, {page.title}: {page.verdict}",
        *[f"  ! {fault}" for fault in page.faults],
        f"  {page.meta}",
        "",
        *[
            "  " + "  ".join(filter(None, (each.value, each.what, each.more and f"({each.more})")))
            for each in page.figures
        ],
    ]
    for section in page.shown:
        for table in section.tables:
            if table.rows:
                lines += ["", f"  {section.title}", *text_table(table)]
    return "\n".join(lines)


def text_table(table: Table) -> list[str]:
    """Columns of text; words to the left, numbers to the right."""
    every = (table.head, *table.rows)
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    align: list[Callable[[str, int], str]] = [
        str.ljust if number < table.left else str.rjust for number in range(len(table.head))
    ]
    lines = [
        "  "
        + "  ".join(put(cell, width) for put, cell, width in zip(align, row, widths, strict=True))
        for row in every
    ]
    return [line.rstrip() for line in lines] + ([f"  {table.left_out}"] if table.left_out else [])
