"""Latency at half of the rate that one broker takes: until confirmed and until received, beside pika.

Publisher and consumer share one process and one loop, so both clients wait alike for the other side. Each
message carries the time at which it was due; both latencies are from there.

``python -m bench.figures.client.latency TASK RATE`` is a turn, for the task as JSON at so many messages a
second, 0: as many as the window lets through. It prints one JSON object: the rate, and milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from bench.figures.figure import Figure, Maker, at_most
from bench.figures.full_speed import DIRECT, direct_task, purge, sized
from bench.figures.groups import Group, Setup, repeat_command
from bench.harness.interface import Receiver, Sender, receiver, sender
from bench.harness.loop import Alarm, best_loop, event_loop
from bench.harness.timed_turn import CLOSE_S, TAKE_WAIT_S, Task, to_json, within
from bench.processes import run

NAME = "client.latency"
SYSTEMS = {"messagebus": "messagebus", "pika": "pika's asynchronous adapter"}
WINDOW, MESSAGES, TURN_S, PROCESS_WITHIN_S = 1_000, 40_000, 20.0, 660.0
HALF, GOAL = 0.5, 1.0
MEASURES = {"confirm": "published until confirmed", "receipt": "published until received"}
PERCENTILES = (50.0, 99.0, 99.9)
STAMP_BYTES, NS_PER_MS, NS_PER_S = 8, 1e6, 1e9
SYNCS = 500


def latency_figures(setup: Setup) -> Iterator[Figure]:
    make = Maker(NAME, repeat_command(NAME, setup.repeat))
    direct = replace(direct_task(setup), verb="both", window=WINDOW, loop=best_loop())
    purge(setup, direct)
    most = _turn(sized(direct, setup, MESSAGES), 0)["rate"]
    rate = most * HALF
    setup.say(f"as fast as the window lets: {most:,.0f}/s; half of it from here on")
    paced = sized(direct, setup, int(rate * TURN_S))
    found: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
    for number in setup.turns():
        for system in [*SYSTEMS][:: -1 if number % 2 else 1]:
            purge(setup, direct)
            found[system].append(_turn(replace(paced, system=system), rate))
            setup.say(f"{system}: {found[system][-1]}")
    yield make("rate", "Rate of both clients, half of what the broker takes", rate, "messages/s")
    what = "One write and fdatasync of 1 KB on the brokers' disk, median"
    yield make("fsync_ms", what, fsync_ms(setup), "ms")
    for measure, said in MEASURES.items():
        for percentile in PERCENTILES:
            key = f"{measure}_p{percentile:g}"
            values = {system: [turn[key] for turn in found[system]] for system in SYSTEMS}
            for system, called in SYSTEMS.items():
                infix = "" if system == "messagebus" else f"{system}_"
                id, what = f"{infix}{key}_ms", f"{called}, 1 KB {said}: {percentile:g} %"
                yield make(id, what, values[system], "ms")
            ratios = [a / b for a, b in zip(values["messagebus"], values["pika"], strict=True)]
            what = f"1 KB {said}, {percentile:g} %: of that of pika"
            yield make(f"{key}_ratio", what, ratios, "times", (at_most, GOAL))


def fsync_ms(setup: Setup) -> float:
    took_ns = list[int]()
    with (setup.folder / "synced").open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            began_ns = time.perf_counter_ns()
            file.write(b"x" * 1024)
            os.fdatasync(file.fileno())
            took_ns.append(time.perf_counter_ns() - began_ns)
    return statistics.median(took_ns) / NS_PER_MS


def _turn(task: Task, rate: float) -> dict[str, float]:
    argv = [sys.executable, "-m", "bench.figures.client.latency", to_json(task), str(rate)]
    said = run(argv, within_s=PROCESS_WITHIN_S, what=task.system)
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


GROUP = Group(NAME, 1, DIRECT, latency_figures)


# The turn.


async def turn(task: Task, rate: float) -> dict[str, float]:
    """Publish and receive the messages of a task; return the rate and the percentiles in ms."""
    sending, taking = sender(task.profile, task.where), receiver(task.profile, task.where)
    await sending.open()
    await taking.open()
    count = task.warm_up + task.messages
    due_ns = list[int]()
    received = asyncio.create_task(_received(taking, count, task.warm_up))
    began_ns = time.monotonic_ns()
    confirmed = await _published(sending, task, rate, due_ns)
    receipts = await received
    took_s = (time.monotonic_ns() - began_ns) / NS_PER_S
    await taking.close()
    found = {"rate": count / took_s}
    for measure, values in {"confirm": confirmed, "receipt": receipts}.items():
        for percentile, ns in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True):
            found[f"{measure}_p{percentile:g}"] = float(ns) / NS_PER_MS
    return found


async def _published(sending: Sender, task: Task, rate: float, due_ns: list[int]) -> list[int]:
    """Publish each message when it is due; return the ns until each was confirmed, without the warm-up."""
    rest, count = bytes(task.body_bytes - STAMP_BYTES), task.warm_up + task.messages
    confirmed = list[int]()

    def take_ends() -> None:
        for end in sending.ends():
            if end.sequence >= task.warm_up:
                confirmed.append(end.settled_ns - due_ns[end.sequence])

    began_ns = time.monotonic_ns()
    with Alarm() as alarm:
        for sequence in range(count):
            await sending.room()
            if not rate:
                due_ns.append(time.monotonic_ns())
            else:
                due_ns.append(began_ns + int(sequence / rate * NS_PER_S))
                if (left_ns := due_ns[-1] - time.monotonic_ns()) > 0:
                    take_ends()
                    await alarm.sleep(left_ns / NS_PER_S)
            await sending.send(sequence, due_ns[-1].to_bytes(STAMP_BYTES) + rest, "")
    await sending.close(CLOSE_S)
    take_ends()
    return confirmed


async def _received(taking: Receiver, count: int, warm_up: int) -> list[int]:
    """Take all messages; return the ns until each was received, without the warm-up."""
    found = list[int]()
    while len(found) < count:
        for each in await taking.take(TAKE_WAIT_S):
            found.append(each.received_ns - int.from_bytes(each.body[:STAMP_BYTES]))
    return found[warm_up:]


if __name__ == "__main__":
    given = Task(**json.loads(sys.argv[1]))
    with asyncio.Runner(loop_factory=event_loop(given.loop)) as runner:
        print(json.dumps(runner.run(within(turn(given, float(sys.argv[2]))))))
