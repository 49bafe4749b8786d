"""One recorded run on one page: the sections of the other jobs, and all their numbers as one JSON.

spark-submit spark/jobs/report.py --events DIR --out DIR
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import click
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from messagebus.commands.exits import HELP, Exit
from messagebus.commands.options import Duration
from messagebus.recording.manifest import RunInvalid
from messagebus.terminal import plural
from reports.charts import Panel, over_time
from reports.page import Figure, Page, Section, section_of
from reports.text import NONE, Cell, Table, megabytes, milliseconds, per_second, plain
from spark.command import Answer, allow_option, carry_out, exit_code, max_bad_option
from spark.jobs import audit, failover, imbalance, latency, throughput
from spark.lake.ingest import plan
from spark.lake.manifests import manifest_of
from spark.lake.places import PlaceType
from spark.lake.tables import Lake
from spark.measures import gaps, hdr
from spark.measures.audit import REPEATS, first_deliveries
from spark.measures.latency import CONFIRM, END_TO_END, WHOLE, samples
from spark.measures.run import Run
from spark.measures.sift import Unsifted
from spark.measures.throughput import CONFIRMED, publishers, window
from spark.pages import (
    BEST,
    MEAN,
    MEAN_IN_USE,
    OVER_RUN,
    WHILE_SENT,
    bad_lines,
    collected,
    footer_of,
    marks_and_spans,
    page_of,
)
from spark.summary import Measured, Rows, check, summarize

# A report waits for the driver's planning as much as for its cores: two jobs run at a time.
AT_ONCE = 2
LONGEST_GAP = (
    "time without a confirm (publishers) or without a first delivery (brokers) while something was waiting "
    "for one, and when it began. The absence of a broker that was down is in it only while messages waited "
    "for it."
)


def measure(run: Run) -> Answer:
    """Report on a run. Raises DoesNotAddUp."""
    return answer_of(ask(run))


def answer_of(measured: Measured) -> Answer:
    """Return the report of what the other jobs have measured. Raises DoesNotAddUp."""
    check(measured)
    summary = summarize(measured)
    return Answer(summary, _page(measured, summary), audit.BROKEN, audit.UNSHOWN)


def ask(run: Run) -> Measured:
    """Ask the other jobs about a run, two at a time."""
    fates, published = run.fates(), run.events("published")
    rates = throughput.measure(run)
    ids = published.select("message_id").union(run.events("delivered").select("message_id"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        asked: dict[str, Future[Any]] = {
            "latency": pool.submit(latency.measure, run),
            "failover": pool.submit(failover.measure, run),
            "imbalance": pool.submit(imbalance.measure, run),
            "audit": pool.submit(audit.measure, run, Unsifted(run, fates)),
            "publishers": pool.submit(collected, publishers(published)),
            "broker_gaps": pool.submit(_broker_gaps, run),
            "timeline": pool.submit(_timeline, run, rates.measured["window_s"]),
            "distinct": pool.submit(_count, ids),
        }
    return Measured(
        run=run, throughput=rates, **{name: each.result() for name, each in asked.items()}
    )


def _count(ids: DataFrame) -> int:
    [row] = ids.agg(F.count_distinct("message_id").alias("distinct")).collect()
    return int(row["distinct"])


def _broker_gaps(run: Run) -> Rows:
    dims = ["topic", "subscription", "broker"]
    firsts = first_deliveries(run.fates())
    between = {"start": "waiting_ns", "end": "first_ns"}
    return collected(gaps.longest(firsts, dims, **between, until_ns=run.until_ns))


def _timeline(run: Run, width_s: int) -> Rows:
    at = window("at_ns", run.manifest.start_ns, width_s).alias("window")
    rows = samples(run.events("published"), run.fates()).withColumn("window", at)
    kept = rows.filter(F.col("measure").isin(CONFIRM, END_TO_END))
    return latency.timeline(hdr.bins(kept, ["measure", "window"], "value_ns"))


def _page(measured: Measured, summary: Mapping[str, Any]) -> Page:
    answers = (
        measured.throughput,
        measured.latency,
        measured.imbalance,
        measured.failover,
        measured.audit,
    )
    words = {word: text for each in answers for word, text in each.page.words.items()}
    page = page_of(
        measured.run,
        "report",
        verdict=audit.HOLDS,
        faults=tuple(dict.fromkeys((*measured.audit.page.faults, *measured.latency.page.faults))),
        comment=_comment(summary),
        figures=_figures(measured, summary),
        sections=_sections(measured, summary),
        words={"longest gap": LONGEST_GAP, **_limits(summary), **words},
        tables=(),
    )
    footer = footer_of("audit.json", [measured.run.lake.root])
    return dataclasses.replace(
        page,
        meta=(*page.meta, _lines(summary), *failover.costs(measured.failover.measured)),
        footer=footer,
    )


def _lines(summary: Mapping[str, Any]) -> str:
    lines = summary["lines"]
    return (
        f"{plural(lines['read'], 'line')} in {plural(lines['files'], 'file')}: "
        f"{plural(lines['anchors'], 'clock anchor')}, {plural(lines['good']['published'], 'publish')}, "
        f"{plural(lines['good']['delivered'], 'delivery')}, {lines['bad']:,} bad"
    )


def _limits(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return what is left out of the numbers of this run."""
    run, found = summary["run"], {}
    if run["clock_spread_ms"]:
        spread = milliseconds(run["clock_spread_ms"])
        found["clocks"] = (
            f"processes of one host share one clock; their wall clocks differed by up to {spread} at start, "
            "which is left out."
        )
    if run["prefetch"]:
        found["acked without proof"] = (
            f"per kill at most about the prefetch of {run['prefetch']:,} for each consumer."
        )
    return found


def _comment(summary: Mapping[str, Any]) -> str:
    came = f"{summary['delivered']:,} of {summary['expected']:,} deliveries"
    again = summary["doubled"]["total"]
    return (
        f"No confirmed message was lost or altered: {came}, {summary['pending']:,} were still on their "
        "way at the end. "
        if summary["pending"]
        else f"Every one of {summary['confirmed']:,} confirmed messages reached every subscription, "
        f"unaltered: {came}. "
    ) + (f"{again:,} came again, each with a known reason." if again else "None came twice.")


def _figures(measured: Measured, summary: Mapping[str, Any]) -> tuple[Figure, ...]:
    """Return the numbers that a reader looks for first."""
    doubled, balance = summary["doubled"], summary["imbalance"]["confirmed"]
    nothing: dict[str, Any] = {"longest_gap_ms": None, "publisher": ""}
    longest = max(
        (row for row in summary["publishers"] if row["longest_gap_ms"] is not None),
        key=lambda row: row["longest_gap_ms"],
        default=nothing,
    )
    whole = {row["kind"]: row for row in measured.throughput.measured["whole"]}
    best = whole[CONFIRMED]["peak_per_s"] if CONFIRMED in whole else 0
    load_s = measured.throughput.measured["load_s"]
    return (
        Figure(
            f"{summary['confirmed']:,}",
            "messages confirmed",
            f"of {summary['published']:,} published",
        ),
        Figure(f"{summary['delivered']:,}", "delivered", f"of {summary['expected']:,} expected"),
        Figure(f"{summary['lost']:,}", "lost", "confirmed, not delivered"),
        Figure(f"{summary['altered']:,}", "altered", "by size and body hash"),
        Figure(
            f"{doubled['total']:,}",
            "delivered again",
            ", ".join(f"{plain(why)} {doubled[why]:,}" for why in REPEATS),
        ),
        Figure(
            per_second(summary["confirmed"] / (load_s or measured.run.span_s)),
            f"confirmed {WHILE_SENT}",
            f"{per_second(summary['confirmed'] / measured.run.span_s)} {OVER_RUN}, "
            f"{best:,} in the {BEST}",
        ),
        *[figure for figure in measured.latency.page.figures if "sent to" not in figure.what],
        Figure(
            milliseconds(longest["longest_gap_ms"]),
            "longest gap of a publisher",
            longest["publisher"],
        ),
        Figure(
            f"{balance['max_over_mean']:.2f}" if balance else NONE,
            "busiest broker / mean",
            f"of messages confirmed, Gini {balance['gini']:.3f}" if balance else "",
        ),
    )


def _gap(row: Mapping[str, Any]) -> str:
    if row["longest_gap_ms"] is None:
        return NONE
    return f"{milliseconds(row['longest_gap_ms'])} at {row['longest_gap_at_s']:.1f} s"


BROKERS: dict[str, Cell] = {
    "broker": lambda row: row["broker"] + ("" if row["listed"] else " (not in the manifest)"),
    "confirmed": "confirmed",
    "MB": lambda row: megabytes(row["confirmed_bytes"]),
    MEAN: "mean_per_s",
    MEAN_IN_USE: "confirmed_per_s",
    BEST: "peak_per_s",
    "deliveries": "deliveries",
    "lost": "lost",
    "longest gap": _gap,
}
PUBLISHERS: dict[str, Cell] = {
    **{name: name for name in ("publisher", "published", "confirmed", "refused")},
    **{name: name for name in ("unroutable", "unknown", "spooled")},
    "sent more than once": "retried",
    "MB": lambda row: megabytes(row["bytes"]),
    "lost": "lost",
    "longest gap": _gap,
}


def _sections(measured: Measured, summary: Mapping[str, Any]) -> tuple[Section, ...]:
    """Return the sections, with those of the other jobs that say something else than the report's own."""
    percentiles, _ = measured.latency.page.sections
    _, balance, *_ = measured.imbalance.page.sections
    around, *_ = measured.failover.page.sections
    fates, when, verdicts, subscriptions, *others = measured.audit.page.sections
    ends = ", ".join(
        f"{n:,} {plain(outcome)}"
        for outcome, n in measured.audit.measured["outcomes"].items()
        if n or outcome != "spooled"  # nearly no run has a spool
    )
    return (
        Section(
            title="The run over time",
            note="Shaded: a broker being added or removed, and, in red, a broker that was down.",
            chart=_over_time(measured),
        ),
        *_split(percentiles),
        section_of(
            "Brokers",
            summary["brokers"],
            BROKERS,
            bars=imbalance.broker_bars(measured.run, measured.imbalance.measured),
        ),
        _long(balance),
        fates,
        when,
        subscriptions,
        dataclasses.replace(_long(verdicts), after=(f"Publishes ended {ends}.",)),
        *map(_long, others),
        around,
        section_of("Publishers", summary["publishers"], PUBLISHERS),
        _long(
            section_of(
                "Input",
                _files(measured, summary["lines"]),
                ("file", "why", "for example", "lines"),
                left=3,
            )
        ),
    )


def _files(measured: Measured, lines: Mapping[str, Any]) -> Rows:
    """Return what is wrong with files: bad lines by reason, files that were skipped or have no anchor."""
    skipped = [(one["file"], f"skipped: {one['reason']}") for one in lines["files_skipped"]]
    adrift = [
        (one, "no clock anchor: read by the manifest's") for one in lines["files_without_anchor"]
    ]
    whole = [{"file": file, "why": why} for file, why in (*skipped, *adrift)]
    nothing = {"for example": None, "lines": None}
    return [*bad_lines(measured.run.ingested), *({**nothing, **row} for row in whole)]


def _split(percentiles: Section) -> tuple[Section, Section]:
    """Return the percentiles of the whole run, and those of brokers and subscriptions."""
    [table] = percentiles.tables
    whole = tuple((row[0], *row[2:]) for row in table.rows if row[1] == WHOLE)
    rest = tuple(row for row in table.rows if row[1] != WHOLE)
    of_run = Table((*table.head[:1], *table.head[2:]), whole)
    return (
        dataclasses.replace(percentiles, tables=(of_run,)),
        Section(
            title="By broker and by subscription",
            tables=(dataclasses.replace(table, rows=rest),),
            is_long=True,
        ),
    )


def _long(section: Section) -> Section:
    return dataclasses.replace(section, is_long=True)


def _over_time(measured: Measured) -> str:
    rates, run = measured.throughput.measured, measured.run
    ats: Sequence[int] = range(0, int(rates["until_s"]) + rates["window_s"], rates["window_s"])
    drawn = latency.lines(run, measured.latency.measured, measured.timeline, ats)
    panels = [*throughput.panels(run, rates), Panel("latency", drawn, "step", "ms", height=2.4)]
    return over_time(panels, until_s=rates["until_s"], **marks_and_spans(run))


@click.command(
    epilog="Example: python -m spark report --events out/run-1 --out out/report",
    context_settings=HELP,
    short_help="Report on one recorded run.",
)
@click.option(
    "--events",
    "folder",
    required=True,
    type=PlaceType(),
    help="Folder of the run: manifest.json, published-*.ndjson, delivered-*.ndjson.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for report.html, report.txt, audit.json and tables/.",
)
@click.option("--lake", "root", type=PlaceType(), help="Default: OUT/tables.")
@click.option(
    "--every",
    "every_s",
    type=Duration(),
    help="Again and again with what is new, until the run is over; the page loads itself again.",
)
@max_bad_option
@allow_option
def command(
    folder: Path,
    out: Path,
    root: Path | None,
    every_s: float | None,
    bad_max: int,
    allow: tuple[str, ...],
) -> int:
    """Report on one recorded run: was anything lost, altered or doubled; how fast; how even.

    Exits with 0 only when nothing was lost, altered or doubled without explanation, nothing went without
    a confirm or was left out of the record, and there were no more bad lines than --max-bad allows.
    """
    lake = Lake(root or out / "tables")
    while True:
        is_last = every_s is None or _is_over(folder)
        code = carry_out(
            "report",
            partial(_measured, 0 if is_last else max(1, round(every_s or 0))),
            lake,
            lambda: plan(folder, lake),
            out,
            bad_max=bad_max,
            allow=allow,
            json_name="audit",
        )
        if is_last or code not in (Exit.DONE, Exit.FOUND):
            return code
        sleep(every_s or 0)


def _is_over(folder: Path) -> bool:
    try:
        return manifest_of(folder)[0].complete
    except (RunInvalid, OSError):
        return True  # the report says what is wrong


def _measured(reload_s: int, run: Run) -> Answer:
    answer = measure(run)
    return dataclasses.replace(answer, page=dataclasses.replace(answer.page, reload_s=reload_s))


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="report"))
