"""A series of runs, in whole rounds, and its summary; an interrupted series continues where it ended.

A finished run is not repeated. Consecutive runs on the same system share one start of it. An existing
folder counts only if its profile is the wanted one; a folder of another profile is refused, never removed.
In rounds, a disturbance of the machine affects all lines of a workload. The summary is a table, notes and
faults, as text and as a page with all percentiles.
"""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.analysis.report import percentile_chart
from bench.analysis.result import RESULT, gather
from bench.analysis.verdict import is_of_load
from bench.environment import commit
from bench.errors import InputInvalid
from bench.harness.interface import Running, started
from bench.harness.workers import PROFILE
from bench.load.profile import Profile, unlike
from messagebus.terminal import plural
from reports.page import Bar, Bars, Page, Section, render_html
from reports.text import COLUMNS, Table, text_table

Run = Callable[[Profile, Path, Running], dict[str, Any]]
Results = dict[str, dict[str, Any]]
"""Name of a step -> the content of its ``result.json``."""


@dataclass(frozen=True, slots=True)
class Step:
    """One run of a series. name: the name of its folder."""

    name: str
    profile: Profile


def carry_out(
    steps: Sequence[Step], place: Path, network: str, run: Run, say: Callable[[str], None]
) -> Results:
    """Do each step in its own folder below `place`. Raises what `run` raises; finished runs stay.

    Raises InputInvalid, before anything is done, when a folder is of another profile.
    """
    found = had(steps, place)
    for line in _of_other_commits(found, commit()):
        say(line)
    for _, some in itertools.groupby(steps, key=lambda step: step.profile.system):
        wanted = [step for step in some if step.name not in found]
        if wanted:
            with started(wanted[0].profile, network, say) as running:
                for step in wanted:
                    if (folder := place / step.name).exists():
                        say(f"{step.name}: was cut short, and is done again")
                        shutil.rmtree(folder)
                    found[step.name] = run(step.profile, folder, running)
                    rate = found[step.name]["confirmed_per_s"]
                    say(
                        f"{step.name}: {rate:,.0f} confirmed a second; "
                        f"run {len(found)} of {len(steps)}"
                    )
    return {step.name: found[step.name] for step in steps}


def had(steps: Sequence[Step], place: Path) -> Results:
    """Return the results of finished steps. Raises InputInvalid for a folder with other content."""
    found = {step.name: _had(place / step.name, step.profile) for step in steps}
    return {name: result for name, result in found.items() if result is not None}


def _had(folder: Path, wanted: Profile) -> dict[str, Any] | None:
    """Return the result of a step; None when there is no run, or it was cut short."""
    if not folder.exists() or not any(folder.iterdir()):
        return None
    try:
        profile = Profile.from_values(json.loads((folder / PROFILE).read_text()), PROFILE)
    except (OSError, ValueError, InputInvalid) as fault:
        raise InputInvalid(f"{folder}: has something that is no run; use another --dir") from fault
    if differences := unlike(profile, wanted, free=()):
        raise InputInvalid(
            f"{folder}: has a run of another profile, use another --dir: {'; '.join(differences)}"
        )
    try:
        found: dict[str, Any] = json.loads((folder / RESULT).read_text())
    except (OSError, ValueError):
        return None
    return found if found.get("complete") else None


def _of_other_commits(results: Results, now: str) -> list[str]:
    """Name the finished runs that another commit has measured."""
    names: dict[str, list[str]] = {}
    for name, result in results.items():
        names.setdefault(str(result["environment"]["commit"]), []).append(name)
    return [
        f"of commit {was}, and now it is {now}: {', '.join(some)}"
        for was, some in names.items()
        if was != now
    ]


Turn = Mapping[str, Any]


def in_rounds(steps: Sequence[Step], repeat: int) -> list[Step]:
    """Return the steps in rounds; from the second round on, the names end in the round's number."""
    return [
        Step(_named(step.name, number), step.profile) for number in range(repeat) for step in steps
    ]


def turns_of(results: Mapping[str, Turn], name: str) -> list[Turn]:
    """Return the runs of one line, in their order; none when it was not run."""
    names = (_named(name, number) for number in itertools.count())
    return [results[each] for each in itertools.takewhile(results.__contains__, names)]


def trusted(turns: Iterable[Turn]) -> list[Turn]:
    """Return the turns in which the load was not the limit; none if the system failed in one of them.

    A figure of the successful turns alone would be luck.
    """
    own = [turn for turn in turns if not any(map(is_of_load, turn["faults"]))]
    return [] if any(turn["faults"] for turn in own) else own


def _named(name: str, number: int) -> str:
    return name if number == 0 else f"{name}-{number + 1}"


def samples(values: Iterable[float | None]) -> tuple[float, ...]:
    """Return the known values of the turns."""
    return tuple(float(value) for value in values if value is not None)


def middle(values: Iterable[float | None]) -> float | None:
    """Return the median of the known values; None if there are none."""
    known = samples(values)
    return statistics.median(known) if known else None


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


def page(title: str, summary: Summary, place: Path, runs: Sequence[str]) -> str:
    """Return the summary as an HTML page. runs: names of folders in `place`, whose own reports are linked."""
    trusted = "Every run is to be trusted."
    return render_html(
        Page(
            kind="workload",
            title=title,
            meta=(summary.title or plural(len(runs), "run"),),
            verdict="Not every run is to be trusted as it stands." if summary.faults else trusted,
            faults=tuple(summary.faults),
            sections=(
                *(
                    [Section(title=summary.bars_title, bars=Bars(tuple(summary.bars)))]
                    if summary.bars
                    else []
                ),
                Section(title="All lines", tables=(summary.table,), after=tuple(summary.notes)),
                *[_section(place, name) for name in runs],
            ),
            words_title="What a confirm means",
            words=summary.meant or {},
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
