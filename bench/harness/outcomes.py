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
) -> Gap:
    """Return the longest gap of publishes given as arrays. settled: counts only for confirmed publishes."""
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

    @property
    def unconfirmed_ns(self) -> NDArray[np.int64]:
        """The intended times of the unconfirmed messages."""
        found: NDArray[np.int64] = self.intended_ns[self.outcomes != CONFIRMED]
        return found

    def silence_ns(self, from_ns: int, until_ns: int) -> int | None:
        """Return the longest wait for a confirm within these times; see `longest_silence`."""
        if self.settled_ns is None:
            return None
        confirmed = self.outcomes == CONFIRMED
        gap = longest_silence(self.intended_ns, self.settled_ns, confirmed, until_ns, from_ns)
        return gap.length_ns


@dataclass(frozen=True, slots=True)
class Received:
    """The deliveries of one consumer, in order. brokers: the number of each delivery's broker.

    received_ns: since the load began; None where the order of arrival is enough.
    """

    subscription: str
    publishers: NDArray[np.int64]
    sequences: NDArray[np.int64]
    brokers: NDArray[np.int64]
    altered: int = 0
    received_ns: NDArray[np.int64] | None = None


@dataclass(slots=True)
class Fates:
    """Counts of messages by fate.

    lost: pairs of a confirmed message and a subscription that never had it. doubled: deliveries after the
    first of a pair. late: first deliveries after a later one of that publisher and broker, at one consumer.
    strange: deliveries of messages that no publisher has sent. unknown: messages of unknown outcome; found:
    pairs of these that were delivered. examples: fault -> names.
    """

    published: int = 0
    confirmed: int = 0
    unknown: int = 0
    found: int = 0
    expected: int = 0
    delivered: int = 0
    lost: int = 0
    doubled: int = 0
    altered: int = 0
    late: int = 0
    strange: int = 0
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
            "delivered and never published": self.strange,
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
    for subscription in {each.subscription for each in received}:
        own = [each for each in received if each.subscription == subscription]
        times = np.concatenate([_times(each) for each in own])
        publishers = np.concatenate([each.publishers for each in own])
        sequences = np.concatenate([each.sequences for each in own])
        order = np.lexsort((times, sequences, publishers))
        same = [np.diff(each[order]) == 0 for each in (publishers, sequences)]
        found.append(times[order][1:][same[0] & same[1]])
    return np.concatenate(found)


def _times(received: Received) -> NDArray[np.int64]:
    if received.received_ns is None:
        return np.arange(len(received.sequences), dtype=np.int64)
    return received.received_ns


def _judge_subscription(
    fates: Fates, subscription: str, outcomes: Outcomes, received: Sequence[Received]
) -> None:
    publishers = np.concatenate([each.publishers for each in received])
    sequences = np.concatenate([each.sequences for each in received])
    fates.strange += int((~np.isin(publishers, list(outcomes))).sum())
    for publisher, outcome in outcomes.items():
        had = sequences[publishers == publisher]
        fates.strange += int((had >= len(outcome)).sum())
        times = np.bincount(had[had < len(outcome)], minlength=len(outcome))
        confirmed, came = outcome == CONFIRMED, times > 0
        fates.expected += int(confirmed.sum())
        fates.delivered += int((confirmed & came).sum())
        fates.found += int(((outcome == UNKNOWN) & came).sum())
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
