"""The interface of a measured system: to start it, to send and receive, and to get outcomes.

A further system is an entry in `bench.load.systems` and a module with

    durability(profile) -> str          the meaning of its confirm; printed beside its numbers
    started(profile, network, say)      a context manager that starts the system and stops it: `Running`
    Sender, Receiver                    its client, in the load processes; see below
    measure(profile, running, folder)   instead of these two, if it brings its own load: `Outside`
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from bench.faults import Fault
from bench.harness.sampling import Probe
from bench.load.profile import Profile
from bench.load.systems import SYSTEMS
from bench.rows import Rows


class End(NamedTuple):
    """The end of one publish. outcome: one of `outcomes`. Times are this process's monotonic clock."""

    sequence: int
    outcome: int
    broker: str
    sent_ns: int
    settled_ns: int


class Delivered(NamedTuple):
    """One delivery, answered. received_ns: this process's monotonic clock."""

    body: bytes
    broker: str
    received_ns: int


@dataclass(frozen=True, slots=True)
class Where:
    """The identity of a publisher or consumer, and its environment. number: among its kind.

    rows: the writer of its rows; None for a run without them.
    """

    name: str
    topic: str
    subscription: str
    env: Mapping[str, str]
    number: int = 0
    rows: Rows | None = None


class Sender(Protocol):
    async def open(self) -> None: ...

    async def room(self) -> None:
        """Wait until fewer publishes are open than `load.window`; a closed loop asks before each."""

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        """Send one message; waits only if there is no room."""

    def ends(self) -> list[End]:
        """Return the publishes that have ended since the last call."""

    async def close(self, timeout_s: float) -> None:
        """Wait for open publishes; those still open after timeout_s end unknown."""


@runtime_checkable
class FullSpeed(Protocol):
    """A sender that can also publish without the costs of `Sender.send` and `Sender.ends`."""

    async def publish(self, body: bytes, count: int) -> None:
        """Publish a body `count` times. Raises BenchError unless all are confirmed."""


class Receiver(Protocol):
    async def open(self) -> None: ...

    async def take(self, max_wait_s: float) -> list[Delivered]:
        """Return new deliveries, answered; empty after max_wait_s without any."""

    async def close(self) -> None: ...


@runtime_checkable
class Linked(Protocol):
    """A receiver that reports its links."""

    def links(self) -> Set[str]:
        """Return the brokers, ``host:port``, to which it has a link now."""


class Running(Protocol):
    """A running system. Its nodes have numbers from 1."""

    def env(self) -> Mapping[str, str]:
        """Return the environment of the load processes; secrets are in files."""

    def declare(self, profile: Profile) -> None:
        """Create the topics and subscriptions of the run (`bench.load.profile`). Can be repeated."""

    def probes(self) -> Sequence[Probe]:
        """Return probes of its processes' costs. Their brokers are named as in `End` and `Delivered`."""

    def about(self) -> Mapping[str, Any]:
        """Return versions and the settings that decide its speed, for the results."""

    def fault(self, name: str, number: int) -> Fault:
        """Return a fault of node `number` to begin and end. BenchError if the node cannot have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The results of a system's own load. percentiles_ms: measure -> name -> value, as in `result.json`.

    It has only measures with the same meaning. client_cpu_s: CPU time of its process. argv: its command,
    without secrets. lacks: descriptions of what it does not measure.
    """

    confirmed_per_s: float
    delivered_per_s: float | None = None
    percentiles_ms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    client_cpu_s: float | None = None
    argv: Sequence[str] = ()
    lacks: Sequence[str] = ()


def durability(profile: Profile) -> str:
    """Describe what a confirm of that system promises."""
    said: Callable[[Profile], str] = _module(profile).durability
    return said(profile)


def started(
    profile: Profile, network: str, say: Callable[[str], None]
) -> AbstractContextManager[Running]:
    """Return a context that starts and stops the system of a profile. network: of all its addresses."""
    made: AbstractContextManager[Running] = _module(profile).started(profile, network, say)
    return made


def sender(profile: Profile, where: Where) -> Sender:
    made: Sender = _module(profile).Sender(profile, where)
    return made


def receiver(profile: Profile, where: Where) -> Receiver:
    made: Receiver = _module(profile).Receiver(profile, where)
    return made


def measure_outside(profile: Profile, running: Running, folder: Path) -> Outside:
    """Measure a system that brings its own load."""
    found: Outside = _module(profile).measure(profile, running, folder)
    return found


def _module(profile: Profile) -> Any:
    return importlib.import_module(SYSTEMS[profile.system.name].module)
