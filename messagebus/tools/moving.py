"""Moves of messages from one broker to others, for a broker that leaves or whose queues nobody reads.

Ids, headers, keys and times stay; each message is answered at the old broker after a new one has
confirmed it. So whatever ends the process loses nothing, and leaves at most MOVES_AT_ONCE messages on both,
under their ids. Runs on one asyncio loop; every wait is bounded. It needs a user who may read every queue
there and write to the default exchange and the delay exchanges of the others: operators have one,
applications do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from messagebus._io.admin.queues import answered, opened, ready_messages
from messagebus._io.amqp.copy_headers import copied
from messagebus._io.amqp.link import Link
from messagebus._io.amqp.properties import read_headers, read_message_id, read_stamp_ms
from messagebus.clock import wall_ms
from messagebus.config import BusConfig
from messagebus.core.parking import DELAYS, Spread, parked_marks, read_facts, rest_of_delay
from messagebus.destination import PARKING_PREFIX, Delay
from messagebus.errors import ConfigError, LinkError, LinkLost, TopologyError

MOVES_AT_ONCE = 200
"""Upper bound of the messages that are on both brokers after a move that was killed."""
# Messages of one queue that are taken ahead and held in memory.
AHEAD_BYTES_MAX = 64 * 1024 * 1024
# Each queue goes to this many brokers, the next queue to others: fewer links.
TARGETS_MAX = 8
DIAL_TIMEOUT_MS = 5_000
CONFIRM_TIMEOUT_S = 30.0
# No delivery for this time, and none counted by the broker: the queue is empty.
IDLE_S = 0.5
# No delivery for this time although it counts some: another consumer holds them.
HELD_S = 10.0


@dataclass(frozen=True, slots=True)
class MessagesMoved:
    """Result of a move.

    moved: number of messages by (queue, broker that they went to). faults: queue -> reason.
    """

    moved: Mapping[tuple[str, str], int]
    faults: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The number of messages over all queues and brokers."""
        return sum(self.moved.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingProgress:
    """Progress of a move. queue: the one that is being moved. total: messages moved so far, of all queues."""

    queue: str
    total: int


def move_messages(
    bus: BusConfig,
    queues: Iterable[str],
    *,
    source: str,
    targets: Sequence[str],
    message_bytes: Mapping[str, int] | None = None,
    on_progress: Callable[[MovingProgress], None] = lambda progress: None,
) -> MessagesMoved:
    """Move all ready messages in these queues of `source` to the queues of the same names elsewhere.

    bus: how to log in; its own broker is not looked at. queues: AMQP's names, ``mb.sub/orders/billing``.
    source, targets: brokers, ``host:port``. message_bytes: approximate size of a queue's messages: fewer
    large ones are taken ahead. Messages of one key stay in their order, others are spread.
    A delayed message waits for the rest of its time, rounded up to the next step; a message that expires
    has its whole time again. A target that does not answer, or confirms nothing for 30 s, is left out from
    then on, unless it is the last. Interrupted or killed, it loses nothing: at most MOVES_AT_ONCE messages
    are there twice, under their ids, and as many for each target that was left out. Raises ConfigError
    without targets.
    """
    if not targets:
        raise ConfigError("no other broker to move to")
    sizes = message_bytes or {}
    windows = {
        queue: min(MOVES_AT_ONCE, max(1, AHEAD_BYTES_MAX // max(1, sizes.get(queue, 1))))
        for queue in queues
    }
    return asyncio.run(_move(bus, windows, source, list(targets), on_progress))


async def _move(
    bus: BusConfig,
    windows: Mapping[str, int],
    source: str,
    targets: list[str],
    on_progress: Callable[[MovingProgress], None],
) -> MessagesMoved:
    done, faults, left = Counter[tuple[str, str]](), dict[str, str](), list(targets)
    for number, (queue, window) in enumerate(windows.items()):

        def moved(broker: str, count: int, queue: str = queue) -> None:
            done[queue, broker] += count
            on_progress(MovingProgress(queue=queue, total=done.total()))

        while True:
            some = _some(left, number)
            try:
                await Mover(bus, source, some).move(queue, on_moved=moved, window=window)
            except (LinkError, TopologyError) as fault:
                if isinstance(fault, LinkError) and fault.broker in some and len(left) > 1:
                    left.remove(fault.broker)
                    continue
                faults[queue] = str(fault)
            break
    return MessagesMoved(dict(done), faults)


def _some(targets: list[str], number: int) -> list[str]:
    """Return the next TARGETS_MAX targets, other ones for each queue."""
    begin = number * TARGETS_MAX % len(targets)
    return [*targets[begin:], *targets[:begin]][:TARGETS_MAX]


@dataclass(frozen=True, slots=True)
class _Taken:
    """A message, unanswered at its old broker. key: its routing key. raw: its properties."""

    tag: int
    key: str
    raw: bytes
    body: bytes


class _Way(NamedTuple):
    """The target of a message: exchange and routing key, and the properties of the copy."""

    exchange: str
    key: str
    raw: bytes


class Mover:
    """The move of messages from one broker to others.

    bus: the login for all brokers; its broker is ignored. is_named: brokers call themselves as the
    list does, so another one at their address is refused.
    """

    def __init__(
        self, bus: BusConfig, source: str, targets: Sequence[str], *, is_named: bool = True
    ) -> None:
        self._bus, self._source, self._targets = bus, source, targets
        self._is_named = is_named

    async def move(
        self, queue: str, *, on_moved: Callable[[str, int], None], window: int = MOVES_AT_ONCE
    ) -> Counter[str]:
        """Move all ready messages of this queue. Returns counts by target.

        window: number of messages under way at the same time. on_moved: called with target and count, as they
        are confirmed. Raises TopologyError when a target does not have the queue or takes no more,
        LinkError; messages confirmed until then were moved.
        """
        async with AsyncExitStack() as open_links:
            source = await open_links.enter_async_context(self._link(self._source))
            links = [
                await open_links.enter_async_context(self._link(each)) for each in self._targets
            ]
            for link in links:
                await _look_for(link, queue)
            puttings = [_Putting(link, queue) for link in links]
            for putting in puttings:
                await putting.begin()
                if queue in DELAYS:
                    putting.steps = await _steps(putting.link)
            return await _Pass(source, queue, puttings, on_moved, window).run()

    def _link(self, broker: str) -> AbstractAsyncContextManager[Link]:
        return opened(self._bus, broker, timeout_ms=DIAL_TIMEOUT_MS, is_named=self._is_named)


class _Pass:
    """One pass over a queue, until nothing is left in it."""

    def __init__(
        self,
        source: Link,
        queue: str,
        puttings: Sequence[_Putting],
        on_moved: Callable[[str, int], None],
        window: int,
    ) -> None:
        self._source, self._queue, self._puttings = source, queue, puttings
        self._window = window
        self._spread = Spread(len(puttings))
        self._on_moved = on_moved
        self._waiting = deque[_Taken]()
        self._moved = Counter[str]()
        self._event = asyncio.Event()
        self._fault: Exception | None = None

    async def run(self) -> Counter[str]:
        self._source.on_lost(self._failed)
        for putting in self._puttings:
            putting.watch(self._confirmed, self._failed)
        await self._take()
        idle_since = time.monotonic()
        while True:
            if self._fault is not None:
                raise self._fault
            if self._waiting:
                self._put_all()
                idle_since = time.monotonic()
            await self._something(IDLE_S)
            if not (self._waiting or self._open or self._fault):
                idle_s = time.monotonic() - idle_since
                if idle_s >= IDLE_S and await self._is_over(idle_s):
                    await self._settle()
                    return self._moved
            self._raise_if_late()

    async def _take(self) -> None:
        """Begin to consume, without the link's transport, which does not tell routing keys."""

        def arrived(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
            raw = b"".join(properties.encode())
            self._waiting.append(_Taken(method.delivery_tag, method.routing_key, raw, body))
            self._event.set()

        gone = TopologyError(f"{self._queue} was deleted meanwhile")
        self._source.channel.add_on_cancel_callback(lambda _frame: self._failed(gone))
        await self._settle()
        consuming = self._source.call(
            "basic_consume",
            queue=self._queue,
            on_message_callback=arrived,
            consumer_tag="messagebus-move",
        )
        await answered(consuming, self._source)

    def _put_all(self) -> None:
        while self._waiting:
            taken = self._waiting.popleft()
            key = read_facts(read_headers(taken.raw)).key
            putting = self._puttings[self._spread.place(key)]
            putting.put(_way(self._queue, taken, putting.steps), taken)
        for putting in self._puttings:
            putting.flush()

    def _confirmed(self, broker: str, taken: Sequence[_Taken]) -> None:
        for each in taken:
            self._source.channel.basic_ack(each.tag)
        self._moved[broker] += len(taken)
        self._on_moved(broker, len(taken))
        self._event.set()

    def _failed(self, why: Exception) -> None:
        self._fault = self._fault or why
        self._event.set()

    async def _something(self, within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._event.wait()
        self._event.clear()

    async def _is_over(self, idle_s: float) -> bool:
        """Return whether no message is ready. Raises TopologyError when some are, but none is delivered."""
        left = await _look_for(self._source, self._queue)
        if left and idle_s > HELD_S:
            raise TopologyError(f"{self._queue}: {left:,} messages are another consumer's")
        return not left

    async def _settle(self) -> None:
        """Wait until the broker has received all answers: a round trip behind them."""
        await answered(self._source.call("basic_qos", prefetch_count=self._window), self._source)

    @property
    def _open(self) -> int:
        return sum(len(putting.open) for putting in self._puttings)

    def _raise_if_late(self) -> None:
        for putting in self._puttings:
            if putting.open and time.monotonic() - putting.moved_at_s > CONFIRM_TIMEOUT_S:
                raise LinkLost(putting.broker, f"no confirm within {CONFIRM_TIMEOUT_S:g} s")


class _Putting:
    """The publisher to one queue of one broker, with confirms."""

    def __init__(self, link: Link, queue: str) -> None:
        self.link, self._queue = link, queue
        self.broker = link.address.name
        self.steps: tuple[Delay, ...] = ()
        self.open: dict[int, _Taken] = {}
        self.moved_at_s = 0.0
        self._frames: dict[tuple[str, str], Any] = {}
        self._next_tag = 1
        self._confirmed: Callable[[str, Sequence[_Taken]], None] = lambda _broker, _taken: None
        self._failed: Callable[[Exception], None] = lambda _why: None
        self._is_over = False

    async def begin(self) -> None:
        link = self.link
        link.transport.on_confirm = self._answered
        link.channel.add_on_return_callback(lambda *_: self._end("is not there any more"))
        await answered(link.confirm_select(), link)

    def watch(
        self,
        confirmed: Callable[[str, Sequence[_Taken]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._confirmed, self._failed = confirmed, failed
        self.link.on_lost(failed)

    def put(self, way: _Way, taken: _Taken) -> None:
        place = (way.exchange, way.key)
        frames = self._frames.get(place)
        if frames is None:
            frames = self._frames[place] = self.link.transport.frames(*place)
        frames.add(self.link.transport.out, way.raw, taken.body)
        if not self.open:
            self.moved_at_s = time.monotonic()
        self.open[self._next_tag] = taken
        self._next_tag += 1

    def flush(self) -> None:
        self.link.transport.flush()

    def _answered(self, tag: int, multiple: bool, ok: bool) -> None:
        """Record a confirm. A return comes before its confirm, so after one no confirm counts."""
        if self._is_over:
            return
        if not ok:
            self._end("takes no more: full?")
            return
        tags = [each for each in self.open if each <= tag] if multiple else [tag]
        self.moved_at_s = time.monotonic()
        self._confirmed(self.broker, [self.open.pop(each) for each in tags])

    def _end(self, what: str) -> None:
        self._is_over = True
        self._failed(TopologyError(f"{self._queue} on {self.broker} {what}"))


async def _steps(link: Link) -> tuple[Delay, ...]:
    """Return the steps of the delay ladder that a broker has."""
    found = []
    for queue, step in DELAYS.items():
        with contextlib.suppress(TopologyError):
            await _look_for(link, queue)
            found.append(step)
    return tuple(found)


def _way(queue: str, taken: _Taken, steps: Sequence[Delay]) -> _Way:
    """Choose exchange and key: the queue of the same name; for a delayed message one of these steps."""
    raw, now_ms = taken.raw, wall_ms()
    headers, stamp_ms = read_headers(raw), read_stamp_ms(raw)
    marks: dict[str, Any] = {}
    if queue.startswith(PARKING_PREFIX):
        marks = parked_marks(read_facts(headers, stamp_ms=stamp_ms))
    moved = copied(
        raw,
        marks,
        read_message_id(raw),
        entry=False,
        stamp_ms=now_ms if stamp_ms is None else stamp_ms,
        expires=True,
    )
    if (step := DELAYS.get(queue)) is not None:
        rest = rest_of_delay(step, headers, stamp_ms, now_ms, steps)
        return _Way(rest.exchange, taken.key, moved)
    return _Way("", queue, moved)


async def _look_for(link: Link, queue: str) -> int:
    """Return how many messages are ready. Raises TopologyError when the queue does not exist."""
    found = await ready_messages(link, queue)
    if found is None:
        raise TopologyError(f"{link.address.name} has no queue {queue}")
    return found
