"""The publisher's driver: carries out the decisions of `core.pending` and `core.route`, over pika.

Runs on one asyncio loop; every method must be called on it. Each callback translates, makes one core
call, and performs the actions. Sends are coalesced: one `pump` sends all messages submitted in one
turn of the loop.

A driver has a *route policy*, which says to what broker (`_io.publish.routes`), and a *door*, which takes
publishes in (`_io.publish.door`). Its `Links` dial, move and hang up. No driver is derived from another one.
"""

# The way of one publish; each arrow is a call in one turn of the loop:
#
#   door.submit ─▶ waiting ─ pump, once a turn ─▶ in flight ─ answered ─▶ settle: its end
#                   ▲   └─ its deadline has passed ────┼──────────────────▶ settle
#                   └── its link is lost, tries left ◀─┴─ its link is lost, no try left ─▶ settle: unknown
#
# Owners: `PendingPublishes` has every publish and its state; `Links` the links, and which of them is
# current; `Destinations` holds back what waits for a destination; a `DiskDoor` has what waits for the
# disk. The driver has the turn (`is_woken`), the timers and the counters. `Admission`, `RedundantDrivers`
# and `Partitions` call the door; links and destinations call `settle`, `wake` and `arm`.

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import pika.exceptions

from messagebus._io.amqp.link import Link
from messagebus._io.loop import Tasks
from messagebus._io.publish.destinations import Destinations
from messagebus._io.publish.door import Door, MakeDoor, MemoryDoor
from messagebus._io.publish.links import Links
from messagebus._io.publish.publishes import Publish, message_ids, tell
from messagebus._io.publish.routes import AnyBroker, RoutePolicy
from messagebus._io.publish.sender import Sender
from messagebus._io.wire import Wire
from messagebus.clock import NS_PER_MS, monotonic_ms
from messagebus.config import BusConfig, PublisherConfig
from messagebus.core.ends import (
    END_UNCONFIRMED,
    LATE_WHILE_OPENED,
    PUBLISHER_STOPPED,
    REFUSED,
    End,
    Entry,
    Item,
)
from messagebus.core.full import FullDestinations
from messagebus.core.pending import PendingPublishes

log = logging.getLogger("messagebus.publisher")

# Interval of the check for deadlines, slow confirms, links to hang up, and due dials. A due dial may
# come after TICK_MIN_MS: publishers wait for it.
TICK_MS, TICK_MIN_MS = 100, 5
# With 16 MiB in flight on a link, a slow network holds no more than that in buffers.
WINDOW_BYTES_MAX = 16 * 1024 * 1024
# Interval of checks whether the socket takes more: pika does not say when it does.
BACKED_UP_S = 0.005


@dataclass(slots=True)
class Counters:
    """Counts of one driver. unconfirmed: messages sent for which no confirm was wanted."""

    unconfirmed: int = 0
    last_confirm_ns: int = 0


class Flushes:
    """Calls that wait until publishes have ended, of all drivers of one publisher.

    One list for all of them: a publish may end at another driver than the one that it was accepted by.
    """

    def __init__(self) -> None:
        # Items that each call waits for; a settled item at the end of its list is dropped.
        self.open: list[tuple[list[Item], asyncio.Future[None]]] = []

    async def wait(self, items: list[Item], timeout_s: float) -> int:
        """Wait until all of these have ended. Returns how many messages have not, in time."""
        if items:
            left = list(items)
            done = asyncio.get_running_loop().create_future()
            self.open.append((left, done))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await done
        return sum(item.count for item in items if item.end is None)

    def look(self) -> None:
        """End the calls of which everything has ended."""
        for items, done in self.open:
            while items and items[-1].end is not None:
                items.pop()
            if not items and not done.done():
                done.set_result(None)
        self.open = [each for each in self.open if not each[1].done()]


class PublishDriver:
    """The publishes of one publisher, or of a part of it, on links to one broker after the other."""

    def __init__(
        self,
        bus: BusConfig,
        config: PublisherConfig,
        on_room: Callable[[], None] | None,
        wire: Wire,
        *,
        policy: RoutePolicy | None = None,
        door: MakeDoor | None = None,
        flushes: Flushes | None = None,
    ) -> None:
        """Create the driver. on_room: called when messages have left the backlog, at most once a turn; None
        where nobody waits for room.

        policy: any broker, without one. door: makes one that stands before that into memory. flushes: of
        the publisher's own driver, for another one of it.
        """
        self._bus, self._config, self._wire, self.on_room = bus, config, wire, on_room
        self.policy = policy or AnyBroker()
        self.pending = PendingPublishes(
            messages_max=config.backlog_messages_max,
            bytes_max=config.backlog_bytes_max,
            window=config.window,
            window_bytes_max=WINDOW_BYTES_MAX,
            attempts_max=config.attempts_max,
            retry_unknown=config.retry_unknown,
            ordered=self.policy.ordered,
            waits_when_full=config.on_full == "wait",
        )
        self.pending.seals = self.policy.ordered
        self.on_displaced: Callable[[PublishDriver, list[Item]], None] | None = None
        """Takes the copies that may not be sent to the broker of the current link."""
        self.counters = Counters()
        self.ids = message_ids()
        self.flushes = flushes or Flushes()
        self.unconfirmed: set[str] = set()
        self.is_woken = False
        self.tasks = Tasks()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self.destinations = Destinations(
            wire.topology(),
            self.pending,
            self.tasks,
            link=lambda: self.links.current,
            settle=self.settle,
            wake=self.wake,
            leave=lambda: self.links.leave(),
            on_login_refused=lambda fault: self.links.dialer.login_refused(fault),
        )
        self.links = Links(
            self, bus, config, wire, self.policy, self.pending, self.destinations, self.tasks
        )
        self.policy.bind(wire, self.links.on_list)
        self.memory = MemoryDoor(self, config)
        self.door: Door = self.memory if door is None else door(self)

    def another(
        self, policy: RoutePolicy, on_room: Callable[[], None] | None = None
    ) -> PublishDriver:
        """Create a further driver of its publisher, for another route. on_room: its own one, without."""
        return PublishDriver(
            self._bus,
            self._config,
            on_room or self.on_room,
            self._wire,
            policy=policy,
            flushes=self.flushes,
        )

    # Life.
    def start(self) -> None:
        self.policy.start()
        self.door.start()
        now = monotonic_ms()
        self.links.tick(now)
        self.arm(now)

    async def stop(self, timeout_s: float) -> int:
        """Wait for open publishes, settle the rest, hang up. Returns how many were still unsettled.

        When it is cancelled, each publish has its end all the same, and all links are cut.
        """
        until_s = time.monotonic() + timeout_s
        count = 0
        try:
            self.door.begin_stop()
            await self.flush(timeout_s)
            await self.door.drain()
        except BaseException:  # nobody waits for a slow line
            until_s = 0
            raise
        finally:
            count = self.door.end() + self._give_up()
            self.links.dialer.is_over = True
            self.arm(monotonic_ms())
            self.links.dialer.connected.set()  # nobody waits for it any more
            await self.links.close(until_s)
            await self.door.close()
        return count

    def _give_up(self) -> int:
        """Settle everything in memory. Returns how many messages it was."""
        left = self.pending.give_up(PUBLISHER_STOPPED)
        count = sum(item.count for item in left)
        if left:
            unknown = sum(item.count for item in left if item.attempts)
            log.warning("stopped too early unknown=%d unsent=%d", unknown, count - unknown)
        self.settle(left)
        return count

    async def flush(self, timeout_s: float) -> int:
        """Wait until all publishes accepted so far are settled. Returns how many are not, in time."""
        await self.door.opened(timeout_s)
        return await self.flushes.wait(self.begin_flush(), timeout_s)

    def begin_flush(self) -> list[Item]:
        """Let nothing linger, and return the accepted publishes that are not settled."""
        self.pending.backlog.lingering.end_all()
        self.wake()
        return self.door.unsettled()

    # Sending.
    def wake(self) -> None:
        """Send what can be sent, in the next turn of the loop."""
        if not self.is_woken:
            self.is_woken = True
            self._loop.call_soon(self.pump)

    def pump(self) -> None:
        """Send what the window takes, in one write. Called once a turn of the loop, or after each read."""
        has_sent, self.is_woken = self.is_woken, False
        links = self.links
        link, sender = links.current, links.sender
        if (
            self.pending.backlog.messages
            and link is not None
            and sender is not None
            and link.is_open
            and not links.is_blocked
            and (self.policy.sends_anywhere or self.policy.may_send(links.route.broker))
        ):
            has_sent = True
            if not link.transport.backed_up:
                self._send(link, sender)
            else:
                self.is_woken = True
                self._loop.call_later(BACKED_UP_S, self.pump)
        if has_sent and self.on_room is not None:  # or was woken, by what has made room otherwise
            self.on_room()

    def _lingered(self) -> None:
        """Send a batch that has lingered long enough; `_send` arms the timer for the next one."""
        self._linger = None
        self.pump()

    def _send(self, link: Link, sender: Sender) -> None:
        sent_ns = time.monotonic_ns()
        sent_ms = sent_ns // 1_000_000
        pending = self.pending
        if self.on_displaced is not None and (barred := pending.displace(link.broker, sent_ms)):
            self.on_displaced(self, barred)
        entries = pending.take(sent_ms)
        lingering = pending.backlog.lingering
        if lingering.destinations and self._linger is None:
            due_ms = lingering.until_ms()
            if due_ms is not None:
                self._linger = self._loop.call_later(
                    (due_ms - monotonic_ms()) / 1000, self._lingered
                )
        if not entries:
            return
        try:
            sender.send(entries, link.broker or self.links.only_broker, sent_ns)
            link.transport.flush()
        except (pika.exceptions.AMQPChannelError, pika.exceptions.AMQPConnectionError):
            link.abort()  # it has just ended: they go out on the next one
            return
        if pending.in_flight.current is not None:
            pending.in_flight.current.written(link.sent_bytes)
        if self.unconfirmed:
            self._settle_unconfirmed(entries)

    def _settle_unconfirmed(self, entries: list[Entry]) -> None:
        for entry in entries:
            if entry.destination in self.unconfirmed:
                settled = self.pending.ends.settle([entry], END_UNCONFIRMED)
                self.counters.unconfirmed += len(settled)
                self._tell(settled)

    # Answers.
    def answered(self, link: int, tag: int, multiple: bool, ok: bool) -> None:
        """Settle publishes, which makes room; the transport calls `pump` after it."""
        links = self.links
        self.counters.last_confirm_ns = now_ns = time.monotonic_ns()
        if links.slowness.until_ms:
            links.answers(link, now_ns // NS_PER_MS)
        settled = self.pending.answered(link, tag, multiple=multiple, ok=ok)
        tell(cast(list[Publish], settled), now_ns)  # `_tell` inlined: a call less for each confirm
        if self.flushes.open:
            self.flushes.look()
        if link in links.retiring:
            links.hang_up_if_answered(link)

    def settle(self, settled: list[Item]) -> None:
        """Give settled publishes their ends; this may have made room."""
        if settled:
            self._tell(settled)
            self.wake()

    def _tell(self, settled: list[Item]) -> None:
        tell(cast(list[Publish], settled), time.monotonic_ns())
        if self.flushes.open:
            self.flushes.look()

    def refuse(self, items: Iterable[Item], reason: str) -> None:
        """Settle items that were taken out as refused."""
        self.settle(self.pending.ends.settle(items, End(REFUSED, reason)))

    def withdraw(self, items: Sequence[Item], reason: str) -> None:
        """Settle these before their deadline."""
        self.settle(self.pending.withdraw(items, reason))

    # Time.
    def put_forward(self, ms: int) -> None:
        """Advance the time by ms: a bus in memory has a clock that can be moved."""
        self.door.put_forward(ms)
        self.pending.put_forward(ms)
        self.wake()
        self._tick()

    def _tick(self) -> None:
        now = monotonic_ms()
        try:
            self.door.before_tick(now)
            if now >= self.pending.backlog.earliest_ms:
                self.settle(self._expire(now))
            if self.pending.full is not None:
                self._try_full(now, self.pending.full)
            self.links.tick(now)
        finally:  # whatever a log filter of the application raises, deadlines hold
            self.arm(now)
        self.door.after_tick(now)

    def _expire(self, now: int) -> list[Item]:
        """Settle what has passed its deadline, each item with the cause that is known."""
        settled: list[Item] = []
        if not self.links.dialer.last_fault and (opening := self.destinations.opening()):
            held = (item for item in self.pending.unsettled() if item.destination in opening)
            late = [item for item in held if item.deadline_ms <= now]
            settled = self.pending.withdraw(late, LATE_WHILE_OPENED)
        return settled + self.pending.expire(now, self.why_late())

    def _try_full(self, now: int, full: FullDestinations) -> None:
        """Try full destinations again, at another broker where there is one."""
        if self.pending.try_full(now):
            if full.is_long:
                self.links.renew()
            self.wake()
        begun, over = full.changes()
        for destination in begun:
            log.warning("destination full, publishes wait destination=%s", destination)
        for destination in over:
            log.info("destination has room destination=%s", destination)
        if begun:
            self.links.leave()

    def why_late(self) -> str:
        """Return why a publish whose deadline has passed was not answered."""
        return self.policy.why_late(self.links.dialer.last_fault)

    def arm(self, now: int) -> None:
        """Arm the one timer: for the next due dial, or for the next tick."""
        if self._timer is not None:
            self._timer.cancel()
        if self.links.dialer.is_over:
            return
        due_ms = self.links.route.next_due_ms()
        wait_ms = TICK_MS if due_ms is None else min(TICK_MS, max(TICK_MIN_MS, due_ms - now))
        self._timer = self._loop.call_later(wait_ms / 1000, self._tick)

    # Questions.
    @property
    def broker(self) -> str:
        """The name of the current link's broker, "" without a link or a name."""
        return self.links.route.broker

    @property
    def reached(self) -> str:
        """The broker of the current link: its name, else its address; "" without a link."""
        link = self.links.current
        return self.broker or ("" if link is None else self.links.only_broker or str(link.address))

    @property
    def is_unnamed(self) -> bool:
        """True when the current link leads to a broker that does not say its name."""
        return self.links.is_linked and not self.broker

    def is_taking(self, now: int) -> bool:
        """Return whether there is a link to a broker that takes publishes and answers."""
        return self.links.is_taking(now)

    def counts(self) -> Counter[str]:
        """Return what it counts, by the names of `PublisherStats` and of outcomes. Any thread may ask."""
        return Counter(
            **self.pending.ends.counts,
            retried=self.pending.retried,
            backlog=self.pending.backlog.messages,
            window=self.pending.in_flight.count,
            settling=len(self.destinations.opening()),
            dials=self.links.route.dials,
            moves=self.links.route.moves,
            links_lost=self.links.lost,
        )
