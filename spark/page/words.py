"""Runs and numbers in words, and their series for charts, the same in all jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame

from messagebus.telemetry.manifest import Incident
from messagebus.terminal import plural
from spark.measures.run import Run
from spark.page.charts import Mark, Series, Span
from spark.page.drawing import COLOURS
from spark.page.report import marks_and_spans

__all__ = [
    "INPUT",
    "NONE",
    "collected",
    "count",
    "incidents",
    "input_words",
    "meta",
    "series_by",
    "since_s",
    "window_for",
]

NONE = "\N{EN DASH}"
SECOND_NS = 1_000_000_000
WINDOWS_MAX = 150
INPUT = "input"


def collected(rows: DataFrame) -> list[dict[str, Any]]:
    """Bring rows to the driver: aggregates only."""
    return [row.asDict(recursive=True) for row in rows.collect()]


def count(number: float | None) -> str:
    return NONE if number is None else f"{number:,.0f}"


def since_s(run: Run, at_ns: int) -> float:
    return (at_ns - run.manifest.start_ns) / SECOND_NS


def meta(run: Run) -> str:
    """Describe a run in one line: its start, its duration, and the numbers of brokers and clients."""
    manifest = run.manifest
    started = datetime.fromtimestamp(manifest.start_ns // SECOND_NS, UTC)
    parts = [f"started {started:%Y-%m-%d %H:%M:%S} UTC"]
    if manifest.end_ns:
        parts.append(f"{since_s(run, manifest.end_ns):,.0f} s")
    if run.day:
        parts.append(f"of it the day {run.day}")
    parts += [
        plural(len(manifest.brokers), "broker"),
        plural(len(manifest.publishers), "publisher"),
        plural(len(manifest.consumers), "consumer"),
    ]
    return " \N{MIDDLE DOT} ".join(parts)


def input_words(run: Run) -> tuple[str, str]:
    """Describe the input: lines that were read, and lines and files that were left out, with the reasons."""
    found = run.ingested
    kinds = sorted({file["kind"] for file in found.files.values()})
    good = ", ".join(f"{found.total(kind, 'good'):,} {kind}" for kind in kinds)
    text = f"{plural(len(found.files), 'file')}: {good}; {plural(found.bad, 'bad line')}"
    if reasons := found.reasons():
        text += " (" + "; ".join(f"{n:,} {why}" for why, n in sorted(reasons.items())) + ")"
    if found.skipped:
        text += ". Not read: " + "; ".join(f"{name}, {why}" for name, why in found.skipped)
    return INPUT, f"{text}."


def window_for(seconds: float) -> int:
    """Return the width of the windows of a chart, so that they are no more than `WINDOWS_MAX`."""
    return 1 + int(max(0.0, seconds - 1) // WINDOWS_MAX)


def incidents(run: Run) -> tuple[list[Mark], list[Span]]:
    """Return the incidents of a run, for charts."""
    ordered: Iterable[Incident] = sorted(run.manifest.incidents, key=lambda one: one.at_ns)
    shown = [
        {
            "kind": one.kind,
            "broker": one.broker,
            "at_s": since_s(run, one.at_ns),
            "done_s": since_s(run, one.ended_ns),
        }
        for one in ordered
    ]
    return marks_and_spans(shown, short_names(run.manifest.brokers))


def short_names(brokers: Sequence[str]) -> dict[str, str]:
    """Return broker -> its short name: the host alone where all have one port."""
    ports = {broker.rpartition(":")[2] for broker in brokers}
    return {broker: broker.rpartition(":")[0] if len(ports) == 1 else broker for broker in brokers}


def series_by(
    rows: Iterable[Mapping[str, Any]],
    name: str,
    x: str,
    y: str,
    *,
    width: int = 0,
    missing: float = 0.0,
    together: Callable[[Iterable[float]], float] = sum,
) -> list[Series]:
    """Return one series for each value of `name`, at most one per colour: the largest, and the others as one.

    width: width of windows, where a window without a row means `missing`; 0 where it means nothing. together:
    joins several values of the others to one.
    """
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        found.setdefault(row[name], {})[row[x]] = row[y]
    if not found:
        return []
    found = _largest(found, together)
    ats = sorted({at for points in found.values() for at in points})
    every = list(range(ats[0], ats[-1] + 1, width)) if width else []
    return [
        Series(
            one,
            every or sorted(found[one]),
            [found[one].get(at, missing) for at in every or sorted(found[one])],
            COLOURS[number],
        )
        for number, one in enumerate(found)
    ]


def _largest(
    found: dict[str, dict[int, float]], together: Callable[[Iterable[float]], float]
) -> dict[str, dict[int, float]]:
    """Return the largest, one fewer than there are colours, by name; behind them the others as one."""
    ordered = sorted(found, key=lambda one: -sum(found[one].values()))
    if len(ordered) <= len(COLOURS):
        return {one: found[one] for one in sorted(ordered)}
    largest, rest = ordered[: len(COLOURS) - 1], ordered[len(COLOURS) - 1 :]
    ats = {at for one in rest for at in found[one]}
    others = {at: together(found[one].get(at, 0.0) for one in rest) for at in ats}
    return {one: found[one] for one in sorted(largest)} | {f"{len(rest)} others": others}
