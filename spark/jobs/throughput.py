"""Messages and bytes over time: per broker, topic, subscription and publisher.

spark-submit spark/jobs/throughput.py --events DIR --out DIR
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from pyspark.sql import functions as F

from reports.charts import Panel, Series, over_time
from reports.page import Figure, Page, Section, section_of
from reports.text import cell, megabytes, per_second, significant
from spark.command import Answer, exit_code, job_command
from spark.measures import throughput
from spark.measures.faults import lost_at_least, missing_at_least
from spark.measures.run import Run
from spark.measures.throughput import CONFIRMED, DELIVERED
from spark.pages import (
    BEST,
    MEAN,
    MEAN_IN_USE,
    OVER_RUN,
    WHILE_SENT,
    collected,
    marks_and_spans,
    page_of,
    series_by,
    since_s,
    window_for,
)

# Tables in which one kind alone has a meaning.
KINDS = {"subscriptions": (DELIVERED,), "publishers": (CONFIRMED,)}
WORDS = {
    "confirmed": "counted in the second in which the confirm came, at the broker that gave it.",
    "delivered": "counted in the second of receipt. Repeats are deliveries too.",
    WHILE_SENT: "from the time at which the first message was meant to be sent to that of the last, or to "
    "the last confirm. A run that waits afterwards, for a broker or for consumers, lasts longer.",
    MEAN: "messages over all seconds of the run, or of its day, with those in which nothing came.",
    MEAN_IN_USE: "messages over the seconds in which any came. A broker that was added late has the mean "
    "of its own time.",
    BEST: "messages of the second in which the most came.",
}


def measure(run: Run) -> Answer:
    seconds = run.seconds
    found: dict[str, Any] = {
        name: sorted(collected(throughput.totals(seconds, dims)), key=_busiest)
        for name, dims in {
            "whole": [],
            "brokers": ["broker"],
            "topics": ["topic"],
            "subscriptions": ["topic", "subscription"],
            "publishers": ["publisher"],
        }.items()
    }
    seen = seconds.agg(F.max("second").alias("last")).first()
    last = (seen["last"] or 0) if seen else 0
    found["window_s"] = width = window_for(max(run.span_s, last + 1))
    found["timeline"] = collected(throughput.windows(seconds, width))
    found["span_s"] = run.span_s
    found["load_s"] = throughput.load_s(run.events("published"))
    found["until_s"] = max(last + 1, since_s(run, run.until_ns))
    found["missing_at_least"] = missing_at_least(run, seconds)
    return Answer(found, _page(run, found))


def _busiest(row: dict[str, Any]) -> tuple[str, int]:
    return row["kind"], -row["messages"]


def _page(run: Run, measured: dict[str, Any]) -> Page:
    whole = {row["kind"]: row for row in measured["whole"]}
    verdict = "Nothing was confirmed."
    if confirmed := whole.get(CONFIRMED):
        peak = f"{confirmed['peak_per_s']:,} in the best second"
        verdict = f"Confirmed: {confirmed_rates(measured)}, {peak}."
    chart = over_time(panels(run, measured), until_s=measured["until_s"], **marks_and_spans(run))
    return page_of(
        run,
        "throughput",
        verdict=verdict,
        faults=tuple(lost_at_least(measured["missing_at_least"])),
        figures=tuple(
            Figure(cell(whole[kind]["messages"]), f"messages {kind}", _rates(run, whole[kind]))
            for kind in (CONFIRMED, DELIVERED)
            if kind in whole
        ),
        sections=(
            Section(title="Over time", chart=chart),
            _section(run, measured, "brokers", "broker"),
            _section(run, measured, "topics", "topic"),
            _section(run, measured, "subscriptions", "topic", "subscription"),
            _section(run, measured, "publishers", "publisher"),
        ),
        words=WORDS,
        tables=("throughput",),
    )


def confirmed_rates(measured: Mapping[str, Any]) -> str:
    """Return the rate of confirms while messages were sent and over the whole run, in words.

    measured: of `measure`, with at least one confirm.
    """
    [messages] = [row["messages"] for row in measured["whole"] if row["kind"] == CONFIRMED]
    spans = {WHILE_SENT: measured["load_s"], OVER_RUN: measured["span_s"]}
    return ", ".join(
        f"{per_second(messages / span_s)} {named} ({significant(span_s)} s)"
        for named, span_s in spans.items()
        if span_s
    )


def _section(run: Run, measured: dict[str, Any], key: str, *dims: str) -> Section:
    kinds = KINDS.get(key, (CONFIRMED, DELIVERED))
    return section_of(
        key.capitalize(),
        [row for row in measured[key] if row["kind"] in kinds],
        {
            **({"": "kind"} if len(kinds) > 1 else {}),
            **{dim: dim for dim in dims},
            "messages": "messages",
            "MB": lambda row: megabytes(row["bytes"]),
            MEAN: lambda row: per_second(row["messages"] / run.span_s),
            "seconds with any": "active_s",
            MEAN_IN_USE: lambda row: per_second(row["messages"] / row["active_s"]),
            BEST: lambda row: f"{row['peak_per_s']:,}/s",
        },
        left=len(kinds) - 1 + len(dims),
        note="" if len(kinds) > 1 else f"Messages {kinds[0]}.",
    )


def panels(run: Run, measured: Mapping[str, Any]) -> list[Panel]:
    """Return the charts of `measure`: confirms per broker, deliveries per subscription."""
    return [
        Panel("confirmed per second", _series(run, measured, CONFIRMED), "stack", height=3),
        Panel("delivered per second", _series(run, measured, DELIVERED), "step"),
    ]


def _rates(run: Run, row: dict[str, Any]) -> str:
    """Return the rates in words; of a sample also the estimate for all messages."""
    rate, share = row["messages"] / run.span_s, run.manifest.share
    of_all = f", about {per_second(rate / share)} of all messages" if share < 1 else ""
    return f"{per_second(rate)} {OVER_RUN}, {row['peak_per_s']:,} in the {BEST}{of_all}"


def _series(run: Run, measured: Mapping[str, Any], kind: str) -> list[Series]:
    """Return rates per second, to the end of the run, silent or not."""
    width = measured["window_s"]
    sums = {
        (row["name"], row["window"]): row["messages"] / width
        for row in measured["timeline"]
        if row["kind"] == kind
    }
    # The last window is only partly filled and would look like a fall.
    last = max((at for _, at in sums), default=0)
    ended = int(since_s(run, run.until_ns) // width * width)
    kept = {key: rate for key, rate in sums.items() if key[1] < max(last, ended) or last == 0}
    for name in {name for name, _ in kept}:
        if ended > last:
            kept.setdefault((name, ended), 0.0)
    return series_by(kept, width=width)


command = job_command(
    "throughput",
    "Messages and bytes per broker, topic, subscription, publisher and second.",
    measure,
)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="throughput"))
