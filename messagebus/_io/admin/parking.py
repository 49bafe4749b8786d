"""Parking queues of one broker: inspection, redrive into their subscription's queue, removal.

Messages to inspect are taken without an answer and given back, in order, by closing the channel.
A redriven message is published to the queue that it came from, on the same broker, and acked when that
is confirmed. It is one message at a time, so that an end of the process leaves at most one of them twice.
Runs on one asyncio loop; every wait is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from messagebus._io.admin.queues import CALL_TIMEOUT_S, answered, opened, ready_messages
from messagebus._io.agents.subscriptions import homes_by
from messagebus._io.amqp.copy_headers import redriven
from messagebus._io.amqp.frames import Arrived
from messagebus._io.amqp.link import Link, line_ms
from messagebus._io.amqp.properties import (
    KEY_HEADER,
    has_content_encoding,
    read_content_type,
    read_headers,
    read_parked_facts,
)
from messagebus.bodies import decode_json, is_json
from messagebus.broker import BrokerList
from messagebus.config import BusConfig
from messagebus.core.homes import Home, home_of, read_chains, read_homes, segment_of
from messagebus.core.parking import Choice, Facts, Parked, Undelivered
from messagebus.destination import Subscription, Topic
from messagebus.errors import NOT_FOUND, ChannelRefused, LinkLost, TopologyError, WrongPayload

DIAL_TIMEOUT_MS = 2_000
# After this time without a delivery another consumer holds the rest.
IDLE_S = 3.0
# A broker reads all that it will deliver from its disk before the first: 26,000 took a busy one 4 s.
READ_A_S = 5_000
PUT_TIMEOUT_S = 30.0
# The largest prefetch: the bound of messages that are inspected in one queue.
SCAN_MAX = 65_535
# Prefetch where every message is wanted.
AHEAD = 100
# Prefetch of a consumer that only looks; the next begins when it has half of them. A broker reads all that a
# consumer may have before the first goes out: 27,000 at once cost it twice the CPU time, and 5 s. Up to 32
# consumers of a channel give back in the order of their tags.
LOOKED_AT = 2_048
# Bytes of messages that wait to be moved; further ones are given back and taken again.
WAITING_BYTES_MAX = 64 * 1024 * 1024
EXCHANGE_PREFIXES, QUEUE_PREFIXES = ("mb.topic/", "mb.to/"), ("mb.queue/", "mb.sub/")

T = TypeVar("T")
Moved = Callable[[int], None]
Turn = Callable[[], Awaitable[None]]


class _Taken:
    """A parked message, unanswered at its broker. raw: its properties; facts: theirs, read when asked."""

    __slots__ = ("_facts", "_source", "body", "raw", "tag")

    def __init__(self, tag: int, source: Parked, raw: bytes, body: bytes) -> None:
        self.tag, self._source, self.raw, self.body = tag, source, raw, body
        self._facts: Facts | None = None

    @property
    def facts(self) -> Facts:
        if self._facts is None:
            self._facts = read_parked_facts(self.raw, self._source.delivery_limit)
        return self._facts

    @property
    def content_type(self) -> str:
        return read_content_type(self.raw)


See = Callable[[_Taken], bool]
"""Called with each message; False: enough."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """Result of an inspection. ready: messages in the queue at its begin. shown: those passed to `See`."""

    ready: int
    shown: int


class Parking:
    """The parking queues of one broker."""

    def __init__(self, bus: BusConfig, broker: str, brokers: BrokerList) -> None:
        """Set the broker. brokers: all; where agents serve it, they call themselves as in the list."""
        self._bus, self._broker, self._brokers = bus, broker, brokers
        self._is_named = bool(bus.list_urls)

    async def ready(self, sources: Iterable[Parked]) -> dict[Parked, int | None]:
        """Return how many messages each parking queue holds; None where there is none. Raises LinkError."""
        async with self._link() as link:
            return {source: await ready_messages(link, source.parking_queue) for source in sources}

    async def look(self, source: Parked, ready: int, count_max: int, see: See) -> Inspection:
        """Show messages of a source's parking queue, the oldest first; all of them stay there.

        ready: as counted before. count_max: no more are taken. Raises LinkError, TopologyError.
        """
        wanted = min(ready, count_max, SCAN_MAX)
        if not wanted:
            return Inspection(ready, 0)
        async with self._link() as link:
            taking = _Taking(link, source, wanted, min(wanted, LOOKED_AT))
            await taking.begin(see)
            while not taking.is_over and await taking.goes_on():
                await taking.take_more()
            return Inspection(ready, taking.shown)

    async def redrive(
        self,
        source: Parked,
        ready: int,
        choice: Choice,
        *,
        count_max: int,
        turn: Turn,
        on_moved: Moved,
        body: bytes | None = None,
    ) -> int:
        """Put messages back into the source's queue, undelivered ones where they were due. Returns how many.

        turn: awaited before each, for the pace. on_moved: called for each. body: instead of theirs.
        Raises TopologyError for a queue that is gone or full and takes nothing more. Raises it too for
        messages left behind, when all others are done: undelivered ones still without a queue, and those that
        cannot be copied. Raises LinkError.
        """
        async with contextlib.AsyncExitStack() as links:
            puttings = dict[str, _Putting]()
            homes: Sequence[Home] = ()
            if isinstance(source, Subscription) and source.has_segments:
                homes = read_homes(source.topic.homes, source.topic.partitions)

            async def putting_at(broker: str) -> _Putting:
                if broker not in puttings:
                    dialled = opened(
                        self._bus, broker, timeout_ms=DIAL_TIMEOUT_MS, is_named=self._is_named
                    )
                    puttings[broker] = _Putting(await links.enter_async_context(dialled))
                    await puttings[broker].begin()
                return puttings[broker]

            putting = await putting_at(self._broker)

            async def put(raw: bytes, body: bytes) -> None:
                """Put a message back; one of a partitioned topic behind what waits in its partition."""
                assert not isinstance(source, Undelivered)
                if not homes or not isinstance(source, Subscription):
                    await putting.put("", source.amqp_queue, raw, body)
                    return
                partition, home = home_of(read_headers(raw).get(KEY_HEADER), homes)
                queue = source.segment_queue(segment_of(partition, home))
                await (await putting_at(home.broker)).put("", queue, raw, body)
                if not await self._is_home(source.topic, partition, home):
                    told = f"partition {partition} of {source.topic} moves, so nothing is put back there"
                    raise TopologyError(f"{told}: try again, see `messagebus partitions show`")

            async def move(taking: _Taking, taken: _Taken) -> str:
                try:
                    raw = redriven(taken.raw, taken.facts)
                except Exception as fault:  # a malformed message must not hold back others
                    return f"cannot be copied: {fault!r}"
                given = taken.body if body is None else body
                if body is not None and (why := _misfit(taken, body)):
                    return why
                if isinstance(source, Undelivered):
                    if why := await putting.put_as_due(taken.facts.address, raw, given):
                        return why
                else:
                    await put(raw, given)
                taking.ack(taken.tag)
                # Wait here, so that an end of the process loses no answer that the broker has not read.
                await taking.settle()
                return ""

            return await self._move(source, ready, choice, count_max, turn, move, on_moved)

    async def _is_home(self, topic: Topic, partition: int, home: Home) -> bool:
        """Ask the agent of a home whether it is one still: then what was put there is counted at its end."""
        listed = self._brokers.find(home.broker)
        if listed is None:
            return False
        told = read_chains(await homes_by(self._bus, listed, topic.name), topic.partitions)
        return bool(told) and told[partition].taking == home

    async def drop(
        self, source: Parked, ready: int, choice: Choice, *, count_max: int, on_moved: Moved
    ) -> int:
        """Drop messages. Returns how many. Raises LinkError."""
        if choice.is_everything and count_max >= ready:
            async with self._link() as link:
                answer = await answered(link.call("queue_purge", queue=source.parking_queue), link)
            on_moved(int(answer.message_count))
            return int(answer.message_count)

        async def move(taking: _Taking, taken: _Taken) -> str:
            taking.ack(taken.tag)
            return ""

        async def turn() -> None:
            """Return at once: dropping has no pace."""

        return await self._move(source, ready, choice, count_max, turn, move, on_moved)

    async def _move(
        self,
        source: Parked,
        ready: int,
        choice: Choice,
        count_max: int,
        turn: Turn,
        move: Move,
        on_moved: Moved,
    ) -> int:
        """Pass over the queue until no message is left for another pass: see WAITING_BYTES_MAX."""
        done, left = 0, Counter[str]()
        while True:
            async with self._link() as link:
                one = _Pass(link, source, min(ready - done, SCAN_MAX), choice, count_max - done)
                moved = await one.run(turn, move, on_moved)
            done, left = done + moved, one.left
            if not (one.left_out and moved and done < count_max):
                break
        if left:
            why, _count = left.most_common(1)[0]
            others = f" and {len(left) - 1} other reasons" if len(left) > 1 else ""
            raise TopologyError(f"{left.total()} left where they are: {why}{others}")
        return done

    def _link(self) -> AbstractAsyncContextManager[Link]:
        return opened(self._bus, self._broker, timeout_ms=DIAL_TIMEOUT_MS, is_named=self._is_named)


class _Taking:
    """Deliveries of one parking queue, without answers."""

    def __init__(self, link: Link, source: Parked, wanted: int, prefetch: int) -> None:
        self._link, self._source = link, source
        self._wanted, self._prefetch = wanted, prefetch
        self._consumers = self._requested = 0
        self.shown = 0
        self.is_over = False
        self._event = asyncio.Event()
        self._fault: Exception | None = None

    async def begin(self, arrived: Callable[[_Taken], bool]) -> None:
        """Begin to consume. arrived: is shown each; False: enough."""

        def on_contents(contents: list[Arrived]) -> None:
            for tag, _redelivered, raw, body in contents:
                if self.is_over:
                    break  # the others go back unseen
                self.shown += 1
                taken = _Taken(tag, self._source, raw, body)
                self.is_over = not arrived(taken) or self.shown >= self._wanted
            self._event.set()

        link = self._link
        link.transport.on_contents = on_contents
        link.on_lost(self._lost)
        gone = TopologyError(f"{self._source.parking_queue} was deleted meanwhile")
        link.channel.add_on_cancel_callback(lambda _frame: self._lost(gone))
        await self.settle()
        await self._consume()

    async def take_more(self) -> None:
        """Let one more consumer take the next when nearly all have come that may come without an answer."""
        left = self._wanted - self._requested
        if self.shown >= self._requested - self._prefetch // 2 and left:
            # The last may have no more than is there: what another gives back must not come to it.
            self._prefetch = min(self._prefetch, left)
            await self.settle()
            await self._consume()

    async def _consume(self) -> None:
        self._consumers += 1
        self._requested += self._prefetch
        consuming = self._link.call(
            "basic_consume",
            queue=self._source.parking_queue,
            on_message_callback=self._link.transport.pika_content,
            consumer_tag=f"messagebus-parked-{self._consumers:02}",
        )
        await answered(consuming, self._link)

    async def goes_on(self) -> bool:
        """Wait for more; False when nothing came in time. Raises LinkError when the link ended."""
        reading_s = 0.0 if self.shown else min(self._wanted, self._prefetch) / READ_A_S
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S + reading_s):
                await self._event.wait()
        came = self._event.is_set()
        self._event.clear()
        if self._fault is not None:
            raise self._fault
        return came

    def ack(self, tag: int) -> None:
        self._link.transport.ack(tag, False)
        self._link.transport.flush()

    async def settle(self) -> None:
        """Wait until the broker has received all answers: a round trip behind them."""
        await answered(self._link.call("basic_qos", prefetch_count=self._prefetch), self._link)

    def _lost(self, why: Exception) -> None:
        self._fault = why
        self._event.set()


Move = Callable[[_Taking, _Taken], Awaitable[str]]
"""Returns the reason for leaving it where it is, "" when it was moved."""


class _Pass:
    """One pass over a parking queue: each wanted message is moved and answered, all others go back."""

    def __init__(
        self, link: Link, source: Parked, ready: int, choice: Choice, count_max: int
    ) -> None:
        # Undelivered messages that still have no queue are kept until the end.
        all_move = choice.is_everything and not isinstance(source, Undelivered)
        ahead = min(ready, AHEAD) if all_move else ready
        self._taking = _Taking(link, source, ready, ahead)
        self._choice, self._count_max = choice, count_max
        self._waiting = deque[_Taken]()
        self._waiting_bytes = 0
        self._chosen = 0
        self.left_out = 0
        self.left = Counter[str]()

    async def run(self, turn: Turn, move: Move, on_moved: Moved) -> int:
        """Return how many were moved. Raises the errors of `move`, and LinkError."""
        moved, taking = 0, self._taking
        await taking.begin(self._arrived)
        while True:
            if self._waiting:
                await turn()
                taken = self._waiting.popleft()
                self._waiting_bytes -= len(taken.body)
                moved += await _to_its_end(self._move_one(move, taken, on_moved))
            elif taking.is_over or not await taking.goes_on():
                await taking.settle()
                return moved

    async def _move_one(self, move: Move, taken: _Taken, on_moved: Moved) -> int:
        if why := await move(self._taking, taken):
            self.left[why] += 1
            return 0
        on_moved(1)
        return 1

    def _arrived(self, taken: _Taken) -> bool:
        if not (self._choice.may_take(taken.raw) and self._choice.takes(taken.facts, taken.body)):
            return True
        if self._waiting and self._waiting_bytes + len(taken.body) > WAITING_BYTES_MAX:
            self.left_out += 1
            return True
        self._waiting.append(taken)
        self._waiting_bytes += len(taken.body)
        self._chosen += 1
        return self._chosen < self._count_max


def _misfit(taken: _Taken, body: bytes) -> str:
    """Return why a body is not what a message says of its own; "" where it is, or nothing is known."""
    if is_json(taken.content_type) and not has_content_encoding(taken.raw):
        try:
            decode_json(body)
        except WrongPayload as fault:
            return (
                f"the new body does not fit its content type {taken.content_type}: {fault.args[0]}"
            )
    return ""


class _NoQueue(TopologyError):
    """Raised when the broker returned a message."""


class _Putting:
    """The publisher of redriven messages, each confirmed before the next."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._frames: dict[tuple[str, str], Any] = {}
        self._nowhere: dict[str, str] = {}  # addresses -> why they take nothing, "" when they do
        self._answer: asyncio.Future[bool] | None = None
        self._is_returned = False

    async def begin(self) -> None:
        link = self._link
        link.transport.on_confirm = self._answered
        link.channel.add_on_return_callback(lambda *_: self._returned())
        link.on_lost(self._lost)
        await answered(link.confirm_select(), link)

    async def put_as_due(self, address: str, raw: bytes, body: bytes) -> str:
        """Put it where it was due. Returns the reason when it cannot be. Raises as `put`."""
        why = self._nowhere.get(address)
        if why is None and (why := await self._why_not(address)):
            self._nowhere[address] = why
        if why:
            return why
        is_exchange = address.startswith(EXCHANGE_PREFIXES)
        try:
            await self.put(*((address, "") if is_exchange else ("", address)), raw, body)
        except _NoQueue as fault:
            self._nowhere[address] = str(fault)
            return str(fault)
        self._nowhere[address] = ""
        return ""

    async def _why_not(self, address: str) -> str:
        """Return why an address takes no publish: one to a missing exchange would end the link."""
        if address.startswith(QUEUE_PREFIXES):
            return ""
        if not address.startswith(EXCHANGE_PREFIXES):
            return f"{address!r} is no destination"
        looking = self._link.try_call("exchange_declare", exchange=address, passive=True)
        try:
            await answered(looking, self._link)
        except ChannelRefused as refused:
            if refused.code != NOT_FOUND:
                raise
            return f"{address} is not there"
        return ""

    async def put(self, exchange: str, key: str, raw: bytes, body: bytes) -> None:
        """Publish a message and wait for its confirm.

        Raises TopologyError when the queue is gone or full, LinkError.
        """
        frames = self._frames.get((exchange, key))
        if frames is None:
            frames = self._frames[exchange, key] = self._link.transport.frames(exchange, key)
        broker = self._link.address.name
        if not self._link.is_open:
            raise LinkLost(broker, "the connection ended")
        self._answer, self._is_returned = asyncio.get_running_loop().create_future(), False
        frames.add(self._link.transport.out, raw, body)
        self._link.transport.flush()
        within_s = PUT_TIMEOUT_S + line_ms(len(body)) / 1000
        try:
            async with asyncio.timeout(within_s):
                stored = await self._answer
        except TimeoutError:
            late = f"no confirm within {within_s:g} s: one message may come twice"
            raise LinkLost(broker, late) from None
        if self._is_returned:
            gone = f"{exchange} has no subscription" if exchange else f"{key} is not there any more"
            raise _NoQueue(f"{gone}: deleted?")
        if not stored:
            raise TopologyError(f"{exchange or key} takes no more: full?")

    def _answered(self, _tag: int, _multiple: bool, ok: bool) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(ok)

    def _returned(self) -> None:
        self._is_returned = True

    def _lost(self, why: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(why)


async def _to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end also when the caller is cancelled: a message is not left between its two queues."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=CALL_TIMEOUT_S)
        if task.done() and not task.cancelled():
            task.exception()
        raise
