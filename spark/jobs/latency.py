"""Percentiles of publishing and of the whole way, corrected and uncorrected side by side.

spark-submit spark/jobs/latency.py --events DIR --out DIR
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark.command import Answer, exit_code, job_command
from spark.measures import hdr, latency, throughput
from spark.measures.faults import Fault, clocks, counted, unconfirmed
from spark.measures.latency import (
    CONFIRM,
    END_TO_END,
    MEASURES,
    ONE_CLOCK,
    RECEIVED_SENT,
    SENT,
    WHOLE,
)
from spark.measures.run import Run
from spark.page import words
from spark.page.charts import DASHED, Panel, Series, over_time, percentiles
from spark.page.drawing import ALARM, COLOURS, milliseconds
from spark.page.page import Figure, Page, Section, table_of
from spark.page.pipeline import BIN_WINDOW_S, CURVE

__all__ = ["below", "command", "measure"]

TABLE = "latency_bins"
SHOWN = (50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0)
NS_PER_MS = 1_000_000


def measure(run: Run) -> Answer:
    published, fates = run.events("published"), run.fates()
    samples = latency.samples(published, fates)
    windows = samples.withColumn(
        "window", throughput.window("at_ns", run.manifest.start_ns, BIN_WINDOW_S)
    )
    dims = ["date", "measure", "broker", "subscription", "window"]
    bins = run.keep(TABLE, hdr.bins(windows, dims, "value_ns"))
    scoped = latency.scoped(bins)
    without = published.filter(F.col("outcome") != "confirmed").groupBy(
        throughput.window("intended_ns", run.manifest.start_ns, BIN_WINDOW_S).alias("window")
    )
    [never] = words.collected(
        fates.agg(
            F.count_if(F.col("expected") & (F.col("deliveries") == 0)).alias("never"),
            F.count_if("lost").alias("lost"),
        )
    )
    found: dict[str, Any] = {
        "percentiles": words.collected(
            hdr.percentiles(scoped, ["measure", "scope", "name"], CURVE)
        ),
        "timeline": words.collected(hdr.percentiles(bins, ["measure", "window"], (50, 99, 100))),
        "clocks": below(run, samples),
        "unconfirmed": unconfirmed(run),
        "without": words.collected(without.count().orderBy("window")),
        "never_delivered": never["never"],
        "lost": never["lost"],
        "histograms": _histograms(bins),
    }
    found["below_zero"] = {
        name: row["below"] for name, row in found["clocks"].items() if row["below"]
    }
    for row in found["percentiles"]:
        if row["scope"] == WHOLE:
            of = found["clocks"][row["measure"]]
            supported = [each for each in (50, 99) if hdr.supported(each, row["total"])]
            shown = [hdr.shown(row, each, of["error_ns"]) for each in supported]
            of["hidden"] = shown.count(None)
    return Answer(found, _page(run, found))


def below(run: Run, samples: DataFrame) -> dict[str, dict[str, int]]:
    """Return measure -> counts of `latency.below`, and hidden: 0.

    Across clocks error_ns is at least the doubt about these.
    """
    asked = {
        f"{measure} {name}": value
        for measure in MEASURES
        for name, value in latency.below(measure).items()
    }
    row = samples.agg(*[value.alias(name) for name, value in asked.items()]).collect()[0]
    found: dict[str, dict[str, int]] = {
        measure: {name: row[f"{measure} {name}"] for name in ("below", "backwards", "error_ns")}
        | {"hidden": 0}
        for measure in MEASURES
    }
    for measure in set(MEASURES) - set(ONE_CLOCK):
        error_ns = max(found[measure]["error_ns"], run.ingested.clock_doubt_ns)
        found[measure]["error_ns"] = error_ns
    return found


def _histograms(bins: DataFrame) -> dict[str, str]:
    """Return measure -> histogram of the whole run, as HdrHistogram encodes it."""
    whole = words.collected(bins.groupBy("measure", "bin").agg(F.sum("n").alias("n")))
    return {
        measure: hdr.histogram((row["bin"], row["n"]) for row in whole if row["measure"] == measure)
        .encode()
        .decode()
        for measure in sorted({row["measure"] for row in whole})
    }


def _page(run: Run, found: dict[str, Any]) -> Page:
    whole = {row["measure"]: row for row in found["percentiles"] if row["scope"] == WHOLE}
    names, errors = latency.names(run.manifest), _errors(found)
    faults = [*clocks(names, found["clocks"], run.ingested), *counted({"lost": found["lost"]})]
    if CONFIRM not in whole:
        faults.append(Fault("nothing", "nothing was confirmed"))
    confirmed = whole[CONFIRM]["total"] if CONFIRM in whole else 0
    without = sum(found["unconfirmed"].values())
    none = f"{without:,} of {confirmed + without:,} publishes have none" if without else ""
    figures = [
        Figure(
            _shown(whole[name], 99.0, errors[name]),
            f"p99, {names[name]}",
            "; ".join(
                part
                for part in (
                    _others(whole[name], errors[name]),
                    none if name in (CONFIRM, SENT) else _never(found),
                )
                if part
            ),
        )
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
                names[row["measure"]],
                row["name"] or "all",
                words.count(row["total"]),
                *[_shown(row, each, errors[row["measure"]]) for each in SHOWN],
            )
            for row in rows
        ],
        left=2,
    )
    return Page(
        job="latency",
        title=run.manifest.run_id,
        meta=words.meta(run),
        verdict=f"p99 of {_shown(whole[CONFIRM], 99.0, 0)} until the confirm"
        + (f"; {none}." if none else ".")
        if CONFIRM in whole
        else "Nothing was confirmed.",
        faults=tuple(faults),
        figures=tuple(figures),
        sections=(
            Section(
                title="By percentile",
                note="Full lines count from the time at which a message was "
                + ("meant to be sent" if run.manifest.is_corrected else "handed over")
                + ", dashed ones from when it was sent.",
                chart=percentiles(_curves(whole, names, errors)),
                tables=(table,),
            ),
            Section(
                title="Over time",
                note="Where there is no line there was no sample, or too few of them.",
                chart=_over_time(run, found, names, errors),
            ),
        ),
        words=(
            *(CORRECTED if run.manifest.is_corrected else UNCORRECTED),
            (
                "have none",
                "what was published and never confirmed has no latency, and is in no percentile: it "
                "would be beyond all of them.",
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
            ("below zero", _told_below(found["below_zero"], names)),
            words.input_words(run),
        ),
        tables=TABLE,
    )


CORRECTED = (
    (
        "corrected",
        "counts from the intended time, which was known beforehand: a stall shows in every message that "
        "it held up.",
    ),
    (
        "uncorrected",
        "counts from the sending: what a sender waited before is forgiven. Where the two part, the sender "
        "was held back.",
    ),
)
UNCORRECTED = (
    (
        "uncorrected",
        "no intended times were recorded: a message counts from when the application handed it over, or "
        "from the sending. What a stall kept the application from handing over shows nowhere.",
    ),
)


def _errors(found: dict[str, Any]) -> dict[str, int]:
    return {measure: row["error_ns"] for measure, row in found["clocks"].items()}


def _never(found: dict[str, Any]) -> str:
    return f"{found['never_delivered']:,} never delivered" if found["never_delivered"] else ""


def _shown(row: dict[str, Any], percentile: float, error_ns: int) -> str:
    value = hdr.shown(row, percentile, error_ns)
    return words.NONE if value is None else milliseconds(value / NS_PER_MS)


def _others(row: dict[str, Any], error_ns: int) -> str:
    told = f"median {_shown(row, 50.0, error_ns)}, longest {_shown(row, 100.0, error_ns)}"
    return told + (
        f"; clocks differ by {milliseconds(error_ns / NS_PER_MS)} or more" if error_ns else ""
    )


def _told_below(counts: dict[str, int], names: dict[str, str]) -> str:
    told = "; ".join(f"{n:,} of {names[name]}" for name, n in sorted(counts.items()))
    rest = (
        "of a message that was sent again an earlier copy came, or the clocks of two hosts differ. They "
        f"count as less than all others. A figure below {hdr.BEARS} times the largest of them is not given."
    )
    return f"{told}: {rest}" if told else "no sample was."


def _ms(row: dict[str, Any], percentile: float, error_ns: int) -> float:
    """Return a percentile in ms; NaN, which is not drawn, where there is none."""
    value = hdr.shown(row, percentile, error_ns)
    return math.nan if value is None else max(1, value) / NS_PER_MS


def _curves(
    whole: dict[str, dict[str, Any]], names: dict[str, str], errors: dict[str, int]
) -> list[Series]:
    pairs = ((CONFIRM, SENT), (END_TO_END, RECEIVED_SENT))
    drawn = []
    for number, (corrected, raw) in enumerate(pairs):
        for name, dashes in ((corrected, None), (raw, DASHED)):
            if name in whole:
                kept = [each for each in CURVE if hdr.supported(each, whole[name]["total"])]
                values = [_ms(whole[name], each, errors[name]) for each in kept]
                drawn.append(Series(names[name], kept, values, COLOURS[number], dashes))
    return drawn


def _over_time(
    run: Run, found: dict[str, Any], names: dict[str, str], errors: dict[str, int]
) -> str:
    first_s, until_s = (words.since_s(run, at) for at in (run.start_ns, run.until_ns))
    # Steps hold their value until the next point: one more point ends the last of them.
    every = range(
        int(first_s // BIN_WINDOW_S) * BIN_WINDOW_S, math.ceil(until_s) + BIN_WINDOW_S, BIN_WINDOW_S
    )
    lines = []
    for number, measure in enumerate((CONFIRM, END_TO_END)):
        rows = {row["window"]: row for row in found["timeline"] if row["measure"] == measure}
        for percentile, dashes in ((50, None), (99, DASHED)):
            values = [
                _ms(rows[at], percentile, errors[measure]) if at in rows else math.nan
                for at in every
            ]
            label = f"{names[measure].split(':')[0]}, p{percentile}"
            lines.append(Series(label, list(every), values, COLOURS[number], dashes))
    marks, spans = words.incidents(run)
    panels = [Panel(f"latency, each {BIN_WINDOW_S} s", lines, "step", "ms", height=3)]
    if found["without"]:
        counts = {row["window"]: row["count"] for row in found["without"]}
        missing = Series("publishes", list(every), [counts.get(at, 0) for at in every], ALARM)
        panels.append(Panel(f"without a confirm, each {BIN_WINDOW_S} s", [missing], "stack"))
    return over_time(panels, until_s=until_s, marks=marks, spans=spans)


command = job_command(
    "latency",
    "HDR percentiles until the confirm and until the receipt, corrected and uncorrected.",
    measure,
)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="latency"))
