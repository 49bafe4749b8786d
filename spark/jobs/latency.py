"""Percentiles of publishing and of the whole way, corrected and uncorrected side by side.

spark-submit spark/jobs/latency.py --events DIR --out DIR
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from messagebus.clock import NS_PER_MS
from reports.charts import DASHED, DOTTED, Panel, Series, over_time, percentiles
from reports.page import Figure, Page, Section, section_of
from reports.svg import ALARM, COLOURS
from reports.text import cell, milliseconds
from spark.command import Answer, exit_code, job_command
from spark.measures import hdr, latency, throughput
from spark.measures.faults import clocks, counted, unconfirmed
from spark.measures.latency import (
    CONFIRM,
    CURVE,
    END_TO_END,
    MEASURES,
    RECEIVED_SENT,
    SENT,
    WHOLE,
)
from spark.measures.run import Run
from spark.pages import (
    bin_window_for,
    collected,
    marks_and_spans,
    page_of,
    since_s,
    window_for,
)

SHOWN = (50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0)
TIMELINE = {50: None, 99: DASHED, 100: DOTTED}
WORDS = {
    "have none": "a message that was never confirmed has no latency. The percentiles do not include it; "
    "it would be beyond all of them.",
    "percentiles": "from exact counts per HdrHistogram bin (3 digits), equal to those of a histogram of "
    "all values. A percentile is shown if at least one sample lies beyond it.",
}
CORRECTED = {
    "corrected": "counts from the intended time, which the schedule gave before the run. A stall shows in "
    "every message that it delayed.",
    "uncorrected": "counts from the sending, without the time that a message waited in its sender. Where "
    "the two part, messages waited in the sender.",
}
UNCORRECTED = {
    "uncorrected": "no intended times were recorded. A message counts from the time when the application "
    "handed it over, or from the sending. Messages that a stall kept the application from handing over "
    "are not in it.",
}


def measure(run: Run) -> Answer:
    published, fates = run.events("published"), run.fates()
    samples = latency.samples(published, fates)
    bin_width = bin_window_for(run)
    bins = latency.bins(run, samples, bin_width)
    width = math.ceil(window_for(run.span_s) / bin_width) * bin_width
    window = throughput.window("intended_ns", run.manifest.start_ns, width).alias("window")
    without = published.filter(F.col("outcome") != "confirmed").groupBy(window)
    [never] = collected(
        fates.agg(
            F.count_if(F.col("expected") & (F.col("deliveries") == 0)).alias("never"),
            F.count_if("lost").alias("lost"),
        )
    )
    scopes = ["measure", "scope", "name"]
    found: dict[str, Any] = {
        "percentiles": collected(hdr.percentiles(latency.scoped(bins), scopes, CURVE)),
        "timeline": timeline(bins.withColumn("window", throughput.whole("window", width))),
        "window_s": width,
        "clocks": latency.clock_counts(run, samples),
        "unconfirmed": unconfirmed(run),
        "without": collected(without.count().orderBy("window")),
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


def timeline(bins: DataFrame) -> list[dict[str, Any]]:
    """Return measure, window, total, and the percentiles of `TIMELINE`. bins: with measure and window."""
    return collected(hdr.percentiles(bins, ["measure", "window"], (*TIMELINE,)))


def _histograms(bins: DataFrame) -> dict[str, str]:
    """Return measure -> histogram of the whole run, as HdrHistogram encodes it."""
    whole = collected(bins.groupBy("measure", "bin").agg(F.sum("n").alias("n")))
    return {
        measure: hdr.histogram((row["bin"], row["n"]) for row in whole if row["measure"] == measure)
        .encode()
        .decode()
        for measure in sorted({row["measure"] for row in whole})
    }


def _page(run: Run, measured: dict[str, Any]) -> Page:
    whole = {row["measure"]: row for row in measured["percentiles"] if row["scope"] == WHOLE}
    names, errors = latency.names(run.manifest), _errors(measured)
    faults = [
        *clocks(names, measured["clocks"], run.ingested),
        *counted({"lost": measured["lost"]}),
    ]
    verdict, none = "Nothing was confirmed.", _without(measured)
    if CONFIRM in whole:
        p99 = _shown(whole[CONFIRM], 99.0, 0)
        verdict = f"p99 of {p99} until the confirm" + (f"; {none}." if none else ".")
    never = (
        f"{cell(measured['never_delivered'])} never delivered"
        if measured["never_delivered"]
        else ""
    )
    figures = [
        Figure(
            _shown(whole[name], 99.0, errors[name]),
            f"p99, {names[name]}",
            "; ".join(filter(None, (_others(whole[name], errors[name]), missing, _by(run, name)))),
        )
        for name, missing in zip(MEASURES, (none, none, never, never), strict=True)
        if name in whole
    ]
    return page_of(
        run,
        "latency",
        verdict=verdict,
        faults=tuple(faults),
        figures=tuple(figures),
        sections=_sections(run, measured),
        words={
            **(CORRECTED if run.manifest.is_corrected else UNCORRECTED),
            **WORDS,
            "below zero": _below_text(measured["below_zero"], names),
        },
        tables=("latency_bins",),
        numbers="Numbers, and histograms of the whole run in HdrHistogram's own form",
    )


def _by(run: Run, measure: str) -> str:
    """Return by how many clocks a measure was taken, in words; "" by one."""
    clocks = 1 if measure in latency.ONE_CLOCK else run.ingested.clocks
    return f"by {clocks:,} clocks" if clocks > 1 else ""


def _without(measured: dict[str, Any]) -> str:
    """Return the publishes without a confirm, in words."""
    confirmed = sum(
        row["total"]
        for row in measured["percentiles"]
        if (row["measure"], row["scope"]) == (CONFIRM, WHOLE)
    )
    without = sum(measured["unconfirmed"].values())
    return f"{without:,} of {confirmed + without:,} publishes have none" if without else ""


def _sections(run: Run, measured: dict[str, Any]) -> tuple[Section, ...]:
    names, errors = latency.names(run.manifest), _errors(measured)
    whole = {row["measure"]: row for row in measured["percentiles"] if row["scope"] == WHOLE}
    rows = [
        {
            "measure": names[row["measure"]],
            "of": row["name"] or "all",
            "samples": row["total"],
            **{
                f"p{each:g}" if each < 100 else "max": _shown(row, each, errors[row["measure"]])
                for each in SHOWN
            },
        }
        for row in sorted(
            measured["percentiles"],
            key=lambda row: (MEASURES.index(row["measure"]), row["scope"] != WHOLE, row["name"]),
        )
    ]
    since = "meant to be sent" if run.manifest.is_corrected else "handed over"
    return (
        section_of(
            "By percentile",
            rows,
            tuple(rows[0]) if rows else (),
            left=2,
            note=f"Full lines count from the time at which a message was {since}, dashed ones from when it "
            "was sent.",
            chart=percentiles(_curves(whole, names, errors)),
        ),
        Section(
            title="Over time",
            note="Where there is no line there was no sample, or too few of them.",
            chart=_over_time(run, measured),
        ),
    )


def _errors(measured: Mapping[str, Any]) -> dict[str, int]:
    return {measure: row["error_ns"] for measure, row in measured["clocks"].items()}


def _shown(row: dict[str, Any], percentile: float, error_ns: int) -> str:
    value = hdr.shown(row, percentile, error_ns)
    return milliseconds(None if value is None else value / NS_PER_MS)


def _others(row: dict[str, Any], error_ns: int) -> str:
    told = f"median {_shown(row, 50.0, error_ns)}, longest {_shown(row, 100.0, error_ns)}"
    return told + (
        f"; clocks differ by {milliseconds(error_ns / NS_PER_MS)} or more" if error_ns else ""
    )


def _below_text(counts: dict[str, int], names: dict[str, str]) -> str:
    told = "; ".join(f"{n:,} of {names[name]}" for name, n in sorted(counts.items()))
    rest = (
        "of a message that was sent again an earlier copy came, or the clocks of two hosts differ. They "
        f"count as less than all others. A figure below {hdr.BEARS} times the largest of them is not given."
    )
    return f"{told}: {rest}" if told else "no sample was."


def _ms(row: Mapping[str, Any], percentile: float, error_ns: int) -> float:
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


def _over_time(run: Run, measured: dict[str, Any]) -> str:
    first_s, until_s = (since_s(run, at) for at in (run.start_ns, run.until_ns))
    width = measured["window_s"]
    # Steps hold their value until the next point: one more point ends the last of them.
    every = range(int(first_s // width) * width, math.ceil(until_s) + width, width)
    drawn = lines(run, measured, measured["timeline"], every)
    panels = [Panel(f"latency, each {width} s", drawn, "step", "ms", height=3)]
    if measured["without"]:
        counts = {row["window"]: row["count"] for row in measured["without"]}
        missing = Series("publishes", every, [counts.get(at, 0) for at in every], ALARM)
        panels.append(Panel(f"without a confirm, each {width} s", [missing], "stack"))
    return over_time(panels, until_s=until_s, **marks_and_spans(run))


def lines(
    run: Run, measured: Mapping[str, Any], rows: Iterable[Mapping[str, Any]], ats: Sequence[int]
) -> list[Series]:
    """Return lines over windows; one without a sample, or with too few, is a gap.

    measured: of `measure`. rows: of `timeline`. ats: beginnings of all windows.
    """
    names, errors, drawn = latency.names(run.manifest), _errors(measured), []
    known = {(row["measure"], row["window"]): row for row in rows}
    for number, measure in enumerate((CONFIRM, END_TO_END)):
        for percentile, dashes in TIMELINE.items():
            if percentile == 100 and measure == CONFIRM:
                continue
            values = [
                _ms(row, percentile, errors[measure])
                if (row := known.get((measure, at)))
                else math.nan
                for at in ats
            ]
            tail = "longest" if percentile == 100 else f"p{percentile}"
            label = f"{names[measure].split(':')[0]}, {tail}"
            drawn.append(Series(label, ats, values, COLOURS[number], dashes))
    return drawn


command = job_command(
    "latency",
    "HDR percentiles until the confirm and until the receipt, corrected and uncorrected.",
    measure,
)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="latency"))
