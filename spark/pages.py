"""Parts of pages that all jobs share: runs in words, their incidents and series for charts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from messagebus.terminal import duration, plural
from reports.charts import Mark, Series, Span
from reports.page import Page
from reports.svg import COLOURS
from spark.lake.ingest import Ingested
from spark.measures.latency import BIN_WINDOW_S
from spark.measures.run import Run

SECOND_NS = 1_000_000_000
WINDOWS_MAX = 150
# The rates of every page that has any, and their headings.
WHILE_SENT, OVER_RUN = "while messages were sent", "over the whole run"
MEAN, MEAN_IN_USE, BEST = "mean/s of the run", "mean/s while in use", "best second"
# Incidents that are shaded from begin to end; a killed broker until it is back.
LASTING = ("kill", "add", "remove", "freeze", "alarm", "agent", "drain")
DOWN = ("kill", "freeze")
INCIDENT_NAMES = {
    "kill": "{} killed",
    "cut": "links to {} cut",
    "start": "{} back",
    "add": "add {}",
    "remove": "remove {}",
    "reload": "balancer reloaded",
    "freeze": "{} frozen",
    "close": "{} closes links",
    "alarm": "{} in alarm",
    "agent": "agent of {} killed",
    "drain": "{} drains",
}


def page_of(
    run: Run,
    kind: str,
    *,
    words: Mapping[str, str],
    tables: Sequence[str],
    numbers: str = "Numbers",
    **more: Any,
) -> Page:
    """Make a page about a run. tables: of the lake, that it was made from; numbers: what its JSON holds."""
    return Page(
        kind=kind,
        title=run.manifest.run_id,
        meta=(_meta(run),),
        words={**words, "input": _input(run)},
        footer=footer_of(f"{kind}.json", map(run.lake.folder, tables), numbers=numbers),
        **more,
    )


def footer_of(file: str, folders: Iterable[Path], *, numbers: str = "Numbers") -> str:
    """Say where the numbers and the rows behind a page are: of the folders, those that were written."""
    written = [str(folder) for folder in folders if folder.exists()]
    rows = f" Rows: {', '.join(written)} (Parquet)." if written else ""
    return f"{numbers}: {file} beside this page.{rows}"


def _meta(run: Run) -> str:
    """Describe a run in one line: its start, its duration, and the numbers of brokers and clients."""
    manifest = run.manifest
    started = datetime.fromtimestamp(manifest.start_ns // SECOND_NS, UTC)
    parts = [f"started {started:%Y-%m-%d %H:%M:%S} UTC"]
    if manifest.end_ns:
        parts.append(duration(since_s(run, manifest.end_ns)))
    if manifest.warm_up_s:
        parts.append(f"the warm-up of {manifest.warm_up_s:g} s counts too")
    if run.day:
        parts.append(f"of it the day {run.day}")
    parts += [
        plural(len(manifest.brokers), "broker"),
        plural(len(manifest.publishers), "publisher"),
        plural(len(manifest.consumers), "consumer"),
    ]
    return " \N{MIDDLE DOT} ".join(parts)


def _input(run: Run) -> str:
    """Describe the input: lines that were read, and lines and files that were left out, with the reasons."""
    found = run.ingested
    kinds = sorted({file["kind"] for file in found.files.values()})
    good = ", ".join(f"{found.total(kind, 'good'):,} {kind}" for kind in kinds)
    text = f"{plural(len(found.files), 'file')}: {good}; {plural(found.bad, 'bad line')}"
    if reasons := found.reasons():
        text += " (" + "; ".join(f"{n:,} {why}" for why, n in sorted(reasons.items())) + ")"
    if found.skipped:
        text += ". Not read: " + "; ".join(f"{name}, {why}" for name, why in found.skipped)
    return f"{text}."


def bad_lines(ingested: Ingested) -> list[dict[str, Any]]:
    """Return file, why, for example, lines: the bad lines of each file by their reasons."""
    return [
        {"file": source, "why": why, "for example": file["examples"][why], "lines": lines}
        for source, file in sorted(ingested.files.items())
        for why, lines in sorted(file["bad"].items())
    ]


def collected(rows: DataFrame) -> list[dict[str, Any]]:
    """Bring rows to the driver: aggregates only."""
    return [row.asDict(recursive=True) for row in rows.collect()]


def since_s(run: Run, at_ns: int) -> float:
    return (at_ns - run.manifest.start_ns) / SECOND_NS


def subscription(row: Mapping[str, Any]) -> str:
    return f"{row['topic']}/{row['subscription']}"


def window_for(seconds: float) -> int:
    """Return the width of the windows of a chart, so that they are no more than `WINDOWS_MAX`."""
    return 1 + int(max(0.0, seconds - 1) // WINDOWS_MAX)


def bin_window_for(run: Run) -> int:
    """Return the width of the windows of stored bins: that of a chart of the whole run, 10 s at most."""
    whole = run.whole if run.day else run
    return min(window_for(whole.span_s), BIN_WINDOW_S)


def over_s(one: Mapping[str, Any], every: Iterable[Mapping[str, Any]]) -> float:
    """Return the end of an incident: of a kill the next start of its broker, where there is one.

    one, every: of `incidents`.
    """
    if one["kind"] != "kill":
        return float(one["done_s"])
    starts = (
        each["at_s"] for each in every if (each["kind"], each["broker"]) == ("start", one["broker"])
    )
    return float(min((at_s for at_s in starts if at_s >= one["at_s"]), default=one["done_s"]))


def incidents(run: Run) -> list[dict[str, Any]]:
    """Return kind, broker, at_s and done_s of each incident, in order."""
    return [
        {
            "kind": one.kind,
            "broker": one.broker,
            "at_s": since_s(run, one.at_ns),
            "done_s": since_s(run, one.ended_ns),
        }
        for one in sorted(run.manifest.incidents, key=lambda one: one.at_ns)
    ]


def marks_and_spans(run: Run) -> dict[str, Any]:
    """Return the incidents of a run for a chart: marks, and spans for those that last."""
    every, short = incidents(run), short_names(run.manifest.brokers)
    marks, spans = [], []
    for one in every:
        kind, broker, is_down = one["kind"], one["broker"], one["kind"] in DOWN
        name = INCIDENT_NAMES[kind].format(short.get(broker, broker))
        marks.append(Mark(one["at_s"], name, alarm=is_down))
        if kind in LASTING:
            spans.append(Span(one["at_s"], over_s(one, every), alarm=is_down))
    return {"marks": marks, "spans": spans}


def short_names(brokers: Sequence[str]) -> dict[str, str]:
    """Return broker -> its short name: the host alone where all have one port."""
    ports = {broker.rpartition(":")[2] for broker in brokers}
    return {broker: broker.rpartition(":")[0] if len(ports) == 1 else broker for broker in brokers}


def series_by(
    values: Mapping[tuple[str, int], float],
    *,
    width: int = 0,
    missing: float = 0.0,
    together: Callable[[Iterable[float]], float] = sum,
) -> list[Series]:
    """Return one series for each name, at most one per colour: the largest, and the others as one.

    values: (name, x) -> y. width: width of windows, where a window without a value means `missing`; 0 where
    it means nothing. together: joins several values of the others to one.
    """
    points: dict[str, dict[int, float]] = {}
    for (name, at), value in values.items():
        points.setdefault(name, {})[at] = value
    if not points:
        return []
    points = _largest(points, together)
    ats = sorted({at for own in points.values() for at in own})
    every = list(range(ats[0], ats[-1] + 1, width)) if width else []
    return [
        Series(
            name,
            every or sorted(own),
            [own.get(at, missing) for at in every or sorted(own)],
            COLOURS[number],
        )
        for number, (name, own) in enumerate(points.items())
    ]


def _largest(
    points: dict[str, dict[int, float]], together: Callable[[Iterable[float]], float]
) -> dict[str, dict[int, float]]:
    """Return the largest, one fewer than there are colours, by name; behind them the others as one."""
    ordered = sorted(points, key=lambda one: -sum(points[one].values()))
    if len(ordered) <= len(COLOURS):
        return {one: points[one] for one in sorted(ordered)}
    largest, rest = ordered[: len(COLOURS) - 1], ordered[len(COLOURS) - 1 :]
    ats = {at for one in rest for at in points[one]}
    others = {at: together(points[one].get(at, 0.0) for one in rest) for at in ats}
    return {one: points[one] for one in sorted(largest)} | {f"{len(rest)} others": others}
