"""The latency that our client adds over pika's own adapter, at a rate that leaves both idle time.

One process publishes and consumes; the same messages, the same broker, the same event loop (asyncio's own),
in pairs. Latencies count from a message's intended time. Both clients wait for that time by a timer of the
kernel, because event loops round waits up by different amounts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial

from hdrh.histogram import HdrHistogram

from bench.errors import BenchError
from bench.figures.form import Figure, at_most, median_of, no_goal
from bench.figures.scene import (
    Case,
    Group,
    Scene,
    Turns,
    direct_task,
    interleaved,
    purge,
    repeat_command,
)
from bench.systems.turn import Task, Turn

__all__ = ["GROUP", "added_percent", "cases_of", "figures_of", "percentile_us"]

NAME = "client.latency"
RATE_PER_S = 3_000.0
SECONDS, WARM_UP_S = 10.0, 2.0
WINDOW = 1000
# The fraction of the rate to reach: a turn ends with the last delivery, somewhat after its schedule.
KEPT_UP = 0.97
GOAL_ADDED_PERCENT = 5.0
WORDS = {
    "ours": "ours",
    "pika": "pika's asynchronous adapter by hand",
    "haproxy": "ours through HAProxy",
}
ENDS = {"confirm": "confirm", "delivery": "delivery to a consumer"}


def latency_figures(scene: Scene) -> Iterator[Figure]:
    task = direct_task(scene)
    cases = cases_of(task, scene, scene.cluster.broker)
    turns = interleaved(scene, cases, lambda case: purge(scene, task))
    yield from figures_of(turns, repeat_command(NAME, scene.repeat))


def cases_of(task: Task, scene: Scene, haproxy: str) -> list[Case]:
    paced = dataclasses.replace(
        task,
        verb="latency",
        rate_per_s=RATE_PER_S,
        messages=scene.part(int(RATE_PER_S * SECONDS)),
        warm_up=scene.part(int(RATE_PER_S * WARM_UP_S)),
        window=WINDOW,
    )
    return [
        Case("ours", "ours_async", paced),
        Case("pika", "pika_async", paced),
        Case("haproxy", "ours_async", dataclasses.replace(paced, broker=haproxy)),
    ]


def figures_of(turns: Turns, repeat: str) -> Iterator[Figure]:
    """Make the figures. Raises BenchError when a client did not keep up: that is no latency at light load."""
    for case, each in turns.items():
        if behind := [turn.rate_per_s for turn in each if turn.rate_per_s < KEPT_UP * RATE_PER_S]:
            raise BenchError(
                f"{case} came to {min(behind):,.0f} of {RATE_PER_S:,.0f}/s: the machine is too busy"
            )
    for end, words in ENDS.items():
        for case in ("ours", "haproxy"):
            yield median_of(
                [
                    added_percent(a, b, end, 50)
                    for a, b in zip(turns[case], turns["pika"], strict=True)
                ],
                id=f"{NAME}.{end}.{case}_added_p50",
                what=f"Latency until {words} at {RATE_PER_S:,.0f}/s of 1 KB, {WORDS[case]}: median, "
                f"more than {WORDS['pika']} directly",
                unit="%",
                repeat=repeat,
                goal=partial(at_most, GOAL_ADDED_PERCENT, unit="%") if case == "ours" else no_goal,
            )
        for case, client in WORDS.items():
            for name, percent in (("p50", 50.0), ("p99_9", 99.9)):
                yield median_of(
                    [percentile_us(turn, end, percent) / 1000 for turn in turns[case]],
                    id=f"{NAME}.{end}.{case}_{name}_ms",
                    what=f"Latency until {words} at {RATE_PER_S:,.0f}/s of 1 KB, {client}: "
                    f"{percent:g} %",
                    unit="ms",
                    repeat=repeat,
                )


def percentile_us(turn: Turn, end: str, percent: float) -> float:
    histogram = HdrHistogram.decode(turn.histograms[end])
    return float(histogram.get_value_at_percentile(percent))


def added_percent(ours: Turn, other: Turn, end: str, percent: float) -> float:
    """Return by how many per cent ours is above the other at that percentile."""
    return (percentile_us(ours, end, percent) / percentile_us(other, end, percent) - 1) * 100


GROUP = Group(
    NAME, 1, "one broker directly, no HAProxy, but in figures named haproxy", latency_figures
)
