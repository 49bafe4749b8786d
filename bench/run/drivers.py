"""What a system must be able to do to be measured: send, say how it ended, receive, answer.

One system more is a module with `Sender` and `Receiver`, an entry in `MODULES`, and, where it is not
RabbitMQ, something that starts it. Each says what its confirm means, which stands beside its numbers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bench.run.profile import Profile

__all__ = [
    "MODULES",
    "Delivered",
    "End",
    "Receiver",
    "Sender",
    "Where",
    "durability",
    "receiver",
    "sender",
]

MODULES = {
    "messagebus": "bench.run.ours",
    "pika": "bench.run.pika_driver",
    "aio-pika": "bench.run.aio_pika_driver",
}


class End(NamedTuple):
    """How one publish ended. outcome: of `fates`. Times are this process's monotonic clock."""

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
    """What a load process is told of its place: by name and environment."""

    name: str
    topic: str
    subscription: str
    env: Mapping[str, str]
    folder: str


class Sender(Protocol):
    async def open(self) -> None: ...

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        """Hand over one message; waits only where there is no room."""

    def ends(self) -> list[End]:
        """What has ended since the last call."""

    async def close(self, timeout_s: float) -> None:
        """Wait for what is open; what is still open then has ended unknown."""


class Receiver(Protocol):
    async def open(self) -> None: ...

    async def take(self, max_wait_s: float) -> list[Delivered]:
        """What has arrived, answered; nothing after so long without any."""

    async def close(self) -> None: ...


def durability(profile: Profile) -> str:
    """What a confirm of that system promises, in words."""
    module = importlib.import_module(MODULES[profile.system.name])
    said: Callable[[Profile], str] = module.durability
    return said(profile)


def sender(profile: Profile, where: Where) -> Sender:
    made: Sender = importlib.import_module(MODULES[profile.system.name]).Sender(profile, where)
    return made


def receiver(profile: Profile, where: Where) -> Receiver:
    made: Receiver = importlib.import_module(MODULES[profile.system.name]).Receiver(profile, where)
    return made
