"""The one way into a publisher on its own loop: room, turns, hooks, and the drivers behind them.

`Admission.enter` accepts a publish where there is room and nobody waits; otherwise `admit` waits. Redundant
and partitioned publishes wait in a lane of their own: where one broker is left, no others wait with them.
`messagebus.publisher` has the same two lanes for calls of threads.
"""

# INITIALIZED ─ start ─▶ RUNNING ─ stop ─▶ STOPPED, and one publish while it is RUNNING:
#
#   enter ─ there is room and nobody waits ─▶ the door takes it, in the caller's own turn
#     └─ None ─▶ admit: hooks, then a ticket in its lane ─ its turn, and room ─▶ the drivers take it
#                                                       ├─ its timeout ─▶ BacklogFull
#                                                       └─ stop ─▶ Stopped
#
# Owners: a `Lane` has the tickets of those who wait, in their order; `Drivers` has the drivers, which
# call `_on_room` at most once a turn. `AsyncPublisher` calls everything here, on its loop.

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Sequence

from messagebus._io.hooks import HookChain
from messagebus._io.loop import OneStop, Origin
from messagebus._io.publish.calls import Call, Outgoing, no_room, whole_timeout_ms
from messagebus._io.publish.door import Door
from messagebus._io.publish.drivers import Drivers, refuse_batches
from messagebus._io.publish.publishes import Ended, Many, Waiter
from messagebus._io.publish.targets import Target
from messagebus._io.wire import Wire
from messagebus.clock import monotonic_ms, whole_ms
from messagebus.config import BusConfig, PublisherConfig
from messagebus.core.backlog import Backlog
from messagebus.core.confirms import Packing
from messagebus.core.redundancy import MODES, PARTITIONED
from messagebus.errors import Stopped
from messagebus.stats import RUNNING, Published, Status, why_not_running

_Ticket = tuple[int, asyncio.Future[None]]
"""The place of a call among those that wait for room, and its wake-up."""


class Lane:
    """Calls that wait for room of one kind, first come, first served."""

    def __init__(
        self, has_room: Callable[[int, int], bool], backlog: Callable[[], int], messages_max: int
    ) -> None:
        """Create it empty. backlog: returns the messages that wait to be sent, at most messages_max."""
        self.has_room, self._backlog, self._messages_max = has_room, backlog, messages_max
        self.tickets: deque[_Ticket] = deque()
        self._numbers = itertools.count()
        self._is_over = False

    async def wait(self, size: int, timeout_ms: int, count: int) -> int:
        """Wait for a turn with room. Returns the ms that are left. Raises TimeoutError or Stopped."""
        until_ms, tickets = monotonic_ms() + timeout_ms, self.tickets
        number = next(self._numbers)
        mine: _Ticket = (number, asyncio.get_running_loop().create_future())
        tickets.append(mine)
        is_admitted = False
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    await mine[1]
                    if self._is_over:
                        raise Stopped("the publisher is stopped")
                    is_next = not tickets or number < tickets[0][0]
                    if is_next and self.has_room(size, count):
                        is_admitted = True
                        return max(1, until_ms - monotonic_ms())
                    mine = (number, asyncio.get_running_loop().create_future())
                    earlier = sum(1 for _ in itertools.takewhile(lambda t: t[0] < number, tickets))
                    tickets.insert(earlier, mine)
        finally:
            if not is_admitted:  # late or cancelled: if it was woken, the next one has its turn
                with contextlib.suppress(ValueError):
                    tickets.remove(mine)
                self.wake()

    def wake(self) -> None:
        """Wake as many calls as there is room for, once half the backlog is free: it saves wake-ups."""
        count = len(self.tickets)
        if not self._is_over:
            waiting = self._backlog()
            if waiting > self._messages_max // 2 or not self.has_room(0, 1):
                return
            count = min(count, self._messages_max - waiting)
        for _ in range(count):
            _number, room = self.tickets.popleft()
            if not room.done():
                room.set_result(None)

    def end(self) -> None:
        """Have all calls raise Stopped."""
        self._is_over = True
        self.wake()


class Admission:
    """The way of publishes into the drivers of one `AsyncPublisher`, and the life of those.

    It has no reference to its publisher, which can so be collected without a stop.
    """

    def __init__(
        self, bus: BusConfig, config: PublisherConfig, hooks: HookChain | None, wire: Wire
    ) -> None:
        self._bus, self._config, self._hooks, self._wire = bus, config, hooks, wire
        self._deadline_ms = whole_ms(config.deadline_s)
        self.outgoing = Outgoing(
            config.redundant, config.redundancy, has_spool=config.spool is not None
        )
        self.status = Status.INITIALIZED
        self.origin: Origin | None = None
        self._is_starting, self._ending = False, OneStop()
        self._is_direct = False  # running, and no hook sees a publish before its driver
        self.new_future: Callable[[], asyncio.Future[Published]] = self._no_future
        """Make the future of one publish. Raises Stopped before the start."""
        # From the start on.
        self.drivers: Drivers | None = None
        self._door: Door
        self._backlog: Backlog
        self._plain: Lane
        self._plain_tickets: deque[_Ticket]
        self._others: Lane

    # Life.
    async def start(self) -> asyncio.AbstractEventLoop:
        """Start the drivers on the running loop. Raises Stopped at a second start, and ConfigError."""
        if self.status is not Status.INITIALIZED or self._is_starting:
            raise Stopped(f"a publisher starts once; this one is {self.status.value}")
        self.origin = Origin()
        if self._hooks is not None:
            self._hooks.begin()
        self._is_starting = True
        try:
            await refuse_batches(self._config, self._wire)
            if self.status is not Status.INITIALIZED:
                raise Stopped("the publisher was stopped while it started")
            self._make_drivers().own.start()
        finally:
            self._is_starting = False
        self.status, self._is_direct = RUNNING, self._hooks is None
        self.new_future = self.origin.loop.create_future
        return self.origin.loop

    def _no_future(self) -> asyncio.Future[Published]:
        raise Stopped(why_not_running(self.status, "publisher", "async with"))

    def _make_drivers(self) -> Drivers:
        drivers = Drivers(
            self._bus, self._config, self.outgoing, self._on_room, self._wire, self._hooks
        )
        own, most = drivers.own, self._config.backlog_messages_max
        self._door, self._backlog = own.door, own.pending.backlog
        backlog = self._backlog
        self._plain = Lane(backlog.has_room, lambda: backlog.messages, most)
        self._plain_tickets = self._plain.tickets
        self._others = Lane(drivers.has_room, lambda: drivers.waiting[0], most)
        self.drivers = drivers
        return drivers

    async def fulfil(self, timeout_s: float) -> None:
        """Wait until start(require="one") is fulfilled. Raises NotReady, Stopped or LoginRefused."""
        drivers = self.running()
        await drivers.fulfil(timeout_s)
        if self._ending.has_begun:
            raise Stopped("the publisher was stopped while it started")
        drivers.refuse_unnamed()

    async def stop(self, timeout_s: float) -> int:
        """Begin the stop, if nobody has, and wait for its end. Returns how many were left."""
        self.begin_stop(timeout_s)
        return await self._ending.wait() if self._ending.has_begun else 0

    def begin_stop(self, timeout_s: float) -> None:
        """Begin the stop, unless it has begun or there is nothing to stop. On the loop."""
        was_running, self.status = self.status is RUNNING, Status.STOPPED
        self._is_direct = False
        if was_running and self.drivers is not None:
            self._plain.end()
            self._others.end()
            self._ending.begin(self.drivers.stop(timeout_s))

    def check_running(self) -> None:
        """Raise Stopped, unless it takes publishes."""
        if self.status is not RUNNING:
            raise Stopped(why_not_running(self.status, "publisher", "async with"))

    def running(self) -> Drivers:
        """Return the drivers. Raises Stopped, unless it takes publishes."""
        self.check_running()
        assert self.drivers is not None
        return self.drivers

    # Publishes.
    def enter(
        self, call: Call, timeout_s: float | None, waiter: Waiter | Many | None
    ) -> Ended | None:
        """Accept a publish now. None: it has to wait, or hooks see it first; `admit` is next.

        Raises Stopped.
        """
        if not self._is_direct:
            self.check_running()
            return None
        target, body, _message = call
        timeout_ms = self._deadline_ms if timeout_s is None else whole_timeout_ms(timeout_s)
        if target.redundancy:
            drivers = self.running()
            if self._others.tickets or not drivers.has_room(len(body)):
                return None
            return drivers.submit(call, timeout_ms, waiter)
        backlog = self._backlog  # its `has_room` inlined: a call less for each message
        waiting = backlog.messages
        if (
            self._plain_tickets
            or waiting >= backlog.messages_max
            or (waiting and backlog.bytes + len(body) > backlog.bytes_max)
        ):
            return None
        return self._door.submit(call, timeout_ms, waiter)

    async def admit(
        self, call: Call, timeout_s: float | None, waiter: Waiter | Many | None
    ) -> Ended:
        """Accept a publish, in its turn. Raises BacklogFull or Stopped."""
        if self._hooks is None:
            return await self._admit(call, timeout_s, waiter)
        assert not isinstance(waiter, Many)  # hooks learn of each publish
        with self._hooks.accepting(call, waiter) as (call, watched):
            return await self._admit(call, timeout_s, watched)

    async def _admit(
        self, call: Call, timeout_s: float | None, waiter: Waiter | Many | None
    ) -> Ended:
        target, body, _message = call
        drivers, lane = self.running(), self._others if target.redundancy else self._plain
        left_ms = await self._room(lane, len(body), timeout_s)
        return drivers.submit(call, left_ms, waiter)

    async def admit_bodies(
        self, target: Target, bodies: list[bytes], timeout_s: float | None, many: Many
    ) -> Sequence[Ended]:
        """Accept bodies that `packing_of` lets enter together, in their turn. As `admit`."""
        drivers, size = self.running(), sum(map(len, bodies))
        lane = self._others if target.redundancy in MODES else self._plain
        left_ms = await self._room(lane, size, timeout_s, len(bodies))
        if lane is self._plain:
            return self._door.submit_bodies(target, bodies, size, left_ms, many)
        return drivers.made_redundant().submit_bodies(target, bodies, size, left_ms, many)

    async def _room(self, lane: Lane, size: int, timeout_s: float | None, count: int = 1) -> int:
        """Wait for room, where there is none. Returns the ms that are left of the publish's timeout."""
        timeout_ms = self._deadline_ms if timeout_s is None else whole_timeout_ms(timeout_s)
        if not lane.tickets and lane.has_room(size, count):
            return timeout_ms
        try:
            return await lane.wait(size, timeout_ms, count)
        except TimeoutError:
            drivers, is_plain = self.running(), lane is self._plain
            full = drivers.full_limit(size, count, is_plain=is_plain)
            raise no_room(size, timeout_ms, full, self._door.fault) from None

    def packing_of(self, target: Target) -> Packing | None:
        """Return the bounds of what enters together, as `Door.packing_of`."""
        if self._hooks is not None or target.redundancy == PARTITIONED:
            return None
        if target.redundancy and self.running().own.memory.packed_max(target):
            return None
        return self._door.packing_of(target)

    def _on_room(self) -> None:
        """Wake calls that wait: messages have left the backlog."""
        if self._plain.tickets:
            self._plain.wake()
        if self._others.tickets:
            self._others.wake()
