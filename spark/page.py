"""What a job has to say, as one value: shown as a page that needs nothing beside it, and as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from messagebus.terminal import plural
from spark.bars import LOOKS, NO_BARS, Bars
from spark.drawing import milliseconds
from spark.faults import PROMISE
from spark.tables import COLUMNS, Table, text_table

__all__ = [
    "Figure",
    "Page",
    "Section",
    "environment",
    "render_html",
    "render_text",
]

TEMPLATES = Path(__file__).resolve().parent / "templates"
PAGE = "page.html.j2"


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that a reader looks for first."""

    value: str
    what: str
    more: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """chart: SVG, "" for none. bars: beside it or instead."""

    title: str
    note: str = ""
    chart: str = ""
    bars: Bars = NO_BARS
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """faults: why it does not hold; empty when it does. words: (word, what it means or leaves out).

    verdict: in its place stands `broken` where a fault breaks the promise, `unshown` where others leave it
    open; "" for the verdict itself. notes: what it is not about, on the first line. tables: the names
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
        """The verdict as it stands, and what it leaves out."""
        is_broken = any(getattr(fault, "name", "") in PROMISE for fault in self.faults)
        said = (self.broken if is_broken else self.unshown) if self.faults else ""
        return " ".join((said or self.verdict, *self.notes))

    @property
    def shown(self) -> list[Section]:
        """The sections with something in them."""
        return [
            each
            for each in self.sections
            if each.chart or each.bars.bars or any(table.rows for table in each.tables)
        ]


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
        "plural": plural,
        "look": lambda value: value if isinstance(value, str) else value % LOOKS,
        "words": lambda text: text.replace("_", " "),
    }
    return made


def render_html(page: Page) -> str:
    """Charts inline, nothing fetched."""
    return environment().get_template(PAGE).render(page=page)


def render_text(page: Page, columns: int = COLUMNS) -> str:
    """The same without the charts and the words' meaning."""
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
