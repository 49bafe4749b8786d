"""What has arrived and has no answer yet: from the links' pipes to the application and back.

Runs on one asyncio loop. `core.receipts` decides where answers go, `core.fanin` what the application
gets next. A batch is unpacked here, into deliveries that are answered one by one.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from messagebus._io.batch import BatchDamaged, decode_batch
from messagebus._io.codec import Arrived
from messagebus._io.copies import PARK_REASON, Copies, Original, Stored
from messagebus._io.pipe import Pipe
from messagebus._io.properties import ALONE, in_batch, is_batch, read_message_id, read_stamp_ms
from messagebus._io.tasks import Tasks
from messagebus.core.fanin import FanIn
from messagebus.core.receipts import Ledger, Ledgers
from messagebus.destination import Source
from messagebus.message import Delivery, Header

__all__ = ["Counters", "Inbox"]

log = logging.getLogger("messagebus.consumer")


@dataclass(slots=True)
class Counters:
    """retried, parked: answered by a copy that is stored. given_back: before anybody saw them."""

    delivered: int = 0
    acked: int = 0
    nacked: int = 0
    acks_stale: int = 0
    batches_damaged: int = 0
    retried: int = 0
    parked: int = 0
    given_back: int = 0


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
        ledger.batch_delivered(tag, len(entries), (raw, body))
        source, made, reading = self._source, Delivery.arrived, in_batch(raw)
        self._hold(
            ledger.broker,
            [
                made(ledger, tag, part, source, redelivered, received_ns, entry, its_body, reading)
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
        ledger.delivered([tag])
        if ledger.claim(tag, 0):
            headers = {PARK_REASON: f"damaged batch: {reason}"}
            original = _original(raw, body, read_stamp_ms(raw))
            parking = self._copies.park(original, headers, _is_live(ledger))
            self._copying.spawn(self._answer_by(parking, ledger, tag, 0))

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
            return True
        original = _original_of(delivery)
        if requeue:
            copying = self._copies.again(original, {}, _is_live(ledger))
        else:
            headers = {PARK_REASON: "rejected"}
            copying = self._copies.park(original, headers, _is_live(ledger))
        self._copying.spawn(self._answer_by(copying, ledger, tag, part))
        return True

    async def retry(
        self, delivery: Delivery, *, delay_ms: int, headers: Mapping[str, Header]
    ) -> bool:
        """Answer by a copy for another run, with these headers. False: as `ack`.

        Whoever waits may be cancelled: the copy goes on.
        """
        return await self._answered_by(
            delivery,
            lambda original, wanted: self._copies.again(
                original, headers, wanted, delay_ms=delay_ms
            ),
            "retried",
        )

    async def park(self, delivery: Delivery, *, headers: Mapping[str, Header]) -> bool:
        """Answer by a copy in the parking queue, with these headers. As `retry`."""
        return await self._answered_by(
            delivery,
            lambda original, wanted: self._copies.park(original, headers, wanted),
            "parked",
        )

    async def _answered_by(
        self,
        delivery: Delivery,
        copy: Callable[[Original, Callable[[], bool]], Coroutine[Any, Any, Stored]],
        counted: Literal["retried", "parked"],
    ) -> bool:
        ledger, tag, part = delivery.ledger, delivery.tag, delivery.part
        if not ledger.claim(tag, part):
            return self._stale()
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def answer() -> None:
            copying = copy(_original_of(delivery), _is_live(ledger))
            answered = await self._answer_by(copying, ledger, tag, part, counted)
            if not done.done():
                done.set_result(answered)

        self._copying.spawn(answer())
        return await done

    def _stale(self) -> bool:
        self.counters.acks_stale += 1
        return False

    async def _answer_by(
        self,
        copying: Coroutine[Any, Any, Stored],
        ledger: Ledger,
        tag: int,
        part: int,
        counted: Literal["retried", "parked", ""] = "",
    ) -> bool:
        """When a copy of what is claimed is stored, the original has its answer.

        counted: what the application holds until then, as what it counts.
        """
        stored = await copying
        if stored is Stored.UNWANTED:
            answered = False
        elif stored is Stored.CANNOT and not part:
            # The broker parks it by itself, without a word why, or drops what has no parking queue.
            answered = ledger.claim_refused(tag)
            if answered:
                self._desks[ledger.broker].pipe.nack(tag, False)
        else:
            answered = ledger.claim_done(tag, part)
        if counted:
            if answered:
                setattr(self.counters, counted, getattr(self.counters, counted) + 1)
                self._fanin.answered(ledger.broker)
            else:
                self.counters.acks_stale += 1
        self._on_turn()
        return answered

    # ------------------------------------------------------------------ giving back untouched
    @property
    def brokers(self) -> list[str]:
        """Those with a live link."""
        return list(self._desks)

    @property
    def is_full(self) -> bool:
        """Whether the application holds as much as it may."""
        return self._fanin.is_full

    def oldest(self, broker: str) -> Delivery | None:
        """What is handed out next of this broker."""
        return self._fanin.oldest(broker)

    def give_back_buffered(self, broker: str) -> int:
        """Give back what was never handed out, in order; a batch as a whole or not at all."""
        desk, count = self._desks[broker], 0
        batches: dict[int, list[Delivery]] = {}
        for delivery in self._fanin.withdraw(broker):
            if delivery.part:
                batches.setdefault(delivery.tag, []).append(delivery)
            elif desk.ledger.nack(delivery.tag):
                desk.pipe.nack(delivery.tag, True)
                count += 1
        for tag, parts in batches.items():
            if desk.ledger.batch_nack(tag, len(parts)):
                desk.pipe.nack(tag, True)
                count += len(parts)
            else:
                self._fanin.arrived(broker, parts)
        self.counters.given_back += count
        desk.pipe.flush()
        return count

    def give_back_untouched(self, deliveries: list[Delivery]) -> dict[str, int]:
        """Give back what was handed out and that the application never saw: how many, by broker."""
        counts: dict[str, int] = {}
        for delivery in deliveries:
            ledger = delivery.ledger
            if ledger.nack(delivery.tag):
                self._desks[ledger.broker].pipe.nack(delivery.tag, True)
                self._fanin.answered(ledger.broker)
                counts[ledger.broker] = counts.get(ledger.broker, 0) + 1
        self.counters.given_back += sum(counts.values())
        return counts

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
            for tag, parts, (raw, body) in desk.ledger.half_answered():
                entries, stamp_ms = decode_batch(body), read_stamp_ms(raw)
                for part in parts:
                    if desk.ledger.claim(tag, part):
                        original = _original(*entries[part - 1], stamp_ms, entry=True)
                        copying = self._copies.again(original, {}, _is_live(desk.ledger))
                        self._copying.spawn(self._answer_by(copying, desk.ledger, tag, part))
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


def _is_live(ledger: Ledger) -> Callable[[], bool]:
    """Whether an answer can still go where the delivery came from."""
    return lambda: ledger.is_live


def _original(raw: bytes, body: bytes, stamp_ms: int | None, *, entry: bool = False) -> Original:
    return Original(
        properties=raw,
        body=body,
        message_id=read_message_id(raw),
        entry=entry,
        stamp_ms=time.time_ns() // 1_000_000 if stamp_ms is None else stamp_ms,
    )


def _original_of(delivery: Delivery) -> Original:
    return Original(
        properties=delivery.properties,
        body=delivery.body,
        message_id=delivery.message_id,
        entry=delivery.part > 0,
        stamp_ms=delivery.first_ms,
    )
