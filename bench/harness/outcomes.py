"""The fate of every message of a run, by the numbers of its publisher and itself, not by counts.

Each publisher writes one byte per message, its outcome; each consumer the numbers that it received,
in their order. Pure: arrays in, counts and examples out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# One byte per message, in the order of its numbers.
OTHERWISE, CONFIRMED, UNKNOWN = 0, 1, 2
EXAMPLES_MAX = 20

Outcomes = Mapping[int, NDArray[np.uint8]]
"""Publisher -> outcome of message 0, 1, ..."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap of length_ns without a confirm that began at start_ns (coordinator's monotonic clock).

    ended: whether a confirm ended it; otherwise it lasted to the end of the examined time.
    """

    length_ns: int = 0
    start_ns: int = 0
    ended: bool = True


def longest_silence(
    intended: NDArray[np.int64],
    settled: NDArray[np.int64],
    confirmed: NDArray[np.bool_],
    until_ns: int,
    from_ns: int = 0,
    around_ns: tuple[int, int] | None = None,
) -> Gap:
    """Return the longest gap of publishes given as arrays. settled: counts only for confirmed publishes.

    around_ns: begin and end of an incident: only its gaps, each whole. These end at or after its begin, and
    begin at or before its end.
    """
    confirms = np.sort(settled[confirmed])
    ends = settled.copy()
    # An unconfirmed publish waits for the next confirm of its publisher, or to the end.
    ends[~confirmed] = np.append(confirms, until_ns)[
        np.searchsorted(confirms, intended[~confirmed])
    ]
    within = (intended < until_ns) & (ends >= from_ns)
    starts, ends = np.maximum(intended, from_ns), np.minimum(ends, until_ns)
    if not within.any():
        return Gap()
    order = np.argsort(ends[within], kind="stable")
    starts, ends = starts[within][order], ends[within][order]
    # From the end: the earliest start of everything that ends now or later.
    open_since = np.minimum.accumulate(starts[::-1])[::-1]
    since = np.maximum(open_since, np.concatenate((starts[:0], open_since[:1], ends[:-1])))
    if around_ns is not None:
        own = (ends >= around_ns[0]) & (since <= around_ns[1])
        if not own.any():
            return Gap()
        since, ends = since[own], ends[own]
    longest = int(np.argmax(ends - since))
    end_ns, start_ns = int(ends[longest]), int(since[longest])
    return Gap(end_ns - start_ns, start_ns, ended=bool(np.isin(end_ns, confirms)))


@dataclass(frozen=True, slots=True)
class Published:
    """The outcomes of messages 0, 1, ... of one publisher. Times: since the load began.

    settled_ns: times of the ends; None where they were not recorded.
    """

    outcomes: NDArray[np.uint8]
    intended_ns: NDArray[np.int64]
    settled_ns: NDArray[np.int64] | None = None

    def around(
        self, began_ns: int, until_ns: int, since_ns: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], int] | None:
        """Return waits in ns before an incident and after it, and how many after it were never confirmed.

        Before it are those that were intended from since_ns on and confirmed before began_ns. After it are
        those that were under way then, and those that were intended later, before until_ns. None where the
        times of the ends are not known.
        """
        if self.settled_ns is None:
            return None
        confirmed, took = self.outcomes == CONFIRMED, self.settled_ns - self.intended_ns
        # One that did not end has no time of an end.
        ended_before = (self.settled_ns < began_ns) & (confirmed | (took >= 0))
        after = ~ended_before & (self.intended_ns < until_ns)
        never = int((after & ~confirmed).sum())
        before = ended_before & (self.intended_ns >= since_ns)
        return took[before & confirmed], took[after & confirmed], never

    @property
    def unconfirmed_ns(self) -> NDArray[np.int64]:
        """The intended times of the unconfirmed messages."""
        found: NDArray[np.int64] = self.intended_ns[self.outcomes != CONFIRMED]
        return found

    def silence_ns(
        self, from_ns: int, until_ns: int, around_ns: tuple[int, int] | None = None
    ) -> int | None:
        """Return the longest wait for a confirm within these times; see `longest_silence`."""
        if self.settled_ns is None:
            return None
        confirmed = self.outcomes == CONFIRMED
        gap = longest_silence(
            self.intended_ns, self.settled_ns, confirmed, until_ns, from_ns, around_ns
        )
        return gap.length_ns


@dataclass(frozen=True, slots=True)
class Received:
    """The deliveries of one consumer, in order. brokers: the number of each delivery's broker in names.

    intended_ns, received_ns: since the load began.
    """

    subscription: str
    publishers: NDArray[np.int64]
    sequences: NDArray[np.int64]
    brokers: NDArray[np.int64]
    received_ns: NDArray[np.int64]
    intended_ns: NDArray[np.int64]
    names: Sequence[str] = ()
    altered: int = 0


@dataclass(slots=True)
class Fates:
    """Counts of messages by fate.

    lost: pairs of a confirmed message and a subscription that never had it. doubled: deliveries after the
    first of a pair. late: first deliveries after a later one of that publisher and broker, at one consumer.
    orphan: deliveries of messages that no publisher has sent. unknown: messages of unknown outcome;
    unknown_delivered: pairs of these that were delivered. examples: fault -> names.
    """

    published: int = 0
    confirmed: int = 0
    unknown: int = 0
    unknown_delivered: int = 0
    expected: int = 0
    delivered: int = 0
    lost: int = 0
    doubled: int = 0
    altered: int = 0
    late: int = 0
    orphan: int = 0
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def refused(self) -> int:
        """The publishes that ended neither confirmed nor unknown."""
        return self.published - self.confirmed - self.unknown

    @property
    def faults(self) -> list[str]:
        """The faults. A double is none: the promise is at least once."""
        told = {
            "confirmed and never delivered": self.lost,
            "altered": self.altered,
            "delivered and never published": self.orphan,
        }
        return [f"{count:,} {what}" for what, count in told.items() if count]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "refused": self.refused, "faults": self.faults}


def judge(
    outcomes: Outcomes, received: Sequence[Received], topic_of: Callable[[int], str]
) -> Fates:
    """Compare outcomes with deliveries.

    Each consumed subscription should get all confirmed messages of its topic. topic_of: returns the topic of
    a publisher.
    """
    fates = Fates()
    for each in outcomes.values():
        fates.published += len(each)
        fates.confirmed += int((each == CONFIRMED).sum())
        fates.unknown += int((each == UNKNOWN).sum())
    fates.altered = sum(each.altered for each in received)
    for subscription in sorted({each.subscription for each in received}):
        own = [each for each in received if each.subscription == subscription]
        topic = subscription.partition("/")[0]
        of_topic = {number: each for number, each in outcomes.items() if topic_of(number) == topic}
        _judge_subscription(fates, subscription, of_topic, own)
    for consumer in received:
        _judge_order(fates, consumer)
    return fates


def repeats_ns(received: Sequence[Received]) -> NDArray[np.int64]:
    """Return the times at which messages came to a subscription that had them before."""
    found = [np.empty(0, dtype=np.int64)]
    places = zip(received, first_places(received), strict=True)
    return np.concatenate([*found, *(each.received_ns[~first] for each, first in places)])


def first_places(received: Sequence[Received]) -> list[NDArray[np.bool_]]:
    """Return of each consumer's deliveries which were the first of their message to the subscription."""
    found = [np.zeros(len(each.sequences), dtype=bool) for each in received]
    for subscription in {each.subscription for each in received}:
        own = [number for number, each in enumerate(received) if each.subscription == subscription]
        times = np.concatenate([received[number].received_ns for number in own])
        publishers = np.concatenate([received[number].publishers for number in own])
        sequences = np.concatenate([received[number].sequences for number in own])
        order = np.lexsort((times, sequences, publishers))
        same = [np.diff(each[order]) == 0 for each in (publishers, sequences)]
        first = np.ones(len(order), dtype=bool)
        first[order[1:][same[0] & same[1]]] = False
        ends = np.cumsum([len(received[number].sequences) for number in own])
        for number, part in zip(own, np.split(first, ends[:-1]), strict=True):
            found[number] = part
    return found


def _judge_subscription(
    fates: Fates, subscription: str, outcomes: Outcomes, received: Sequence[Received]
) -> None:
    publishers = np.concatenate([each.publishers for each in received])
    sequences = np.concatenate([each.sequences for each in received])
    fates.orphan += int((~np.isin(publishers, list(outcomes))).sum())
    for publisher, outcome in outcomes.items():
        had = sequences[publishers == publisher]
        fates.orphan += int((had >= len(outcome)).sum())
        times = np.bincount(had[had < len(outcome)], minlength=len(outcome))
        confirmed, came = outcome == CONFIRMED, times > 0
        fates.expected += int(confirmed.sum())
        fates.delivered += int((confirmed & came).sum())
        fates.unknown_delivered += int(((outcome == UNKNOWN) & came).sum())
        fates.doubled += int(np.maximum(times - 1, 0).sum())
        missing = np.flatnonzero(confirmed & ~came)
        fates.lost += len(missing)
        _name(fates, "lost", subscription, publisher, missing)
        _name(fates, "doubled", subscription, publisher, np.flatnonzero(times > 1))


def _judge_order(fates: Fates, received: Received) -> None:
    streams = received.publishers * (1 << 16) + received.brokers
    for stream in np.unique(streams):
        sequences = received.sequences[streams == stream]
        _, first = np.unique(sequences, return_index=True)
        in_order = sequences[np.sort(first)]
        late = in_order < np.maximum.accumulate(in_order)
        fates.late += int(late.sum())
        _name(fates, "late", received.subscription, int(stream) >> 16, in_order[late])


def _name(
    fates: Fates, fault: str, subscription: str, publisher: int, sequences: NDArray[np.int64]
) -> None:
    examples = fates.examples.setdefault(fault, []) if len(sequences) else []
    room = EXAMPLES_MAX - len(examples)
    examples += [f"{subscription}: p{publisher}/{number}" for number in sequences[:room]]
