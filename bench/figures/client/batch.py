"""Batches: several messages in one AMQP message, each with its own id, outcome and ack."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial

from bench.figures.client.consume import fill
from bench.figures.form import Figure, Goal, at_least, at_most, median_of, no_goal
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
from bench.systems.turn import Task

__all__ = ["GROUP", "SIZES", "cases_of", "figures_of"]

NAME = "client.batch"
WINDOW = 50
UNBATCHED_WINDOW = 1000
# The batches that a broker may have under way to a consumer.
PREFETCH = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """A size of batches: `batch` messages of body_bytes in one.

    messages, unbatched: messages of a turn. ratio: the wanted ratio of the rates.
    """

    name: str
    batch: int
    body_bytes: int
    messages: int
    unbatched: int
    ratio: float
    rate_goal: Goal = no_goal
    cpu_goal: Goal = no_goal


SIZES = (
    Size(
        name="50x200",
        batch=50,
        body_bytes=200,
        messages=600_000,
        unbatched=60_000,
        ratio=8.0,
        rate_goal=partial(at_least, 200_000.0, unit="messages/s"),
        cpu_goal=partial(at_most, 2.0, unit="us"),
    ),
    Size(name="16x1k", batch=16, body_bytes=1024, messages=150_000, unbatched=60_000, ratio=2.5),
)


def batch_figures(scene: Scene) -> Iterator[Figure]:
    task = direct_task(scene)

    def prepare(case: Case) -> None:
        if case.task.verb == "consume":
            # Fills the queue with messages that end up in full batches.
            fill(scene, case.task)
        else:
            purge(scene, case.task)

    turns = interleaved(scene, cases_of(task, scene), prepare)
    purge(scene, task)
    yield from figures_of(turns, repeat_command(NAME, scene.repeat))


def cases_of(task: Task, scene: Scene) -> list[Case]:
    """Return each size, packed and one by one, published and consumed."""
    found: list[Case] = []
    for size in SIZES:
        common = dataclasses.replace(task, body_bytes=size.body_bytes, loop=best_loop())
        packed = dataclasses.replace(sized(common, scene, size.messages), batch=size.batch)
        single = sized(common, scene, size.unbatched)
        for verb, way, windows in (
            ("publish", "send_many", (WINDOW, UNBATCHED_WINDOW)),
            ("consume", "", (PREFETCH * size.batch, UNBATCHED_WINDOW)),
        ):
            for name, one, window in zip(
                ("", ".unbatched"), (packed, single), windows, strict=True
            ):
                wanted = dataclasses.replace(one, verb=verb, way=way, window=window)
                found.append(Case(f"{verb}.{size.name}{name}", "ours_async", wanted))
    return found


def figures_of(turns: Turns, repeat: str) -> Iterator[Figure]:
    for verb, done in (("publish", "Safe publishes"), ("consume", "Received and acked")):
        for size in SIZES:
            case = f"{verb}.{size.name}"
            what = f"{done} of {size.body_bytes} bytes, {size.batch} in a batch"
            if verb == "publish":
                what += f", {WINDOW} batches in the window, AsyncPublisher.send_many"
            yield from rate_and_cpu(
                turns,
                case,
                id=f"{NAME}.{case}.",
                what=what,
                repeat=repeat,
                rate_goal=size.rate_goal,
                cpu_goal=size.cpu_goal,
            )
            single = f"{done} of {size.body_bytes} bytes, unbatched"
            yield from rate_and_cpu(
                turns,
                f"{case}.unbatched",
                id=f"{NAME}.{case}.unbatched_",
                what=single,
                repeat=repeat,
            )
            yield median_of(
                ratios(turns, case, f"{case}.unbatched"),
                id=f"{NAME}.{case}.ratio",
                what=f"{what}: how many times as fast as unbatched",
                unit="times",
                repeat=repeat,
                goal=partial(at_least, size.ratio, unit="times"),
            )


GROUP = Group(NAME, 1, "one broker directly, no HAProxy", batch_figures)
