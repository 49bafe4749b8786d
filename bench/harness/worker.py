"""The command ``python -m bench worker``: one load process with the profile and start in the run's folder."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import signal
import time
from pathlib import Path

import click

from bench.harness.barrier import Start, is_over, say_ready, wait_for_start
from bench.harness.consuming import Consuming
from bench.harness.interface import Where, receiver, sender
from bench.harness.loop import Alarm, best_loop, event_loop
from bench.harness.parts import CONSUMER, PUBLISHER, Part, write_had, write_sent
from bench.harness.publishing import Publishing, Sent
from bench.load.bodies import Drawer
from bench.load.control import Progress, write_progress
from bench.load.profile import Profile, places, topic_of
from bench.load.schedule import Closed, intended, striped

__all__ = ["PROFILE", "RUN", "members", "worker"]

PROFILE, RUN = "profile.json", "run.json"
START_WITHIN_S = 120.0
PROGRESS_S = 0.4
NS = 1_000_000_000


@click.command(short_help="One load process of a measured run.")
@click.option(
    "--run", "folder", type=click.Path(path_type=Path), required=True, help="Folder of the run."
)
@click.option(
    "--kind", type=click.Choice([PUBLISHER, CONSUMER]), required=True, help="What it does."
)
@click.option("--number", type=click.IntRange(min=0), required=True, help="Among its kind.")
def worker(folder: Path, kind: str, number: int) -> None:
    """Run one load process: connect, report ready, wait for the start, work, and write the part."""
    profile = Profile.from_values(json.loads((folder / PROFILE).read_text()), PROFILE)
    with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
        runner.run(_work(profile, folder, kind, number))


def members(profile: Profile, kind: str, number: int) -> range:
    """Return the numbers of the publishers, or consumers, in that process."""
    each, load = profile.load.per_process, profile.load
    of = load.publishers if kind == PUBLISHER else load.consumers
    return range(number * each, min((number + 1) * each, of))


def _together(profile: Profile, kind: str, number: int) -> int:
    """Count the clients in the process of client `number`."""
    return len(members(profile, kind, number // profile.load.per_process))


async def _work(profile: Profile, folder: Path, kind: str, number: int) -> None:
    told = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        # On a signal, the recorded part is still written.
        asyncio.get_running_loop().add_signal_handler(each, told.set)
    work = _publish if kind == PUBLISHER else _consume
    each_of = members(profile, kind, number)
    await asyncio.gather(*(work(profile, folder, member, told) for member in each_of))


def _where(profile: Profile, folder: Path, kind: str, number: int) -> Where:
    if kind == PUBLISHER:
        topic, subscription = topic_of(number, profile.messages.topics), ""
    else:
        every = places(profile)
        topic, subscription = every[number % len(every)]
    name = f"{kind}-{number}"
    return Where(name, topic, subscription, dict(os.environ), str(folder), number)


async def _publish(profile: Profile, folder: Path, number: int, told: asyncio.Event) -> None:
    where = _where(profile, folder, PUBLISHER, number)
    load = profile.load
    drawer = Drawer(profile.messages, seed=load.seed * 1000 + number)
    fillers, keys = drawer.fillers(), drawer.keys()
    client = sender(profile, where)
    await client.open()
    start = await _start(folder, where.name)
    alarm = Alarm()
    publishing = Publishing(
        client,
        publisher=number,
        start_ns=start.at_wall_ns,
        offset_ns=start.offset_ns(),
        fillers=fillers,
        keys=keys,
        sleep=alarm.sleep,
    )
    until_ns = start.at_wall_ns + int((profile.time.warm_up_s + profile.time.measured_s) * NS)
    meter = asyncio.create_task(_meter(profile, start))
    shown = asyncio.create_task(_show(folder, publishing, where.name, told))
    with alarm:
        sent = await _sent(publishing, profile, number, until_ns)
    shown.cancel()
    busy_s = max(0.0, (sent.ended_ns - start.at_wall_ns) / NS)
    together = _together(profile, PUBLISHER, number)
    part = Part(
        name=where.name,
        kind=PUBLISHER,
        number=number,
        cpu_s=await _metered(meter, ended=publishing.stopping or load.is_closed) / together,
        per_process=together,
        measured_s=busy_s if load.is_closed else profile.time.measured_s,
        busy_s=busy_s,
        intended=_due(profile, number, until_ns - start.at_wall_ns),
        sent=len(sent.outcomes),
        waited_s=sent.waited_ns / NS,
    )
    write_sent(folder, part, sent)


async def _sent(publishing: Publishing, profile: Profile, number: int, until_ns: int) -> Sent:
    load = profile.load
    if isinstance(load.schedule, Closed):
        return await publishing.run_closed(load.schedule.count, until_ns)
    times = intended(load.schedule, seed=load.seed)
    return await publishing.run(striped(times, number=number, of=load.publishers), until_ns)


async def _consume(profile: Profile, folder: Path, number: int, told: asyncio.Event) -> None:
    where = _where(profile, folder, CONSUMER, number)
    load = profile.load
    client = receiver(profile, where)
    if not load.consume_from_s:
        await client.open()
    start = await _start(folder, where.name)
    if load.consume_from_s:
        await asyncio.sleep(_left_s(start, load.consume_from_s))
        await client.open()
    meter = asyncio.create_task(_meter(profile, start))
    consuming = Consuming(client, start_ns=start.at_wall_ns, offset_ns=start.offset_ns())
    progress = Progress(where.name, state="running")
    parent = os.getppid()
    shown_s = 0.0

    def over() -> bool:
        # A coordinator that died would never end the run.
        return told.is_set() or is_over(folder) or os.getppid() != parent

    def on_tick(count: int) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s > PROGRESS_S:
            shown_s, progress.done = time.monotonic(), count
            write_progress(folder, progress)

    had = await consuming.run(over, on_tick)
    progress.state, progress.done = "ended", len(had.sequences)
    write_progress(folder, progress)
    began_ns = start.at_wall_ns + int(load.consume_from_s * NS)
    busy_s = (had.received_ns[-1] - began_ns) / NS if had.received_ns else 0.0
    together = _together(profile, CONSUMER, number)
    part = Part(
        name=where.name,
        kind=CONSUMER,
        number=number,
        subscription=f"{where.topic}/{where.subscription}",
        cpu_s=await _metered(meter, ended=True) / together,
        per_process=together,
        measured_s=busy_s if load.is_closed else profile.time.measured_s,
        busy_s=busy_s,
        altered=had.altered,
        earlier=had.earlier,
        brokers=tuple(had.brokers),
    )
    write_had(folder, part, had)


def _due(profile: Profile, number: int, until_ns: int) -> int:
    """Count the messages that the schedule has for this process before the end."""
    load = profile.load
    if isinstance(load.schedule, Closed):
        return load.schedule.count
    times = striped(intended(load.schedule, seed=load.seed), number=number, of=load.publishers)
    return sum(1 for _ in itertools.takewhile(lambda each: each < until_ns, times))


async def _start(folder: Path, name: str) -> Start:
    say_ready(folder, name)
    return await asyncio.to_thread(wait_for_start, folder, within_s=START_WITHIN_S)


async def _meter(profile: Profile, start: Start) -> float:
    """Measure this process's CPU seconds in the measured part; in a closed loop until it is cancelled."""
    begin_s = profile.time.warm_up_s
    await asyncio.sleep(_left_s(start, begin_s))
    before = _cpu_s()
    try:
        await asyncio.sleep(_left_s(start, begin_s + profile.time.measured_s))
    except asyncio.CancelledError:
        if not profile.load.is_closed:
            return 0.0
    return _cpu_s() - before


def _left_s(start: Start, at_s: float) -> float:
    """Return the seconds left until that second of the load."""
    at_ns = start.at_wall_ns + int(at_s * NS) - start.offset_ns()
    return max(0.0, (at_ns - time.monotonic_ns()) / NS)


async def _metered(meter: asyncio.Task[float], *, ended: bool) -> float:
    """Return the result of `_meter`; 0 if the process ended before the measured part."""
    if ended and not meter.done():
        meter.cancel()
    try:
        return await meter
    except asyncio.CancelledError:
        return 0.0


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _show(folder: Path, publishing: Publishing, name: str, told: asyncio.Event) -> None:
    progress, parent = Progress(name, state="running"), os.getppid()
    while True:
        progress.done = len(publishing.sent.outcomes)
        write_progress(folder, progress)
        if told.is_set() or is_over(folder) or os.getppid() != parent:
            publishing.stopping = True
        await asyncio.sleep(PROGRESS_S)
