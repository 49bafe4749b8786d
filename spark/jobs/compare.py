"""Two runs of a lake, or two days, beside each other: rates, percentiles, faults.

spark-submit spark/jobs/compare.py --lake DIR --out DIR RUN RUN
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import click

from messagebus.clock import NS_PER_MS
from messagebus.commands.exits import HELP
from messagebus.commands.options import NumberRange
from messagebus.recording.events import FAULTS
from reports.charts import DASHED, Series, percentiles
from reports.page import Figure, Page, Section
from reports.svg import COLOURS
from reports.text import NONE, Table, per_second
from spark.command import (
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
from spark.lake.ingest import Ingested, ingested
from spark.lake.places import PlaceType
from spark.lake.tables import Lake
from spark.measures import hdr, latency, throughput
from spark.measures.faults import bad_faults, counted, notes_of, of_publishes
from spark.measures.latency import CONFIRM, CURVE, END_TO_END, MEASURE_NAMES
from spark.measures.run import Run
from spark.pages import OVER_RUN, WHILE_SENT, bin_window_for, collected, footer_of

PERCENTILES = (50, 99, 99.9, 100)
CONFIRMED, RATE = "messages confirmed", f"confirmed a second, {WHILE_SENT}"
# Shown and not judged: a run lasts longer where it waits for a broker or for consumers behind its load.
OVER_ALL = f"confirmed a second, {OVER_RUN}"


@click.command(
    "compare",
    epilog="Example: python -m spark compare --lake out/lake --out out/compare monday tuesday",
    context_settings=HELP,
    short_help="Compare two runs of a lake, or two days.",
)
@click.option("--lake", "root", required=True, type=PlaceType(), help="What was ingested.")
@out_option
@click.option(
    "--worse-max",
    default=0.2,
    show_default=True,
    type=NumberRange(min=0),
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
            footer = footer_of("compare.json", map(lake.folder, ("latency_bins", "fates")))
        rows = compared(measured[0]["numbers"], measured[1]["numbers"])
        found = {
            "runs": [first, second],
            "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
        }
        page = _page([first, second], rows, measured, worse(rows, worse_max), footer)
        notes = [text for each in measured for text in each["notes"]]
        return write("compare", Answer(found, page), out, notes=notes)

    return in_one_line("compare", work)


def _source(lake: Lake, named: str) -> tuple[Ingested, str | None]:
    run_id, _, day = named.partition("@")
    if day:
        check_day(day)
    return ingested(lake, run_id), day or None


def _measured(run: Run) -> dict[str, Any]:
    published = run.events("published")
    samples = latency.samples(published, run.fates())
    curves = collected(
        hdr.percentiles(latency.bins(run, samples, bin_window_for(run)), ["measure"], CURVE)
    )
    faults: Counter[str] = Counter()
    audited = counted(audit.measure(run).measured["counts"])
    for fault in (*audited, *of_publishes(run), *bad_faults(run.ingested, 0)):
        faults[fault.name] += fault.total
    clocks = latency.clock_counts(run, samples)
    faults["clocks"] += sum(row["backwards"] for row in clocks.values())
    errors = {measure: row["error_ns"] for measure, row in clocks.items()}
    found = numbers(
        curves,
        confirmed=published.filter("outcome = 'confirmed'").count(),
        load_s=throughput.load_s(published),
        span_s=run.span_s,
        faults=faults,
        errors=errors,
    )
    return {
        "numbers": found,
        "curves": {row["measure"]: row for row in curves},
        "errors": errors,
        "manifest": run.manifest,
        "notes": [f"{run.manifest.run_id}: {text}" for text in notes_of(run.ingested)],
    }


def _page(
    names: list[str],
    rows: list[Row],
    measured: list[dict[str, Any]],
    faults: list[str],
    footer: str,
) -> Page:
    # Where one of them has handed-over times only, they are not compared as intended times.
    words_of = latency.names(*[each["manifest"] for each in measured])
    return Page(
        kind="compare",
        title=f"{names[1]} against {names[0]}",
        meta=("the first is what it is compared with",),
        verdict="The second is worse." if faults else "The second is not worse.",
        faults=tuple(_worded(fault, words_of) for fault in faults),
        figures=tuple(
            Figure(_ratio(row), _name(row, words_of), "second / first")
            for row in rows
            if row.name in (RATE, f"{CONFIRM} p99", f"{END_TO_END} p99")
        ),
        sections=(
            Section(
                title="By percentile",
                note="Full lines: the first; dashed: the second.",
                chart=percentiles(_curves(names, measured)),
            ),
            Section(
                title="Numbers",
                tables=(
                    Table(
                        ("", *names, "second / first"),
                        tuple(
                            (
                                _name(row, words_of),
                                _value(row, row.a),
                                _value(row, row.b),
                                _ratio(row),
                            )
                            for row in rows
                        ),
                    ),
                ),
            ),
        ),
        words=WORDS,
        footer=footer,
    )


WORDS = {
    "second / first": "of one run each, so it does not show how much is chance. `python -m bench compare` "
    "repeats both and gives an interval.",
}


def _ratio(row: Row) -> str:
    return NONE if row.ratio is None else f"{row.ratio:.2f}"


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
        return NONE
    if row.unit == "/s":
        return per_second(value)
    return f"{value:,.2f} ms" if row.unit == "ms" else f"{value:,.0f}"


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


@dataclass(frozen=True, slots=True)
class Row:
    """One number of both.

    a, b: values of the first and the second; None where it has none. unit: "" for counts.
    """

    name: str
    unit: str
    a: float | None
    b: float | None

    @property
    def ratio(self) -> float | None:
        """The quotient b / a."""
        return self.b / self.a if self.a and self.b is not None else None


def numbers(
    percentiles: Iterable[Mapping[str, Any]],
    *,
    confirmed: int,
    load_s: float,
    span_s: float,
    faults: Mapping[str, int],
    errors: Mapping[str, int],
) -> list[dict[str, Any]]:
    """Return name, unit, value of one run.

    percentiles: rows of `hdr.percentiles` by measure. load_s: of `throughput.load_s`: a stall is in its rate.
    span_s: length of the run. faults: name in `events.FAULTS` -> count. errors: measure -> difference of
    clocks, ns.
    A percentile without enough samples has no value.
    """
    rows = [
        _number(CONFIRMED, "", confirmed),
        _number(RATE, "/s", confirmed / load_s if load_s else 0.0),
        _number(OVER_ALL, "/s", confirmed / span_s),
    ]
    for row in sorted(percentiles, key=lambda row: str(row["measure"])):
        for each in PERCENTILES:
            value_ns = hdr.shown(row, each, errors.get(row["measure"], 0))
            value = None if value_ns is None else value_ns / NS_PER_MS
            rows.append(_number(f"{row['measure']} p{each:g}", "ms", value))
    return rows + [_number(name, "", faults.get(name, 0)) for name in FAULTS]


def compared(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Pair the rows of `numbers`, in the order of the first."""
    of_b = {row["name"]: row["value"] for row in b}
    units = {row["name"]: row["unit"] for row in (*a, *b)}
    of_a = {row["name"]: row["value"] for row in a}
    return [Row(name, unit, of_a.get(name), of_b.get(name)) for name, unit in units.items()]


def worse(rows: Sequence[Row], worse_max: float) -> list[str]:
    """Return the numbers of b that are worse by more than that part, in words; empty when none is."""
    found = []
    of_b = {_measure(row.name) for row in rows if row.b is not None}
    for row in rows:
        if row.name in FAULTS:
            # Counts of faults: any more is worse, whatever the bound.
            if (row.b or 0) > (row.a or 0):
                found.append(f"{row.name}: {row.b:,.0f} after {row.a or 0:,.0f}")
        elif row.name == CONFIRMED:
            if row.b == 0:
                found.append("the second confirmed nothing")
        elif row.a is not None and row.b is None and _measure(row.name) not in of_b:
            found.append(f"{row.name}: the second has none")
        elif row.ratio is None or row.name == OVER_ALL:
            continue
        elif row.name == RATE:
            if row.ratio < 1 - worse_max:
                found.append(f"{row.name}: {1 - row.ratio:.0%} less")
        elif row.ratio > 1 + worse_max and "p100" not in row.name:
            found.append(f"{row.name}: {row.ratio:.2f} times as long")
    return found


def _measure(name: str) -> str:
    """Return the measure of a percentile, which may lack a value where others of its measure have one."""
    return name.rpartition(" p")[0] or name


def _number(name: str, unit: str, value: float | None) -> dict[str, Any]:
    return {"name": name, "unit": unit, "value": value}


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="compare"))
