"""The page of a report: figures, charts, bars and tables as one value, shown as HTML and as plain text.

The HTML needs no other files. Bars are plain HTML: they are as wide as the screen is, and their text is
never shrunk or covered. Each look has a pattern besides its colour, so that readers in print and with
colour blindness can tell them apart.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from reports.text import COLUMNS, INDENT, NONE, ROWS_SHOWN_MAX, Columns, Table, table_of, text_table

# Classes of the page's style, look-0 and so on.
LOOKS = 8
BARS_MAX = 20
# A picture comes before the first of these that a page has.
BEFORE_END = ('<h2 id="words">', "<footer>")
# Rows in a terminal; a page has them all.
TEXT_ROWS_MAX = 25


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
    text: str

    @classmethod
    def of(cls, name: str, value: float, text: str, look: int = 0) -> Bar:
        """Make a bar of one part."""
        return cls(name, (Part("", value, look),), text)


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
        if all(len(bar.parts) < 2 for bar in self.bars):
            return []
        found: dict[str, Part] = {}
        for bar in self.bars:
            for part in bar.parts:
                earlier = found.get(part.what, Part(part.what, 0, part.look))
                found[part.what] = Part(part.what, earlier.value + part.value, part.look)
        return [part for part in found.values() if part.value]


NO_BARS = Bars()


def against_mean(
    loads: Sequence[tuple[str, float]], what: str, *, mean: float, total: float, count: int
) -> Bars:
    """Return one bar for each of the largest loads, with its share, beside the mean of all.

    loads: name and load, the largest first; count, total: over all loads, also those not in `loads`.
    """
    shown = loads[:BARS_MAX]
    more = f" The {len(shown)} largest of {count:,}." if count > len(shown) else ""
    return Bars(
        tuple(Bar.of(name, load, f"{load:,.0f} ({load / total:.1%})") for name, load in shown)
        if total
        else (),
        mean,
        f"Upright line: the mean, {mean:,.0f} {what}.{more}",
    )


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that a reader looks for first."""

    value: str
    what: str
    more: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One section of a page.

    note, after: text above and below. chart: SVG, "" for none. bars: beside it or instead. link: address
    of the page that the title leads to. is_long: whether the text leaves its tables to the page.
    """

    title: str
    note: str = ""
    chart: str = ""
    bars: Bars = NO_BARS
    tables: tuple[Table, ...] = ()
    after: tuple[str, ...] = ()
    link: str = ""
    is_long: bool = False

    @property
    def has_content(self) -> bool:
        rows = any(table.rows for table in self.tables)
        return bool(self.chart or self.bars.bars or rows or self.after)


def section_of(
    title: str,
    rows: Iterable[Mapping[str, Any]],
    columns: Columns,
    *,
    left: int = 1,
    shown_max: int = ROWS_SHOWN_MAX,
    **more: Any,
) -> Section:
    """Make a section of one table, by `table_of`."""
    table = table_of(rows, columns, left=left, shown_max=shown_max)
    return Section(title=title, tables=(table,), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page of a report.

    kind: of the report. name: begins the text, `kind, title` by default. meta: lines below the title.
    notes: limits of the page, behind the verdict. faults: reasons why it does not hold; empty when it
    does. comment: below a verdict that holds. words: word -> its meaning or its exceptions. footer: names
    the files beside the page. reload_s: seconds after which a browser loads it again; 0: never.
    """

    kind: str
    title: str
    verdict: str
    name: str = ""
    meta: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    comment: str = ""
    figures: tuple[Figure, ...] = ()
    sections: tuple[Section, ...] = ()
    words_title: str = "What the words mean, and what is left out"
    words: Mapping[str, str] = field(default_factory=dict)
    footer: str = ""
    reload_s: int = 0

    @property
    def first(self) -> str:
        """The verdict with the notes."""
        return " ".join((self.verdict, *self.notes))

    @property
    def shown(self) -> list[Section]:
        """The sections with any content."""
        return [each for each in self.sections if each.has_content]


def render_html(page: Page) -> str:
    """Render a page with its charts inline; nothing is fetched."""
    environment = Environment(
        loader=PackageLoader("reports"),  # also from an archive
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    return environment.get_template("page.html.j2").render(page=page, looks=LOOKS, none_text=NONE)


def with_picture(html: str, title: str, png: bytes) -> str:
    """Return a rendered page with a picture before its words; a page of another kind as it is."""
    mark = next((each for each in BEFORE_END if each in html), "")
    source = base64.b64encode(png).decode()
    picture = (
        f'<h2>{escape(title)}</h2>\n<img class="picture" alt="{escape(title)}"'
        f' src="data:image/png;base64,{source}">\n'
    )
    return html.replace(mark, picture + mark, 1) if mark else html


def render_text(page: Page, columns: int = COLUMNS) -> str:
    """Render the same without the charts, long sections and the words' meaning."""
    lines = [
        f"{page.name or f'{page.kind}, {page.title}'}: {page.first}",
        *[f"{INDENT}! {fault}" for fault in page.faults],
        *[line for text in page.meta for line in _wrapped(text, columns)],
        "",
        *_figures(page.figures),
    ]
    for section in page.shown:
        tables = () if section.is_long else section.tables
        for table in tables:
            if table.rows:
                lines += ["", f"{INDENT}{section.title}"]
                lines += text_table(table, columns, rows_max=TEXT_ROWS_MAX)
        if tables:
            lines += [line for text in section.after for line in _wrapped(text, columns)]
    return "\n".join(lines)


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, initial_indent=INDENT, subsequent_indent=2 * INDENT)


def _figures(figures: Sequence[Figure]) -> list[str]:
    width = max((len(each.value) for each in figures), default=0)
    return [
        f"{INDENT}{each.value:>{width}}  {each.what}" + (f" ({each.more})" if each.more else "")
        for each in figures
    ]
