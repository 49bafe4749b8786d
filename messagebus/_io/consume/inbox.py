"""The links of one consumer: what arrives over them, and what goes back.

Runs on one asyncio loop. `core.deliveries` keeps a ledger of each link: it decides which answers go to its
broker. A batch is unpacked here, into deliveries that are answered one by one.

States of a link, each a `_Channel`:

    connected ─▶ fenced ─▶ open ─▶ shut ─────────▶ disconnected
      what arrives waits     │      what arrives is kept, in `Ledger.kept`
      for its fence          └───▶ kept back: also what had arrived, and what rests

Owners: the Inbox has links and ledgers, batches that a lost link left half answered, and nothing else. The
stages know where a delivery waits, for whom, and what its answer is: see `stage`.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from messagebus._io.amqp.batch import BatchDamaged
from messagebus._io.amqp.connection import Transport
from messagebus._io.amqp.frames import HEADER_FRAME_MAX, TOO_LONG, Arrived
from messagebus._io.amqp.packed import ALTERED, entries_of, is_altered
from messagebus._io.amqp.properties import (
    ALONE,
    BATCH_START,
    CONTENT_TYPE,
    HEADERS,
    in_batch,
    is_batch,
    read_headers,
    read_message_id,
    read_stamp_ms,
)
from messagebus._io.consume.copies import CopiedAnswers, Original
from messagebus._io.consume.pipeline import Pipeline
from messagebus._io.loop import Tasks
from messagebus.clock import wall_ms
from messagebus.core.deliveries import Ledger, Ledgers
from messagebus.core.headers import CRC_MARK, DEATH_MARK, has_strange_deaths
from messagebus.core.parking import TTL_HEADER, is_late, read_early
from messagebus.destination import Source, expires
from messagebus.message import Delivery
from messagebus.topology import Options

log = logging.getLogger("messagebus.consumer")

DELIVERY_COUNT = "x-delivery-count"
WITH_HEADERS, WITH_TYPE = HEADERS >> 8, CONTENT_TYPE >> 8
# Reasons of messages that are parked as they arrive, because their broker must not dead-letter them.
STRANGE_DEATHS = "x-death that no broker can count on"
HEADERS_TOO_LONG = f"headers of more than {HEADER_FRAME_MAX} bytes, which are left out"
# Number of batches kept that a lost link left half answered, until they come again.
BEGUN_MAX = 1_000


@dataclass(slots=True)
class _Channel:
    """One broker's live link.

    shut: arriving deliveries are handed out no more. copied_out: tag -> time of arrival of batches with parts
    that were copied before the consumer timeout. round_trip: waits for an answer of the link; set while its
    fence is not known, and `unfenced` keeps what arrives.
    """

    ledger: Ledger
    transport: Transport
    shut: bool = False
    copied_out: dict[int, int] = field(default_factory=dict)
    delivered_before: int = 0
    round_trip: Callable[[], Awaitable[object]] | None = None
    unfenced: list[Arrived] = field(default_factory=list)


class Inbox:
    """The links of one consumer and their ledgers.

    pipeline: its stages. answers: those that wait for a copy. on_turn: called when something arrived.
    """

    def __init__(
        self,
        source: Source,
        pipeline: Pipeline,
        answers: CopiedAnswers,
        on_turn: Callable[[], None],
    ) -> None:
        self._source, self._pipeline = source, pipeline
        self._answers, self._on_turn = answers, on_turn
        self._has_parking = not expires(source)
        self._counters = pipeline.counters
        self.delivered: dict[str, int] = {}
        """Count of deliveries since the start, by broker."""
        self.ledgers = Ledgers()
        self._channels: dict[str, _Channel] = {}
        self._fencing = Tasks()
        # Batches that a lost link left half answered -> their parts without an answer.
        self._begun: dict[tuple[str, int], set[int]] = {}
        self.delivery_limit = source.delivery_limit
        """Number of times that a returned message is delivered again; 0: no limit."""
        self.in_order = source.single_active or pipeline.ordered is not None
        """True when returned deliveries must come again in their order: see docs/explanation/internals.md."""

    def exists_as(self, options: Options) -> None:
        """Take over the source's existing options, where its consumer asked for fewer."""
        limit = options.get("delivery_limit")
        self.delivery_limit = limit if isinstance(limit, int) else self.delivery_limit
        if options.get("single_active") is True and not self.in_order:
            self.in_order = True
            self._pipeline.keep_order()

    # Links.
    def connected(
        self,
        broker: str,
        transport: Transport,
        round_trip: Callable[[], Awaitable[object]] | None = None,
    ) -> int:
        """Take the deliveries of this link from now on. Returns its epoch.

        round_trip: waits for an answer of the link, where it has a fence.
        """
        ledger = self.ledgers.connected(broker)
        before = self.delivered.setdefault(broker, 0)
        channel = _Channel(ledger, transport, delivered_before=before)
        if self._pipeline.fence is not None:
            channel.round_trip = round_trip
        self._channels[broker] = channel
        transport.on_contents = functools.partial(self._arrived, channel)
        transport.on_turn = self._on_turn
        return ledger.epoch

    def disconnected(self, broker: str) -> None:
        """Drop the link: its unanswered deliveries come again, also those that the application holds."""
        channel = self._channels.pop(broker, None)
        if channel is not None:
            self._remember(channel.ledger)
            unsent = channel.ledger.unsent  # void: their broker delivers them again
            self._counters.acked -= unsent
            self._counters.acks_stale += unsent
            channel.ledger.end()
            self._pipeline.first.withdrawn(channel.ledger, is_lost=True)

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
        return self._pipeline.first.holds(channel.ledger) or channel.ledger.is_claimed

    def owed(self, broker: str) -> int:
        """Return the number of AMQP deliveries of the live link without an answer."""
        channel = self._channels.get(broker)
        return channel.ledger.owed if channel else 0

    # Arriving.
    def _arrived(self, channel: _Channel, arrived: list[Arrived]) -> None:
        """Take the deliveries of one read."""
        if channel.round_trip is not None:
            self._wait_for_fence(channel, arrived)
            return
        received_ns, ledger, source = time.monotonic_ns(), channel.ledger, self._source
        made = Delivery._arrived
        tags: list[int] = []
        deliveries: list[Delivery] = []
        for each in arrived:
            tag, redelivered, raw, body = each
            if raw[0] & WITH_HEADERS and DEATH_MARK in raw and self._is_kept(ledger, each):
                continue
            # `is_batch` written out: each delivery passes here.
            if raw.startswith(BATCH_START, 2) and raw[0] & WITH_TYPE:
                ledger.delivered(tags)
                tags = []
                deliveries += self._parts(ledger, received_ns, *each)
            elif raw[0] & WITH_HEADERS and CRC_MARK in raw and is_altered(raw, body):
                ledger.delivered([tag])
                self._park_altered(ledger, tag, 0, Original.read(raw, body))
            else:
                tags.append(tag)
                deliveries.append(
                    made(ledger, tag, 0, source, redelivered, received_ns, raw, body, ALONE)
                )
        ledger.delivered(tags)
        if not deliveries or not ledger.is_live:  # read behind the end of its link: they come again
            return
        if channel.shut:
            ledger.kept += deliveries
            return
        self._pipeline.first.arrived(ledger, deliveries)
        self._counters.delivered += len(deliveries)
        self.delivered[ledger.broker] += len(deliveries)

    def _wait_for_fence(self, channel: _Channel, arrived: list[Arrived]) -> None:
        """Keep what arrives over a link until its `Delivery.fence` is known."""
        if not channel.unfenced:
            self._fencing.spawn(self._take_fence(channel))
        channel.unfenced += arrived

    async def _take_fence(self, channel: _Channel) -> None:
        assert self._pipeline.fence is not None
        assert channel.round_trip is not None
        number = await self._pipeline.fence(channel.ledger, channel.round_trip)
        if number is not None and channel.ledger.is_live:
            channel.ledger.fence, channel.round_trip = number, None
            waiting, channel.unfenced = channel.unfenced, []
            self._arrived(channel, waiting)
            self._on_turn()

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
        elif is_batch(raw) or (early is None and not is_late(headers, wall_ms())):
            return False
        ledger.delivered([tag])
        if ledger.claim(tag, 0):
            original, answers = Original.read(raw, body), self._answers
            if early is not None:
                marks = {TTL_HEADER: early.ttl_ms}
                answers.begin_again(ledger, tag, 0, original, marks, delay_ms=early.rest_ms)
            else:
                reason = STRANGE_DEATHS if strange else "expired"
                if raw == TOO_LONG:
                    reason = HEADERS_TOO_LONG
                    log.error("headers too long broker=%s source=%s", ledger.broker, self._source)
                answers.begin_park(ledger, tag, 0, original, reason, may_reject=not strange)
        return True

    def _parts(
        self,
        ledger: Ledger,
        received_ns: int,
        tag: int,
        redelivered: bool,
        raw: bytes,
        body: bytes,
    ) -> list[Delivery]:
        """Return the messages of a batch that have no answer yet."""
        try:
            entries = entries_of(raw, body)
        except BatchDamaged as fault:
            self._park_damaged(ledger, tag, raw, body, str(fault))
            return []
        ledger.batch_delivered(tag, len(entries), (raw, body))
        unanswered = self._begun.pop(_batch_key(raw, body), None) if redelivered else None
        source, made, reading = self._source, Delivery._arrived, in_batch(raw)
        found = []
        for part, (entry, its_body) in enumerate(entries, start=1):
            if unanswered is not None and part not in unanswered:
                ledger.ack(tag, part)
                continue
            if CRC_MARK in entry and is_altered(entry, its_body):
                original = Original.entry_of(entry, its_body, read_stamp_ms(raw))
                self._park_altered(ledger, tag, part, original)
                continue
            found.append(
                made(ledger, tag, part, source, redelivered, received_ns, entry, its_body, reading)
            )
        return found

    def _park_altered(self, ledger: Ledger, tag: int, part: int, original: Original) -> None:
        log.error("message altered broker=%s source=%s", ledger.broker, self._source)
        if ledger.claim(tag, part):
            self._answers.begin_park(ledger, tag, part, original, ALTERED)

    def _park_damaged(self, ledger: Ledger, tag: int, raw: bytes, body: bytes, reason: str) -> None:
        log.error("batch damaged broker=%s reason=%r", ledger.broker, reason)
        self._counters.batches_damaged += 1
        ledger.delivered([tag])
        if ledger.claim(tag, 0):
            original = Original.read(raw, body)
            self._answers.begin_park(ledger, tag, 0, original, f"damaged batch: {reason}")

    # Giving back untouched.
    @property
    def brokers(self) -> list[str]:
        """The brokers with a live link."""
        return list(self._channels)

    def oldest(self, broker: str) -> Delivery | None:
        """Return the delivery of this broker that has waited longest unseen; None when there is none."""
        return self._pipeline.first.oldest(self._channels[broker].ledger)

    def give_back(self, broker: str, taken: list[Delivery], before_ns: int) -> int:
        """Give back unseen deliveries, in order; return how many.

        taken: of this broker, handed out and never seen. Buffered deliveries go with them. A batch that the
        application has begun would never be finished if it came again whole. So each untouched part of it is
        copied to the end of the queue, if it arrived before that time.
        """
        channel, count = self._channels[broker], 0
        ledger = channel.ledger
        for tag, parts in _by_tag(self._withdrawn(ledger, taken)).items():
            if self._give_back_one(ledger, tag, parts):
                count += len(parts)
            elif parts[0].received_ns < before_ns:
                channel.copied_out[tag] = parts[0].received_ns
                self._copy_parts(ledger, tag, [each._part for each in parts])
                count += len(parts)
            else:
                self._pipeline.first.arrived(ledger, parts)
        self._counters.given_back += count
        self.flush()
        return count

    def _withdrawn(self, ledger: Ledger, taken: Sequence[Delivery]) -> list[Delivery]:
        """Take out all that the application has not seen of a link, also what it has taken."""
        theirs = [each for each in taken if each._ledger is ledger]
        return self._pipeline.first.withdrawn(ledger, theirs)

    def _give_back_one(self, ledger: Ledger, tag: int, parts: list[Delivery]) -> bool:
        """Give back one AMQP delivery, by a nack, or a copy if it came back too often. False: it is begun."""
        content = (parts[0]._properties, parts[0].body)
        if parts[0]._part:
            whole = ledger.as_one(tag, len(parts))
            if whole is None:
                return False
            content = whole
        if _is_worn(content[0], self.delivery_limit, in_order=self.in_order):
            self._renew(ledger, tag, *content)
        else:
            ledger.nack(tag, requeue=True)
        return True

    def _renew(self, ledger: Ledger, tag: int, raw: bytes, body: bytes) -> None:
        """Answer one AMQP delivery by a copy of it at the end of its queue."""
        if ledger.claim(tag, 0):
            self._answers.begin_again(ledger, tag, 0, Original.read(raw, body))

    def _copy_parts(self, ledger: Ledger, tag: int, parts: list[int]) -> None:
        """Copy these parts of a batch to the end of the queue; the batch is acked when all are answered."""
        found = ledger.content(tag)
        if found is None:
            return
        raw, body = found
        entries, stamp_ms = entries_of(raw, body), read_stamp_ms(raw)
        for part in parts:
            if ledger.claim(tag, part):
                original = Original.entry_of(*entries[part - 1], stamp_ms)
                self._answers.begin_again(ledger, tag, part, original)

    def keep_back(self, broker: str, taken: Sequence[Delivery]) -> None:
        """Hand out nothing more of this broker: all its deliveries go back with the link, in order.

        taken: handed out and never seen.
        """
        channel = self._channels[broker]
        channel.shut = channel.ledger.is_kept = True
        channel.ledger.kept[:0] = self._withdrawn(channel.ledger, taken)

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
                    self._pipeline.plain.no_longer_held(channel.ledger, len(held))

    def flush(self) -> None:
        """Send all answers given since the last time, together."""
        for channel in self._channels.values():
            ledger, transport = channel.ledger, channel.transport
            if ledger.nacks or ledger.rejected:  # before a "multiple" ack includes them
                self._send_nacks(ledger, transport)
            if ledger.acked:
                for tag, multiple in ledger.flush():
                    transport.ack(tag, multiple)
            transport.flush()

    def _send_nacks(self, ledger: Ledger, transport: Transport) -> None:
        """Send the nacks. Reject batches with a part that has no copy: their broker keeps them whole."""
        nacks, ledger.nacks = ledger.nacks, []
        for tag, requeue in nacks:
            transport.nack(tag, requeue)
        tags, ledger.rejected = ledger.rejected, []
        for tag in tags:
            log.warning("batch rejected whole broker=%s reason='a part has no copy'", ledger.broker)
            transport.nack(tag, False)

    # The end.
    def close(self, untouched: Sequence[Delivery] = ()) -> None:
        """Hand out nothing more: buffered deliveries go back to the brokers with the links.

        untouched: handed out, and the application never saw them.
        """
        self._pipeline.first.never_answered(
            [each for each in untouched if not each._ledger.is_live]
        )
        for broker in self._channels:
            self.keep_back(broker, untouched)

    async def finish(self, timeout_s: float) -> None:
        """Wait for copies under way, and copy deliveries that the end of the links would harm.

        These are the open parts of half-answered batches, unless the queue is ordered: their answered parts
        would be delivered again. And unseen deliveries that came back too often.
        """
        for channel in self._channels.values():
            for tag, parts in _by_tag(channel.ledger.kept).items():
                self._renew_if_worn(channel.ledger, tag, parts)
            for tag, unanswered, _content in channel.ledger.half_answered():
                if not self.in_order:
                    self._copy_parts(channel.ledger, tag, unanswered)
        await self._fencing.cancel()
        await self._answers.finish(timeout_s)
        self.flush()
        await self._answers.stop()

    def _renew_if_worn(self, ledger: Ledger, tag: int, parts: list[Delivery]) -> None:
        content = ledger.content(tag) or (parts[0]._properties, parts[0].body)
        if not _is_worn(content[0], self.delivery_limit, in_order=self.in_order):
            return
        if not parts[0]._part or ledger.as_one(tag, len(parts)):
            self._renew(ledger, tag, *content)


def _is_worn(raw: bytes, limit: int, *, in_order: bool) -> bool:
    """Return whether its broker may soon park a delivery for its returns, although nobody has seen it.

    RabbitMQ counts every return: by a nack, a closed channel, a lost link. A copy counts from zero, but
    stands at the end of the queue. So the bound is half of the limit, or all of it for ordered queues.
    limit: of its queue; 0: none.
    """
    if not limit:
        return False
    count = read_headers(raw).get(DELIVERY_COUNT, 0)
    return isinstance(count, int) and count >= (limit if in_order else (limit + 1) // 2)


def _batch_key(raw: bytes, body: bytes) -> tuple[str, int]:
    """Return the key that identifies a batch when it comes again."""
    return read_message_id(raw), hash(body)


def _by_tag(deliveries: Iterable[Delivery]) -> dict[int, list[Delivery]]:
    """Group deliveries of one link by their AMQP delivery."""
    found: dict[int, list[Delivery]] = {}
    for delivery in deliveries:
        found.setdefault(delivery._tag, []).append(delivery)
    return found
