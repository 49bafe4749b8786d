"""Random combinations of options: cases drawn from a seed, and faults of a bus in memory."""

from __future__ import annotations

import asyncio
import inspect
import random
from typing import Any

from messagebus import AsyncConsumer, AsyncPublisher, Consumer, Publisher
from messagebus.testing import MemoryBus

# Longest time until a fault ends by itself.
FAULT_S_MAX = 0.03


class Drawn:
    """A case drawn from a seed; its attributes are shown when it fails. soon_s: draws when a fault ends."""

    def __init__(self, seed: int) -> None:
        self.seed, self.draw = seed, random.Random(seed)

    def soon_s(self) -> float:
        return self.draw.random() * FAULT_S_MAX

    def __repr__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in vars(self).items() if name != "draw")


async def call(
    client: Publisher | AsyncPublisher | Consumer | AsyncConsumer,
    method: str,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call a method of a client, blocking or asyncio, and wait for its result."""
    function = getattr(client, method)
    if isinstance(client, Publisher | Consumer):
        return await asyncio.to_thread(function, *args, **kwargs)
    result = function(*args, **kwargs)
    return await result if inspect.iscoroutine(result) else result


def break_links(fault: str, bus: MemoryBus, draw: random.Random, soon_s: float) -> None:
    """Carry out "cut all", "cut", and for this time "one away" or "freeze"; ignore other faults."""
    loop = asyncio.get_running_loop()
    if fault == "cut all":
        bus.lose_connection()
    elif fault == "cut":
        bus.lose_connection(draw.choice(bus.brokers))
    elif fault == "one away":
        name = draw.choice(bus.brokers)
        bus.stop_brokers(name)
        loop.call_later(soon_s, bus.start_brokers, name)
    elif fault == "freeze":
        bus.freeze()
        loop.call_later(soon_s, bus.thaw)


def links_left(bus: MemoryBus) -> list[str]:
    """Return a line for each broker to which a link is left."""
    brokers = bus._brokers.all.items()
    return [f"a link to {name} is left" for name, broker in brokers if broker.sites]
