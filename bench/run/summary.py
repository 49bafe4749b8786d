"""One page of a workload of several runs: what it says in all, and the percentiles of each run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from bench.errors import InputInvalid
from bench.run.charts import percentile_chart
from bench.run.report import STYLE
from bench.run.result import gather

__all__ = ["page"]


def page(title: str, text: str, place: Path, runs: Sequence[str]) -> str:
    """runs: their folders' names in `place`, whose own reports are linked."""
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>",
            f'<div class="over">messagebus · workload</div><h1>{escape(title)}</h1>',
            f'<div class="scroll"><pre>{escape(text)}</pre></div>',
            *[_section(place, name) for name in runs],
            "</main></body></html>",
        ]
    )


def _section(place: Path, name: str) -> str:
    # A load of its own has no page.
    text, html = ((place / name / f"report.{kind}").exists() for kind in ("txt", "html"))
    report = "report.txt" if text and not html else "report.html"
    link = f'<h2><a href="{escape(name)}/{report}">{escape(name)}</a></h2>'
    try:
        return f"{link}{percentile_chart(gather(place / name))}"
    except InputInvalid as fault:
        return f'{link}<p class="note">{escape(str(fault))}</p>'
