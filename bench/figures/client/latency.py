"""The latency that our client adds over pika's own adapter, directly and through HAProxy.

One process publishes and consumes, at a rate that leaves it idle time. Latencies count from a message's
intended time. All clients have the same event loop, asyncio's own, and take turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bench.errors import BenchError
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.full_speed import Turns, direct_task, interleaved, purge
from bench.figures.groups import Group, Setup, repeat_command
from bench.harness.turn import Task

NAME = "client.latency"
RATE_PER_S = 3_000.0
SECONDS, WARM_UP_S = 10.0, 2.0
WINDOW = 1000
# The fraction of the rate to reach: a turn ends with the last confirm, somewhat after its schedule.
KEPT_UP = 0.97
GOAL_ADDED_PERCENT = 5.0
WORDS = {
    "ours": "ours",
    "pika": "pika's asynchronous adapter by hand",
    "haproxy": "ours through HAProxy",
}
ENDS = {"confirm": "confirm", "delivery": "delivery to a consumer"}


def _latency(setup: Setup) -> Iterator[Figure]:
    task = direct_task(setup)
    tasks = latency_tasks(task, setup, setup.cluster.broker)
    turns = interleaved(setup, tasks, lambda _name, _task: purge(setup, task))
    yield from latency_figures(turns, repeat_command(NAME, setup.repeat))


def latency_tasks(task: Task, setup: Setup, haproxy: str) -> dict[str, Task]:
    paced = replace(
        task,
        verb="latency",
        rate_per_s=RATE_PER_S,
        messages=setup.part(int(RATE_PER_S * SECONDS)),
        warm_up=setup.part(int(RATE_PER_S * WARM_UP_S)),
        window=WINDOW,
    )
    return {
        "ours": paced,
        "pika": replace(paced, system="pika"),
        "haproxy": replace(paced, env={**task.env, "MESSAGEBUS_BROKER": haproxy}),
    }


def latency_figures(turns: Turns, repeat: str) -> Iterator[Figure]:
    """Make the figures. Raises BenchError when a client did not keep up: that is no latency at light load."""
    for name, each in turns.items():
        if behind := [turn.rate_per_s for turn in each if turn.rate_per_s < KEPT_UP * RATE_PER_S]:
            raise BenchError(
                f"{name} came to {min(behind):,.0f} of {RATE_PER_S:,.0f}/s: the machine is too busy"
            )
    make = Maker(NAME, repeat)
    for end, words in ENDS.items():
        said = f"Latency until {words} at {RATE_PER_S:,.0f}/s of 1 KB"
        for name, client in WORDS.items():
            if name != "pika":
                what = f"{said}, {client}: median, more than {WORDS['pika']} directly"
                goal = (at_most, GOAL_ADDED_PERCENT) if name == "ours" else None
                added = added_percent(turns, name, end)
                yield make(f"{end}.{name}_added_p50", what, added, "%", goal)
            for percentile in ("p50", "p99.9"):
                id, what = f"{end}.{name}_{percentile.replace('.', '_')}_ms", f"{percentile[1:]} %"
                found = [turn.percentiles_ms[end][percentile] for turn in turns[name]]
                yield make(id, f"{said}, {client}: {what}", found, "ms")


def added_percent(turns: Turns, name: str, end: str) -> list[float]:
    """Return by how many per cent the median is above pika's, within each repetition."""
    pairs = zip(turns[name], turns["pika"], strict=True)
    return [
        (a.percentiles_ms[end]["p50"] / b.percentiles_ms[end]["p50"] - 1) * 100 for a, b in pairs
    ]


GROUP = Group(NAME, 1, "one broker directly, no HAProxy, but in figures named haproxy", _latency)
