"""Brokers in memory: exchanges, queues and bindings as RabbitMQ has them, and a clock that is moved.

They are declared from the same description as real brokers (`messagebus.topology`), so
routing, delays, parking and limits follow from it. Thread-safe: one lock for all brokers of a bus.
`MemoryLink`s call in, and are called under the lock, where they only post to their loops.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from messagebus._io.amqp.copy_headers import dead_lettered, redriven
from messagebus._io.amqp.properties import (
    KEY_HEADER,
    read_headers,
    read_message_id,
    read_parked_facts,
)
from messagebus.core.homes import home_of, read_homes, segment_of
from messagebus.core.parking import read_ttl_ms
from messagebus.destination import (
    SEGMENTS,
    UNDELIVERED_QUEUE,
    Source,
    Stream,
    Subscription,
    Topic,
)
from messagebus.errors import NOT_FOUND, TopologyMismatch
from messagebus.message import Message
from messagebus.testing.journal import Journal, copy_of, due_key_of, messages_of
from messagebus.testing.queues import NEVER_MS, Arrived, MemoryQueue, MemoryStream, Stored, Taker
from messagebus.topology import (
    DUE,
    LADDER,
    Declarations,
    Options,
    Wanted,
    against_partitions,
    declarations,
    differences,
    options_of,
    segment_declarations,
)

__all__ = ["MemoryBroker", "MemoryBrokers", "Route", "Site"]


class Site(Protocol):
    """Link as its broker sees it. Called under the lock, on any thread."""

    taker: Taker | None
    published: int

    def confirm(self, answers: list[tuple[int, bool, bool]]) -> None: ...

    def send_back(self, exchange: str, key: str, message_id: str) -> None: ...

    def end(self, code: int, reason: str) -> None: ...

    def lose(self, reason: str) -> Callable[[], None]:
        """Cut the connection. Returns a function that makes its client notice, called without the lock."""


class Route:
    """Exchange and routing key of one broker, and the queues that they lead to."""

    __slots__ = ("exchange", "is_copy", "key", "queues", "version")

    def __init__(self, exchange: str, key: str) -> None:
        self.exchange, self.key = exchange, key
        self.is_copy = not exchange or exchange.startswith("mb.delay/")
        self.queues: list[MemoryQueue] = []
        self.version = -1


class _Exchange:
    """Exchange. alternate: the name of the exchange for messages that find no queue here."""

    def __init__(self, kind: str, alternate: str) -> None:
        self.is_fanout, self.alternate = kind == "fanout", alternate
        self.bindings: list[tuple[str, _Exchange | MemoryQueue]] = []

    def bind(self, key: str, target: _Exchange | MemoryQueue) -> None:
        if (key, target) not in self.bindings:
            self.bindings.append((key, target))

    def queues(self, key: str) -> list[MemoryQueue]:
        found: list[MemoryQueue] = []
        for bound, target in self.bindings:
            if self.is_fanout or bound == key:
                found += target.queues(key) if isinstance(target, _Exchange) else [target]
        return list(dict.fromkeys(found))


class MemoryBroker:
    """Broker in memory. Its bus holds the lock."""

    def __init__(self, name: str, bus: MemoryBrokers) -> None:
        self.name, self._bus = name, bus
        self.queues: dict[str, MemoryQueue] = {}
        self._exchanges: dict[str, _Exchange] = {}
        self._version = 0
        self.sites: set[Site] = set()
        self._declare(LADDER)

    # What exists.
    def declare(self, wanted: Wanted) -> None:
        self._declare(declarations(wanted))

    def _declare(self, parts: Declarations) -> None:
        for exchange in parts.exchanges:
            made = _Exchange(exchange.type, exchange.alternate)
            self._exchanges.setdefault(exchange.name, made)
        for spec in parts.queues:
            if spec.name not in self.queues:
                is_stream = spec.arguments["x-queue-type"] == "stream"
                self.queues[spec.name] = (MemoryStream if is_stream else MemoryQueue)(
                    spec.name,
                    spec.arguments,
                    delivery_limit=self._bus.delivery_limit,
                    dead_letter=self._dead_letter,
                    clock=self._bus.clock,
                )
        for binding in parts.bindings:
            target: _Exchange | MemoryQueue = (
                self._exchanges[binding.queue]
                if binding.to_exchange
                else self.queues[binding.queue]
            )
            if source := self._exchanges.get(binding.exchange):  # nobody speaks MQTT here
                source.bind(binding.routing_key, target)
        self._version += 1

    def delete(self, queue: MemoryQueue) -> None:
        self.queues.pop(queue.name, None)
        for exchange in self._exchanges.values():
            exchange.bindings = [each for each in exchange.bindings if each[1] is not queue]
        self._version += 1

    def has_exchange(self, name: str) -> bool:
        return not name or name in self._exchanges

    def _find(self, route: Route) -> list[MemoryQueue]:
        route.version = self._version
        if not route.exchange:
            queue = self.queues.get(route.key)
            route.queues = [] if queue is None else [queue]
        else:
            exchange = self._exchanges.get(route.exchange)
            route.queues = []
            while exchange is not None and not route.queues:
                route.queues = exchange.queues(route.key)
                exchange = self._exchanges.get(exchange.alternate)
        return route.queues

    # Traffic.
    def carry_out(self, site: Site, orders: list[tuple[Any, ...]]) -> None:
        """Carry out the orders of a link: publishes, or answers to deliveries."""
        if orders[0][0].__class__ is not Route:
            self._answer(site, orders)
            return
        bad: dict[int, str] = {}
        places, version, faults = self._bus.places, self._version, self._bus.copies_wanted
        quotas = self._bus.quotas
        touched: dict[MemoryQueue, None] = {}
        for place, (route, raw, body) in enumerate(orders):
            queues = route.queues if route.version == version else self._find(route)
            if not queues or faults or route.is_copy or quotas:
                count = self._odd(site, route, raw, bad, place)
                if not count:
                    continue
                if quotas:
                    queues = self._with_room(route.queues, bad, place)
            else:
                count = 1
            for queue in queues:
                for _ in range(count):
                    queue.put(Stored(next(places), route, raw, body))
                touched[queue] = None
        self._bus.journal.published(orders, bad)
        for queue in touched:
            queue.hand_out()
        self._confirm(site, len(orders), bad)

    def _odd(self, site: Site, route: Route, raw: bytes, bad: dict[int, str], place: int) -> int:
        """Return how often to store a publish that finds no queue, meets a fault, or is a copy."""
        if not route.queues:
            bad[place] = "unroutable"
            if not self.has_exchange(route.exchange):
                site.end(NOT_FOUND, f"NOT_FOUND - no exchange '{route.exchange}'")
            site.send_back(route.exchange, route.key, read_message_id(raw))
            return 0
        count = self._bus.copies_of(route.exchange, route.key)
        if not count:
            bad[place] = "refused"
        elif route.is_copy and (copied := copy_of(route.exchange, route.key, raw)) is not None:
            self._bus.journal.copied(*copied, raw)
        return count

    def _with_room(
        self, queues: list[MemoryQueue], bad: dict[int, str], place: int
    ) -> list[MemoryQueue]:
        """Return the queues below their quotas. One that is full refuses the publish; the others store it."""
        quotas = self._bus.quotas
        left = [
            each
            for each in queues
            if each.name not in quotas or len(each.ready) < quotas[each.name]
        ]
        if len(left) < len(queues):
            bad[place] = "refused"
        return left

    def _confirm(self, site: Site, count: int, bad: dict[int, str]) -> None:
        first, site.published = site.published + 1, site.published + count
        if "refused" in bad.values():
            site.confirm([(first + n, False, bad.get(n) != "refused") for n in range(count)])
        else:
            site.confirm([(site.published, True, True)])

    def _answer(self, site: Site, orders: list[tuple[Any, ...]]) -> None:
        taker = site.taker
        if taker is None:
            return
        queue, journal = taker.queue, self._bus.journal
        for kind, tag, flag in orders:
            if kind == "ack":
                journal.answered(_known_as(queue), "ack", queue.ack(taker, tag, flag))
            elif (given_back := queue.nack(taker, tag, flag)) is not None:
                journal.answered(_known_as(queue), "requeue" if flag else "reject", [given_back])
        queue.hand_out()

    def _dead_letter(self, queue: MemoryQueue, stored: Stored, reason: str) -> None:
        exchange = queue.arguments.get("x-dead-letter-exchange")
        if exchange is None:
            return
        came = stored.address
        route = Route(
            str(exchange), str(queue.arguments.get("x-dead-letter-routing-key", came.key))
        )
        raw = dead_lettered(
            stored.raw, reason=reason, queue=queue.name, exchange=came.exchange, key=came.key
        )
        # On RabbitMQ consumers do this by the clock of their host, which stands still here.
        ttl_ms = read_ttl_ms(read_headers(raw)) if exchange == DUE else None
        for target in self._find(route):
            kept = None if target.name == UNDELIVERED_QUEUE else ttl_ms
            target.put(Stored(next(self._bus.places), route, raw, stored.body), ttl_ms=kept)
            target.hand_out()

    # Links.
    def attach(
        self,
        site: Site,
        queue: str,
        prefetch: int,
        bring: Callable[[list[Arrived]], None],
        offset: object = "next",
    ) -> None:
        """Let a link consume. offset: the place in a stream."""
        found = self.queues[queue]
        if site.taker is not None and site.taker.queue is found:
            site.taker.again(prefetch)
        else:
            site.taker = Taker(found, prefetch, bring)
        if isinstance(found, MemoryStream):
            found.read_from(site.taker, offset)
        found.attach(site.taker)

    def detach(self, site: Site) -> None:
        """End its consuming; unanswered deliveries are given back."""
        taker, site.taker = site.taker, None
        if taker is not None:
            taker.queue.detach(taker)

    # Time.
    def due_ms(self) -> int:
        return min((min(q.due_ms(), q.gone_ms()) for q in self.queues.values()), default=NEVER_MS)

    def expire(self, now_ms: int) -> None:
        for queue in list(self.queues.values()):
            if queue.due_ms() <= now_ms:
                queue.expire()
                queue.hand_out()
            if queue.gone_ms() <= now_ms:
                self.delete(queue)


def _known_as(queue: MemoryQueue) -> str:
    """Return the queue that its subscription has without partitions: answers are told by that."""
    if not queue.name.startswith(SEGMENTS):
        return queue.name
    return f"mb.sub/{queue.name.removeprefix(SEGMENTS).rpartition('/')[0]}"


class BrokersInput:
    """Orders of links to the brokers: carried out at once, or kept in order while the brokers are frozen."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self.is_frozen = False
        self._unread: list[Callable[[], None]] = []

    def do(self, action: Callable[[], None]) -> None:
        """Carry this out behind all earlier orders: at once, unless the brokers are frozen."""
        with self._lock:
            if self.is_frozen:
                self._unread.append(action)
            else:
                action()

    def freeze(self) -> None:
        with self._lock:
            self.is_frozen = True

    def thaw(self) -> None:
        """Carry out the kept orders. The caller calls `MemoryBrokers.tell`."""
        with self._lock:
            self.is_frozen = False
            unread, self._unread = self._unread, []
            for action in unread:
                action()


class MemoryBrokers:
    """All brokers of a bus. names: of the brokers, in order.

    delivery_limit: how often a delivery may come back before it is parked, as an operator's policy
    would say; None: as declared.
    """

    def __init__(self, names: Sequence[str], *, delivery_limit: int | None = None) -> None:
        self.names = tuple(names)
        self.delivery_limit = delivery_limit
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.journal = Journal(self.lock)
        self.input = BrokersInput(self.lock)
        self.places = itertools.count()
        self._wanted: dict[str, Wanted] = {}
        self._turns = itertools.cycle(self.names)
        self._now_ms = 0
        self.all = {name: MemoryBroker(name, self) for name in names}
        self._later: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.slow_ms = 0
        self.copies_wanted: dict[str, list[int]] = {}
        """Exchange or queue -> how many copies of each of the next publishes are stored."""
        self.quotas: dict[str, int] = {}
        """Queue -> how many ready messages it takes on each broker, as RabbitMQ counts them."""
        self.stopped: set[str] = set()
        """Brokers that refuse new links."""
        self._watchers: list[Callable[[], None]] = []

    def balance(self) -> MemoryBroker:
        """Return the broker that the next link leads to: one that runs, if there is one."""
        with self.lock:
            for _ in self.names:
                name = next(self._turns)
                if name not in self.stopped:
                    break
            return self.all[name]

    def declare(self, wanted: Wanted) -> Options:
        """Declare it on every broker and return its options. Raises TopologyMismatch when they differ."""
        with self.lock:
            known = self._wanted.get(str(wanted))
            if known is not None and (told := differences(wanted, options_of(known))):
                raise TopologyMismatch(told)
            wanted = self._as_partitioned(wanted)
            found = self._wanted.setdefault(str(wanted), wanted)
            for broker in self.all.values():
                broker.declare(found)
            options = {**options_of(found), **self._declare_segments(found)}
        limits = [each for each in (options.get("delivery_limit"), self.delivery_limit) if each]
        # Clients keep to the limit of the whole bus as to one of the subscription's own.
        return {**options, "delivery_limit": min(limits)} if limits else options

    def _as_partitioned(self, wanted: Wanted) -> Wanted:
        """Return a partitioned topic with its homes, and a subscription with its topic's partitions."""
        if isinstance(wanted, Topic) and wanted.partitions:
            return replace(wanted, homes=" ".join(self.names))
        if isinstance(wanted, Subscription | Stream):
            topic = self._wanted.get(str(wanted.topic))
            if isinstance(topic, Topic) and topic.partitions:
                return replace(wanted, topic=topic)
            of_topic = 0 if topic else None
            if told := against_partitions(wanted, wanted.topic.partitions, of_topic):
                raise TopologyMismatch(told)
        return wanted

    def _declare_segments(self, wanted: Wanted) -> Options:
        """Declare the segments of a topic, or their queues of a subscription. Returns the homes."""
        topic = wanted.topic if isinstance(wanted, Subscription | Stream) else wanted
        if not isinstance(topic, Topic) or not topic.partitions:
            return {}
        for partition, home in enumerate(read_homes(topic.homes, topic.partitions)):
            of = wanted if isinstance(wanted, Subscription | Stream) else topic
            segment = segment_of(partition, home)
            self.all[home.broker]._declare(segment_declarations(of, segment))
        return {"homes": topic.homes}

    def is_declared(self, source: Source) -> bool:
        with self.lock:
            return str(source) in self._wanted

    def plain_names(self) -> list[str]:
        """Return the names of what takes no batches."""
        with self.lock:
            return sorted(
                name for name, each in self._wanted.items() if getattr(each, "plain", False)
            )

    def delete(self, source: Source) -> None:
        """Delete it on every broker, with its messages."""
        with self.lock:
            self._wanted.pop(str(source), None)
            for broker in self.all.values():
                if queue := broker.queues.get(source.amqp_queue):
                    broker.delete(queue)

    # Traffic.
    def write(self, broker: MemoryBroker, site: Site, orders: list[tuple[Any, ...]]) -> None:
        with self.lock:
            self.input.do(lambda: broker.carry_out(site, orders))
            self.tell()

    def tell(self) -> None:
        """Tell all waiting threads and watchers of a change. The caller holds the lock."""
        self.changed.notify_all()
        for look in self._watchers:
            look()

    def bring(self, action: Callable[[], None]) -> None:
        """Do this for a broker, now or after its delay. The caller holds the lock."""
        if self.slow_ms:
            due_ms = self._now_ms + self.slow_ms
            heapq.heappush(self._later, (due_ms, next(self._order), action))
        else:
            action()

    # Time.
    def clock(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        """Let time pass; events that become due happen in order."""
        with self.lock:
            until_ms = self._now_ms + ms
            while (due_ms := self._due_ms()) <= until_ms:
                self._now_ms = max(self._now_ms, due_ms)
                while self._later and self._later[0][0] <= self._now_ms:
                    heapq.heappop(self._later)[2]()
                for broker in self.all.values():
                    broker.expire(self._now_ms)
            self._now_ms = until_ms
            self.tell()

    def _due_ms(self) -> int:
        later_ms = self._later[0][0] if self._later else NEVER_MS
        return min(later_ms, *(broker.due_ms() for broker in self.all.values()))

    # Faults.
    def store_next(self, exchange: str, copies: int, count: int) -> None:
        """Store this number of copies of each of the next publishes there; 0: refuse them."""
        with self.lock:
            self.copies_wanted.setdefault(exchange, []).extend([copies] * count)

    def lose(self, name: str | None) -> int:
        """Cut the links to a broker, or to all; return when their clients know."""
        with self.lock:
            brokers = self.all.values() if name is None else [self.all[name]]
            sites = [site for broker in brokers for site in broker.sites]
            notices = [site.lose("connection lost") for site in sites]
            self.tell()
        for notice in notices:
            notice()
        return len(notices)

    def copies_of(self, exchange: str, key: str) -> int:
        """Return how many copies of a publish to store. The caller holds the lock."""
        target = key if not exchange or exchange.startswith("mb.delay/") else due_key_of(exchange)
        waiting = self.copies_wanted.get(target)
        if not waiting:
            return 1
        copies = waiting.pop(0)
        if not waiting:
            del self.copies_wanted[target]
        return copies

    # Questions.
    def waiting(self, source: Source) -> int:
        with self.lock:
            return sum(len(queue.ready) for queue in self._queues(source.amqp_queue))

    def unacked(self, source: Source) -> int:
        with self.lock:
            return sum(queue.unacked for queue in self._queues(source.amqp_queue))

    def parked(self, source: Source) -> list[tuple[str, Stored]]:
        """Return the parked messages, each with its broker."""
        with self.lock:
            return [
                (broker.name, stored)
                for broker in self.all.values()
                if (queue := broker.queues.get(source.parking_queue)) is not None
                for stored in [*queue.ready, *(s for t in queue.takers for s in t.unacked.values())]
            ]

    def redrive(self, source: Source) -> int:
        """Put the parked messages back to the end of their queues. Returns their number."""
        with self.lock:
            declared, count = self._wanted.get(str(source)), 0
            known = declared if isinstance(declared, Subscription) else source
            for broker in self.all.values():
                if parking := broker.queues.get(source.parking_queue):
                    for stored in parking.take_all():
                        self._put_again(broker, known, stored)
                        count += 1
            self.tell()
        return count

    def _put_again(self, broker: MemoryBroker, source: Source, stored: Stored) -> None:
        name = source.amqp_queue
        if isinstance(source, Subscription) and source.has_segments:
            homes = read_homes(source.topic.homes, source.topic.partitions)
            partition, home = home_of(read_headers(stored.raw).get(KEY_HEADER), homes)
            broker = self.all[home.broker]
            name = source.segment_queue(segment_of(partition, home))
        raw, queue = redriven(stored.raw, read_parked_facts(stored.raw)), broker.queues[name]
        queue.put(Stored(next(self.places), Route("", name), raw, stored.body))
        queue.hand_out()

    def undelivered(self) -> list[Message]:
        """Return the delayed messages that found no queue when they were due."""
        with self.lock:
            return [
                message
                for queue in self._queues(UNDELIVERED_QUEUE)
                for stored in queue.ready
                for message in messages_of(stored.raw, stored.body)
            ]

    def _queues(self, name: str) -> list[MemoryQueue]:
        """Return the queues of this name, and those of its partitions."""
        return [
            queue
            for broker in self.all.values()
            for queue in broker.queues.values()
            if _known_as(queue) == name
        ]

    def open_work(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of waiting and unanswered messages by queue that is consumed from."""
        found: dict[str, tuple[int, int]] = {}
        with self.lock:
            for broker in self.all.values():
                for queue in broker.queues.values():
                    ready, unacked = len(queue.ready), queue.unacked
                    if (queue.takers and ready) or unacked:
                        before = found.get(queue.name, (0, 0))
                        found[queue.name] = (before[0] + ready, before[1] + unacked)
        return found

    def delayed(self) -> int:
        """Return how many delayed messages still wait."""
        with self.lock:
            return sum(
                len(queue.ready)
                for broker in self.all.values()
                for queue in broker.queues.values()
                if queue.ttl_ms is not None
            )

    def next_delayed_ms(self) -> int | None:
        """Return how long the first delayed message still waits; None without one."""
        with self.lock:
            due_ms = [
                queue.due_ms() - self._now_ms
                for broker in self.all.values()
                for queue in broker.queues.values()
                if queue.ttl_ms is not None and queue.ready
            ]
        return min(due_ms, default=None)

    @contextlib.contextmanager
    def watched(self, look: Callable[[], None]) -> Iterator[None]:
        """Call this now and after each change, under the lock."""
        with self.lock:
            self._watchers.append(look)
            look()
        try:
            yield
        finally:
            with self.lock:
                self._watchers.remove(look)

    def parked_messages(self, source: Source) -> list[Message]:
        return [m for _, each in self.parked(source) for m in messages_of(each.raw, each.body)]
