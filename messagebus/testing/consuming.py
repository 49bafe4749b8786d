"""The consumer's driver on brokers in memory: the same fan-in and receipts, links that never end.

Has what the clients use of `_io.consuming.ConsumeDriver`. Runs on one asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from messagebus._io.inbox import Counters
from messagebus._io.properties import ALONE, encode
from messagebus._io.registering import Registration
from messagebus.config import ConsumerConfig
from messagebus.core.fanin import FanIn
from messagebus.core.receipts import Ledger, Ledgers
from messagebus.destination import Source
from messagebus.message import Delivery, Message
from messagebus.stats import BrokerStats, ConsumerStats
from messagebus.testing.brokers import MemoryBrokers, Taker

__all__ = ["MemoryConsumeDriver"]


class MemoryConsumeDriver:
    """Attached to every broker from `start` to `stop`."""

    fatal = None

    def __init__(
        self,
        brokers: MemoryBrokers,
        source: Source,
        config: ConsumerConfig,
        on_ready: Callable[[], None],
    ) -> None:
        self._brokers, self._source, self._config = brokers, source, config
        self._on_ready = on_ready
        self.counters = Counters()
        self.registration: Registration | None = None
        self._loop = asyncio.get_running_loop()
        self._fanin: FanIn[Delivery] = FanIn(config.handed_out_max)
        self._ledgers = Ledgers()
        self._live: dict[str, Ledger] = {}
        self._takers: dict[str, Taker] = {}
        self._delivered = dict.fromkeys(brokers.names, 0)
        self._answered_one = asyncio.Event()
        self._stopping = False
        self._paused = False

    # ------------------------------------------------------------------ life
    def start(self) -> None:
        self._brokers.declare(self._source)
        self.registration = Registration(True, held=self._brokers.names)
        for broker in self._brokers.names:
            self._live[broker] = self._ledgers.connected(broker)
            self._takers[broker] = taker = Taker(self._config.prefetch, self._deliver_from(broker))
            self._brokers.attach(broker, self._source, taker)

    def _deliver_from(self, broker: str) -> Callable[[int, Message, bool], None]:
        """What a broker calls, on whichever thread."""

        def deliver(tag: int, message: Message, redelivered: bool) -> None:
            self._loop.call_soon_threadsafe(self._arrived, broker, tag, message, redelivered)

        return deliver

    async def stop(self, drain_s: float, *, untouched: int = 0) -> int:
        self._stopping = True
        self._fanin.discard_buffers()
        await self.wait_until(lambda: self._fanin.handed_out <= untouched, drain_s)
        left = max(0, self._fanin.handed_out - untouched)
        takers, self._takers = self._takers, {}
        for broker, taker in takers.items():
            self._live.pop(broker).end()
            self._fanin.dropped(broker)
            self._brokers.detach(broker, self._source, taker)
        return left

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._answered_one.clear()
                    await self._answered_one.wait()
        return condition()

    def is_attached_to_one(self) -> bool:
        return bool(self._takers)

    def is_attached_to_all(self) -> bool:
        return bool(self._takers)

    # ------------------------------------------------------------------ the application's side
    def take(self) -> Delivery | None:
        return None if self._stopping or self._paused else self._fanin.take()

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._tell()

    def ack(self, delivery: Delivery) -> bool:
        return self._answer(delivery, "ack")

    def nack(self, delivery: Delivery, *, requeue: bool) -> bool:
        return self._answer(delivery, "requeue" if requeue else "reject")

    async def ack_safe(self, delivery: Delivery, timeout_s: float) -> bool:
        return self.ack(delivery)

    def _answer(self, delivery: Delivery, answer: str) -> bool:
        ledger = delivery.ledger
        if not ledger.nack(delivery.tag):  # each answer is given at once, none is coalesced
            self.counters.acks_stale += 1
            return False
        if answer == "ack":
            self.counters.acked += 1
        else:
            self.counters.nacked += 1
        self._fanin.answered(ledger.broker)
        taker = self._takers[ledger.broker]
        self._brokers.answer(ledger.broker, self._source, taker, delivery.tag, answer)
        self._answered_one.set()
        self._loop.call_soon(self._tell)
        return True

    def _arrived(self, broker: str, tag: int, message: Message, redelivered: bool) -> None:
        if broker not in self._takers:
            return  # given back meanwhile
        ledger = self._live[broker]
        ledger.delivered(tag)
        if self._stopping:
            return
        self.counters.delivered += 1
        self._delivered[broker] += 1
        raw = encode(message, message.message_id, 0)
        arrived_ns = time.monotonic_ns()
        delivery = Delivery.arrived(
            ledger, tag, 0, self._source, redelivered, arrived_ns, raw, message.body, ALONE
        )
        self._fanin.arrived(broker, delivery)
        self._tell()

    def _tell(self) -> None:
        if not self._stopping:
            self._on_ready()

    # ------------------------------------------------------------------ numbers
    def keep_alive(self) -> bool:
        return bool(self._takers)

    def stats(self) -> ConsumerStats:
        return ConsumerStats(
            brokers={
                broker: BrokerStats(
                    state="open",
                    delivered=self._delivered[broker],
                    owed=self._live[broker].owed if broker in self._live else 0,
                )
                for broker in self._brokers.names
            },
            delivered=self.counters.delivered,
            acked=self.counters.acked,
            nacked=self.counters.nacked,
            acks_stale=self.counters.acks_stale,
            batches_damaged=0,
            buffered=self._fanin.buffered,
            handed_out=self._fanin.handed_out,
            list_generation=0,
            list_age_ms=None,
            list_faults=0,
        )
