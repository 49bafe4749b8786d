"""The delay ladder: how exactly messages come out, and what 100,000 waiting messages cost a consumer.

Lateness counts from a message's due time, its publish call plus its delay, to its arrival at a consumer of
the same process. For the cost, a consumer of the same subscription takes its turns with and without
waiting messages, interleaved.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from bench.errors import BenchError
from bench.figures.client.consume import fill
from bench.figures.client.latency import percentile_us
from bench.figures.form import Figure, at_least, median_of
from bench.figures.scene import (
    Case,
    Group,
    Scene,
    Turns,
    direct_task,
    interleaved,
    purge,
    ratios,
    repeat_command,
    sized,
)
from bench.harness.loop import best_loop, event_loop
from bench.systems.ours_async import check, slices
from bench.systems.turn import STAMP_BYTES, Task, intended_in, stamped
from messagebus import AsyncConsumer, AsyncPublisher, Published, declare
from messagebus.destination import delay_step

__all__ = ["GROUP", "Late", "cases_of", "late_figures", "percentile_ms", "waiting_figures"]

NAME = "comfort.delay"
STEPS_S = (1, 2, 5)
# Messages of each step in one repetition, spread over SPREAD_S so that few are due at once.
MESSAGES, SPREAD_S = 500, 5.0
PERCENTS = {"p50": 50.0, "p99": 99.0, "max": 100.0}
ALL_OUT_WITHIN_S = 60.0

WAITING, WAITING_S = 100_000, 3_600
SLICE = 5_000
CONSUMED, WINDOW = 100_000, 1_000
RATE_PER_S, LATENCY_S, LATENCY_WARM_UP_S = 1_000.0, 5.0, 1.0
# A lower ratio would mean that waiting messages slow a consumer down.
GOAL_RATIO = 0.9
START_S = 30.0
BODY_BYTES = 1_024
NS, MS_PER_S = 1e9, 1e3
UNCOUNTED = bytes(STAMP_BYTES + 1)
# A broker goes on writing for a while after a load of publishes.
SETTLE_S = 5.0
CASES = {"idle": "none waiting", "waiting": f"{WAITING:,} delayed messages waiting"}

Late = Mapping[int, Sequence[Sequence[float]]]
"""Step in seconds -> for each repetition the lateness of each message in seconds; below 0: early."""


def delay_figures(scene: Scene) -> Iterator[Figure]:
    task, repeat = direct_task(scene), repeat_command(NAME, scene.repeat)
    declare(task.bus, [str(delay_step(step * 1000)) for step in (*STEPS_S, WAITING_S)])
    purge(scene, task)
    late: dict[int, list[list[float]]] = {step: [] for step in STEPS_S}
    for number in range(scene.repeat):
        with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
            found = runner.run(_lateness(task, scene.part(MESSAGES, 20)))
        for step in STEPS_S:
            late[step].append(found[step])
        told = ", ".join(f"{step} s: {percentile_ms(found[step], 50):.1f} ms" for step in STEPS_S)
        scene.say(f"repetition {number + 1} of {scene.repeat}, late in the median: {told}")
    yield from late_figures(late, repeat)

    waiting = _Waiting(scene, task, scene.part(WAITING))

    def prepare(case: Case) -> None:
        waiting.bring_about(case.name.endswith(".waiting"))
        if case.task.verb == "consume":
            fill(scene, case.task)
        else:
            purge(scene, case.task)

    turns = interleaved(scene, cases_of(task, scene), prepare)
    waiting.purge()
    purge(scene, task)
    yield from waiting_figures(turns, repeat)


# How late.
async def _lateness(task: Task, count: int) -> dict[int, list[float]]:
    """Publish `count` messages of each step, wait until all have arrived, and return how late each was."""
    late: dict[int, list[float]] = {step: [] for step in STEPS_S}
    publisher = AsyncPublisher(task.bus)
    await publisher.start(require="one", timeout_s=START_S)
    async with AsyncConsumer(task.bus, task.topic, subscription=task.subscription) as consumer:
        receiving = asyncio.create_task(_receive(consumer, late, count * len(STEPS_S)))
        ends: list[asyncio.Future[Published]] = []
        for step in STEPS_S:  # the first one looks whether the step is there
            check([await (await publisher.submit(task.topic, UNCOUNTED, deliver_after_s=step))])
        for _ in range(count):
            for step in STEPS_S:
                body = stamped(bytes(STAMP_BYTES) + bytes((step,)), time.monotonic_ns())
                ends.append(await publisher.submit(task.topic, body, deliver_after_s=step))
            await asyncio.sleep(SPREAD_S / count)
        check(await asyncio.gather(*ends))
        try:
            async with asyncio.timeout(max(STEPS_S) + ALL_OUT_WITHIN_S):
                await receiving
        except TimeoutError:
            came = sum(map(len, late.values()))
            raise BenchError(f"{came} of {len(ends)} delayed messages came out") from None
    await publisher.stop()
    return late


async def _receive(consumer: AsyncConsumer, late: dict[int, list[float]], count: int) -> None:
    async for delivery in consumer:
        now_ns, step = time.monotonic_ns(), delivery.body[STAMP_BYTES]
        if not step:
            consumer.ack(delivery)
            continue
        late[step].append((now_ns - intended_in(delivery.body)) / NS - step)
        consumer.ack(delivery)
        count -= 1
        if not count:
            return


def late_figures(late: Late, repeat: str) -> Iterator[Figure]:
    for step, repetitions in late.items():
        for name, percent in PERCENTS.items():
            yield median_of(
                [percentile_ms(seconds, percent) for seconds in repetitions],
                id=f"{NAME}.late_{step}s_{name}_ms",
                what=f"How late a message delayed by {step} s comes: {name}",
                unit="ms",
                repeat=repeat,
            )
    early = sum(s < 0 for repetitions in late.values() for seconds in repetitions for s in seconds)
    yield Figure(
        id=f"{NAME}.early",
        what="Delayed messages that came before they were due, of all steps",
        value=early,
        unit="messages",
        repeat=repeat,
        goal="0 messages",
        met=early == 0,
    )


def percentile_ms(seconds: Sequence[float], percent: float) -> float:
    """Return the smallest value that this percentage of the values does not exceed, in ms."""
    ranked = sorted(seconds)
    place = max(0, -(-len(ranked) * percent // 100) - 1)
    return ranked[int(place)] * MS_PER_S


# What they cost.
class _Waiting:
    """Delayed messages of the same topic that can be present or not."""

    def __init__(self, scene: Scene, task: Task, count: int) -> None:
        self._scene, self._task, self._count = scene, task, count
        self._are_there: bool | None = None
        self._step = delay_step(WAITING_S * 1000)

    def bring_about(self, there: bool) -> None:
        """Make the messages present or absent.

        They are published in both cases: the broker's work after such a load is no cost of waiting messages.
        """
        if there == self._are_there:
            return
        with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
            runner.run(self._publish())
        if not there:
            self.purge()
        self._are_there = there
        time.sleep(SETTLE_S)

    def purge(self) -> None:
        queue = self._step.amqp_queue.replace("/", "%2F")
        name = self._scene.cluster.names[0]
        with self._scene.cluster.management(name) as management:
            management.delete(f"/api/queues/%2F/{queue}/contents").raise_for_status()

    async def _publish(self) -> None:
        body = bytes(BODY_BYTES)
        async with AsyncPublisher(self._task.bus) as publisher:
            for size in slices(self._count, SLICE):
                ends = [
                    await publisher.submit(self._task.topic, body, deliver_after_s=WAITING_S)
                    for _ in range(size)
                ]
                check(await asyncio.gather(*ends))


def cases_of(task: Task, scene: Scene) -> list[Case]:
    """Return a consumer at full speed and one at a steady rate, each without and with waiting messages."""
    common = dataclasses.replace(task, loop=best_loop(), window=WINDOW, body_bytes=BODY_BYTES)
    fast = dataclasses.replace(sized(common, scene, CONSUMED), verb="consume")
    steady = dataclasses.replace(
        common,
        verb="latency",
        rate_per_s=RATE_PER_S,
        messages=scene.part(int(RATE_PER_S * LATENCY_S)),
        warm_up=scene.part(int(RATE_PER_S * LATENCY_WARM_UP_S)),
    )
    return [
        Case(f"{verb}.{state}", "ours_async", wanted)
        for state in CASES
        for verb, wanted in (("consume", fast), ("latency", steady))
    ]


def waiting_figures(turns: Turns, repeat: str) -> Iterator[Figure]:
    for state, words in CASES.items():
        yield median_of(
            [turn.rate_per_s for turn in turns[f"consume.{state}"]],
            id=f"{NAME}.consume_{state}_rate",
            what=f"Received and acked, 1 KB, {words} for the same topic",
            unit="messages/s",
            repeat=repeat,
        )
        for name, percent in (("p50", 50.0), ("p99", 99.0)):
            yield median_of(
                [
                    percentile_us(turn, "delivery", percent) / MS_PER_S
                    for turn in turns[f"latency.{state}"]
                ],
                id=f"{NAME}.latency_{state}_{name}_ms",
                what=f"Latency at {RATE_PER_S:,.0f}/s of 1 KB, {words} for the same topic: {name}",
                unit="ms",
                repeat=repeat,
            )
    yield median_of(
        ratios(turns, "consume.waiting", "consume.idle"),
        id=f"{NAME}.consume_ratio",
        what=f"A consumer's rate with {WAITING:,} delayed messages waiting, over without",
        unit="times",
        repeat=repeat,
        goal=partial(at_least, GOAL_RATIO, unit="times"),
    )


GROUP = Group(NAME, 1, "one broker directly, no HAProxy", delay_figures)
