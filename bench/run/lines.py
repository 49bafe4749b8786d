"""Workloads of several lines: the latency matrix, and fan-in over more and more brokers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.figures.form import Figure
from bench.run.compare import numbers_of
from bench.run.profile import Profile
from bench.run.series import Step
from bench.run.told import Bar, Told, faults_of

__all__ = [
    "MATRIX",
    "NONE",
    "fan_in_figures",
    "fan_in_steps",
    "fan_in_told",
    "matrix_figures",
    "matrix_steps",
    "matrix_told",
    "shorter",
]

MATRIX = ("latency-256", "latency-1024", "latency-5120", "latency-1024-25", "latency-1048576")
SHOWN = ("p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "p100")
FAN_IN = (1, 2, 4, 8)
LEAST_S = 5.0
NONE = "\N{EN DASH}"


def shorter(profile: Profile, part: int) -> Profile:
    """Measured for a part of its time only; 10: a tenth, at least some seconds."""
    time = profile.time
    measured_s = max(min(time.measured_s, LEAST_S), time.measured_s / part)
    warm_up_s = min(time.warm_up_s, measured_s)
    return dataclasses.replace(
        profile, time=dataclasses.replace(time, measured_s=measured_s, warm_up_s=warm_up_s)
    )


def matrix_steps(profiles: Iterable[Profile], part: int = 1) -> list[Step]:
    return [Step(each.name, shorter(each, part)) for each in profiles]


def matrix_told(results: Mapping[str, Mapping[str, Any]]) -> Told:
    """Corrected: from the intended time. Uncorrected: from the sending, as most tools have it."""
    rows: list[Sequence[str]] = []
    bars: list[Bar] = []
    for name, result in results.items():
        for measure, words in (
            ("confirm", "corrected"),
            ("service", "uncorrected"),
            ("delivery", "end to end"),
        ):
            found = result["percentiles_ms"].get(measure, {})
            rows.append(
                (
                    name if measure == "confirm" else "",
                    words,
                    f"{result['confirmed_per_s']:,.0f}" if measure == "confirm" else "",
                    f"{found.get('samples', 0):,.0f}",
                    *(f"{found[each]:,.3g}" if each in found else NONE for each in SHOWN),
                )
            )
            if "p99" in found:
                shown = f"{found['p99']:,.3g} ms"
                bars.append(Bar(f"{name}, {words}", found["p99"], shown, len(bars) % 3))
    return Told(
        head=("", "ms", "confirmed/s", "samples", *SHOWN),
        rows=rows,
        left=2,
        bars_title="99 of 100 messages took no longer",
        bars=bars,
        notes=["Corrected: from the intended time. Uncorrected: from the sending."],
        faults=faults_of(results),
    )


def matrix_figures(results: Mapping[str, Mapping[str, Any]], command: str) -> Iterator[Figure]:
    for name, result in results.items():
        for measure, words in (
            ("confirm", "from the intended time"),
            ("service", "from the sending"),
        ):
            found = result["percentiles_ms"].get(measure, {})
            for each in ("p50", "p99", "p99.9"):
                if each in found:
                    yield Figure(
                        id=f"measure.latency_matrix.{name.removeprefix('latency-')}.{measure}_{each}_ms",
                        what=f"Latency matrix, {name}: {each} until confirmed, {words}",
                        value=found[each],
                        unit="ms",
                        repeat=command,
                    )


def fan_in_steps(base: Profile, part: int = 1) -> list[Step]:
    """The same load on more and more brokers."""
    base = shorter(base, part)
    return [
        Step(
            f"{brokers}-brokers",
            dataclasses.replace(base, system=dataclasses.replace(base.system, brokers=brokers)),
        )
        for brokers in FAN_IN
    ]


def fan_in_told(results: Mapping[str, Mapping[str, Any]]) -> Told:
    rows: list[Sequence[str]] = []
    bars: list[Bar] = []
    for name, result in results.items():
        found = numbers_of(result)
        cells = [f"{found.get(each, 0):,.3g}" for each in ("client CPU us", "broker CPU us")]
        cells += [f"{found.get(each, 0):,.3g}" for each in ("confirm p50", "confirm p99")]
        brokers = name.partition("-")[0]
        rows.append((brokers, f"{found['confirmed a second']:,.0f}", *cells))
        for look, part in enumerate(("client CPU us", "broker CPU us")):
            if part in found:
                bars.append(
                    Bar(
                        f"{brokers} brokers, {part[:6]}",
                        found[part],
                        f"{found[part]:,.3g} µs",
                        look,
                    )
                )
    note = (
        "CPU us: of a message, of all clients and of all brokers together. A broker at rest costs CPU too, "
        "which the same few messages have to bear."
    )
    return Told(
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
    for name, result in results.items():
        brokers, found = name.partition("-")[0], numbers_of(result)
        rate = result["profile"]["load"]["schedule"]["rate_per_s"]
        for part, words in (("client", "client CPU us"), ("broker", "broker CPU us")):
            if words in found:
                yield Figure(
                    id=f"measure.fan_in.{brokers}_brokers.{part}_cpu_us",
                    what=f"Fan-in, {rate:g}/s over {brokers} brokers: {part} CPU of a message",
                    value=found[words],
                    unit="us",
                    repeat=command,
                )
