"""The charts of a run's page: latencies by percentile and over time, rates, what waits in the queues."""

from __future__ import annotations

import math

from bench.run.result import CURVE, MEASURES, Result, percentiles
from bench.run.svg import Line, by_percentile, over_time

__all__ = [
    "ANY",
    "latency_chart",
    "milliseconds",
    "percentile_chart",
    "rates_chart",
    "waiting_chart",
]

# A client of a native cluster cannot tell which node took it.
ANY = "any node"


def percentile_chart(result: Result) -> str:
    """Latency by percentile, from the intended time and, dashed, from the sending."""
    return by_percentile(_curves(result), label="Latency", unit=milliseconds)


def _curves(result: Result) -> list[Line]:
    lines = []
    for number, (measure, dashed) in enumerate(
        (("confirm", False), ("service", True), ("delivery", False), ("pacing", True))
    ):
        found = percentiles(result.bins(measure))
        kept = [each for each in CURVE if f"p{each:g}" in found]
        if kept:
            values = [found[f"p{each:g}"] for each in kept]
            lines.append(
                Line(MEASURES[measure].split(":")[0] + TAILS[measure], kept, values, dashed, number)
            )
    return lines


TAILS = {"confirm": ", from intended", "service": ", from sent", "delivery": "", "pacing": ""}


def rates_chart(result: Result) -> str:
    lines = [
        Line(broker or ANY, list(range(len(rates))), rates, False, number)
        for number, (broker, rates) in enumerate(result.rates("confirm").items())
    ]
    measured = result.measured
    return over_time(
        lines,
        label="Confirmed messages a second, by broker",
        unit=lambda value: f"{value:,.0f}/s",
        shaded=(measured.start, measured.stop),
        marks=_marks(result),
    )


def _marks(result: Result) -> list[tuple[float, str]]:
    """What was done to brokers, and undone."""
    found = []
    for each in result.about.get("disturbances", []):
        found.append((each["began_s"], each["what"]))
        if each["ended_s"] is not None:
            found.append((each["ended_s"], f"{each['what'].split()[0]} over"))
    return found


def waiting_chart(result: Result) -> str:
    """Messages in the queues of each broker; nothing where never any waited."""
    lines = []
    for number, broker in enumerate(sorted({each.broker for each in result.samples})):
        points = [
            (each.at_s, each.ready)
            for each in result.samples
            if each.broker == broker and each.ready is not None and each.at_s >= 0
        ]
        if points:
            x, y = zip(*points, strict=True)
            lines.append(Line(broker, x, y, False, number))
    if not any(value for line in lines for value in line.y):
        return ""
    measured = result.measured
    return over_time(
        lines,
        label="Messages waiting in queues, by broker",
        unit=lambda value: f"{value:,.0f}",
        shaded=(measured.start, measured.stop),
        marks=_marks(result),
    )


def latency_chart(result: Result) -> str:
    """A second without enough samples is a gap in its line."""
    lines = []
    for number, measure in enumerate(("confirm", "delivery")):
        latencies = result.latencies[measure]
        known = [second for second, _ in latencies.bins if second >= 0]
        seconds = range(min(known, default=0), max(known, default=-1) + 1)
        each = [percentiles(latencies.whole(range(second, second + 1))) for second in seconds]
        for name, dashed in (("p50", False), ("p99", True)):
            values = [found.get(name, math.nan) for found in each]
            if not all(map(math.isnan, values)):
                lines.append(Line(f"{measure}, {name}", list(seconds), values, dashed, number))
    measured = result.measured
    return over_time(
        lines,
        label="Latency",
        unit=milliseconds,
        by_powers=True,
        shaded=(measured.start, measured.stop),
        marks=_marks(result),
    )


def milliseconds(value: float) -> str:
    if value < 0.9995:
        return f"{value * 1000:.3g} µs"
    return f"{value:.3g} ms" if value < 999.5 else f"{value / 1000:,.2f} s"
