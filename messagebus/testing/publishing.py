"""The publisher's driver on brokers in memory: the same outbox, an answer at once.

Has what the clients use of `_io.publishing.PublishDriver`. Runs on one asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from messagebus._io.clock import now_ms
from messagebus._io.properties import decode, encode
from messagebus._io.publishing import Counters
from messagebus._io.tickets import Many, Shape, Ticket, Waiter, tell
from messagebus.config import PublisherConfig
from messagebus.core.outbox import Item, Outbox
from messagebus.destination import Delay, Queue
from messagebus.message import Message
from messagebus.testing.brokers import MemoryBrokers

__all__ = ["MemoryPublishDriver"]

TICK_MS = 20


@dataclass(slots=True)
class MemoryRoute:
    """broker: the one that takes publishes now; counts as in `PublisherStats`."""

    broker: str
    dials: int = 1
    moves: int = 0


class MemoryPublishDriver:
    """One link to one of the brokers, always open."""

    list_age_ms = None
    list_faults = 0
    fatal = None
    settling = 0

    def __init__(
        self, brokers: MemoryBrokers, config: PublisherConfig, on_room: Callable[[], None]
    ) -> None:
        self._brokers, self._on_room = brokers, on_room
        self.outbox = Outbox(
            messages_max=config.backlog_messages_max,
            bytes_max=config.backlog_bytes_max,
            window=config.window,
            window_bytes_max=config.backlog_bytes_max,
            attempts_max=config.attempts_max,
            retry_unknown=config.retry_unknown,
        )
        self.counters = Counters()
        self.route = MemoryRoute(brokers.balance())
        self.connected = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._settled = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.outbox.link_opened(self.route.dials, after=())
        self._brokers.on_thaw(self._post_pump)
        self.connected.set()
        self._tick()

    async def stop(self, timeout_s: float) -> int:
        await self.flush(timeout_s)
        self._brokers.off_thaw(self._post_pump)
        if self._timer is not None:
            self._timer.cancel()
        left = self.outbox.give_up("the publisher was stopped")
        self._settle(left)
        return len(left)

    async def flush(self, timeout_s: float) -> int:
        items = list(self.outbox.unsettled())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not all(item.end for item in items):
                    self._settled.clear()
                    await self._settled.wait()
        return sum(item.end is None for item in items)

    def renew(self) -> None:
        """Move to the next broker."""
        self.route = MemoryRoute(
            self._brokers.balance(), self.route.dials + 1, self.route.moves + 1
        )
        self.outbox.link_opened(self.route.dials, after=())

    def submit(
        self,
        shape: Shape,
        body: bytes,
        message: Message | None,
        timeout_ms: int,
        waiter: Waiter | Many | None,
    ) -> Ticket:
        message = message or Message(body=body, content_type=shape.content_type)
        message_id = message.message_id or uuid.uuid4().hex
        destination = shape.address.wanted[0]
        if isinstance(destination, Queue):
            self._brokers.declare(destination)
        ticket = Ticket(message_id, shape, body, None, now_ms() + timeout_ms, waiter)
        try:
            # What arrives shares nothing with what was sent.
            ticket.properties = encode(message, message_id, 0)
        except Exception as fault:  # as the real one
            self.outbox.refuse(ticket, f"cannot be encoded: {type(fault).__name__}")
            self._loop.call_soon(tell, [ticket], time.monotonic_ns())
            return ticket
        self.outbox.accept(ticket)
        self.outbox.open_lane(shape.lane)
        self._loop.call_soon(self._pump)
        return ticket

    def packing_of(self, shape: Shape) -> None:
        """Nothing is packed in memory."""

    def _post_pump(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._pump)

    def _pump(self) -> None:
        while not self._brokers.frozen and (entries := self.outbox.take(now_ms())):
            for entry in entries:
                self._send(cast(Ticket, entry))
            answers = self.outbox.answered(self.route.dials, 0, multiple=True, ok=True)
            self.counters.last_confirm_ms = now_ms()
            self._settle(answers)
        self._on_room()

    def _send(self, ticket: Ticket) -> None:
        ticket.sent = (self.route.broker, time.monotonic_ns())
        assert ticket.properties is not None
        message = decode(ticket.properties, ticket.body)
        destination, *delay = ticket.shape.address.wanted
        assert not isinstance(destination, Delay)
        if delay:
            (step,) = delay
            assert isinstance(step, Delay)
            self._brokers.publish_later(step.ms / 1000, self.route.broker, destination, message)
        elif not self._brokers.publish(self.route.broker, destination, message):
            self.outbox.returned(self.route.dials, ticket.lane, ticket.message_id)

    def _settle(self, settled: list[Item]) -> None:
        tell(cast(list[Ticket], settled), time.monotonic_ns())
        self._settled.set()

    def _tick(self) -> None:
        self._settle(self.outbox.expire(now_ms()))
        self._on_room()
        self._timer = self._loop.call_later(TICK_MS / 1000, self._tick)
