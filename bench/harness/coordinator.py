"""The coordinator of one run: starts the load processes, sets the start, watches, ends, gathers.

A load process that fails ends the run. The parts of the others are kept, and the run is marked incomplete;
so is an interrupted run. The folder of a run is made, and checked to be empty, before anything is started
for it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.environment import CHECKOUT, describe, load_average
from bench.errors import BenchError, InputInvalid
from bench.harness import sampling
from bench.harness.barrier import Start, missing, say_over, say_start
from bench.harness.disturbances import Disturber
from bench.harness.interface import EVENTS, Running, durability
from bench.harness.loop import best_loop
from bench.harness.parts import CONSUMER, PUBLISHER, read_parts
from bench.harness.sampling import Sampler
from bench.harness.worker import PROFILE, RUN, members
from bench.load.control import read_progress
from bench.load.profile import Profile
from bench.load.schedule import Closed
from bench.manifest import FILE_NAME, Incident, Manifest, write_atomically
from bench.processes import Children
from messagebus.terminal import plural

__all__ = ["MACHINE", "SAMPLES", "conduct", "made", "made_empty"]


def made(folder: Path) -> Path:
    """Make the folder if it is missing. Raises InputInvalid when it cannot be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputInvalid(f"{folder}: no folder can be made: {fault.strerror}") from fault
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputInvalid(f"{folder}: nothing can be written there")
    return folder


def made_empty(folder: Path) -> Path:
    """Make the folder of one run. Raises InputInvalid also when it is not empty."""
    if any(made(folder).iterdir()):
        raise InputInvalid(f"{folder}: is not empty; a run has a folder of its own")
    return folder


SAMPLES, MACHINE = "brokers.parquet", "machine.parquet"
READY_WITHIN_S = 120.0
# Time from setting the start to the load: processes poll for it.
HEAD_START_S = 1.0
POLL_S = 0.05
PARTS_WITHIN_S = 60.0
# After this time without a delivery, no more are expected.
QUIET_S = 3.0
Say = Callable[[str], None]
Names = Mapping[str, Sequence[str]]
"""Kind -> names."""


def conduct(profile: Profile, folder: Path, running: Running, say: Say) -> Path:
    """Do one run into a new folder, on a running system that has its topics.

    Raises InputInvalid for a folder that is not empty, BenchError when the load fails. The folder then has
    everything recorded until then, marked incomplete.
    """
    made_empty(folder)
    (folder / "progress").mkdir()
    write_atomically(folder / PROFILE, json.dumps(profile.as_json(), indent=1))
    about: dict[str, Any] = {
        "environment": describe() | {"event_loop": best_loop()},
        "system": dict(running.about()),
        "durability": durability(profile),
        "complete": False,
        "faults": ["the run did not end in order"],
    }
    _save(folder, about)
    children = Children(folder / "logs")
    sampler: Sampler | None = None
    disturber: Disturber | None = None
    names = {
        PUBLISHER: [f"{PUBLISHER}-{n}" for n in range(profile.load.publishers)],
        CONSUMER: [f"{CONSUMER}-{n}" for n in range(profile.load.consumers)],
    }
    try:
        processes = _launch(children, profile, folder, running.env())
        start = _meet(children, folder, processes, names, say)
        start_ns = start.at_wall_ns - start.wall_minus_monotonic_ns
        sampler = Sampler(running.probes(), start_ns)
        sampler.start()
        disturber = Disturber(profile.disturbances, running, start_ns)
        disturber.start()
        _work(children, profile, processes, say)
        # Consumers that start late are waited for from their start on.
        from_s = max(time.monotonic(), start_ns / 1e9 + profile.load.consume_from_s)
        not_drained = _drain(children, profile, folder, from_s, sampler, disturber)
        say_over(folder)
        _finish(children, folder, names)
        about |= {"complete": True, "faults": [*disturber.faults, *not_drained]}
    except BenchError as fault:
        about["faults"] = [str(fault)]
        raise
    except KeyboardInterrupt:
        about["faults"] = ["interrupted"]
        raise
    finally:
        say_over(folder)
        children.stop_all()
        if disturber:
            about["disturbances"] = disturber.stop()
            about["faults"] = [*about["faults"], *disturber.missed()]
            _note_incidents(folder / EVENTS, disturber.incidents())
        if sampler:
            samples, busy = sampler.stop()
            sampling.save(folder / SAMPLES, samples)
            sampling.save(folder / MACHINE, busy)
        about["environment"]["load_after"] = load_average()
        about["parts"] = [part.name for part in read_parts(folder)]
        _save(folder, about)
    return folder


def _launch(
    children: Children, profile: Profile, folder: Path, env: Mapping[str, str]
) -> dict[str, list[str]]:
    """Start the load processes; return kind -> names, in the order of their numbers from 0."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MESSAGEBUS_")}
    started: dict[str, list[str]] = {PUBLISHER: [], CONSUMER: []}
    for kind, names in started.items():
        while members(profile, kind, len(names)):
            argv = [sys.executable, "-m", "bench", "worker", "--run", str(folder.resolve())]
            argv += ["--kind", kind, "--number", str(len(names))]
            names.append(f"{kind}-{len(names)}")
            children.start(names[-1], argv, plain | dict(env), CHECKOUT)
    return started


def _meet(
    children: Children, folder: Path, processes: Names, names: Names, say: Callable[[str], None]
) -> Start:
    every, running = _all(names), _all(processes)
    _wait(
        lambda: not missing(folder, every),
        READY_WITHIN_S,
        lambda: f"not ready: {', '.join(missing(folder, every))}",
        lambda: children.check(running),
    )
    start = Start.soon(HEAD_START_S)
    say_start(folder, start)
    say(f"{len(running)} load processes start")
    return start


def _work(children: Children, profile: Profile, processes: Names, say: Say) -> None:
    """Wait until the publishers have ended by themselves."""

    def check() -> None:
        children.check(processes[PUBLISHER], may_end=True)
        children.check(processes[CONSUMER])

    time_s = profile.time.warm_up_s + profile.time.measured_s
    say(_plan(profile))
    _wait(
        lambda: not children.running(processes[PUBLISHER]),
        HEAD_START_S + time_s + profile.time.drain_s + PARTS_WITHIN_S,
        lambda: f"publishers that did not end: {', '.join(children.running(processes[PUBLISHER]))}",
        check,
    )


def _plan(profile: Profile) -> str:
    """Describe the load for a person who waits."""
    if isinstance(profile.load.schedule, Closed):
        publishers = plural(profile.load.publishers, "publisher")
        return f"{publishers}, {profile.load.schedule.count:,} messages each"
    return f"{profile.time.warm_up_s:g} s warm-up, {profile.time.measured_s:g} s measured"


def _drain(
    children: Children,
    profile: Profile,
    folder: Path,
    from_s: float,
    sampler: Sampler,
    disturber: Disturber,
) -> list[str]:
    """Wait until no more deliveries come for a while, or for drain_s; report the messages left.

    While there are fewer deliveries than expected, a quiet time does not end the wait as long as messages
    wait in the queues or a disturbance lasts.
    """
    consumers = [name for name in children.names if name.startswith(CONSUMER)]
    sent = sum(part.sent for part in read_parts(folder)) * profile.messages.subscriptions
    had, since_s, until_s = 0, from_s, from_s + profile.time.drain_s
    while consumers and time.monotonic() < until_s:
        children.check(consumers)
        progress = read_progress(folder).values()
        now = sum(each.done for each in progress if each.name.startswith(CONSUMER))
        if now != had:
            had, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > QUIET_S and (
            had >= sent or not (disturber.is_under_way or sampler.waiting())
        ):
            return []
        time.sleep(POLL_S)
    left = sampler.waiting() if consumers else 0
    return (
        [f"not drained within {profile.time.drain_s:g} s: {plural(left, 'message')} left"]
        if left
        else []
    )


def _finish(children: Children, folder: Path, names: Names) -> None:
    _wait(
        lambda: not children.running(),
        PARTS_WITHIN_S,
        lambda: f"did not end: {', '.join(children.running())}",
        lambda: children.check(children.names, may_end=True),
    )
    there = {part.name for part in read_parts(folder)}
    if lacking := [name for name in _all(names) if name not in there]:
        raise BenchError(f"wrote nothing: {', '.join(lacking)}")


def _note_incidents(events: Path, incidents: Sequence[Incident]) -> None:
    """Add the incidents to the manifest that the recorders have made, if there is one."""
    if (events / FILE_NAME).exists():
        manifest = Manifest.load(events)
        dataclasses.replace(manifest, incidents=tuple(incidents)).save(events)


def _all(names: Names) -> list[str]:
    return [name for each in names.values() for name in each]


def _wait(
    condition: Callable[[], bool],
    within_s: float,
    what: Callable[[], str],
    check: Callable[[], object],
) -> None:
    until_s = time.monotonic() + within_s
    while not condition():
        check()
        if time.monotonic() > until_s:
            raise BenchError(f"not within {within_s:.0f} s: {what()}")
        time.sleep(POLL_S)


def _save(folder: Path, about: Mapping[str, Any]) -> None:
    write_atomically(folder / RUN, json.dumps(about, indent=1))
