"""The coordinator of one measured run: starts the load processes, sets the start, watches, ends, gathers.

A load process that fails ends the run. The parts of the others are kept, and the run is marked incomplete;
so is an interrupted run. The folder of a run is made, and checked to be empty, before anything is started
for it. Disturbances of the brokers begin and end at their seconds of the load, on a thread of their own.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.environment import describe, load_average
from bench.errors import BenchError, InputInvalid
from bench.faults import Fault
from bench.harness import sampling
from bench.harness.interface import Running, durability
from bench.harness.loop import best_loop
from bench.harness.parts import PUBLISHER, read_parts
from bench.harness.remote import about_hosts
from bench.harness.sampling import Sampler
from bench.harness.workers import (
    END_WITHIN_S,
    HEAD_START_S,
    RUN,
    Recording,
    Workers,
    make_empty_folder,
)
from bench.load.profile import Disturbance, Profile, places, topic_of
from bench.load.schedule import Closed, Steered
from bench.processes import Children
from messagebus.errors import reason_of
from messagebus.files import replace_file
from messagebus.recording.manifest import Incident
from messagebus.terminal import plural

SAMPLES, MACHINE = "brokers.parquet", "machine.parquet"
# The subfolder of a run with rows for ``python -m spark``, if the profile asks for them.
EVENTS = "events"
POLL_S = 0.05
# After this time without a delivery, no more are expected.
QUIET_S = 3.0
STOP_WITHIN_S = 120.0


def conduct(
    profile: Profile,
    folder: Path,
    running: Running,
    say: Callable[[str], None],
    hosts: Sequence[str] = (),
) -> Path:
    """Do one run into a new folder, on a running system that has its topics. hosts: as of `Workers`.

    Raises InputInvalid for a folder that is not empty, and for a steered load; BenchError when the load
    fails. The folder then has everything recorded until then, marked incomplete.
    """
    refuse(profile, hosts)
    make_empty_folder(folder)
    about = _beginning(profile, running)
    _save(folder, about)
    recording = _recording(profile, folder, about["environment"]["at"])
    children = Children(folder / "logs")
    workers = Workers(profile, folder, children, recording, hosts=hosts)
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
        disturber = Disturber(profile.disturbances, running, workers.start_ns, say)
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
        workers.stop()
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
        about["environment"] |= {"load_after": load_average(), **about_hosts(folder)}
        about["parts"] = [part.name for part in read_parts(folder)]
        _save(folder, about)
    return folder


def refuse(profile: Profile, hosts: Sequence[str]) -> None:
    """Raise InputInvalid for a load that cannot be measured, or not on other hosts."""
    if isinstance(profile.load.schedule, Steered):
        raise InputInvalid(
            "load.schedule: a measured run follows its profile; steered is for the demo"
        )
    if profile.events and hosts:
        raise InputInvalid("events: rows of every message are of load processes on this host alone")


def _beginning(profile: Profile, running: Running) -> dict[str, Any]:
    """Return what is known of a run before it."""
    return {
        "environment": describe() | {"event_loop": best_loop()},
        "system": dict(running.about()),
        "durability": durability(profile),
        "complete": False,
        "faults": ["the run did not end in order"],
    }


def _recording(profile: Profile, folder: Path, at: str) -> Recording | None:
    """Return where events are recorded, if they are; the start time distinguishes runs of one profile."""
    if not profile.events:
        return None
    return Recording(folder / EVENTS, f"{profile.name}-{re.sub('[-:]', '', at)}")


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
    replace_file(folder / RUN, json.dumps(about, indent=1))


def steps(disturbances: Sequence[Disturbance]) -> list[tuple[float, int, bool]]:
    """Return (second of the load, number of the disturbance, whether it begins), in order. Pure."""
    found = []
    for number, each in enumerate(disturbances):
        found += [(each.at_s, number, True), (each.at_s + each.lasts_s, number, False)]
    return sorted(found, key=lambda step: step[0])


class Disturber:
    """A thread that causes and ends the disturbances.

    start_ns: start of the load, on this process's monotonic clock.
    """

    def __init__(
        self,
        disturbances: Sequence[Disturbance],
        running: Running,
        start_ns: int,
        say: Callable[[str], None],
    ) -> None:
        self.faults: list[str] = []
        self._wanted = disturbances
        self._start_ns = start_ns
        self._say = say
        self._planned: list[Fault] = [
            running.fault(each.what, each.broker) for each in disturbances
        ]
        self._brokers = [probe.broker for probe in running.probes()]
        self._done: dict[int, dict[str, Any]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="disturber", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_under_way(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> list[dict[str, Any]]:
        """Return the disturbances with their times; end those that still last."""
        self._over.set()
        self._thread.join(STOP_WITHIN_S)
        return [self._done[number] for number in sorted(self._done)]

    def missed(self) -> list[str]:
        """Name the disturbances that never began, once it is stopped."""
        return [
            f"{self._planned[number]}: not done, the load was over before its second {each.at_s:g}"
            for number, each in enumerate(self._wanted)
            if number not in self._done and not self.faults
        ]

    def incidents(self) -> list[Incident]:
        """Return the disturbances as incidents of a manifest; for a killed broker also its start."""
        found = []
        for number, done in sorted(self._done.items()):
            fault, broker = self._planned[number], self._broker(number)
            began = self._ns(done["began_s"])
            ended = None if done["ended_s"] is None else self._ns(done["ended_s"])
            # A kill takes no time; the broker's absence ends with its start.
            is_kill = fault.name == "kill"
            done_ns = began if is_kill else ended
            found.append(Incident(kind=fault.name, broker=broker, at_ns=began, done_ns=done_ns))
            if is_kill and ended is not None:
                found.append(Incident(kind="start", broker=broker, at_ns=ended))
        return sorted(found, key=lambda one: one.at_ns)

    def _broker(self, number: int) -> str:
        """Return the broker's name as in events and charts; "" for a disturbance without one."""
        return (
            self._brokers[self._wanted[number].broker - 1] if self._planned[number].target else ""
        )

    def _ns(self, at_s: float) -> int:
        return self._start_ns + int(at_s * 1e9)

    def _run(self) -> None:
        for at_s, number, begins in steps(self._wanted):
            self._over.wait(max(0.0, at_s - self._now_s()))
            if self._over.is_set() and number not in self._done:
                continue
            try:
                self._step(number, begins=begins)
            except Exception as fault:  # the thread's top: of commands, HTTP, the balancer's kit
                self.faults.append(f"{self._planned[number]}: {reason_of(fault)}")
                return

    def _step(self, number: int, *, begins: bool) -> None:
        fault = self._planned[number]
        if begins:
            what = f"{fault.name} {self._broker(number)}".rstrip()
            self._done[number] = {"what": what, "began_s": self._now_s(), "ended_s": None}
            self._say(f"{self._now_s():.0f} s: {what}")
            fault.begin()
        else:
            # A killed broker has to start before it is back.
            done = self._done[number]
            done["lifted_s"] = self._now_s()
            if fault.name == "kill":
                self._say(
                    f"{done['lifted_s']:.0f} s: waiting for {self._broker(number)} to be back"
                )
            fault.end()
            done["ended_s"] = self._now_s()
            self._say(f"{done['ended_s']:.0f} s: {done['what']}: over")

    def _now_s(self) -> float:
        return (time.monotonic_ns() - self._start_ns) / 1e9
