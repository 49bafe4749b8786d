"""Clients that take turns: each turn in a fresh process, all of them once per repetition, interleaved.

Whatever else the machine does meets all of them alike, so a ratio is taken within each repetition,
and its median over the repetitions is what is told.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.errors import BenchError
from bench.figures.crew import CHECKOUT
from bench.figures.form import Figure, Goal, median_of, no_goal
from bench.figures.scene import Scene
from bench.systems.turn import TURN_WITHIN_S, Task, Turn
from messagebus import BusConfig, declare

__all__ = [
    "SUBSCRIPTION",
    "TOPIC",
    "Case",
    "Turns",
    "direct_task",
    "interleaved",
    "purge",
    "rate_and_cpu",
    "ratios",
    "sized",
    "take_turn",
]

TOPIC, SUBSCRIPTION = "figures", "sink"
# Of the messages of a turn; the least of both when it is a quick one.
WARM_UP_PART = 0.1
WARM_UP_LEAST, QUICK_LEAST = 100, 500
PROCESS_WITHIN_S = TURN_WITHIN_S + 60.0

Turns = Mapping[str, Sequence[Turn]]
"""Case -> its turns, one per repetition, in order."""


@dataclass(frozen=True, slots=True)
class Case:
    """One client with its task. name: in the ids of figures. what: in their words."""

    name: str
    system: str
    task: Task
    what: str = ""


def direct_task(scene: Scene, topic: str = TOPIC, subscription: str = SUBSCRIPTION) -> Task:
    """At the first broker itself: neither HAProxy nor another broker in the path."""
    cluster = scene.cluster
    node = cluster.node(cluster.names[0])
    env = cluster.client_env()
    declare(BusConfig.from_env(env), [f"{topic}/{subscription}"])
    return Task(
        verb="publish",
        broker=node.broker,
        list_url=f"http://{node.agent}/consumer-list",
        user=env["MESSAGEBUS_USER"],
        password_file=env["MESSAGEBUS_PASSWORD_FILE"],
        topic=topic,
        subscription=subscription,
    )


def interleaved(
    scene: Scene, cases: Sequence[Case], prepare: Callable[[Case], None]
) -> dict[str, list[Turn]]:
    """Every case once per repetition, each time beginning with another one."""
    found: dict[str, list[Turn]] = {case.name: [] for case in cases}
    for number in range(scene.repeat):
        start = number % len(cases)
        for case in [*cases[start:], *cases[:start]]:
            prepare(case)
            turn = take_turn(case)
            found[case.name].append(turn)
            scene.say(
                f"repetition {number + 1} of {scene.repeat}, {case.name}: "
                f"{turn.rate_per_s:,.0f}/s, {turn.cpu_us:.1f} us of CPU a message"
            )
    return found


def take_turn(case: Case) -> Turn:
    """In a fresh process of the same interpreter. Raises BenchError with what it said last."""
    argv = [sys.executable, "-m", "bench.systems", case.system, case.task.to_json()]
    try:
        done = subprocess.run(
            argv,
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=PROCESS_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{case.name}: no end within {PROCESS_WITHIN_S:.0f} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise BenchError(f"{case.name}: {said[-1]}")
    return Turn.from_json(done.stdout.strip().splitlines()[-1])


def purge(scene: Scene, task: Task) -> None:
    """Empty the queue, so that none grows from turn to turn."""
    queue = task.queue.replace("/", "%2F")
    for name in scene.cluster.names:
        with scene.cluster.management(name) as management:
            management.delete(f"/api/queues/%2F/{queue}/contents").raise_for_status()


def ratios(
    turns: Turns, name: str, other: str, of: Callable[[Turn], float] = lambda t: t.rate_per_s
) -> list[float]:
    """Of two cases, within each repetition."""
    return [of(a) / of(b) for a, b in zip(turns[name], turns[other], strict=True)]


def sized(task: Task, scene: Scene, messages: int) -> Task:
    """With so many messages, fewer in a quick run, and a warm-up of a tenth of them."""
    count = scene.part(messages, QUICK_LEAST)
    warm_up = max(WARM_UP_LEAST, int(count * WARM_UP_PART))
    return dataclasses.replace(task, messages=count, warm_up=warm_up)


def rate_and_cpu(
    turns: Turns,
    case: str,
    *,
    id: str,
    what: str,
    repeat: str,
    rate_goal: Goal = no_goal,
    cpu_goal: Goal = no_goal,
) -> Iterator[Figure]:
    """Two figures of one case, whose ids are completed by ``rate`` and ``cpu_us``."""
    yield median_of(
        [turn.rate_per_s for turn in turns[case]],
        id=f"{id}rate",
        what=what,
        unit="messages/s",
        repeat=repeat,
        goal=rate_goal,
    )
    yield median_of(
        [turn.cpu_us for turn in turns[case]],
        id=f"{id}cpu_us",
        what=f"{what}: CPU time of the client process per message",
        unit="us",
        repeat=repeat,
        goal=cpu_goal,
    )
