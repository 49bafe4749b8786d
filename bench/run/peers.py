"""The same two loads on other systems beside ours: what a confirm means stands in every line.

First a paced one, for latencies, which warms up what is in Java; then as fast as a window lets it go, on
the same start of the system.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.figures.form import Figure
from bench.run.compare import numbers_of
from bench.run.lines import NONE, shorter
from bench.run.profile import Profile, System
from bench.run.schedule import Closed
from bench.run.series import Step
from bench.run.systems import SYSTEMS
from bench.run.told import Bar, Told, faults_of

__all__ = ["ARMS", "figures", "steps", "told"]

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


def steps(paced: Profile, full: Profile, part: int = 1) -> list[Step]:
    """part: 10 does a tenth."""
    assert isinstance(full.load.schedule, Closed)
    fewer = Closed(count=max(1, full.load.schedule.count // part))
    full = dataclasses.replace(full, load=dataclasses.replace(full.load, schedule=fewer))
    paced = shorter(paced, part)
    return [
        Step(_name(system, kind), dataclasses.replace(base, system=system))
        for system in ARMS
        for kind, base in ((PACED, _alone(paced, system)), (FULL, full))
        if kind == PACED or not SYSTEMS[system.name].own_load
    ]


def _alone(paced: Profile, system: System) -> Profile:
    """Kafka's own tool publishes, and nothing else."""
    if system.name != "kafka-java":
        return paced
    return dataclasses.replace(paced, load=dataclasses.replace(paced.load, consumers=0))


def _name(system: System, kind: str) -> str:
    return f"{system.name}-{system.brokers}-{system.durability}-{kind}"


def told(results: Mapping[str, Mapping[str, Any]]) -> Told:
    rows: list[Sequence[str]] = []
    bars = []
    for system in ARMS:
        paced, full = (results.get(_name(system, kind)) for kind in (PACED, FULL))
        if paced is None:
            continue
        synced = "yes" if system.durability == "fsync" else "no"
        rows.append((system.name, str(system.brokers), synced, *_rates(full), *_latencies(paced)))
        if full is not None:
            rate = numbers_of(full)["confirmed a second"]
            name = f"{system.name}, {system.brokers}, {system.durability}"
            bars.append(Bar(name, rate, _told(rate), 0 if synced == "yes" else 1))
    meant = {
        f"{system.name}, {system.brokers} nodes, {system.durability}": str(run["durability"])
        for system in ARMS
        if (run := results.get(_name(system, PACED))) is not None
    }
    return Told(
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


def _rates(full: Mapping[str, Any] | None) -> list[str]:
    if full is None:
        return [NONE] * 4
    found = numbers_of(full)
    names = ("confirmed a second", "delivered a second", "client CPU us", "broker CPU us")
    return [_told(found.get(name)) for name in names]


def _latencies(paced: Mapping[str, Any]) -> list[str]:
    own = paced["percentiles_ms"]
    confirm = own.get("confirm") or own.get("service", {})
    arrived = own.get("delivery") or own.get("sent to received", {})
    return [_told(of.get(name)) for of in (confirm, arrived) for name in ("p50", "p99")]


def _told(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def figures(results: Mapping[str, Mapping[str, Any]], command: str) -> Iterator[Figure]:
    for system in ARMS:
        words = f"{system.name}, {system.brokers} nodes, {system.durability}"
        prefix = "measure.peers." + _name(system, "").rstrip("-").replace("-", "_")
        if (run := results.get(_name(system, FULL))) is not None:
            yield Figure(
                id=f"{prefix}.rate",
                what=f"{words}: confirmed as fast as a window of 1000 lets it",
                value=float(run["confirmed_per_s"]),
                unit="messages/s",
                repeat=command,
            )
        paced = results.get(_name(system, PACED), {})
        if (p99 := paced.get("percentiles_ms", {}).get("confirm", {}).get("p99")) is not None:
            rate = paced["profile"]["load"]["schedule"]["rate_per_s"]
            yield Figure(
                id=f"{prefix}.confirm_p99_ms",
                what=f"{words}: p99 until confirmed, at {rate:g}/s",
                value=float(p99),
                unit="ms",
                repeat=command,
            )
