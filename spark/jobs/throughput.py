"""Messages and bytes over time: per broker, topic, subscription and publisher.

spark-submit spark/jobs/throughput.py --events DIR --out DIR
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyspark.sql import functions as F

from spark.command import Answer, exit_code, job_command
from spark.measures import throughput
from spark.measures.faults import Fault, lost_at_least, missing_at_least
from spark.measures.run import Run
from spark.measures.throughput import CONFIRMED, DELIVERED
from spark.page import words
from spark.page.charts import Panel, Series, over_time
from spark.page.page import Figure, Page, Section, table_of

__all__ = ["command", "measure"]

TABLE = "throughput"
# Tables in which one kind alone has a meaning.
KINDS = {"subscriptions": (DELIVERED,), "publishers": (CONFIRMED,)}
HEAD = ("messages", "MB", "mean", "seconds with any", "mean of those", "best second")


def measure(run: Run) -> Answer:
    rows = throughput.per_second(
        run.events("published"), run.events("delivered"), run.manifest.start_ns
    )
    seconds = run.keep(TABLE, rows)
    found: dict[str, Any] = {
        name: sorted(words.collected(throughput.totals(seconds, dims)), key=_busiest)
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
    found["window_s"] = width = words.window_for(max(run.span_s, last + 1))
    found["timeline"] = words.collected(throughput.windows(seconds, width))
    found["span_s"] = run.span_s
    until_s = max(last + 1, words.since_s(run, run.until_ns))
    found["missing_at_least"] = missing_at_least(run, seconds)
    return Answer(found, _page(run, found, until_s))


def _busiest(row: dict[str, Any]) -> tuple[str, int]:
    return row["kind"], -row["messages"]


def _page(run: Run, found: dict[str, Any], until_s: float) -> Page:
    whole = {row["kind"]: row for row in found["whole"]}
    figures = [
        Figure(words.count(whole[kind]["messages"]), f"messages {kind}", _rates(run, whole[kind]))
        for kind in (CONFIRMED, DELIVERED)
        if kind in whole
    ]
    marks, spans = words.incidents(run)
    chart = over_time(
        [
            Panel(
                "confirmed per second", _series(run, found, CONFIRMED, "broker"), "stack", height=3
            ),
            Panel(
                "delivered per second",
                _series(run, found, DELIVERED, "topic", "subscription"),
                "step",
            ),
        ],
        until_s=until_s,
        marks=marks,
        spans=spans,
    )
    sections = [Section(title="Over time", chart=chart)]
    for title, key, dims in (
        ("Brokers", "brokers", ("broker",)),
        ("Topics", "topics", ("topic",)),
        ("Subscriptions", "subscriptions", ("topic", "subscription")),
        ("Publishers", "publishers", ("publisher",)),
    ):
        rows = [
            (row["kind"], *[row[dim] or words.NONE for dim in dims], *_cells(run, row))
            for row in found[key]
            if row["kind"] in KINDS.get(key, (CONFIRMED, DELIVERED))
        ]
        table = table_of(("", *dims, *HEAD), rows, left=1 + len(dims))
        sections.append(Section(title=title, tables=(table,)))
    return Page(
        job="throughput",
        title=run.manifest.run_id,
        meta=words.meta(run),
        verdict=f"{whole[CONFIRMED]['messages'] / run.span_s:,.0f}/s were confirmed over "
        f"{run.span_s:,.0f} s, {whole[CONFIRMED]['peak_per_s']:,} in the best second."
        if CONFIRMED in whole
        else "Nothing was confirmed.",
        faults=(
            *(() if CONFIRMED in whole else (Fault("nothing", "nothing was confirmed"),)),
            *lost_at_least(found["missing_at_least"]),
        ),
        figures=tuple(figures),
        sections=tuple(sections),
        words=(
            (
                "confirmed",
                "counted in the second in which the confirm came, at the broker that gave it.",
            ),
            ("delivered", "counted in the second of receipt; repeats are deliveries too."),
            (
                "mean",
                "over the whole run, or its day: seconds in which nothing was confirmed are in it.",
            ),
            (
                "mean of those",
                "over the seconds in which there were any: a broker that was added late is not "
                "diluted.",
            ),
            words.input_words(run),
        ),
        tables=TABLE,
    )


def _rates(run: Run, row: dict[str, Any]) -> str:
    """Return the rates in words; of a sample also the estimate for all messages."""
    rate, share = row["messages"] / run.span_s, run.manifest.share
    of_all = f", about {rate / share:,.0f}/s of all messages" if share < 1 else ""
    return f"{rate:,.0f}/s, at best {row['peak_per_s']:,}{of_all}"


def _cells(run: Run, row: dict[str, Any]) -> tuple[str, ...]:
    return (
        words.count(row["messages"]),
        f"{row['bytes'] / 1e6:,.1f}",
        f"{row['messages'] / run.span_s:,.1f}/s",
        words.count(row["active_s"]),
        f"{row['messages'] / row['active_s']:,.0f}/s",
        f"{row['peak_per_s']:,}/s",
    )


def _series(run: Run, found: dict[str, Any], kind: str, *dims: str) -> list[Series]:
    """Return rates per second, summed over all other dimensions; to the end of the run, silent or not."""
    width = found["window_s"]
    sums: dict[tuple[str, int], float] = defaultdict(float)
    for row in found["timeline"]:
        if row["kind"] == kind:
            sums["/".join(row[dim] for dim in dims), row["window"]] += row["messages"] / width
    # The last window is only partly filled and would look like a fall.
    last = max((at for _, at in sums), default=0)
    ended = int(words.since_s(run, run.until_ns) // width * width)
    kept = {key: rate for key, rate in sums.items() if key[1] < max(last, ended) or last == 0}
    for name in {name for name, _ in kept}:
        if ended > last:
            kept.setdefault((name, ended), 0.0)
    rows = [{"name": name, "at": at, "rate": rate} for (name, at), rate in kept.items()]
    return words.series_by(rows, "name", "at", "rate", width=width)


command = job_command(
    "throughput",
    "Messages and bytes per broker, topic, subscription, publisher and second.",
    measure,
)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="throughput"))
