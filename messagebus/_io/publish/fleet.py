"""The drivers of one publisher that has two brokers confirm a message; decisions are `core.redundancy`'s.

Runs on the publisher's loop. The first driver is the publisher's own, which takes all other publishes too and
goes wherever the balancer says. The second one keeps away from the first one's broker: its link there is hung
up, and while it leads there nothing is sent on it. Each redundant publish is a `Pair` of copies, one for each
driver. A copy that may not go out on its driver's link is taken over by the other.

The second driver is made at the first redundant publish and ends IDLE_MS after the last one. It has no
consumer list of its own. Each driver has a backlog as large as configured: without a second broker redundant
publishes wait for room there, and all others go on.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import cast

from messagebus._io.amqp.properties import bare_shape
from messagebus._io.loop import Tasks, now_ms
from messagebus._io.publish.driver import PublishDriver, encode_publish
from messagebus._io.publish.homes import Homes
from messagebus._io.publish.publishes import (
    Address,
    Copy,
    Many,
    Publish,
    Shape,
    Target,
    Waiter,
    message_ids,
    tell,
)
from messagebus._io.wire import Wire
from messagebus.clock import LogLimit
from messagebus.config import BusConfig, PublisherConfig
from messagebus.core.pending import CONFIRMED, REFUSED, Item
from messagebus.core.redundancy import NO_SECOND, PARTITIONED, PREFERRED, CopyEnd, PairEnd, end_of
from messagebus.message import Message
from messagebus.stats import Durability, Outcome, Published
from messagebus.topology import Options

log = logging.getLogger("messagebus.publisher")

# A second driver that nobody uses holds a link for nothing.
IDLE_MS = 300_000
# Where a second broker is only preferred, publishes wait that long for a link to one.
ALONE_MS = 1_000
TICK_S = 0.1
# Pause between two warnings about publishes that one broker confirmed.
WARN_EVERY_MS = 60_000
UNNAMED = (
    "the broker does not say its name (cluster_name), so that no second one can be told from it"
)
# For a second driver that has ended to close its link.
STOP_TIMEOUT_S = 5.0
# Age of the time stamp in the properties of a bare body, which are made at once for all of that time.
STAMP_MS = 1_000
_NO_SHAPE: tuple[int, tuple[bytes, bytes], int] = (-STAMP_MS, (b"", b""), 0)
# As in `publishes`: cheap.
_new = tuple.__new__
_CONFIRMED = Outcome.CONFIRMED


class Pair(Copy, Many):
    """One message on its way to two brokers: the first copy, and the waiter of both.

    second: the other one; None where there is none. told: gets the one end, when both copies have theirs.
    result: that end.
    """

    __slots__ = ("_fleet", "result", "second", "told", "unsettled")

    def __init__(
        self,
        fleet: Fleet,
        message_id: str,
        target: Target,
        body: bytes,
        deadline_ms: int,
        told: Waiter | Many | None,
    ) -> None:
        Copy.__init__(self, message_id, target, body, None, None, deadline_ms, True)
        self._fleet, self.told = fleet, told
        self.second: Copy | None = None
        self.unsettled = 0
        self.result: Published | None = None

    def finish(self) -> None:
        """End the publish: both copies have their ends."""
        first_end, second = self.end, self.second
        assert first_end is not None
        if second is None:
            self._fleet.end(self, end_of(_end_of(self), NO_SECOND, self.target.redundancy))
            return
        second_end = second.end
        assert second_end is not None
        broker, sent_ns, _ = self.sent
        other, other_sent_ns, _ = second.sent
        if first_end[0] is not CONFIRMED or second_end[0] is not CONFIRMED or broker == other:
            self._fleet.end(self, end_of(_end_of(self), _end_of(second), self.target.redundancy))
            return
        self._fleet.redundant += 1  # nearly all of them: written out
        attempts, other_attempts = self.attempts, second.attempts
        self.give(
            _new(
                Published,
                (
                    self.message_id,
                    _CONFIRMED,
                    self.target.durability,
                    broker,
                    attempts if attempts > other_attempts else other_attempts,
                    sent_ns if sent_ns > other_sent_ns else other_sent_ns,
                    max(self.settled_ns, second.settled_ns),
                    "",
                    (broker, other),
                ),
            )
        )

    def give(self, result: Published) -> None:
        """Give the waiter the end."""
        self.result = result
        if self.second is not None:
            self.twin = self.second.twin = None  # else only a garbage collection would free them
        fleet = self._fleet
        fleet.open -= 1
        if fleet.flushing:
            fleet.tell_flushes()
        told, self.told = self.told, None
        if isinstance(told, Many):
            told.unsettled -= 1
            if not told.unsettled:
                told.finish()
        elif told is not None and not told.done():
            told.set_result(result)

    def published(self) -> Published:
        """Return the end of a settled pair."""
        assert self.result is not None
        return self.result


class Fleet:
    """The two drivers of one publisher, and the pairs on their way."""

    def __init__(
        self,
        first: PublishDriver,
        bus: BusConfig,
        config: PublisherConfig,
        on_room: Callable[[], None],
        wire: Wire,
    ) -> None:
        """Create the fleet. first: the publisher's own driver, started. on_room: as of `PublishDriver`."""
        self.first = first
        self.second: PublishDriver | None = None
        self._make: Callable[[], PublishDriver] = lambda: PublishDriver(
            bus, config, on_room, wire, beside=first
        )
        self.homes: Homes | None = None
        self._make_homes: Callable[[], Homes] = lambda: Homes(
            first, bus, config, on_room, wire, lambda home: self._retired.update(counts_of(home))
        )
        self._config = config
        self.redundant = self.downgraded = 0
        """Messages that two brokers confirmed, or one where two were preferred."""
        self.open = self.flushing = 0
        """Messages on their way, and calls that wait for all."""
        self._ended: Counter[str] = Counter()  # less their copies; without the redundant ones
        self._retired: Counter[str] = Counter()  # what drivers counted that have ended
        self._used_ms = 0
        self._stuck_since_ms: dict[PublishDriver, int] = {}  # without a link for copies
        self._warnings = LogLimit(WARN_EVERY_MS)
        self._ids = message_ids()
        self._bare: dict[Target, tuple[int, Shape, int]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()

    # Accepting.
    def has_room(self, size: int, count: int = 1) -> bool:
        """Return whether both drivers take messages of this size in bytes."""
        second = self.second
        if self.homes is not None and self.homes.crowded is not None:
            return False
        return self.first.pending.has_room(size, count) and (
            second is None or second.pending.has_room(size, count)
        )

    @property
    def waiting(self) -> tuple[int, int]:
        """Messages that wait in the fuller backlog, and bytes."""
        drivers = self._drivers
        messages, size = (0, 0) if self.homes is None else self.homes.waiting()
        return (
            max(messages, *(each.pending.waiting for each in drivers)),
            max(size, *(each.pending.waiting_bytes for each in drivers)),
        )

    @property
    def _drivers(self) -> tuple[PublishDriver, ...]:
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def _all(self) -> tuple[PublishDriver, ...]:
        """The drivers, with those of homes."""
        homes = () if self.homes is None else self.homes.drivers.values()
        return (*self._drivers, *homes)

    def submit(
        self,
        target: Target,
        body: bytes,
        message: Message | None,
        timeout_ms: int,
        waiter: Waiter | Many | None,
    ) -> Pair | Publish:
        """Accept a publish without a bound: the caller has asked for room. As `PublishDriver.submit`."""
        if self.homes is not None and target.redundancy == PARTITIONED:
            return self.homes.submit(target, body, message, timeout_ms, waiter)
        now = self._used_ms = time.monotonic_ns() // 1_000_000
        first, second = self.first, self.second
        if second is None:
            second = self._begin()
        deadline_ms = now + timeout_ms
        redundancy = target.redundancy
        if message is None:
            pair = Pair(self, next(self._ids), target, body, deadline_ms, waiter)
            stamp_s, shape, packed_max = self._bare.get(target, _NO_SHAPE)
            if now - stamp_s >= STAMP_MS:
                shape, packed_max = self._shape_of(target, now)
            if len(body) >= packed_max:
                pair.shape = shape
            else:
                pair.alone = False
        else:
            made = message.message_id or next(self._ids)
            pair = Pair(self, made, target, body, deadline_ms, waiter)
            pair.alone = first.goes_alone(target, message)
            try:
                pair.properties = encode_publish(target, message, made, alone=pair.alone)
            except Exception as fault:  # an AMQP table cannot hold it
                return self._refuse(pair, f"cannot be encoded: {type(fault).__name__}")
        self.open += 1
        pair.waiter = pair
        only = None
        if first.is_unnamed or self._stuck_since_ms:
            if first.is_unnamed and redundancy != PREFERRED:
                self.open -= 1
                return self._refuse(pair, UNNAMED)
            only = self._only() if redundancy == PREFERRED else None
        if only is not None:
            pair.unsettled = 1
            only.submit_copy(pair)
            return pair
        pair.second = twin = Copy(
            pair.message_id, target, body, pair.properties, pair.shape, deadline_ms, pair.alone
        )
        twin.waiter = pair
        pair.twin, twin.twin = twin, pair
        pair.unsettled = 2
        first.submit_copy(pair)
        second.submit_copy(twin)
        return pair

    def adopt(self, address: Address, options: Options, items: list[Item]) -> str:
        """Publish a topic to the homes of its partitions. Returns why not, "" when it does."""
        if address.name in self._config.batch:
            return f"{address.name} has partitions: batch is for topics without"
        if self.homes is None:
            self.homes = self._make_homes()
        self.homes.adopt(address.name, options, [i for i in items if not isinstance(i, Copy)])
        if copies := [item for item in items if isinstance(item, Copy)]:
            told = f"{address.name} has partitions: redundant is for topics without"
            self.first.refuse(copies, told)
        return ""

    def _shape_of(self, target: Target, now: int) -> tuple[Shape, int]:
        """Return the shape of both copies of a bare body, and the size below which it goes into batches."""
        shape = bare_shape(target.content_type, int(time.time()))
        packed_max = self.first.packed_max(target)
        self._bare[target] = now, shape, packed_max
        return shape, packed_max

    def _refuse(self, pair: Pair, reason: str) -> Pair:
        self.open += 1
        self._loop.call_soon(self.end, pair, PairEnd(REFUSED, reason))
        return pair

    # The second driver.
    def _begin(self) -> PublishDriver:
        self._used_ms = now_ms()
        self.second = second = self._make()
        for each in (self.first, second):
            each.on_displaced, each.on_adopted = self._displaced, self._adopted
        second.start()
        self._tick()
        return second

    def _adopted(self) -> None:
        """Make the second driver leave the broker that the first one came to, and let both send again."""
        for each in self._drivers:
            self._look(each, now_ms())
            each.resume()
        if self.second is not None and self._is_beside():
            self.second.leave()

    def _is_beside(self) -> bool:
        """Return whether both links lead to one broker, or the second one's has no name."""
        second = self.second
        return second is not None and bool(second.route.current) and not second.stands_apart

    def _look(self, driver: PublishDriver, now: int) -> None:
        """Note since when a driver has no link that copies can go out on."""
        if driver.is_usable(now):
            self._stuck_since_ms.pop(driver, None)
        else:
            self._stuck_since_ms.setdefault(driver, now)

    def _is_stuck(self, driver: PublishDriver | None, now: int) -> bool:
        since_ms = None if driver is None else self._stuck_since_ms.get(driver)
        return since_ms is not None and now - since_ms >= ALONE_MS

    def _only(self) -> PublishDriver | None:
        """Return the driver of the one copy, where there is no second broker, or was none for ALONE_MS."""
        now, first = now_ms(), self.first
        if first.is_unnamed and self.second is not None:
            return self.second if self.second.is_usable(now) else first
        if self._is_stuck(self.second, now):
            return first if first.route.current is not None else None
        return self.second if self._is_stuck(first, now) else None

    def _tick(self) -> None:
        second, now = self.second, now_ms()
        if second is None:
            return
        if not self.open and now - self._used_ms >= IDLE_MS:
            self._retire(second)
            return
        for each in self._drivers:
            self._look(each, now)
        if self._is_beside():
            second.leave()
        for each in self._drivers:
            if self._is_stuck(each, now):
                self._downgrade(each)
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _downgrade(self, driver: PublishDriver) -> None:
        """Give up copies that wait for a second broker, where the other one is confirmed and will do."""
        waiting = [
            item for item in driver.pending.unsettled() if isinstance(item, Copy) and _will_do(item)
        ]
        if waiting:
            driver.withdraw(waiting, NO_SECOND.reason)

    def _retire(self, second: PublishDriver) -> None:
        log.info("second broker not used any more broker=%s", second.route.broker)
        self.second = None
        for each in (self.first, second):
            each.on_displaced = each.on_adopted = None
        self._stuck_since_ms.clear()
        self._retired.update(counts_of(second))
        self._tasks.spawn(second.stop(0))

    # Copies.
    def _displaced(self, driver: PublishDriver, items: list[Item]) -> None:
        copies = cast(list[Copy], items)
        if not driver.route.broker:
            self._loop.call_soon(self._without_a_name, driver, copies)
        elif driver is self.first:
            (self.second or self._begin()).take_over(copies)
        else:
            self.first.take_over(copies)

    def _without_a_name(self, driver: PublishDriver, copies: list[Copy]) -> None:
        """End copies for a broker that does not say its name; one will do where two are preferred."""
        for copy in copies:
            twin = copy.twin
            is_alone = twin is not None and twin.end is None and not twin.place
            if twin is not None and self.second is not None and is_alone:
                copy.twin = twin.twin = None
                self.second.withdraw([twin], UNNAMED)
            if copy.twin is None and copy.target.redundancy == PREFERRED:
                driver.take_over([copy])
            else:
                driver.pending.refuse(copy, UNNAMED)
                tell((copy,), time.monotonic_ns())

    def end(self, pair: Pair, end: PairEnd) -> None:
        """Settle a pair that did not end as nearly all of them do."""
        outcome, reason, brokers, downgraded = end
        copies = [copy for copy in (pair, pair.second) if copy is not None and copy.end is not None]
        for copy in copies:
            assert copy.end is not None
            self._ended[copy.end.outcome] -= 1
        self._ended[outcome] += 1
        if downgraded:
            self._warn(brokers)
        pair.give(
            Published(
                pair.message_id,
                Outcome(outcome),
                pair.target.durability if outcome == CONFIRMED else Durability.NONE,
                brokers[0] if brokers else "",
                max((copy.attempts for copy in copies), default=0),
                max((copy.sent[1] for copy in copies), default=0),
                max((copy.settled_ns for copy in copies), default=0) or time.monotonic_ns(),
                reason,
                brokers,
            )
        )

    def tell_flushes(self) -> None:
        """Let both drivers look again who waits for all: a copy may end at another one than it began."""
        for each in self._drivers:
            each.tell_flushes()

    def _warn(self, brokers: tuple[str, ...]) -> None:
        self.downgraded += 1
        if self._warnings.allows():
            log.warning(
                "no second broker broker=%s downgraded=%d",
                brokers[0] if brokers else "",
                self.downgraded,
            )

    # Life.
    async def flush(self, timeout_s: float) -> int:
        """Do as `PublishDriver.flush`; a message with two copies counts once."""
        drivers = self._all
        items = [item for each in drivers for item in each.pending.unsettled()]
        self.flushing += 1
        try:
            await asyncio.gather(*(each.flush(timeout_s) for each in drivers))
        finally:
            self.flushing -= 1
        left = [item for item in items if item.end is None]
        pairs = {item.waiter for item in left if isinstance(item, Copy)}
        return sum(item.count for item in left if not isinstance(item, Copy)) + len(pairs)

    async def stop(self, timeout_s: float) -> int:
        """Do as `PublishDriver.stop`; a message with two copies counts once."""
        until_s = time.monotonic() + timeout_s
        left = await self.flush(timeout_s)
        if self._timer is not None:
            self._timer.cancel()
        if self.homes is not None:
            await self.homes.stop()
        left_s = max(0.0, until_s - time.monotonic())
        await asyncio.gather(*(each.stop(left_s) for each in self._all))
        await self._tasks.finish(STOP_TIMEOUT_S)
        return left

    def renew(self) -> None:
        """Dial anew through the balancer, both drivers."""
        for each in self._drivers:
            each.renew()

    def put_forward(self, ms: int) -> None:
        """Advance the time of the second driver, as `PublishDriver.put_forward`."""
        if self.second is not None:
            self.second.put_forward(ms)

    def counts(self) -> Counter[str]:
        """Return what the second drivers counted, by the names of `PublisherStats`, with `outcomes` added."""
        counts: Counter[str] = Counter() if self.second is None else counts_of(self.second)
        # Copies: other threads read it.
        counts.update(dict(self._retired))
        for home in () if self.homes is None else list(self.homes.drivers.values()):
            counts.update(counts_of(home))
        counts.update(dict(self._ended))
        counts[CONFIRMED] -= self.redundant  # two copies each
        return counts


def _end_of(copy: Copy) -> CopyEnd:
    assert copy.end is not None
    return CopyEnd(copy.end.outcome, copy.end.reason, copy.sent[0])


def _will_do(copy: Copy) -> bool:
    """Return whether the other copy is enough."""
    twin = copy.twin
    return (
        twin is not None
        and twin.end is not None
        and twin.end.outcome == CONFIRMED
        and copy.target.redundancy == PREFERRED
    )


def counts_of(driver: PublishDriver) -> Counter[str]:
    """Return what a driver counts, by the names of `PublisherStats`."""
    return Counter(
        **driver.pending.ended,
        retried=driver.pending.retried,
        backlog=driver.pending.waiting,
        window=driver.pending.in_flight,
        settling=driver.settling,
        dials=driver.route.dials,
        moves=driver.route.moves,
        links_lost=driver.counters.links_lost,
    )
