"""Publishes that were accepted and wait to be sent: their order, bounds, batches, and closed destinations.

Decides; sends nothing. Times are whole milliseconds of a monotonic clock.

    accept ──▶ `held` of its destination ──open──▶ `queue` ──▶ sent
                    ▲                                │
                    └────────── close, seal ─────────┘

Owners: the `Backlog` has the one `queue` of what may be sent, and the counts. A `Destination` has what is
held until it is open, and the batch that it fills; `Lingering` has the names of those whose batch waits for
more. An entry is in one of these three places; `messages` and `bytes` count it there.

Items of a destination that packs travel as batches (`core.confirms`): one entry, and still one deadline and
end for each item. Messages that were given together can be one item, a *bundle*: a batch of its own.

A *sealed* destination is closed, and keeps the order in which everything of it was accepted: what comes back
from a broker waits in its place.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from messagebus.core.confirms import Batch, Packing
from messagebus.core.ends import (
    NO_DEADLINE_MS,
    Entry,
    Item,
    items_of,
    messages_in,
    unsettled_of,
)


class Destination:
    """Waiting messages of one destination, and how they are packed.

    queue: where its entries wait: the backlog's while it is open, else `held`. filling: the batch that takes
    more items; it lingers, or stands at the end of its queue. order: the place of each entry that was
    accepted before the destination was sealed; None unless it is.
    """

    __slots__ = ("_lingering", "filling", "held", "order", "packing", "queue")

    def __init__(self, lingering: dict[str, Destination]) -> None:
        """Create it closed. lingering: the destinations whose batches linger, by name."""
        self._lingering = lingering
        self.held: deque[Entry] = deque()
        self.queue = self.held
        self.packing: Packing | None = None
        self.filling: Batch[Item] | None = None
        self.order: dict[Entry, int] | None = None

    @property
    def is_open(self) -> bool:
        """True when its publishes may be sent."""
        return self.queue is not self.held

    def fill(self, item: Item, packing: Packing, *, alone: bool) -> None:
        """Put an item into the batch that is filled, or begin another one."""
        batch, size = self.filling, item.size
        if batch is not None and not alone and batch.size + size <= packing.bytes_max:
            batch.items.append(item)
            batch.size += size
        else:
            self.close_batch()
            if alone or size >= packing.bytes_max:
                self.queue.append(item)
                return
            batch = self.filling = Batch(item)
            if packing.linger_ms:
                self._lingering[item.destination] = self
            else:
                self.queue.append(batch)
        if len(batch.items) >= packing.count_max or batch.size >= packing.bytes_max:
            self.close_batch()

    def close_batch(self) -> None:
        """Add nothing more to the batch that is filled."""
        batch, self.filling = self.filling, None
        if batch is not None and self._lingering.pop(batch.destination, None) is not None:
            self.queue.append(batch)

    def insert(self, entry: Entry) -> None:
        """Put an entry among what is held, in its place in the order of the seal."""
        order = self.order
        assert order is not None
        # What is not in the order was sent before the seal, and goes first.
        own = order.setdefault(entry, len(order) - NO_DEADLINE_MS)
        place = bisect_left(self.held, own, key=lambda each: order.get(each, len(order)))
        self.held.insert(place, entry)


class Lingering:
    """The batches that wait for more messages before they join the queues of their destinations."""

    def __init__(self) -> None:
        self.destinations: dict[str, Destination] = {}
        """Those of which the batch that is filled lingers, by name."""

    def batches(self) -> Iterator[Batch[Item]]:
        for destination in self.destinations.values():
            if destination.filling is not None:
                yield destination.filling

    def until_ms(self) -> int | None:
        """Return when the first batch becomes due; None when none lingers, or none was looked at."""
        return min(
            (batch.due_ms for batch in self.batches() if batch.due_ms is not None), default=None
        )

    def end_due(self, now_ms: int) -> None:
        """End the lingering of the batches whose time is over. It begins when it is first looked at."""
        for destination in list(self.destinations.values()):
            batch, packing = destination.filling, destination.packing
            if batch is None or packing is None:
                continue
            if batch.due_ms is None:
                batch.due_ms = now_ms + packing.linger_ms
            if batch.due_ms <= now_ms:
                destination.close_batch()

    def end_all(self) -> None:
        """End all lingering now, when a caller waits for all accepted messages."""
        for destination in list(self.destinations.values()):
            destination.close_batch()

    def put_forward(self, ms: int) -> None:
        """Bring the ends of lingering nearer by ms."""
        for batch in self.batches():
            if batch.due_ms is not None:
                batch.due_ms -= ms


class Backlog:
    """The publishes of one publisher that wait to be sent. Not thread-safe."""

    def __init__(self, *, messages_max: int, bytes_max: int, ordered: bool = False) -> None:
        """Create it empty. ordered: as of `PendingPublishes`."""
        self.messages_max, self.bytes_max = messages_max, bytes_max
        self._ordered = ordered
        self.messages = 0
        """Messages that wait."""
        self.bytes = 0
        """Bytes of their bodies."""
        self.queue: deque[Entry] = deque()
        """Entries that may be sent, in order."""
        self.lingering = Lingering()
        names = self.lingering.destinations
        self._destinations = defaultdict[str, Destination](lambda: Destination(names))
        self.sealed: set[str] = set()
        self.earliest_ms = NO_DEADLINE_MS
        """No deadline of an unsettled publish lies before this, whether it waits or is sent."""

    # Questions.
    def has_room(self, size: int, count: int = 1) -> bool:
        """Return whether messages of this total size in bytes may be accepted; one alone may be larger."""
        if self.messages + count > self.messages_max:
            return False
        return self.bytes + size <= self.bytes_max or not self.messages

    def is_open(self, destination: str) -> bool:
        return destination in self._destinations and self._destinations[destination].is_open

    def holds(self, destination: str) -> bool:
        """Return whether messages wait for this destination to be opened."""
        return destination in self._destinations and bool(
            self._destinations[destination].held or self._destinations[destination].filling
        )

    def unsettled(self) -> Iterator[Item]:
        """Yield what waits and has no end, in no order; exhaust it before changing anything."""
        for place in (*self._queues(), self.lingering.batches()):
            for entry in place:
                yield from unsettled_of(entry)

    def _queues(self) -> Iterator[deque[Entry]]:
        yield self.queue
        for destination in self._destinations.values():
            yield destination.held

    # Accepting.
    def pack(self, destination: str, packing: Packing) -> None:
        """Make items of this destination travel in batches from now on."""
        self._destinations[destination].packing = packing

    def accept(self, item: Item, *, alone: bool = False) -> None:
        """Take a publish. The caller has asked has_room, or does not want a bound.

        alone: it does not go into a batch, because the broker must see its properties.
        """
        destination = self._destinations[item.destination]
        if destination.packing is None:
            destination.queue.append(item)
        else:
            destination.fill(item, destination.packing, alone=alone)
        self.messages += 1
        self.bytes += item.size
        if item.deadline_ms < self.earliest_ms:
            self.earliest_ms = item.deadline_ms

    def accept_all(self, items: Sequence[Item], size: int) -> None:
        """Take publishes of one destination, which does not pack, and one deadline. size: of all."""
        first = items[0]
        self._destinations[first.destination].queue.extend(items)
        self.messages += len(items)
        self.bytes += size
        self.earliest_ms = min(self.earliest_ms, first.deadline_ms)

    def accept_bundle(self, bundle: Item) -> None:
        """Take several publishes of a destination that packs as one item."""
        destination, batch = self._destinations[bundle.destination], Batch(bundle)
        destination.close_batch()
        destination.queue.append(batch)
        self._count_in(batch)

    def accept_first(self, item: Item, *, alone: bool) -> None:
        """Take a publish ahead of all others. alone: as of `accept`, when it was accepted first."""
        packing = self._destinations[item.destination].packing
        self.put_first(item if alone or packing is None else Batch(item))

    def put_first(self, entry: Entry) -> None:
        """Have an entry wait ahead of all others."""
        self._destinations[entry.destination].queue.appendleft(entry)
        self._count_in(entry)

    def put_in_place(self, entry: Entry) -> None:
        """Have an entry of a sealed destination wait in its place."""
        self._destinations[entry.destination].insert(entry)
        self._count_in(entry)

    def _count_in(self, entry: Entry) -> None:
        for item in items_of(entry):
            self.messages += item.count
            self.earliest_ms = min(self.earliest_ms, item.deadline_ms)
        self.bytes += entry.size

    # Destinations.
    def open(self, destination: str) -> None:
        """Allow publishes to this destination from now on; not while it is sealed."""
        found = self._destinations[destination]
        if found.order is not None or found.is_open:
            return
        found.queue = self.queue
        self.queue.extend(found.held)
        found.held.clear()

    def close(self, destinations: Collection[str]) -> None:
        """Make publishes of these destinations wait from now on until `open`."""
        for name in destinations:
            destination = self._destinations[name]
            destination.queue = destination.held
        entries = list(self.queue)
        self.queue.clear()
        for entry in entries:
            self._destinations[entry.destination].queue.append(entry)

    def forget(self, destination: str) -> None:
        """Forget a closed destination without a message, and how its messages are packed."""
        found = self._destinations.get(destination)
        if found is not None and not (
            found.is_open or found.order is not None or found.held or found.filling
        ):
            del self._destinations[destination]

    def take_held(self, destination: str) -> list[Item]:
        """Take out all that waits for a destination to be opened, in order."""
        found = self._destinations[destination]
        found.close_batch()
        items = [item for entry in found.held for item in items_of(entry)]
        found.held.clear()
        self._count_out(items)
        return items

    def seal(self, destination: str, sent: Iterable[Entry]) -> None:
        """Make publishes of this destination wait in their order. sent: entries without an answer."""
        found = self._destinations[destination]
        if found.order is None:
            entries = enumerate((*sent, *self.queue, *found.held))
            found.order = {entry: n for n, entry in entries if entry.destination == destination}
            self.sealed.add(destination)
            self.close({destination})

    def move_out(self, destination: str, *, only_sent: bool = False) -> list[Item]:
        """Take out what waits for a sealed destination, in order. only_sent: and was sent before."""
        found = self._destinations[destination]
        items = [item for entry in found.held for item in items_of(entry)]
        moved = [item for item in items if not only_sent or item.attempts]
        found.held.clear()
        found.held.extend(item for item in items if only_sent and not item.attempts)
        self._count_out(moved)
        return [item for item in moved if item.end is None]

    def unseal(self, destination: str) -> None:
        """Let publishes to this destination go again."""
        self._destinations[destination].order = None
        self.sealed.discard(destination)
        self.open(destination)

    # What waits no more.
    def fill_no_more(self, batch: Batch[Item]) -> None:
        """Add nothing more to a batch that waits no longer."""
        destination = self._destinations[batch.destination]
        if destination.filling is batch:
            destination.filling = None

    def take_out(self, wanted: Callable[[Item], bool]) -> list[Item]:
        """Take out the unsettled items that are wanted, in order: of a destination all or none."""
        for destination in self._destinations.values():
            destination.close_batch()
        taken: list[Item] = []
        for queue in self._queues():
            entries = list(queue)
            queue.clear()
            for entry in entries:
                left = unsettled_of(entry)
                if left and wanted(left[0]):
                    taken += left
                else:
                    queue.append(entry)
        self._count_out(taken)
        return taken

    def remove(self, gone: set[Item]) -> list[Item]:
        """Take these items out of what may be sent. Returns them, in order."""
        removed: list[Item] = []
        entries = list(self.queue)
        self.queue.clear()
        for entry in entries:
            items = items_of(entry)
            left = [item for item in items if item not in gone]
            removed += [item for item in items if item in gone]
            if isinstance(entry, Batch) and len(left) < len(items):
                self._keep(entry, left)
            if left:
                self.queue.append(entry)
        self._count_out(removed)
        return removed

    def drop_settled(self) -> None:
        """Take out what has its end."""
        for queue in self._queues():
            kept = [entry for entry in queue if self._still_waits(entry)]
            queue.clear()
            queue.extend(kept)
        for batch in list(self.lingering.batches()):
            if not self._still_waits(batch):
                del self.lingering.destinations[batch.destination]

    def _still_waits(self, entry: Entry) -> bool:
        """Return whether an unsettled item is left in it; settled ones are counted out."""
        if self._ordered and not isinstance(entry, Batch) and entry.attempts:
            return True  # it may be stored: see `PendingPublishes`
        left = unsettled_of(entry)
        self._count_out([item for item in items_of(entry) if item.end is not None])
        if isinstance(entry, Batch):
            self._keep(entry, left)
        return bool(left)

    def _keep(self, batch: Batch[Item], items: list[Item]) -> None:
        """Keep only these items in a batch that waits; without any it is filled no more."""
        if items:
            batch.keep(items)
        else:
            self.fill_no_more(batch)

    def _count_out(self, items: list[Item]) -> None:
        self.messages -= messages_in(items)
        self.bytes -= sum(item.size for item in items)

    def put_forward(self, ms: int) -> None:
        """Bring the ends of lingering, and the earliest deadline, nearer by ms."""
        self.lingering.put_forward(ms)
        if self.earliest_ms != NO_DEADLINE_MS:
            self.earliest_ms -= ms

    def clear(self) -> None:
        """Drop everything that waits: all has its end."""
        self.lingering.destinations.clear()
        for destination in self._destinations.values():
            destination.filling = None
        for queue in self._queues():
            queue.clear()
        self.messages = self.bytes = 0
