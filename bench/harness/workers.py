"""The load processes of one run: started, brought to a common start, watched, and ended in order.

Coordinator and load processes exchange files in the run's folder. Each process reports that it is ready. When
all are, the coordinator sets the start in wall-clock time, and each process converts it to its own monotonic
clock. Meanwhile each process reports its progress, and the coordinator may change the rate of a steered load.
The coordinator also ends the run. Any host with access to the folder can join. Files are replaced whole, and
there are no connections between processes.

An open-ended load has a schedule of a week and ends when it is told to: first its publishers, then, when no
more messages come, its consumers.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.audit import ALLOWED, Audit, audit
from bench.environment import CHECKOUT
from bench.errors import BenchError, InputInvalid
from bench.harness.parts import CONSUMER, PUBLISHER, read_parts
from bench.load.profile import SECONDS_MAX, Load, Messages, Profile, Time, place_of, places
from bench.load.schedule import Constant
from bench.processes import Children, wait_until
from bench.rows import Events, Tail, read_events
from inventory.shell import ENV_SSH_CONFIG
from messagebus import BusConfig, declare
from messagebus.files import replace_file
from messagebus.recording.files import anchor_now
from messagebus.recording.manifest import ConsumerEntry, Incident, Manifest
from ops.local.cluster import LocalCluster

PROFILE, RUN = "profile.json", "run.json"
READY, START, OVER = "ready", "start.json", "over.json"
PROGRESS, RATE = "progress", "rate.json"
POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of the load.

    at_wall_ns: its time. host, wall_minus_monotonic_ns: the coordinator's host and clock.

    Processes of one host share one monotonic clock, so they share one offset too, and latencies
    between them are exact; those of another host read their own wall clock.
    """

    at_wall_ns: int
    host: str
    wall_minus_monotonic_ns: int

    @classmethod
    def soon(cls, after_s: float) -> Start:
        """Return a start in after_s seconds, by this host's clock."""
        offset = time.time_ns() - time.monotonic_ns()
        at_ns = time.monotonic_ns() + offset + int(after_s * 1e9)
        return cls(at_wall_ns=at_ns, host=socket.gethostname(), wall_minus_monotonic_ns=offset)

    def offset_ns(self) -> int:
        """Return the offset from this process's monotonic clock to the wall-clock time of the run."""
        if socket.gethostname() == self.host:
            return self.wall_minus_monotonic_ns
        return time.time_ns() - time.monotonic_ns()


def say_ready(folder: Path, name: str) -> None:
    """Report that this process has connected and may start."""
    (folder / READY).mkdir(exist_ok=True)
    (folder / READY / name).touch()


def missing(folder: Path, names: Iterable[str]) -> list[str]:
    """Return the names that are not ready yet."""
    return [name for name in names if not (folder / READY / name).exists()]


def say_start(folder: Path, start: Start) -> None:
    replace_file(folder / START, json.dumps(asdict(start)))


def say_over(folder: Path) -> None:
    """End the run: consumers end, and publishers that still run do too."""
    replace_file(folder / OVER, "{}")


def is_over(folder: Path) -> bool:
    return (folder / OVER).exists()


def wait_for_start(folder: Path, *, within_s: float) -> Start:
    """Wait for the start. Raises BenchError when it does not come in time, or the run ends before."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if (folder / START).exists():
            return Start(**json.loads((folder / START).read_text()))
        if is_over(folder):
            raise BenchError("the run was over before it had started")
        time.sleep(POLL_S)
    raise BenchError(f"nobody said start within {within_s:.0f} s")


@dataclass(slots=True)
class Progress:
    """The progress of one publisher or consumer. done: messages that it has sent, or received.

    brokers: ``host:port`` -> messages confirmed or delivered there. attached: broker -> monotonic time since
    which a consumer has a link to it, as far as it reports its links.
    """

    name: str
    done: int = 0
    brokers: dict[str, int] = field(default_factory=dict)
    attached: dict[str, int] = field(default_factory=dict)


def write_progress(folder: Path, progress: Progress) -> None:
    (folder / PROGRESS).mkdir(exist_ok=True)
    replace_file(folder / PROGRESS / f"{progress.name}.json", json.dumps(asdict(progress)))


def read_progress(folder: Path) -> Mapping[str, Progress]:
    """Return name -> last progress; without those that have not written any."""
    files = sorted((folder / PROGRESS).glob("[!.]*.json"))
    found = (Progress(**json.loads(path.read_text())) for path in files)
    return {each.name: each for each in found}


def set_rate(folder: Path, rate_per_s: float) -> None:
    """Set the rate of all publishers of a steered load together."""
    replace_file(folder / RATE, json.dumps(rate_per_s))


def rate_per_s(folder: Path) -> float | None:
    """Return the rate that was set last; None before the first."""
    path = folder / RATE
    return float(json.loads(path.read_text())) if path.exists() else None


# Without any progress.
STALLED_S = 120.0
# In all, for what is in the brokers' queues at the end.
DELIVERED_WITHIN_S = 1_800.0
# For open publishes at the end of a measured run.
END_WITHIN_S = 120.0
# Time from setting the start to the load: processes poll for it.
HEAD_START_S = 1.0
QUIET_S = 1.0


def make_folder(folder: Path) -> Path:
    """Make the folder if it is missing. Raises InputInvalid when it cannot be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InputInvalid(f"{folder}: no folder can be made: {fault.strerror}") from fault
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputInvalid(f"{folder}: nothing can be written there")
    return folder


def make_empty_folder(folder: Path) -> Path:
    """Make the folder of one run. Raises InputInvalid also when it is not empty."""
    if any(make_folder(folder).iterdir()):
        raise InputInvalid(f"{folder}: is not empty; a run has a folder of its own")
    return folder


def members(profile: Profile, kind: str, number: int) -> range:
    """Return the numbers of the publishers, or consumers, in that process."""
    each, load = profile.load.per_process, profile.load
    of = load.publishers if kind == PUBLISHER else load.consumers
    return range(number * each, min((number + 1) * each, of))


def relayed(host: str, env: Iterable[str]) -> list[str]:
    """Return the words that run a load process on another host. env: names of the variables that it gets."""
    return ["relay", "--host", host, *(word for name in env for word in ("--env", name))]


@dataclass(frozen=True, slots=True)
class Recording:
    """The place of the rows of every message, and the run's id in them."""

    folder: Path
    run_id: str


class Workers:
    """The load processes of one run. children: starts them; may have other processes too.

    hosts: other hosts, for SSH, which get the processes by turns; none for this one.

    meanwhile: called again and again during each wait. A wait ends as failed only when nothing moves for
    STALLED_S: no client becomes ready or ends, no message is published or delivered, no log grows.

    publishers, consumers: names of the clients. processes: kind -> names of their processes, which are the
    same while each has one client.
    """

    def __init__(
        self,
        profile: Profile,
        folder: Path,
        children: Children,
        recording: Recording | None = None,
        *,
        hosts: Sequence[str] = (),
        meanwhile: Callable[[], object] = lambda: None,
    ) -> None:
        self.folder, self.profile = folder, profile
        self.publishers = tuple(f"{PUBLISHER}-{n}" for n in range(profile.load.publishers))
        self.consumers = tuple(f"{CONSUMER}-{n}" for n in range(profile.load.consumers))
        self.processes: dict[str, list[str]] = {PUBLISHER: [], CONSUMER: []}
        self.start_ns = 0
        """Start of the load, on this process's monotonic clock."""
        self._children, self._recording, self._meanwhile = children, recording, meanwhile
        self._hosts = hosts
        self._anchor = anchor_now("coordinator")

    def launch(self, env: Mapping[str, str]) -> None:
        """Start the processes; they connect, and wait for the start of the load."""
        replace_file(self.folder / PROFILE, json.dumps(self.profile.as_json(), indent=1))
        kept = {ENV_SSH_CONFIG} if self._hosts else set[str]()
        plain = {
            name: value
            for name, value in os.environ.items()
            if name in kept or not name.startswith("MESSAGEBUS_")
        }
        command = ["--run", str(self.folder.resolve())]
        if recording := self._recording:
            command += [
                "--recording",
                str(recording.folder.resolve()),
                "--run-id",
                recording.run_id,
            ]
        for kind, names in self.processes.items():
            while members(self.profile, kind, number := len(names)):
                there = self._hosts[number % len(self._hosts)] if self._hosts else ""
                part = relayed(there, env) if there else ["worker"]
                argv = [sys.executable, "-m", "bench", *part, *command]
                argv += ["--kind", kind, "--number", str(number)]
                names.append(f"{kind}-{number}")
                self._children.start(names[-1], argv, plain | dict(env), CHECKOUT)

    def missing(self) -> list[str]:
        """Return the names of the clients that are not ready."""
        return missing(self.folder, (*self.publishers, *self.consumers))

    def meet(self) -> None:
        """Wait until all clients are ready, and set the start of the load. Raises BenchError."""
        self._wait(
            lambda: not self.missing(),
            lambda: f"not ready: {', '.join(self.missing())}",
            self.check,
        )
        self.start()

    def _wait(
        self,
        condition: Callable[[], object],
        what: Callable[[], str],
        check: Callable[[], object],
        within_s: float | None = None,
    ) -> None:
        def moves() -> tuple[int, int, int]:
            done = sum(each.done for each in read_progress(self.folder).values())
            return done, len(self.missing()), self._children.log_bytes()

        def checked() -> None:
            check()
            self._meanwhile()

        if within_s is None:
            wait_until(condition, within_s=STALLED_S, what=what, check=checked, moves=moves)
        else:  # of a measured run, whose machine does as little as possible beside it
            wait_until(condition, within_s=within_s, what=what, check=checked)

    def start(self) -> None:
        """Set the start of the load, soon."""
        start = Start.soon(HEAD_START_S)
        say_start(self.folder, start)
        self.start_ns = start.at_wall_ns - start.wall_minus_monotonic_ns

    def check(self, *, may_end: bool = False) -> None:
        """Check all processes. Raises BenchError when one failed, or ended although it may not."""
        names = [*self.processes[PUBLISHER], *self.processes[CONSUMER]]
        self._children.check(names, may_end=may_end)

    def pid(self, name: str) -> int:
        return self._children.pid(name)

    def wait_published(self, within_s: float | None = None) -> None:
        """Wait until the publishers have ended. Raises BenchError."""

        def running() -> list[str]:
            return self._children.running(self.processes[PUBLISHER])

        def check() -> None:
            self._children.check(self.processes[PUBLISHER], may_end=True)
            self.check_consumers()

        self._wait(
            lambda: not running(),
            lambda: f"publishers that did not end: {', '.join(running())}",
            check,
            within_s,
        )

    def wait_delivered(self, show: Callable[[int], object] = lambda left: None) -> None:
        """Wait until each subscription had every confirmed message of a recorded run, and no more come.

        Gives up when nothing has come for STALLED_S: the audit reports what is missing. show: called with the
        number of deliveries to come.
        """
        assert self._recording is not None, "a run without rows does not know what is missing"
        folder, readers = self._recording.folder, places(self.profile)
        published, delivered = Tail(folder, "published"), Tail(folder, "delivered")
        missing = {
            (row["topic"], subscription, row["message_id"])
            for row in published.read()
            if row["outcome"] == "confirmed"
            for topic, subscription in readers
            if topic == row["topic"]
        }
        newest_s = time.monotonic()

        def is_quiet() -> bool:
            nonlocal newest_s
            for row in delivered.read():
                newest_s = time.monotonic()
                missing.discard((row["topic"], row["subscription"], row["message_id"]))
            show(len(missing))
            return time.monotonic() - newest_s > (STALLED_S if missing else QUIET_S)

        self._wait(
            is_quiet,
            lambda: f"{len(missing)} deliveries",
            self.check_consumers,
            DELIVERED_WITHIN_S,
        )

    def received(self) -> int:
        """Return the number of deliveries so far."""
        progress = read_progress(self.folder)
        return sum(progress[name].done for name in self.consumers if name in progress)

    def check_consumers(self) -> None:
        self._children.check(self.processes[CONSUMER])

    def finish(self) -> None:
        """End the publishers, then, when no more messages come, the consumers. Raises BenchError."""
        self._children.terminate(self.processes[PUBLISHER])
        self.wait_published()
        self.wait_delivered()
        self.end_consumers()

    def end_consumers(self) -> None:
        """End the run, and wait until all processes have written their parts. Raises BenchError."""
        say_over(self.folder)
        processes = [*self.processes[PUBLISHER], *self.processes[CONSUMER]]
        self._wait(
            lambda: not self._children.running(processes),
            lambda: f"did not end: {', '.join(self._children.running(processes))}",
            lambda: self._children.check(processes, may_end=True),
        )
        self._children.check(processes, may_end=True)

    def stop(self) -> None:
        """End all processes that still run, also those that wait for the start."""
        say_over(self.folder)
        self._children.stop_all()

    def without_part(self) -> list[str]:
        """Return the names of the clients that have written no part."""
        there = {part.name for part in read_parts(self.folder)}
        return [name for name in (*self.publishers, *self.consumers) if name not in there]

    def manifest(
        self, brokers: Sequence[str], incidents: Sequence[Incident] = (), *, complete: bool
    ) -> Manifest:
        """Return the manifest of the recorded run, as known now; complete: it has ended in order, now."""
        assert self._recording is not None, "a run without rows has no manifest"
        every = places(self.profile)
        load = self.profile.load
        return Manifest(
            run_id=self._recording.run_id,
            topics={
                topic: tuple(name for other, name in every if other == topic) for topic, _ in every
            },
            brokers=tuple(brokers),
            start_ns=self.start_ns,
            end_ns=time.monotonic_ns() if complete else None,
            anchor=self._anchor,
            loop="closed" if load.is_closed else "open",
            publishers=self.publishers,
            consumers=tuple(
                ConsumerEntry(name=name, subscription=place_of(self.profile, number)[1])
                for number, name in enumerate(self.consumers)
            ),
            prefetch=load.prefetch,
            incidents=tuple(incidents),
            complete=complete,
            warm_up_s=self.profile.time.warm_up_s,
        )

    def judged(
        self, brokers: Sequence[str], incidents: Sequence[Incident]
    ) -> tuple[Manifest, Events, Audit]:
        """Save the manifest of the ended run, and audit its rows by message id."""
        assert self._recording is not None, "a run without rows cannot be judged by them"
        manifest = self.manifest(brokers, incidents, complete=True)
        manifest.save(self._recording.folder)
        events = read_events(self._recording.folder, manifest)
        return manifest, events, audit(manifest, events, ALLOWED)

    def whole(
        self, brokers: Sequence[str], incidents: Sequence[Incident], *, may_lose: bool = False
    ) -> tuple[Events, Audit]:
        """Audit as `judged` does. Raises BenchError when it does not hold; may_lose: but for losses."""
        _, events, result = self.judged(brokers, incidents)
        if not result.holds and not (may_lose and result.total("lost")):
            raise BenchError(
                f"the audit of {self.folder} does not hold: {'; '.join(result.faults)}"
            )
        return events, result


def open_ended(
    name: str, places: Sequence[str], *, publishers: int, rate_per_s: float, body_bytes: int
) -> Profile:
    """Return the profile of a constant load until it is told to end. places: of each consumer."""
    return Profile(
        name=name,
        load=Load(
            schedule=Constant(rate_per_s=rate_per_s),
            publishers=publishers,
            consumers=len(places),
        ),
        messages=Messages(size=body_bytes, places=tuple(places)),
        time=Time(warm_up_s=0, measured_s=SECONDS_MAX),
    )


@contextmanager
def at_work(
    cluster: LocalCluster,
    folder: Path,
    places: Sequence[str],
    *,
    publishers: int,
    rate_per_s: float,
    body_bytes: int,
    env: Mapping[str, str] | None = None,
) -> Iterator[Workers]:
    """Run an open-ended load with rows, in a folder of its own; yield when it has begun.

    places: of each consumer; they are declared. rate_per_s: of all publishers together. env: more of the
    clients' settings. It ends by `Workers.finish`; whatever still runs at the exit is stopped.
    """
    declare(BusConfig.from_env(cluster.client_env()), list(dict.fromkeys(places)))
    name = places[0].partition("/")[0]
    profile = open_ended(
        name, places, publishers=publishers, rate_per_s=rate_per_s, body_bytes=body_bytes
    )
    children = Children(make_empty_folder(folder) / "logs")
    workers = Workers(profile, folder, children, Recording(folder, profile.name))
    try:
        workers.launch(cluster.client_env() | dict(env or {}))
        workers.meet()
        time.sleep(max(0.0, (workers.start_ns - time.monotonic_ns()) / 1e9))
        yield workers
    finally:
        workers.stop()
