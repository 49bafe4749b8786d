"""Copies of deliveries, published before the original is answered.

A nack cannot tell a broker to run a handler later, to park a delivery with a reason, or to take back a
part of a batch. So the message is published again, over a publishing link of its own (a consuming link
never publishes), to a queue that every broker has. The original is answered after the confirm. Runs on one
asyncio loop; the link is dialled for the first copy.

`Copies` publishes; `CopiedAnswers` gives the answers:

    claimed in its ledger ─▶ copy stored ─▶ settled(True) ─▶ acked
                         ├─▶ cannot be ────▶ settled(False) ─▶ rejected: its broker parks or drops it
                         └─▶ link lost ────▶ settled(False): its broker delivers it again
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from messagebus._io.amqp.copy_headers import PROPERTIES_BYTES_MAX, copied
from messagebus._io.amqp.link import line_ms
from messagebus._io.amqp.properties import TIMESTAMP, read_message_id, read_stamp_ms
from messagebus._io.loop import Tasks
from messagebus._io.publish.driver import PublishDriver
from messagebus._io.publish.publishes import message_ids
from messagebus._io.publish.targets import Address, Target
from messagebus._io.wire import Wire
from messagebus.bodies import BINARY
from messagebus.clock import wall_ms
from messagebus.config import BusConfig, PublisherConfig
from messagebus.core.deliveries import Ledger
from messagebus.destination import Delay, Source, delay_step, expires
from messagebus.message import NO_HEADERS, Delivery, Header
from messagebus.stats import Durability, Outcome, Published
from messagebus.terminal import printable

log = logging.getLogger("messagebus.consumer")

PARK_REASON = "mb-park-reason"
"""Header of messages parked by a client: the reason."""
COPY_TIMEOUT_MS = 30_000
# Waits between tries with a full parking queue; the originals stay unanswered, so their broker has them.
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 30.0
# Interval of changes to another broker while copies are refused.
RENEW_S = 5.0
# Tries without a queue. A deleted queue may be made again by an agent, which looks every second; one that
# never existed (the parking queue of an expiring subscription) will not.
UNROUTABLE_MAX = 5
STOP_TIMEOUT_S = 2.0

T = TypeVar("T")


class Stored(enum.Enum):
    """The fate of a copy. CANNOT: it never will be stored. UNWANTED: wanted() became False."""

    STORED = "stored"
    CANNOT = "cannot"
    UNWANTED = "unwanted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """A delivery to copy. properties: as they arrived. entry: in a batch.

    stamp_ms: time of publishing; it counts where the properties do not have it.
    """

    properties: bytes
    body: bytes
    entry: bool
    stamp_ms: int

    @classmethod
    def of(cls, delivery: Delivery) -> Original:
        """Return a delivery as it is to be copied."""
        properties = delivery._properties
        has_stamp = len(properties) > 1 and properties[1] & TIMESTAMP
        return cls(
            properties=properties,
            body=delivery.body,
            entry=delivery._part > 0,
            stamp_ms=0 if has_stamp else delivery.first_ms,
        )

    @classmethod
    def read(cls, properties: bytes, body: bytes) -> Original:
        """Return what one AMQP delivery holds, be it a batch, as it is to be copied."""
        return cls.entry_of(properties, body, read_stamp_ms(properties), entry=False)

    @classmethod
    def entry_of(
        cls, properties: bytes, body: bytes, stamp_ms: int | None, *, entry: bool = True
    ) -> Original:
        """Return an entry of a batch that was published at this time, as it is to be copied."""
        return cls(
            properties=properties,
            body=body,
            entry=entry,
            stamp_ms=wall_ms() if stamp_ms is None else stamp_ms,
        )


Copying = Coroutine[Any, Any, Stored]
"""A copy on its way, made by a method of `Copies`."""
Then = Callable[[Delivery], None]
"""Called with a delivery that has its answer, or gets none, because its link has ended."""


class Copies:
    """The copies of one consumer's deliveries. All methods give up when wanted() is False."""

    def __init__(self, driver: PublishDriver, source: Source) -> None:
        """Create it. driver: publishes the copies, and nothing else; it is started for the first one."""
        self._driver, self._source = driver, source
        self._is_started = False
        self._renew_at_s = 0.0
        self._make_id = message_ids().__next__
        # Copies that wait because their queue did not take them, by the queue's name.
        self._waiting: dict[str, int] = {}
        queue, parking = source.amqp_queue, source.parking_queue
        # A copy is always confirmed, with any durability of its queue: the original is answered on it.
        kept = source.durability
        kept = kept if kept is not Durability.NONE else Durability.PAGE_CACHE
        self._back = Target(Address.queue(queue, kept), BINARY)
        self._parking = Target(Address.queue(parking, kept), BINARY)
        self._later: dict[Delay, Target] = {}

    @classmethod
    def over(cls, bus: BusConfig, source: Source, wire: Wire) -> Copies:
        """Make the copies of one source, with a driver of their own."""
        return cls(PublishDriver(bus, PublisherConfig(), None, wire), source)

    async def again(
        self,
        original: Original,
        headers: Mapping[str, Header],
        wanted: Callable[[], bool],
        *,
        delay_ms: int = 0,
    ) -> Stored:
        """Copy to the end of its own queue, after this delay, rounded up to a step; 0 for at once."""
        target = self._back if delay_ms <= 0 else self._after(delay_step(delay_ms))
        return await self._copy(original, headers, target, wanted)

    async def park(
        self, original: Original, headers: Mapping[str, Header], wanted: Callable[[], bool]
    ) -> Stored:
        """Copy to the parking queue of its source."""
        if expires(self._source):  # no message of it outlives it
            return Stored.CANNOT
        return await self._copy(original, headers, self._parking, wanted)

    def _after(self, step: Delay) -> Target:
        target = self._later.get(step)
        if target is None:
            queue = self._source.amqp_queue
            address = Address(
                f"{queue} after {step}", step.exchange, queue, step.durability, (step,)
            )
            target = self._later[step] = Target(address, BINARY)
        return target

    async def _copy(
        self,
        original: Original,
        headers: Mapping[str, Header],
        target: Target,
        wanted: Callable[[], bool],
    ) -> Stored:
        message_id, why = read_message_id(original.properties) or self._make_id(), ""
        try:
            properties = copied(
                original.properties,
                headers,
                message_id,
                entry=original.entry,
                stamp_ms=original.stamp_ms,
            )
            if len(properties) > PROPERTIES_BYTES_MAX:
                why = "its headers fill a frame"
        except Exception as fault:  # malformed properties need an answer too
            why = f"its properties cannot be written: {fault!r}"
        if why:
            log.warning("copy not possible message=%r reason=%r", message_id, why)
            return Stored.CANNOT
        failures = unroutable = 0
        try:
            while wanted():
                published = await self._publish(target, original.body, message_id, properties)
                if published.outcome is Outcome.CONFIRMED:
                    return Stored.STORED
                self._tell(target, published, is_first=failures == 0)
                failures += 1
                unroutable += published.outcome is Outcome.UNROUTABLE
                if unroutable >= UNROUTABLE_MAX:
                    return Stored.CANNOT
                self._try_elsewhere()
                await asyncio.sleep(min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(failures - 1, 10)))
            return Stored.UNWANTED
        finally:
            if failures:
                self._waits_no_more(target.address.name)

    async def _publish(
        self, target: Target, body: bytes, message_id: str, properties: bytes
    ) -> Published:
        done: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        if not self._is_started:
            self._is_started = True
            self._driver.start()
        timeout_ms = COPY_TIMEOUT_MS + line_ms(len(body))
        self._driver.memory.submit_encoded(target, body, message_id, properties, timeout_ms, done)
        return await done

    def _try_elsewhere(self) -> None:
        """Change to another broker, whose queue may have room.

        RabbitMQ 3.10 goes on refusing on a channel that it once refused on until the queue is read from,
        even if it may be longer meanwhile.
        """
        loop = asyncio.get_running_loop()
        if loop.time() >= self._renew_at_s:
            self._renew_at_s = loop.time() + RENEW_S
            self._driver.links.renew()

    def _tell(self, target: Target, published: Published, *, is_first: bool) -> None:
        """Log one line when a queue first refuses copies, and none for others that wait then."""
        name = target.address.name
        waiting = self._waiting.get(name, 0)
        if is_first:
            self._waiting[name] = waiting + 1
        if not waiting:
            hint = "; is the queue full?" if published.outcome is Outcome.REFUSED else ""
            log.warning(
                "copies not stored queue=%s message=%s outcome=%s reason=%r",
                name,
                printable(published.message_id),
                published.outcome.value,
                published.reason + hint,
            )

    def _waits_no_more(self, name: str) -> None:
        self._waiting[name] -= 1
        if not self._waiting[name]:
            log.info("copies wait no more queue=%s", name)
            del self._waiting[name]

    async def stop(self) -> None:
        if self._is_started:
            await self._driver.stop(STOP_TIMEOUT_S)


def is_live(ledger: Ledger) -> Callable[[], bool]:
    """Return a function that returns whether the link of this ledger can still take an answer."""
    return lambda: ledger.is_live


class CopiedAnswers:
    """The answers of one consumer that wait for a copy. on_turn: called when one was given."""

    def __init__(self, copies: Copies, on_turn: Callable[[], None]) -> None:
        self.copies, self._on_turn = copies, on_turn
        self._tasks = Tasks()

    def begin(self, answering: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Have an answer given, whatever becomes of the caller."""
        return self._tasks.spawn(answering)

    def begin_again(
        self,
        ledger: Ledger,
        tag: int,
        part: int,
        original: Original,
        headers: Mapping[str, Header] = NO_HEADERS,
        *,
        delay_ms: int = 0,
    ) -> None:
        """Answer a claimed delivery by a copy at the end of its queue, after this delay."""
        copying = self.copies.again(original, headers, is_live(ledger), delay_ms=delay_ms)
        self.begin(self.given(copying, ledger, tag, part))

    def begin_park(
        self,
        ledger: Ledger,
        tag: int,
        part: int,
        original: Original,
        reason: str,
        *,
        may_reject: bool = True,
    ) -> None:
        """Answer a claimed delivery by a copy in the parking queue. may_reject: as of `given`."""
        copying = self.copies.park(original, {PARK_REASON: reason}, is_live(ledger))
        self.begin(self.given(copying, ledger, tag, part, may_reject=may_reject))

    async def given(
        self,
        copying: Copying,
        ledger: Ledger,
        tag: int,
        part: int,
        *,
        settled: Callable[[bool], Awaitable[None]] | None = None,
        ended: Callable[[bool], None] | None = None,
        may_reject: bool = True,
    ) -> bool:
        """Answer a claimed delivery when its copy is stored. False: its link has ended, or it has no answer.

        settled: called with whether there is a copy, and awaited before the answer. ended: called with
        whether it was answered. may_reject: False leaves it without an answer where no copy is possible.
        Raises the error of a copy, after the answer.
        """
        fault: Exception | None = None
        try:
            stored = await copying
        except Exception as raised:  # the original is answered after any error
            stored, fault = Stored.CANNOT, raised
        if settled is not None:
            await settled(stored is Stored.STORED)
        if stored is Stored.UNWANTED or (stored is Stored.CANNOT and not may_reject):
            answered = False
        elif stored is Stored.CANNOT:
            # The broker parks it by itself, without a reason, or drops it without a parking queue.
            answered = ledger.claim_refused(tag, part)
        else:
            answered = ledger.claim_done(tag, part)
        if ended is not None:
            ended(answered)
        self._on_turn()
        if fault is not None:
            raise fault
        return answered

    def wait_for(
        self,
        delivery: Delivery,
        copying: Copying,
        *,
        before: Callable[[Delivery], Awaitable[None]] | None = None,
        settled: Callable[[bool], Awaitable[None]] | None = None,
        ended: Callable[[bool], None],
        then: Then | None = None,
    ) -> asyncio.Future[bool]:
        """Begin to answer a claimed delivery as `given` does, also when the waiter is cancelled.

        before: awaited before the copy is made.
        """
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def answer() -> None:
            fault: Exception | None = None
            answered = False
            try:
                if before is not None:
                    await before(delivery)
                answered = await self.given(
                    copying,
                    delivery._ledger,
                    delivery._tag,
                    delivery._part,
                    settled=settled,
                    ended=ended,
                )
            except Exception as raised:  # the waiter gets any error
                fault = raised
            finally:
                copying.close()
                if then is not None:
                    then(delivery)
            if not done.done() and fault is not None:
                done.set_exception(fault)
            elif not done.done():
                done.set_result(answered)

        def given_up(_task: asyncio.Task[None]) -> None:
            """End the wait for an answer that was cancelled, as a stop does when its time is over."""
            copying.close()  # where it never began
            if not done.done():
                done.set_result(False)

        self.begin(answer()).add_done_callback(given_up)
        return done

    async def finish(self, timeout_s: float) -> None:
        """Wait up to this time for the answers under way; then give up the others."""
        await self._tasks.wait(timeout_s)

    async def stop(self) -> None:
        """Give up what is under way, and hang up."""
        await self._tasks.cancel()
        await self.copies.stop()
