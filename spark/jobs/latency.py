"""Percentiles of publishing and of the whole way, corrected and uncorrected side by side.

spark-submit spark/jobs/latency.py --events DIR --out DIR
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark import hdr, latency, throughput
from spark.charts import DASHED, Panel, Series, over_time, percentiles
from spark.drawing import COLOURS, milliseconds
from spark.jobs import words
from spark.jobs.frame import Answer, exit_code, job_command
from spark.latency import CONFIRM, END_TO_END, MEASURES, RECEIVED_SENT, SENT, WHOLE
from spark.page import Figure, Page, Section
from spark.pipeline import BIN_WINDOW_S, CURVE
from spark.report import MEASURE_NAMES
from spark.run import Run
from spark.tables import table_of

__all__ = ["command", "measure"]

TABLE = "latency_bins"
SHOWN = (50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0)
NS_PER_MS = 1_000_000


def measure(run: Run) -> Answer:
    samples = latency.samples(run.events("published"), run.fates())
    windows = samples.withColumn(
        "window", throughput.window("at_ns", run.manifest.start_ns, BIN_WINDOW_S)
    )
    dims = ["date", "measure", "broker", "subscription", "window"]
    bins = run.keep(TABLE, hdr.bins(windows, dims, "value_ns"))
    below = samples.filter(F.col("value_ns") < 0).groupBy("measure").count()
    scoped = latency.scoped(bins)
    found: dict[str, Any] = {
        "percentiles": words.collected(
            hdr.percentiles(scoped, ["measure", "scope", "name"], CURVE)
        ),
        "timeline": words.collected(hdr.percentiles(bins, ["measure", "window"], (50, 99, 100))),
        "below_zero": {row["measure"]: row["count"] for row in words.collected(below)},
        "histograms": _histograms(bins),
    }
    return Answer(found, _page(run, found))


def _histograms(bins: DataFrame) -> dict[str, str]:
    """measure -> histogram of the whole run, as HdrHistogram writes it down."""
    whole = words.collected(bins.groupBy("measure", "bin").agg(F.sum("n").alias("n")))
    return {
        measure: hdr.histogram((row["bin"], row["n"]) for row in whole if row["measure"] == measure)
        .encode()
        .decode()
        for measure in sorted({row["measure"] for row in whole})
    }


def _page(run: Run, found: dict[str, Any]) -> Page:
    whole = {row["measure"]: row for row in found["percentiles"] if row["scope"] == WHOLE}
    faults = [
        f"{found['below_zero'][name]:,} samples of {MEASURE_NAMES[name]} are below zero: a clock "
        "went back"
        for name in (CONFIRM, SENT)
        if found["below_zero"].get(name)
    ]
    figures = [
        Figure(_shown(whole[name], 99.0), f"p99, {MEASURE_NAMES[name]}", _others(whole[name]))
        for name in MEASURES
        if name in whole
    ]
    rows = sorted(
        found["percentiles"],
        key=lambda row: (MEASURES.index(row["measure"]), row["scope"] != WHOLE, row["name"]),
    )
    table = table_of(
        ("measure", "of", "samples", *[f"p{each:g}" if each < 100 else "max" for each in SHOWN]),
        [
            (
                MEASURE_NAMES[row["measure"]],
                row["name"] or "all",
                words.count(row["total"]),
                *[_shown(row, each) for each in SHOWN],
            )
            for row in rows
        ],
        left=2,
    )
    return Page(
        job="latency",
        title=run.manifest.run_id,
        meta=words.meta(run),
        verdict=f"p99 of {_shown(whole[CONFIRM], 99.0)} until the confirm"
        if CONFIRM in whole
        else "Nothing was confirmed.",
        faults=tuple(faults if CONFIRM in whole else [*faults, "nothing was confirmed"]),
        figures=tuple(figures),
        sections=(
            Section(
                title="By percentile",
                note="Full lines count from the time at which a message was meant to be sent, "
                "dashed ones from when it was.",
                chart=percentiles(_curves(whole)),
                tables=(table,),
            ),
            Section(title="Over time", chart=_over_time(run, found)),
        ),
        words=(
            (
                "corrected",
                "counts from the intended time: a stall shows in every message that it held up.",
            ),
            (
                "uncorrected",
                "counts from the sending: what a sender waited before is forgiven. Where the two "
                "part, the sender was held back.",
            ),
            (
                "percentiles",
                "of exact counts per HdrHistogram bin (3 digits), equal to those of a histogram "
                "that was fed each value. One that fewer than one sample lies beyond is not "
                "shown.",
            ),
            (
                "histograms",
                "of the whole run, as HdrHistogram writes them down, are in latency.json.",
            ),
            ("below zero", _below(found["below_zero"])),
            words.input_words(run),
        ),
        tables=TABLE,
    )


def _shown(row: dict[str, Any], percentile: float) -> str:
    if not hdr.supported(percentile, row["total"]):
        return words.NONE
    return milliseconds(row[hdr.name(percentile)] / NS_PER_MS)


def _others(row: dict[str, Any]) -> str:
    return f"median {_shown(row, 50.0)}, longest {_shown(row, 100.0)}"


def _below(counts: dict[str, int]) -> str:
    told = "; ".join(f"{n:,} of {MEASURE_NAMES[name]}" for name, n in sorted(counts.items()))
    rest = (
        "of a message that was sent again an earlier copy came, or the clocks of two hosts differ; "
        "left out of every percentile."
    )
    return f"{told}: {rest}" if told else "no sample was."


def _curves(whole: dict[str, dict[str, Any]]) -> list[Series]:
    pairs = ((CONFIRM, SENT), (END_TO_END, RECEIVED_SENT))
    drawn = []
    for number, (corrected, raw) in enumerate(pairs):
        for name, dashes in ((corrected, None), (raw, DASHED)):
            if name in whole:
                kept = [each for each in CURVE if hdr.supported(each, whole[name]["total"])]
                values = [max(1, whole[name][hdr.name(each)]) / NS_PER_MS for each in kept]
                drawn.append(Series(MEASURE_NAMES[name], kept, values, COLOURS[number], dashes))
    return drawn


def _over_time(run: Run, found: dict[str, Any]) -> str:
    lines = []
    for number, measure in enumerate((CONFIRM, END_TO_END)):
        rows = sorted(
            (row for row in found["timeline"] if row["measure"] == measure),
            key=lambda row: row["window"],
        )
        for name, dashes in (("p50", None), ("p99", DASHED)):
            values = [max(1, row[name]) / NS_PER_MS for row in rows]
            label = f"{MEASURE_NAMES[measure].split(':')[0]}, {name}"
            # Steps hold their value until the next point: one more point ends the last of them.
            at = [row["window"] for row in rows]
            at += [at[-1] + BIN_WINDOW_S] if at else []
            lines.append(Series(label, at, [*values, *values[-1:]], COLOURS[number], dashes))
    marks, spans = words.incidents(run)
    until_s = max((row["window"] for row in found["timeline"]), default=0) + BIN_WINDOW_S
    panel = Panel(f"latency, each {BIN_WINDOW_S} s", lines, "step", "ms", height=3)
    return over_time([panel], until_s=until_s, marks=marks, spans=spans)


command = job_command(
    "latency",
    "HDR percentiles until the confirm and until the receipt, corrected and uncorrected.",
    measure,
)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="latency"))
