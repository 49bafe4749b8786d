"""The load of one consuming process: takes and answers deliveries, and records their stamps and latencies."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.harness.histograms import Counts, Latencies
from bench.harness.interface import Receiver
from bench.load.bodies import read

TAKE_WAIT_S = 0.1
TICK_NS = 50_000_000


@dataclass(slots=True)
class Had:
    """The deliveries of one consumer, in order.

    altered: bodies that differ from every sent one. earlier: deliveries from an earlier run on the same
    system, which do not count. brokers: names, by the number in broker_of. delivered: deliveries so far, by
    broker.
    """

    start_ns: int
    publishers: array[int] = field(default_factory=lambda: array("q"))
    sequences: array[int] = field(default_factory=lambda: array("q"))
    broker_of: array[int] = field(default_factory=lambda: array("q"))
    received_ns: array[int] = field(default_factory=lambda: array("q"))
    intended_ns: array[int] = field(default_factory=lambda: array("q"))
    brokers: list[str] = field(default_factory=list)
    delivered: Counter[str] = field(default_factory=Counter)
    altered: int = 0
    earlier: int = 0
    delivery: Latencies = field(init=False)
    received: Counts = field(init=False)

    def __post_init__(self) -> None:
        self.received = Counts(self.start_ns)
        self.delivery = Latencies(self.start_ns)


class Consuming:
    """The loop of one consumer. offset_ns: from the monotonic clock to the run's."""

    def __init__(
        self,
        receiver: Receiver,
        *,
        start_ns: int,
        offset_ns: int,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._receiver = receiver
        self._offset_ns = offset_ns
        self._clock_ns = clock_ns
        self._numbers: dict[str, int] = {}
        self._counted = 0
        self._next_tick_ns = 0
        self.had = Had(start_ns)

    async def run(self, is_over: Callable[[], bool], on_tick: Callable[[int], None]) -> Had:
        """Take until the run is over. on_tick: gets the number of deliveries, a few times a second."""
        had, offset, numbers = self.had, self._offset_ns, self._numbers
        # Looked up once: each lookup would add to the harness's cost of a message.
        rows = (had.publishers, had.sequences, had.broker_of, had.intended_ns, had.received_ns)
        add_publisher, add_sequence, add_broker, add_intended, add_received = (
            each.append for each in rows
        )
        start_ns = had.start_ns
        while not is_over():
            for body, broker, received_ns in await self._receiver.take(TAKE_WAIT_S):
                stamp = read(body)
                if stamp is None:
                    had.altered += 1
                    continue
                publisher, sequence, intended_ns = stamp
                if intended_ns < start_ns:
                    had.earlier += 1
                    continue
                number = numbers.get(broker)
                if number is None:
                    number = numbers[broker] = len(numbers)
                    had.brokers.append(broker)
                add_publisher(publisher)
                add_sequence(sequence)
                add_broker(number)
                add_intended(intended_ns)
                add_received(received_ns + offset)
            if (now_ns := self._clock_ns()) >= self._next_tick_ns:
                self._next_tick_ns = now_ns + TICK_NS
                self._count()
                on_tick(len(had.sequences))
        await self._receiver.close()
        self._count()
        return had

    def _count(self) -> None:
        """Record the latencies of the deliveries since the last call."""
        had, since = self.had, self._counted
        self._counted = len(had.sequences)
        intended = np.array(had.intended_ns[since:], dtype=np.int64)
        received = np.array(had.received_ns[since:], dtype=np.int64)
        of = np.array(had.broker_of[since:], dtype=np.int64)
        for number, broker in enumerate(had.brokers):
            own = of == number
            had.delivered[broker] += int(own.sum())
            had.received.add(broker, received[own])
            had.delivery.add(broker, intended[own], received[own] - intended[own])
