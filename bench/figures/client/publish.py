"""Safe publishing of 1 KB to a quorum queue at one broker, beside all peers that can do the same.

Every client publishes persistent, mandatory messages with an id of their own to the same exchange, from
one process, without HAProxy, and counts a message when its confirm has arrived.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import Any

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
)
from bench.harness.loop import best_loop
from bench.systems import perf_test
from bench.systems.turn import Task

__all__ = ["GROUP", "cases_of", "figures_of"]

NAME = "client.publish"
WINDOWS = (1000, 50)
# A turn lasts some 2 s: long against the window, short against changes of the machine's load.
OURS, PIKA, AIO_PIKA, ONE_BY_ONE = 60_000, 40_000, 15_000, 2_500
AIO_PIKA_WINDOW = 500
PERF_TEST_S = 8.0
# Our way to publish -> the part of the ids after the window.
WAYS = {"submit": "", "send_many": "send_many."}
CPU_GOALS_US = {1000: 4.0, 50: 6.0}
# Peer -> window -> the wanted ratio of our rate to the peer's.
RATIO_GOALS: dict[str, dict[int, float]] = {
    "perf_test": {1000: 1.0, 50: 1.0},
    "pika_async": {50: 1.5},
    "pika_blocking": {1000: 20.0},
    "aio_pika": {1000: 8.0},
    "kombu": {},
}
# Peers with a window of their own, independent of ours.
OF_ANY_WINDOW = {
    "aio_pika": f"aio-pika, window {AIO_PIKA_WINDOW}",
    "pika_blocking": "pika's BlockingConnection, one by one",
    "kombu": "kombu with confirms, one by one",
}
OF_EACH_WINDOW = {"pika_async": "pika's asynchronous adapter by hand", "perf_test": "Java PerfTest"}


def publish_figures(scene: Scene) -> Iterator[Figure]:
    task = direct_task(scene)
    java = perf_test.is_ready(scene.say)
    cases = [case for case in cases_of(task, scene) if java or case.system != "perf_test"]
    turns = interleaved(scene, cases, lambda case: purge(scene, task))
    purge(scene, task)
    yield from figures_of(turns, repeat_command(NAME, scene.repeat))


def cases_of(task: Task, scene: Scene) -> list[Case]:
    """Return our clients and the peers, in the order of the first repetition."""

    def case(name: str, system: str, messages: int, **options: Any) -> Case:
        return Case(name, system, dataclasses.replace(sized(task, scene, messages), **options))

    loop = best_loop()
    found: list[Case] = []
    for window in WINDOWS:
        found += [
            case(f"w{window}.{way}", "ours_async", OURS, window=window, way=way, loop=loop)
            for way in WAYS
        ]
        found.append(case(f"w{window}.blocking", "ours_blocking", OURS, window=window))
        found.append(case(f"w{window}.pika_async", "pika_async", PIKA, window=window))
        found.append(
            case(
                f"w{window}.perf_test",
                "perf_test",
                OURS,
                window=window,
                seconds=2.0 if scene.quick else PERF_TEST_S,
            )
        )
    found.append(case("aio_pika", "aio_pika_client", AIO_PIKA, window=AIO_PIKA_WINDOW, loop=loop))
    found.append(case("pika_blocking", "pika_blocking", ONE_BY_ONE))
    found.append(case("kombu", "kombu_client", ONE_BY_ONE))
    return found


def figures_of(turns: Turns, repeat: str) -> Iterator[Figure]:
    """Make the figures: rates, CPU time, and the ratios to each peer within each repetition."""
    for window in WINDOWS:
        for way, infix in WAYS.items():
            yield from _ours(turns, window, way, f"{NAME}.w{window}.{infix}", repeat)
        blocking, case = f"{NAME}.w{window}.blocking", f"w{window}.blocking"
        what = f"Safe publishes of 1 KB, window {window}, blocking submit"
        yield from rate_and_cpu(turns, case, id=f"{blocking}_", what=what, repeat=repeat)
        for peer, what in OF_EACH_WINDOW.items():
            if (case := f"w{window}.{peer}") in turns:
                id, what = f"{NAME}.w{window}.{peer}_", f"{what}, window {window}"
                yield from rate_and_cpu(turns, case, id=id, what=what, repeat=repeat)
    for peer, what in OF_ANY_WINDOW.items():
        yield from rate_and_cpu(turns, peer, id=f"{NAME}.{peer}_", what=what, repeat=repeat)


def _ours(turns: Turns, window: int, way: str, prefix: str, repeat: str) -> Iterator[Figure]:
    case = f"w{window}.{way}"
    what = f"Safe publishes of 1 KB, window {window}, AsyncPublisher.{way}"
    cpu_goal = partial(at_most, CPU_GOALS_US[window], unit="us")
    yield from rate_and_cpu(turns, case, id=prefix, what=what, repeat=repeat, cpu_goal=cpu_goal)
    for peer, goals in RATIO_GOALS.items():
        other = peer if peer in OF_ANY_WINDOW else f"w{window}.{peer}"
        if other not in turns:
            continue
        goal = goals.get(window)
        told = OF_ANY_WINDOW.get(peer) or f"{OF_EACH_WINDOW[peer]} at the same window"
        yield median_of(
            ratios(turns, case, other),
            id=f"{prefix}ratio_{peer}",
            what=f"{what}: how many times as fast as {told}",
            unit="times",
            repeat=repeat,
            goal=partial(at_least, goal, unit="times") if goal else no_goal,
        )


GROUP = Group(NAME, 1, "one broker directly, no HAProxy", publish_figures)
