"""The driver of a replay: reads the streams of a topic on all brokers, over pika.

Runs on one asyncio loop; every method must be called on it. A broker's stream is read over a link of its own;
when the link ends, the reader goes on behind the last message that arrived, which it reads again and compares
(`core.checkpoint`). Acknowledgements are credit only: a stream keeps what is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from struct import Struct
from typing import Any, cast

from messagebus._io.amqp.batch import BatchDamaged
from messagebus._io.amqp.frames import Arrived
from messagebus._io.amqp.link import Link
from messagebus._io.amqp.packed import entries_of
from messagebus._io.amqp.properties import (
    ALONE,
    in_batch,
    is_batch,
    read_headers,
    read_stamp_ms,
)
from messagebus._io.loop import Tasks
from messagebus._io.wire import Wire
from messagebus.broker import Broker, BrokerList
from messagebus.clock import whole_ms
from messagebus.config import BusConfig
from messagebus.core.checkpoint import Gap, Position, behind, gap_at, gap_behind
from messagebus.core.deliveries import Ledger
from messagebus.core.headers import STREAM_OFFSET
from messagebus.core.route import backoff_ms
from messagebus.destination import Stream
from messagebus.errors import (
    NOT_FOUND,
    ChannelRefused,
    LinkLost,
    MessageBusError,
    NotReady,
    ReplayGap,
)
from messagebus.message import Delivery

log = logging.getLogger("messagebus.replay")

# As RabbitMQ writes it: name, type of an 8 byte integer, value.
_OFFSET_FIELD = b"\x0fx-stream-offsetl"
_NUMBER = Struct(">q")
CALL_TIMEOUT_S = 10.0
BUSY_S = 1.0  # for a stream that has messages by its count, and brings none
SILENT_S = 10.0  # for what is known to be stored, before it is looked for again
REDIAL_FIRST_MS, REDIAL_MAX_MS = 100, 5_000
# Links that end one after the other before a message comes: there is one that cannot be read.
STUCK_LINKS = 10
# Clocks of publishers and brokers differ by so much at most. A broker finds the messages of a time by its own
# clock: it is asked for those from this much earlier. So much earlier begins what goes on after a gap.
CLOCKS_MS = 60_000
NOT_LISTED = "not on the list: removed, renamed, or of another bus; what it had is not read"
# Largest prefetch; a chunk of a stream is smaller.
CHUNK_MAX = 65_535

Start = str | int | Position
"""Begin of a reading: "first", "next", a time in ms since 1970, or behind a position."""


class Replayed(Delivery):
    """A message read from a stream. It needs no answer.

    offset: of the stored message in its broker's stream. part: its place in a batch, from 1; 0 alone.
    """

    __slots__ = ()

    @property
    def offset(self) -> int:
        """The number that its broker's stream gave to it, from 0."""
        return self._tag

    @property
    def part(self) -> int:
        """Its place in a batch, from 1; 0 for a message that was published alone."""
        return self._part

    @property
    def published_ms(self) -> int:
        """The time of its publish in ms since 1970, to the second; 0 where it does not say."""
        return (self._reading.stamp_ms(self._properties) if self._reading is not None else 0) or 0

    @property
    def position(self) -> Position:
        """The entry of a checkpoint: everything up to this message was read."""
        return Position(self._tag, self._part, self.message_id, self.published_ms)


def read_offset(raw: bytes) -> int:
    """Return the offset that a broker gave to a message; -1 where it has none.

    A publisher may have set a header of that name too; the broker writes its own in front.
    """
    at = raw.find(_OFFSET_FIELD)
    if at >= 0 and raw.count(b"x-stream-offset") == 1:
        return int(_NUMBER.unpack_from(raw, at + len(_OFFSET_FIELD))[0])
    found = read_headers(raw).get(STREAM_OFFSET, -1)
    return found if type(found) is int else -1


def _offset_of(arrived: Arrived) -> int:
    return read_offset(arrived[2])


def _messages(
    ledger: Ledger, stream: Stream, offset: int, raw: bytes, body: bytes, received_ns: int
) -> list[Replayed]:
    """Return a stored message, or those of a stored batch. Raises BatchDamaged."""
    made, source = Replayed._arrived, cast(Any, stream)
    if not is_batch(raw):
        return [made(ledger, offset, 0, source, False, received_ns, raw, body, ALONE)]
    reading = in_batch(raw)
    return [
        made(ledger, offset, part, source, False, received_ns, own, each, reading)
        for part, (own, each) in enumerate(entries_of(raw, body), 1)
    ]


async def _consume(link: Link, stream: Stream, start: Start, prefetch: int) -> None:
    """Let a stream's messages come over a link. Raises LinkError."""
    await link.call("basic_qos", prefetch_count=prefetch)
    async with asyncio.timeout(CALL_TIMEOUT_S):
        await link.call(
            "basic_consume",
            queue=stream.amqp_queue,
            on_message_callback=link.transport.pika_content,
            consumer_tag="messagebus-replay" if start != "first" else "messagebus-replay-first",
            arguments={STREAM_OFFSET: _argument(start)},
        )


async def _round_trip(link: Link, stream: Stream) -> int:
    """Wait for an answer on the channel, and return the broker's count of messages. Raises LinkError.

    Stored messages have arrived by then, within the prefetch, unless the broker is busy or the stream is
    being written. The count is up to 5 s old (3.10).
    """
    async with asyncio.timeout(CALL_TIMEOUT_S):
        found = await link.call("queue_declare", queue=stream.amqp_queue, passive=True)
        return int(found.message_count)


async def _served(link: Link, stream: Stream, offset: int) -> None:
    """Return when the message stored there has arrived. Ends the link. Raises LinkError, TimeoutError."""
    came = asyncio.Event()
    link.transport.on_contents = lambda _arrived: came.set()
    try:
        await _consume(link, stream, behind(offset), 1)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await came.wait()
    finally:
        await link.hang_up()


async def look(link: Link, stream: Stream, start: Start) -> Position | None:
    """Return the position of the last message that is stored now, or of the first one from a start on.

    start: "last", or as of a replay. None: there is no such message. Ends the link. Raises LinkError.
    """
    seen: list[Arrived] = []
    is_last = start == "last"
    try:
        link.transport.on_contents = seen.extend
        await _consume(link, stream, start, CHUNK_MAX if is_last else 1)
        await _round_trip(link, stream)
        if is_last and not seen:
            await _consume(link, stream, "first", 1)
            since_s = time.monotonic()
            async with asyncio.timeout(CALL_TIMEOUT_S):
                # One that came is the first: the last is on its way. None: the broker may be busy, or
                # retention has dropped all, and the count is wrong.
                while len(seen) < 2 and (await _round_trip(link, stream) or seen):
                    if not seen and time.monotonic() - since_s > BUSY_S:
                        break
    finally:
        await link.hang_up()
    if not seen:
        return None
    _tag, _redelivered, raw, body = max(seen, key=_offset_of) if is_last else seen[0]
    offset = read_offset(raw)
    if offset < 0:
        raise LinkLost(link.broker, "a message without its offset")
    try:
        return _messages(Ledger("", 0), stream, offset, raw, body, 0)[-1].position
    except BatchDamaged:
        return behind(offset)


async def look_at(
    bus: BusConfig,
    stream: Stream,
    wire: Wire,
    starts: Mapping[str, Start],
    *,
    within_s: float,
    whole: bool = False,
) -> dict[str, Position | None]:
    """Look at the streams of these brokers from there on, or at the last message of all that are listed.

    Brokers that do not answer within this time in s are left out; whole: they are a NotReady. Raises
    NotReady, LoginRefused, ChannelRefused.
    """
    found: dict[str, Position | None] = {}
    silent: list[str] = []

    async def one(broker: str, start: Start) -> None:
        try:
            async with asyncio.timeout(within_s):
                timeout_ms = whole_ms(within_s)
                link = await wire.dial(Broker.parse(broker), timeout_ms=timeout_ms)
                found[broker] = await look(link, stream, start)
        except (LinkLost, TimeoutError) as fault:
            silent.append(broker)
            log.info("stream not seen broker=%s reason=%r", broker, str(fault))
        except ChannelRefused as fault:
            if fault.code != NOT_FOUND:
                raise
            log.info("no stream broker=%s reason=%r", broker, str(fault))

    if not starts:
        starts = dict.fromkeys(await _listed(stream, wire, within_s), "last")
    await asyncio.gather(*(one(broker, start) for broker, start in starts.items()))
    if whole and silent:
        raise NotReady(f"no answer within {within_s:g} s by {', '.join(sorted(silent))}")
    return found


async def _listed(stream: Stream, wire: Wire, within_s: float) -> tuple[str, ...]:
    came: asyncio.Future[BrokerList] = asyncio.get_running_loop().create_future()
    follower = wire.follow(
        subscription=str(stream),
        interval_s=30,
        on_list=lambda brokers: None if came.done() else came.set_result(brokers),
    )
    follower.start()
    try:
        async with asyncio.timeout(within_s):
            return tuple((await came).names)
    except TimeoutError:
        raise NotReady(f"no consumer list within {within_s:g} s") from None
    finally:
        await follower.stop()


class _Reader:
    """The reading of one broker's stream. end: its first offset that is not read; None: not known yet."""

    def __init__(
        self, driver: ReplayDriver, broker: str, start: Start, end: int | None = None
    ) -> None:
        self._driver, self.broker, self._end = driver, broker, end
        self._ledger = Ledger(broker, 0)
        self.start: Start = start
        self._since_ms = start if isinstance(start, int) else 0
        self.arrived: list[Replayed] = []
        self.last: Replayed | None = None
        self.is_done = False
        self._link: Link | None = None
        self._was_dialled = False
        self._ended: asyncio.Future[None] | None = None
        self._tag = self._acked = 0
        self._compare: Position | None = None
        # The offset that comes next; -1: any. A broker goes on in silence behind what retention drops under a
        # reader. A jump that was looked at again, from its last message, is the stream's own.
        self._next, self._jump = -1, (-1, -1)

    async def run(self) -> None:
        """Read until the end, over as many links as it takes. Raises ReplayGap, NotReady, LoginRefused."""
        failures, stuck, away_s = 0, 0, time.monotonic()
        while not self.is_done:
            self._ended = asyncio.get_running_loop().create_future()
            began_s, last, self._was_dialled = time.monotonic(), self.last, False
            try:
                await self._attach()
                try:
                    await self._read()
                finally:
                    away_s = time.monotonic()
            except (LinkLost, ChannelRefused, TimeoutError) as fault:
                if isinstance(fault, ChannelRefused) and fault.code != NOT_FOUND:
                    raise
                if self.last is not last or time.monotonic() - began_s > SILENT_S:
                    failures = stuck = 0
                failures += 1
                stuck = stuck + 1 if self._was_dialled and isinstance(fault, LinkLost) else 0
                if stuck >= STUCK_LINKS:
                    raise NotReady(self._stuck_at(fault)) from None
                self._driver.note_away(self.broker, fault, time.monotonic() - away_s)
                pause_ms = backoff_ms(
                    failures, first_ms=REDIAL_FIRST_MS, max_ms=REDIAL_MAX_MS, share=random.random()
                )
                await asyncio.sleep(pause_ms / 1000)
            finally:
                if self._link is not None:
                    await self._link.hang_up()
                with contextlib.suppress(BaseException):
                    self._ended.exception()  # asyncio reports one that nobody looked at

    def _stuck_at(self, fault: Exception) -> str:
        """Return the place that no link comes past."""
        place = "its first message"
        if self.last is not None:
            place = f"the message behind offset {self.last.offset}"
        elif isinstance(self.start, Position):
            place = f"the message behind offset {self.start.offset}"
        return f"{self.broker}: {STUCK_LINKS} links ended at {place}: {fault}"

    async def _read(self) -> None:
        """Wait for the end of the link. Raises LinkLost, and ends it where what is to be read does not come.

        A stream waits in silence for its next message where retention has dropped all of them.
        """
        ended = self._ended
        assert ended is not None
        while self._end is not None and not ended.done():
            tag = self._tag
            await asyncio.wait([ended], timeout=SILENT_S)
            if tag == self._tag == self._acked and not ended.done():
                self._read_again()
        await ended

    async def _attach(self) -> None:
        driver, start = self._driver, self.start
        if self.last is not None:
            start = self.last.position
        if isinstance(start, Position) or start == "next" or driver.ends:
            newest = await look(await self._dial(), driver.stream, "last")
            end = newest.offset + 1 if newest else 0
            if start == "next":
                # Else what comes while the link is cut before its first message would be left out.
                start = self.start = newest or "first"
            start = self._checked(start, end)
        if self._end == 0:
            self._finish()
            return
        link = self._link = await self._dial()
        transport = link.transport
        transport.on_contents = self._take
        self._tag = self._acked = 0
        self._next = -1
        self._compare = start if isinstance(start, Position) else None
        link.on_lost(self._lost)
        # The broker cancels where the stream is deleted; the link itself would stay open.
        link.channel.add_on_cancel_callback(lambda _frame: link.abort())
        await _consume(link, driver.stream, start, driver.prefetch)
        if (
            self._end is not None
            and isinstance(start, int)
            and await self._is_silent(link, self._end)
        ):
            self._finish()  # nothing is stored from that time on; else something arrives

    async def _dial(self) -> Link:
        link = await self._driver.dial(self.broker)
        self._was_dialled = True
        return link

    async def _is_silent(self, link: Link, end: int) -> bool:
        """Return whether a link will bring nothing of what is stored before this offset. Raises LinkError.

        A busy broker answers before it delivers. But a stream's writer wakes its readers in turn: when one
        that asked later was served, and then another one, this link was, too.
        """
        await _round_trip(link, self._driver.stream)
        for _ in range(2):
            if self._tag:
                return False
            await _served(await self._driver.dial(self.broker), self._driver.stream, end - 1)
        await _round_trip(link, self._driver.stream)
        return not self._tag

    def _checked(self, start: Start, end: int) -> Start:
        """Return where to begin in a stream that ends there. Raises ReplayGap unless the replay may go on.

        A gap in front of its first message is noticed where the first one arrives.
        """
        if self._driver.ends and self._end is None:
            self._end = end
        gap = gap_behind(start, 0, end) if isinstance(start, Position) else None
        if self._end is not None and self._end > end:
            gap = Gap(f"it ends at offset {end}, before {self._end}: it lost its end")
            if self._driver.goes_on:
                self._end = end
        if gap is None:
            return start
        return self._behind(gap, start if isinstance(start, Position) else behind(-1))

    def _behind(self, gap: Gap, position: Position) -> Start:
        """Return where to go on behind a gap. Raises ReplayGap unless the replay may go on."""
        if not self._driver.goes_on:
            raise ReplayGap(self.broker, gap.reason, gap.lost)
        log.warning(
            "gap broker=%s reason=%r lost=%s docs=%s",
            *(self.broker, gap.reason, gap.lost, ReplayGap.docs),
        )
        self.last = None
        self.start = max(1, position.ms - CLOCKS_MS) if position.ms else "first"
        return self.start

    def _lost(self, why: Exception) -> None:
        self._link = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(why)

    def _finish(self) -> None:
        self.is_done = True
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        self._driver.wake()

    def _take(self, arrived: list[Arrived]) -> None:
        if self.is_done:
            return
        received_ns, ledger = time.monotonic_ns(), self._ledger
        stream, out = self._driver.stream, self.arrived
        since_ms = self._since_ms
        for tag, _redelivered, raw, body in arrived:
            offset = read_offset(raw)
            if offset < 0:  # its headers are passed over, and nobody knows what follows it
                self._read_again()
                break
            if offset != self._next != -1 and self._jump != (self._next, offset):
                self._jump = self._next, offset
                self._read_again()
                break
            self._tag, self._next = tag, offset + 1
            if since_ms and (read_stamp_ms(raw) or since_ms) + 999 < since_ms:
                continue
            try:
                found = _messages(ledger, stream, offset, raw, body, received_ns)
            except BatchDamaged as fault:
                found = []
                log.error(
                    "batch damaged broker=%s offset=%d reason=%r", self.broker, offset, str(fault)
                )
            if self._compare is not None and not self._compared(offset, found):
                return
            if self._end is not None and offset >= self._end:
                self._finish()
                break
            out += found
        if out:
            self.last = out[-1]
        else:
            self.credit()  # nobody takes what is left out
        if self._end is not None and self._next >= self._end:
            self._finish()
        self._driver.wake()

    def _compared(self, offset: int, arrived: list[Replayed]) -> bool:
        """Compare the first message with the last one that was read, and drop what was read before.

        False: there is a gap between them, and the link has ended.
        """
        position, self._compare = self._compare, None
        assert position is not None
        read = list[Replayed]()
        if offset == position.offset:
            read = [each for each in arrived if each.part <= position.part]
            same = bool(read) and read[-1].part == position.part
            gap = gap_at(position, read[-1].message_id if same else "")
        else:
            gap = gap_behind(position, offset, offset + 1)
        if gap is None:
            del arrived[: len(read)]
            return True
        try:
            self._behind(gap, position)
        except ReplayGap as fault:
            self._driver.fail(fault)
        self._read_again()
        return False

    def _read_again(self) -> None:
        """End the link: the next one begins at the last message that was read."""
        assert self._link is not None
        self._link.transport.on_contents = lambda _arrived: None
        self._link.abort()

    def credit(self) -> None:
        """Let the broker send more: all that arrived was taken."""
        if self._tag > self._acked and self._link is not None and self._link.is_open:
            self._acked = self._tag
            self._link.transport.ack(self._tag, True)
            self._link.transport.flush()


def _argument(start: Start) -> Any:
    match start:
        case Position():
            return max(0, start.offset)
        case int():
            return datetime.fromtimestamp(max(0, start - CLOCKS_MS) / 1000, UTC)
        case _:
            return start


class ReplayDriver:
    """The readers of all brokers of one replay.

    start: for brokers without an entry in `positions`. until: "now": ends with the last message that is there
    when a broker is reached; or the last message of each broker that is read. goes_on: after a gap too.
    prefetch: messages on their way from each broker. away_s: a broker may be out of reach for this time in s;
    None: for ever. home: the only broker to read, listed or not; "" for all. positions: where it goes on, it
    loses the brokers that are not on the list.
    """

    def __init__(
        self,
        bus: BusConfig,
        stream: Stream,
        wire: Wire,
        *,
        start: Start,
        positions: dict[str, Position],
        until: Mapping[str, Position] | str | None,
        goes_on: bool,
        prefetch: int,
        away_s: float | None,
        home: str = "",
    ) -> None:
        self._home = home
        self._bus, self.stream, self._wire = bus, stream, wire
        self._start, self._positions = start, positions
        self._until, self.goes_on, self.prefetch = until, goes_on, prefetch
        self.ends = until is not None
        self._away_s = away_s
        self._readers: dict[str, _Reader] = {}
        self._tasks = Tasks()
        self._woken = asyncio.Event()
        self._fault: Exception | None = None
        self._is_stopped, self._ending = False, Tasks()
        self._loop = asyncio.get_running_loop()
        self._began_s = time.monotonic()
        self._follower = wire.follow(subscription=str(stream), interval_s=30, on_list=self._on_list)

    def begin(self) -> None:
        if isinstance(self._until, Mapping):
            for broker, last in self._until.items():
                self._read(broker, self._positions.get(broker, self._start), last.offset + 1)
        elif self._home:
            self._read(self._home, self._positions.get(self._home, self._start))
        else:
            self._follower.start()

    def _read(self, broker: str, start: Start, end: int | None = None) -> None:
        self._readers[broker] = reader = _Reader(self, broker, start, end)
        self._tasks.spawn(self._run(reader))

    def _on_list(self, brokers: BrokerList) -> None:
        if self.ends and self._readers:
            return
        is_later = bool(self._readers)
        for broker in brokers.names:
            if broker not in self._readers:
                # What a broker has that comes later is new, whatever the time that was asked for.
                self._read(
                    broker, self._positions.get(broker, "first" if is_later else self._start)
                )
        for broker in sorted(self._positions.keys() - self._readers.keys()):
            if not self.goes_on:
                self.fail(ReplayGap(broker, NOT_LISTED))
                continue
            del self._positions[broker]  # so that the next checkpoint has no gap there
            log.warning(
                "gap broker=%s reason=%r lost=None docs=%s", broker, NOT_LISTED, ReplayGap.docs
            )

    async def _run(self, reader: _Reader) -> None:
        try:
            await reader.run()
        except MessageBusError as fault:
            self.fail(fault)

    async def dial(self, broker: str) -> Link:
        return await self._wire.dial(
            Broker.parse(broker), timeout_ms=whole_ms(self._bus.dial_timeout_max_s)
        )

    def note_away(self, broker: str, why: Exception, away_s: float) -> None:
        """Take note that a broker is out of reach. Raises NotReady when it was for too long."""
        log.info("stream not read broker=%s reason=%r", broker, str(why))
        if self._away_s is not None and away_s >= self._away_s:
            raise NotReady(f"{broker} was out of reach for {self._away_s:g} s: {why}")

    def fail(self, fault: Exception) -> None:
        self._fault = self._fault or fault
        self.wake()

    def wake(self) -> None:
        self._woken.set()

    async def take(self) -> list[Replayed]:
        """Return what has arrived, waiting for it; an empty list at the end.

        Raises ReplayGap, NotReady, LoginRefused, ChannelRefused; what arrived before is returned first.
        """
        while not self._is_stopped:
            found: list[Replayed] = []
            for reader in self._readers.values():
                found += reader.arrived
                reader.arrived = []
                reader.credit()
            if found:
                return found
            if self._fault is not None:
                raise self._fault
            if self.ends and self._readers and all(r.is_done for r in self._readers.values()):
                return []
            self._woken.clear()
            await self._wait()
        return []

    async def _wait(self) -> None:
        """Wait for an arrival, an end or a fault; for the first list only as long as for a broker."""
        left_s = None
        if not self._readers and self._away_s is not None:
            left_s = self._began_s + self._away_s - time.monotonic()
        try:
            async with asyncio.timeout(left_s):
                await self._woken.wait()
        except TimeoutError:
            if not self._readers:
                raise NotReady(f"no consumer list within {self._away_s:g} s") from None

    def abandon(self) -> None:
        """Begin the stop of a replay that was dropped, without a wait for its end. From any thread."""
        # A loop that is closed has ended all of its tasks.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: self._ending.spawn(self.stop()))

    async def stop(self) -> None:
        self._is_stopped = True
        self.wake()
        await self._follower.stop()
        await self._tasks.cancel()
