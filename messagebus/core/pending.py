"""Publishes that were accepted and are not settled: from the backlog to a link, and back when it is lost.

Decides; sends nothing, waits for nothing. Times are whole milliseconds of a monotonic clock.

An item is *held* (its destination is not open yet, because it is not registered), in the *backlog*
(may be sent), in the *window* of a link (sent, unanswered), or settled. It is settled exactly once:

    accept ── held ──open──▶ backlog ──take──▶ window ──answered──▶ settled
                                     ▲                 │
                                     └───link_lost─────┘   (attempts and deadline permitting)

With `waits_when_full` what a broker refuses comes back too, and its destination rests (`core.full`).

Owners: `backlog` has what waits (`core.backlog`), `in_flight` what is sent, and `one_by_one` what is sent
again, alone (`core.in_flight`); `ends` settles and counts (`core.ends`). `PendingPublishes` moves publishes
between them, and decides what is sent again. What concerns one of them alone is asked of that one.

An item whose deadline passes is settled at once; a place in a window is kept until the broker's
answer, so that tags stay counted as the broker counts them.

A message that goes to two brokers is two items here and in a second `PendingPublishes` (`core.redundancy`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain

from messagebus.core.backlog import Backlog
from messagebus.core.confirms import Batch
from messagebus.core.ends import (
    DEADLINE_PASSED,
    END_CONFIRMED,
    END_REFUSED,
    END_UNROUTABLE,
    FULL_TOO_LONG,
    NO_DEADLINE_MS,
    REFUSED,
    UNKNOWN,
    UNROUTABLE,
    End,
    Ends,
    Entry,
    Item,
    items_of,
    messages_in,
    unsettled_of,
)
from messagebus.core.full import FullDestinations
from messagebus.core.in_flight import InFlight, OneByOne
from messagebus.core.redundancy import barred


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
        waits_when_full: bool = False,
    ) -> None:
        """Create it empty. ordered: what was sent and not answered goes again first and in order, whether or
        not it has its end: it may be stored, or become so late, and nothing may be sent behind it before.

        waits_when_full: what a broker refuses is tried again until its deadline; not where it is ordered,
        because what was sent behind it may be stored.
        """
        self.backlog = Backlog(messages_max=messages_max, bytes_max=bytes_max, ordered=ordered)
        self.in_flight = InFlight(messages_max=window, bytes_max=window_bytes_max)
        self.one_by_one = OneByOne()
        self.ends = Ends()
        self._attempts_max, self._retry_unknown = attempts_max, retry_unknown
        self._ordered = ordered
        self.full = FullDestinations() if waits_when_full and not ordered else None
        """Destinations that a broker refused, where publishes wait for room; None where they fail."""
        self.seals = False
        """Set where a return may mean that its destination is sealed: it comes back, and the rest waits."""
        self.retried = 0
        """Messages put back because their link ended, in all."""

    def unsettled(self) -> Iterator[Item]:
        """Yield all items accepted and not settled, in no order; exhaust it before changing anything."""
        sent = (item for entry in self.in_flight.entries() for item in unsettled_of(entry))
        return chain(self.backlog.unsettled(), sent)

    # Sending.
    def take(self, now_ms: int) -> list[Entry]:
        """Return everything to send now on the current link, in order."""
        backlog, in_flight, one_by_one = self.backlog, self.in_flight, self.one_by_one
        if backlog.lingering.destinations:
            backlog.lingering.end_due(now_ms)
        if in_flight.after and in_flight.waits_for_links():
            return []
        window, queue = in_flight.current, backlog.queue
        if window is None or not queue:
            return []
        if one_by_one.waiting or one_by_one.alone is not None:
            queue = one_by_one.next_of(queue, is_free=not len(window))
        taken = window.fill(queue, now_ms)
        count = size = 0
        for entry in taken:
            if isinstance(entry, Batch):
                backlog.fill_no_more(entry)
                for item in entry.items:
                    item.attempts += 1
                    count += item.count
            else:
                entry.attempts += 1
                count += 1
            size += entry.size
        backlog.messages -= count
        backlog.bytes -= size
        return taken

    def displace(self, broker: str, now_ms: int) -> list[Item]:
        """Remove the copies that may not be sent to this broker, and return them, in order.

        Looks at what the next `take` may give out; from now on those copies are meant for this broker.
        """
        backlog = self.backlog
        if backlog.lingering.destinations:
            backlog.lingering.end_due(now_ms)
        room = self.in_flight.room
        if room <= 0 or not backlog.queue:
            return []
        gone = barred(backlog.queue, broker, room)
        return backlog.remove(gone) if gone else []

    # Answers.
    def returned(self, link: int, destination: str, message_id: str) -> None:
        """Record that the broker sent this message back on this link; its ack follows."""
        window = self.in_flight.windows.get(link)
        if window is not None:
            if self.seals:
                self.seal(destination)
            window.returned(destination, message_id)

    def answered(self, link: int, tag: int, *, multiple: bool, ok: bool) -> list[Item]:
        """Record the broker's answer on this link. Returns the settled items: none once the link is gone."""
        window = self.in_flight.windows.get(link)
        if window is None:
            return []
        answered, unroutable = window.answered(tag, multiple=multiple)
        ends = self.ends
        if self.full is not None and (self.full or not ok):
            answered = self._when_full(answered, ok)
        settled = (
            ends.settle(answered, END_CONFIRMED) if ok else ends.not_taken(answered, END_REFUSED)
        )
        if not unroutable:
            return settled
        if not self.seals:
            return settled + ends.not_taken(unroutable, END_UNROUTABLE)
        self._come_back(unroutable)
        return settled

    def _when_full(self, entries: list[Entry], ok: bool) -> list[Entry]:
        """Note what was confirmed, or put back what was refused. Returns what is left to settle."""
        assert self.full is not None
        if ok:
            for entry in entries:
                self.full.confirmed(entry.destination)
            return entries
        # One that was closed for another reason is opened by who closed it.
        full = {entry.destination for entry in entries if self.backlog.is_open(entry.destination)}
        for destination in full:
            self.full.refused(destination)
        self.backlog.close(full)
        for entry in entries[::-1]:
            left = unsettled_of(entry)
            for item in left:
                item.attempts -= 1  # no broker has it of this one
            if left:
                self._send_again(entry, left)
        return []

    def try_full(self, now_ms: int) -> bool:
        """Open the full destinations whose rest is over. Returns whether there were any."""
        due = self.full.due(now_ms) if self.full else []
        for destination in due:
            self.backlog.open(destination)
        return bool(due)

    # Destinations.
    def close(self, destinations: Collection[str]) -> None:
        """Have publishes of these destinations wait until `Backlog.open`, full or not."""
        self.backlog.close(destinations)
        if self.full:
            for each in destinations:
                self.full.forget(each)

    def is_usable(self, destination: str) -> bool:
        """Return whether it is open, or will be when its rest is over."""
        return self.backlog.is_open(destination) or (
            self.full is not None and self.full.is_resting(destination)
        )

    def seal(self, destination: str) -> None:
        """Make publishes of this destination wait, in their order, with what comes back from the broker."""
        self.backlog.seal(destination, self.in_flight.entries())

    def _come_back(self, entries: Iterable[Entry]) -> None:
        """Put these among what waits for their destinations, each in its place."""
        for entry in entries:
            self.seal(entry.destination)
            self.backlog.put_in_place(entry)

    def refuse_destination(
        self, destination: str, reason: str, *, unroutable: bool = False
    ) -> list[Item]:
        """Settle the messages that wait for a destination that cannot be published to.

        unroutable: because nobody has created it.
        """
        items = self.backlog.take_held(destination)
        return self.ends.give_up(items, reason, UNROUTABLE if unroutable else REFUSED)

    # A link is lost.
    def link_lost(
        self, link: int, now_ms: int, reason: str = "", *, refused: bool = False
    ) -> list[Item]:
        """Drop a link: its open publishes are sent again, first and in order, or end as unknown.

        refused: the broker ended the link because of one of them. A batch that it refused is split, and each
        of its messages tried by itself, before any of them is refused.
        """
        entries = self.in_flight.lost(link)
        if refused and entries == [self.one_by_one.alone]:
            self._split(entries[0], now_ms)
            return self.ends.settle(entries, End(REFUSED, reason))
        self.one_by_one.lost(entries, refused=refused)
        lost: list[Item] = []
        for entry in reversed(entries):
            if self._ordered:
                self._put_back(entry, items_of(entry))
                continue
            left = unsettled_of(entry)
            again = [item for item in left if self._may_retry(item, now_ms)]
            if again:
                self._put_back(entry, again)
            lost += [item for item in reversed(left) if not self._may_retry(item, now_ms)]
        why = f"the link ended: {reason}" if reason else "the link ended"
        return self.ends.settle(reversed(lost), End(UNKNOWN, why))

    def _may_retry(self, item: Item, now_ms: int) -> bool:
        return (
            self._retry_unknown and item.attempts < self._attempts_max and now_ms < item.deadline_ms
        )

    def _put_back(self, entry: Entry, again: list[Item]) -> None:
        """Have these items of an entry sent again."""
        self.retried += messages_in(again)
        if entry.destination in self.backlog.sealed:
            self._come_back([entry])
            return
        self._send_again(entry, again)

    def _send_again(self, entry: Entry, items: list[Item]) -> None:
        """Have an entry with these of its items wait ahead of all others."""
        if isinstance(entry, Batch):
            entry.keep(items)
        self.backlog.put_first(entry)

    def _split(self, entry: Entry, now_ms: int) -> None:
        """Move the items of a batch of several into batches of one, where they may be sent again."""
        left = unsettled_of(entry)
        is_sealed = entry.destination in self.backlog.sealed
        if not isinstance(entry, Batch) or messages_in(left) < 2 or is_sealed:
            return
        left = [part for item in left for part in item.taken_apart()]
        again = [item for item in left if self._may_retry(item, now_ms)]
        for item in reversed(again):
            one = Batch(item)
            self.one_by_one.waiting.add(one)
            self.backlog.put_first(one)
        entry.items = [item for item in left if item not in again]
        self.retried += messages_in(again)

    # Deadlines and the end.
    def expire(self, now_ms: int, reason: str = DEADLINE_PASSED) -> list[Item]:
        """Settle items that have passed their deadline: refused when never sent, else unknown."""
        # Looked through only when the earliest has passed: at most once per length of a deadline while all
        # is well, because its item has been settled long before.
        if now_ms < self.backlog.earliest_ms:
            return []
        late = [item for item in self.unsettled() if item.deadline_ms <= now_ms]
        # Without a link nobody knows whether it is full still, and why there is none says more.
        known = self.full if self.in_flight.current is not None else None
        full = [item for item in late if known and item.destination in known]
        settled = self.withdraw(full, FULL_TOO_LONG) + self.withdraw(late, reason)
        self.backlog.earliest_ms = min(
            (item.deadline_ms for item in self.unsettled()), default=NO_DEADLINE_MS
        )
        return settled

    def withdraw(self, items: Iterable[Item], reason: str) -> list[Item]:
        """Settle these before their deadline, refused when never sent, else unknown. Returns them."""
        settled = self.ends.give_up([item for item in items if item.end is None], reason)
        self.backlog.drop_settled()
        return settled

    def take_out(self, wanted: Callable[[Item], bool]) -> list[Item]:
        """Take out the unsettled items that are wanted, each destination's in the order of their acceptance.

        wanted: of a destination all or none. They are the caller's; answers to those that were sent no longer
        count. `ends` settles them.
        """
        return self.in_flight.take_out(wanted) + self.backlog.take_out(wanted)

    def put_forward(self, ms: int) -> None:
        """Advance the time of everything open by ms, where a clock can be moved."""
        for item in self.unsettled():
            item.deadline_ms -= ms
        self.backlog.put_forward(ms)
        if self.full:
            self.full.put_forward(ms)

    def give_up(self, reason: str) -> list[Item]:
        """Settle everything and drop all links: the publisher stops."""
        settled = self.ends.give_up(list(self.unsettled()), reason)
        self.backlog.clear()
        self.in_flight.clear()
        return settled
