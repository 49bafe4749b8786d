"""The summary of several runs: a table, notes and faults, as text and as a page with all percentiles."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.analysis.charts import percentile_chart
from bench.analysis.result import gather
from bench.errors import InputInvalid
from messagebus.terminal import plural
from reports.page import Bar, Bars, Page, Section, render_html
from reports.text import COLUMNS, Table, text_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
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

    @property
    def table(self) -> Table:
        return Table(tuple(self.head), tuple(map(tuple, self.rows)), self.left)

    def lines(self, columns: int = COLUMNS) -> list[str]:
        """Return the summary as lines of text."""
        told = [*textwrap.wrap(self.title, columns)] if self.title else []
        told += text_table(self.table, columns, indent="")
        told += [line for note in self.notes for line in textwrap.wrap(note, columns)]
        if self.meant:
            told += ["What a confirm means:", *(f"  {k}: {v}" for k, v in self.meant.items())]
        return [*told, *(f"  ! {fault}" for fault in self.faults)]


def faults_of(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the faults of all runs, each with the run's name."""
    return [f"{name}: {fault}" for name, run in results.items() for fault in run["faults"]]


def page(title: str, told: Summary, place: Path, runs: Sequence[str]) -> str:
    """Return the summary as an HTML page. runs: names of folders in `place`, whose own reports are linked."""
    trusted = "Every run is to be trusted."
    return render_html(
        Page(
            kind="workload",
            title=title,
            meta=(told.title or plural(len(runs), "run"),),
            verdict="Not every run is to be trusted as it stands." if told.faults else trusted,
            faults=tuple(told.faults),
            sections=(
                Section(title=told.bars_title, bars=Bars(tuple(told.bars))),
                Section(title="All lines", tables=(told.table,), after=tuple(told.notes)),
                *[_section(place, name) for name in runs],
            ),
            words_title="What a confirm means",
            words=told.meant or {},
            footer="Numbers: result.json in the folder of each run.",
        )
    )


def _section(place: Path, name: str) -> Section:
    # A system's own load has no page.
    text, html = ((place / name / f"report.{kind}").exists() for kind in ("txt", "html"))
    link = f"{name}/{'report.txt' if text and not html else 'report.html'}"
    try:
        return Section(title=name, link=link, chart=percentile_chart(gather(place / name)))
    except InputInvalid as fault:
        return Section(title=name, link=link, after=(str(fault),))
