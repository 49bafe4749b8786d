"""The costs of `run` and the decorator, against a loop over the same consumer that does the same work.

Before each turn the queue is filled. The difference is taken within each repetition.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from functools import partial

from bench.figures.form import Figure, Goal, at_most, median_of, no_goal
from bench.figures.scene import (
    Case,
    Group,
    Scene,
    Turns,
    direct_task,
    interleaved,
    purge,
    rate_and_cpu,
    repeat_command,
    sized,
)
from bench.harness.loop import best_loop
from bench.systems.ours_app import fill
from bench.systems.turn import Task

__all__ = ["GROUP", "cases_of", "figures_of"]

NAME = "comfort.handlers"
SYSTEM = "ours_app"
WINDOW = 1000
MESSAGES = 60_000
PLAIN = "receive"
WORDS = {
    "run": "AsyncConsumer.run with a coroutine function",
    "run_threads": "AsyncConsumer.run with a plain function in a thread",
    "app": "@app.subscriber, the payload as bytes",
    "app_typed": "@app.subscriber, 1 KB of JSON as a dataclass",
    "run_otel": "AsyncConsumer.run with OpenTelemetry on, every message traced",
    "run_otel_few": "AsyncConsumer.run with OpenTelemetry on, one message in a hundred traced",
    "app_otel": "@app.subscriber with OpenTelemetry on, every message traced",
}
GOALS_US = {"run": 3.0, "app": 10.0, "run_otel": 30.0, "run_otel_few": 30.0}


def handlers_figures(scene: Scene) -> Iterator[Figure]:
    task = direct_task(scene)

    def prepare(case: Case) -> None:
        purge(scene, task)
        asyncio.run(fill(case.task, case.task.messages + case.task.warm_up))

    turns = interleaved(scene, cases_of(task, scene), prepare)
    purge(scene, task)
    yield from figures_of(turns, repeat_command(NAME, scene.repeat))


def cases_of(task: Task, scene: Scene) -> list[Case]:
    consuming = dataclasses.replace(task, verb="consume", window=WINDOW, loop=best_loop())
    made = sized(consuming, scene, MESSAGES)
    return [Case(way, SYSTEM, dataclasses.replace(made, way=way)) for way in (PLAIN, *WORDS)]


def figures_of(turns: Turns, repeat: str) -> Iterator[Figure]:
    what = "Received and acked, 1 KB, a loop over AsyncConsumer"
    yield from rate_and_cpu(turns, PLAIN, id=f"{NAME}.{PLAIN}_", what=what, repeat=repeat)
    for way, words in WORDS.items():
        yield from rate_and_cpu(turns, way, id=f"{NAME}.{way}_", what=words, repeat=repeat)
        yield median_of(
            more_us(turns, way),
            id=f"{NAME}.{way}_more_us",
            what=f"{words}: CPU time on top of the loop, per message",
            unit="us",
            repeat=repeat,
            goal=_goal(way),
        )


def more_us(turns: Turns, way: str) -> list[float]:
    """Return the additional CPU time over the loop, within each repetition."""
    return [a.cpu_us - b.cpu_us for a, b in zip(turns[way], turns[PLAIN], strict=True)]


def _goal(way: str) -> Goal:
    return partial(at_most, GOALS_US[way], unit="us") if way in GOALS_US else no_goal


GROUP = Group(NAME, 1, "one broker directly, no HAProxy", handlers_figures)
