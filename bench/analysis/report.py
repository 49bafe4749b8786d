"""The report of a run: text for the terminal, and one self-contained page with charts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.analysis.result import ANY_NODE, CURVE, MEASURES, Result, percentiles
from bench.analysis.verdict import Client
from bench.harness.histograms import SECOND_NS
from bench.harness.parts import CONSUMER, PUBLISHER
from bench.harness.sampling import CPU_LEAST_S
from bench.load.profile import Messages
from bench.load.schedule import Poisson
from messagebus.recording.manifest import FOLLOWS_NS, follows_until_ns
from messagebus.terminal import plural
from reports import charts
from reports.charts import DASHED, Mark, Panel, Series, Span
from reports.page import Figure, Page, Section
from reports.page import render_html as html_of
from reports.page import render_text as text_of
from reports.svg import COLOURS
from reports.text import COLUMNS, NONE, Table, milliseconds, table_of

# A client of a native cluster cannot tell which node took a message.
ANY = "any node"
TAILS = {"confirm": ", from intended", "service": ", from sent", "delivery": "", "pacing": ""}
# Times that a client did not wait for the system, or that are no latency.
OF_CLIENT = ("service", "pacing")


def percentile_chart(result: Result) -> str:
    """Draw latency by percentile, from the intended time and, dashed, from the sending."""
    series = []
    for measure, colour in zip(("confirm", "service", "delivery", "pacing"), COLOURS, strict=False):
        found = percentiles(result.bins(measure))
        kept = [each for each in CURVE if f"p{each:g}" in found]
        label = MEASURES[measure].split(":")[0] + TAILS[measure]
        values = [found[f"p{each:g}"] for each in kept]
        dashes = DASHED if measure in OF_CLIENT else None
        series.append(Series(label, kept, values, colour, dashes))
    return charts.percentiles([each for each in series if each.x])


def over_time_chart(result: Result) -> str:
    """Draw confirms, latencies and, where any waited, messages in queues, over one time axis."""
    measured, latencies = result.measured, latency_series(result)
    panels = [
        Panel("confirmed a second, by broker", _rates(result.rates("confirm")), height=2.6),
        Panel("latency", latencies, unit="ms", height=2.6),
    ]
    waiting = _waiting(result)
    if any(value for each in waiting for value in each.y):
        panels.append(Panel("messages waiting in queues, by broker", waiting))
    last_s = max((x for panel in panels for each in panel.series for x in each.x), default=0)
    until_s = max(last_s, measured.stop)
    return charts.over_time(
        panels,
        until_s=until_s,
        marks=[mark for mark in _marks(result) if mark.at_s <= until_s],
        spans=[Span(measured.start, measured.stop)],
        axis="since the load began; shaded: measured",
    )


def latency_series(result: Result) -> list[Series]:
    """Return p50 and p99 of confirms and deliveries over time. A second without enough samples is a gap."""
    series = []
    for measure, colour in zip(("confirm", "delivery"), COLOURS, strict=False):
        latencies = result.latencies[measure]
        known = [second for second, _ in latencies.bins if second >= 0]
        seconds = range(min(known, default=0), max(known, default=-1) + 1)
        each = [percentiles(latencies.whole(range(second, second + 1))) for second in seconds]
        for name, dashes in (("p50", None), ("p99", DASHED)):
            values = [found.get(name, math.nan) for found in each]
            if not all(map(math.isnan, values)):
                series.append(Series(f"{measure}, {name}", seconds, values, colour, dashes))
    return series


def _rates(rates: Mapping[str, Sequence[float]]) -> list[Series]:
    return [Series(broker or ANY, range(len(each)), each) for broker, each in rates.items()]


def _waiting(result: Result) -> list[Series]:
    points: dict[str, dict[float, float]] = {}
    for each in result.samples:
        if each.ready is not None and each.at_s >= 0:
            points.setdefault(each.broker, {})[each.at_s] = each.ready
    return [Series(each, [*points[each]], [*points[each].values()]) for each in sorted(points)]


def _marks(result: Result) -> list[Mark]:
    """Return the beginning and the end of each disturbance, with its name."""
    found = []
    for each in result.about.get("disturbances", []):
        found.append(Mark(each["began_s"], each["what"], alarm=True))
        if each["ended_s"] is not None:
            found.append(Mark(each["ended_s"], f"{each['what'].split()[0]} over", alarm=True))
    return found


SHOWN = ("p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "p100")
LATENCY_HEAD = ("latency", "samples", "never", *SHOWN[:-1], "longest")
EXAMPLES_SHOWN = 5
NOT_JUDGED = "not judged: the run did not come to its end"
WORDS = {
    "intended": "the time at which the schedule sends a message. The schedule is known before the run. "
    "Latency counts from this time, so a stall shows in every message that it delays.",
    "sent to confirmed": "service time, from the sending: it leaves out the time that a message waited in "
    "the client. Where the two lines part, messages waited in the client.",
    "pacing": "how late the load handled a message that was due, without the time it waited for room in "
    "the window. Pacing is the error of this measurement.",
    "measured": "the seconds after the warm-up, shaded in the charts. A message belongs to the second in "
    "which it was intended. Fates count all messages, those of the warm-up too.",
    "percentiles": "from exact counts per HdrHistogram bin (3 digits). A percentile is shown if at least "
    "one sample lies beyond it, or if it is the longest.",
    "never": "publishes that were never confirmed. The percentiles do not include them.",
    "disturbances": "confirms that came before the disturbance began count as before it. Later confirms of "
    "messages that were under way then, or were intended while it lasted or up to "
    f"{FOLLOWS_NS // SECOND_NS} s after its end and before the next one, count as after it.",
    "back at": "the disturbance is undone from `to` on, and over at `back at`. Between them, a killed broker "
    "starts and recovers its queues. Both count from the beginning of the load, as at_s of the profile does.",
    "silence": "the longest time in which a publisher waited for confirms and none came, to the next one "
    "or to the end of the measured part. A silence that was under way when a disturbance began counts whole, "
    "from its own begin.",
    "a dash": "an unknown value. The costs of a broker are unknown if its process ended during the run (a "
    "kill), or if no sample of it was taken. The CPU time of a message is unknown in a run of less than "
    f"{CPU_LEAST_S:g} s.",
    "late": "a first delivery after a later message of the same publisher and broker, at one consumer.",
}


def write(result: Result) -> None:
    """Write report.txt and report.html into the run's folder."""
    (result.folder / "report.txt").write_text(render_text(result) + "\n")
    (result.folder / "report.html").write_text(render_html(result))


def render_text(result: Result, columns: int = COLUMNS) -> str:
    return text_of(_page(result, ()), columns)


def render_html(result: Result) -> str:
    return html_of(_page(result, _charts(result)))


def _page(result: Result, charts: Sequence[Section]) -> Page:
    """Make the page. charts: its first sections; a text has none."""
    name = f"{result.profile.name}, {result.profile.system.name}"
    about = [
        *([("while measured", str(usage))] if (usage := result.machine) else []),
        *result.about.get("system", {}).items(),
        *sorted(result.about["environment"].items()),
    ]
    return Page(
        kind="measured run",
        title=name,
        name=name,
        meta=(
            _about(result),
            f"a confirm means: {result.about['durability']}",
            *([f"while measured: {usage}"] if usage else []),
            *(f"load from {host}" for host in result.about["environment"].get("load_hosts", ())),
        ),
        verdict=_verdict(result),
        faults=tuple(result.faults),
        figures=_figures(result),
        sections=(
            *charts,
            Section(title="Latency", tables=(_latencies(result),)),
            Section(title="Fates", tables=(_fates(result),), after=tuple(_examples(result))),
            Section(
                title="Brokers",
                tables=(_brokers(result),),
                after=(*_idle(result), *_unseen(result)),
            ),
            Section(title="Disturbances", tables=(_disturbances(result),)),
            Section(title="Load processes", tables=(_clients(result),)),
            _settings("What it did", _profile_rows(result)),
            _settings("On what it was measured", [(key, _plain(value)) for key, value in about]),
        ),
        words_title="What the words mean",
        words=WORDS,
        footer="Numbers: result.json beside this page; histograms: *.hlog; a row per message: "
        "parts/*.parquet.",
    )


def _charts(result: Result) -> list[Section]:
    return [
        Section(title="By percentile", chart=percentile_chart(result)),
        Section(title="Over time", chart=over_time_chart(result)),
    ]


def _settings(title: str, rows: Sequence[tuple[str, ...]]) -> Section:
    """Make a section that is on the page alone."""
    return Section(title=title, tables=(Table(("", ""), tuple(rows), left=2),), is_long=True)


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


def _figures(result: Result) -> tuple[Figure, ...]:
    """Return the most important numbers."""
    found, fates, never = percentiles(result.bins("confirm")), result.fates, result.never()
    without = f", {never:,} never confirmed" if never else ""
    return (
        Figure(f"{result.per_s:,.0f}", "confirmed a second", f"{result.came('confirm'):,} in all"),
        Figure(
            f"{result.delivered_per_s:,.0f}",
            "delivered a second",
            f"{result.came('delivery'):,} in all",
        ),
        Figure(_shown(found, "p50"), "confirm, median", f"p99 {_shown(found, 'p99')}{without}"),
        Figure(NONE, "lost", NOT_JUDGED)
        if fates is None
        else Figure(
            f"{fates.lost:,}", "lost", f"{fates.doubled:,} doubled, {fates.unknown:,} unknown"
        ),
    )


def _about(result: Result) -> str:
    profile, machine = result.profile, result.about["environment"]
    load = profile.load
    return (
        f"brokers: {profile.system.brokers}, publishers: {load.publishers}, consumers: {load.consumers}, "
        f"window {load.window}, {_sizes(profile.messages)}; {_intended(result)}{result.measured_s:.3g} s "
        f"measured after {profile.time.warm_up_s:g} s; {machine['at']}, commit {machine['commit']}, "
        f"{machine['cores']} cores, "
        f"load before {machine['load_before'][0]:g}, after {machine.get('load_after', [0])[0]:g}"
    )


def _intended(result: Result) -> str:
    """Return the rate that a schedule by chance came to, and its mean; "" for any other schedule."""
    schedule = result.profile.load.schedule
    if not isinstance(schedule, Poisson):
        return ""
    per_s = sum(result.bins("pacing").values()) / result.measured_s
    return f"intended: {per_s:,.0f}/s (Poisson, {schedule.rate_per_s:,g}/s on average); "


def _sizes(messages: Messages) -> str:
    if messages.file:
        return f"bodies from {Path(messages.file).name}"
    parts = messages.sizes or ((1.0, messages.size),)
    return ", ".join(
        f"{size} bytes" + (f" ({part:.0%})" if part < 1 else "") for part, size in parts
    )


def _latencies(result: Result) -> Table:
    rows, never = [], f"{result.never():,}"
    of_brokers = [
        (f"  confirm, {broker or ANY}", NONE, result.bins("confirm", broker))
        for broker in result.rates("confirm")
    ]
    of_run = [
        (words, never if measure in ("confirm", "service") else NONE, result.bins(measure))
        for measure, words in MEASURES.items()
    ]
    for words, without, bins in (*of_run, *of_brokers):
        if found := percentiles(bins):
            shown = [_shown(found, each) for each in SHOWN]
            rows.append((words, f"{found['samples']:,.0f}", without, *shown))
    if (silence := _silence(result)) != NONE:
        dashes = [NONE] * (len(LATENCY_HEAD) - 2)
        rows.append(("silence of a publisher", *dashes, silence))
    return Table(LATENCY_HEAD, tuple(rows))


FATES = (
    *("published", "confirmed", "refused", "unknown", "expected", "delivered", "lost", "doubled"),
    *("altered", "late", "orphan"),
)


def _fates(result: Result) -> Table:
    head, fates = ("fates", ""), result.fates
    if fates is None:
        return Table(head, ((NOT_JUDGED, NONE),))
    rows = [(name, f"{getattr(fates, name):,}") for name in FATES]
    rows += [
        (f"below zero: {MEASURES[measure]}", f"{each.below_zero:,}")
        for measure, each in result.latencies.items()
        if each.below_zero
    ]
    if result.earlier:
        rows.append(("of an earlier run", f"{result.earlier:,}"))
    return Table(head, tuple(rows))


def _examples(result: Result) -> list[str]:
    """Return examples of each fault: subscriptions and messages, by publisher number and message number."""
    return [
        f"{fault}, for example: {', '.join(names[:EXAMPLES_SHOWN])}"
        for fault, names in (result.fates.examples if result.fates else {}).items()
    ]


def _brokers(result: Result) -> Table:
    """Return the costs of each broker; of those that ended meanwhile the confirms alone."""
    measured, rates, costs = result.measured, result.rates("confirm"), result.brokers
    rows: list[dict[str, Any]] = []
    for broker in result.broker_names:
        confirmed = sum(rates.get(broker, [])[measured.start : measured.stop])
        row = {"broker": broker, "confirmed": None if ANY_NODE in rates else confirmed}
        if cost := costs.get(broker):
            row = {**cost, "cores": cost["cpu_s"] / cost["seconds"], **row}
        rows.append(row)
    if len(rows) > 1 and costs:
        rows.append(_all_brokers(result))

    def fixed(key: str, digits: int, scale: float = 1.0) -> Callable[[Mapping[str, Any]], str]:
        return lambda row: NONE if row.get(key) is None else f"{row[key] / scale:,.{digits}f}"

    return table_of(
        rows,
        {
            "broker": "broker",
            "confirmed": "confirmed",
            "CPU us / message": fixed("cpu_us", 1),
            "CPU cores": fixed("cores", 2),
            "memory MiB": fixed("memory_mib", 0),
            "written MB": fixed("written_bytes", 1, 1e6),
            "fsyncs": fixed("syncs", 0),
            "most waiting": fixed("ready_max", 0),
        },
        shown_max=len(rows),
    )


def _all_brokers(result: Result) -> dict[str, Any]:
    every = list(result.brokers.values())
    confirmed = result.came("confirm")
    total: dict[str, Any] = {"broker": "all", "confirmed": confirmed}
    if len(every) < result.profile.system.brokers:
        # Without a broker that was killed, the sums are not known.
        return total
    costs = [each["messages_cpu_s"] for each in every if each["messages_cpu_s"] is not None]
    is_whole = confirmed and len(costs) == len(every)
    return total | {
        "cpu_us": sum(costs) / confirmed * 1e6 if is_whole else None,
        "cores": sum(each["cpu_s"] / each["seconds"] for each in every),
        "memory_mib": None if _unseen(result) else sum(each["memory_mib"] for each in every),
        "written_bytes": sum(each["written_bytes"] for each in every),
    }


def _idle(result: Result) -> list[str]:
    """Name the brokers that got no message, in one note; empty if there are none."""
    idle, publishers = result.idle_brokers, result.profile.load.publishers
    if not idle:
        return []
    return [
        f"{len(idle)} of {plural(len(result.broker_names), 'broker')} got nothing: {', '.join(idle)}. "
        f"The load had {plural(publishers, 'publisher')} (load.publishers): more of them reach more brokers."
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


def _disturbances(result: Result) -> Table:
    """Return a row per disturbance: p99 of confirms before, the longest one after, and missing confirms.

    `Published.around` decides what is before and what is after.
    """
    end_ns = result.measured.stop * SECOND_NS
    rows = []
    done = result.about.get("disturbances", [])
    for each, following in itertools.zip_longest(done, done[1:]):
        began, ended = each["began_s"], each["ended_s"]
        # A disturbance that was never undone lasts to the end.
        ended_ns = end_ns if ended is None else round(ended * SECOND_NS)
        next_ns = round(following["began_s"] * SECOND_NS) if following else None
        window = (round(began * SECOND_NS), min(follows_until_ns(ended_ns, next_ns), end_ns))
        before, within, never = result.around(*window)
        rows.append(
            {
                "disturbance": each["what"],
                "from": f"{began:.1f} s",
                "to": _at(each.get("lifted_s")),
                "back at": _at(ended),
                "p99 before": _shown(before, "p99"),
                "longest from then on": _shown(within, "p100"),
                "never": never,
                "silence": _silence(result, window),
            }
        )
    return table_of(rows, {name: name for name in rows[0]} if rows else {}, shown_max=len(rows))


def _at(second: float | None) -> str:
    return NONE if second is None else f"{second:.1f} s"


def _silence(result: Result, around_ns: tuple[int, int] | None = None) -> str:
    silence_s = result.silence_s(around_ns)
    return milliseconds(None if silence_s is None else silence_s * 1000)


# Rows of one kind; beyond that they are summed up.
CLIENTS_MAX = 12


def _clients(result: Result) -> Table:
    rows = []
    for kind in (CONSUMER, PUBLISHER):
        own = [each for each in result.clients if each.name.startswith(kind)]
        if len(own) <= CLIENTS_MAX:
            rows += [_client(each.name, [each]) for each in own]
        else:
            rows.append(_client(f"{len(own)} x {kind}", own))
    names = ("load process", "CPU share", "pacing p99", "intended", "not sent")
    return table_of(rows, {name: name for name in names})


def _client(name: str, clients: Sequence[Client]) -> dict[str, Any]:
    """Return a row of one process, or of several: sums, and the worst pacing."""
    intended = sum(each.intended for each in clients)
    row: dict[str, Any] = dict.fromkeys(("pacing p99", "intended", "not sent"))
    if intended:
        row["pacing p99"] = milliseconds(max(each.pacing_p99_ms for each in clients))
        row |= {"intended": intended, "not sent": sum(each.unsent for each in clients)}
    return row | {
        "load process": name,
        "CPU share": f"{sum(each.cpu_share for each in clients):.0%}",
    }


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


def _shown(values: dict[str, float], name: str) -> str:
    return milliseconds(values.get(name))
