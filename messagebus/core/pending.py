"""Publishes that were accepted and are not settled: backlog, windows of the links, retries.

Decides; sends nothing, waits for nothing. Times are whole milliseconds of a monotonic clock.

An item is *held* (its destination is not open yet, because it is not registered), in the *backlog*
(may be sent), in the *window* of a link (sent, unanswered), or settled. It is settled exactly once:

    accept ── held ──open_destination──▶ backlog ──take──▶ window ──answered──▶ settled
                                     ▲                 │
                                     └───link_lost─────┘   (attempts and deadline permitting)

Items of a destination that packs travel as batches (`core.confirms`): one entry of backlog and window, one
tag, and still one outcome, deadline and count of attempts for each item. Messages that were given
together can be one item, a *bundle*: a batch of its own, with one end for all of them.

One link is *current*: it takes from the backlog. Others are *retiring*: they only wait for answers.
An item whose deadline passes is settled at once; a place in a window is kept until the broker's
answer, so that tags stay counted as the broker counts them.

A message that goes to two brokers is two items here and in a second `PendingPublishes` (`core.redundancy`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from messagebus.core.confirms import Batch, ConfirmWindow, Packing
from messagebus.core.redundancy import may_go

CONFIRMED, REFUSED, UNROUTABLE, UNKNOWN = "confirmed", "refused", "unroutable", "unknown"
SPOOLED = "spooled"


class End(NamedTuple):
    """The end of a publish. outcome: confirmed, refused, unroutable, unknown or spooled."""

    outcome: str
    reason: str = ""


# Beginnings of reasons that say nothing against the message.
DEADLINE_PASSED, PUBLISHER_STOPPED = "deadline passed", "the publisher was stopped"
NO_DEADLINE_MS = 1 << 62
NO_READER = "no queue took it; declare a subscription first"
END_CONFIRMED, END_UNROUTABLE = End(CONFIRMED), End(UNROUTABLE, NO_READER)
END_REFUSED = End(REFUSED, "the broker refused it")
END_PERHAPS_STORED = End(UNKNOWN, "not taken, after an attempt whose link was lost")
END_TAKEN_OUT = End(UNKNOWN, "taken out")


class Item:
    """One publish. destination: the name of the place that it goes to.

    end: None until it is settled, then it never changes.
    count: number of messages in it; above 1 it is a bundle, which travels as one batch.
    twin: the other copy of a message that goes to two brokers; None of all others. place: the broker that
    such a copy was last meant for, "" before.
    """

    twin: Item | None = None
    place: str = ""

    __slots__ = ("attempts", "count", "deadline_ms", "destination", "end", "message_id", "size")

    def __init__(
        self, message_id: str, destination: str, size: int, deadline_ms: int, count: int = 1
    ) -> None:
        self.message_id, self.destination = message_id, destination
        self.size, self.deadline_ms = size, deadline_ms
        self.count = count
        self.attempts = 0
        self.end: End | None = None

    def taken_apart(self) -> list[Item]:
        """Return an item for each message, which stand for it from now on; itself where it is only one."""
        return [self]


Entry = Item | Batch[Item]
"""The unit that goes out as one AMQP message."""


@dataclass(slots=True)
class _Destination:
    is_open: bool = False
    order: dict[Entry, int] | None = None  # of what was accepted before it was sealed
    held: deque[Entry] = field(default_factory=deque)
    packing: Packing | None = None
    filling: Batch[Item] | None = None  # takes more; lingers, or stands at the end of its queue


class PendingPublishes:
    """The publishes of one publisher. Not thread-safe."""

    def __init__(
        self,
        *,
        messages_max: int,
        bytes_max: int,
        window: int,
        window_bytes_max: int,
        attempts_max: int,
        retry_unknown: bool,
        ordered: bool = False,
    ) -> None:
        """Create it empty. ordered: what was sent and not answered goes again first and in order, whether or
        not it has its end: it may be stored, or become so late, and nothing may be sent behind it before.
        """
        self.messages_max, self.bytes_max = messages_max, bytes_max
        self._window, self._window_bytes_max = window, window_bytes_max
        self._attempts_max, self._retry_unknown = attempts_max, retry_unknown
        self._ordered = ordered
        self._backlog: deque[Entry] = deque()
        self._destinations: defaultdict[str, _Destination] = defaultdict(_Destination)
        self.lingering: dict[str, Batch[Item]] = {}
        """Destination -> batch that waits for more messages: `lingers_until_ms` says how long."""
        self._bundles = False  # whether an item was ever more than one message
        self.waiting = 0
        """Messages accepted and not sent."""
        self.waiting_bytes = 0
        """Bytes of their bodies."""
        self.retried = 0
        """Messages put back because their link ended, in all."""
        self.ended = dict.fromkeys((CONFIRMED, REFUSED, UNROUTABLE, UNKNOWN, SPOOLED), 0)
        """Messages settled so far, by outcome."""
        self._windows: dict[int, ConfirmWindow[Entry]] = {}
        self.current: ConfirmWindow[Entry] | None = None
        """The window of the current link."""
        self.seals = False
        """Set where a return may mean that its destination is sealed: it comes back, and the rest waits."""
        self.sealed: set[str] = set()
        self._after: set[int] = set()  # send nothing before these links are answered
        # A broker that ends a channel because of a publish does not name it. The open ones are then sent
        # one by one: the culprit ends a channel again, alone.
        self._suspects: set[Entry] = set()
        self._alone: Entry | None = None
        # No deadline lies before this. Recomputed only when it has passed: at most once per length of
        # a deadline while all is well, because its item has been settled long before.
        self._earliest_ms = NO_DEADLINE_MS

    # Questions.
    @property
    def in_flight(self) -> int:
        """The number of publishes sent and not answered, on all links; a batch counts once."""
        # A copy: statistics are read by other threads.
        return sum(len(window) for window in list(self._windows.values()))

    def has_room(self, size: int, count: int = 1) -> bool:
        """Return whether messages of this total size in bytes may be accepted; one alone may be larger."""
        if self.waiting + count > self.messages_max:
            return False
        return self.waiting_bytes + size <= self.bytes_max or not self.waiting

    def unanswered_ms(self, now_ms: int) -> int:
        """Return how long the oldest publish of the current link has waited for its answer, in ms."""
        window = self.current
        oldest_ms = window.oldest_ms() if window else None
        return 0 if oldest_ms is None else now_ms - oldest_ms

    def leaving(self, link: int, taken: int, now_ms: int) -> None:
        """Record that the other side takes bytes of this link, and has so many: see `ConfirmWindow`."""
        if link in self._windows:
            self._windows[link].leaving(taken, now_ms)

    def is_answered(self, link: int) -> bool:
        """Return whether nothing is open on this link: it can be hung up without an unknown outcome."""
        window = self._windows.get(link)
        return window is None or not len(window)

    def lingers_until_ms(self) -> int | None:
        """Return when the first lingering batch becomes due for `take`; None when none lingers."""
        return min(
            (batch.due_ms for batch in self.lingering.values() if batch.due_ms is not None),
            default=None,
        )

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
            (self._backlog if destination.is_open else destination.held).append(item)
        else:
            self._pack(destination, destination.packing, item, alone)
        self.waiting += 1
        self.waiting_bytes += item.size
        if item.deadline_ms < self._earliest_ms:
            self._earliest_ms = item.deadline_ms

    def accept_bundle(self, bundle: Item) -> None:
        """Take several publishes of a destination that packs as one item."""
        self._bundles = True
        destination = self._destinations[bundle.destination]
        self._close_batch(destination)
        self._queue(destination).append(Batch(bundle))
        self.waiting += bundle.count
        self.waiting_bytes += bundle.size
        self._earliest_ms = min(self._earliest_ms, bundle.deadline_ms)

    def accept_first(self, item: Item, *, alone: bool) -> None:
        """Take a publish ahead of all others. alone: as of `accept`, when it was accepted first."""
        destination = self._destinations[item.destination]
        self._queue(destination).appendleft(
            item if alone or destination.packing is None else Batch(item)
        )
        self.waiting += item.count
        self.waiting_bytes += item.size
        self._earliest_ms = min(self._earliest_ms, item.deadline_ms)

    def _pack(self, destination: _Destination, packing: Packing, item: Item, alone: bool) -> None:
        batch, size = destination.filling, item.size
        if batch is not None and not alone and batch.size + size <= packing.bytes_max:
            batch.items.append(item)
            batch.size += size
        else:
            self._close_batch(destination)
            if alone or size >= packing.bytes_max:
                self._queue(destination).append(item)
                return
            batch = destination.filling = Batch(item)
            if packing.linger_ms:
                self.lingering[item.destination] = batch
            else:
                self._queue(destination).append(batch)
        if len(batch.items) >= packing.count_max or batch.size >= packing.bytes_max:
            self._close_batch(destination)

    def _close_batch(self, destination: _Destination) -> None:
        """Add nothing more to the batch that this destination fills."""
        batch, destination.filling = destination.filling, None
        if batch is not None and self.lingering.get(batch.destination) is batch:
            del self.lingering[batch.destination]
            self._queue(destination).append(batch)

    def _queue(self, destination: _Destination) -> deque[Entry]:
        return self._backlog if destination.is_open else destination.held

    def destination_is_open(self, destination: str) -> bool:
        return destination in self._destinations and self._destinations[destination].is_open

    def holds(self, destination: str) -> bool:
        """Return whether messages wait for this destination to be opened."""
        return destination in self._destinations and bool(
            self._destinations[destination].held or self._destinations[destination].filling
        )

    def open_destination(self, destination: str) -> None:
        """Allow publishes to this destination from now on."""
        state = self._destinations[destination]
        if state.order is not None:
            return  # sealed
        state.is_open = True
        self._backlog.extend(state.held)
        state.held.clear()

    def close_destination(self, destination: str) -> None:
        """Make publishes of this destination wait from now on until open_destination."""
        self.close_destinations({destination})

    def close_destinations(self, destinations: Collection[str]) -> None:
        """Do as `close_destination` for all of these, at the cost of one."""
        for destination in destinations:
            self._destinations[destination].is_open = False
        backlog, self._backlog = self._backlog, deque[Entry]()
        for entry in backlog:
            closed = entry.destination in destinations
            (self._destinations[entry.destination].held if closed else self._backlog).append(entry)

    def forget_destination(self, destination: str) -> None:
        """Forget a closed destination without a message, and how its messages are packed."""
        state = self._destinations.get(destination)
        if state is not None and not (state.is_open or state.order is not None or state.held):
            del self._destinations[destination]

    def seal(self, destination: str) -> None:
        """Make publishes of this destination wait, in their order, with what comes back from the broker."""
        state = self._destinations[destination]
        if state.order is None:
            open_ones = [e for _, w in sorted(self._windows.items()) for e in w.items()]
            every = (*open_ones, *self._backlog, *state.held)
            state.order = {e: n for n, e in enumerate(every) if e.destination == destination}
            self.sealed.add(destination)
            self.close_destination(destination)

    def is_unanswered(self, destination: str) -> bool:
        """Return whether anything of this destination is sent and not answered."""
        windows = self._windows.values()
        return any(e.destination == destination for window in windows for e in window.items())

    def move_out(self, destination: str, *, only_sent: bool = False) -> list[Item]:
        """Take out what waits for a sealed destination, in order. only_sent: and was sent before."""
        state = self._destinations[destination]
        items = [item for entry in state.held for item in _items(entry)]
        kept = [item for item in items if only_sent and not item.attempts]
        state.held = deque(kept)
        items = [item for item in items if not only_sent or item.attempts]
        for item in items:
            self._waits_no_more(item)
        return [item for item in items if item.end is None]

    def unseal(self, destination: str) -> None:
        """Let publishes to this destination go again."""
        self._destinations[destination].order = None
        self.sealed.discard(destination)
        self.open_destination(destination)

    def _come_back(self, entries: Iterable[Entry]) -> None:
        """Put these among what waits for their destinations, each in its place."""
        for entry in entries:
            state = self._destinations[entry.destination]
            self.seal(entry.destination)
            order = state.order or {}
            # What is not in the order was sent before the seal, and goes first.
            own = order.setdefault(entry, len(order) - NO_DEADLINE_MS)
            state.held.insert(_place(order, state.held, own), entry)
            for item in _items(entry):
                self.waiting += item.count
                self._earliest_ms = min(self._earliest_ms, item.deadline_ms)
            self.waiting_bytes += entry.size

    def refuse_destination(
        self, destination: str, reason: str, *, unroutable: bool = False
    ) -> list[Item]:
        """Settle the messages that wait for a destination that cannot be published to.

        unroutable: because nobody has created it.
        """
        state = self._destinations[destination]
        self._close_batch(state)
        items = [item for entry in state.held for item in _items(entry)]
        state.held.clear()
        for item in items:
            self._waits_no_more(item)
        return self._give_up(items, reason, UNROUTABLE if unroutable else REFUSED)

    # Links.
    def link_opened(self, link: int, *, after: Iterable[int]) -> None:
        """Make a new link current; an earlier one retires.

        after: the links that may lead to the same broker. Nothing is sent on the new one until they
        are answered: order holds per publisher and broker.
        """
        self._after = set(after)
        self.current = self._windows[link] = ConfirmWindow(
            messages_max=self._window, bytes_max=self._window_bytes_max
        )

    def link_lost(
        self, link: int, now_ms: int, reason: str = "", *, refused: bool = False
    ) -> list[Item]:
        """Drop a link: its open publishes are sent again, first and in order, or end as unknown.

        refused: the broker ended the link because of one of them. A batch that it refused is split, and each
        of its messages tried by itself, before any of them is refused.
        """
        window = self._windows.pop(link, None)
        if window is None:
            return []
        if window is self.current:
            self.current = None
        entries = window.abandon()
        if refused and entries == [self._alone]:
            self._split(entries[0], now_ms)
            return self._settle(entries, End(REFUSED, reason))
        self._suspects.update(each for each in entries if refused or each is self._alone)
        lost: list[Item] = []
        for entry in reversed(entries):
            if self._ordered:
                self._put_back(entry, _items(entry))
                continue
            left = [item for item in _items(entry) if item.end is None]
            again = [item for item in left if self._may_retry(item, now_ms)]
            if again:
                self._put_back(entry, again)
            lost += [item for item in reversed(left) if not self._may_retry(item, now_ms)]
        why = f"the link ended: {reason}" if reason else "the link ended"
        return self._settle(reversed(lost), End(UNKNOWN, why))

    def _split(self, entry: Entry, now_ms: int) -> None:
        """Move the items of a batch of several into batches of one, where they may be sent again."""
        destination = self._destinations[entry.destination]
        left = [item for item in _items(entry) if item.end is None]
        if not isinstance(entry, Batch) or self._count(left) < 2 or destination.order is not None:
            return
        left = [part for item in left for part in item.taken_apart()]
        again = [item for item in left if self._may_retry(item, now_ms)]
        for item in reversed(again):
            one = Batch(item)
            self._suspects.add(one)
            self._queue(destination).appendleft(one)
        entry.items = [item for item in left if item not in again]
        count = self._count(again)
        self.waiting += count
        self.waiting_bytes += sum(item.size for item in again)
        self.retried += count

    def _put_back(self, entry: Entry, again: list[Item]) -> None:
        if self._destinations[entry.destination].order is not None:
            self.retried += self._count(again)
            self._come_back([entry])
            return
        if isinstance(entry, Batch):
            entry.keep(again)
        self._queue(self._destinations[entry.destination]).appendleft(entry)
        self.waiting += self._count(again)
        self.waiting_bytes += entry.size
        self.retried += self._count(again)

    def displace(self, broker: str, now_ms: int) -> list[Item]:
        """Remove the copies that may not be sent to this broker, and return them, in order.

        Looks at what the next `take` may give out; from now on those copies are meant for this broker.
        """
        if self.lingering:
            self._end_lingering(now_ms)
        window = self.current
        if window is None or not self._backlog:
            return []
        barred: set[Item] = set()
        room = self._window - len(window)
        for entry in self._backlog:
            if room <= 0:
                break
            twin = entry.twin if not isinstance(entry, Batch) else None
            if twin is not None and twin.place != broker and broker:  # the usual case of `may_go`
                entry.place = broker  # type: ignore[union-attr]
                room -= 1
                continue
            before = len(barred)
            items = entry.items if isinstance(entry, Batch) else (entry,)
            for item in items:
                if item.twin is None:
                    continue
                if may_go(broker, item.twin.place):
                    item.place = broker  # type: ignore[misc]  # a copy has a slot for it
                else:
                    barred.add(item)
            room -= len(barred) - before < len(items)  # what is left of it leaves
        return self._remove(barred) if barred else []

    def _remove(self, gone: set[Item]) -> list[Item]:
        """Take these items out of the backlog. Returns them, in order."""
        removed: list[Item] = []
        kept: list[Entry] = []
        for entry in self._backlog:
            items = _items(entry)
            left = [item for item in items if item not in gone]
            if len(left) < len(items):
                removed += [item for item in items if item in gone]
                if isinstance(entry, Batch) and left:
                    entry.keep(left)
                elif self._destinations[entry.destination].filling is entry:
                    self._destinations[entry.destination].filling = None
            if left:
                kept.append(entry)
        self._backlog = deque(kept)
        for item in removed:
            self._waits_no_more(item)
        return removed

    def take(self, now_ms: int) -> list[Entry]:
        """Return everything to send now on the current link, in order."""
        if self.lingering:
            self._end_lingering(now_ms)
        if self._after:
            self._after = {link for link in self._after if not self.is_answered(link)}
            if self._after:
                return []
        window = self.current
        if window is None or not self._backlog:
            return []
        queue = self._backlog
        if self._suspects or self._alone is not None:
            queue = self._next(window)
        taken = window.fill(queue, now_ms)
        count = size = 0
        for entry in taken:
            if isinstance(entry, Batch):
                count += self._batch_sent(entry)
            else:
                entry.attempts += 1
                count += 1
            size += entry.size
        self.waiting -= count
        self.waiting_bytes -= size
        return taken

    def _next(self, window: ConfirmWindow[Entry]) -> deque[Entry]:
        """Return the entries that may go now: suspects come first, each when nothing else is open."""
        if len(window):
            return deque()
        self._alone = None
        if self._backlog[0] not in self._suspects:
            self._suspects.clear()  # the others have ended, or wait for their destination
            return self._backlog
        self._alone = self._backlog.popleft()
        self._suspects.discard(self._alone)
        return deque([self._alone])

    def _batch_sent(self, batch: Batch[Item]) -> int:
        """Close a batch that is being sent. Returns the number of its messages."""
        destination = self._destinations[batch.destination]
        if destination.filling is batch:
            destination.filling = None
        for item in batch.items:
            item.attempts += 1
        return self._count(batch.items)

    def _end_lingering(self, now_ms: int) -> None:
        for name, batch in list(self.lingering.items()):
            destination = self._destinations[name]
            if batch.due_ms is None:
                batch.due_ms = now_ms + (
                    destination.packing.linger_ms if destination.packing else 0
                )
            if batch.due_ms <= now_ms:
                self._close_batch(destination)

    def close_batches(self) -> None:
        """End all lingering now, when a caller waits for all accepted messages."""
        for batch in list(self.lingering.values()):
            self._close_batch(self._destinations[batch.destination])

    def refuse(self, item: Item, reason: str) -> None:
        """Settle as refused an item that cannot be sent at all, and was not accepted."""
        self._settle([item], End(REFUSED, reason))

    def unconfirmed(self, entry: Entry) -> list[Item]:
        """Settle as unknown an entry just sent, when no confirm is awaited. Its tag stays counted."""
        return self._settle([entry], End(UNKNOWN, "no confirm is waited for"))

    def returned(self, link: int, destination: str, message_id: str) -> None:
        """Record that the broker sent this message back on this link; its ack follows."""
        if link in self._windows:
            if self.seals:
                self.seal(destination)
            self._windows[link].returned(destination, message_id)

    def answered(self, link: int, tag: int, *, multiple: bool, ok: bool) -> list[Item]:
        """Record the broker's answer on this link. Returns the settled items: none once the link is gone."""
        window = self._windows.get(link)
        if window is None:
            return []
        answered, unroutable = window.answered(tag, multiple=multiple)
        end, settle = (END_CONFIRMED, self._settle) if ok else (END_REFUSED, self._not_taken)
        settled = settle(answered, end)
        if unroutable and self.seals:
            self._come_back(unroutable)
            return settled
        return settled + self._not_taken(unroutable, END_UNROUTABLE) if unroutable else settled

    def _not_taken(self, entries: Iterable[Entry], end: End) -> list[Item]:
        """Settle what a broker did not take. What was sent before over a link that was lost may be stored."""
        items = [item for entry in entries for item in _items(entry) if item.end is None]
        for item in items:
            self._settle([item], END_PERHAPS_STORED if item.attempts > 1 else end)
        return items

    # Deadlines and the end.
    def expire(self, now_ms: int, reason: str = DEADLINE_PASSED) -> list[Item]:
        """Settle items that have passed their deadline: refused when never sent, else unknown."""
        if now_ms < self._earliest_ms:
            return []
        late = [item for item in self.unsettled() if item.deadline_ms <= now_ms]
        settled = self._give_up(late, reason)
        self._forget_settled()
        self._earliest_ms = min(
            (item.deadline_ms for item in self.unsettled()), default=NO_DEADLINE_MS
        )
        return settled

    def withdraw(self, items: Iterable[Item], reason: str) -> list[Item]:
        """Settle these before their deadline, refused when never sent, else unknown. Returns them."""
        settled = self._give_up([item for item in items if item.end is None], reason)
        self._forget_settled()
        return settled

    def put_forward(self, ms: int) -> None:
        """Advance the time of everything open by ms, where a clock can be moved."""
        for item in self.unsettled():
            item.deadline_ms -= ms
        for batch in self.lingering.values():
            if batch.due_ms is not None:
                batch.due_ms -= ms
        if self._earliest_ms != NO_DEADLINE_MS:
            self._earliest_ms -= ms

    def give_up(self, reason: str) -> list[Item]:
        """Settle everything and drop all links: the publisher stops."""
        settled = self._give_up(list(self.unsettled()), reason)
        self._forget_settled()
        # All has its end, also what would go out again first: see `ordered`.
        self._windows.clear()
        self.current = None
        for queue in (self._backlog, *(state.held for state in self._destinations.values())):
            queue.clear()
        self.waiting = self.waiting_bytes = 0
        return settled

    def take_out(self, wanted: Callable[[Item], bool]) -> list[Item]:
        """Take out the unsettled items that are wanted, each destination's in the order of their acceptance.

        wanted: of a destination all or none. They are the caller's; answers to those that were sent no longer
        count. `end` settles them.
        """
        taken: list[Item] = []

        def stand_in(entry: Entry) -> Entry:
            left = [item for item in _items(entry) if item.end is None]
            if not left or not wanted(left[0]):
                return entry
            taken.extend(left)
            place = Item(entry.message_id, entry.destination, entry.size, NO_DEADLINE_MS)
            place.end = END_TAKEN_OUT
            return place

        for _, window in sorted(self._windows.items()):
            window.replace(stand_in)
        sent = len(taken)
        for state in self._destinations.values():
            self._close_batch(state)
        for queue in (self._backlog, *(state.held for state in self._destinations.values())):
            kept = [entry for entry in queue if stand_in(entry) is entry]
            queue.clear()
            queue.extend(kept)
        for item in taken[sent:]:
            self._waits_no_more(item)
        return taken

    def end(self, items: list[Item], outcome: str, reason: str = "") -> list[Item]:
        """Settle items that were taken out."""
        return self._settle(items, End(outcome, reason))

    def _may_retry(self, item: Item, now_ms: int) -> bool:
        return (
            self._retry_unknown and item.attempts < self._attempts_max and now_ms < item.deadline_ms
        )

    def unsettled(self) -> Iterator[Item]:
        """Yield all items accepted and not settled, in no order; exhaust it before changing anything."""
        places: list[Iterable[Entry]] = [self._backlog, self.lingering.values()]
        places += [destination.held for destination in self._destinations.values()]
        places += [window.items() for window in self._windows.values()]
        return (
            item
            for place in places
            for entry in place
            for item in _items(entry)
            if item.end is None
        )

    def _forget_settled(self) -> None:
        """Remove settled items from the places where they wait."""
        for queue in (
            self._backlog,
            *(destination.held for destination in self._destinations.values()),
        ):
            kept = [entry for entry in queue if self._still_waits(entry)]
            queue.clear()
            queue.extend(kept)
        for batch in list(self.lingering.values()):
            if not self._still_waits(batch):
                del self.lingering[batch.destination]

    def _still_waits(self, entry: Entry) -> bool:
        """Return whether an unsettled item is left in it; settled ones are counted out."""
        if self._ordered and not isinstance(entry, Batch) and entry.attempts:
            return True  # it may be stored: see `ordered`
        items = _items(entry)
        left = [item for item in items if item.end is None]
        for item in items:
            if item.end is not None:
                self._waits_no_more(item)
        if isinstance(entry, Batch):
            if left:
                entry.keep(left)
            elif self._destinations[entry.destination].filling is entry:
                self._destinations[entry.destination].filling = None
        return bool(left)

    def _waits_no_more(self, item: Item) -> None:
        self.waiting -= item.count
        self.waiting_bytes -= item.size

    def _give_up(self, items: list[Item], reason: str, outcome: str = REFUSED) -> list[Item]:
        refused, unknown = End(outcome, reason), End(UNKNOWN, reason)
        for item in items:
            self._settle([item], unknown if item.attempts else refused)
        return items

    def _settle(self, entries: Iterable[Entry], end: End) -> list[Item]:
        """Settle the entries that are not settled yet. Returns their items."""
        settled: list[Item] = []
        for entry in entries:
            if isinstance(entry, Batch):
                left = [item for item in entry.items if item.end is None]
                for item in left:
                    item.end = end
                settled += left
            elif entry.end is None:
                entry.end = end
                settled.append(entry)
        self.ended[end.outcome] += self._count(settled)
        return settled

    def _count(self, items: list[Item]) -> int:
        """Return the number of messages in these items."""
        return sum(item.count for item in items) if self._bundles else len(items)


def _place(order: dict[Entry, int], held: deque[Entry], own: int) -> int:
    """Return where an entry of this place in the order belongs; what is not in it goes last."""
    return bisect_left(held, own, key=lambda each: order.get(each, len(order)))


def _items(entry: Entry) -> list[Item]:
    return entry.items if isinstance(entry, Batch) else [entry]
