"""Publishers and consumers of the real library, in threads, that record the fate of each id.

    with publishing(bus, "orders") as load:
        ...break something...
    got = drain(bus, "orders", "billing", expected=load.confirmed_ids())
    assert load.confirmed_ids() <= got.keys()

Loss is counted by ids: a message that was confirmed and that no consumer received. Times are
`time.monotonic_ns()` of this machine.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from messagebus import (
    BusConfig,
    Consumer,
    ConsumerConfig,
    Delivery,
    Outcome,
    Published,
    Publisher,
    PublisherConfig,
    PublisherStats,
)
from messagebus.destination import Destination, Queue, parse_destination
from tests.support.eventually import FACTOR, patience

# Publishes of one publisher under way at the same time, and how often it starts one. Four of them
# leave two thirds of a slow core to the brokers, and still hit every window of some milliseconds.
IN_FLIGHT = 16
RATE_PER_S = 80
POLL_S = 0.05
READY_WITHIN_S = STOP_WITHIN_S = 180.0
# After that long without a delivery nothing more is expected to come: consumers redial within 5 s.
IDLE_S = 8.0


@dataclass(frozen=True, slots=True)
class Sent:
    """Publish of a load. started_ns: before the library was called. ended_ns: when its outcome was known."""

    started_ns: int
    published: Published
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """Delivery of a load."""

    message_id: str
    broker: str
    epoch: int
    redelivered: bool
    received_ns: int


def created(text: str) -> Destination:
    """Parse a destination; the first publish to it makes a queue."""
    found = parse_destination(text)
    return replace(found, create=True) if isinstance(found, Queue) else found


class Load:
    """Load of some publishers, each in a thread of its own, until `stop`."""

    def __init__(
        self,
        bus: BusConfig,
        destination: str,
        *,
        publishers: int,
        rate_per_s: float,
        config: PublisherConfig,
        body_bytes: int,
    ) -> None:
        self._destination, self._interval_s = created(destination), 1 / rate_per_s
        self._body = b"x" * body_bytes
        self.publishers = [Publisher(bus, config) for _ in range(publishers)]
        self._threads = [threading.Thread(target=self._run, args=(p,)) for p in self.publishers]
        self._stopping = threading.Event()
        self._sent: list[Sent] = []  # appended to by many threads: one atomic step
        self.submitted = 0
        self.left_open = 0
        self.last_stats: list[PublisherStats] = []

    def start(self) -> None:
        """Start; return when every publisher has a link."""
        for publisher in self.publishers:
            publisher.start(require="one", timeout_s=READY_WITHIN_S * FACTOR)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; return when every publish has its outcome."""
        self._stopping.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for publisher in self.publishers:
            if publisher.status.value == "running":
                publisher.flush(STOP_WITHIN_S)
                self.last_stats.append(publisher.stats())
            self.left_open += publisher.stop()

    def _run(self, publisher: Publisher) -> None:
        slots = threading.Semaphore(IN_FLIGHT)
        while not self._stopping.wait(self._interval_s):
            while not slots.acquire(timeout=POLL_S):
                if self._stopping.is_set():
                    return
            self._submit(publisher, slots)

    def _submit(self, publisher: Publisher, slots: threading.Semaphore) -> None:
        started_ns = time.monotonic_ns()
        future = publisher.submit(self._destination, self._body)
        self.submitted += 1  # under the interpreter's lock a few may be missed: never compared

        def done(_future: object) -> None:
            self._sent.append(Sent(started_ns, future.result(), time.monotonic_ns()))
            slots.release()

        future.add_done_callback(done)

    @property
    def sent(self) -> list[Sent]:
        """The publishes that have ended."""
        return list(self._sent)

    def confirmed(self, *, since_ns: int = 0) -> list[Sent]:
        """Return the confirmed publishes that started at since_ns or later."""
        return [
            sent
            for sent in self.sent
            if sent.published.outcome is Outcome.CONFIRMED and sent.started_ns >= since_ns
        ]

    def confirmed_ids(self, *, since_ns: int = 0) -> set[str]:
        return {sent.published.message_id for sent in self.confirmed(since_ns=since_ns)}

    def confirmed_by(self, broker: str, *, since_ns: int = 0) -> int:
        """Return how many publishes this broker confirmed."""
        return sum(s.published.broker == broker for s in self.confirmed(since_ns=since_ns))

    def outcomes(self) -> Counter[Outcome]:
        return Counter(sent.published.outcome for sent in self.sent)

    @property
    def links_lost(self) -> int:
        """The links lost over all publishers; complete after `stop`."""
        stats = self.last_stats or [publisher.stats() for publisher in self.publishers]
        return sum(each.links_lost for each in stats)


@contextmanager
def publishing(
    bus: BusConfig,
    destination: str,
    *,
    publishers: int = 4,
    rate_per_s: float = RATE_PER_S,
    config: PublisherConfig | None = None,
    body_bytes: int = 200,
) -> Iterator[Load]:
    """Publish while the block runs; every outcome is known when it ends.

    By default links are renewed every second, so that every broker that takes publishes gets some.
    """
    load = Load(
        bus,
        destination,
        publishers=publishers,
        rate_per_s=rate_per_s,
        config=config or PublisherConfig(connection_lifetime_s=1),
        body_bytes=body_bytes,
    )
    try:
        load.start()
        yield load
    finally:
        load.stop()


class Consuming:
    """Consumer in a thread that acks everything and remembers it."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.arrivals: list[Arrival] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        for delivery in self.consumer:
            self.arrivals.append(_arrival(delivery))
            self.consumer.ack(delivery)

    def counts(self) -> Counter[str]:
        """Return message id -> how often it was delivered."""
        return Counter(arrival.message_id for arrival in list(self.arrivals))

    def wait_for(self, expected: Collection[str], *, idle_s: float = IDLE_S) -> set[str]:
        """Wait until all of these were delivered, or nothing came for idle_s. Returns the missing."""
        missing = set(expected)
        progress = time.monotonic()
        looked_at = 0
        while missing and time.monotonic() - progress < idle_s * patience():
            arrivals = self.arrivals[looked_at:]
            looked_at += len(arrivals)
            missing -= {arrival.message_id for arrival in arrivals}
            if arrivals:
                progress = time.monotonic()
            time.sleep(POLL_S)
        return missing

    def longest_gap_s(self, begin_ns: int, end_ns: int) -> float:
        """Return the longest time without a delivery between two moments."""
        times = [a.received_ns for a in list(self.arrivals) if begin_ns <= a.received_ns <= end_ns]
        edges = [begin_ns, *times, end_ns]
        return max(b - a for a, b in itertools.pairwise(edges)) / 1e9

    def epochs(self) -> Mapping[str, int]:
        """Return broker -> number of the last link to it that delivered; 1 while the first was never lost."""
        found: dict[str, int] = {}
        for arrival in list(self.arrivals):
            found[arrival.broker] = max(found.get(arrival.broker, 0), arrival.epoch)
        return found

    def stop(self) -> int:
        left = self.consumer.stop()
        self._thread.join()
        return left


def _arrival(delivery: Delivery) -> Arrival:
    return Arrival(
        delivery.message_id,
        delivery.broker,
        delivery.receipt.epoch,
        delivery.redelivered,
        delivery.received_ns,
    )


@contextmanager
def consuming(
    bus: BusConfig,
    destination: str,
    subscription: str = "",
    *,
    config: ConsumerConfig | None = None,
    require: str | None = "all",
) -> Iterator[Consuming]:
    """Consume and ack while the block runs."""
    consumer = Consumer(bus, destination, subscription=subscription, config=config)
    consumer.start(require=require, timeout_s=READY_WITHIN_S * FACTOR)
    work = Consuming(consumer)
    try:
        yield work
    finally:
        work.stop()


def drain(
    bus: BusConfig,
    destination: str,
    subscription: str = "",
    *,
    expected: Collection[str],
    idle_s: float = IDLE_S,
    also: Callable[[], None] = lambda: None,
) -> Counter[str]:
    """Consume until all expected ids came or nothing came for idle_s. Returns ids with counts."""
    with consuming(bus, destination, subscription) as work:
        also()
        work.wait_for(expected, idle_s=idle_s)
        return work.counts()
