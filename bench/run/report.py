"""A run for people: text for the terminal, and one page that needs nothing beside it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from bench.run.result import CURVE, MEASURES, Result, percentiles
from bench.run.svg import Line, by_percentile, over_time

__all__ = ["STYLE", "percentile_chart", "render_html", "render_text", "write"]

SHOWN = ("p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "p100")
NONE = "\N{EN DASH}"
# A client of a native cluster cannot tell which node took it.
ANY = "any node"
STYLE = (Path(__file__).parent / "templates" / "style.css").read_text()
WORDS = {
    "intended": "the time at which a message was meant to be sent, known before the run. Latencies count "
    "from it, so a stall shows in every message that it held up.",
    "sent to confirmed": "service time: it forgives whatever the client waited before. Where it parts "
    "from the line above it, messages waited in the client.",
    "pacing": "how late the load looked at what was due, waiting for room left out. It is the error of "
    "this measurement itself.",
    "measured": "the seconds after the warm-up, shaded in the charts; messages belong to the second in "
    "which they were intended. Fates are of all messages, the warm-up's too.",
    "percentiles": "from exact counts per HdrHistogram bin (3 digits), as far as the count supports "
    "them: one sample lies beyond, or it is the longest.",
    "late": "a first delivery after a later message of the same publisher and broker, at one consumer.",
}


def write(result: Result) -> str:
    """report.txt and report.html into the run's folder; returns the text."""
    text = render_text(result)
    (result.folder / "report.txt").write_text(text + "\n")
    (result.folder / "report.html").write_text(render_html(result))
    return text


def render_text(result: Result) -> str:
    return "\n".join(
        [
            f"{result.profile.name}, {result.profile.system.name}: {_verdict(result)}",
            *[f"  ! {fault}" for fault in result.faults],
            f"  {_about(result)}",
            f"  a confirm means: {result.about['durability']}",
            "",
            *_text_table(("latency", "samples", *SHOWN), _latency_rows(result)),
            "",
            *_text_table(("fates", ""), _fate_rows(result)),
            "",
            *_text_table(BROKER_HEAD, _broker_rows(result)),
            "",
            *_text_table(DISTURBANCE_HEAD, _disturbance_rows(result)),
            "",
            *_text_table(CLIENT_HEAD, _client_rows(result)),
        ]
    )


def render_html(result: Result) -> str:
    faults = "".join(f"<li>{escape(fault)}</li>" for fault in result.faults)
    kind = "fails" if result.faults else "holds"
    name = f"{result.profile.name}, {result.profile.system.name}"
    machine = result.about["environment"]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(name)}</title><style>{STYLE}</style></head><body><main>",
            f'<div class="over">messagebus · measured run</div><h1>{escape(name)}</h1>',
            f'<p class="meta">{escape(_about(result))}<br>A confirm means: '
            f"{escape(result.about['durability'])}.</p>",
            f'<section class="verdict {kind}"><strong>{escape(_verdict(result))}</strong>'
            f"<ul>{faults}</ul></section>",
            "<h2>By percentile</h2>",
            percentile_chart(result),
            _html_table(("latency", "samples", *SHOWN), _latency_rows(result)),
            "<h2>Over time</h2>",
            _rates_chart(result),
            _latency_chart(result),
            "<h2>Fates</h2>",
            _html_table(("", ""), _fate_rows(result)),
            "<h2>Brokers</h2>",
            _html_table(BROKER_HEAD, _broker_rows(result)),
            *_disturbances_html(result),
            "<h2>Load processes</h2>",
            _html_table(CLIENT_HEAD, _client_rows(result)),
            "<h2>On what it was measured</h2>",
            _html_table(("", ""), [(key, str(value)) for key, value in sorted(machine.items())]),
            "<h2>What it did</h2>",
            _html_table(("", ""), _profile_rows(result)),
            "<h2>What the words mean</h2><dl>",
            *[f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in WORDS.items()],
            "</dl><footer>Numbers: result.json beside this page; histograms: *.hlog; a row per message: "
            "parts/*.parquet. Nothing on this page is fetched from elsewhere.</footer>",
            "</main></body></html>",
        ]
    )


def percentile_chart(result: Result) -> str:
    """Latency by percentile, from the intended time and, dashed, from the sending."""
    return by_percentile(_curves(result), label="Latency by percentile", unit=_ms)


def _verdict(result: Result) -> str:
    if result.faults:
        return "not to be trusted as it stands."
    told = [f"{result.per_s:,.0f} confirmed a second"]
    if result.delivered_per_s:
        told.append(f"{result.delivered_per_s:,.0f} delivered a second")
    found = percentiles(result.bins("confirm"))
    return ", ".join([*told, *([f"p99 {_ms(found['p99'])}"] if "p99" in found else [])])


def _about(result: Result) -> str:
    profile, machine = result.profile, result.about["environment"]
    load = profile.load
    return (
        f"{profile.system.brokers} brokers, {load.publishers} publishers, {load.consumers} consumers, "
        f"window {load.window}, {profile.messages.size} bytes; {profile.time.measured_s:g} s measured after "
        f"{profile.time.warm_up_s:g} s; {machine['at']}, commit {machine['commit']}, "
        f"{machine['cores']} cores, "
        f"load before {machine['load_before'][0]:g}, after {machine.get('load_after', [0])[0]:g}"
    )


def _latency_rows(result: Result) -> list[tuple[str, ...]]:
    rows = []
    for measure, words in MEASURES.items():
        found = percentiles(result.bins(measure))
        if found:
            rows.append(
                (words, f"{found['samples']:,.0f}", *[_shown(found, each) for each in SHOWN])
            )
    for broker in result.rates("confirm"):
        found = percentiles(result.bins("confirm", broker))
        if found:
            cells = [_shown(found, each) for each in SHOWN]
            rows.append((f"  confirm, {broker or ANY}", f"{found['samples']:,.0f}", *cells))
    return rows


def _fate_rows(result: Result) -> list[tuple[str, ...]]:
    fates = result.fates
    named = ("published", "confirmed", "unknown", "expected", "delivered", "lost", "doubled")
    rows: list[tuple[str, ...]]
    rows = [(name, f"{getattr(fates, name):,}") for name in (*named, "altered", "late", "strange")]
    return rows + [
        (f"  {fault}, for example", ", ".join(names[:5])) for fault, names in fates.examples.items()
    ]


BROKER_HEAD = (
    *("broker", "confirmed", "CPU us / message", "CPU cores", "memory MiB"),
    *("written MB", "fsyncs", "most waiting"),
)


def _broker_rows(result: Result) -> list[tuple[str, ...]]:
    return [
        *_each_broker(result),
        *([_all_brokers(result)] if len(result.brokers) > 1 else []),
    ]


def _all_brokers(result: Result) -> tuple[str, ...]:
    every = list(result.brokers.values())
    confirmed = sum(result.bins("confirm").values())
    cpu_s = sum(each["cpu_s"] for each in every)
    return (
        "all",
        f"{confirmed:,}",
        f"{cpu_s / confirmed * 1e6:.1f}" if confirmed else NONE,
        f"{sum(each['cpu_s'] / each['seconds'] for each in every):.2f}",
        f"{sum(each['memory_mib'] for each in every):,.0f}",
        f"{sum(each['written_bytes'] for each in every) / 1e6:,.1f}",
        NONE,
        NONE,
    )


def _each_broker(result: Result) -> list[tuple[str, ...]]:
    return [
        (
            broker,
            f"{each['confirmed']:,}",
            NONE if each["cpu_us"] is None else f"{each['cpu_us']:.1f}",
            f"{each['cpu_s'] / each['seconds']:.2f}",
            f"{each['memory_mib']:,.0f}",
            f"{each['written_bytes'] / 1e6:,.1f}",
            NONE if each["syncs"] is None else f"{each['syncs']:,}",
            NONE if each["ready_max"] is None else f"{each['ready_max']:,}",
        )
        for broker, each in result.brokers.items()
    ]


DISTURBANCE_HEAD = ("disturbance", "from", "to", "p99 before", "longest from then on")
# What it held up may have been intended a little before, and is caught up a little after.
AROUND_S = 5


def _disturbance_rows(result: Result) -> list[tuple[str, ...]]:
    """Of confirms: what was usual before, and the worst that it made."""
    confirm, warm_s = result.latencies["confirm"], int(result.profile.time.warm_up_s)
    rows: list[tuple[str, ...]] = []
    for each in result.about.get("disturbances", []):
        began, ended = each["began_s"], each["ended_s"]
        until = ended if ended is not None else began
        before = percentiles(confirm.whole(range(warm_s, int(began))))
        within = percentiles(confirm.whole(range(int(began), int(until) + AROUND_S)))
        rows.append(
            (
                each["what"],
                f"{began:.1f} s",
                NONE if ended is None else f"{ended:.1f} s",
                _shown(before, "p99"),
                _shown(within, "p100"),
            )
        )
    return rows


def _disturbances_html(result: Result) -> list[str]:
    rows = _disturbance_rows(result)
    return ["<h2>Disturbances</h2>", _html_table(DISTURBANCE_HEAD, rows)] if rows else []


CLIENT_HEAD = ("load process", "CPU share", "pacing p99", "intended", "not sent")


def _client_rows(result: Result) -> list[tuple[str, ...]]:
    return [
        (
            each.name,
            f"{each.cpu_share:.0%}",
            _ms(each.pacing_p99_ms) if each.intended else NONE,
            f"{each.intended:,}" if each.intended else NONE,
            f"{each.unsent:,}" if each.intended else NONE,
        )
        for each in result.clients
    ]


def _profile_rows(result: Result) -> list[tuple[str, ...]]:
    values = result.profile.as_json()
    return [
        (f"{part}.{key}", str(value))
        for part in ("system", "load", "messages", "time")
        for key, value in values[part].items()
    ]


def _curves(result: Result) -> list[Line]:
    lines = []
    for number, (measure, dashed) in enumerate(
        (("confirm", False), ("service", True), ("delivery", False), ("pacing", True))
    ):
        found = percentiles(result.bins(measure))
        kept = [each for each in CURVE if f"p{each:g}" in found]
        if kept:
            values = [found[f"p{each:g}"] for each in kept]
            lines.append(
                Line(MEASURES[measure].split(":")[0] + TAILS[measure], kept, values, dashed, number)
            )
    return lines


TAILS = {"confirm": ", intended", "service": ", sent", "delivery": "", "pacing": ""}


def _rates_chart(result: Result) -> str:
    lines = [
        Line(f"confirmed, {broker or ANY}", list(range(len(rates))), rates, False, number)
        for number, (broker, rates) in enumerate(result.rates("confirm").items())
    ]
    measured = result.measured
    return over_time(
        lines[:8],
        label="Confirmed messages a second",
        unit=lambda value: f"{value:,.0f}/s",
        shaded=(measured.start, measured.stop),
    )


def _latency_chart(result: Result) -> str:
    lines = []
    for number, measure in enumerate(("confirm", "delivery")):
        latencies = result.latencies[measure]
        seconds = sorted({second for second, _ in latencies.bins if second >= 0})
        each = [percentiles(latencies.whole(range(second, second + 1))) for second in seconds]
        for name, dashed in (("p50", False), ("p99", True)):
            points = [
                (s, found[name]) for s, found in zip(seconds, each, strict=True) if name in found
            ]
            if points:
                x, y = zip(*points, strict=True)
                lines.append(Line(f"{measure}, {name}", x, y, dashed, number))
    measured = result.measured
    return over_time(
        lines, label="Latency over time", unit=_ms, shaded=(measured.start, measured.stop)
    )


def _shown(found: dict[str, float], name: str) -> str:
    return _ms(found[name]) if name in found else NONE


def _ms(value: float) -> str:
    if value < 0.9995:
        return f"{value * 1000:.3g} us"
    return f"{value:.3g} ms" if value < 999.5 else f"{value / 1000:,.2f} s"


def _text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    every = [tuple(head), *map(tuple, rows)]
    widths = [max(map(len, column)) for column in zip(*every, strict=True)]
    return [
        "  " + "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in every
    ]


def _html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return '<p class="note">Nothing.</p>'

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table>{line(head, "th")}{body}</table></div>'
