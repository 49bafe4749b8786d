"""Workloads of several lines: the latency matrix, and fan-in over more and more brokers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.analysis.result import numbers_of
from bench.analysis.series import Step, in_rounds, middle, samples, trusted, turns_of
from bench.analysis.summary import Summary, faults_of
from bench.figures.form import Figure, Maker
from bench.load.profile import Profile
from reports.page import Bar
from reports.text import significant

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
