"""The two drivers of one publisher that has two brokers confirm a message; decisions are `core.redundancy`'s.

Runs on the publisher's loop. The first driver is the publisher's own, which takes all other publishes too and
goes wherever the balancer says. The second one has the policy `AnotherBroker`: a link to the first one's
broker is hung up, and while it leads there nothing is sent on it. Each redundant publish is two copies, one
for each driver. A copy that may not go out on its driver's link is taken over by the other.

The second driver is made at the first redundant publish and ends IDLE_MS after the last one. It has no
consumer list of its own. Each driver has a backlog as large as configured: without a second broker redundant
publishes wait for room there, and all others go on.
"""

# The second driver:  none ─ a redundant publish ─▶ there ─ IDLE_MS without one ─▶ stopped
#
# A publish is a `RedundantPublish`, which is the first copy, with a `PublishCopy` as its twin:
#
#   submit ─┬▶ memory of one driver ─────▶ confirmed ─┐
#           └▶ memory of the other one ──▶ confirmed ─┴▶ the publish judges both ends, and has its own
#                 │  ▲
#                 └──┘ displaced: the link leads to the other driver's broker, which takes the copy over
#
# A driver is stuck without a link for copies. After ALONE_MS of it, a publish that prefers two brokers
# goes out once, or its waiting copy is withdrawn (`_downgrade`); one that requires two waits for its
# deadline.

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import cast

from messagebus._io.amqp.properties import bare_shape
from messagebus._io.loop import Tasks
from messagebus._io.publish.calls import Call
from messagebus._io.publish.driver import PublishDriver
from messagebus._io.publish.publishes import (
    Many,
    PublishCopy,
    Shape,
    Waiter,
    encode_publish,
    message_ids,
    tell,
)
from messagebus._io.publish.routes import AnotherBroker
from messagebus._io.publish.targets import Target
from messagebus.clock import LogLimit, monotonic_ms
from messagebus.core.ends import CONFIRMED, NOT_ENCODED, REFUSED, End, Item
from messagebus.core.redundancy import NO_SECOND, PREFERRED, CopyEnd, PairEnd, end_of
from messagebus.stats import CONFIRMED_OUTCOME, Durability, Outcome, Published

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


class RedundantPublish(PublishCopy, Many):
    """One message on its way to two brokers: the first copy, and the waiter of both.

    second: the other one; None where there is none. caller: gets the one end, when both copies have theirs.
    result: that end.
    """

    __slots__ = ("_drivers", "caller", "result", "second", "unsettled")

    def __init__(
        self,
        drivers: RedundantDrivers,
        message_id: str,
        target: Target,
        body: bytes,
        deadline_ms: int,
        caller: Waiter | Many | None,
    ) -> None:
        PublishCopy.__init__(self, message_id, target, body, None, None, deadline_ms, True)
        self._drivers, self.caller = drivers, caller
        self.second: PublishCopy | None = None
        self.unsettled = 0
        self.result: Published | None = None

    def copied(self) -> PublishCopy:
        """Return the other copy, and wait for both."""
        self.second = twin = PublishCopy(
            self.message_id,
            self.target,
            self.body,
            self.properties,
            self.shape,
            self.deadline_ms,
            self.alone,
        )
        twin.waiter = self
        self.twin, twin.twin = twin, self
        self.unsettled = 2
        return twin

    def finish(self) -> None:
        """End the publish: both copies have their ends."""
        first_end, second = self.end, self.second
        assert first_end is not None
        if second is None:
            self._drivers.end(self, end_of(_end_of(self), NO_SECOND, self.target.redundancy))
            return
        second_end = second.end
        assert second_end is not None
        broker, sent_ns, _ = self.sent
        other, other_sent_ns, _ = second.sent
        if first_end[0] is not CONFIRMED or second_end[0] is not CONFIRMED or broker == other:
            self._drivers.end(self, end_of(_end_of(self), _end_of(second), self.target.redundancy))
            return
        self._drivers.redundant += 1  # nearly all of them: written out
        attempts, other_attempts = self.attempts, second.attempts
        self.give(
            _new(
                Published,
                (
                    self.message_id,
                    CONFIRMED_OUTCOME,
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
        self._drivers.open -= 1
        caller, self.caller = self.caller, None
        if isinstance(caller, Many):
            caller.unsettled -= 1
            if not caller.unsettled:
                caller.finish()
        elif caller is not None and not caller.done():
            caller.set_result(result)

    def published(self) -> Published:
        """Return the end of a settled pair."""
        assert self.result is not None
        return self.result


class RedundantDrivers:
    """The two drivers of one publisher, and the redundant publishes on their way."""

    def __init__(self, first: PublishDriver) -> None:
        """Create them. first: the publisher's own driver, started."""
        self.first = first
        self.second: PublishDriver | None = None
        self.redundant = self.downgraded = 0
        """Messages that two brokers confirmed, or one where two were preferred."""
        self.open = 0
        """Messages on their way."""
        self._ended: Counter[str] = Counter()  # less their copies; without the redundant ones
        self._retired: Counter[str] = Counter()  # what second drivers counted that have ended
        self._used_ms = 0
        self._stuck_since_ms: dict[PublishDriver, int] = {}  # without a link for copies
        self._warnings = LogLimit(WARN_EVERY_MS)
        self._ids = message_ids()
        self._bare: dict[Target, tuple[int, Shape, int]] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = Tasks()

    @property
    def drivers(self) -> tuple[PublishDriver, ...]:
        """The first one, and the second one where there is one."""
        return (self.first,) if self.second is None else (self.first, self.second)

    # Accepting.
    def submit(self, call: Call, timeout_ms: int, waiter: Waiter | Many | None) -> RedundantPublish:
        """Accept a publish without a bound: the caller has asked for room. As `Door.submit`."""
        target, body, message = call
        now = self._used_ms = monotonic_ms()
        deadline_ms, redundancy = now + timeout_ms, target.redundancy
        first, second = self.first, self.second or self._begin()
        if message is None:
            publish = RedundantPublish(self, next(self._ids), target, body, deadline_ms, waiter)
            shape, packed_max = self._shape_of(target, now)
            if len(body) >= packed_max:
                publish.shape = shape
            else:
                publish.alone = False
        else:
            message_id = message.message_id or next(self._ids)
            publish = RedundantPublish(self, message_id, target, body, deadline_ms, waiter)
            publish.alone = alone = first.memory.goes_alone(target, message)
            try:
                publish.properties = encode_publish(target, message, message_id, alone=alone)
            except Exception as fault:  # an AMQP table cannot hold it
                return self._refuse(publish, f"{NOT_ENCODED}: {type(fault).__name__}")
            for each in (first, second) if alone else ():
                if too_long := each.memory.fault_of(publish.target, publish.properties):
                    return self._refuse(publish, too_long)
        self.open += 1
        publish.waiter = publish
        only = None
        if first.is_unnamed or self._stuck_since_ms:
            if first.is_unnamed and redundancy != PREFERRED:
                self.open -= 1
                return self._refuse(publish, UNNAMED)
            only = self._only() if redundancy == PREFERRED else None
        if only is not None:
            publish.unsettled = 1
            only.memory.submit_copy(publish)
            return publish
        first.memory.submit_copy(publish)
        second.memory.submit_copy(publish.copied())
        return publish

    def submit_bodies(
        self, target: Target, bodies: list[bytes], size: int, timeout_ms: int, waiter: Many
    ) -> list[RedundantPublish]:
        """Accept bare bodies together, as `Door.submit_bodies`; the target does not pack."""
        if self.first.is_unnamed or self._stuck_since_ms:
            return [self.submit((target, body, None), timeout_ms, waiter) for body in bodies]
        now = self._used_ms = monotonic_ms()
        first, second = self.first, self.second or self._begin()
        shape, _ = self._shape_of(target, now)
        publishes = [
            RedundantPublish(self, message_id, target, body, now + timeout_ms, waiter)
            for body, message_id in zip(bodies, self._ids, strict=False)
        ]
        for publish in publishes:
            publish.shape, publish.waiter = shape, publish
        self.open += len(bodies)
        first.memory.submit_copies(publishes, size)
        second.memory.submit_copies([publish.copied() for publish in publishes], size)
        return publishes

    def _shape_of(self, target: Target, now: int) -> tuple[Shape, int]:
        """Return the shape of both copies of a bare body, and the size below which it goes into batches."""
        stamp_ms, shape, packed_max = self._bare.get(target, _NO_SHAPE)
        if now - stamp_ms < STAMP_MS:
            return shape, packed_max
        shape = bare_shape(target.content_type, int(time.time()))
        packed_max = self.first.memory.packed_max(target)
        self._bare[target] = now, shape, packed_max
        return shape, packed_max

    def _refuse(self, publish: RedundantPublish, reason: str) -> RedundantPublish:
        self.open += 1
        self._loop.call_soon(self.end, publish, PairEnd(REFUSED, reason))
        return publish

    # The second driver.
    def _begin(self) -> PublishDriver:
        self._used_ms = monotonic_ms()
        self.second = second = self.first.another(AnotherBroker(self.first))
        for each in (self.first, second):
            each.on_displaced, each.links.on_adopted = self._displaced, self._adopted
        second.start()
        self._tick()
        return second

    def _adopted(self) -> None:
        """Make the second driver leave the broker that the first one came to, and let both send again."""
        for each in self.drivers:
            self._look(each, monotonic_ms())
            each.wake()
        self._keep_apart()

    def _keep_apart(self) -> None:
        """Make the second driver leave a broker that is the first one's too, or has no name."""
        second = self.second
        if second is None or not second.links.is_linked:
            return
        if not second.policy.may_send(second.broker):
            second.links.leave()

    def _look(self, driver: PublishDriver, now: int) -> None:
        """Note since when a driver has no link that copies can go out on."""
        if takes_copies(driver, now):
            self._stuck_since_ms.pop(driver, None)
        else:
            self._stuck_since_ms.setdefault(driver, now)

    def _is_stuck(self, driver: PublishDriver | None, now: int) -> bool:
        since_ms = None if driver is None else self._stuck_since_ms.get(driver)
        return since_ms is not None and now - since_ms >= ALONE_MS

    def _only(self) -> PublishDriver | None:
        """Return the driver of the one copy, where there is no second broker, or was none for ALONE_MS."""
        now, first = monotonic_ms(), self.first
        if first.is_unnamed and self.second is not None:
            return self.second if takes_copies(self.second, now) else first
        if self._is_stuck(self.second, now):
            return first if first.links.is_linked else None
        return self.second if self._is_stuck(first, now) else None

    def _tick(self) -> None:
        second, now = self.second, monotonic_ms()
        if second is None:
            return
        if not self.open and now - self._used_ms >= IDLE_MS:
            self._retire(second)
            return
        for each in self.drivers:
            self._look(each, now)
        self._keep_apart()
        for each in self.drivers:
            if self._is_stuck(each, now):
                self._downgrade(each)
        self._timer = self._loop.call_later(TICK_S, self._tick)

    def _downgrade(self, driver: PublishDriver) -> None:
        """Give up copies that wait for a second broker, where the other one is confirmed and will do."""
        waiting = [
            item
            for item in driver.pending.unsettled()
            if isinstance(item, PublishCopy) and _will_do(item)
        ]
        if waiting:
            driver.withdraw(waiting, NO_SECOND.reason)

    def _retire(self, second: PublishDriver) -> None:
        log.info("second broker no longer used broker=%s", second.broker)
        self.second = None
        for each in (self.first, second):
            each.on_displaced = each.links.on_adopted = None
        self._stuck_since_ms.clear()
        self._retired.update(second.counts())
        self._tasks.spawn(second.stop(0))

    # Copies.
    def _displaced(self, driver: PublishDriver, items: list[Item]) -> None:
        copies = cast(list[PublishCopy], items)
        if not driver.broker:
            self._loop.call_soon(self._without_a_name, driver, copies)
        elif driver is self.first:
            (self.second or self._begin()).memory.take_over(copies)
        else:
            self.first.memory.take_over(copies)

    def _without_a_name(self, driver: PublishDriver, copies: list[PublishCopy]) -> None:
        """End copies for a broker that does not say its name; one will do where two are preferred."""
        for copy in copies:
            twin = copy.twin
            is_alone = twin is not None and twin.end is None and not twin.place
            if twin is not None and self.second is not None and is_alone:
                copy.twin = twin.twin = None
                self.second.withdraw([twin], UNNAMED)
            if copy.twin is None and copy.target.redundancy == PREFERRED:
                driver.memory.take_over([copy])
            else:
                driver.pending.ends.settle([copy], End(REFUSED, UNNAMED))
                tell((copy,), time.monotonic_ns())
        driver.flushes.look()

    def end(self, publish: RedundantPublish, end: PairEnd) -> None:
        """Settle a publish that did not end as nearly all of them do."""
        outcome, reason, brokers, downgraded = end
        both = (publish, publish.second)
        copies = [copy for copy in both if copy is not None and copy.end is not None]
        for copy in copies:
            assert copy.end is not None
            self._ended[copy.end.outcome] -= 1
        self._ended[outcome] += 1
        if downgraded:
            self._warn(brokers)
        publish.give(
            Published(
                publish.message_id,
                Outcome(outcome),
                publish.target.durability if outcome == CONFIRMED else Durability.NONE,
                brokers[0] if brokers else "",
                max((copy.attempts for copy in copies), default=0),
                max((copy.sent[1] for copy in copies), default=0),
                max((copy.settled_ns for copy in copies), default=0) or time.monotonic_ns(),
                reason,
                brokers,
            )
        )

    def _warn(self, brokers: tuple[str, ...]) -> None:
        self.downgraded += 1
        if self._warnings.allows():
            log.warning(
                "no second broker broker=%s downgraded=%d",
                brokers[0] if brokers else "",
                self.downgraded,
            )

    # Life.
    def end_timer(self) -> None:
        """Look at the drivers no more: they stop."""
        if self._timer is not None:
            self._timer.cancel()

    async def close(self) -> None:
        """Wait for second drivers that have ended to close their links."""
        await self._tasks.finish(STOP_TIMEOUT_S)

    def counts(self) -> Counter[str]:
        """Return what second drivers counted, by the names of `PublisherStats`, with `outcomes` added."""
        counts: Counter[str] = Counter() if self.second is None else self.second.counts()
        # Copies: other threads read it.
        counts.update(dict(self._retired))
        counts.update(dict(self._ended))
        counts[CONFIRMED] -= self.redundant  # two copies each
        return counts


def takes_copies(driver: PublishDriver, now: int) -> bool:
    """Return whether copies go out at once: to a broker with a name, which answers."""
    name = driver.broker
    return bool(name) and driver.policy.may_send(name) and driver.is_taking(now)


def _end_of(copy: PublishCopy) -> CopyEnd:
    assert copy.end is not None
    return CopyEnd(copy.end.outcome, copy.end.reason, copy.sent[0])


def _will_do(copy: PublishCopy) -> bool:
    """Return whether the other copy is enough."""
    twin = copy.twin
    return (
        twin is not None
        and twin.end is not None
        and twin.end.outcome == CONFIRMED
        and copy.target.redundancy == PREFERRED
    )
