"""The report of a run: text for the terminal, and one self-contained page."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bench.analysis.charts import (
    ANY,
    latency_chart,
    milliseconds,
    percentile_chart,
    rates_chart,
    waiting_chart,
)
from bench.analysis.result import MEASURES, Result, percentiles
from bench.analysis.tables import COLUMNS, html_table, text_table
from bench.analysis.verdict import Client
from bench.environment import CHECKOUT
from bench.harness.parts import CONSUMER, PUBLISHER
from bench.harness.sampling import CPU_LEAST_S
from bench.load.profile import Messages

__all__ = ["STYLE", "render_html", "render_text", "write"]

SHOWN = ("p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "p100")
LATENCY_HEAD = ("latency", "samples", "never", *SHOWN[:-1], "longest")
EXAMPLES_SHOWN = 5
NONE = "\N{EN DASH}"
NOT_JUDGED = "not judged: the run did not come to its end"
# The common style of both kits' pages, followed by bench's own rules.
STYLES = (
    CHECKOUT / "spark/page/templates/style.css",
    Path(__file__).parent / "templates/style.css",
)
STYLE = "".join(path.read_text() for path in STYLES)
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
    "never": "publishes that were not confirmed at all: the percentiles beside it know nothing of them.",
    "silence": "the longest time in which a publisher waited for confirms and had none, until the next one "
    "or the end of the measured part.",
    "a dash": "not known: a broker whose process ended meanwhile (a kill) cost something that nobody saw; "
    "of one that was not looked at meanwhile memory and costs are not; "
    f"what a message costs a broker is not told of less than {CPU_LEAST_S:g} s.",
    "late": "a first delivery after a later message of the same publisher and broker, at one consumer.",
}


def write(result: Result) -> None:
    """Write report.txt and report.html into the run's folder."""
    (result.folder / "report.txt").write_text(render_text(result) + "\n")
    (result.folder / "report.html").write_text(render_html(result))


def render_text(result: Result, columns: int = COLUMNS) -> str:
    tables = (
        (LATENCY_HEAD, _latency_rows(result)),
        (("fates", ""), _fate_rows(result)),
        (BROKER_HEAD, _broker_rows(result)),
        (DISTURBANCE_HEAD, _disturbance_rows(result)),
        (CLIENT_HEAD, _client_rows(result)),
    )
    lines = [
        f"{result.profile.name}, {result.profile.system.name}: {_verdict(result)}",
        *[f"  ! {fault}" for fault in result.faults],
        *_wrapped(_about(result), columns),
        *_wrapped(f"a confirm means: {result.about['durability']}", columns),
        *(_wrapped(f"while measured: {machine}", columns) if (machine := result.machine) else []),
    ]
    for head, rows in tables:
        if rows:
            lines += ["", *text_table(head, rows, indent="  ", columns=columns)]
        notes = {"fates": _examples, "broker": _unseen}.get(head[0])
        if rows and notes:
            lines += [line for each in notes(result) for line in _wrapped(each, columns)]
    return "\n".join(lines)


def _wrapped(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns, initial_indent="  ", subsequent_indent="    ")


def render_html(result: Result) -> str:
    faults = "".join(f"<li>{escape(fault)}</li>" for fault in result.faults)
    kind = "fails" if result.faults else "holds"
    name = f"{result.profile.name}, {result.profile.system.name}"
    machine = [
        *([("while measured", str(usage))] if (usage := result.machine) else []),
        *result.about.get("system", {}).items(),
        *sorted(result.about["environment"].items()),
    ]
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(name)}</title><style>{STYLE}</style></head><body><main>",
            f'<div class="over">messagebus · measured run</div><h1>{escape(name)}</h1>',
            f'<p class="meta">{escape(_about(result))}<br>A confirm means: '
            f"{escape(result.about['durability'])}.</p>",
            f'<section class="verdict {kind}"><strong>{escape(_sentence(_verdict(result)))}</strong>'
            f"<ul>{faults}</ul></section>",
            _tiles(result),
            "<h2>By percentile</h2>",
            percentile_chart(result),
            html_table(LATENCY_HEAD, _latency_rows(result)),
            "<h2>Over time</h2>",
            rates_chart(result),
            latency_chart(result),
            waiting_chart(result),
            "<h2>Fates</h2>",
            html_table(("", ""), _fate_rows(result)),
            *[f'<p class="note">{escape(_sentence(each))}</p>' for each in _examples(result)],
            "<h2>Brokers</h2>",
            html_table(BROKER_HEAD, _broker_rows(result)),
            *[f'<p class="note">{escape(_sentence(each))}</p>' for each in _unseen(result)],
            *_disturbances_html(result),
            "<h2>Load processes</h2>",
            html_table(CLIENT_HEAD, _client_rows(result)),
            '<div class="beside"><div><h2>What it did</h2>',
            html_table(("", ""), _profile_rows(result)),
            "</div><div><h2>On what it was measured</h2>",
            html_table(("", ""), [(key, _plain(value)) for key, value in machine]),
            "</div></div>",
            "<h2>What the words mean</h2><dl>",
            *[f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in WORDS.items()],
            "</dl><footer>Numbers: result.json beside this page; histograms: *.hlog; a row per message: "
            "parts/*.parquet. Nothing on this page is fetched from elsewhere.</footer>",
            "</main></body></html>",
        ]
    )


def _verdict(result: Result) -> str:
    if not result.about["complete"]:
        return "incomplete, and not to be trusted."
    if result.faults:
        return "not to be trusted as it stands."
    told = [f"{result.per_s:,.0f} confirmed a second"]
    if result.delivered_per_s:
        told.append(f"{result.delivered_per_s:,.0f} delivered a second")
    found = percentiles(result.bins("confirm"))
    return ", ".join([*told, *([f"p99 {milliseconds(found['p99'])}"] if "p99" in found else [])])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _tiles(result: Result) -> str:
    """Return the tiles with the most important numbers."""
    found, fates = percentiles(result.bins("confirm")), result.fates
    tiles = [
        (f"{result.per_s:,.0f}", "confirmed a second", f"{result.came('confirm'):,} in all"),
        (
            f"{result.delivered_per_s:,.0f}",
            "delivered a second",
            f"{result.came('delivery'):,} in all",
        ),
        (_shown(found, "p50"), "confirm, median", f"p99 {_shown(found, 'p99')}"),
        (NONE, "lost", NOT_JUDGED)
        if fates is None
        else (f"{fates.lost:,}", "lost", f"{fates.doubled:,} doubled, {fates.unknown:,} unknown"),
    ]
    return (
        '<div class="figures">'
        + "".join(
            f"<div><b>{escape(value)}</b><span>{escape(what)}</span><small>{escape(more)}</small></div>"
            for value, what, more in tiles
        )
        + "</div>"
    )


def _about(result: Result) -> str:
    profile, machine = result.profile, result.about["environment"]
    load = profile.load
    return (
        f"brokers: {profile.system.brokers}, publishers: {load.publishers}, consumers: {load.consumers}, "
        f"window {load.window}, {_sizes(profile.messages)}; {result.measured_s:.3g} s measured after "
        f"{profile.time.warm_up_s:g} s; {machine['at']}, commit {machine['commit']}, "
        f"{machine['cores']} cores, "
        f"load before {machine['load_before'][0]:g}, after {machine.get('load_after', [0])[0]:g}"
    )


def _sizes(messages: Messages) -> str:
    if messages.file:
        return f"bodies from {Path(messages.file).name}"
    parts = messages.sizes or ((1.0, messages.size),)
    return ", ".join(
        f"{size} bytes" + (f" ({part:.0%})" if part < 1 else "") for part, size in parts
    )


def _latency_rows(result: Result) -> list[tuple[str, ...]]:
    rows = []
    never = f"{result.never():,}"
    for measure, words in MEASURES.items():
        found = percentiles(result.bins(measure))
        if found:
            without = never if measure in ("confirm", "service") else NONE
            shown = [_shown(found, each) for each in SHOWN]
            rows.append((words, f"{found['samples']:,.0f}", without, *shown))
    for broker in result.rates("confirm"):
        found = percentiles(result.bins("confirm", broker))
        if found:
            cells = [_shown(found, each) for each in SHOWN]
            rows.append((f"  confirm, {broker or ANY}", f"{found['samples']:,.0f}", NONE, *cells))
    if (silence_s := result.silence_s()) is not None:
        dashes = [NONE] * (len(LATENCY_HEAD) - 2)
        rows.append(("silence of a publisher", *dashes, milliseconds(silence_s * 1000)))
    return rows


def _fate_rows(result: Result) -> list[tuple[str, ...]]:
    fates = result.fates
    if fates is None:
        return [(NOT_JUDGED, NONE)]
    named = (
        "published",
        "confirmed",
        "refused",
        "unknown",
        "expected",
        "delivered",
        "lost",
        "doubled",
    )
    rows: list[tuple[str, ...]]
    rows = [(name, f"{getattr(fates, name):,}") for name in (*named, "altered", "late", "strange")]
    rows += [
        (f"below zero: {MEASURES[measure]}", f"{each.below_zero:,}")
        for measure, each in result.latencies.items()
        if each.below_zero
    ]
    if result.earlier:
        rows.append(("of an earlier run", f"{result.earlier:,}"))
    return rows


def _examples(result: Result) -> list[str]:
    """Return examples of each fault: subscriptions and messages, by publisher number and message number."""
    return [
        f"{fault}, for example: {', '.join(names[:EXAMPLES_SHOWN])}"
        for fault, names in (result.fates.examples if result.fates else {}).items()
    ]


BROKER_HEAD = (
    *("broker", "confirmed", "CPU us / message", "CPU cores", "memory MiB"),
    *("written MB", "fsyncs", "most waiting"),
)


def _broker_rows(result: Result) -> list[tuple[str, ...]]:
    measured = result.measured
    ended = [
        (broker, f"{sum(rates[measured.start : measured.stop]):,}", *[NONE] * 6)
        for broker, rates in result.rates("confirm").items()
        if broker and broker not in result.brokers
    ]
    rows = sorted([*_each_broker(result), *ended])
    return [*rows, *([_all_brokers(result)] if len(rows) > 1 and result.brokers else [])]


def _all_brokers(result: Result) -> tuple[str, ...]:
    every = list(result.brokers.values())
    confirmed = result.came("confirm")
    costs = [each["messages_cpu_s"] for each in every if each["messages_cpu_s"] is not None]
    # Without a broker that was killed, the cost of the messages is not known.
    is_whole = confirmed and len(costs) == result.profile.system.brokers
    return (
        "all",
        f"{confirmed:,}",
        f"{sum(costs) / confirmed * 1e6:.1f}" if is_whole else NONE,
        f"{sum(each['cpu_s'] / each['seconds'] for each in every):.2f}",
        NONE if _unseen(result) else f"{sum(each['memory_mib'] for each in every):,.0f}",
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
            NONE if each["memory_mib"] is None else f"{each['memory_mib']:,.0f}",
            f"{each['written_bytes'] / 1e6:,.1f}",
            NONE if each["syncs"] is None else f"{each['syncs']:,}",
            NONE if each["ready_max"] is None else f"{each['ready_max']:,}",
        )
        for broker, each in result.brokers.items()
    ]


def _unseen(result: Result) -> list[str]:
    """Name the brokers without samples in the measured part, in one note; empty if there are none."""
    names = [name for name, each in result.brokers.items() if each["memory_mib"] is None]
    if not names:
        return []
    return [
        f"not looked at while it was measured: {', '.join(names)}. CPU and bytes there are the share of a "
        "longer time; memory, queues and what a message cost are not known."
    ]


DISTURBANCE_HEAD = (
    *("disturbance", "from", "to", "p99 before"),
    *("longest from then on", "never", "silence"),
)
# A message that was held up may have been intended a little before, and may arrive a little after.
AROUND_S = 5


def _disturbance_rows(result: Result) -> list[tuple[str, ...]]:
    """Return a row per disturbance: p99 of confirms before, the longest one after, and missing confirms."""
    confirm, warm_s = result.latencies["confirm"], int(result.profile.time.warm_up_s)
    end = result.measured.stop
    rows: list[tuple[str, ...]] = []
    done = result.about.get("disturbances", [])
    for each, following in itertools.zip_longest(done, done[1:]):
        began, ended = each["began_s"], each["ended_s"]
        # A disturbance that was never undone lasts to the end.
        until = min(int(ended) + AROUND_S, end) if ended is not None else end
        until = min(until, int(following["began_s"])) if following else until
        before = percentiles(confirm.whole(range(warm_s, int(began))))
        seconds = range(int(began), until)
        within, silence_s = percentiles(confirm.whole(seconds)), result.silence_s(seconds)
        rows.append(
            (
                each["what"],
                f"{began:.1f} s",
                NONE if ended is None else f"{ended:.1f} s",
                _shown(before, "p99"),
                _shown(within, "p100"),
                f"{result.never(seconds):,}",
                NONE if silence_s is None else milliseconds(silence_s * 1000),
            )
        )
    return rows


def _disturbances_html(result: Result) -> list[str]:
    rows = _disturbance_rows(result)
    return ["<h2>Disturbances</h2>", html_table(DISTURBANCE_HEAD, rows)] if rows else []


CLIENT_HEAD = ("load process", "CPU share", "pacing p99", "intended", "not sent")


# Rows of one kind; beyond that they are summed up.
CLIENTS_MAX = 12


def _client_rows(result: Result) -> list[tuple[str, ...]]:
    rows = []
    for kind in (CONSUMER, PUBLISHER):
        own = [each for each in result.clients if each.name.startswith(kind)]
        rows += _each_client(own) if len(own) <= CLIENTS_MAX else [_all_clients(kind, own)]
    return rows


def _all_clients(kind: str, clients: Sequence[Client]) -> tuple[str, ...]:
    intended = sum(each.intended for each in clients)
    return (
        f"{len(clients)} x {kind}",
        f"{sum(each.cpu_share for each in clients):.0%}",
        milliseconds(max(each.pacing_p99_ms for each in clients)) if intended else NONE,
        f"{intended:,}" if intended else NONE,
        f"{sum(each.unsent for each in clients):,}" if intended else NONE,
    )


def _each_client(clients: Sequence[Client]) -> list[tuple[str, ...]]:
    return [
        (
            each.name,
            f"{each.cpu_share:.0%}",
            milliseconds(each.pacing_p99_ms) if each.intended else NONE,
            f"{each.intended:,}" if each.intended else NONE,
            f"{each.unsent:,}" if each.intended else NONE,
        )
        for each in clients
    ]


def _profile_rows(result: Result) -> list[tuple[str, ...]]:
    values = result.profile.as_json()
    return [
        (f"{part}.{key}", _plain(value))
        for part in ("system", "load", "messages", "time")
        for key, value in values[part].items()
    ]


def _plain(value: object) -> str:
    """Format a setting without the punctuation of a programming language."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_plain(each) for each in value) or NONE
    return str(value) if value != "" else NONE


def _shown(found: dict[str, float], name: str) -> str:
    return milliseconds(found[name]) if name in found else NONE
