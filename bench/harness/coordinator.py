"""The coordinator of one measured run: starts the load processes, sets the start, watches, ends, gathers.

A load process that fails ends the run. The parts of the others are kept, and the run is marked incomplete;
so is an interrupted run. The folder of a run is made, and checked to be empty, before anything is started
for it.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.environment import describe, load_average
from bench.errors import BenchError, InputInvalid
from bench.harness import sampling
from bench.harness.control import RUN, say_over
from bench.harness.disturbances import Disturber
from bench.harness.interface import Running, durability
from bench.harness.loop import best_loop
from bench.harness.parts import PUBLISHER, read_parts
from bench.harness.sampling import Sampler
from bench.harness.workers import END_WITHIN_S, HEAD_START_S, Recording, Workers, made_empty
from bench.load.profile import Profile, places, topic_of
from bench.load.schedule import Closed, Steered
from bench.processes import Children
from messagebus.telemetry.manifest import write_whole
from messagebus.terminal import plural

__all__ = ["MACHINE", "SAMPLES", "conduct"]

SAMPLES, MACHINE = "brokers.parquet", "machine.parquet"
# The subfolder of a run with rows for ``python -m spark``, if the profile asks for them.
EVENTS = "events"
POLL_S = 0.05
# After this time without a delivery, no more are expected.
QUIET_S = 3.0


def conduct(profile: Profile, folder: Path, running: Running, say: Callable[[str], None]) -> Path:
    """Do one run into a new folder, on a running system that has its topics.

    Raises InputInvalid for a folder that is not empty, and for a steered load; BenchError when the load
    fails. The folder then has everything recorded until then, marked incomplete.
    """
    if isinstance(profile.load.schedule, Steered):
        raise InputInvalid("load.schedule: nobody steers a measured run; steered is for the demo")
    made_empty(folder)
    about: dict[str, Any] = {
        "environment": describe() | {"event_loop": best_loop()},
        "system": dict(running.about()),
        "durability": durability(profile),
        "complete": False,
        "faults": ["the run did not end in order"],
    }
    _save(folder, about)
    recording = None
    if profile.events:
        # The start time distinguishes runs of one profile.
        at = re.sub("[-:]", "", about["environment"]["at"])
        recording = Recording(folder / EVENTS, f"{profile.name}-{at}")
    children = Children(folder / "logs")
    workers = Workers(profile, folder, children, recording)
    sampler: Sampler | None = None
    disturber: Disturber | None = None
    brokers = [probe.broker for probe in running.probes()]
    try:
        workers.launch(running.env())
        workers.meet()
        say(f"{len(children.names)} load processes start")
        if recording:
            workers.manifest(brokers, complete=False).save(recording.folder)
        sampler = Sampler(running.probes(), workers.start_ns)
        sampler.start()
        disturber = Disturber(profile.disturbances, running, workers.start_ns)
        disturber.start()
        say(_plan(profile))
        workers.wait_published(
            HEAD_START_S + profile.time.load_s + profile.time.drain_s + END_WITHIN_S
        )
        not_drained = _drain(workers, sampler, disturber)
        workers.end_consumers()
        if lacking := workers.without_part():
            raise BenchError(f"wrote nothing: {', '.join(lacking)}")
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
            if recording:
                incidents, complete = disturber.incidents(), about["complete"]
                manifest = workers.manifest(brokers, incidents, complete=complete)
                manifest.save(recording.folder)
        if sampler:
            samples, busy = sampler.stop()
            sampling.save(folder / SAMPLES, samples)
            sampling.save(folder / MACHINE, busy)
        about["environment"]["load_after"] = load_average()
        about["parts"] = [part.name for part in read_parts(folder)]
        _save(folder, about)
    return folder


def _plan(profile: Profile) -> str:
    """Describe the load for a person who waits."""
    if isinstance(profile.load.schedule, Closed):
        publishers = plural(profile.load.publishers, "publisher")
        return f"{publishers}, {profile.load.schedule.count:,} messages each"
    return f"{profile.time.warm_up_s:g} s warm-up, {profile.time.measured_s:g} s measured"


def _drain(workers: Workers, sampler: Sampler, disturber: Disturber) -> list[str]:
    """Wait until no more deliveries come for a while, or for drain_s; report the messages left.

    While there are fewer deliveries than expected, a quiet time does not end the wait as long as messages
    wait in the queues or a disturbance lasts.
    """
    profile = workers.profile
    if not workers.consumers:
        return []
    readers = Counter(topic for topic, _ in places(profile))
    parts = [part for part in read_parts(workers.folder) if part.kind == PUBLISHER]
    expected = sum(part.sent * readers[topic_of(profile, part.number)] for part in parts)
    # Consumers that start late are waited for from their start on.
    from_s = max(time.monotonic(), workers.start_ns / 1e9 + profile.load.consume_from_s)
    had, since_s, until_s = 0, from_s, from_s + profile.time.drain_s
    while time.monotonic() < until_s:
        workers.check_consumers()
        if (now := workers.received()) != had:
            had, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > QUIET_S and (
            had >= expected or not (disturber.is_under_way or sampler.waiting())
        ):
            return []
        time.sleep(POLL_S)
    left = sampler.waiting()
    if not left:
        return []
    return [f"not drained within {profile.time.drain_s:g} s: {plural(left, 'message')} left"]


def _save(folder: Path, about: Mapping[str, Any]) -> None:
    write_whole(folder / RUN, json.dumps(about, indent=1))
