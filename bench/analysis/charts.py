"""Charts of a run's page: latencies by percentile and over time, rates, messages waiting in the queues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from bench.analysis.result import CURVE, MEASURES, Result, percentiles
from reports import charts
from reports.charts import DASHED, Mark, Panel, Series, Span
from reports.svg import COLOURS

# A client of a native cluster cannot tell which node took a message.
ANY = "any node"
TAILS = {"confirm": ", from intended", "service": ", from sent", "delivery": "", "pacing": ""}
# Times that a client did not wait for the system, or that are no latency.
OF_CLIENT = ("service", "pacing")


def percentile_chart(result: Result) -> str:
    """Draw latency by percentile, from the intended time and, dashed, from the sending."""
    series = []
    for measure, colour in zip(("confirm", "service", "delivery", "pacing"), COLOURS, strict=False):
        found = percentiles(result.bins(measure))
        kept = [each for each in CURVE if f"p{each:g}" in found]
        label = MEASURES[measure].split(":")[0] + TAILS[measure]
        values = [found[f"p{each:g}"] for each in kept]
        dashes = DASHED if measure in OF_CLIENT else None
        series.append(Series(label, kept, values, colour, dashes))
    return charts.percentiles([each for each in series if each.x])


def over_time_chart(result: Result) -> str:
    """Draw confirms, latencies and, where any waited, messages in queues, over one time axis."""
    measured, latencies = result.measured, latency_series(result)
    panels = [
        Panel("confirmed a second, by broker", _rates(result.rates("confirm")), height=2.6),
        Panel("latency", latencies, unit="ms", height=2.6),
    ]
    waiting = _waiting(result)
    if any(value for each in waiting for value in each.y):
        panels.append(Panel("messages waiting in queues, by broker", waiting))
    last_s = max((x for panel in panels for each in panel.series for x in each.x), default=0)
    until_s = max(last_s, measured.stop)
    return charts.over_time(
        panels,
        until_s=until_s,
        marks=[mark for mark in _marks(result) if mark.at_s <= until_s],
        spans=[Span(measured.start, measured.stop)],
        axis="seconds since the load began; shaded: measured",
    )


def latency_series(result: Result) -> list[Series]:
    """Return p50 and p99 of confirms and deliveries over time. A second without enough samples is a gap."""
    series = []
    for measure, colour in zip(("confirm", "delivery"), COLOURS, strict=False):
        latencies = result.latencies[measure]
        known = [second for second, _ in latencies.bins if second >= 0]
        seconds = range(min(known, default=0), max(known, default=-1) + 1)
        each = [percentiles(latencies.whole(range(second, second + 1))) for second in seconds]
        for name, dashes in (("p50", None), ("p99", DASHED)):
            values = [found.get(name, math.nan) for found in each]
            if not all(map(math.isnan, values)):
                series.append(Series(f"{measure}, {name}", seconds, values, colour, dashes))
    return series


def _rates(rates: Mapping[str, Sequence[float]]) -> list[Series]:
    return [Series(broker or ANY, range(len(each)), each) for broker, each in rates.items()]


def _waiting(result: Result) -> list[Series]:
    points: dict[str, dict[float, float]] = {}
    for each in result.samples:
        if each.ready is not None and each.at_s >= 0:
            points.setdefault(each.broker, {})[each.at_s] = each.ready
    return [Series(each, [*points[each]], [*points[each].values()]) for each in sorted(points)]


def _marks(result: Result) -> list[Mark]:
    """Return the beginning and the end of each disturbance, with its name."""
    found = []
    for each in result.about.get("disturbances", []):
        found.append(Mark(each["began_s"], each["what"], alarm=True))
        if each["ended_s"] is not None:
            found.append(Mark(each["ended_s"], f"{each['what'].split()[0]} over", alarm=True))
    return found
