"""The two reports of a run: one page that needs no other files, and a summary in plain text."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark.measures.audit import REPEATS
from spark.measures.latency import (
    CONFIRM,
    END_TO_END,
    MEASURE_NAMES,
    RECEIVED_SENT,
    SENT,
    SUBSCRIPTION,
    WHOLE,
)
from spark.measures.throughput import CONFIRMED, DELIVERED
from spark.page import charts
from spark.page.charts import DASHED, DOTTED, Dashes, Mark, Panel, Series, Span
from spark.page.drawing import COLOURS, milliseconds
from spark.page.page import COLUMNS, Bar, Bars, Part, Table, environment, text_table
from spark.page.summary import Summary

__all__ = ["marks_and_spans", "render_html", "render_text", "write_reports"]

NONE = "\N{EN DASH}"
PAGE = "report.html.j2"
# More lines than colours cannot be told apart: the smallest brokers are drawn as one.
BROKERS_DRAWN_MAX = len(COLOURS)
ROWS_SHOWN_MAX = 40
WINDOWS_MIN = 3
TABLE_PERCENTILES = (50.0, 90.0, 99.0, 99.9, 99.99, 100.0)
# Incidents that are shaded from begin to end; a killed broker until it is back.
LASTING = ("add", "remove", "freeze", "alarm", "agent", "drain")
DOWN = ("kill", "freeze")
INCIDENT_NAMES = {
    "kill": "{} killed",
    "cut": "links to {} cut",
    "start": "{} back",
    "add": "add {}",
    "remove": "remove {}",
    "reload": "balancer reloaded",
    "freeze": "{} frozen",
    "close": "{} closes links",
    "alarm": "{} in alarm",
    "agent": "agent of {} killed",
    "drain": "{} drains",
}


def write_reports(summary: Summary, out: Path, columns: int = COLUMNS) -> str:
    """Write report.html and report.txt into `out`; returns the text for this number of columns."""
    (out / "report.txt").write_text(render_text(summary) + "\n")
    (out / "report.html").write_text(render_html(summary))
    return render_text(summary, columns)


def render_text(summary: Summary, columns: int = COLUMNS) -> str:
    """Render a screenful: verdict, audit per subscription, latency, balance, gaps."""
    short = _short_names(summary)
    doubled = summary["doubled"]
    lines = [
        " ".join((f"run {summary['run_id']}: {_verdict(summary)}", *summary.get("notes", ()))),
        *[f"  ! {fault}" for fault in summary["faults"]],
        "",
        f"  published {summary['published']:,}, confirmed {summary['confirmed']:,}, "
        f"delivered {summary['delivered']:,} of {summary['expected']:,}",
        f"  lost {summary['lost']:,}, pending {summary['pending']:,}, "
        f"altered {summary['altered']:,}, doubled {doubled['total']:,}"
        f" ({', '.join(f'{why.replace(chr(95), chr(32))} {doubled[why]:,}' for why in REPEATS)})",
        f"  lines read {summary['lines']['read']:,}, bad {summary['lines']['bad']:,}",
        "",
        *_table(
            columns,
            ("subscription", "expected", "delivered", "lost", "altered", "doubled"),
            [
                (
                    f"{row['topic']}/{row['subscription']}",
                    *[f"{row[key]:,}" for key in ("expected", "delivered", "lost", "altered")],
                    f"{sum(row[why] for why in REPEATS):,}",
                )
                for row in summary["subscriptions"]
            ],
        ),
        "",
        *_table(
            columns,
            ("broker", "confirmed", "per s", "deliveries", "lost", "longest gap"),
            [
                (
                    short[row["broker"]],
                    f"{row['confirmed']:,}",
                    f"{row['confirmed_per_s']:,.0f}",
                    f"{row['deliveries']:,}",
                    f"{row['lost']:,}",
                    _gap(row),
                )
                for row in summary["brokers"][:ROWS_SHOWN_MAX]
            ],
        ),
        "",
        *_table(
            columns,
            ("publisher", "published", "confirmed", "retried", "lost", "longest gap"),
            [
                (
                    row["publisher"],
                    *[f"{row[key]:,}" for key in ("published", "confirmed", "retried", "lost")],
                    _gap(row),
                )
                for row in summary["publishers"][:ROWS_SHOWN_MAX]
            ],
        ),
        "",
        *_table(
            columns,
            ("latency", *[f"p{each:g}" if each < 100 else "max" for each in TABLE_PERCENTILES]),
            [
                (row["label"], *[_ms(value) for value in row["values"]])
                for row in _latency_table(summary)
                if row["scope"] == WHOLE
            ],
        ),
    ]
    if balance := summary["imbalance"]["confirmed"]:
        lines += [
            "",
            f"  balance of messages confirmed: busiest broker {balance['max_over_mean']:.2f} x "
            f"the mean, Gini {balance['gini']:.3f}",
        ]
    return "\n".join(lines)


def _verdict(summary: Summary) -> str:
    if summary["holds"]:
        return "holds"
    return "DOES NOT HOLD" if summary.get("is_broken", True) else "NOT SHOWN TO HOLD"


def _ms(value: float | None) -> str:
    return NONE if value is None else milliseconds(value)


def render_html(summary: Summary) -> str:
    """Render one page: charts inline, nothing fetched."""
    short = _short_names(summary)
    drawn = _drawn(summary)
    return (
        environment()
        .get_template(PAGE)
        .render(
            **(
                {"notes": (), "is_broken": True}
                | {key: value for key, value in summary.items() if key != "timeline"}
            ),
            short=short,
            reasons=REPEATS,
            broker_bars=_broker_bars(summary, short, drawn),
            over_time=_over_time(summary, short, drawn),
            percentiles=_percentiles(summary),
            table_percentiles=[f"p{each:g}" if each < 100 else "max" for each in TABLE_PERCENTILES],
            latency_table=_latency_table(summary),
            figures=_figures(summary),
            rows_max=ROWS_SHOWN_MAX,
            curves_max=BROKERS_DRAWN_MAX,
            gap=_gap,
            latency_note=_latency_note(summary),
        )
    )


def _broker_bars(summary: Summary, short: Mapping[str, str], drawn: Sequence[str]) -> Bars:
    """Return the brokers' shares, in the colours of the chart over time."""
    rows, total = summary["brokers"], summary["confirmed"]
    looks = {broker: number for number, broker in enumerate(drawn)}
    bars = [
        Bar(
            short[row["broker"]],
            (Part("confirmed", row["confirmed"], looks.get(row["broker"], len(COLOURS) - 1)),),
            f"{row['confirmed'] / total:.1%}",
        )
        for row in rows[:ROWS_SHOWN_MAX]
        if total
    ]
    return Bars(tuple(bars), total / len(rows) if rows else None, "Upright line: an even share.")


def _figures(summary: Summary) -> list[tuple[str, str, str]]:
    """Return (value, what, more): the numbers that a reader looks for first."""
    doubled = summary["doubled"]
    gaps = [(row["longest_gap_ms"], row["publisher"]) for row in summary["publishers"]]
    longest = max(((gap, who) for gap, who in gaps if gap is not None), default=(None, ""))
    busiest = _busiest(summary)
    publish = _percentile(summary, CONFIRM)
    end_to_end = _percentile(summary, END_TO_END)
    return [
        (
            f"{summary['confirmed']:,}",
            "messages confirmed",
            f"of {summary['published']:,} published",
        ),
        (f"{summary['delivered']:,}", "delivered", f"of {summary['expected']:,} expected"),
        (f"{summary['lost']:,}", "lost", "confirmed, not delivered"),
        (f"{summary['altered']:,}", "altered", "by size and body hash"),
        (
            f"{doubled['total']:,}",
            "delivered again",
            f"{doubled['unexplained']:,} without explanation",
        ),
        (
            _rate(summary),
            "confirmed",
            f"at best {busiest:,.0f}/s, {_best_of(summary['timeline']['window_s'])}",
        ),
        (
            _ms(publish.get(99.0)),
            "publish, p99",
            "; ".join(filter(None, (f"median {_ms(publish.get(50.0))}", _none(summary)))),
        ),
        (
            _ms(end_to_end.get(99.0)),
            "end to end, p99",
            f"median {_ms(end_to_end.get(50.0))}",
        ),
        (
            milliseconds(longest[0]) if longest[0] is not None else NONE,
            "longest gap of a publisher",
            longest[1],
        ),
        (
            f"{summary['imbalance']['confirmed']['max_over_mean']:.2f}"
            if summary["imbalance"]["confirmed"]
            else NONE,
            "busiest broker / mean",
            "of messages confirmed",
        ),
    ]


def _rate(summary: Summary) -> str:
    """Return the rate over the whole run, silences included."""
    span_s = summary["run"].get("span_s") or summary["run"]["duration_s"]
    return f"{summary['confirmed'] / span_s:,.0f}/s" if span_s else NONE


def _none(summary: Summary) -> str:
    """Return the number of publishes without a confirm, in words: no percentile includes them."""
    without = summary["published"] - summary["confirmed"]
    return f"{without:,} of {summary['published']:,} have none" if without else ""


def _latency_note(summary: Summary) -> str:
    note = (
        "From the time at which a message was meant to be sent, so that a stall counts for everything it "
        "held up; the dashed line starts at the actual sending."
        if summary["run"].get("is_corrected")
        else "From the time at which a message was handed over, for no intended times were recorded: what a "
        "stall kept from being handed over shows nowhere. The dashed line starts at the actual sending."
    )
    return f"{note} {_none(summary)}: they are in no percentile." if _none(summary) else note


def _names(summary: Summary) -> dict[str, str]:
    if summary["run"].get("is_corrected"):
        return MEASURE_NAMES
    return {name: text.replace("intended", "handed over") for name, text in MEASURE_NAMES.items()}


def _best_of(window_s: int) -> str:
    return "in one second" if window_s == 1 else f"mean of {window_s} s"


def _busiest(summary: Summary) -> float:
    rates: dict[float, float] = defaultdict(float)
    for row in summary["timeline"]["throughput"]:
        if row["kind"] == CONFIRMED:
            rates[row["at_s"]] += row["per_s"]
    return max(rates.values(), default=0.0)


def _percentile(summary: Summary, measure: str) -> dict[float, float | None]:
    for row in summary["latency"]:
        if row["measure"] == measure and row["scope"] == WHOLE:
            return {float(each): value for each, value in row["percentiles_ms"]}
    return {}


def _latency_table(summary: Summary) -> list[dict[str, Any]]:
    short = _short_names(summary)
    rows = []
    for row in summary["latency"]:
        found = {float(each): value for each, value in row["percentiles_ms"]}
        name = short.get(row["name"], row["name"])
        if row["measure"] in (SENT, RECEIVED_SENT) and row["scope"] != WHOLE:
            continue
        rows.append(
            {
                "scope": row["scope"],
                "label": _names(summary)[row["measure"]] if row["scope"] == WHOLE else name,
                "samples": row["samples"],
                "values": [found[each] for each in TABLE_PERCENTILES],
            }
        )
    return rows


def _over_time(summary: Summary, short: Mapping[str, str], drawn: Sequence[str]) -> str:
    timeline = summary["timeline"]
    windows, ends = _windows(summary)
    per_broker: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    per_subscription: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for row in timeline["throughput"]:
        if row["kind"] == CONFIRMED:
            name = row["broker"] if row["broker"] in drawn else "others"
            per_broker[name][row["at_s"]] += row["per_s"]
        elif row["kind"] == DELIVERED:
            per_subscription[f"{row['topic']}/{row['subscription']}"][row["at_s"]] += row["per_s"]

    def series(label: str, rates: Mapping[int, float], colour: str = "") -> Series:
        # Steps hold their value until the next point: one more point ends the last of them.
        values = [rates.get(at, 0.0) for at in windows]
        return Series(label, [*windows, ends], [*values, *values[-1:]], colour)

    layers = [
        series(short.get(name, name), per_broker[name], COLOURS[number % len(COLOURS)])
        for number, name in enumerate([*drawn, *({"others"} & per_broker.keys())])
        if name in per_broker
    ]
    marks, spans = marks_and_spans(summary["run"]["incidents"], short)
    received = [series(name, rates) for name, rates in sorted(per_subscription.items())]
    return charts.over_time(
        [
            Panel("confirmed per second", layers if windows else [], "stack", height=3),
            Panel(
                _some("delivered per second", received),
                received[:BROKERS_DRAWN_MAX],
                "step",
                height=1.6,
            ),
            Panel("latency", _latency_lines(summary, windows), "step", "ms", height=2.4),
        ],
        marks=marks,
        spans=spans,
        until_s=ends,
    )


def _some(title: str, series: Sequence[Series]) -> str:
    """Return the title, with the number of drawn series where these are not all."""
    if len(series) <= BROKERS_DRAWN_MAX:
        return title
    return f"{title}, {BROKERS_DRAWN_MAX} of {len(series)} subscriptions"


def _windows(summary: Summary) -> tuple[list[int], int]:
    """Return the start of every window without holes, and the end of the last one.

    The last window with events is only partly filled and would look like a fall: it is left out
    where that leaves some.
    """
    timeline = summary["timeline"]
    starts = [row["at_s"] for row in timeline["throughput"]]
    if not starts:
        return [], 1
    width = timeline["window_s"]
    ended = int((summary["run"].get("span_s") or 0) // width) * width
    windows = list(range(min(starts), max(max(starts), ended - width) + 1, width))
    is_partly_filled = len(windows) > WINDOWS_MIN and windows[-1] == max(starts)
    kept = windows[:-1] if is_partly_filled else windows
    return kept, kept[-1] + width


def _latency_lines(summary: Summary, windows: Sequence[int]) -> list[Series]:
    """Return lines of latency; a window without a sample, or with too few, is a gap in its line."""
    rows, width = summary["timeline"]["latency"], summary["timeline"]["window_s"]
    starts = sorted({*windows, *(row["at_s"] for row in rows)})
    every = list(range(starts[0], starts[-1] + 1, width)) if starts else []

    def line(measure: str, key: str, label: str, colour: str, dashes: Dashes = None) -> Series:
        own = {row["at_s"]: row[key] for row in rows if row["measure"] == measure and row[key]}
        values = [own.get(at, math.nan) for at in every] if own else []
        # Steps hold their value until the next point: one more point ends the last of them.
        return Series(
            label,
            [*every, every[-1] + width] if own else [],
            [*values, *values[-1:]],
            colour,
            dashes,
        )

    lines = [
        line(CONFIRM, "p50_ms", "publish, median", COLOURS[0]),
        line(CONFIRM, "p99_ms", "publish, p99", COLOURS[0], DASHED),
        line(END_TO_END, "p50_ms", "end to end, median", COLOURS[1]),
        line(END_TO_END, "p99_ms", "end to end, p99", COLOURS[1], DASHED),
        line(END_TO_END, "max_ms", "end to end, longest", COLOURS[1], DOTTED),
    ]
    return [one for one in lines if one.x]


def marks_and_spans(
    incidents: Sequence[Mapping[str, Any]], short: Mapping[str, str]
) -> tuple[list[Mark], list[Span]]:
    """Return names at moments, and stretches of time, of rows with kind, broker, at_s and done_s."""
    marks = [
        Mark(
            one["at_s"],
            INCIDENT_NAMES[one["kind"]].format(short.get(one["broker"], one["broker"])),
            alarm=one["kind"] in DOWN,
        )
        for one in incidents
    ]
    spans = [
        Span(one["at_s"], one["done_s"], alarm=one["kind"] in DOWN)
        for one in incidents
        if one["kind"] in LASTING
    ]
    for kill in (one for one in incidents if one["kind"] == "kill"):
        back = [
            one["at_s"]
            for one in incidents
            if one["kind"] == "start"
            and one["broker"] == kill["broker"]
            and one["at_s"] >= kill["at_s"]
        ]
        if back:
            spans.append(Span(kill["at_s"], min(back), alarm=True))
    return marks, spans


def _percentiles(summary: Summary) -> str:
    def points(row: Mapping[str, Any]) -> list[tuple[float, float]]:
        # A percentile beyond the number of samples is the maximum again: not drawn.
        return [
            (float(each), value)
            for each, value in row["percentiles_ms"]
            if value and value > 0 and (100 - each) / 100 * row["samples"] >= 1
        ]

    curves = []
    for row in summary["latency"]:
        if row["scope"] == WHOLE and row["measure"] in (CONFIRM, SENT):
            curves.append(
                (_names(summary)[row["measure"]], row, DASHED if row["measure"] == SENT else None)
            )
        elif row["scope"] == SUBSCRIPTION and row["measure"] == END_TO_END:
            curves.append((f"end to end: {row['name']}", row, None))
    return charts.percentiles(
        [
            Series(label, [x for x, _ in points(row)], [y for _, y in points(row)], dashes=dashes)
            for label, row, dashes in curves[:BROKERS_DRAWN_MAX]
            if points(row)
        ]
    )


def _drawn(summary: Summary) -> list[str]:
    """Return brokers that get a colour of their own, in the order of the list."""
    if len(summary["brokers"]) <= BROKERS_DRAWN_MAX:
        return [row["broker"] for row in summary["brokers"]]
    by_load = sorted(summary["brokers"], key=lambda row: -row["confirmed"])
    return sorted(row["broker"] for row in by_load[: BROKERS_DRAWN_MAX - 1])


def _short_names(summary: Summary) -> dict[str, str]:
    """Return broker -> its short name: the host alone where all have one port."""
    brokers = [row["broker"] for row in summary["brokers"]]
    ports = {broker.rpartition(":")[2] for broker in brokers}
    return {broker: broker.rpartition(":")[0] if len(ports) == 1 else broker for broker in brokers}


def _gap(row: Mapping[str, Any]) -> str:
    if row["longest_gap_ms"] is None:
        return NONE
    return f"{milliseconds(row['longest_gap_ms'])} at {row['longest_gap_at_s']:.1f} s"


def _table(columns: int, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return text_table(Table(tuple(head), tuple(map(tuple, rows))), columns)
