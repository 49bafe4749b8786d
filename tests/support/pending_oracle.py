"""The naive oracle of `core.pending`: a list of all publishes, and where each of them is.

It knows destinations of single messages and of batches (at once or after a while, bundles too), and a
broker that ends the link for one message; then all open ones are sent one by one. It searches
its lists where the pending counts, so it cannot count wrongly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from messagebus.core.confirms import Batch, Packing
from messagebus.core.ends import END_UNCONFIRMED, Entry, Item
from messagebus.core.pending import PendingPublishes

MESSAGES_MAX, BYTES_MAX = 6, 100
WINDOW, WINDOW_BYTES_MAX = 3, 60
ATTEMPTS_MAX = 3
SINGLE, PACKED, LINGERING = "single", "packed", "lingering"
DESTINATIONS = (SINGLE, PACKED, LINGERING)
PACKINGS = {PACKED: Packing(3, 50, 0), LINGERING: Packing(3, 50, 10)}


class Given(NamedTuple):
    """Publish of an application, or several together: a bundle, where messages travel in batches."""

    name: str
    destination: str
    size: int
    wait_ms: int
    alone: bool
    messages: int


MESSAGES = st.builds(
    Given,
    name=st.sampled_from("xyz"),
    destination=st.sampled_from(DESTINATIONS),
    size=st.integers(0, 30) | st.integers(0, 70),
    wait_ms=st.sampled_from([50, 1_000]),
    alone=st.sampled_from([False, False, False, True]),
    messages=st.sampled_from([1, 1, 1, 2, 3]),
)


@dataclass(slots=True, eq=False)
class Record:
    """Record of one publish."""

    item: Item
    attempts: int = 0
    settled: bool = False


@dataclass(slots=True, eq=False)
class Parcel:
    """AMQP message to send. entry: that of `PendingPublishes`, once it gave one."""

    destination: str
    records: list[Record]
    is_batch: bool = False
    due_ms: int | None = None
    sent_bytes: int = 0
    entry: Entry | None = None

    @property
    def left(self) -> list[Record]:
        return [record for record in self.records if not record.settled]

    @property
    def size(self) -> int:
        return sum(record.item.size for record in self.records)

    def is_given_as(self, entry: Entry) -> bool:
        given = entry.items if isinstance(entry, Batch) else [entry]
        same = [id(item) for item in given] == [id(record.item) for record in self.records]
        return same and isinstance(entry, Batch) == self.is_batch


@dataclass(slots=True, eq=False)
class Link:
    """Link of the oracle. sent: parcels by tag, from 1."""

    sent: list[Parcel] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)

    @property
    def unanswered(self) -> list[Parcel]:
        return [each for tag, each in enumerate(self.sent, start=1) if tag not in self.answered]


def messages(records: Iterable[Record]) -> int:
    """Return how many messages they are."""
    return sum(record.item.count for record in records)


class AgainstAnOracle(RuleBasedStateMachine):
    """Machine that works out the expectation of each call first, then calls the pending publishes."""

    def __init__(self) -> None:
        super().__init__()
        self.pending = PendingPublishes(
            messages_max=MESSAGES_MAX,
            bytes_max=BYTES_MAX,
            window=WINDOW,
            window_bytes_max=WINDOW_BYTES_MAX,
            attempts_max=ATTEMPTS_MAX,
            retry_unknown=True,
        )
        for destination, packing in PACKINGS.items():
            self.pending.backlog.pack(destination, packing)
        self.now_ms = 0
        self.all: list[Record] = []
        self.queue: list[Parcel] = []  # in the order in which they would be sent
        self.lingering: list[Parcel] = []
        self.filling: dict[str, Parcel] = {}  # destination -> the batch that takes more
        self.open_destinations: set[str] = set()
        self.links: dict[int, Link] = {}
        self.after: set[int] = set()
        self.current: int | None = None
        self.last_link = 0
        self.retried = 0
        self.suspects: list[Parcel] = []
        self.alone: Parcel | None = None

    # What is expected.
    def settle(self, expected: dict[int, str], settled: list[Item]) -> None:
        """Settle publishes. expected: the id() of items -> outcome. Each comes once."""
        assert len(settled) == len(expected)
        assert {id(each): each.end.outcome for each in settled if each.end} == expected
        for record in self.all:
            record.settled |= id(record.item) in expected
        for waiting in (self.queue, self.lingering):
            for parcel in list(waiting):
                parcel.records = parcel.left
                if not parcel.records:
                    waiting.remove(parcel)
                    self.fill_no_more(parcel)

    def given_up(self, records: list[Record]) -> dict[int, str]:
        return {id(r.item): "unknown" if r.attempts else "refused" for r in records}

    def waiting(self) -> list[Record]:
        return [r for parcel in self.queue + self.lingering for r in parcel.records]

    def fill_no_more(self, parcel: Parcel) -> None:
        if self.filling.get(parcel.destination) is parcel:
            del self.filling[parcel.destination]

    def close_batch(self, destination: str) -> None:
        parcel = self.filling.pop(destination, None)
        if parcel in self.lingering:
            self.lingering.remove(parcel)
            self.queue.append(parcel)

    # Accepting.
    @initialize(
        destinations=st.sets(st.sampled_from(DESTINATIONS), min_size=1), is_linked=st.booleans()
    )
    def start(self, destinations: set[str], is_linked: bool) -> None:
        for destination in sorted(destinations):
            self.open_destination(destination)
        if is_linked:
            self.open_link(set())

    @rule(messages=st.lists(MESSAGES, min_size=1, max_size=4))
    def accept(self, messages: list[Given]) -> None:
        for message in messages:
            self.accept_one(message)

    def accept_one(self, given: Given) -> None:
        destination, count = given.destination, given.messages
        is_packed = destination in PACKINGS
        size = given.size if is_packed else given.size * count
        held = [record.item.size for record in self.waiting()]
        fits = messages(self.waiting()) + count <= MESSAGES_MAX
        fits = fits and (not held or sum(held) + size <= BYTES_MAX)
        assert self.pending.backlog.has_room(size, count) == fits
        if not fits:
            return
        deadline_ms = self.now_ms + given.wait_ms
        if count > 1 and not is_packed:
            items = [Item(given.name, destination, given.size, deadline_ms) for _ in range(count)]
            self.all += (records := [Record(each) for each in items])
            self.queue += (Parcel(destination, [each]) for each in records)
            self.pending.backlog.accept_all(items, size)
            return
        record = Record(Item(given.name, destination, size, deadline_ms, count))
        self.all.append(record)
        if count > 1:
            self.close_batch(destination)
            self.queue.append(Parcel(destination, [record], is_batch=True))
            self.pending.backlog.accept_bundle(record.item)
            return
        if is_packed:
            self.pack(record, PACKINGS[destination], given.alone)
        else:
            self.queue.append(Parcel(destination, [record]))
        self.pending.backlog.accept(record.item, alone=given.alone)

    def pack(self, record: Record, packing: Packing, alone: bool) -> None:
        destination, size = record.item.destination, record.item.size
        parcel = self.filling.get(destination)
        if parcel is not None and not alone and parcel.size + size <= packing.bytes_max:
            parcel.records.append(record)
        else:
            self.close_batch(destination)
            if alone or size >= packing.bytes_max:
                self.queue.append(Parcel(destination, [record]))
                return
            parcel = self.filling[destination] = Parcel(destination, [record], is_batch=True)
            (self.lingering if packing.linger_ms else self.queue).append(parcel)
        if len(parcel.records) == packing.count_max or parcel.size >= packing.bytes_max:
            self.close_batch(destination)

    @rule(destination=st.sampled_from(DESTINATIONS))
    def open_destination(self, destination: str) -> None:
        if destination not in self.open_destinations:
            self.to_the_end(destination)
        self.open_destinations.add(destination)
        self.pending.backlog.open(destination)

    @rule(destination=st.sampled_from(DESTINATIONS))
    def close_destination(self, destination: str) -> None:
        self.open_destinations.discard(destination)
        self.pending.backlog.close({destination})

    def to_the_end(self, destination: str) -> None:
        mine = [parcel for parcel in self.queue if parcel.destination == destination]
        self.queue = [parcel for parcel in self.queue if parcel.destination != destination] + mine

    @rule(destination=st.sampled_from(DESTINATIONS))
    def refuse_destination(self, destination: str) -> None:
        self.close_batch(destination)
        held = [
            p
            for p in self.queue
            if p.destination == destination and destination not in self.open_destinations
        ]
        expected = self.given_up([record for parcel in held for record in parcel.records])
        self.settle(expected, self.pending.refuse_destination(destination, "no"))

    # Links.
    @rule(data=st.data(), then_take=st.booleans())
    def link_opens(self, data: st.DataObject, then_take: bool) -> None:
        links = sorted(self.links)
        self.open_link(data.draw(st.sets(st.sampled_from(links))) if links else set())
        if then_take:
            self.take()

    def open_link(self, after: set[int]) -> None:
        self.after = after
        self.last_link += 1
        self.current = self.last_link
        self.links[self.current] = Link()
        self.pending.in_flight.opened(self.current, after=sorted(after))

    @rule(data=st.data(), refused=st.booleans(), then_another=st.booleans())
    def link_ends(self, data: st.DataObject, refused: bool, then_another: bool) -> None:
        if not self.links:
            return
        number = data.draw(st.sampled_from(sorted(self.links)))
        left = self.links.pop(number).unanswered
        self.current = None if self.current == number else self.current
        if refused and left == [self.alone]:
            expected = self.taken_apart(left[0])
        else:
            self.suspects += [parcel for parcel in left if refused or parcel is self.alone]
            expected = self.sent_again(left)
        self.settle(expected, self.pending.link_lost(number, self.now_ms, refused=refused))
        if then_another:
            self.open_link(set())
            self.take()

    def taken_apart(self, refused: Parcel) -> dict[int, str]:
        """Put each message of a batch first, as a batch of its own. Returns the outcomes of the others."""
        is_one = not refused.is_batch or messages(refused.left) < 2
        again = [r for r in refused.left if not is_one and self.may_go_again(r)]
        ones = [Parcel(refused.destination, [record], is_batch=True) for record in again]
        self.queue, self.suspects = ones + self.queue, self.suspects + ones
        self.retried += messages(again)
        return {id(r.item): "refused" for r in refused.left if r not in again}

    def sent_again(self, left: list[Parcel]) -> dict[int, str]:
        """Put parcels that may be sent again first, in order. Returns the outcomes of the others."""
        lost: list[Record] = []
        again: list[Parcel] = []
        for parcel in left:
            kept = [r for r in parcel.left if self.may_go_again(r)]
            lost += [r for r in parcel.left if r not in kept]
            if kept:
                parcel.records = kept
                again.append(parcel)
                self.retried += messages(kept)
        self.queue = again + self.queue
        return {id(record.item): "unknown" for record in lost}

    def may_go_again(self, record: Record) -> bool:
        return record.attempts < ATTEMPTS_MAX and self.now_ms < record.item.deadline_ms

    # Sending.
    @rule(more=st.lists(MESSAGES, max_size=3))
    def publish(self, more: list[Given]) -> None:
        self.accept(more)
        self.take()

    def take(self) -> None:
        self.end_lingering()
        expected = self.sendable()
        taken = self.pending.take(self.now_ms)
        assert len(taken) == len(expected)
        for parcel, entry in zip(expected, taken, strict=True):
            assert parcel.is_given_as(entry)
            self.sent(parcel, entry)

    def end_lingering(self) -> None:
        for parcel in list(self.lingering):
            if parcel.due_ms is None:
                parcel.due_ms = self.now_ms + PACKINGS[parcel.destination].linger_ms
            if parcel.due_ms <= self.now_ms:
                self.close_batch(parcel.destination)

    def sendable(self) -> list[Parcel]:
        waited_for = any(self.links[link].unanswered for link in self.after & self.links.keys())
        ready = [parcel for parcel in self.queue if parcel.destination in self.open_destinations]
        if self.current is None or waited_for or not ready:
            return []
        flying = self.links[self.current].unanswered
        if self.suspects or self.alone:
            if flying:
                return []
            self.alone = ready[0] if ready[0] in self.suspects else None
            if self.alone:
                self.suspects = [each for each in self.suspects if each is not self.alone]
                return [self.alone]
            self.suspects = []
        return self.fitting(ready, [parcel.sent_bytes for parcel in flying])

    def fitting(self, ready: list[Parcel], flying: list[int]) -> list[Parcel]:
        """Return the first of them, as many as the window has room for."""
        fits: list[Parcel] = []
        for parcel in ready:
            if len(flying) == WINDOW or (flying and sum(flying) + parcel.size > WINDOW_BYTES_MAX):
                break
            flying.append(parcel.size)
            fits.append(parcel)
        return fits

    def sent(self, parcel: Parcel, entry: Entry) -> None:
        assert self.current is not None
        self.queue.remove(parcel)
        self.fill_no_more(parcel)
        self.links[self.current].sent.append(parcel)
        parcel.entry, parcel.sent_bytes = entry, parcel.size
        for record in parcel.records:
            record.attempts += 1
            assert record.item.attempts == record.attempts

    @rule(data=st.data())
    def nobody_waits_for_the_answer(self, data: st.DataObject) -> None:
        flying = [parcel for link in self.links.values() for parcel in link.unanswered]
        if flying:
            parcel = data.draw(st.sampled_from(flying))
            assert parcel.entry is not None
            expected = {id(record.item): "unknown" for record in parcel.left}
            settled = self.pending.ends.settle([parcel.entry], END_UNCONFIRMED)
            self.settle(expected, settled)

    # Answers and deadlines.
    @rule(data=st.data(), multiple=st.booleans(), ok=st.booleans(), routed=st.booleans())
    def broker_answers(self, data: st.DataObject, multiple: bool, ok: bool, routed: bool) -> None:
        busy = [number for number in sorted(self.links) if self.links[number].sent]
        if not busy:
            return
        number = data.draw(st.sampled_from(busy))
        link = self.links[number]
        tag = data.draw(st.integers(1, len(link.sent)))
        meant = range(1, tag + 1) if multiple else [tag]
        fresh = [each for each in meant if each not in link.answered]
        outcome = "confirmed" if ok else "refused"
        if not routed and not multiple and fresh:
            entry = link.sent[tag - 1].entry
            assert entry is not None
            self.pending.returned(number, entry.destination, entry.message_id)
            outcome = "unroutable"
        link.answered.update(fresh)
        records = [record for each in fresh for record in link.sent[each - 1].left]
        expected = {
            id(record.item): outcome if outcome == "confirmed" or record.attempts < 2 else "unknown"
            for record in records
        }
        self.settle(expected, self.pending.answered(number, tag, multiple=multiple, ok=ok))
        self.take()

    @rule(later_ms=st.sampled_from([0, 5, 10, 50, 1_000]))
    def time_passes(self, later_ms: int) -> None:
        self.now_ms += later_ms
        late = [r for r in self.all if not r.settled and r.item.deadline_ms <= self.now_ms]
        self.settle(self.given_up(late), self.pending.expire(self.now_ms))

    # Always.
    @invariant()
    def everything_is_somewhere_once(self) -> None:
        unsettled = [record for record in self.all if not record.settled]
        assert sum(self.pending.ends.counts.values()) == messages(self.all) - messages(unsettled)
        assert sorted(map(id, self.pending.unsettled())) == sorted(id(r.item) for r in unsettled)
        assert self.pending.backlog.messages == messages(self.waiting())
        assert self.pending.retried == self.retried
        assert self.pending.backlog.bytes == sum(r.item.size for r in self.waiting())
        assert self.pending.in_flight.count == sum(
            len(link.unanswered) for link in self.links.values()
        )
        for number, link in self.links.items():
            assert self.pending.in_flight.is_answered(number) == (not link.unanswered)
        due = [parcel.due_ms for parcel in self.lingering if parcel.due_ms is not None]
        assert self.pending.backlog.lingering.until_ms() == min(due, default=None)

    def teardown(self) -> None:
        unsettled = [record for record in self.all if not record.settled]
        self.settle(self.given_up(unsettled), self.pending.give_up("the end"))
        assert not list(self.pending.unsettled())
        assert (self.pending.backlog.messages, self.pending.backlog.bytes) == (0, 0)
