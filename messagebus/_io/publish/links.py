"""Links of a publisher's driver: adopted, watched, hung up and lost, as `core.route` decides.

One link is *current*: publishes go out on it. Those before it *retire*: they only wait for answers, up to
RETIRE_MS behind their last byte; at a blocked broker as long as a slow one is waited for. Runs on the
driver's loop.
"""

# States of a link, by the number of its dial:
#
#   dialling ─ Adopt ─▶ current ─ another one is adopted ─▶ retiring ─ owes nothing, or RETIRE_MS ─┐
#      │  │                └─────────────┬──────────────────────┘                                  │
#      │  │                              └─▶ lost: what it owes has no answer                      │
#      │  └─ HangUp: its broker is to be left ──────────────────────────────────────▶ hung up ◀────┘
#      └─ failed: `Route` says when the next dial is due
#
# Owners: `Route` decides on dials and moves, `Dialer` has the dials and what closes, `PendingPublishes`
# knows what a link owes. `Links` has the open ones (`open`, `current`, `retiring`) and carries out the
# actions.

from __future__ import annotations

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from messagebus._io.amqp.frames import HEADER_OVERHEAD
from messagebus._io.amqp.link import CLOSING_TIMEOUT_S, Link
from messagebus._io.loop import Tasks
from messagebus._io.publish.destinations import Destinations
from messagebus._io.publish.dialing import Dialer
from messagebus._io.publish.routes import RoutePolicy
from messagebus._io.publish.sender import Sender
from messagebus._io.publish.targets import Address, place_name
from messagebus._io.wire import Wire
from messagebus.broker import BrokerList
from messagebus.clock import monotonic_ms, whole_ms
from messagebus.config import BusConfig, PublisherConfig
from messagebus.core.ends import TOO_LONG, Item
from messagebus.core.in_flight import Silence
from messagebus.core.pending import PendingPublishes
from messagebus.core.route import Action, Adopt, Dial, HangUp, Route
from messagebus.errors import PRECONDITION_FAILED, ChannelRefused, LinkError

log = logging.getLogger("messagebus.publisher")

# A retiring link waits this long for open answers; then these outcomes are unknown.
RETIRE_MS = 10_000
# A link that answers nothing for this part of `confirm_slow_s`, 0.6 s by default, while publishes wait, is
# left: with the looks each 100 ms and the dial, publishers go on within a second. An error costs a login.
SILENT_PERCENT = 40
# Lifetime of a link that no other may replace.
NEVER_MS = 1 << 60
# Bytes of properties that fit a frame of RabbitMQ's default; a broker may agree to smaller frames.
PROPERTIES_MAX = 131_072 - HEADER_OVERHEAD


class LinkUser(Protocol):
    """The part of a driver that its links use."""

    def answered(self, link: int, tag: int, multiple: bool, ok: bool) -> None:
        """Settle what a confirm answers; `pump` is called after it."""

    def pump(self) -> None:
        """Send what the window takes, after each read."""

    def wake(self) -> None:
        """Send what can be sent, in the next turn of the loop."""

    def settle(self, settled: list[Item]) -> None:
        """Give settled publishes their ends."""

    def arm(self, now: int) -> None:
        """Tick when `core.route` is due next."""


@dataclass(slots=True)
class Slowness:
    """The link that was slow last, until when none is left for that, and the link that is dead.

    silent_ms: the time without any answer after which a link is left too. A broker that is slow, but alive,
    has an answer now and then; a frozen one and a cut line have none.
    """

    after_ms: int
    link: int = 0
    until_ms: int = 0
    dead: int = 0
    silence: Silence = field(default_factory=Silence)

    @property
    def silent_ms(self) -> int:
        return max(1, self.after_ms * SILENT_PERCENT // 100)


class Links:
    """The links of one driver, by the numbers of their dials."""

    def __init__(
        self,
        user: LinkUser,
        bus: BusConfig,
        config: PublisherConfig,
        wire: Wire,
        policy: RoutePolicy,
        pending: PendingPublishes,
        destinations: Destinations,
        tasks: Tasks,
    ) -> None:
        self._user, self._policy, self._pending = user, policy, pending
        self._destinations, self._tasks = destinations, tasks
        self.route = Route(
            lifetime_ms=NEVER_MS if policy.stays else config.connection_lifetime_s * 1000,
            timeout_first_ms=whole_ms(bus.dial_timeout_s),
            timeout_max_ms=whole_ms(bus.dial_timeout_max_s),
            stays=policy.stays,
        )
        self.dialer = Dialer(bus, wire, policy, tasks, self)
        # Without a consumer list it is the whole bus, and RabbitMQ's own default name says no address.
        self.only_broker = "" if bus.list_urls else bus.address.name
        self.open: dict[int, Link] = {}
        self.current: Link | None = None
        self.sender: Sender | None = None
        """The encoder of the current link, or of the last one."""
        self.properties_max = PROPERTIES_MAX
        """Bytes of properties that fit a frame of it."""
        self.is_blocked = False
        """True while its broker has an alarm."""
        self.retiring: dict[int, int] = {}
        """Link -> when it is hung up at the latest."""
        self.lost = 0
        """Links that have ended without us."""
        self.on_adopted: Callable[[], None] | None = None
        """Called when a new link has become the current one."""
        self.slowness = Slowness(whole_ms(config.confirm_slow_s))
        self._unseen: list[Address] = []  # destinations that the dial did not look at
        self._taken: dict[int, int] = {}  # link -> bytes that the other side had at the last tick
        # The last list, and the names of all.
        self._listed: tuple[BrokerList | None, frozenset[str]] = None, frozenset()

    # Questions.
    @property
    def is_linked(self) -> bool:
        """True when there is a current link."""
        return self.route.current is not None

    def is_taking(self, now: int) -> bool:
        """Return whether there is a link to a broker that takes publishes and answers."""
        link = self.current
        if link is None or not link.is_open or self.is_blocked:
            return False
        return not self.is_slow(now)

    def is_slow(self, now: int) -> bool:
        """Return whether a publish has waited for its answer on the current link for confirm_slow_s."""
        return self._pending.in_flight.unanswered_ms(now) >= self.slowness.after_ms

    # Dials.
    def perform(self, actions: Iterable[Action]) -> None:
        """Carry out what the route says."""
        for action in actions:
            match action:
                case Dial(link, timeout_ms, by_name):
                    self.dialer.dial(link, timeout_ms, by_name=by_name or self.route.stays)
                case Adopt(link):
                    self._adopt(link)
                case HangUp(link):
                    self._hang_up(link)

    def listen(self, number: int, link: Link) -> None:
        """Take the link's confirms and turns from now on."""
        link.transport.on_confirm = functools.partial(self._user.answered, number)
        link.transport.on_turn = self._user.pump

    async def verify(self, link: Link) -> list[Address]:
        """Look whether a new link has what its route needs, and which destinations in use.

        Returns those not looked for. Raises MessageBusError.
        """
        await self._policy.verify(link)
        return await self._destinations.verify(link)

    def dial_failed(self, number: int, *, refused: bool, absent: bool) -> None:
        """Note that a dial has failed. refused: its login; absent: nobody listens."""
        now = monotonic_ms()
        self.route.lost(number, now, random.random(), refused=refused, absent=absent)
        self._user.arm(now)

    def opened(self, number: int, link: Link, unseen: list[Address]) -> None:
        """Take a link that a dial has opened. unseen: destinations that the dial did not look at."""
        self.open[number], self._unseen = link, unseen
        link.channel.add_on_return_callback(
            lambda _channel, method, properties, _body: self._returned(
                number, method.exchange, method.routing_key, properties.message_id
            )
        )
        link.on_blocked(lambda blocked: self._on_blocked(number, blocked))
        link.on_lost(lambda why: self._lost(number, link, why))
        avoid = self._policy.avoids()
        if avoid is not None and not link.broker:
            told = f"; last fault: the broker at {link.address} does not say its name"
            self.dialer.last_fault = told
        now = monotonic_ms()
        self.perform(self.route.opened(number, link.broker, now, random.random(), avoid=avoid))
        if self.route.current != number:
            self._user.arm(now)  # for the next dial

    def _returned(self, number: int, exchange: str, routing_key: str, message_id: str) -> None:
        for destination in self._destinations.of_place(place_name(exchange, routing_key)):
            self._pending.returned(number, destination, message_id)

    def _adopt(self, number: int) -> None:
        new = self.open[number]
        old = [other for other in self.open if other != number]
        same = [
            other for other in old if not new.broker or self.open[other].broker in ("", new.broker)
        ]
        self.properties_max = new.properties_max
        self._refuse_too_long()
        self._pending.in_flight.opened(number, after=same)
        self.current = new
        self.sender = Sender(new.transport, self._destinations.deflated)
        # A blocked broker does not read what it has not answered by now.
        patience_ms = min(RETIRE_MS, self.slowness.after_ms) if self.is_blocked else RETIRE_MS
        self.is_blocked = False
        self._destinations.rest(self._unseen)
        self._unseen = []
        for other in old:
            if other == self.slowness.dead and other in same:
                self._hang_up(other)  # its broker answers, only not on this link
                continue
            self.retiring.setdefault(other, monotonic_ms() + patience_ms)
            self.hang_up_if_answered(other)
        name = new.broker or str(new.address)
        self._user.wake()
        if self.on_adopted is not None:
            self.on_adopted()
        self.dialer.succeeded(name)
        log.info("link opened broker=%s dials=%d", name, self.route.dials)

    def _refuse_too_long(self) -> None:
        """Refuse what waits with headers that fill more than a frame of the new link: they would end it."""
        most = self.properties_max
        if most < PROPERTIES_MAX:
            too_long = [
                item
                for item in self._pending.unsettled()
                if len(getattr(item, "properties", None) or b"") > most and not item.attempts
            ]
            if too_long:
                told = f"{TOO_LONG}above {most} bytes, which is all its broker takes"
                self._user.settle(self._pending.withdraw(too_long, told))

    # Ends of links.
    def hang_up_if_answered(self, number: int) -> None:
        """Hang up a retiring link that owes nothing."""
        if self._pending.in_flight.is_answered(number):
            self._hang_up(number)
            self._user.wake()

    def _hang_up(self, number: int) -> None:
        self.dialer.cancel(number)
        if link := self._remove(number):
            self._user.settle(self._pending.link_lost(number, monotonic_ms()))
            self._destinations.open_held()  # what came back may be for one that was closed meanwhile
            self._user.wake()
            self.dialer.closing.spawn(link.close())

    def _remove(self, number: int) -> Link | None:
        self.retiring.pop(number, None)
        link = self.open.pop(number, None)
        if link is self.current:
            self.current = None
        return link

    def _lost(self, number: int, link: Link, why: LinkError) -> None:
        if self._remove(number) is None:
            return  # we hung up ourselves
        self.dialer.closing.spawn(link.close())  # `close` waits for its socket too
        self.lost += 1
        in_flight = self._pending.in_flight.count
        refused = isinstance(why, ChannelRefused) and why.code == PRECONDITION_FAILED
        settled = self._pending.link_lost(number, monotonic_ms(), why.reason, refused=refused)
        self._user.settle(settled)
        self._destinations.link_lost(why)
        if self.route.current == number:
            self.dialer.connected.clear()
        self.route.lost(number, monotonic_ms(), random.random())
        self.perform(self.route.tick(monotonic_ms()))
        self._user.wake()  # what it left open may go out on another link at once
        log.warning(
            "link lost broker=%s in_flight=%d reason=%r docs=%s",
            *(why.broker, in_flight, why.reason, why.docs),
        )

    async def close(self, until_s: float) -> None:
        """Hang up all. until_s: of `time.monotonic`, for a slow line to take what needs no confirm."""
        try:
            await self._tasks.cancel()
            await self._policy.stop()
            links, self.open = self.open, {}
            self.current = None
            for link in links.values():
                self.dialer.closing.spawn(link.close())
            left_s = max(CLOSING_TIMEOUT_S, until_s - time.monotonic())
            await self.dialer.closing.finish(left_s)
        finally:
            for link in list(self.open.values()):  # a link that ends leaves it
                link.abort()

    # Moves.
    def _on_blocked(self, number: int, blocked: bool) -> None:
        if number == self.route.current:
            self.is_blocked = blocked
            if blocked:
                broker = self.route.broker or self.only_broker
                self.leave()
                log.warning("broker blocked broker=%s", broker)
            else:
                self._user.wake()

    def on_list(self, brokers: BrokerList) -> None:
        """Leave a broker that drains, or that was listed and is no longer.

        A broker that was never listed under its own name is not identified: the list says nothing about it.
        """
        (last, ever_listed), broker = self._listed, self.route.broker
        if brokers is not last:
            self._listed = brokers, ever_listed | brokers.names
        if not broker:
            return
        entry = brokers.find(broker)
        removed = entry is None and broker in ever_listed
        if removed or (entry is not None and entry.draining):
            self.leave()

    def leave(self) -> None:
        """Move to another broker, where another one will do."""
        self.route.leave(monotonic_ms())
        self.perform(self.route.tick(monotonic_ms()))

    def renew(self) -> None:
        """Dial anew through the balancer."""
        self.route.renew(monotonic_ms())
        self.perform(self.route.tick(monotonic_ms()))

    # Time.
    def tick(self, now: int) -> None:
        """Leave a slow broker, hang up what has retired, and dial what is due."""
        self._watch(now)
        self.leave_if_slow(now)
        for number in [n for n, at_ms in self.retiring.items() if at_ms <= now]:
            self._hang_up(number)
        if self._policy.follower.brokers is not None:
            self.on_list(self._policy.follower.brokers)
        self.perform(self.route.tick(now))
        if self.is_blocked:
            self.route.leave(now)

    def _watch(self, now: int) -> None:
        """Count the time of publishes from their last byte; keep a retiring link whose bytes still move."""
        taken: dict[int, int] = {}
        for number, link in self.open.items():
            unsent = link.unsent_bytes
            taken[number] = link.sent_bytes - unsent
            if taken[number] > self._taken.get(number, 0):
                self._pending.in_flight.leaving(number, taken[number], now)
                if unsent and number in self.retiring:
                    self.retiring[number] = now + RETIRE_MS
        self._taken = taken

    def leave_if_slow(self, now: int) -> None:
        """Leave a slow or silent broker, once in 10 * confirm_slow_s until one answers in time.

        All of them may stall at fsync. One that no other may replace is kept: with a slow disk it answers
        later, and heartbeats end a dead link.
        """
        slowness, slow_ms = self.slowness, self.slowness.after_ms
        if self.current is None or self._policy.stays:
            return
        silent_ms = slowness.silence.look(self._pending.in_flight, now)
        if now < slowness.until_ms:
            return
        broker, is_slow = self.route.broker or self.only_broker, self.is_slow(now)
        if not is_slow and silent_ms < slowness.silent_ms:
            return
        number = self.route.current or 0
        slowness.link, slowness.until_ms = number, now + 10 * slow_ms
        self.route.leave(now)
        link = self.open.get(number)
        if link is not None and not link.has_heartbeats:
            self._tasks.spawn(self._leave_if_dead(number, link, slow_ms))
        if is_slow:
            log.warning("broker slow broker=%s unanswered_ms>=%d", broker, slow_ms)
        else:
            log.warning("broker silent broker=%s silent_ms>=%d", broker, slowness.silent_ms)

    def answers(self, number: int, now: int) -> None:
        """Note a confirm on this link: if it is another one than the slow one, not all brokers are slow.

        Not by one that comes late itself: where all take long, publishers would move again and again.
        """
        slowness = self.slowness
        is_late = slowness.silence.ms > slowness.silent_ms // 2 or self.is_slow(now)
        if number == self.route.current != slowness.link and not is_late:
            slowness.until_ms = 0

    async def _leave_if_dead(self, number: int, link: Link, timeout_ms: int) -> None:
        """Send a request: without heartbeats only that tells a dead path from a broker with a slow disk."""
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await link.call("basic_qos", prefetch_count=0)
        except LinkError:
            return
        except TimeoutError:
            if number == self.route.current and not self.is_blocked:
                log.warning("link dead broker=%s unanswered_ms>=%d", link.broker, timeout_ms)
                self.slowness.dead = number
                self.route.abandon(monotonic_ms())
                self.perform(self.route.tick(monotonic_ms()))
