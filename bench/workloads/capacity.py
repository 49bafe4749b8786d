"""The grid of runs that a capacity model is fitted from: sizes, fan-outs, rates, durabilities on one broker.

``python -m spark capacity`` reads the folders of these runs. CPU time of a message counts, not the rate: so
the runs may be slow, and the machine need not be quiet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from bench.analysis.result import numbers_of
from bench.analysis.series import Step, in_rounds, middle, samples, turns_of
from bench.analysis.summary import Summary, faults_of
from bench.figures.form import Figure, Maker
from bench.harness.sampling import CPU_LEAST_S
from bench.load.profile import Profile
from bench.load.schedule import Constant
from reports.page import Bar
from reports.text import significant

DURABILITIES = ("fsync", "page-cache")
# Bytes, subscriptions, messages a second. Two rates tell the cost of a broker at rest from that of messages.
GRID = (
    *((100, 1, 1000), (100, 1, 300), (100, 2, 900), (100, 4, 500)),
    *((1_000, 1, 1000), (2_000, 2, 300), (2_000, 4, 500), (4_000, 1, 600)),
    *((8_000, 3, 300), (16_000, 1, 300), (16_000, 2, 500), (16_000, 4, 200)),
)


def steps(base: Profile, repeat: int = 1, part: int = 1) -> list[Step]:
    """Return the runs of the grid. part: a broker's CPU time needs some seconds, however short they are."""
    time = base.time
    measured_s = max(CPU_LEAST_S, float(round(time.measured_s / part)))
    base = dataclasses.replace(base, time=dataclasses.replace(time, measured_s=measured_s))
    return [
        step
        for durability in DURABILITIES  # the runs of one share a start of the broker
        for step in in_rounds([_step(base, durability, *each) for each in GRID], repeat)
    ]


def _step(base: Profile, durability: str, size: int, fan_out: int, rate: int) -> Step:
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
    return Step(_name(durability, size, fan_out, rate), profile)


def _name(durability: str, size: int, fan_out: int, rate: int) -> str:
    return f"{durability}-{size}-x{fan_out}-{rate}"


def told(results: Mapping[str, Mapping[str, Any]]) -> Summary:
    """Summarize the medians of all turns."""
    rows: list[list[str]] = []
    bars: list[Bar] = []
    for number, durability in enumerate(DURABILITIES):
        for each in GRID:
            name = _name(durability, *each)
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


def figures(results: Mapping[str, Mapping[str, Any]], command: str) -> Iterator[Figure]:
    for durability in DURABILITIES:
        for size, fan_out, rate in GRID:
            turns = turns_of(results, _name(durability, size, fan_out, rate))
            if values := samples(numbers_of(turn).get("broker CPU us") for turn in turns):
                id = f"{durability}.{size}_x{fan_out}_{rate}.broker_cpu_us"
                what = f"{size:,} B to {fan_out} at {rate}/s, {durability}: broker CPU of a message"
                yield Maker("measure.capacity", command)(id, what, values, "us")
