"""What has arrived and has no answer yet: from the links' pipes to the application and back.

Runs on one asyncio loop. `core.receipts` decides where answers go, `core.fanin` what the application
gets next. A batch is unpacked here, into deliveries that are answered one by one.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from messagebus._io.batch import BatchDamaged, decode_batch
from messagebus._io.codec import Arrived
from messagebus._io.copies import Copies
from messagebus._io.pipe import Pipe
from messagebus._io.properties import ALONE, IN_BATCH, decode, is_batch
from messagebus._io.tasks import Tasks
from messagebus.core.fanin import FanIn
from messagebus.core.receipts import Ledger, Ledgers
from messagebus.destination import Source
from messagebus.message import Delivery, Message

__all__ = ["Counters", "Inbox"]

log = logging.getLogger("messagebus.consumer")


@dataclass(slots=True)
class Counters:
    delivered: int = 0
    acked: int = 0
    nacked: int = 0
    acks_stale: int = 0
    batches_damaged: int = 0


@dataclass(slots=True)
class _Desk:
    """One broker's live link."""

    ledger: Ledger
    pipe: Pipe


class Inbox:
    """The deliveries of one consumer, of all its brokers.

    on_turn: called when something arrived or was answered, at most once a turn of the loop.
    """

    def __init__(
        self, source: Source, handed_out_max: int, copies: Copies, on_turn: Callable[[], None]
    ) -> None:
        self._source, self._copies, self._on_turn = source, copies, on_turn
        self.counters = Counters()
        self.delivered: dict[str, int] = {}
        """By broker, since the start."""
        self._fanin: FanIn[Delivery] = FanIn(handed_out_max)
        self.take = self._fanin.take
        """The next delivery; None when there is none or the application holds enough."""
        self._ledgers = Ledgers()
        self._desks: dict[str, _Desk] = {}
        self._copying = Tasks()
        self._closed = False

    # ------------------------------------------------------------------ links
    def connected(self, broker: str, pipe: Pipe) -> int:
        """Deliveries of this link are ours from now on. Returns its epoch."""
        ledger = self._ledgers.connected(broker)
        self._desks[broker] = _Desk(ledger, pipe)
        self.delivered.setdefault(broker, 0)
        pipe.on_contents = functools.partial(self._arrived, ledger)
        pipe.on_turn = self._on_turn
        return ledger.epoch

    def disconnected(self, broker: str) -> None:
        """The link is gone: what it owed comes again, whatever the application does with it."""
        desk = self._desks.pop(broker, None)
        if desk is not None:
            desk.ledger.end()
            self._fanin.dropped(broker)

    def owed(self, broker: str) -> int:
        """AMQP deliveries of the live link without an answer."""
        desk = self._desks.get(broker)
        return desk.ledger.owed if desk else 0

    # ------------------------------------------------------------------ arriving
    def _arrived(self, ledger: Ledger, arrived: list[Arrived]) -> None:
        """What one read brought."""
        received_ns = time.monotonic_ns()
        alone: list[Arrived] = []
        for each in arrived:
            if is_batch(each[2]):
                self._arrived_alone(ledger, received_ns, alone)
                alone = []
                self._batch_arrived(ledger, received_ns, *each)
            else:
                alone.append(each)
        self._arrived_alone(ledger, received_ns, alone)

    def _arrived_alone(self, ledger: Ledger, received_ns: int, arrived: list[Arrived]) -> None:
        ledger.delivered([each[0] for each in arrived])
        source, made = self._source, Delivery.arrived
        self._hold(
            ledger.broker,
            [
                made(ledger, tag, 0, source, redelivered, received_ns, raw, body, ALONE)
                for tag, redelivered, raw, body in arrived
            ],
        )

    def _batch_arrived(
        self,
        ledger: Ledger,
        received_ns: int,
        tag: int,
        redelivered: bool,
        raw: bytes,
        body: bytes,
    ) -> None:
        try:
            entries = decode_batch(body)
        except BatchDamaged as fault:
            self._park_damaged(ledger, tag, raw, body, str(fault))
            return
        ledger.batch_delivered(tag, len(entries), body)
        source, made = self._source, Delivery.arrived
        self._hold(
            ledger.broker,
            [
                made(ledger, tag, part, source, redelivered, received_ns, entry, its_body, IN_BATCH)
                for part, (entry, its_body) in enumerate(entries, start=1)
            ],
        )

    def _hold(self, broker: str, deliveries: list[Delivery]) -> None:
        if deliveries and not self._closed:
            self._fanin.arrived(broker, deliveries)
            self.counters.delivered += len(deliveries)
            self.delivered[broker] += len(deliveries)

    def _park_damaged(self, ledger: Ledger, tag: int, raw: bytes, body: bytes, reason: str) -> None:
        log.error("batch damaged broker=%s reason=%r", ledger.broker, reason)
        self.counters.batches_damaged += 1
        ledger.batch_delivered(tag, 1, b"")
        if ledger.claim(tag, 1):
            message = decode(raw, body)
            self._copying.spawn(self._park(ledger, tag, 1, message, f"damaged batch: {reason}"))

    # ------------------------------------------------------------------ the application's side
    def ack(self, delivery: Delivery) -> bool:
        """Answer a delivery. False: its link has ended, or it was answered before; counted."""
        ledger = delivery.ledger
        if not ledger.ack(delivery.tag, delivery.part):
            return self._stale()
        self.counters.acked += 1
        self._fanin.answered(ledger.broker)
        return True

    def nack(self, delivery: Delivery, *, requeue: bool) -> bool:
        """Give a delivery back (requeue), or reject it into the parking queue. False: as `ack`."""
        ledger, tag, part = delivery.ledger, delivery.tag, delivery.part
        if not (ledger.claim(tag, part) if part else ledger.nack(tag)):
            return self._stale()
        self.counters.nacked += 1
        self._fanin.answered(ledger.broker)
        if not part:
            self._desks[ledger.broker].pipe.nack(tag, requeue)
        elif requeue:
            self._copying.spawn(self._give_back(ledger, tag, part, delivery.message))
        else:
            self._copying.spawn(self._park(ledger, tag, part, delivery.message, "rejected"))
        return True

    def _stale(self) -> bool:
        self.counters.acks_stale += 1
        return False

    async def _give_back(self, ledger: Ledger, tag: int, part: int, message: Message) -> None:
        if await self._copies.give_back(message, lambda: ledger.is_live):
            ledger.part_done(tag, part)
            self._on_turn()

    async def _park(
        self, ledger: Ledger, tag: int, part: int, message: Message, reason: str
    ) -> None:
        if await self._copies.park(message, reason, lambda: ledger.is_live):
            ledger.part_done(tag, part)
            self._on_turn()

    def flush(self) -> None:
        """Send all answers given since the last time, together."""
        for desk in self._desks.values():
            for tag, multiple in desk.ledger.flush():
                desk.pipe.ack(tag, multiple)
            desk.pipe.flush()

    # ------------------------------------------------------------------ the end
    def close(self) -> None:
        """Hand out nothing more: what is buffered goes back to the brokers with the links."""
        self._closed = True
        self._fanin.discard_buffers()

    async def finish(self, timeout_s: float) -> None:
        """Wait for copies under way, and copy what is left of half-answered batches.

        Without that their answered parts would be delivered again.
        """
        for desk in self._desks.values():
            for tag, parts, content in desk.ledger.half_answered():
                entries = decode_batch(content)
                for part in parts:
                    message = IN_BATCH.message(*entries[part - 1])
                    if desk.ledger.claim(tag, part):
                        self._copying.spawn(self._give_back(desk.ledger, tag, part, message))
        await self._copying.wait(timeout_s)
        self.flush()
        await self._copying.cancel()
        await self._copies.stop()

    @property
    def buffered(self) -> int:
        return self._fanin.buffered

    @property
    def handed_out(self) -> int:
        return self._fanin.handed_out
