"""The interface between drivers and brokers; AMQP begins below it.

`AmqpWire` (`_io.amqp_wire`) is the real one; `messagebus.testing` has one that leads to brokers in
memory. The drivers above it are the same, so both buses behave uniform.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from messagebus._io.loop import held
from messagebus.broker import Broker, BrokerList
from messagebus.clock import monotonic_ms, whole_ms
from messagebus.core.membership import ListKeeper
from messagebus.destination import Delay, Destination, Queue, Subscription
from messagebus.errors import NOT_FOUND, ChannelRefused, LinkLost, MessageBusError, docs_of
from messagebus.topology import Options, Wanted

if TYPE_CHECKING:
    from messagebus._io.amqp.link import Link

OUTAGE_LOGGED_EVERY_MS = 60_000
# A registration answers within 10 s, and settling a queue takes 4 s of them.
ABSENT_LOGGED_AFTER_MS = 10_000
# Text for a TimeoutError, which has none.
TOO_LATE = "no answer in time"
# A question for news of homes ends after this.
NEWS_WAIT_S = 30
# One that failed, or brought nothing new, is asked again after twice the first, and so on.
ASK_AGAIN_S, ASK_AGAIN_MAX_S = 0.1, 5.0
# Dials of one loop at one address at the same time. RabbitMQ ends a handshake that takes 10 s, and all that
# are under way share its processors: 320 at once on a busy machine of two cores took longer, were ended, and
# began again.
DIALS_AT_ADDRESS = 4
# A dial holds its place for so many times as long as dials that succeed. A dial without an answer must not
# keep the rest waiting, and all dials are slow where the broker has much to do.
TURN_TIMES, TURN_S, TURN_MAX_S = 4, 0.1, 10.0
# Before the first one has succeeded.
FIRST_TURN_S = 1.0


class DialTurns:
    """The turns of all clients of one loop at each address."""

    def __init__(self) -> None:
        self._places: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()
        self._mean_s = 0.0  # of dials that succeeded lately; 0 before the first one

    @classmethod
    def here(cls) -> DialTurns:
        """Return those of the running loop."""
        return _turns.setdefault(asyncio.get_running_loop(), cls())

    @contextlib.asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Wait for a place at an address; hold it for a dial, but not for longer than `_turn_s`."""
        self._users[address] += 1
        place = self._places.setdefault(address, asyncio.Semaphore(DIALS_AT_ADDRESS))
        try:
            async with held(place, lambda: self._turn_s):
                loop = asyncio.get_running_loop()
                began_s = loop.time()
                yield
                took_s = loop.time() - began_s
                self._mean_s = (
                    self._mean_s + (took_s - self._mean_s) / 8 if self._mean_s else took_s
                )
        finally:
            self._users[address] -= 1
            if not self._users[address]:
                del self._users[address], self._places[address]

    def timeout_ms(self, address: str, wanted_ms: int, most_s: float) -> int:
        """Return the time to give a dial: more than wanted while others wait, and those that succeed take it.

        A dial that is given up has cost its broker as much as one that succeeds, and is made again.
        """
        if self._users[address] <= DIALS_AT_ADDRESS:
            return wanted_ms
        return max(wanted_ms, whole_ms(min(TURN_TIMES * self._mean_s, most_s)))

    @property
    def _turn_s(self) -> float:
        usual_s = TURN_TIMES * self._mean_s or FIRST_TURN_S
        return min(max(TURN_S, usual_s), TURN_MAX_S)


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, DialTurns] = (
    weakref.WeakKeyDictionary()
)


class Outage:
    """The log of a client that reaches no broker: a line when that begins, one a minute, one when it ends.

    The first line is about the first dial that fails: others may succeed a moment later.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self.since_ms = 0
        """Time of the first failed dial, by the monotonic clock; 0 while there is no outage."""
        self._logged_ms = self._dials = 0
        self.last_faults: dict[str, str] = {}
        """Broker -> why its last dial failed, until one succeeds, where the client notes it."""

    def dial_failed(self, broker: str, fault: Exception) -> None:
        """Note a dial that failed while the client has no link.

        Where a broker answers and lacks a queue or exchange, a registration may be creating it: the line
        waits for ABSENT_LOGGED_AFTER_MS.
        """
        now = monotonic_ms()
        self.since_ms = self.since_ms or now
        self._dials += 1
        if is_absent(fault) and now - self.since_ms < ABSENT_LOGGED_AFTER_MS:
            return
        if not self._logged_ms or now - self._logged_ms >= OUTAGE_LOGGED_EVERY_MS:
            self._logged_ms = now
            self._log.warning(
                "no answer yet from broker=%s for_s=%d dials=%d reason=%r docs=%s",
                *(broker, (now - self.since_ms) // 1_000, self._dials, str(fault) or TOO_LATE),
                docs_of(fault) or LinkLost.docs,
            )

    def over(self, broker: str) -> None:
        """Note a link."""
        if self._logged_ms:
            for_s = (monotonic_ms() - self.since_ms) // 1_000
            self._log.warning("reconnected broker=%s after_s=%d", broker, for_s)
        self.since_ms = self._logged_ms = self._dials = 0
        self.last_faults.pop(broker, None)


@dataclass(frozen=True, slots=True)
class Registration:
    """The result of a registration, by broker name.

    complete: every broker has it, or takes no publishes before it has it. held: has it, settled. later:
    takes no publishes before it has it. missing: may take publishes without it -> the reason.
    options: name -> its options, as `messagebus.topology.options_of` gives them; empty where unknown.
    created: names that did not exist before.
    """

    complete: bool
    held: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Options] = field(default_factory=dict)
    created: tuple[str, ...] = ()


class Topology(Protocol):
    """The maker of topics, queues and subscriptions."""

    async def register(
        self,
        wanted: Sequence[Wanted],
        *,
        timeout_ms: int,
        enough: bool = False,
        on_answer: Callable[[Registration], None] | None = None,
    ) -> Registration:
        """Create these on every broker; repeat until complete or the time is over.

        enough: one broker that holds it will do. on_answer: called with each answer. Raises
        RegistrationIncomplete, TopologyMismatch, LoginRefused or NameInvalid.
        """

    async def exists(self, queue: Queue, *, timeout_ms: int) -> bool:
        """Return whether it was created. Raises RegistrationIncomplete, LoginRefused or LinkError."""

    async def plain_sources(self, destinations: Collection[str]) -> list[str]:
        """Return the plain subscriptions and queues of these destinations; none while nobody answers."""

    async def homes(self, topic: str, known: str, *, wait_s: int) -> str:
        """Return the homes of a topic when an agent has other ones than known, or after wait_s.

        Raises LinkLost.
        """

    async def verify(
        self, link: Link, destinations: Iterable[Destination | Delay]
    ) -> Mapping[Destination | Delay, MessageBusError]:
        """Make sure that these can be published to on this link. Returns those that cannot, with the error.

        Raises LinkLost.
        """

    async def delete(self, source: Subscription, *, timeout_ms: int) -> None:
        """Delete on every broker what would expire there: ask once, without retries.

        Raises LinkError or TopologyError; then it expires.
        """


class Follower(Protocol):
    """The interface that keeps the consumer list fresh. brokers: the last list, None before the first.

    until_tried: called after `on_list`; the list is told as applied when this has ended.
    """

    keeper: ListKeeper
    brokers: BrokerList | None
    until_tried: Callable[[], Awaitable[object]] | None

    def start(self) -> None:
        """Begin. `on_list` may be called before this returns."""

    async def stop(self) -> None: ...


class Wire(Protocol):
    """The way to the brokers of one bus, for any number of drivers.

    redial_first_ms: wait of a consumer before it dials a broker again whose link has just ended;
    doubled with each failure.
    """

    redial_first_ms: int

    def topology(self) -> Topology: ...

    def follow(
        self, *, subscription: str, interval_s: int, on_list: Callable[[BrokerList], None]
    ) -> Follower: ...

    async def dial(self, broker: Broker | None, *, timeout_ms: int) -> Link:
        """Open a link to this broker; None: to any broker that the balancer gives.

        Raises LoginRefused, LinkLost or ConfigError.
        """

    async def dial_to_publish(self, broker: Broker, *, timeout_ms: int, waits: bool) -> Link:
        """Open a link to this broker, past the balancer, if it may take publishes: no other may answer there.

        waits: for its gate, for half of the time. Raises as `dial`; also LinkLost where that is shut,
        ChannelRefused where it is not shown.
        """


def is_absent(fault: Exception) -> bool:
    """Return whether a broker that answers lacks the queue or exchange that it was asked for."""
    return isinstance(fault, ChannelRefused) and fault.code == NOT_FOUND


async def follow_homes(
    topology: Topology,
    topic: str,
    known: Callable[[], str],
    learn: Callable[[str, int], bool],
    *,
    wait_s: Callable[[], int] = lambda: NEWS_WAIT_S,
    log: logging.Logger,
) -> None:
    """Ask the agents for other homes of a topic than those known, for ever.

    learn: takes an answer and the time of its question, in ms, and returns whether it brought news. Raises
    ValueError for what cannot be read. wait_s: seconds that the next question may wait for news.
    """
    pause_s = ASK_AGAIN_S
    while True:
        asked_ms, is_new = monotonic_ms(), False
        try:
            is_new = learn(await topology.homes(topic, known(), wait_s=wait_s()), asked_ms)
        except (LinkLost, ValueError) as fault:
            log.info("homes unknown topic=%s reason=%r", topic, str(fault))
        pause_s = ASK_AGAIN_S if is_new else min(2 * pause_s, ASK_AGAIN_MAX_S)
        if not is_new:
            await asyncio.sleep(pause_s)
