"""Publishes and their ends: each publish is settled exactly once, and its outcome is counted.

An `Item` is one publish; it travels by itself or in a `Batch`, and either is an `Entry`. `Ends` alone gives
an item its end, and counts it. An item that was never sent is refused. Where an item was sent and nobody
answered, its end is unknown: a broker may have stored it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from messagebus.core.confirms import Batch

CONFIRMED, REFUSED, UNROUTABLE, UNKNOWN = "confirmed", "refused", "unroutable", "unknown"
SPOOLED = "spooled"


class End(NamedTuple):
    """The end of a publish. outcome: confirmed, refused, unroutable, unknown or spooled."""

    outcome: str
    reason: str = ""


NO_DEADLINE_MS = 1 << 62
# Beginnings of reasons that say nothing against the message.
DEADLINE_PASSED, PUBLISHER_STOPPED = "deadline passed", "the publisher was stopped"
# Beginnings of reasons of a message that is refused as it is, at every try.
NOT_ENCODED, TOO_LONG = "cannot be encoded", "headers "
NO_PRIORITY = "a message with a priority has no place"
REFUSED_FOR_EVER = (NOT_ENCODED, TOO_LONG, NO_PRIORITY)
NO_READER = "no queue took it; declare a subscription first"
END_CONFIRMED, END_UNROUTABLE = End(CONFIRMED), End(UNROUTABLE, NO_READER)
LATE_WHILE_OPENED = (
    f"{DEADLINE_PASSED} while its queues were created on the brokers, some four seconds the first time:"
    " publish again"
)
FULL_TOO_LONG = f"{DEADLINE_PASSED}: the broker refused it until then, because a queue is full"
END_REFUSED = End(REFUSED, "the broker refused it")
END_PERHAPS_STORED = End(UNKNOWN, "not taken, after an attempt whose link was lost")
END_UNCONFIRMED = End(UNKNOWN, "no confirm is waited for")
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


def items_of(entry: Entry) -> list[Item]:
    return entry.items if isinstance(entry, Batch) else [entry]


def unsettled_of(entry: Entry) -> list[Item]:
    """Return the items of an entry that have no end yet."""
    return [item for item in items_of(entry) if item.end is None]


def messages_in(items: Iterable[Item]) -> int:
    """Return the number of messages in these items."""
    return sum(item.count for item in items)


class Ends:
    """The ends of one publisher's publishes."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys((CONFIRMED, REFUSED, UNROUTABLE, UNKNOWN, SPOOLED), 0)
        """Messages settled so far, by outcome."""

    def settle(self, entries: Iterable[Entry], end: End) -> list[Item]:
        """Settle the entries that are not settled yet. Returns their items."""
        settled: list[Item] = []
        count = 0
        for entry in entries:
            if isinstance(entry, Batch):
                left = [item for item in entry.items if item.end is None]
                for item in left:
                    item.end = end
                    count += item.count
                settled += left
            elif entry.end is None:
                entry.end = end
                count += entry.count
                settled.append(entry)
        self.counts[end.outcome] += count
        return settled

    def give_up(self, items: list[Item], reason: str, outcome: str = REFUSED) -> list[Item]:
        """Settle these with this outcome where they were never sent, else as unknown. Returns them."""
        never_sent, unknown = End(outcome, reason), End(UNKNOWN, reason)
        for item in items:
            self.settle([item], unknown if item.attempts else never_sent)
        return items

    def not_taken(self, entries: Iterable[Entry], end: End) -> list[Item]:
        """Settle what a broker did not take. What was sent before over a link that was lost may be stored."""
        items = [item for entry in entries for item in unsettled_of(entry)]
        for item in items:
            self.settle([item], END_PERHAPS_STORED if item.attempts > 1 else end)
        return items
