"""Two runs of a lake, or two days, beside each other: rates, percentiles, faults.

spark-submit spark/jobs/compare.py --lake DIR --out DIR RUN RUN
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import click
from pyspark.sql import DataFrame

from messagebus.recording.events import FAULTS
from spark.command import (
    HELP,
    Answer,
    check_day,
    exit_code,
    in_one_line,
    out_option,
    run_of,
    session_for,
    write,
)
from spark.jobs import audit
from spark.jobs.latency import below
from spark.lake.ingest import Ingested, ingested
from spark.lake.tables import Lake
from spark.measures import hdr, latency, throughput
from spark.measures.compare import Row, compared, numbers, worse
from spark.measures.faults import Fault, bad_faults, counted, of_publishes, said
from spark.measures.latency import CONFIRM, END_TO_END, MEASURE_NAMES
from spark.measures.run import Run
from spark.page import words
from spark.page.charts import DASHED, Series, percentiles
from spark.page.drawing import COLOURS
from spark.page.page import Figure, Page, Section, table_of
from spark.page.pipeline import BIN_WINDOW_S, CURVE

__all__ = ["command"]

NS_PER_MS = 1_000_000


@click.command(
    "compare",
    epilog="Example: python -m spark compare --lake out/lake --out out/compare monday tuesday",
    context_settings=HELP,
    short_help="Compare two runs of a lake, or two days.",
)
@click.option(
    "--lake", "root", required=True, type=click.Path(path_type=Path), help="What was ingested."
)
@out_option
@click.option(
    "--worse-max",
    default=0.2,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Part by which the second may be worse.",
)
@click.argument("first", metavar="RUN[@DATE]")
@click.argument("second", metavar="RUN[@DATE]")
def command(root: Path, out: Path, worse_max: float, first: str, second: str) -> int:
    """Compare two runs of a lake, or two days: 2026-11-20 of a run is RUN@2026-11-20.

    Exits with 7 when the second is worse than the first: more faults, or slower by more than
    --worse-max.
    """

    def work() -> int:
        lake = Lake(root)
        sources = [_source(lake, name) for name in (first, second)]
        lake.check()
        with session_for("compare", sum(source.weight for source, _ in sources)) as session:
            runs = [run_of(session, lake, *source) for source in sources]
            measured = [_measured(run) for run in runs]
        rows = compared(measured[0]["numbers"], measured[1]["numbers"])
        found = {
            "runs": [first, second],
            "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
        }
        page = _page([first, second], rows, measured, worse(rows, worse_max))
        notes = [text for each in measured for text in each["notes"]]
        return write("compare", Answer(found, page), out, notes=notes)

    return in_one_line("compare", work)


def _source(lake: Lake, named: str) -> tuple[Ingested, str | None]:
    run_id, _, day = named.partition("@")
    if day:
        check_day(day)
    return ingested(lake, run_id), day or None


def _measured(run: Run) -> dict[str, Any]:
    published, fates = run.events("published"), run.fates()
    start_ns = run.manifest.start_ns
    run.keep("throughput", throughput.per_second(published, run.events("delivered"), start_ns))
    samples = latency.samples(published, fates)
    bins = run.keep("latency_bins", _bins(samples, start_ns))
    curves = words.collected(hdr.percentiles(bins, ["measure"], CURVE))
    faults: Counter[str] = Counter()
    for fault in (*_counted(run), *of_publishes(run), *bad_faults(run.ingested, 0)):
        faults[fault.name] += fault.found
    clocks = below(run, samples)
    faults["clocks"] += sum(row["backwards"] for row in clocks.values())
    errors = {measure: row["error_ns"] for measure, row in clocks.items()}
    found = numbers(
        curves,
        confirmed=published.filter("outcome = 'confirmed'").count(),
        span_s=run.span_s,
        faults=faults,
        errors=errors,
    )
    return {
        "numbers": found,
        "curves": {row["measure"]: row for row in curves},
        "errors": errors,
        "manifest": run.manifest,
        "notes": [f"{run.manifest.run_id}: {text}" for text in said(run.ingested)],
    }


def _counted(run: Run) -> list[Fault]:
    """Return the faults of the audit, each by its name."""
    return counted(audit.measure(run).found["counts"])


def _bins(samples: DataFrame, start_ns: int) -> DataFrame:
    windows = samples.withColumn("window", throughput.window("at_ns", start_ns, BIN_WINDOW_S))
    dims = ["date", "measure", "broker", "subscription", "window"]
    return hdr.bins(windows, dims, "value_ns")


def _page(
    names: list[str], rows: list[Row], measured: list[dict[str, Any]], faults: list[str]
) -> Page:
    # Where one of them has handed-over times only, they are not compared as intended times.
    words_of = latency.names(*[each["manifest"] for each in measured])
    table = table_of(
        ("", *names, "second / first"),
        [
            (
                _name(row, words_of),
                *[_value(row, value) for value in (row.a, row.b)],
                words.NONE if row.ratio is None else f"{row.ratio:.2f}",
            )
            for row in rows
        ],
    )
    return Page(
        job="compare",
        title=f"{names[1]} against {names[0]}",
        meta="the first is what it is compared with",
        verdict="The second is worse." if faults else "The second is not worse.",
        faults=tuple(_worded(fault, words_of) for fault in faults),
        figures=tuple(
            Figure(
                words.NONE if row.ratio is None else f"{row.ratio:.2f}",
                _name(row, words_of),
                "second / first",
            )
            for row in rows
            if row.name in ("confirmed per second", f"{CONFIRM} p99", f"{END_TO_END} p99")
        ),
        sections=(
            Section(
                title="By percentile",
                note="Full lines: the first; dashed: the second.",
                chart=percentiles(_curves(names, measured)),
            ),
            Section(title="Numbers", tables=(table,)),
        ),
        words=(
            (
                "second / first",
                "of one run each: how much of it is chance, it does not say. python -m bench "
                "compare repeats, and does.",
            ),
        ),
        tables="throughput, latency_bins, fates",
    )


def _name(row: Row, words_of: dict[str, str]) -> str:
    return FAULTS.get(row.name, _worded(row.name, words_of))


def _worded(text: str, words_of: dict[str, str]) -> str:
    """Put a text that begins with a measure's name and a percentile into words."""
    measure, _, rest = text.partition(" ")
    if measure not in words_of:
        return text
    return f"{words_of[measure]}, {'longest' if rest == 'p100' else rest}"


def _value(row: Row, value: float | None) -> str:
    if value is None:
        return words.NONE
    return f"{value:,.2f} ms" if row.unit == "ms" else f"{value:,.0f}{row.unit}"


def _curves(names: list[str], measured: list[dict[str, Any]]) -> list[Series]:
    drawn = []
    for name, each, dashes in zip(names, measured, (None, DASHED), strict=True):
        for number, measure in enumerate((CONFIRM, END_TO_END)):
            if row := each["curves"].get(measure):
                error_ns = each["errors"][measure]
                kept = [one for one in CURVE if hdr.shown(row, one, error_ns) is not None]
                values = [max(1, row[hdr.name(one)]) / NS_PER_MS for one in kept]
                label = f"{name}, {MEASURE_NAMES[measure].split(':')[0]}"
                drawn.append(Series(label, kept, values, COLOURS[number], dashes))
    return drawn


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="compare"))
