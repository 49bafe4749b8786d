"""The same two loads on other systems beside ours; every line states the meaning of a confirm.

The first is a paced load for latencies, which also warms up Java programs. The second is as fast as a
window allows, on the same start of the system.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.analysis.result import numbers_of
from bench.analysis.series import Step, in_rounds, middle, samples, trusted, turns_of
from bench.analysis.summary import Summary, faults_of
from bench.figures.form import Figure, Maker
from bench.load.profile import Profile, System
from bench.load.schedule import Closed
from bench.load.systems import SYSTEMS
from bench.workloads.latency_and_fan_in import shorter
from reports.page import Bar
from reports.text import NONE, significant

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
    System(name="kafka-java", brokers=1),
    System(name="kafka-java", brokers=1, durability="page-cache"),
    System(name="artemis-java", brokers=1),
)
PACED, FULL = "paced", "full"
HEAD = (
    *("system", "nodes", "on disk at confirm", "full: confirmed/s", "delivered/s", "client CPU us"),
    *("broker CPU us", "paced: confirm p50 ms", "p99", "end to end p50 ms", "p99"),
)


def steps(paced: Profile, full: Profile, repeat: int = 1, part: int = 1) -> list[Step]:
    """Return the steps of all arms, in rounds; part: 10 does a tenth."""
    assert isinstance(full.load.schedule, Closed)
    fewer = Closed(count=max(1, full.load.schedule.count // part))
    full = dataclasses.replace(full, load=dataclasses.replace(full.load, schedule=fewer))
    paced = shorter(paced, part)
    once = [
        Step(_name(system, kind), dataclasses.replace(base, system=system))
        for system in ARMS
        for kind, base in ((PACED, _alone(paced, system)), (FULL, full))
        if kind == PACED or not SYSTEMS[system.name].own_load
    ]
    return in_rounds(once, repeat)


def _alone(paced: Profile, system: System) -> Profile:
    """Return the profile for the system: Kafka's own tool only publishes."""
    if system.name != "kafka-java":
        return paced
    return dataclasses.replace(paced, load=dataclasses.replace(paced.load, consumers=0))


def _name(system: System, kind: str) -> str:
    return f"{system.name}-{system.brokers}-{system.durability}-{kind}"


def told(results: Mapping[str, Mapping[str, Any]]) -> Summary:
    """Summarize the medians of all turns."""
    rows: list[Sequence[str]] = []
    bars: list[Bar] = []
    for system in ARMS:
        paced, full = (turns_of(results, _name(system, kind)) for kind in (PACED, FULL))
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
        for run in turns_of(results, _name(system, PACED))
    }
    return Summary(
        head=HEAD,
        rows=rows,
        bars_title="Confirmed a second, full load; striped: not on disk at the confirm",
        bars=bars,
        notes=[NOTE],
        meant=meant,
        faults=faults_of(results),
    )


NOTE = (
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


def figures(results: Mapping[str, Mapping[str, Any]], command: str) -> Iterator[Figure]:
    for system in ARMS:
        words = f"{system.name}, {system.brokers} nodes, {system.durability}"
        arm = _name(system, "").rstrip("-").replace("-", "_")
        make = Maker(f"measure.peers.{arm}", command)
        paced, full = (turns_of(results, _name(system, kind)) for kind in (PACED, FULL))
        if rates := samples(run["confirmed_per_s"] for run in full):
            what = f"{words}: confirmed as fast as a window of 1000 lets it"
            yield make("rate", what, rates, "messages/s")
        p99s = [run["percentiles_ms"].get("confirm", {}).get("p99") for run in trusted(paced)]
        if known := samples(p99s):
            rate = paced[0]["profile"]["load"]["schedule"]["rate_per_s"]
            yield make(
                "confirm_p99_ms", f"{words}: p99 until confirmed, at {rate:g}/s", known, "ms"
            )
