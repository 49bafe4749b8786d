"""The command ``python -m bench worker``: one load process with the profile and start in the run's folder."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import click

from bench.harness.consuming import Consuming
from bench.harness.interface import Linked, Where, receiver, sender
from bench.harness.loop import Alarm, run_on_best_loop
from bench.harness.parts import CONSUMER, PUBLISHER, Part, write_had, write_sent
from bench.harness.publishing import Publishing, Sent
from bench.harness.workers import (
    PROFILE,
    Progress,
    Recording,
    Start,
    is_over,
    members,
    rate_per_s,
    say_ready,
    wait_for_start,
    write_progress,
)
from bench.load.bodies import Drawer
from bench.load.profile import Profile, place_of, topic_of
from bench.load.schedule import Closed, Steered, intended, striped
from bench.rows import Rows

START_WITHIN_S = 120.0
PROGRESS_S = 0.4
NS = 1_000_000_000
Over = Callable[[], bool]
"""Return whether the run is over."""


@click.command()
@click.option(
    "--run", "folder", type=click.Path(path_type=Path), required=True, help="Folder of the run."
)
@click.option(
    "--kind", type=click.Choice([PUBLISHER, CONSUMER]), required=True, help="What it does."
)
@click.option("--number", type=click.IntRange(min=0), required=True, help="Among its kind.")
@click.option(
    "--recording", type=click.Path(path_type=Path), help="Folder of every message's rows."
)
@click.option("--run-id", default="", help="In the rows.")
def worker(folder: Path, kind: str, number: int, recording: Path | None, run_id: str) -> None:
    """Run one load process: connect, report ready, wait for the start, work, and write the part."""
    profile = Profile.from_values(json.loads((folder / PROFILE).read_text()), PROFILE)
    rows = Recording(recording, run_id) if recording else None
    run_on_best_loop(_work(profile, folder, kind, number, rows))


def _together(profile: Profile, kind: str, number: int) -> int:
    """Count the clients in the process of client `number`."""
    return len(members(profile, kind, number // profile.load.per_process))


async def _work(
    profile: Profile, folder: Path, kind: str, number: int, recording: Recording | None
) -> None:
    told = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        # On a signal, the recorded part is still written.
        asyncio.get_running_loop().add_signal_handler(each, told.set)
    parent = os.getppid()

    def over() -> bool:
        # A coordinator that died would never end the run.
        return told.is_set() or is_over(folder) or os.getppid() != parent

    work = _publish if kind == PUBLISHER else _consume
    each_of = members(profile, kind, number)
    where = [_where(profile, kind, member, recording) for member in each_of]
    await asyncio.gather(*(work(profile, folder, each, over) for each in where))


def _where(profile: Profile, kind: str, number: int, recording: Recording | None) -> Where:
    topic, subscription = topic_of(profile, number), ""
    if kind == CONSUMER:
        topic, subscription = place_of(profile, number)
    name, rows = f"{kind}-{number}", None
    if recording:
        rows = Rows(
            recording.folder,
            run_id=recording.run_id,
            name=name,
            topic=topic,
            subscription=subscription,
        )
    return Where(name, topic, subscription, dict(os.environ), number, rows)


async def _publish(profile: Profile, folder: Path, where: Where, over: Over) -> None:
    load, number = profile.load, where.number
    part_of = (number, load.publishers) if isinstance(load.schedule, Steered) else None
    drawer = Drawer(profile.messages, seed=load.seed * 1000 + number, part=part_of)
    fillers, keys = drawer.fillers(), drawer.keys()
    client = sender(profile, where)
    await client.open()
    start = await _start(folder, where)
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
    shown = asyncio.create_task(_show(folder, publishing, where.name, over))
    with alarm:
        sent = await _sent(publishing, profile, folder, number, until_ns)
    shown.cancel()
    _show_now(folder, publishing, where.name)
    if where.rows:
        where.rows.close()
    ended_ns = min(until_ns, time.monotonic_ns() + start.offset_ns())
    busy_s = max(0.0, (sent.ended_ns - start.at_wall_ns) / NS)
    together = _together(profile, PUBLISHER, number)
    part = Part(
        name=where.name,
        kind=PUBLISHER,
        number=number,
        cpu_s=await _metered(meter, ended=publishing.stopping or load.is_counted) / together,
        per_process=together,
        measured_s=busy_s if load.is_closed else profile.time.measured_s,
        busy_s=busy_s,
        intended=_due(profile, number, ended_ns - start.at_wall_ns),
        sent=len(sent.outcomes),
        waited_s=sent.waited_ns / NS,
    )
    write_sent(folder, part, sent)


async def _sent(
    publishing: Publishing, profile: Profile, folder: Path, number: int, until_ns: int
) -> Sent:
    load, schedule = profile.load, profile.load.schedule
    if isinstance(schedule, Closed):
        return await publishing.run_closed(schedule.count, until_ns)
    if isinstance(schedule, Steered):
        first = schedule.rate_per_s

        def rate() -> float:
            found = rate_per_s(folder)
            return (first if found is None else found) / load.publishers

        return await publishing.run_steered(rate, _count(schedule, profile, number), until_ns)
    times = intended(load.schedule, seed=load.seed)
    return await publishing.run(striped(times, number=number, of=load.publishers), until_ns)


def _count(schedule: Steered, profile: Profile, number: int) -> int:
    """Return the number of messages of one publisher of a steered load."""
    return len(range(number, schedule.count, profile.load.publishers))


async def _consume(profile: Profile, folder: Path, where: Where, over: Over) -> None:
    load = profile.load
    client = receiver(profile, where)
    if not load.consume_from_s:
        await client.open()
    start = await _start(folder, where)
    if load.consume_from_s:
        await asyncio.sleep(_left_s(start, load.consume_from_s))
        await client.open()
    meter = asyncio.create_task(_meter(profile, start))
    consuming = Consuming(client, start_ns=start.at_wall_ns, offset_ns=start.offset_ns())
    progress = Progress(where.name)
    shown_s = 0.0

    def on_tick(count: int) -> None:
        nonlocal shown_s
        if where.rows and isinstance(client, Linked):
            now_ns = time.monotonic_ns()
            known = progress.attached
            progress.attached = {name: known.get(name, now_ns) for name in client.links()}
        if time.monotonic() - shown_s > PROGRESS_S:
            shown_s, progress.done = time.monotonic(), count
            progress.brokers = dict(consuming.had.delivered)
            write_progress(folder, progress)

    had = await consuming.run(over, on_tick)
    progress.done, progress.brokers = len(had.sequences), dict(had.delivered)
    write_progress(folder, progress)
    if where.rows:
        where.rows.close()
    began_ns = start.at_wall_ns + int(load.consume_from_s * NS)
    busy_s = (had.received_ns[-1] - began_ns) / NS if had.received_ns else 0.0
    together = _together(profile, CONSUMER, where.number)
    part = Part(
        name=where.name,
        kind=CONSUMER,
        number=where.number,
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
    if isinstance(load.schedule, Steered):
        return _count(load.schedule, profile, number)
    times = striped(intended(load.schedule, seed=load.seed), number=number, of=load.publishers)
    return sum(1 for _ in itertools.takewhile(lambda each: each < until_ns, times))


async def _start(folder: Path, where: Where) -> Start:
    say_ready(folder, where.name)
    start = await asyncio.to_thread(wait_for_start, folder, within_s=START_WITHIN_S)
    if where.rows:
        where.rows.offset_ns = start.offset_ns()
    return start


async def _meter(profile: Profile, start: Start) -> float:
    """Measure this process's CPU seconds in the measured part; in a closed loop until it is cancelled."""
    begin_s = profile.time.warm_up_s
    await asyncio.sleep(_left_s(start, begin_s))
    before_s = time.process_time()
    try:
        await asyncio.sleep(_left_s(start, begin_s + profile.time.measured_s))
    except asyncio.CancelledError:
        if not profile.load.is_closed:
            return 0.0
    return time.process_time() - before_s


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


async def _show(folder: Path, publishing: Publishing, name: str, over: Over) -> None:
    while True:
        _show_now(folder, publishing, name)
        if over():
            publishing.stop()
        await asyncio.sleep(PROGRESS_S)


def _show_now(folder: Path, publishing: Publishing, name: str) -> None:
    sent = publishing.sent
    write_progress(folder, Progress(name, len(sent.outcomes), dict(sent.brokers)))
