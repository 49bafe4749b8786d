"""The publisher's driver on brokers in memory: the same outbox, an answer at once.

Has what the clients use of `_io.publishing.PublishDriver`. Runs on one asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass

from messagebus._io.clock import now_ms
from messagebus._io.publishing import Counters
from messagebus._io.tickets import Ticket
from messagebus.config import PublisherConfig
from messagebus.core.outbox import Item, Outbox
from messagebus.destination import Topic
from messagebus.errors import MessageInvalid
from messagebus.message import Message
from messagebus.outcome import Durability, Outcome, Published
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
                while not all(item.settled for item in items):
                    self._settled.clear()
                    await self._settled.wait()
        return sum(not item.settled for item in items)

    def renew(self) -> None:
        """Move to the next broker."""
        self.route = MemoryRoute(
            self._brokers.balance(), self.route.dials + 1, self.route.moves + 1
        )
        self.outbox.link_opened(self.route.dials, after=())

    def submit(self, ticket: Ticket, timeout_ms: int) -> str:
        message_id = ticket.message.message_id or uuid.uuid4().hex
        lane = ticket.destination.exchange
        if not isinstance(ticket.destination, Topic):
            self._brokers.declare(ticket.destination)
        self.outbox.accept(
            Item(
                message_id=message_id,
                lane=lane,
                size=len(ticket.message.body),
                deadline_ms=now_ms() + timeout_ms,
                token=ticket,
            )
        )
        self.outbox.open_lane(lane)
        self._loop.call_soon(self._pump)
        return message_id

    def _post_pump(self) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._pump)

    def _pump(self) -> None:
        while not self._brokers.frozen and (items := list(self.outbox.take(now_ms()))):
            for item in items:
                self._send(item)
            answers = self.outbox.answered(self.route.dials, 0, multiple=True, ok=True)
            self.counters.last_confirm_ms = now_ms()
            self._settle(answers)
        self._on_room()

    def _send(self, item: Item) -> None:
        ticket: Ticket = item.token
        ticket.sent_ns, ticket.broker = time.monotonic_ns(), self.route.broker
        try:
            message = _copy(ticket.message, item.message_id)
        except MessageInvalid as fault:
            self._settle([self.outbox.refuse(item, f"cannot be encoded: {fault}")])
            return
        if not self._brokers.publish(self.route.broker, ticket.destination, message):
            self.outbox.returned(self.route.dials, item.lane, item.message_id)

    def _settle(self, settled: Iterable[Item]) -> None:
        for each in settled:
            ticket: Ticket = each.item.token
            outcome = Outcome(each.outcome)
            setattr(self.counters, each.outcome, getattr(self.counters, each.outcome) + 1)
            ticket.on_done(
                Published(
                    message_id=each.item.message_id,
                    outcome=outcome,
                    # What the real bus promises; nothing in memory survives anything.
                    durability=Durability.FSYNC
                    if outcome is Outcome.CONFIRMED
                    else Durability.NONE,
                    broker=ticket.broker,
                    attempts=each.item.attempts,
                    sent_ns=ticket.sent_ns,
                    settled_ns=time.monotonic_ns(),
                    reason=each.reason,
                )
            )
        self._settled.set()

    def _tick(self) -> None:
        self._settle(self.outbox.expire(now_ms()))
        self._on_room()
        self._timer = self._loop.call_later(TICK_MS / 1000, self._tick)


def _copy(message: Message, message_id: str) -> Message:
    """What arrives shares nothing with what was sent."""
    headers = deepcopy(dict(message.headers))
    return dataclasses.replace(message, message_id=message_id, headers=headers)
