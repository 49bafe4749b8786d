"""The summary of several runs: a table, notes and faults, as text and as a page with all percentiles."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from bench.analysis.charts import percentile_chart
from bench.analysis.report import STYLE
from bench.analysis.result import gather
from bench.analysis.tables import COLUMNS, html_table, text_table
from bench.errors import InputInvalid
from messagebus.terminal import plural

__all__ = ["Bar", "Told", "faults_of", "page"]


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart. look: a number for each kind of thing that is compared."""

    name: str
    value: float
    shown: str
    look: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The content of a summary.

    left: the number of columns with words. bars: the most important number of each line. meant: name ->
    meaning of its confirms. faults: the run and its fault.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    title: str = ""
    bars_title: str = ""
    bars: Sequence[Bar] = ()
    notes: Sequence[str] = ()
    meant: Mapping[str, str] | None = None
    faults: Sequence[str] = ()

    def lines(self, columns: int = COLUMNS) -> list[str]:
        """Return the summary as lines of text."""
        told = [*textwrap.wrap(self.title, columns)] if self.title else []
        told += text_table(self.head, self.rows, left=self.left, columns=columns)
        told += [line for note in self.notes for line in textwrap.wrap(note, columns)]
        if self.meant:
            told += ["What a confirm means:", *(f"  {k}: {v}" for k, v in self.meant.items())]
        return [*told, *(f"  ! {fault}" for fault in self.faults)]


def faults_of(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the faults of all runs, each with the run's name."""
    return [f"{name}: {fault}" for name, run in results.items() for fault in run["faults"]]


def page(title: str, told: Told, place: Path, runs: Sequence[str]) -> str:
    """Return the summary as an HTML page. runs: names of folders in `place`, whose own reports are linked."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>",
            f'<div class="over">messagebus · workload</div><h1>{escape(title)}</h1>',
            f'<p class="meta">{escape(told.title or plural(len(runs), "run"))}</p>',
            _faults(told),
            _bars(told),
            html_table(told.head, told.rows, left=told.left),
            *[f'<p class="note">{escape(note)}</p>' for note in told.notes],
            _meant(told),
            "<h2>Run by run</h2>",
            *[_section(place, name) for name in runs],
            "</main></body></html>",
        ]
    )


def _faults(told: Told) -> str:
    if not told.faults:
        return (
            '<section class="verdict holds"><strong>Every run is to be trusted.</strong></section>'
        )
    items = "".join(f"<li>{escape(fault)}</li>" for fault in told.faults)
    return (
        '<section class="verdict fails"><strong>Not every run is to be trusted as it stands.</strong>'
        f"<ul>{items}</ul></section>"
    )


def _bars(told: Told) -> str:
    if not told.bars:
        return ""
    whole = max(bar.value for bar in told.bars) or 1.0
    rows = "".join(_bar(bar, whole) for bar in told.bars)
    return f'<h2>{escape(told.bars_title)}</h2><div class="bars">{rows}</div>'


def _bar(bar: Bar, whole: float) -> str:
    return (
        f'<div><span>{escape(bar.name)}</span><div class="bar">'
        f'<i class="look-{bar.look}" style="width: {100 * bar.value / whole:.2f}%"></i></div>'
        f"<em>{escape(bar.shown)}</em></div>"
    )


def _meant(told: Told) -> str:
    if not told.meant:
        return ""
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in told.meant.items()
    )
    return f"<h2>What a confirm means</h2><dl>{items}</dl>"


def _section(place: Path, name: str) -> str:
    # A system's own load has no page.
    text, html = ((place / name / f"report.{kind}").exists() for kind in ("txt", "html"))
    report = "report.txt" if text and not html else "report.html"
    link = f'<h3><a href="{escape(name)}/{report}">{escape(name)}</a></h3>'
    try:
        return f"{link}{percentile_chart(gather(place / name))}"
    except InputInvalid as fault:
        return f'{link}<p class="note">{escape(str(fault))}</p>'
