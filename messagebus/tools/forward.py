"""Store and forward: the messages of a topic go on to another bus, at least once, under their ids.

`messagebus forward` consumes a subscription of its own at one site, publishes each message at the next, and
acks it after the confirm there. The store is that subscription: while the line between the sites is cut its
messages wait on the brokers of the first, and the live page shows how many and for how long. Several
forwarders of one subscription share its messages as all consumers do.
"""

# A `Forwarder` is a row of spells, each with a publisher and a consumer of its own:
#
#   publisher has a link ─▶ consumer starts ─▶ message: translate ─ None ─▶ ack
#                                                  └─ submit ─ confirmed ─▶ ack
#                                                       ▲      └─ not: again after AGAIN_S
#   HOLD_S without a confirm, or stopped ─▶ both stop: what was not confirmed goes back to its broker
#
# So a message is held for HOLD_S at most while the line is cut, far below the brokers' consumer timeout.

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import click

from messagebus._io.agents import subscriptions
from messagebus._io.loop import Tasks, run_blocking
from messagebus.admin import directory
from messagebus.aio import AsyncConsumer, AsyncPublisher
from messagebus.clock import LogLimit
from messagebus.commands.exits import Exit
from messagebus.commands.options import (
    bus_settings,
    durability_option,
    log_option,
    log_to_stderr,
)
from messagebus.config import BusConfig, ConsumerConfig, PublisherConfig, read_toml
from messagebus.core.ends import REFUSED_FOR_EVER
from messagebus.core.path import HOPS_MAX, Way, is_site, longer, way_on
from messagebus.destination import Destination, Topic, parse_destination
from messagebus.errors import (
    BacklogFull,
    ConfigError,
    LoginRefused,
    MessageInvalid,
    NotReady,
    Stopped,
    TopologyError,
    reason_of,
)
from messagebus.message import Delivery, Message
from messagebus.stats import CONFIRMED_OUTCOME, Durability, Published
from messagebus.terminal import plural, say
from messagebus.tools.foreign import going_on

log = logging.getLogger("messagebus.forward")

# A message that was not confirmed is published again after this.
AGAIN_S = 1.0
# Without a confirm for this long the forwarder gives back what it holds, and waits for the line.
HOLD_S = 60.0
# Between two looks whether confirms come.
LOOK_S = 1.0
# The first try to reach a broker of the next site.
LINE_S = 10.0
# Later a publisher tries this long before a new one does: each logs by itself that it reaches no broker.
AWAY_S = 3_600.0
# For publishes on their way at a stop.
GRACE_S = 20.0
# For acks on their way, and copies to the parking queue.
STOP_S = 1.0
WAITS_LOGGED_EVERY_MS = 60_000
# Deliveries under way: some 0.1 s of 20,000 messages a second.
HANDED_OUT_MAX, PREFETCH = 4_000, 2_000

Translate = Callable[[Delivery], Message | None]
"""Makes the message to publish of a delivery. None: it is acked and goes nowhere."""


class Publishes(Protocol):
    """The part of a publisher that a forwarder needs."""

    async def start(self, *, require: str | None, timeout_s: float) -> None: ...

    async def stop(self, timeout_s: float) -> int: ...

    async def submit(
        self, destination: Destination | str, message: Message, /
    ) -> asyncio.Future[Published]: ...


class Forwarder:
    """Forwards the messages of one source to one destination of another bus.

    consumers, publishers: make a new one for each spell. name: of the way, for the log. hold_s: how long
    messages are held while none is confirmed.
    forwarded, passed_over, parked: numbers of messages since the start. is_started: both sides were reached.
    It runs on one loop.
    """

    def __init__(
        self,
        consumers: Callable[[], AsyncConsumer],
        publishers: Callable[[], Publishes],
        destination: Destination | str,
        translate: Translate,
        *,
        name: str,
        hold_s: float = HOLD_S,
    ) -> None:
        self._consumers, self._publishers = consumers, publishers
        self._destination, self._translate = destination, translate
        self.name, self.hold_s = name, hold_s
        self._waits = LogLimit(WAITS_LOGGED_EVERY_MS)
        self._is_waiting = self.is_started = False
        self.forwarded = self.passed_over = self.parked = 0

    async def run(self, stopped: asyncio.Event) -> int:
        """Forward until `stopped`. Returns the number of messages that were sent and got no answer.

        Raises NotReady or LoginRefused where either side cannot be reached at the start; later it waits.
        """
        while True:
            if (publisher := await self._publisher(stopped)) is None:
                return 0
            try:
                consumer = self._consumers()
                await consumer.start(require=None if self.is_started else "one")
                self.is_started = True
                left = await _Spell(self, consumer, publisher).run(stopped)
            finally:
                await publisher.stop(0)
            if stopped.is_set():
                return left

    async def _publisher(self, stopped: asyncio.Event) -> Publishes | None:
        """Return a publisher with a link, None once stopped. Raises NotReady, LoginRefused at the first."""
        while not stopped.is_set():
            publisher = self._publishers()
            try:
                if await self._reached(publisher, stopped):
                    return publisher
            except (NotReady, LoginRefused) as fault:
                if not self.is_started:
                    raise
                self.waits(reason_of(fault))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(AGAIN_S):
                        await stopped.wait()
        return None

    async def _reached(self, publisher: Publishes, stopped: asyncio.Event) -> bool:
        """Return whether the publisher has a link; False once stopped. Raises NotReady, LoginRefused."""
        limit_s = AWAY_S if self.is_started else LINE_S
        starting = asyncio.create_task(publisher.start(require="one", timeout_s=limit_s))
        ending = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                return True
            return False
        finally:
            for task in (starting, ending):
                task.cancel()
            await asyncio.gather(starting, ending, return_exceptions=True)
            if starting.cancelled():
                await publisher.stop(0)

    def waits(self, reason: str) -> None:
        """Log that nothing goes on, once a minute."""
        self._is_waiting = True
        if self._waits.allows():
            log.warning("forwarding waits way=%s reason=%r", self.name, reason)

    def confirmed(self) -> None:
        """Count a message, and log that messages go on again."""
        self.forwarded += 1
        if self._is_waiting:
            self._is_waiting = False
            log.warning("forwarding again way=%s", self.name)


class _Spell:
    """The life of one consumer and one publisher of a forwarder."""

    def __init__(self, forwarder: Forwarder, consumer: AsyncConsumer, publisher: Publishes) -> None:
        self._forwarder, self._consumer, self._publisher = forwarder, consumer, publisher
        self._destination, self._translate = forwarder._destination, forwarder._translate
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._open = 0
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._progress_s = self._loop.time()

    async def run(self, stopped: asyncio.Event) -> int:
        """Forward until `stopped`, or until the line seems to be cut. Returns how many had no answer."""
        feeding = asyncio.create_task(self._feed())
        stalled = asyncio.create_task(self._stalled())
        ending = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({ending, feeding, stalled}, return_when=asyncio.FIRST_COMPLETED)
            if feeding.done():
                feeding.result()
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            if stopped.is_set():
                await self._settle()
            return self._open
        finally:
            for task in (feeding, stalled, ending):
                task.cancel()
            await asyncio.gather(feeding, stalled, ending, return_exceptions=True)
            await self._tasks.cancel()
            await self._consumer.stop(STOP_S)

    async def _stalled(self) -> None:
        """Return when messages have waited for a confirm for too long."""
        hold_s = self._forwarder.hold_s
        while True:
            await asyncio.sleep(min(LOOK_S, hold_s))
            if self._open and self._loop.time() - self._progress_s >= hold_s:
                self._forwarder.waits(f"no confirm within {hold_s:g} s")
                return

    async def _settle(self) -> None:
        """Wait for the confirms of what is on its way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                await self._none_open.wait()

    async def _feed(self) -> None:
        async for delivery in self._consumer:
            try:
                message = self._translate(delivery)
            except MessageInvalid as fault:
                self._tasks.spawn(self._park(delivery, str(fault)))
                continue
            if message is None:
                self._forwarder.passed_over += 1
                self._consumer.ack(delivery)
                continue
            if not self._open:
                self._progress_s = self._loop.time()
                self._none_open.clear()
            self._open += 1
            await self._submit(delivery, message)

    async def _submit(self, delivery: Delivery, message: Message) -> None:
        try:
            future = await self._publisher.submit(self._destination, message)
        except (BacklogFull, Stopped) as fault:
            self._later(delivery, message, reason_of(fault))
        except asyncio.CancelledError:  # by the stop: it goes back
            self._close()
            raise
        else:
            future.add_done_callback(partial(self._ended, delivery, message))

    def _ended(
        self, delivery: Delivery, message: Message, future: asyncio.Future[Published]
    ) -> None:
        if future.cancelled():
            return
        published = future.result()
        if published.reason.startswith(REFUSED_FOR_EVER):
            self._close()
            self._tasks.spawn(self._park(delivery, published.reason))
            return
        if published.outcome is not CONFIRMED_OUTCOME:
            told = published.reason or "no answer"
            self._later(delivery, message, f"{published.outcome.value}: {told}")
            return
        self._consumer.ack(delivery)
        self._forwarder.confirmed()
        self._progress_s = self._loop.time()
        self._close()

    def _later(self, delivery: Delivery, message: Message, reason: str) -> None:
        """Publish it again in a moment, under its id, unless its link has ended: then it comes again."""
        self._forwarder.waits(reason)
        self._tasks.spawn(self._again(delivery, message))

    async def _again(self, delivery: Delivery, message: Message) -> None:
        await asyncio.sleep(AGAIN_S)
        if delivery._ledger.is_live:
            await self._submit(delivery, message)
        else:
            self._consumer.ack(delivery)  # stale: it goes nowhere, and is counted
            self._close()

    def _close(self) -> None:
        self._open -= 1
        if not self._open:
            self._none_open.set()

    async def _park(self, delivery: Delivery, reason: str) -> None:
        """Park what cannot be published anywhere: it must not stand in the way of the others."""
        if await self._consumer.park(delivery, reason=reason):
            self._forwarder.parked += 1


# Between sites.
class NextSite:
    """Translation for the next site: the path grows, and what has been there goes nowhere."""

    def __init__(self, here: str, there: str, hops_max: int = HOPS_MAX) -> None:
        self._here, self._there, self._hops_max = here, there, hops_max

    def __call__(self, delivery: Delivery) -> Message | None:
        """Return the message to publish there. Raises MessageInvalid for one that no broker would take."""
        path = delivery.path
        if way_on(path, self._here, self._there, self._hops_max) is not Way.ON:
            return None
        return going_on(delivery, longer(path, self._here))


def site_of(bus: BusConfig, whose: str) -> str:
    """Return the name of the site of a bus: its cluster's. Raises ConfigError where it has none."""
    if not bus.cluster:
        raise ConfigError(f"{whose}: `cluster` is not set; it is the name of the site")
    if not is_site(bus.cluster):
        raise ConfigError(f"{whose}: cluster {bus.cluster!r}: 1 to 64 letters, digits and . _ -")
    return bus.cluster


@click.command(short_help="Forward TOPICS to another bus, at least once.")
@click.argument("topics", nargs=-1, required=True)
@click.option(
    "--to-bus",
    "target",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the settings of the other bus, in TOML: [bus], [publisher].",
)
@click.option("--subscription", "-s", default="", help="Its subscription; default: forward-SITE.")
@durability_option
@click.option(
    "--hops-max",
    type=click.IntRange(1, HOPS_MAX),
    default=HOPS_MAX,
    show_default=True,
    help="Sites that forward one message; 1: only messages that were published here.",
)
@log_option
def forward(
    topics: tuple[str, ...],
    target: Path,
    subscription: str,
    durability: str,
    hops_max: int,
    form: str,
) -> int:
    """Publish each message of TOPICS on the bus of another site too, under its id, until SIGTERM or SIGINT.

    The name of a site is the setting `cluster` of its bus. A message is acked here after the confirm there.
    While the other site is away messages wait in the subscription here. A message that has been at the
    other site is not forwarded there. Any number of forwarders may run: they share the messages.

    \b
    Example:
      messagebus forward orders clicks --to-bus /etc/messagebus/berlin.toml
    """
    bus, there = bus_settings(), BusConfig.from_file(target)
    here_name, there_name = site_of(bus, "this bus"), site_of(there, str(target))
    if here_name == there_name:
        raise ConfigError(f"{target}: the other site is {there_name!r}, as this one")
    # What is spooled is not confirmed there: the store is the subscription.
    publisher = replace(publisher_config(target), spool=None)
    names = [_topic(each, Durability(durability)) for each in topics]
    log_to_stderr(form)
    directory.reach(bus)
    directory.reach(there, publishing=True)
    ordered = _partitioned(bus)

    def forwarder(topic: Topic) -> Forwarder:
        made = partial(
            AsyncConsumer,
            bus,
            topic,
            subscription=subscription or f"forward-{there_name}",
            config=consumer_config(topic.name in ordered),
        )
        return Forwarder(
            made,
            lambda: AsyncPublisher(there, publisher),
            topic,
            NextSite(here_name, there_name, hops_max),
            name=f"{topic}:{here_name}->{there_name}",
        )

    return asyncio.run(run_forwarders([forwarder(each) for each in names]))


def publisher_config(path: Path) -> PublisherConfig:
    """Read the table of publishers of a file, which may be one of the bus's settings alone."""
    values = read_toml(path)
    is_bus_alone = not any(isinstance(each, dict) for each in values.values())
    return PublisherConfig() if is_bus_alone else PublisherConfig.from_file(path)


def _topic(text: str, durability: Durability) -> Topic:
    if durability is Durability.NONE:
        raise ConfigError("durability none has no confirms, after which a forwarder could ack")
    found = parse_destination(text)
    if not isinstance(found, Topic):
        raise ConfigError(f"{text}: only topics are forwarded; a message of a queue exists once")
    return replace(found, durability=durability)


def _partitioned(bus: BusConfig) -> frozenset[str]:
    """Return the topics with partitions, of which the order of each key is kept. Raises NotReady."""
    if not bus.list_urls:
        return frozenset()
    try:
        known = run_blocking(subscriptions.topology(bus))
    except TopologyError as fault:
        raise NotReady(str(fault)) from fault
    return frozenset(each.name for each in known if isinstance(each, Topic) and each.partitions)


def consumer_config(is_ordered: bool) -> ConsumerConfig:
    """Return the settings of the environment; where it says nothing, room for a long line."""
    given = ConsumerConfig.from_env(os.environ)
    default = ConsumerConfig()
    changed: dict[str, int | str] = {}
    for name, value in (("handed_out_max", HANDED_OUT_MAX), ("prefetch", PREFETCH)):
        if getattr(given, name) == getattr(default, name):
            changed[name] = value
    if given.at_most_once:
        raise ConfigError("at_most_once: a forwarder acks after the confirm; leave it out")
    if is_ordered and given.order == "none":
        changed["order"] = "key"
    return replace(given, **changed)  # type: ignore[arg-type]


async def run_forwarders(forwarders: Sequence[Forwarder]) -> Exit:
    """Run these until SIGTERM or SIGINT, and print what they did. Raises as `Forwarder.run`."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_requested() -> None:
        stopped.set()
        for number in (signal.SIGTERM, signal.SIGINT):  # a second one ends the process
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested)
    running = [asyncio.create_task(each.run(stopped)) for each in forwarders]
    try:
        left = sum(await asyncio.gather(*running))
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    total = Counter[str]()
    for one in forwarders:
        total.update(forwarded=one.forwarded, passed=one.passed_over, parked=one.parked)
    passed = f", passed over {total['passed']} that had been there" if total["passed"] else ""
    told = f"forwarded {plural(total['forwarded'], 'message')}{passed}, parked {total['parked']}"
    say(f"messagebus: {told}", err=True)
    if left:
        say(f"messagebus: {plural(left, 'message')} without an answer; they go out again", err=True)
    return Exit.FAILED if left else Exit.DONE
