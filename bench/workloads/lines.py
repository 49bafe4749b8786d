"""Workloads of several lines, each with its medians: latency matrix, fan-in, a capacity model's grid, peers.

Fan-in is one load on more and more brokers. ``python -m spark capacity`` fits its model from the folders of
the grid's runs: sizes, fan-outs, rates, durabilities on one broker. CPU time of a message counts there, not
the rate: so its runs may be slow, and the machine need not be quiet.

Peers are the same two loads on other systems beside ours; every line states the meaning of a confirm. The
first is a paced load for latencies, which also warms up Java programs. The second is as fast as a window
allows, on the same start of the system.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.analysis.result import numbers_of
from bench.analysis.series import (
    Step,
    Summary,
    faults_of,
    in_rounds,
    middle,
    samples,
    trusted,
    turns_of,
)
from bench.figures.figure import Figure, Maker
from bench.harness.sampling import CPU_LEAST_S
from bench.load.profile import Profile, System
from bench.load.schedule import Closed, Constant
from bench.load.systems import SYSTEMS
from reports.page import Bar
from reports.text import NONE, significant

MATRIX = ("latency-256", "latency-1024", "latency-5120", "latency-1024-25", "latency-1048576")
SHOWN = ("p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "p100")
FAN_IN = (1, 2, 4, 8)
LEAST_S = 5.0


def shorter(profile: Profile, part: int) -> Profile:
    """Return the profile measured for a part of its time; 10: a tenth, in whole seconds, some at least."""
    time = profile.time
    measured_s = max(min(time.measured_s, LEAST_S), float(round(time.measured_s / part)))
    warm_up_s = min(time.warm_up_s, measured_s)
    return dataclasses.replace(
        profile, time=dataclasses.replace(time, measured_s=measured_s, warm_up_s=warm_up_s)
    )


def matrix_steps(profiles: Iterable[Profile], repeat: int = 1, part: int = 1) -> list[Step]:
    return in_rounds([Step(each.name, shorter(each, part)) for each in profiles], repeat)


def matrix_told(results: Mapping[str, Mapping[str, Any]]) -> Summary:
    """Summarize the medians of all turns.

    Corrected latencies count from the intended time, uncorrected ones from the sending, as in most tools.
    """
    rows: list[Sequence[str]] = []
    bars: list[Bar] = []
    for name in MATRIX:
        turns = turns_of(results, name)
        for measure, words in (
            ("confirm", "corrected"),
            ("service", "uncorrected"),
            ("delivery", "end to end"),
        ):
            if turns:
                first = measure == "confirm"
                rate = middle([turn["confirmed_per_s"] for turn in turns])
                found = [turn["percentiles_ms"].get(measure, {}) for turn in turns]
                count = sum(each.get("samples", 0) for each in found)
                head = (name, words, significant(rate)) if first else ("", words, "")
                shown = (middle([each.get(of) for each in found]) for of in SHOWN)
                rows.append((*head, f"{count:,.0f}", *map(significant, shown)))
                if (p99 := middle([each.get("p99") for each in found])) is not None:
                    label = f"{name}, {words}"
                    bars.append(Bar.of(label, p99, f"{significant(p99)} ms", len(bars) % 3))
    return Summary(
        head=("", "ms", "confirmed/s", "samples", *SHOWN),
        rows=rows,
        left=2,
        bars_title="99 of 100 messages took no longer",
        bars=bars,
        notes=["Corrected: from the intended time. Uncorrected: from the sending."],
        faults=faults_of(results),
    )


def matrix_figures(results: Mapping[str, Mapping[str, Any]], command: str) -> Iterator[Figure]:
    for name in MATRIX:
        found = [turn["percentiles_ms"] for turn in trusted(turns_of(results, name))]
        for measure, words in (
            ("confirm", "from the intended time"),
            ("service", "from the sending"),
        ):
            for each in ("p50", "p99", "p99.9"):
                if values := samples(of.get(measure, {}).get(each) for of in found):
                    id = f"{name.removeprefix('latency-')}.{measure}_{each}_ms"
                    what = f"Latency matrix, {name}: {each} until confirmed, {words}"
                    yield Maker("measure.latency_matrix", command)(id, what, values, "ms")


def fan_in_steps(base: Profile, repeat: int = 1, part: int = 1) -> list[Step]:
    """Return the steps of the same load on more and more brokers, in rounds."""
    base = shorter(base, part)
    once = [
        Step(
            _on(brokers),
            dataclasses.replace(base, system=dataclasses.replace(base.system, brokers=brokers)),
        )
        for brokers in FAN_IN
    ]
    return in_rounds(once, repeat)


def _on(brokers: int) -> str:
    return f"{brokers}-brokers"


def fan_in_told(results: Mapping[str, Mapping[str, Any]]) -> Summary:
    """Summarize the medians of all turns."""
    rows: list[Sequence[str]] = []
    bars: list[Bar] = []
    names = ("confirmed a second", "client CPU us", "broker CPU us", "confirm p50", "confirm p99")
    for brokers in FAN_IN:
        if found := [numbers_of(run) for run in turns_of(results, _on(brokers))]:
            values = [middle([each.get(name) for each in found]) for name in names]
            rows.append((f"{brokers}", *map(significant, values)))
            for look, (part, value) in enumerate(zip(names[1:3], values[1:3], strict=True)):
                if value is not None:
                    label = f"{brokers} brokers, {part.partition(' ')[0]}"
                    bars.append(Bar.of(label, value, f"{significant(value)} µs", look))
    note = (
        "CPU us: of a message, of all clients and of all brokers together. A broker at rest costs CPU too, "
        "which the same few messages have to bear."
    )
    return Summary(
        head=(
            "brokers",
            "confirmed/s",
            "client CPU us",
            "broker CPU us",
            "confirm p50 ms",
            "p99 ms",
        ),
        rows=rows,
        left=0,
        bars_title="CPU of a message",
        bars=bars,
        notes=[note],
        faults=faults_of(results),
    )


def fan_in_figures(results: Mapping[str, Mapping[str, Any]], command: str) -> Iterator[Figure]:
    for brokers in FAN_IN:
        turns = turns_of(results, _on(brokers))
        for part, words in (("client", "client CPU us"), ("broker", "broker CPU us")):
            if values := samples(numbers_of(turn).get(words) for turn in turns):
                rate = turns[0]["profile"]["load"]["schedule"]["rate_per_s"]
                id = f"{brokers}_brokers.{part}_cpu_us"
                what = f"Fan-in, {rate:g}/s over {brokers} brokers: {part} CPU of a message"
                yield Maker("measure.fan_in", command)(id, what, values, "us")


DURABILITIES = ("fsync", "page-cache")
# Bytes, subscriptions, messages a second. Two rates tell the cost of a broker at rest from that of messages.
GRID = (
    *((100, 1, 1000), (100, 1, 300), (100, 2, 900), (100, 4, 500)),
    *((1_000, 1, 1000), (2_000, 2, 300), (2_000, 4, 500), (4_000, 1, 600)),
    *((8_000, 3, 300), (16_000, 1, 300), (16_000, 2, 500), (16_000, 4, 200)),
)


def capacity_steps(base: Profile, repeat: int = 1, part: int = 1) -> list[Step]:
    """Return the runs of the grid. part: a broker's CPU time needs some seconds, however short they are."""
    time = base.time
    measured_s = max(CPU_LEAST_S, float(round(time.measured_s / part)))
    base = dataclasses.replace(base, time=dataclasses.replace(time, measured_s=measured_s))
    return [
        step
        for durability in DURABILITIES  # the runs of one share a start of the broker
        for step in in_rounds([_cell_step(base, durability, *each) for each in GRID], repeat)
    ]


def _cell_step(base: Profile, durability: str, size: int, fan_out: int, rate: int) -> Step:
    # A topic for each fan-out: on the broker that they share, the subscriptions of other runs stay.
    places = tuple(f"load{fan_out}/sink{number}" for number in range(fan_out))
    profile = dataclasses.replace(
        base,
        system=dataclasses.replace(base.system, durability=durability),
        messages=dataclasses.replace(
            base.messages, size=size, subscriptions=fan_out, places=places
        ),
        load=dataclasses.replace(base.load, schedule=Constant(rate_per_s=rate), consumers=fan_out),
    )
    return Step(_cell(durability, size, fan_out, rate), profile)


def _cell(durability: str, size: int, fan_out: int, rate: int) -> str:
    return f"{durability}-{size}-x{fan_out}-{rate}"


def capacity_told(results: Mapping[str, Mapping[str, Any]]) -> Summary:
    """Summarize the medians of all turns."""
    rows: list[list[str]] = []
    bars: list[Bar] = []
    for number, durability in enumerate(DURABILITIES):
        for each in GRID:
            name = _cell(durability, *each)
            if found := [numbers_of(run) for run in turns_of(results, name)]:
                names = ("broker CPU us", "client CPU us")
                costs = [middle([one.get(of) for one in found]) for of in names]
                rows.append([durability, *(f"{one:,}" for one in each), *map(significant, costs)])
                if costs[0] is not None:
                    bars.append(Bar.of(name, costs[0], f"{significant(costs[0])} µs", number))
    return Summary(
        head=("durability", "bytes", "subscriptions", "rate", "broker CPU us", "client CPU us"),
        rows=rows,
        left=1,
        bars_title="CPU of a message in the broker",
        bars=bars,
        notes=["CPU us: of one published message, with all of its deliveries."],
        faults=faults_of(results),
    )


def capacity_figures(results: Mapping[str, Mapping[str, Any]], command: str) -> Iterator[Figure]:
    for durability in DURABILITIES:
        for size, fan_out, rate in GRID:
            turns = turns_of(results, _cell(durability, size, fan_out, rate))
            if values := samples(numbers_of(turn).get("broker CPU us") for turn in turns):
                id = f"{durability}.{size}_x{fan_out}_{rate}.broker_cpu_us"
                what = f"{size:,} B to {fan_out} at {rate}/s, {durability}: broker CPU of a message"
                yield Maker("measure.capacity", command)(id, what, values, "us")


ARMS = (
    System(name="messagebus", brokers=1),
    System(name="pika", brokers=1),
    System(name="aio-pika", brokers=1),
    System(name="pika-blocking", brokers=1),
    System(name="kombu", brokers=1),
    System(name="perf-test", brokers=1),
    System(name="kafka", brokers=1),
    System(name="kafka", brokers=1, durability="page-cache"),
    System(name="artemis", brokers=1),
    System(name="artemis", brokers=1, durability="page-cache"),
    System(name="messagebus", brokers=3),
    System(name="native", brokers=3),
    System(name="native", brokers=3, durability="page-cache"),
    System(name="kafka", brokers=3),
    System(name="kafka", brokers=3, durability="page-cache"),
    System(name="artemis-cluster", brokers=3),
)
PACED, FULL = "paced", "full"
PEERS_HEAD = (
    *("system", "nodes", "on disk at confirm", "full: confirmed/s", "delivered/s", "client CPU us"),
    *("broker CPU us", "paced: confirm p50 ms", "p99", "end to end p50 ms", "p99"),
)


def peers_steps(paced: Profile, full: Profile, repeat: int = 1, part: int = 1) -> list[Step]:
    """Return the steps of all arms, in rounds; part: 10 does a tenth."""
    assert isinstance(full.load.schedule, Closed)
    fewer = Closed(count=max(1, full.load.schedule.count // part))
    full = dataclasses.replace(full, load=dataclasses.replace(full.load, schedule=fewer))
    paced = shorter(paced, part)
    once = [
        Step(_of_arm(system, kind), dataclasses.replace(base, system=system))
        for system in ARMS
        for kind, base in ((PACED, paced), (FULL, full))
        if kind == PACED or not SYSTEMS[system.name].own_load
    ]
    return in_rounds(once, repeat)


def _of_arm(system: System, kind: str) -> str:
    return f"{system.name}-{system.brokers}-{system.durability}-{kind}"


def peers_told(results: Mapping[str, Mapping[str, Any]]) -> Summary:
    """Summarize the medians of all turns."""
    rows: list[Sequence[str]] = []
    bars: list[Bar] = []
    for system in ARMS:
        paced, full = (turns_of(results, _of_arm(system, kind)) for kind in (PACED, FULL))
        if not paced:
            continue
        synced = "yes" if system.durability == "fsync" else "no"
        head = (system.name, str(system.brokers), synced)
        rows.append((*head, *_rates(full), *_latencies(paced)))
        if (rate := middle([run["confirmed_per_s"] for run in full])) is not None:
            label = f"{system.name}, {system.brokers}, {system.durability}"
            bars.append(Bar.of(label, rate, significant(rate), 0 if synced == "yes" else 1))
    meant = {
        f"{system.name}, {system.brokers} nodes, {system.durability}": str(run["durability"])
        for system in ARMS
        for run in turns_of(results, _of_arm(system, PACED))
    }
    return Summary(
        head=PEERS_HEAD,
        rows=rows,
        bars_title="Confirmed a second, full load; striped: not on disk at the confirm",
        bars=bars,
        notes=[PEERS_NOTE],
        meant=meant,
        faults=faults_of(results),
    )


PEERS_NOTE = (
    "Paced latencies are from the intended time; of -java, whose load is its own, from the sending and of "
    "its whole run. Kafka's consumer may have a message before its publisher has the confirm. CPU us: of a "
    "message of the full load, all clients and all brokers together."
)


def _rates(full: Sequence[Mapping[str, Any]]) -> list[str]:
    if not full:
        return [NONE] * 4
    found = [numbers_of(run) for run in full]
    names = ("confirmed a second", "delivered a second", "client CPU us", "broker CPU us")
    return [significant(middle([each.get(name) for each in found])) for name in names]


def _latencies(paced: Sequence[Mapping[str, Any]]) -> list[str]:
    both = [_percentiles(run) for run in paced]
    return [
        significant(middle([each[which].get(name) for each in both]))
        for which in (0, 1)
        for name in ("p50", "p99")
    ]


def _percentiles(paced: Mapping[str, Any]) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Return the percentiles until confirm and delivery; of a system's own load, the nearest ones."""
    own = paced["percentiles_ms"]
    confirm = own.get("confirm") or own.get("service", {})
    return confirm, own.get("delivery") or own.get("sent to received", {})


def peers_figures(results: Mapping[str, Mapping[str, Any]], command: str) -> Iterator[Figure]:
    for system in ARMS:
        words = f"{system.name}, {system.brokers} nodes, {system.durability}"
        arm = _of_arm(system, "").rstrip("-").replace("-", "_")
        make = Maker(f"measure.peers.{arm}", command)
        paced, full = (turns_of(results, _of_arm(system, kind)) for kind in (PACED, FULL))
        if rates := samples(run["confirmed_per_s"] for run in full):
            what = f"{words}: confirmed as fast as a window of 1000 lets it"
            yield make("rate", what, rates, "messages/s")
        p99s = [run["percentiles_ms"].get("confirm", {}).get("p99") for run in trusted(paced)]
        if known := samples(p99s):
            rate = paced[0]["profile"]["load"]["schedule"]["rate_per_s"]
            yield make(
                "confirm_p99_ms", f"{words}: p99 until confirmed, at {rate:g}/s", known, "ms"
            )
