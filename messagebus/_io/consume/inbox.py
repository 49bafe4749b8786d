"""The unanswered deliveries of all brokers, and the way of each answer to its link.

Runs on one asyncio loop. `core.deliveries` decides where answers go, and which delivery the
application gets next. A batch is unpacked here, into deliveries that are answered one by one.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import operator
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from messagebus._io.amqp.batch import BatchDamaged, decode_batch
from messagebus._io.amqp.connection import Transport
from messagebus._io.amqp.frames import HEADER_FRAME_MAX, TOO_LONG, Arrived
from messagebus._io.amqp.properties import (
    ALONE,
    HEADERS,
    in_batch,
    is_batch,
    read_headers,
    read_message_id,
    read_stamp_ms,
)
from messagebus._io.consume.copies import PARK_REASON, Copies, Original, Stored
from messagebus._io.loop import Tasks
from messagebus.core.deliveries import FanIn, Ledger, Ledgers
from messagebus.core.headers import DEATH_MARK, has_strange_deaths
from messagebus.core.parking import TTL_HEADER, is_late, read_early
from messagebus.destination import Source, Subscription
from messagebus.handling import park_headers
from messagebus.message import Delivery, Header
from messagebus.topology import Options

if TYPE_CHECKING:
    from messagebus._io.consume.dedup import Deduplication
    from messagebus._io.consume.ordering import Ordering

log = logging.getLogger("messagebus.consumer")

DELIVERY_COUNT = "x-delivery-count"
WITH_HEADERS = HEADERS >> 8
# Reasons of messages that are parked as they arrive, because their broker must not dead-letter them.
STRANGE_DEATHS = "x-death that no broker can count on"
HEADERS_TOO_LONG = f"headers of more than {HEADER_FRAME_MAX} bytes, which are left out"
# Number of batches kept that a lost link left half answered, until they come again.
BEGUN_MAX = 1_000


@dataclass(slots=True)
class Counters:
    """Counts of one consumer. retried, parked: answered by a stored copy. given_back: returned unseen."""

    delivered: int = 0
    acked: int = 0
    nacked: int = 0
    acks_stale: int = 0
    batches_damaged: int = 0
    retried: int = 0
    parked: int = 0
    given_back: int = 0


@dataclass(slots=True)
class _Channel:
    """One broker's live link.

    shut: arriving deliveries are handed out no more; `late` keeps them. kept: nor are those that rest.
    copied_out: tag -> time of arrival of batches with parts that were copied before the consumer timeout.
    """

    ledger: Ledger
    transport: Transport
    shut: bool = False
    kept: bool = False
    late: list[Delivery] = field(default_factory=list)
    copied_out: dict[int, int] = field(default_factory=dict)
    delivered_before: int = 0


class Inbox:
    """The deliveries of one consumer, of all its brokers.

    on_turn: called when something arrived or was answered, at most once a turn of the loop.
    """

    def __init__(
        self, source: Source, handed_out_max: int, copies: Copies, on_turn: Callable[[], None]
    ) -> None:
        self._source, self._copies, self._on_turn = source, copies, on_turn
        self._has_parking = not (isinstance(source, Subscription) and source.expires_s)
        self.counters = Counters()
        self.delivered: dict[str, int] = {}
        """Count of deliveries since the start, by broker."""
        self._fanin: FanIn[Delivery] = FanIn(handed_out_max)
        self.take = self._fanin.take
        """Returns the next delivery; None when there is none or the application holds enough."""
        self.take_buffered = self._fanin.take
        """Returns the next delivery that was handed out, whatever its claim."""
        self.hand_over_of = self._fanin.arrived
        """Gives deliveries of one live link to the application in their turn."""
        self.dedup: Deduplication | None = None
        """Stands between what arrives and what is handed out; None without deduplication."""
        self.order: Ordering | None = None
        """Stands behind deduplication; None where no order is kept."""
        self.ledgers = Ledgers()
        self._channels: dict[str, _Channel] = {}
        self._copying = Tasks()
        # Batches that a lost link left half answered -> their parts without an answer.
        self._begun: dict[tuple[str, int], set[int]] = {}
        self.delivery_limit = source.delivery_limit
        """Number of times that a returned message is delivered again; 0: no limit."""
        self.in_order = source.single_active
        """True when returned deliveries must come again in their order: see docs/internals.md."""

    def exists_as(self, options: Options) -> None:
        """Take over the source's existing options, where its consumer asked for fewer."""
        limit = options.get("delivery_limit")
        self.delivery_limit = limit if isinstance(limit, int) else self.delivery_limit
        if options.get("single_active") is True and not self.in_order:
            self.in_order = True
            if self.dedup is not None:
                self.dedup.keep_order()

    def deduplicate(self, dedup: Deduplication) -> None:
        """Hand out only what this grants, and ack only what it has stored. Called before the first link."""
        self.dedup = dedup
        self.take = dedup.take

    def keep_order(self, order: Ordering) -> None:
        """Hand out only what is next in its lane, and never give back otherwise than in order."""
        self.order, self.in_order = order, True
        if self.dedup is not None:
            self.dedup.lanes = order

    # Links.
    def connected(
        self,
        broker: str,
        transport: Transport,
        round_trip: Callable[[], Awaitable[object]] | None = None,
    ) -> int:
        """Take the deliveries of this link from now on. Returns its epoch."""
        ledger = self.ledgers.connected(broker)
        before = self.delivered.setdefault(broker, 0)
        self._channels[broker] = _Channel(ledger, transport, delivered_before=before)
        transport.on_contents = functools.partial(self._arrived, ledger)
        transport.on_turn = self._on_turn
        if self.dedup is not None and round_trip is not None:
            self.dedup.fence(ledger, transport, round_trip)
        return ledger.epoch

    def disconnected(self, broker: str) -> None:
        """Drop the link: its unanswered deliveries come again, also those that the application holds."""
        channel = self._channels.pop(broker, None)
        if channel is not None:
            self._remember(channel.ledger)
            unsent = channel.ledger.unsent  # void: their broker delivers them again
            self.counters.acked -= unsent
            self.counters.acks_stale += unsent
            channel.ledger.end()
            if self.dedup is not None or self.order is not None:
                self._take_out(channel.ledger, is_lost=True)
            self._fanin.dropped(broker)

    def delivered_by(self, broker: str) -> int:
        """Return the number of deliveries of the live link."""
        channel = self._channels.get(broker)
        return 0 if channel is None else self.delivered[broker] - channel.delivered_before

    def _remember(self, ledger: Ledger) -> None:
        """Keep which parts of its batches are answered: they come again with the others.

        Leaves out batches with a copy under way: whether it is stored is unknown.
        """
        for unanswered, (raw, body) in ledger.answered_for_good():
            self._begun[_batch_key(raw, body)] = set(unanswered)
        while len(self._begun) > BEGUN_MAX:
            del self._begun[next(iter(self._begun))]

    def shut(self, broker: str) -> None:
        """Hand out nothing that arrives from now on; deliveries that have arrived are still handed out."""
        if channel := self._channels.get(broker):
            channel.shut = True

    def holds(self, broker: str) -> bool:
        """Return whether deliveries of this broker are held by the application, buffered, or being copied."""
        channel = self._channels.get(broker)
        if channel is None:
            return False
        waits = self.dedup is not None and self.dedup.holds(channel.ledger)
        if self.order is not None:  # not that of stopped keys, which goes back with the link
            waits = self.order.keyed.holds(channel.ledger)
        return waits or self._fanin.holds(broker) or channel.ledger.is_claimed

    def owed(self, broker: str) -> int:
        """Return the number of AMQP deliveries of the live link without an answer."""
        channel = self._channels.get(broker)
        return channel.ledger.owed if channel else 0

    # Arriving.
    def _arrived(self, ledger: Ledger, arrived: list[Arrived]) -> None:
        """Take the deliveries of one read."""
        received_ns = time.monotonic_ns()
        alone: list[Arrived] = []
        for each in arrived:
            if each[2][0] & WITH_HEADERS and DEATH_MARK in each[2] and self._is_kept(ledger, each):
                continue
            if is_batch(each[2]):
                self._arrived_alone(ledger, received_ns, alone)
                alone = []
                self._batch_arrived(ledger, received_ns, *each)
            else:
                alone.append(each)
        self._arrived_alone(ledger, received_ns, alone)

    def _is_kept(self, ledger: Ledger, arrived: Arrived) -> bool:
        """Return whether a delivery with an `x-death` is not for the application, and answer it by a copy.

        One that left a delay step at the wrong time waits on, or is parked. One whose `x-death` a client
        wrote so that no broker can count on is parked without it: RabbitMQ 3.10 would end all its
        dead-lettering if the delivery were rejected.
        """
        tag, _redelivered, raw, body = arrived
        headers = read_headers(raw)
        early, strange = read_early(headers), has_strange_deaths(headers)
        if strange:
            early = None
            if not self._has_parking:  # then nothing of its queue is ever dead-lettered
                return False
        elif is_batch(raw) or (early is None and not is_late(headers, time.time_ns() // 1_000_000)):
            return False
        ledger.delivered([tag])
        if ledger.claim(tag, 0):
            original, is_live = _original(raw, body, read_stamp_ms(raw)), _is_live(ledger)
            if early is not None:
                marks = {TTL_HEADER: early.ttl_ms}
                copying = self._copies.again(original, marks, is_live, delay_ms=early.rest_ms)
            else:
                reason = STRANGE_DEATHS if strange else "expired"
                if raw == TOO_LONG:
                    reason = HEADERS_TOO_LONG
                    log.error("headers too long broker=%s source=%s", ledger.broker, self._source)
                copying = self._copies.park(original, {PARK_REASON: reason}, is_live)
            self._copying.spawn(
                self._answer_when_stored(copying, ledger, tag, 0, may_reject=not strange)
            )
        return True

    def _arrived_alone(self, ledger: Ledger, received_ns: int, arrived: list[Arrived]) -> None:
        ledger.delivered([each[0] for each in arrived])
        source, made = self._source, Delivery._arrived
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
        unanswered = self._begun.pop(_batch_key(raw, body), None) if redelivered else None
        source, made, reading = self._source, Delivery._arrived, in_batch(raw)
        held = []
        for part, (entry, its_body) in enumerate(entries, start=1):
            if unanswered is not None and part not in unanswered:
                ledger.ack(tag, part)
                continue
            held.append(
                made(ledger, tag, part, source, redelivered, received_ns, entry, its_body, reading)
            )
        self._hold(ledger.broker, held)

    def _hold(self, broker: str, deliveries: list[Delivery]) -> None:
        if not deliveries:
            return
        channel = self._channels.get(broker)
        if channel is None:  # read behind the end of its link: they come again
            return
        if channel.shut:
            channel.late += deliveries
            return
        if self.order is not None:
            self.order.arrived(broker, deliveries)
        elif self.dedup is None:
            self._fanin.arrived(broker, deliveries)
        if self.dedup is not None:
            self.dedup.arrived(channel.ledger, deliveries)
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
            self._copying.spawn(self._answer_when_stored(parking, ledger, tag, 0))

    # The application's side.
    def has(self, delivery: Delivery) -> bool:
        """Return whether a delivery came over one of the current links; on any thread."""
        channel = self._channels.get(delivery._ledger.broker)
        return channel is not None and channel.ledger is delivery._ledger

    def ack(self, delivery: Delivery) -> bool:
        """Answer a delivery. False: its link has ended, or it was answered before; counted."""
        ledger = delivery._ledger
        if self.dedup is not None:
            return self._ack_when_stored(self.dedup, delivery)
        answered = ledger.ack(delivery._tag, delivery._part)
        if self.order is not None:
            self.order.answered(delivery)
        if not answered:
            return self._stale()
        self.counters.acked += 1
        self._fanin.answered(ledger.broker)
        return True

    def nack(self, delivery: Delivery, *, requeue: bool) -> bool:
        """Give a delivery back (requeue), or reject it into the parking queue. False: as `ack`."""
        ledger, tag, part = delivery._ledger, delivery._tag, delivery._part
        if self.order is not None:
            if requeue:  # in its place: a broker would deliver it behind others
                return self._rest(self.order, delivery, 0, {})
            self.order.parks(delivery, {})
            self.order.answered(delivery)
        if self.dedup is not None:
            # The next one to get it may be told that it runs elsewhere, and asks again.
            self.dedup.give_back(delivery)
        if not (ledger.claim(tag, part) if part else ledger.nack(tag)):
            return self._stale()
        self.counters.nacked += 1
        self._fanin.answered(ledger.broker)
        if not part:
            self._channels[ledger.broker].transport.nack(tag, requeue)
            return True
        original = _original_of(delivery)
        if requeue:
            copying = self._copies.again(original, {}, _is_live(ledger))
        else:
            headers = {PARK_REASON: "rejected"}
            copying = self._copies.park(original, headers, _is_live(ledger))
        self._copying.spawn(self._answer_when_stored(copying, ledger, tag, part))
        return True

    async def retry(
        self, delivery: Delivery, *, delay_ms: int, headers: Mapping[str, Header]
    ) -> bool:
        """Answer by a copy for another run, with these headers. False: as `ack`.

        The caller may be cancelled: the copy goes on. Where order is kept it rests here, without a copy.
        """
        if self.order is not None:
            return self._rest(self.order, delivery, delay_ms, headers)
        return await self._answer_by_copy(
            delivery,
            lambda original, wanted: self._copies.again(
                original, headers, wanted, delay_ms=delay_ms
            ),
            "retried",
        )

    async def park(self, delivery: Delivery, *, headers: Mapping[str, Header]) -> bool:
        """Answer by a copy in the parking queue, with these headers. As `retry`."""
        if self.order is not None:
            self.order.parks(delivery, headers)
        return await self._answer_by_copy(
            delivery,
            lambda original, wanted: self._copies.park(original, headers, wanted),
            "parked",
        )

    def _rest(
        self, order: Ordering, delivery: Delivery, delay_ms: int, headers: Mapping[str, Header]
    ) -> bool:
        """Keep a delivery for its next run, in its place. False: its link has ended."""
        ledger = delivery._ledger
        if not ledger.is_live:
            if self.dedup is not None:
                self.dedup.give_back(delivery)
            order.answered(delivery)
            return self._stale()
        self.counters.retried += bool(headers)
        self._fanin.answered(ledger.broker)
        order.rest(delivery, delay_ms, headers)
        channel = self._channels[ledger.broker]
        if channel.kept:
            channel.late += self._withdrawn(channel, ())
        return True

    async def _answer_by_copy(
        self,
        delivery: Delivery,
        copy: Callable[[Original, Callable[[], bool]], Coroutine[Any, Any, Stored]],
        counted: Literal["retried", "parked"],
    ) -> bool:
        ledger, tag, part = delivery._ledger, delivery._tag, delivery._part
        dedup, settled = self.dedup, None
        if not ledger.claim(tag, part):
            if dedup is not None:
                dedup.give_back(delivery)
            if self.order is not None:
                self.order.answered(delivery)
            return self._stale()
        if dedup is not None and counted == "parked":
            settled = functools.partial(dedup.parked, delivery)
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def answer() -> None:
            try:
                if dedup is not None and counted == "retried":
                    await dedup.released(delivery)
                copying = copy(_original_of(delivery), _is_live(ledger))
                answered = await self._answer_when_stored(
                    copying, ledger, tag, part, counted, settled
                )
            except Exception as fault:  # the waiter gets any error
                if not done.done():
                    done.set_exception(fault)
                return
            finally:
                if self.order is not None:
                    self.order.answered(delivery)
            if not done.done():
                done.set_result(answered)

        self._copying.spawn(answer())
        return await done

    def _stale(self) -> bool:
        self.counters.acks_stale += 1
        return False

    async def _answer_when_stored(
        self,
        copying: Coroutine[Any, Any, Stored],
        ledger: Ledger,
        tag: int,
        part: int,
        counted: Literal["retried", "parked", ""] = "",
        settled: Callable[[bool], Awaitable[None]] | None = None,
        may_reject: bool = True,
    ) -> bool:
        """Answer the original of a claimed delivery when its copy is stored.

        counted: counter of an answer by the application, which holds the delivery until then; "" for others.
        settled: called with whether there is a copy, and awaited before the answer. may_reject: False leaves
        it without an answer where no copy is possible.
        """
        fault: Exception | None = None
        try:
            stored = await copying
        except (
            Exception
        ) as raised:  # after any error the original is answered, and the waiter gets it
            stored, fault = Stored.CANNOT, raised
        if settled is not None:
            await settled(stored is Stored.STORED)
        if stored is Stored.UNWANTED or (stored is Stored.CANNOT and not may_reject):
            answered = False
        elif stored is Stored.CANNOT:
            # The broker parks it by itself, without a reason, or drops it without a parking queue.
            answered = ledger.claim_refused(tag, part)
            if answered and not part:
                self._channels[ledger.broker].transport.nack(tag, False)
        else:
            answered = ledger.claim_done(tag, part)
        if counted:
            if answered:
                self.counters.retried += counted == "retried"
                self.counters.parked += counted == "parked"
                self._fanin.answered(ledger.broker)
            else:
                self.counters.acks_stale += 1
        self._on_turn()
        if fault is not None:
            raise fault
        return answered

    # Deduplication.
    def _ack_when_stored(self, dedup: Deduplication, delivery: Delivery) -> bool:
        """Ack a delivery when its end is stored.

        That of a lost link is stored too: its delivery came again, and is a duplicate then.
        """
        live = delivery._ledger.claim(delivery._tag, delivery._part)
        if self.order is not None:
            self.order.answered(delivery)
        if not dedup.ended(delivery, live=live) and live:
            self.acked(delivery)
        return live or self._stale()

    def acked(self, delivery: Delivery) -> None:
        """Ack a delivery that the application has acked and that is stored as done."""
        ledger = delivery._ledger
        if ledger.claim_done(delivery._tag, delivery._part):
            self.counters.acked += 1
            self._fanin.answered(ledger.broker)
        else:
            self._stale()

    def ack_duplicate(self, delivery: Delivery) -> bool:
        """Ack a delivery that the application never gets. False: it is answered, or its link has ended."""
        if self.order is not None:
            self.order.answered(delivery)
        return delivery._ledger.ack(delivery._tag, delivery._part)

    def park_unseen(self, delivery: Delivery, reason: str) -> None:
        """Park a delivery that the application never gets."""
        log.warning("parked unseen message=%r reason=%r", delivery.message_id, reason)
        self.park_behind(delivery, reason)

    def park_behind(self, delivery: Delivery, reason: str) -> None:
        """Park a delivery that the application never gets, without a line of its own."""
        ledger, tag, part = delivery._ledger, delivery._tag, delivery._part
        dedup, order, settled = self.dedup, self.order, None
        if not ledger.claim(tag, part):
            if dedup is not None:
                dedup.give_back(delivery)
            if order is not None:
                order.answered(delivery)
            return
        if order is not None:
            order.gaps += 1
        if dedup is not None:
            dedup.settled(delivery)
            settled = functools.partial(dedup.parked, delivery)
        headers = park_headers(delivery, reason, "")

        async def park() -> None:
            copying = self._copies.park(_original_of(delivery), headers, _is_live(ledger))
            answered = await self._answer_when_stored(copying, ledger, tag, part, "", settled)
            self.counters.parked += answered
            if order is not None:
                order.answered(delivery)

        self._copying.spawn(park())

    def defer(self, delivery: Delivery, delay_ms: int) -> None:
        """Have a delivery come again after this time, as it is, without counting an attempt."""
        ledger, tag, part = delivery._ledger, delivery._tag, delivery._part
        if ledger.claim(tag, part):
            original = _original_of(delivery)
            copying = self._copies.again(original, {}, _is_live(ledger), delay_ms=delay_ms)
            self._copying.spawn(self._answer_when_stored(copying, ledger, tag, part))

    def hand_out(self, deliveries: Sequence[Delivery]) -> None:
        """Give what deduplication grants to the application, in its turn."""
        if self.order is not None:
            self.order.granted(deliveries)
        else:
            self.hand_over(deliveries)

    def hand_over(self, deliveries: Iterable[Delivery]) -> None:
        """Give these to the application in their turn."""
        for ledger, some in itertools.groupby(deliveries, _ledger_of):
            if ledger.is_live:
                self._fanin.arrived(ledger.broker, some)

    def untake(self, delivery: Delivery) -> None:
        """Undo `take_buffered`: the delivery is handed out again later."""
        if delivery._ledger.is_live:
            self._fanin.answered(delivery._ledger.broker)

    def never_seen(self, deliveries: Sequence[Delivery]) -> None:
        """Take note of deliveries that the application took and never saw, and whose link has ended."""
        if self.dedup is not None:
            self.dedup.dropped(deliveries)
        if self.order is not None:
            for delivery in deliveries:
                self.order.answered(delivery)

    # Giving back untouched.
    @property
    def brokers(self) -> list[str]:
        """The brokers with a live link."""
        return list(self._channels)

    @property
    def running(self) -> int:
        """Claimed deliveries that handlers run, also of lost links: their end is to be stored."""
        return 0 if self.dedup is None else self.dedup.running

    @property
    def is_full(self) -> bool:
        """True when the application holds as many deliveries as it may."""
        return self._fanin.is_full

    def oldest(self, broker: str) -> Delivery | None:
        """Return the delivery of this broker that has waited longest unseen; None when there is none."""
        oldest = self._fanin.oldest(broker)
        if self.dedup is not None:
            waiting = self.dedup.oldest(self._channels[broker].ledger)
            found = [each for each in (oldest, waiting) if each is not None]
            oldest = min(found, key=_received_ns_of, default=None)
        if self.order is not None:
            found = self.order.keyed.oldest(self._channels[broker].ledger)
            found += [] if oldest is None else [oldest]
            oldest = min(found, key=_received_ns_of, default=None)
        return oldest

    def give_back(self, broker: str, taken: list[Delivery], before_ns: int) -> int:
        """Give back unseen deliveries, in order; return how many.

        taken: of this broker, handed out and never seen. Buffered deliveries go with them. A batch that the
        application has begun would never be finished if it came again whole. So each untouched part of it is
        copied to the end of the queue, if it arrived before that time.
        """
        channel, count = self._channels[broker], 0
        for tag, parts in _by_tag(self._withdrawn(channel, taken)).items():
            if self._give_back_one(channel, tag, parts):
                count += len(parts)
            elif parts[0].received_ns < before_ns:
                channel.copied_out[tag] = parts[0].received_ns
                self._copy_parts(channel.ledger, tag, [each._part for each in parts])
                count += len(parts)
            elif self.dedup is None:
                self._fanin.arrived(broker, parts)
            else:
                self.dedup.arrived(channel.ledger, parts)
        self.counters.given_back += count
        channel.transport.flush()
        return count

    def _withdrawn(self, channel: _Channel, taken: Sequence[Delivery]) -> list[Delivery]:
        """Take out all that the application has not seen of a link, also what it has taken."""
        ledger, broker = channel.ledger, channel.ledger.broker
        self._fanin.put_back(broker, [each for each in taken if each._ledger is ledger])
        return self._take_out(ledger, is_lost=False)

    def _take_out(self, ledger: Ledger, *, is_lost: bool) -> list[Delivery]:
        """Take out what waits of a link, and return it; claims on it are given up."""
        found = self._fanin.withdraw(ledger.broker)
        if self.dedup is not None:
            found += self.dedup.withdraw(ledger)
        if self.order is not None:
            take_out = self.order.lost if is_lost else self.order.withdraw
            found = list(dict.fromkeys([*found, *take_out(ledger, found)]))
        # All at once: a copy is not to follow one that goes, too.
        if self.dedup is not None:
            self.dedup.dropped(found)
        return found

    def _give_back_one(self, channel: _Channel, tag: int, parts: list[Delivery]) -> bool:
        """Give back one AMQP delivery, by a nack, or a copy if it came back too often. False: it is begun."""
        ledger, content = channel.ledger, (parts[0]._properties, parts[0].body)
        if parts[0]._part:
            whole = ledger.as_one(tag, len(parts))
            if whole is None:
                return False
            content = whole
        if self._is_worn(content[0]):
            self._renew(ledger, tag, *content)
        elif ledger.nack(tag):
            channel.transport.nack(tag, True)
        return True

    def _renew(self, ledger: Ledger, tag: int, raw: bytes, body: bytes) -> None:
        """Answer one AMQP delivery by a copy of it at the end of its queue."""
        if ledger.claim(tag, 0):
            original = _original(raw, body, read_stamp_ms(raw))
            copying = self._copies.again(original, {}, _is_live(ledger))
            self._copying.spawn(self._answer_when_stored(copying, ledger, tag, 0))

    def _is_worn(self, raw: bytes) -> bool:
        """Return whether its broker may soon park it for its returns, although nobody has seen it.

        RabbitMQ counts every return: by a nack, a closed channel, a lost link. A copy counts from zero, but
        stands at the end of the queue. So the bound is half of the limit, or all of it for ordered queues.
        """
        limit = self.delivery_limit
        if not limit:
            return False
        count = read_headers(raw).get(DELIVERY_COUNT, 0)
        return isinstance(count, int) and count >= (limit if self.in_order else (limit + 1) // 2)

    def _copy_parts(self, ledger: Ledger, tag: int, parts: list[int]) -> None:
        """Copy these parts of a batch to the end of the queue; the batch is acked when all are answered."""
        found = ledger.content(tag)
        if found is None:
            return
        raw, body = found
        entries, stamp_ms = decode_batch(body), read_stamp_ms(raw)
        for part in parts:
            if ledger.claim(tag, part):
                original = _original(*entries[part - 1], stamp_ms, entry=True)
                copying = self._copies.again(original, {}, _is_live(ledger))
                self._copying.spawn(self._answer_when_stored(copying, ledger, tag, part))

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Hand out next, in this order, the deliveries taken last, which nobody has seen."""
        if self.dedup is not None:
            self.dedup.put_back(deliveries)
        for broker, channel in self._channels.items():
            self._fanin.put_back(
                broker, [each for each in deliveries if each._ledger is channel.ledger]
            )

    def keep_back(self, broker: str, taken: Sequence[Delivery]) -> None:
        """Hand out nothing more of this broker: all its deliveries go back with the link, in order.

        taken: handed out and never seen.
        """
        channel = self._channels[broker]
        channel.shut = channel.kept = True
        channel.late[:0] = self._withdrawn(channel, taken)

    def finish_batches(self, before_ns: int) -> None:
        """Copy the parts that the application holds of partly copied batches that arrived before that time.

        Their broker would take back the whole batch, and the copied parts would exist twice.
        """
        for channel in self._channels.values():
            for tag, received_ns in list(channel.copied_out.items()):
                if received_ns < before_ns:
                    del channel.copied_out[tag]
                    held = channel.ledger.open_parts(tag)
                    self._copy_parts(channel.ledger, tag, held)
                    for _part in held:  # the application's answers will be stale
                        self._fanin.answered(channel.ledger.broker)

    def flush(self) -> None:
        """Send all answers given since the last time, together."""
        for channel in self._channels.values():
            if channel.ledger.rejected:
                self._reject_batches(channel)  # before a "multiple" ack includes them
            for tag, multiple in channel.ledger.flush():
                channel.transport.ack(tag, multiple)
            channel.transport.flush()

    def _reject_batches(self, channel: _Channel) -> None:
        """Reject batches with a part that could not be copied: their broker keeps them whole."""
        tags, channel.ledger.rejected = channel.ledger.rejected, []
        for tag in tags:
            log.warning(
                "batch rejected whole broker=%s reason='a part has no copy'", channel.ledger.broker
            )
            channel.transport.nack(tag, False)

    # The end.
    def close(self, untouched: Sequence[Delivery] = ()) -> None:
        """Hand out nothing more: buffered deliveries go back to the brokers with the links.

        untouched: handed out, and the application never saw them.
        """
        if self.dedup is not None:
            self.dedup.dropped(untouched)  # also those of links that have ended
        for broker in self._channels:
            self.keep_back(broker, untouched)

    async def finish(self, timeout_s: float) -> None:
        """Wait for copies under way, and copy deliveries that the end of the links would harm.

        These are the open parts of half-answered batches, unless the queue is ordered: their answered parts
        would be delivered again. And unseen deliveries that came back too often.
        """
        for channel in self._channels.values():
            for tag, parts in _by_tag(channel.late).items():
                self._renew_if_worn(channel.ledger, tag, parts)
            for tag, unanswered, _content in channel.ledger.half_answered():
                if not self.in_order:
                    self._copy_parts(channel.ledger, tag, unanswered)
        await self._copying.wait(timeout_s)
        self.flush()
        await self._copying.cancel()
        await self._copies.stop()

    def _renew_if_worn(self, ledger: Ledger, tag: int, parts: list[Delivery]) -> None:
        content = ledger.content(tag) or (parts[0]._properties, parts[0].body)
        if self._is_worn(content[0]) and (not parts[0]._part or ledger.as_one(tag, len(parts))):
            self._renew(ledger, tag, *content)

    @property
    def buffered(self) -> int:
        if self.order is not None:  # what waits for its claim waits in its lane as well
            return self._fanin.buffered + self.order.keyed.waiting
        waiting = 0 if self.dedup is None else self.dedup.pending
        return self._fanin.buffered + waiting

    @property
    def handed_out(self) -> int:
        return self._fanin.handed_out


def _batch_key(raw: bytes, body: bytes) -> tuple[str, int]:
    """Return the key that identifies a batch when it comes again."""
    return read_message_id(raw), hash(body)


_received_ns_of: Callable[[Delivery], int] = operator.attrgetter("received_ns")
_ledger_of: Callable[[Delivery], Ledger] = operator.attrgetter("_ledger")


def _by_tag(deliveries: Iterable[Delivery]) -> dict[int, list[Delivery]]:
    """Group deliveries of one link by their AMQP delivery."""
    found: dict[int, list[Delivery]] = {}
    for delivery in deliveries:
        found.setdefault(delivery._tag, []).append(delivery)
    return found


def _is_live(ledger: Ledger) -> Callable[[], bool]:
    """Return a function that tells whether the delivery's link can still take an answer."""
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
        properties=delivery._properties,
        body=delivery.body,
        message_id=delivery.message_id,
        entry=delivery._part > 0,
        stamp_ms=delivery.first_ms,
    )
