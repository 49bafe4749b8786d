"""`Publisher.send_safe` from several threads at once: they share one window."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial

from bench.figures.form import Figure, at_least, median_of
from bench.figures.scene import (
    Case,
    Group,
    Scene,
    Turns,
    direct_task,
    interleaved,
    purge,
    rate_and_cpu,
    ratios,
    repeat_command,
    sized,
)
from bench.systems.turn import Task

__all__ = ["GROUP", "cases_of", "figures_of"]

NAME = "client.threads"
# Threads -> messages of a turn, summed over all of them.
THREADS = {1: 2_500, 8: 10_000, 64: 30_000}
WINDOW = 1000
GOAL_RATIO = 5.0


def threads_figures(scene: Scene) -> Iterator[Figure]:
    task = direct_task(scene)
    turns = interleaved(scene, cases_of(task, scene), lambda case: purge(scene, task))
    purge(scene, task)
    yield from figures_of(turns, repeat_command(NAME, scene.repeat))


def cases_of(task: Task, scene: Scene) -> list[Case]:
    sending = dataclasses.replace(task, way="send_safe", window=WINDOW)
    return [
        Case(
            str(threads),
            "ours_blocking",
            dataclasses.replace(sized(sending, scene, count), threads=threads),
        )
        for threads, count in THREADS.items()
    ]


def figures_of(turns: Turns, repeat: str) -> Iterator[Figure]:
    for threads in THREADS:
        word = "one thread" if threads == 1 else f"{threads} threads"
        yield from rate_and_cpu(
            turns,
            str(threads),
            id=f"{NAME}.{threads}.",
            what=f"Publisher.send_safe of 1 KB from {word}",
            repeat=repeat,
        )
    for threads in (8, 64):
        wanted = {"goal": partial(at_least, GOAL_RATIO, unit="times")} if threads == 64 else {}
        yield median_of(
            ratios(turns, str(threads), "1"),
            id=f"{NAME}.{threads}.ratio",
            what=f"Publisher.send_safe: {threads} threads, how many times as fast as one",
            unit="times",
            repeat=repeat,
            **wanted,
        )


GROUP = Group(NAME, 1, "one broker directly, no HAProxy", threads_figures)
