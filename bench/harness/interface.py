"""The interface of a system that is measured: run, send, say how it ended, receive, answer.

One system more is an entry in `bench.load.systems` and a module with

    durability(profile) -> str          what its confirm means; stands beside its numbers
    started(profile, network, say)      a context manager that starts the system and stops it: `Running`
    Sender, Receiver                    its client, in the load processes; see below
    measure(profile, running, folder)   instead of these two, where it brings its own load: `Outside`
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bench.faults import Fault
from bench.harness.sampling import Probe
from bench.load.profile import Profile
from bench.load.systems import SYSTEMS

__all__ = [
    "EVENTS",
    "Delivered",
    "End",
    "Outside",
    "Receiver",
    "Running",
    "Sender",
    "Where",
    "durability",
    "measure_outside",
    "receiver",
    "sender",
    "started",
]

EVENTS = "events"
"""In a run's folder: rows for ``python -m spark``, where the profile wants them."""


class End(NamedTuple):
    """The end of one publish. outcome: of `outcomes`. Times are this process's monotonic clock."""

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
    """The place of a load process: its name and environment. number: among its kind."""

    name: str
    topic: str
    subscription: str
    env: Mapping[str, str]
    folder: str
    number: int = 0


class Sender(Protocol):
    async def open(self) -> None: ...

    async def room(self) -> None:
        """Wait until fewer publishes are open than `load.window`; a closed loop asks before each."""

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        """Hand over one message; waits only where there is no room."""

    def ends(self) -> list[End]:
        """Return the publishes that have ended since the last call."""

    async def close(self, timeout_s: float) -> None:
        """Wait for what is open; what is still open then has ended unknown."""


class Receiver(Protocol):
    async def open(self) -> None: ...

    async def take(self, max_wait_s: float) -> list[Delivered]:
        """Return the deliveries that have arrived, answered; nothing after so long without any."""

    async def close(self) -> None: ...


class Running(Protocol):
    """A system that runs. Its nodes have numbers from 1."""

    def env(self) -> Mapping[str, str]:
        """Return what the load processes need in their environment; files hold the secrets."""

    def declare(self, profile: Profile) -> None:
        """Make the topics and subscriptions of the run (`bench.load.profile`); again does no harm."""

    def probes(self) -> Sequence[Probe]:
        """Of its processes: what they cost. Their brokers are named as in `End` and `Delivered`."""

    def about(self) -> Mapping[str, Any]:
        """Versions and the settings that decide its speed; stands in the results."""

    def fault(self, name: str, number: int) -> Fault:
        """Return the fault of node `number`, to be begun and ended. BenchError for one it cannot have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """The results that a load of others tells of itself. percentiles_ms: measure -> name -> value, as in
    `result.json`, where its meaning is the same. client_cpu_s: of its process; argv: how it was
    called, without secrets; lacks: what of an own run it does not measure, in words.
    """

    confirmed_per_s: float
    delivered_per_s: float | None = None
    percentiles_ms: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    client_cpu_s: float | None = None
    argv: Sequence[str] = ()
    lacks: Sequence[str] = ()


def durability(profile: Profile) -> str:
    """Say in words what a confirm of that system promises."""
    said: Callable[[Profile], str] = _module(profile).durability
    return said(profile)


def started(
    profile: Profile, network: str, say: Callable[[str], None]
) -> AbstractContextManager[Running]:
    """The system of a profile, from its start to its end. network: of all its addresses."""
    made: AbstractContextManager[Running] = _module(profile).started(profile, network, say)
    return made


def sender(profile: Profile, where: Where) -> Sender:
    made: Sender = _module(profile).Sender(profile, where)
    return made


def receiver(profile: Profile, where: Where) -> Receiver:
    made: Receiver = _module(profile).Receiver(profile, where)
    return made


def measure_outside(profile: Profile, running: Running, folder: Path) -> Outside:
    """Of a system that brings its own load."""
    found: Outside = _module(profile).measure(profile, running, folder)
    return found


def _module(profile: Profile) -> Any:
    return importlib.import_module(SYSTEMS[profile.system.name].module)
