"""Brokers in memory: queues, what waits in them, who takes from them. Thread-safe.

One lock for all. `deliver` of a taker is called under it: it must only post to the taker's loop.
"""

from __future__ import annotations

import itertools
import threading
from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from messagebus.destination import Destination, Queue, Source, Subscription
from messagebus.message import Message
from messagebus.topology import Wanted

__all__ = ["MemoryBrokers", "Taker"]


@dataclass(order=True, slots=True)
class _Stored:
    """A message in a queue; its place is kept when it is given back."""

    place: int
    message: Message = field(compare=False)
    deliveries: int = field(default=0, compare=False)


@dataclass(eq=False, slots=True)
class Taker:
    """One consumer of one queue. deliver(tag, message, redelivered): called under the lock."""

    prefetch: int
    deliver: Callable[[int, Message, bool], None]
    unacked: dict[int, _Stored] = field(default_factory=dict)
    last_tag: int = 0

    def give(self, stored: _Stored) -> None:
        self.last_tag += 1
        self.unacked[self.last_tag] = stored
        stored.deliveries += 1
        self.deliver(self.last_tag, stored.message, stored.deliveries > 1)


@dataclass(slots=True)
class _Queue:
    ready: list[_Stored] = field(default_factory=list)
    parked: list[Message] = field(default_factory=list)
    takers: deque[Taker] = field(default_factory=deque)

    def hand_out(self) -> None:
        """Takers with room take turns."""
        while self.ready and (taker := self._next_with_room()) is not None:
            taker.give(self.ready.pop(0))

    def _next_with_room(self) -> Taker | None:
        for _ in range(len(self.takers)):
            self.takers.rotate(-1)
            if len(self.takers[-1].unacked) < self.takers[-1].prefetch:
                return self.takers[-1]
        return None

    def give_back(self, stored: _Stored) -> None:
        insort(self.ready, stored)


class MemoryBrokers:
    """All brokers of a bus. names: how they call themselves, in order."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._lock = threading.RLock()
        self._queues: dict[tuple[str, Source], _Queue] = {}
        self._frozen = False
        self._on_thaw: list[Callable[[], None]] = []
        self._places = itertools.count()
        self._turns = itertools.cycle(self.names)

    def balance(self) -> str:
        """The broker that the next link leads to."""
        with self._lock:
            return next(self._turns)

    # ------------------------------------------------------------------ freezing
    @property
    def frozen(self) -> bool:
        return self._frozen

    def freeze(self) -> None:
        with self._lock:
            self._frozen = True

    def thaw(self) -> None:
        with self._lock:
            self._frozen = False
            for callback in self._on_thaw:
                callback()

    def on_thaw(self, callback: Callable[[], None]) -> None:
        with self._lock:
            self._on_thaw.append(callback)

    def off_thaw(self, callback: Callable[[], None]) -> None:
        with self._lock:
            self._on_thaw.remove(callback)

    # ------------------------------------------------------------------ queues
    def declare(self, wanted: Wanted) -> None:
        """Make a subscription or queue exist on every broker; a topic needs nothing."""
        if isinstance(wanted, Subscription | Queue):
            with self._lock:
                for broker in self.names:
                    self._queues.setdefault((broker, wanted), _Queue())

    def publish(self, broker: str, destination: Destination, message: Message) -> bool:
        """Put a copy into each queue of the destination. Returns whether there is one."""
        with self._lock:
            queues = [
                queue
                for (at, source), queue in self._queues.items()
                if at == broker and destination == _published_to(source)
            ]
            for queue in queues:
                queue.ready.append(_Stored(next(self._places), message))
                queue.hand_out()
            return bool(queues)

    def publish_later(
        self, delay_s: float, broker: str, destination: Destination, message: Message
    ) -> None:
        """The same after a while; the publisher may have stopped by then."""
        timer = threading.Timer(delay_s, self.publish, (broker, destination, message))
        timer.daemon = True
        timer.start()

    def attach(self, broker: str, source: Source, taker: Taker) -> None:
        with self._lock:
            queue = self._queues[broker, source]
            queue.takers.append(taker)
            queue.hand_out()

    def detach(self, broker: str, source: Source, taker: Taker) -> None:
        """What it has not answered is given back, in order."""
        with self._lock:
            queue = self._queues[broker, source]
            queue.takers.remove(taker)
            for stored in taker.unacked.values():
                queue.give_back(stored)
            taker.unacked.clear()
            queue.hand_out()

    def answer(self, broker: str, source: Source, taker: Taker, tag: int, answer: str) -> None:
        """answer: ack, requeue (back to its place) or reject (into the parking queue)."""
        with self._lock:
            queue = self._queues[broker, source]
            stored = taker.unacked.pop(tag)
            if answer == "requeue":
                queue.give_back(stored)
            elif answer == "reject":
                queue.parked.append(stored.message)
            queue.hand_out()

    def waiting(self, source: Source) -> int:
        with self._lock:
            return sum(len(q.ready) for (_, at), q in self._queues.items() if at == source)

    def parked(self, source: Source) -> list[Message]:
        with self._lock:
            return [m for (_, at), q in self._queues.items() if at == source for m in q.parked]


def _published_to(source: Source) -> Destination:
    return source.topic if isinstance(source, Subscription) else source
