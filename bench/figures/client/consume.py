"""Receiving and acknowledging messages of 1 KB from a quorum queue at one broker, beside the peers.

Before each turn the queue is filled with the messages of the turn. Every client notes each id. Ours acks
each delivery by itself and sends the acks together. The peers answer a hundred at once where their
interface allows it; aio-pika has no other way than to answer each by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial

from bench.figures.form import Figure, at_least, at_most, median_of, no_goal
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
    take_turn,
)
from bench.harness.loop import best_loop
from bench.systems import perf_test
from bench.systems.turn import Task

__all__ = ["GROUP", "cases_of", "figures_of", "fill"]

NAME = "client.consume"
WINDOW = 1000
# The window of the publisher that fills the queue with batches.
FILL_BATCHES = 50
# PerfTest runs for a given time; its number makes the queue last for some seconds after its warm-up.
MESSAGES = {
    "ours": 100_000,
    "many": 100_000,
    "blocking": 100_000,
    "blocking_many": 100_000,
    "pika_async": 60_000,
    "aio_pika": 20_000,
}
PERF_TEST_MESSAGES, PERF_TEST_S = 400_000, 6.0
CPU_GOAL_US = 5.0
RATIO_GOALS = {"pika_async": 2.0, "aio_pika": 5.0, "perf_test": 1.0}
WORDS = {
    "ours": "Received and acked, 1 KB, AsyncConsumer",
    "many": "Received and acked, 1 KB, AsyncConsumer.receive_many",
    "blocking": "Received and acked, 1 KB, blocking Consumer",
    "blocking_many": "Received and acked, 1 KB, blocking Consumer.receive_many",
    "pika_async": "pika's asynchronous adapter by hand",
    "aio_pika": "aio-pika",
    "perf_test": "Java PerfTest",
}


def consume_figures(scene: Scene) -> Iterator[Figure]:
    task = direct_task(scene)
    java = perf_test.is_ready(scene.say)
    cases = [case for case in cases_of(task, scene) if java or case.system != "perf_test"]
    turns = interleaved(scene, cases, lambda case: fill(scene, case.task))
    purge(scene, task)
    yield from figures_of(turns, repeat_command(NAME, scene.repeat))


def cases_of(task: Task, scene: Scene) -> list[Case]:
    consuming = dataclasses.replace(task, verb="consume", window=WINDOW)
    systems = {
        "ours": "ours_async",
        "many": "ours_async",
        "blocking": "ours_blocking",
        "blocking_many": "ours_blocking",
        "pika_async": "pika_async",
        "aio_pika": "aio_pika_client",
    }
    loops = dict.fromkeys(("ours", "many", "aio_pika"), best_loop())
    found = [
        Case(
            name,
            system,
            dataclasses.replace(
                sized(consuming, scene, MESSAGES[name]),
                loop=loops.get(name, "asyncio"),
                way="receive_many" if name.endswith("many") else "",
            ),
        )
        for name, system in systems.items()
    ]
    # Java is not warm before its third second, so a quick run fills the queue with as many messages for it.
    java = dataclasses.replace(
        consuming, messages=PERF_TEST_MESSAGES, warm_up=0, seconds=PERF_TEST_S
    )
    return [*found, Case("perf_test", "perf_test", java)]


def fill(scene: Scene, task: Task) -> None:
    """Fill the queue with exactly the messages of the turn."""
    purge(scene, task)
    publishing = dataclasses.replace(
        task,
        verb="publish",
        window=1000 if task.batch == 1 else FILL_BATCHES,
        way="submit",
        loop=best_loop(),
        messages=task.messages + task.warm_up,
        warm_up=0,
    )
    take_turn(Case("fill", "ours_async", publishing))


def figures_of(turns: Turns, repeat: str) -> Iterator[Figure]:
    for name, what in WORDS.items():
        if name not in turns:
            continue
        goal = partial(at_most, CPU_GOAL_US, unit="us") if name == "ours" else no_goal
        id = f"{NAME}." if name == "ours" else f"{NAME}.{name}_"
        yield from rate_and_cpu(turns, name, id=id, what=what, repeat=repeat, cpu_goal=goal)
    for peer, wanted in RATIO_GOALS.items():
        if peer in turns:
            yield median_of(
                ratios(turns, "ours", peer),
                id=f"{NAME}.ratio_{peer}",
                what=f"{WORDS['ours']}: how many times as fast as {WORDS[peer]}",
                unit="times",
                repeat=repeat,
                goal=partial(at_least, wanted, unit="times"),
            )


GROUP = Group(NAME, 1, "one broker directly, no HAProxy", consume_figures)
