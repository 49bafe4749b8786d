"""One page of a workload of several runs: what it says in all, and the percentiles of each run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from bench.errors import InputInvalid
from bench.run.charts import percentile_chart
from bench.run.report import STYLE
from bench.run.result import gather
from bench.run.tables import html_table
from bench.run.told import Bar, Told
from messagebus.terminal import plural

__all__ = ["page"]


def page(title: str, told: Told, place: Path, runs: Sequence[str]) -> str:
    """runs: their folders' names in `place`, whose own reports are linked."""
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
    # A load of its own has no page.
    text, html = ((place / name / f"report.{kind}").exists() for kind in ("txt", "html"))
    report = "report.txt" if text and not html else "report.html"
    link = f'<h3><a href="{escape(name)}/{report}">{escape(name)}</a></h3>'
    try:
        return f"{link}{percentile_chart(gather(place / name))}"
    except InputInvalid as fault:
        return f'{link}<p class="note">{escape(str(fault))}</p>'
