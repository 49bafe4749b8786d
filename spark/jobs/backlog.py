"""The backlog of the brokers: number and age of waiting messages, and the time to drain them.

spark-submit spark/jobs/backlog.py --events DIR --out DIR
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from messagebus.terminal import plural
from reports.charts import Panel, Series, over_time
from reports.page import Figure, Page, section_of
from reports.text import NONE, Columns, cell, milliseconds
from spark.command import Answer, exit_code, job_command
from spark.lake.tables import utc_day
from spark.measures import backlog, hdr, throughput
from spark.measures.faults import Fault
from spark.measures.run import Run
from spark.pages import (
    collected,
    marks_and_spans,
    page_of,
    series_by,
    since_s,
    subscription,
    window_for,
)

TABLE = "backlog"
SECOND_NS = 1_000_000_000
WORDS = {
    "waiting": "recorded messages that were confirmed and not yet received for the first time, at any "
    "time of a second. A message that was received before its confirm reached the publisher never waited.",
    "oldest": "the longest time that any message had waited in a second.",
    "as brokers said": "the brokers' own counts of ready messages, of all publishers, if they were "
    "sampled.",
    "most at once": "at any time, by the rows of every message. The report of bench asks its brokers once a "
    "second, and may miss a peak.",
    "empty after another": "from the second with the most messages to the first second that ended with none. "
    "A dash: not emptied.",
}


def measure(run: Run) -> Answer:
    waits = backlog.waits(run.whole.fates()).persist()
    start_ns, end_ns = run.manifest.start_ns, _end_ns(run, waits)
    rows = [backlog.depths(waits, start_ns, end_ns), backlog.still(waits, start_ns, end_ns)]
    if run.start_ns > start_ns:
        # Messages that wait at midnight wait on the day that begins, too.
        rows.append(backlog.still(waits, start_ns, run.start_ns + 1))
    first, last = ((at_ns - start_ns) // SECOND_NS for at_ns in (run.start_ns, end_ns - 1))
    own = backlog.together(*rows).filter(F.col("second").between(first, max(first, last)))
    depths = run.keep(TABLE, own.withColumn("date", _day(run)))
    never = {_queue(row): row["never"] for row in collected(backlog.left(waits, end_ns))}
    early = backlog.early(waits)
    early["error_ns"] = max(early["error_ns"], run.ingested.clock_doubt_ns)
    error_ns = early["error_ns"] if run.ingested.clocks > 1 else run.ingested.clock_doubt_ns
    drains = [
        row | {"never": never.get(_queue(row), 0)} for row in collected(backlog.drains(depths))
    ]
    for row in drains:
        # The queue was empty for a while, and is not now.
        row["empty_second"] = None if row["never"] else row["empty_second"]
        # As of latencies: no wait is told that is less than ten times what clocks differ by.
        if row["age_ms"] * 1e6 < hdr.BEARS * error_ns:
            row["age_ms"] = None
    waits.unpersist()
    width = window_for(since_s(run, end_ns))
    samples = backlog.sampled(run.events("sampled"), start_ns)
    found: dict[str, Any] = {
        "drains": sorted(drains, key=lambda row: -row["peak"]),
        "timeline": _windows(
            depths,
            width,
            F.max("most").alias("depth"),
            F.max_by("depth", "second").alias("left"),
            F.max("age_ms").alias("age_ms"),
            F.max_by("oldest_ms", "second").alias("oldest_ms"),
            F.max("second").alias("second"),
        ),
        "sampled": _windows(
            samples,
            width,
            F.max("ready").alias("ready"),
            F.max_by("ready", "second").alias("left"),
            F.max("unacked").alias("unacked"),
        ),
        "window_s": width,
        "end_s": since_s(run, end_ns),
        "clocks": run.ingested.clocks,
        "early": early,
    }
    return Answer(found, _page(run, found))


def _windows(rows: DataFrame, width: int, *columns: Column) -> list[dict[str, Any]]:
    """Return DIMS, at (the first second of a window), and these columns of the window."""
    at = throughput.whole("second", width).alias("at")
    return collected(rows.groupBy(*backlog.DIMS, at).agg(*columns))


def _end_ns(run: Run, waits: DataFrame) -> int:
    """Return the end of the run or its day; later, where a message of the whole run moved later."""
    last = waits.agg(F.max(F.greatest("in_ns", "out_ns")).alias("last_ns")).first()
    if run.day is not None or last is None or last["last_ns"] is None:
        return run.until_ns
    return max(run.until_ns, int(last["last_ns"]) + 1)


def _day(run: Run) -> Column:
    at_ns = F.lit(run.manifest.start_ns) + F.col("second") * SECOND_NS
    return utc_day(at_ns)


def _queue(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in backlog.DIMS)


def _page(run: Run, measured: dict[str, Any]) -> Page:
    drains = measured["drains"]
    left = [row for row in drains if row["never"]]
    peak, queue = _worst(drains)
    ages = [row["age_ms"] for row in drains if row["age_ms"] is not None]
    oldest = milliseconds(max(ages) if ages else None)
    by = f"by {measured['clocks']:,} clocks" if measured["clocks"] > 1 else ""
    chart = over_time(_panels(measured), until_s=measured["end_s"], **marks_and_spans(run))
    return page_of(
        run,
        "backlog",
        verdict="Everything was taken out."
        if not left
        else f"Not everything was taken out of {len(left)} of {len(drains)} queues.",
        faults=(
            *_clocks(measured["early"], measured["clocks"]),
            *(
                Fault(
                    "backlog",
                    f"{row['broker']}, {subscription(row)}: not empty at the end: "
                    f"{row['never']:,} were never taken out",
                )
                for row in left
            ),
        ),
        comment=f"The oldest message waited {oldest}."
        if ages
        else "How long messages waited is not known."
        if drains
        else "Nothing waited.",
        figures=(
            Figure(
                cell(peak),
                "most at once in one queue",
                " ".join(filter(None, (queue, by))),
            ),
            Figure(oldest, "longest wait", by),
            Figure(cell(len(left)), "queues not emptied", f"of {len(drains)}"),
        ),
        sections=(section_of("Over time", drains, DRAINS, left=2, chart=chart),),
        words=WORDS,
        tables=(TABLE,),
    )


def _worst(drains: Sequence[Mapping[str, Any]]) -> tuple[int | None, str]:
    """Return the most messages that waited at once in one queue, and its subscription and broker."""
    if not drains:
        return None, ""
    worst = max(drains, key=lambda row: row["peak"])
    return worst["peak"], f"{subscription(worst)} on {worst['broker']}"


def _clocks(early: Mapping[str, int], clocks: int) -> list[Fault]:
    """Return the fault of messages that came before they were sent: what waited is not known then."""
    if not (count := early["backwards"]):
        return []
    differ = f"clocks differ by {milliseconds(early['error_ns'] / 1e6)} or more, and waits are wrong by that"
    text = f"{plural(count, 'message')} came before the sending: " + (
        differ if clocks > 1 else "a clock went back"
    )
    return [Fault("clocks", text, count)]


def _emptied(row: Mapping[str, Any]) -> str:
    if row["empty_second"] is None:
        return NONE
    return f"{row['empty_second'] - row['peak_second']:,} s"


DRAINS: Columns = {
    "broker": "broker",
    "subscription": subscription,
    "most at once": "peak",
    "at second": lambda row: f"{row['peak_second']:,}",
    "empty after another": _emptied,
    "longest wait": lambda row: milliseconds(row["age_ms"]),
}


def _panels(measured: dict[str, Any]) -> list[Panel]:
    panels = [
        Panel(
            "messages waiting, all queues of a broker",
            _summed(measured["timeline"], "depth"),
            "step",
            height=2.6,
        ),
        Panel("wait of the oldest", _oldest(measured), "step", "ms", height=2.2),
    ]
    if measured["sampled"]:
        ready = _summed(measured["sampled"], "ready")
        panels.append(Panel("messages ready, as brokers said", ready, "line"))
    return panels


def _summed(rows: list[dict[str, Any]], key: str) -> list[Series]:
    """Return the sums over all queues of a broker: a queue without movement still holds its messages."""
    ats = sorted({row["at"] for row in rows})
    queues: dict[tuple[str, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        queues[_queue(row)][row["at"]] = row
    sums: dict[tuple[str, int], float] = defaultdict(float)
    for (broker, *_), own in queues.items():
        held = 0.0
        for at in ats:
            sums[broker, at] += own[at][key] if at in own else held
            held = own[at]["left"] if at in own else held
    return series_by(sums, missing=math.nan)


def _oldest(measured: dict[str, Any]) -> list[Series]:
    """Return the wait of the oldest message; it grows while nothing moves.

    Without messages there is no line.
    """
    width, end_s = measured["window_s"], measured["end_s"]
    queues: dict[tuple[str, ...], dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in measured["timeline"]:
        queues[_queue(row)][row["at"]] = row
    largest: dict[tuple[str, int], float] = {}
    for (broker, *_), own in queues.items():
        before: dict[str, Any] | None = None
        for at in range(min(own), max(own) + 1, width):
            row, age_ms = own.get(at), 0.0
            if row:
                age_ms, before = row["age_ms"], row
            elif before and before["left"]:
                until_s = min(at + width, end_s)
                age_ms = before["oldest_ms"] + (until_s - before["second"] - 1) * 1000
            if age_ms > 0:
                largest[broker, at] = max(largest.get((broker, at), 0.0), age_ms)
    return series_by(largest, width=width, missing=math.nan, together=max)


command = job_command(
    "backlog",
    "Depth and age of what waits in the brokers, and the time to drain it.",
    measure,
)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="backlog"))
