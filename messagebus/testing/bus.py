"""`MemoryBus`: brokers in memory, their clients, faults and assertions for tests."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from messagebus._io.amqp.properties import read_parked_facts
from messagebus._io.consume.driver import ConsumeDriver
from messagebus._io.publish.drivers import Drivers
from messagebus.aio import AsyncConsumer, AsyncPublisher
from messagebus.clock import whole_ms
from messagebus.config import BusConfig, ConsumerConfig, PublisherConfig, Spool
from messagebus.consumer import Consumer, as_dedup, as_source
from messagebus.core.checkpoint import Checkpoint
from messagebus.destination import Destination, Source, Subscription, Topic, parse_destination
from messagebus.errors import WrongPayload
from messagebus.handling import checked_most
from messagebus.hooks import Hooks
from messagebus.message import Message
from messagebus.publisher import Publisher
from messagebus.replay import AWAY_S, PREFETCH, AsyncReplay, Replay, Since
from messagebus.secret import Secret
from messagebus.stats import RUNNING
from messagebus.testing.brokers import MemoryBrokers
from messagebus.testing.journal import messages_of
from messagebus.testing.links import MemoryWire
from messagebus.topology import Wanted, parse_wanted

if TYPE_CHECKING:
    from messagebus.consumer import Deduplication, Order
    from messagebus.testing.store import FaultyStore

__all__ = ["MemoryBus"]

T = TypeVar("T")

# Limit of a test's waits: the event comes at once, or something is wrong.
TIMEOUT_S = 5.0
# Limit for another thread's loop to move its clock; it has nothing else to do.
NOTICE_TIMEOUT_S = 5.0
# A retry that begins to wait in its place is no event of a broker.
LOOK_EVERY_S = 0.02


# Its address leads nowhere, and no spool that is for a real bus is taken for its own.
# Where `wait_handled` waited for handlers of the loop that it held up.
ON_LOOP = (
    "\n  on a running event loop, whose handlers cannot run meanwhile: use `await bus.handled()`"
)
_BUS = BusConfig(broker="memory:5672")


class MemoryBus:
    """Bus of brokers in memory, for tests. Thread: any thread may call any method.

    The brokers have their own clock, and only `advance` moves it. Delays, retries, times to live and the
    expiry of subscriptions follow this clock.
    brokers: number of brokers. delivery_limit: how often a message may return unanswered before it is parked;
    None: no limit.
    """

    def __init__(self, brokers: int = 1, *, delivery_limit: int | None = None) -> None:
        names = [f"memory-{number}:5672" for number in range(1, brokers + 1)]
        self._brokers = MemoryBrokers(names, delivery_limit=delivery_limit)
        self._wire = MemoryWire(self._brokers)
        self._publishers: weakref.WeakSet[Publisher | AsyncPublisher] = weakref.WeakSet()
        # Kept until `close`, which stops those that a test leaves running.
        self._blocking: set[Publisher | Consumer] = set()
        self._consumers: weakref.WeakSet[Consumer | AsyncConsumer] = weakref.WeakSet()

    @property
    def brokers(self) -> tuple[str, ...]:
        """The names of the brokers, as in `Delivery.broker` and `Published.broker`."""
        return self._brokers.names

    # Clients.
    def publisher(
        self,
        config: PublisherConfig | None = None,
        *,
        spool: Spool | str | Path | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> Publisher:
        """Create a `Publisher`; it is not started."""
        made = Publisher(_BUS, config, spool=spool, hooks=hooks, _wire=self._wire)
        self._publishers.add(made)
        self._blocking.add(made)
        return made

    def async_publisher(
        self,
        config: PublisherConfig | None = None,
        *,
        spool: Spool | str | Path | None = None,
        hooks: Sequence[Hooks] = (),
    ) -> AsyncPublisher:
        """Create an `AsyncPublisher`; it is not started."""
        made = AsyncPublisher(_BUS, config, spool=spool, hooks=hooks, _wire=self._wire)
        self._publishers.add(made)
        return made

    def consumer(
        self,
        destination: Destination | Source | str,
        *,
        subscription: str = "",
        config: ConsumerConfig | None = None,
        hooks: Sequence[Hooks] = (),
        dedup: Deduplication = None,
        order: Order | None = None,
    ) -> Consumer:
        """Create a `Consumer`; it is not started. dedup: the address of a store is replaced by `store`."""
        made = Consumer(
            _BUS,
            destination,
            subscription=subscription,
            config=config,
            hooks=hooks,
            dedup=self._here(dedup, config),
            order=order,
            _wire=self._wire,
        )
        self._blocking.add(made)
        self._consumers.add(made)
        return made

    def async_consumer(
        self,
        destination: Destination | Source | str,
        *,
        subscription: str = "",
        config: ConsumerConfig | None = None,
        hooks: Sequence[Hooks] = (),
        dedup: Deduplication = None,
        order: Order | None = None,
    ) -> AsyncConsumer:
        """Create an `AsyncConsumer`; it is not started. dedup: as of `consumer`."""
        made = AsyncConsumer(
            _BUS,
            destination,
            subscription=subscription,
            config=config,
            hooks=hooks,
            dedup=self._here(dedup, config),
            order=order,
            _wire=self._wire,
        )
        self._consumers.add(made)
        return made

    def replay(
        self,
        topic: Topic | str,
        *,
        since: Since = "first",
        until: Literal["now"] | Checkpoint | None = "now",
        on_gap: Literal["raise", "time"] = "raise",
        prefetch: int = PREFETCH,
        away_s: float | None = AWAY_S,
        key: str | None = None,
    ) -> Replay:
        """Create a `Replay` of a topic whose `Stream` is declared."""
        return Replay(
            _BUS,
            topic,
            since=since,
            until=until,
            on_gap=on_gap,
            prefetch=prefetch,
            away_s=away_s,
            key=key,
            _wire=self._wire,
        )

    def async_replay(
        self,
        topic: Topic | str,
        *,
        since: Since = "first",
        until: Literal["now"] | Checkpoint | None = "now",
        on_gap: Literal["raise", "time"] = "raise",
        prefetch: int = PREFETCH,
        away_s: float | None = AWAY_S,
        key: str | None = None,
    ) -> AsyncReplay:
        """Create an `AsyncReplay`, as `replay` does."""
        return AsyncReplay(
            _BUS,
            topic,
            since=since,
            until=until,
            on_gap=on_gap,
            prefetch=prefetch,
            away_s=away_s,
            key=key,
            _wire=self._wire,
        )

    def _here(self, dedup: Deduplication, config: ConsumerConfig | None) -> Deduplication:
        """Return the same settings with the store of this bus, where an address was given."""
        found = as_dedup(dedup, config or ConsumerConfig())
        if found is None:
            return False
        return replace(found, store=self.store) if isinstance(found.store, str | Secret) else found

    @functools.cached_property
    def store(self) -> FaultyStore:
        """The store of deduplication that stands for every address of one; a test may `lose` it."""
        from messagebus.testing.store import FaultyStore  # only where it is used

        return FaultyStore(self._brokers.clock)

    def declare(self, *wanted: Wanted | str) -> None:
        """Create a subscription, ``orders/billing``, or a queue, ``queue:jobs``. Raises TopologyMismatch."""
        for each in wanted:
            self._brokers.declare(parse_wanted(each) if isinstance(each, str) else each)

    def close(self) -> None:
        """Stop the blocking clients that still run, without a wait for answers."""
        self.thaw()
        for client in list(self._blocking):
            client.stop(0)

    def redrive(self, destination: Destination | Source | str, subscription: str = "") -> int:
        """Put parked messages back to the end of their queue, as `messagebus parked redrive` does.

        Their attempts start at 1 again. Returns the number of messages.
        """
        return self._brokers.redrive(_source(destination, subscription))

    # Time.
    def advance(self, seconds: float) -> None:
        """Move the clock forward: delays and retries become due, deadlines of open publishes pass."""
        ms = whole_ms(seconds)
        if ms < 0:
            raise ValueError(f"advance({seconds!r}): time does not go back")
        self._brokers.advance(ms)
        for client in [*self._publishers, *self._consumers]:
            _put_forward(client, ms)

    def freeze(self) -> None:
        """Freeze the brokers: they read and answer nothing, so backlogs fill and deadlines pass."""
        self._brokers.input.freeze()

    def thaw(self) -> None:
        """End `freeze`: the brokers continue."""
        with self._brokers.lock:
            self._brokers.input.thaw()
            self._brokers.tell()

    def slow(self, delay_s: float) -> None:
        """Delay confirms and deliveries by this many seconds of the clock of `advance`; 0 ends it."""
        self._brokers.slow_ms = whole_ms(delay_s)

    # Faults.
    def refuse_next(self, destination: Destination | Source | str, count: int = 1) -> None:
        """Refuse (nack) the next publishes there; for a subscription, the next copies for retries.

        A batch counts once.
        """
        self._brokers.store_next(_address(destination), 0, checked_most(count, "count"))

    def set_quota(self, source: Source | str, messages: int) -> None:
        """Have each broker refuse publishes while so many messages wait there; 0: no quota.

        As on RabbitMQ, deliveries without an answer do not count, and a topic's other subscriptions store the
        refused message.
        """
        queue, most = _source(source, "").amqp_queue, checked_most(messages, "messages")
        with self._brokers.lock:
            self._brokers.quotas.pop(queue, None)
            if most:
                self._brokers.quotas[queue] = most

    def duplicate_next(self, destination: Destination | Source | str, count: int = 1) -> None:
        """Store the next publishes to this destination twice, as after a lost confirm."""
        self._brokers.store_next(_address(destination), 2, checked_most(count, "count"))

    def lose_connection(self, broker: str | None = None) -> int:
        """End the connections to this broker, or to all. Returns their number, when the clients have noticed.

        A publish without a confirm is sent again or becomes unknown, as configured. Deliveries without an
        answer are redelivered, and later answers to them are stale. The clients reconnect at once.
        """
        return self._brokers.lose(broker)

    def stop_brokers(self, *names: str) -> None:
        """End the connections to these brokers and refuse new ones; without names, of all brokers.

        Queues keep their messages.
        """
        if unknown := [each for each in names if each not in self._brokers.all]:
            raise ValueError(f"no broker {unknown[0]!r}: one of {', '.join(self.brokers)}")
        gone = names or self.brokers
        # All at once: a client that lost the first would find the next one still there.
        self._brokers.stopped.update(gone)
        for name in gone:
            self._brokers.lose(name)

    def start_brokers(self, *names: str) -> None:
        """Accept connections again, of all brokers without names; the clients reconnect on their own."""
        self._brokers.stopped.difference_update(names or self.brokers)

    # Questions.
    def published(self, destination: Destination | str) -> list[Message]:
        """Return the messages confirmed at this destination, in order, without copies for retries."""
        return self._brokers.journal.messages(_destination(destination), "confirmed")

    def answers(
        self, destination: Destination | Source | str, subscription: str = ""
    ) -> list[tuple[str, str]]:
        """Return pairs of message id and answer (ack, requeue, reject, retry, park), in order of arrival."""
        return self._brokers.journal.answers(_source(destination, subscription))

    def waiting(self, destination: Destination | Source | str, subscription: str = "") -> int:
        """Return the number of messages that wait to be delivered, on all brokers together."""
        return self._brokers.waiting(_source(destination, subscription))

    def exists(self, source: Source) -> bool:
        """Return whether the subscription or queue exists."""
        return self._brokers.is_declared(source)

    def delayed(self) -> int:
        """Return the number of delayed messages and of retries in place; `advance` makes them due."""
        return self._brokers.delayed() + sum(len(ends_ms) for _, ends_ms in self._held())

    def due_in_s(self) -> float | None:
        """Return the seconds until the next delayed message or retry is due; None if there is none."""
        due_ms = [ms for _, ends_ms in self._held() for ms in ends_ms]
        delayed_ms = self._brokers.next_delayed_ms()
        if delayed_ms is not None:
            due_ms.append(delayed_ms)
        return min(due_ms) / 1000 if due_ms else None

    def parked(
        self, destination: Destination | Source | str, subscription: str = ""
    ) -> list[Message]:
        """Return the messages in the parking queue, on all brokers together."""
        return self._brokers.parked_messages(_source(destination, subscription))

    def undelivered(self) -> list[Message]:
        """Return the delayed messages that found no queue when they were due, on all brokers together."""
        return self._brokers.undelivered()

    # Waiting.
    def wait_handled(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until every message that has a consumer is answered. Raises AssertionError after timeout_s.

        It does not wait for messages without a consumer, such as before an app is started, for delayed ones
        and retries that are not due, and for rows of an outbox.
        """
        __tracebackhide__ = True
        ends_s = time.monotonic() + timeout_s
        with self._brokers.changed:
            while not (done := self._is_idle()) and (left_s := ends_s - time.monotonic()) > 0:
                self._brokers.changed.wait(min(left_s, LOOK_EVERY_S))
        if not done:
            hint = "" if asyncio._get_running_loop() is None else ON_LOOP
            raise AssertionError(_check_unhandled(self._brokers, timeout_s) + hint)

    async def handled(self, timeout_s: float = TIMEOUT_S) -> None:
        """Wait as `wait_handled` does, for asyncio."""
        __tracebackhide__ = True
        loop, idle = asyncio.get_running_loop(), asyncio.Event()

        def look() -> None:
            """Check under the lock."""
            if self._is_idle():
                loop.call_soon_threadsafe(idle.set)

        with self._brokers.watched(look):
            try:
                async with asyncio.timeout(timeout_s):
                    while not (idle.is_set() or self._is_idle()):
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(idle.wait(), LOOK_EVERY_S)
            except TimeoutError:
                raise AssertionError(_check_unhandled(self._brokers, timeout_s)) from None

    def _is_idle(self) -> bool:
        """Return whether every message that somebody consumes is answered, or rests for its next run."""
        open_work = self._brokers.open_work().values()
        return sum(map(sum, open_work)) == sum(count for count, _ in self._held())

    def _held(self) -> list[tuple[int, list[int]]]:
        """Return what the rests of each consumer keep back: `Pipeline.held`."""
        drivers = [each._driver for each in list(self._consumers) if each.status is RUNNING]
        return [driver.pipeline.held() for driver in drivers if driver is not None]

    # Assertions.
    def assert_published(
        self,
        destination: Destination | str,
        *,
        count: int | None = None,
        where: Callable[[Message], bool] | None = None,
        **fields: object,
    ) -> list[Message]:
        """Check that messages were published to this destination, and return them.

        count: their exact number; None: one or more. where: a function; only messages for which it returns
        True count. fields: expected values of ``body``, ``text``, ``json``, ``key``, ``headers`` or another
        field of `Message`; only equal messages count.
        Raises AssertionError, whose text lists what was published.
        """
        __tracebackhide__ = True
        return _check_published(self._brokers, _destination(destination), count, where, fields)

    def assert_answered(
        self,
        destination: Destination | Source | str,
        subscription: str = "",
        *,
        answer: str = "ack",
        count: int | None = None,
    ) -> list[str]:
        """Check that deliveries had this answer, and return their message ids. Raises AssertionError."""
        __tracebackhide__ = True
        source = _source(destination, subscription)
        return _check_answered(self._brokers, source, answer, count)

    def assert_parked(
        self,
        destination: Destination | Source | str,
        subscription: str = "",
        *,
        count: int | None = None,
        reason: str = "",
    ) -> list[Message]:
        """Check that messages were parked, and return them. Raises AssertionError.

        reason: only messages count whose reason or exception, as `messagebus parked show` prints them,
        contains this text.
        """
        __tracebackhide__ = True
        return _check_parked(self._brokers, _source(destination, subscription), count, reason)


def _destination(destination: Destination | str) -> Destination:
    return parse_destination(destination) if isinstance(destination, str) else destination


def _source(destination: Destination | Source | str, subscription: str) -> Source:
    """Return the source, also of ``orders/billing`` in one text."""
    if isinstance(destination, str) and "/" in destination and not subscription:
        found = parse_wanted(destination)
        assert isinstance(found, Subscription)
        return found
    return as_source(destination, subscription)


def _address(destination: Destination | Source | str) -> str:
    """Return the exchange of a topic, or the queue."""
    if isinstance(destination, str):
        wanted = parse_wanted(destination)
        return wanted.exchange if isinstance(wanted, Topic) else wanted.amqp_queue
    return destination.exchange if isinstance(destination, Topic) else destination.amqp_queue


def _put_forward(client: Publisher | AsyncPublisher | Consumer | AsyncConsumer, ms: int) -> None:
    """Advance a client's clock.

    An asyncio client that belongs to another thread's loop has it advanced one turn of that loop later.
    """
    driver: Drivers | ConsumeDriver | None = (
        client._drivers if isinstance(client, Publisher | AsyncPublisher) else client._driver
    )
    if client.status is not RUNNING or driver is None:
        return
    rests = driver.pipeline if isinstance(driver, ConsumeDriver) else driver
    put_forward = functools.partial(rests.put_forward, ms)

    if isinstance(client, Publisher | Consumer):
        noticed = threading.Event()

        def notice() -> None:
            put_forward()
            noticed.set()

        client._running()[0].call_soon(notice)
        noticed.wait(NOTICE_TIMEOUT_S)
    elif not client._loop.is_closed():
        if client._loop is _running_loop():
            put_forward()
        else:
            client._loop.call_soon_threadsafe(put_forward)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# Assertions; their failures say what did happen.
# Entries shown in a failure: enough to see what is wrong.
SHOWN_MAX = 10
BODY_SHOWN_MAX = 120


def _check_published(
    brokers: MemoryBrokers,
    destination: Destination,
    count: int | None,
    where: Callable[[Message], bool] | None,
    fields: Mapping[str, object],
) -> list[Message]:
    """Return the matching messages. Raises AssertionError unless there are as many as wanted, TypeError."""
    __tracebackhide__ = True
    there = brokers.journal.messages(destination, "confirmed")
    found = [each for each in there if _matches(each, fields) and (where is None or where(each))]
    if _enough(found, count):
        return found
    wanted = "".join(f" {name}={value!r}" for name, value in fields.items())
    told = [
        f"{_counted(count)}{wanted or ' message(s)'} wanted on {destination}, {len(found)} found"
    ]
    told += _listed(f"published to {destination}", [_line(each) for each in there])
    for outcome, why in (
        ("unroutable", f"no subscription: declare({_a_reader(destination)!r})"),
        ("refused", "as refuse_next says"),
    ):
        if lost := len(brokers.journal.messages(destination, outcome)):
            told.append(f"{lost} more {outcome}: {why}")
    if not there:
        told += _listed("published elsewhere", _elsewhere(brokers))
    raise AssertionError("\n".join(told))


def _check_answered(
    brokers: MemoryBrokers, source: Source, answer: str, count: int | None
) -> list[str]:
    """Return the ids of deliveries with this answer. Raises AssertionError unless as many as wanted."""
    __tracebackhide__ = True
    if answer not in ANSWERS:
        raise ValueError(f"answer {answer!r}: one of {', '.join(ANSWERS)}")
    there = brokers.journal.answers(source)
    found = [message_id for message_id, given in there if given == answer]
    if _enough(found, count):
        return found
    told = [f"{_counted(count)} {answer}(s) wanted from {source}, {len(found)} found"]
    told += _listed("answers", [f"{given} {message_id}" for message_id, given in there])
    told.append(_state(brokers, source))
    raise AssertionError("\n".join(told))


ANSWERS = ("ack", "requeue", "reject", "retry", "park")


def _check_parked(
    brokers: MemoryBrokers, source: Source, count: int | None, reason: str
) -> list[Message]:
    """Return the parked messages. Raises AssertionError unless there are as many as wanted."""
    __tracebackhide__ = True
    parked = []
    for _, stored in brokers.parked(source):
        facts = read_parked_facts(stored.raw)
        why = ": ".join(filter(None, (facts.reason, facts.exception)))
        parked += [(each, why) for each in messages_of(stored.raw, stored.body)]
    found = [each for each, why in parked if reason in why]
    if _enough(found, count):
        return found
    because = f" because of {reason!r}" if reason else ""
    told = [f"{_counted(count)} parked message(s) wanted of {source}{because}, {len(found)} found"]
    told += _listed("parked", [f"{_line(each)} ({why})" for each, why in parked])
    answers = [f"{given} {message_id}" for message_id, given in brokers.journal.answers(source)]
    told += _listed("answers", answers)
    told.append(_state(brokers, source))
    raise AssertionError("\n".join(told))


def _check_unhandled(brokers: MemoryBrokers, timeout_s: float) -> str:
    """Return the error's text when not everything was answered in time."""
    told = [f"not everything was answered within {timeout_s:g} s"]
    for queue, (ready, unacked) in sorted(brokers.open_work().items()):
        told.append(f"  {queue}: {ready} waiting, {unacked} delivered without an answer")
    return "\n".join(told)


# Inside.
def _enough(items: Sequence[object], count: int | None) -> bool:
    return bool(items) if count is None else len(items) == count


def _counted(count: int | None) -> str:
    return "at least 1" if count is None else str(count)


def _matches(message: Message, fields: Mapping[str, object]) -> bool:
    return all(_field(message, name) == value for name, value in fields.items())


def _field(message: Message, name: str) -> object:
    try:
        match name:
            case "text":
                return message.as_text()
            case "json":
                return message.as_json()
            case "headers":
                return dict(message.headers)
    except WrongPayload:
        return None
    if name not in Message.__slots__:
        raise TypeError(f"{name!r} is no field of a message; there are {', '.join(FIELDS)}")
    return getattr(message, name)


FIELDS = ("text", "json", *Message.__slots__)


def _line(message: Message) -> str:
    body = repr(message.body[:BODY_SHOWN_MAX])
    more = " ..." if len(message.body) > BODY_SHOWN_MAX else ""
    key = f" key={message.key!r}" if message.key else ""
    headers = f" headers={dict(message.headers)!r}" if message.headers else ""
    return f"{message.message_id}{key}{headers} {body}{more}"


def _listed(title: str, lines: list[str]) -> list[str]:
    if not lines:
        return [f"{title}: nothing"]
    shown = [f"  {line}" for line in lines[:SHOWN_MAX]]
    more = [f"  ... and {len(lines) - SHOWN_MAX} more"] if len(lines) > SHOWN_MAX else []
    return [f"{title}: {len(lines)}", *shown, *more]


def _elsewhere(brokers: MemoryBrokers) -> list[str]:
    return [
        f"{exchange.removeprefix('mb.topic/').replace('mb.queue/', 'queue:')}: {count} {outcome}"
        for (exchange, outcome), count in sorted(brokers.journal.destinations().items())
    ]


def _a_reader(destination: Destination) -> str:
    return f"{destination}/test"


def _state(brokers: MemoryBrokers, source: Source) -> str:
    name = str(source) if isinstance(source, Subscription) else source.name
    return (
        f"{name}: {brokers.waiting(source)} waiting, {brokers.unacked(source)} without an answer, "
        f"{len(brokers.parked(source))} parked; {brokers.delayed()} delayed on the whole bus"
    )
