"""The door of a publisher's driver: what it does with a publish between its call and `core.pending`.

`MemoryDoor` keeps publishes in memory until a broker has answered. A publisher with a spool has
`_io.publish.spool.door.DiskDoor` before it. A driver calls its door at its own start, ticks, flush and stop,
so that what waits elsewhere has its time and its end too. All of it runs on the driver's loop.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from messagebus._io.amqp.connection import FRAME_MIN
from messagebus._io.amqp.frames import HEADER_OVERHEAD
from messagebus._io.amqp.properties import has_priority
from messagebus._io.loop import Tasks
from messagebus._io.publish.calls import Call
from messagebus._io.publish.destinations import Destinations
from messagebus._io.publish.links import Links
from messagebus._io.publish.publishes import (
    Bundle,
    Many,
    Publish,
    PublishCopy,
    Waiter,
    encode_publish,
    tell,
)
from messagebus._io.publish.targets import Target
from messagebus.clock import NS_PER_MS, monotonic_ms, whole_ms
from messagebus.config import PublisherConfig
from messagebus.core.confirms import Packing
from messagebus.core.ends import NO_PRIORITY, NOT_ENCODED, REFUSED, TOO_LONG, End, Item
from messagebus.core.pending import PendingPublishes
from messagebus.destination import PARTS
from messagebus.message import Message

# The bytes of properties that fit the smallest frame that AMQP allows.
FITS_ALWAYS = FRAME_MIN - HEADER_OVERHEAD
# Bounds of plain bodies that enter together and travel one by one: 0.4 us of client CPU each instead of 1.2.
TOGETHER = Packing(count_max=100, bytes_max=128 * 1024, linger_ms=0)


class SpoolCounts(NamedTuple):
    """Counts of a publisher's spool: see `messagebus.stats.PublisherStats`.

    ends: of messages sent from it, by outcome; the `Ends` of its publisher have them, too.
    """

    messages: int = 0
    bytes: int = 0
    oldest_s: float = 0.0
    replayed: int = 0
    failures: int = 0
    damaged: int = 0
    ends: Mapping[str, int] = {}


class Sending(Protocol):
    """The part of a driver that its door uses.

    unconfirmed: destinations whose publishes end when they are sent.
    """

    pending: PendingPublishes
    destinations: Destinations
    links: Links
    unconfirmed: set[str]
    ids: Iterator[str]
    is_woken: bool
    memory: MemoryDoor
    tasks: Tasks

    @property
    def reached(self) -> str:
        """The broker of the current link: its name, else its address; "" without a link."""

    def wake(self) -> None:
        """Send what can be sent, in the next turn of the loop."""

    def settle(self, settled: list[Item]) -> None:
        """Give settled publishes their ends."""

    def is_taking(self, now_ms: int) -> bool:
        """Return whether there is a link to a broker that takes publishes and answers."""

    def why_late(self) -> str:
        """Return why a publish whose deadline has passed was not answered."""


class Door(Protocol):
    """The way of publishes into a driver."""

    @property
    def fault(self) -> str:
        """The reason why there is no room beside the backlog, "" where there is none to look for."""

    def submit(self, call: Call, timeout_ms: int, waiter: Waiter | Many | None) -> Publish:
        """Accept a publish without a bound: the caller has asked for room. waiter: gets the end."""

    def submit_bodies(
        self, target: Target, bodies: list[bytes], size: int, timeout_ms: int, waiter: Many
    ) -> Sequence[Publish]:
        """Accept bodies that `packing_of` lets enter together, `size` bytes in all. As `submit`."""

    def packing_of(self, target: Target) -> Packing | None:
        """Return the bounds of plain bodies that enter together; None where each does by itself."""

    def unsettled(self) -> list[Item]:
        """Return the accepted publishes that are not settled, in no order."""

    def counts(self) -> SpoolCounts:
        """Return the counts of the spool; zeros without one. Any thread may ask."""

    # The driver's own moments.
    def start(self) -> None: ...

    async def opened(self, timeout_s: float) -> None:
        """Wait until it knows all that waits behind it, before a flush."""

    def before_tick(self, now_ms: int) -> None: ...

    def after_tick(self, now_ms: int) -> None: ...

    def put_forward(self, ms: int) -> None:
        """Advance the time of what waits behind it by ms, for a bus in memory."""

    def begin_stop(self) -> None:
        """Note that the driver stops; it flushes next."""

    async def drain(self) -> None:
        """Put what no broker has confirmed where it is safe, within a bound of its own."""

    def end(self) -> int:
        """Settle what still waits behind it. Returns how many messages it was."""

    async def close(self) -> None:
        """Give up files and threads: all links are closed."""


class MemoryDoor:
    """The way into the memory of a driver."""

    fault = ""

    def __init__(self, driver: Sending, config: PublisherConfig) -> None:
        self._driver, self._pending, self._ids = driver, driver.pending, driver.ids
        self._backlog = driver.pending.backlog
        self._known = driver.destinations.known
        self._packings = {
            name: Packing(each.count_max, each.bytes_max, whole_ms(each.linger_s))
            for name, each in config.batch.items()
        }
        self._together_max = config.backlog_messages_max
        self._loop = asyncio.get_running_loop()

    # Accepting.
    def submit(self, call: Call, timeout_ms: int, waiter: Waiter | Many | None) -> Publish:
        target, body, message = call
        if target.destination not in self._known:
            self.open(target)
        # `monotonic_ms` inlined: a call less for each message.
        deadline_ms = time.monotonic_ns() // NS_PER_MS + timeout_ms
        if message is None:
            publish = Publish(next(self._ids), target, body, None, deadline_ms, waiter)
            self._backlog.accept(publish)
        else:
            alone = self.goes_alone(target, message)
            message_id = message.message_id or next(self._ids)
            publish = Publish(message_id, target, body, None, deadline_ms, waiter)
            try:
                # Encode now: the application may change its headers afterwards.
                publish.properties = encode_publish(target, message, message_id, alone=alone)
            except Exception as error:  # an AMQP table cannot hold it
                return self.refuse(publish, f"{NOT_ENCODED}: {type(error).__name__}")
            is_usual = message.priority is None and len(publish.properties) <= FITS_ALWAYS
            if alone and not is_usual and (fault := self.fault_of(target, publish.properties)):
                return self.refuse(publish, fault)
            self._backlog.accept(publish, alone=alone)
        if not self._driver.is_woken:
            self._driver.wake()
        return publish

    def refuse(self, publish: Publish, reason: str) -> Publish:
        """End a publish that cannot be sent at all, in a turn of its own."""
        self._pending.ends.settle([publish], End(REFUSED, reason))
        self._loop.call_soon(tell, [publish], time.monotonic_ns())
        return publish

    def submit_encoded(
        self,
        target: Target,
        body: bytes,
        message_id: str,
        properties: bytes,
        timeout_ms: int,
        waiter: Waiter,
    ) -> None:
        """Do as `submit`, for encoded properties with this id; it travels alone."""
        deadline_ms = time.monotonic_ns() // NS_PER_MS + timeout_ms
        self.accept_alone(Publish(message_id, target, body, properties, deadline_ms, waiter))

    def accept_alone(self, publish: Publish) -> None:
        """Accept a publish with its properties, in no batch and behind all others."""
        if not publish.attempts and (
            fault := self.fault_of(publish.target, publish.properties or b"")
        ):
            self.refuse(publish, fault)
            return
        if publish.target.destination not in self._known:
            self.open(publish.target)
        self._backlog.accept(publish, alone=True)
        self._driver.wake()

    def fault_of(self, target: Target, properties: bytes) -> str:
        """Return why a message with these properties, which goes alone, is refused; "" where it is not."""
        size, most = len(properties), self._driver.links.properties_max
        if size > most:
            return f"{TOO_LONG}of {size} bytes: its broker takes {most}"
        if target.address.exchange.startswith(PARTS) and has_priority(properties):
            return f"{NO_PRIORITY} in the order of {target.address.name}, which has partitions"
        return ""

    def submit_copy(self, copy: PublishCopy) -> None:
        """Accept one of two copies, as `submit`."""
        if copy.target.destination not in self._known:
            self.open(copy.target)
        self._backlog.accept(copy, alone=copy.alone)
        if not self._driver.is_woken:
            self._driver.wake()

    def submit_copies(self, copies: Sequence[PublishCopy], size: int) -> None:
        """Accept copies of one target, which does not pack, and one deadline. size: of all."""
        if copies[0].target.destination not in self._known:
            self.open(copies[0].target)
        self._backlog.accept_all(copies, size)
        self._driver.wake()

    def take_over(self, copies: list[PublishCopy]) -> None:
        """Accept copies that another driver could not send, ahead of all others, in their order."""
        for copy in reversed(copies):
            if copy.target.destination not in self._known:
                self.open(copy.target)
            self._backlog.accept_first(copy, alone=copy.alone)
        self._driver.wake()

    def submit_bodies(
        self, target: Target, bodies: list[bytes], size: int, timeout_ms: int, waiter: Many
    ) -> Sequence[Publish]:
        ids, deadline_ms = itertools.islice(self._ids, len(bodies)), monotonic_ms() + timeout_ms
        if self._packing(target) is not None:
            bundle = Bundle(list(ids), bodies, size, target, deadline_ms, waiter)
            self.accept_bundle(bundle)
            return (bundle,)
        if target.destination not in self._known:
            self.open(target)
        publishes = [
            Publish(message_id, target, body, None, deadline_ms, waiter)
            for message_id, body in zip(ids, bodies, strict=True)
        ]
        self._backlog.accept_all(publishes, size)
        self._driver.wake()
        return publishes

    def accept_bundle(self, bundle: Bundle) -> None:
        """Accept a bundle."""
        if bundle.target.destination not in self._known:
            self.open(bundle.target)
        self._backlog.accept_bundle(bundle)
        self._driver.wake()

    # Destinations and how their messages are packed.
    def open(self, target: Target) -> None:
        """Open the destination of a target for which a message is accepted in this turn of the loop."""
        packing = self._packing(target)
        if packing is not None:
            self._backlog.pack(target.destination, packing)
        if not target.confirms:
            self._driver.unconfirmed.add(target.destination)
        self._driver.destinations.use(target.address)

    def _packing(self, target: Target) -> Packing | None:
        return None if target.address.routing_key else self._packings.get(target.address.name)

    def packing_of(self, target: Target) -> Packing | None:
        packing = self._packing(target) or TOGETHER
        if packing.linger_ms:
            return None
        return packing._replace(count_max=min(packing.count_max, self._together_max))

    def packed_max(self, target: Target) -> int:
        """Return the size in bytes below which a bare body travels in batches; 0 for none."""
        packing = self._packing(target)
        return 0 if packing is None else packing.bytes_max

    def goes_alone(self, target: Target, message: Message) -> bool:
        """Return whether it is kept out of batches: the broker must see it, or it is too large."""
        packing = self._packing(target)
        return (
            packing is None
            or message.priority is not None
            or message.ttl_s is not None
            or len(message.body) >= packing.bytes_max
        )

    # The driver's own moments: everything is in `core.pending`, which the driver settles.
    def unsettled(self) -> list[Item]:
        return list(self._pending.unsettled())

    def counts(self) -> SpoolCounts:
        return SpoolCounts()

    def start(self) -> None: ...

    async def opened(self, timeout_s: float) -> None: ...

    def before_tick(self, now_ms: int) -> None: ...

    def after_tick(self, now_ms: int) -> None: ...

    def put_forward(self, ms: int) -> None: ...

    def begin_stop(self) -> None: ...

    async def drain(self) -> None: ...

    def end(self) -> int:
        return 0

    async def close(self) -> None: ...


MakeDoor = Callable[[Sending], Door]
"""The making of a door before that into memory, when all else of the driver is there."""
