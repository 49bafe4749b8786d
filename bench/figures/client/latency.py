"""Latencies: what our client adds over pika's own adapter, and what delayed messages cost a consumer.

One process publishes and consumes, at a rate that leaves it idle time. Latencies count from a message's
intended time. All clients have the same event loop, asyncio's own, and take turns.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bench.clients.ways import check
from bench.errors import BenchError
from bench.figures.form import Figure, Maker, at_least, at_most
from bench.figures.scene import Group, Scene, repeat_command
from bench.figures.turns import (
    DIRECT,
    Turns,
    direct_task,
    empty,
    interleaved,
    path_of,
    prepare,
    purge,
    sized,
)
from bench.harness.loop import best_loop, run_on_best_loop
from bench.harness.turn import Task, slices
from messagebus import AsyncConsumer, AsyncPublisher, BusConfig, Published, declare
from messagebus.destination import delay_step

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


def _latency(scene: Scene) -> Iterator[Figure]:
    task = direct_task(scene)
    tasks = latency_tasks(task, scene, scene.cluster.broker)
    turns = interleaved(scene, tasks, lambda _name, _task: purge(scene, task))
    yield from latency_figures(turns, repeat_command(NAME, scene.repeat))


def _paced(task: Task, scene: Scene, rate_per_s: float, seconds: float, warm_up_s: float) -> Task:
    return replace(
        task,
        verb="latency",
        rate_per_s=rate_per_s,
        messages=scene.part(int(rate_per_s * seconds)),
        warm_up=scene.part(int(rate_per_s * warm_up_s)),
        window=WINDOW,
    )


def latency_tasks(task: Task, scene: Scene, haproxy: str) -> dict[str, Task]:
    paced = _paced(task, scene, RATE_PER_S, SECONDS, WARM_UP_S)
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


LATENCY = Group(NAME, 1, "one broker directly, no HAProxy, but in figures named haproxy", _latency)

# The delay ladder: how exactly messages come out, and what waiting messages cost a consumer. Lateness counts
# from a message's due time, its publish call plus its delay, to its arrival in the same process.
DELAYED = "comfort.delay"
STEPS_S = (1, 2, 5)
# Messages of each step in one repetition, spread over SPREAD_S so that few are due at once.
MESSAGES, SPREAD_S = 500, 5.0
PERCENTS = {"p50": 50.0, "p99": 99.0, "max": 100.0}
ALL_OUT_WITHIN_S = 60.0
WAITING, WAITING_S = 100_000, 3_600
SLICE = 5_000
CONSUMED = 100_000
DELAY_RATE_PER_S, DELAY_S, DELAY_WARM_UP_S = 1_000.0, 5.0, 1.0
# A lower ratio would mean that waiting messages slow a consumer down.
GOAL_RATIO = 0.9
START_S = 30.0
NS, MS_PER_S = 1e9, 1e3
# The time of the publish, and its step in seconds; step 0 is not counted.
STAMP = struct.Struct(">QB")
# A broker goes on writing for a while after a load of publishes.
SETTLE_S = 5.0
STATES = {"idle": "none waiting", "waiting": f"{WAITING:,} delayed messages waiting"}

Late = Mapping[int, Sequence[Sequence[float]]]
"""Step in seconds -> for each repetition the lateness of each message in seconds; below 0: early."""


def _delay(scene: Scene) -> Iterator[Figure]:
    task, repeat = direct_task(scene), repeat_command(DELAYED, scene.repeat)
    bus = BusConfig.from_env(task.env)
    declare(bus, [str(delay_step(step * 1000)) for step in (*STEPS_S, WAITING_S)])
    purge(scene, task)
    late: dict[int, list[list[float]]] = {step: [] for step in STEPS_S}
    for number in range(scene.repeat):
        found = run_on_best_loop(_lateness(bus, task, scene.part(MESSAGES, 20)))
        for step in STEPS_S:
            late[step].append(found[step])
        told = ", ".join(f"{step} s: {percentile_ms(found[step], 50):.1f} ms" for step in STEPS_S)
        scene.say(f"repetition {number + 1} of {scene.repeat}, late in the median: {told}")
    yield from late_figures(late, repeat)

    waiting = _Waiting(scene, task, scene.part(WAITING))
    turns = interleaved(scene, delay_tasks(task, scene), waiting.prepare)
    waiting.purge()
    purge(scene, task)
    yield from waiting_figures(turns, repeat)


async def _lateness(bus: BusConfig, task: Task, count: int) -> dict[int, list[float]]:
    """Publish `count` messages of each step, wait until all have arrived, and return how late each was."""
    late: dict[int, list[float]] = {step: [] for step in STEPS_S}
    publisher = AsyncPublisher(bus)
    await publisher.start(require="one", timeout_s=START_S)

    async def publish(counted: bool, step: int) -> asyncio.Future[Published]:
        content = STAMP.pack(time.monotonic_ns(), step if counted else 0)
        return await publisher.submit(task.topic, content, deliver_after_s=step)

    async with AsyncConsumer(bus, task.topic, subscription=task.subscription) as consumer:
        receiving = asyncio.create_task(_receive(consumer, late, count * len(STEPS_S)))
        for step in STEPS_S:  # the first one looks whether the step is there
            check([await (await publish(False, step))])
        ends: list[asyncio.Future[Published]] = []
        for _ in range(count):
            ends += [await publish(True, step) for step in STEPS_S]
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
        now_ns = time.monotonic_ns()
        sent_ns, step = STAMP.unpack(delivery.body)
        consumer.ack(delivery)
        if step:
            late[step].append((now_ns - sent_ns) / NS - step)
            count -= 1
            if not count:
                return


def late_figures(late: Late, repeat: str) -> Iterator[Figure]:
    make = Maker(DELAYED, repeat)
    for step, repetitions in late.items():
        for name, percent in PERCENTS.items():
            what = f"How late a message delayed by {step} s comes: {name}"
            found = [percentile_ms(seconds, percent) for seconds in repetitions]
            yield make(f"late_{step}s_{name}_ms", what, found, "ms")
    early = sum(s < 0 for repetitions in late.values() for seconds in repetitions for s in seconds)
    what = "Delayed messages that came before they were due, of all steps"
    yield make("early", what, early, "messages", (at_most, 0))


def percentile_ms(seconds: Sequence[float], percent: float) -> float:
    """Return the smallest value that this percentage of the values does not exceed, in ms."""
    ranked = sorted(seconds)
    place = max(0, -(-len(ranked) * percent // 100) - 1)
    return ranked[int(place)] * MS_PER_S


class _Waiting:
    """Delayed messages of the same topic that can be present or not."""

    def __init__(self, scene: Scene, task: Task, count: int) -> None:
        self._scene, self._task, self._count = scene, task, count
        self._are_there: bool | None = None
        self._step = delay_step(WAITING_S * 1000)

    def prepare(self, name: str, task: Task) -> None:
        """Make the messages present or absent for a turn, and prepare its queue.

        They are published in both cases: the broker's work after such a load is no cost of waiting messages.
        """
        if (there := name.endswith(".waiting")) != self._are_there:
            run_on_best_loop(self._publish())
            if not there:
                self.purge()
            self._are_there = there
            time.sleep(SETTLE_S)
        prepare(self._scene, task)

    def purge(self) -> None:
        empty(self._scene, path_of(self._step.amqp_queue))

    async def _publish(self) -> None:
        content = bytes(self._task.body_bytes)
        async with AsyncPublisher(BusConfig.from_env(self._task.env)) as publisher:
            for size in slices(self._count, SLICE):
                ends = [
                    await publisher.submit(self._task.topic, content, deliver_after_s=WAITING_S)
                    for _ in range(size)
                ]
                check(await asyncio.gather(*ends))


def delay_tasks(task: Task, scene: Scene) -> dict[str, Task]:
    """Return a consumer at full speed and one at a steady rate, each without and with waiting messages."""
    task = replace(task, loop=best_loop(), window=WINDOW, way="receive")
    fast = replace(sized(task, scene, CONSUMED), verb="consume")
    steady = _paced(task, scene, DELAY_RATE_PER_S, DELAY_S, DELAY_WARM_UP_S)
    return {
        f"{verb}.{state}": wanted
        for state in STATES
        for verb, wanted in (("consume", fast), ("latency", steady))
    }


def waiting_figures(turns: Turns, repeat: str) -> Iterator[Figure]:
    make = Maker(DELAYED, repeat)
    for state, words in STATES.items():
        fast, steady = turns[f"consume.{state}"], turns[f"latency.{state}"]
        what = f"Received and acked, 1 KB, {words} for the same topic"
        rates = [turn.rate_per_s for turn in fast]
        yield make(f"consume_{state}_rate", what, rates, "messages/s")
        for name in ("p50", "p99"):
            what = (
                f"Latency at {DELAY_RATE_PER_S:,.0f}/s of 1 KB, {words} for the same topic: {name}"
            )
            found = [turn.percentiles_ms["delivery"][name] for turn in steady]
            yield make(f"latency_{state}_{name}_ms", what, found, "ms")
    pairs = zip(turns["consume.waiting"], turns["consume.idle"], strict=True)
    ratios = [a.rate_per_s / b.rate_per_s for a, b in pairs]
    what = f"A consumer's rate with {WAITING:,} delayed messages waiting, over without"
    yield make("consume_ratio", what, ratios, "times", (at_least, GOAL_RATIO))


DELAY = Group(DELAYED, 1, DIRECT, _delay)
