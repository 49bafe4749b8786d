"""What went in against what came out: lost, altered, doubled and why, and the gaps of the publishers.

Pure set logic on recorded rows, independent of Spark, so that the two check each other. The rules:

- *expected*: every subscription of a topic (from the manifest) for every message with a confirmed
  publish. An expected pair (message, subscription) without a delivery is *lost*, or *pending* when the
  first confirm is later than `grace_ns` before the end.
- *altered*: a pair with a delivery whose size or hash differs from what was published.
- *orphan*: a delivery of a message that nobody recorded as published.
- *doubled*: a delivery of a pair after its first, in the order of arrival. It is
  ``unknown`` when the message was sent more than once (the answer to an earlier copy never came);
  ``owed`` when an earlier delivery from the same broker was never answered, or its answer was stale;
  ``acked_without_proof`` when an earlier one from the same broker was acked, and that broker was
  killed, or its links cut, between the ack and the repeat: AMQP acks are not confirmed, so it may
  never have applied it;
  and ``unexplained`` otherwise, which no run may have.
- *gap* of a publisher: the longest time without a confirm while it waited for one. Every confirm ends
  a silence; the silence began with the confirm before it, or, where nothing was open then, with the
  first intended time of what was open. Intended, not sent: a publisher that is held back counts too.
  A publish that was never confirmed waits until the next confirm, or until the end of the run.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.manifest import Manifest
from bench.rows import Events, Row
from messagebus.events import OUTCOMES

__all__ = [
    "DOUBLED",
    "Audit",
    "BrokerAudit",
    "Gap",
    "PublisherAudit",
    "SubscriptionAudit",
    "audit",
    "longest_gap",
    "longest_silence",
]

DOUBLED = ("unknown", "owed", "acked_without_proof", "unexplained")
NO_BROKER = ""
# A consumer answers into the socket of a dead broker until it hears of the death.
KILL_NOTICED_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Gap:
    """A silence of length_ns that began at start_ns (coordinator's monotonic clock).

    ended: with a confirm; else it lasted to the end of what was looked at.
    """

    length_ns: int = 0
    start_ns: int = 0
    ended: bool = True


@dataclass(slots=True)
class SubscriptionAudit:
    """One subscription of one topic.

    expected, delivered, lost, pending: messages that were confirmed. deliveries: all of them, repeats
    included. unconfirmed: messages delivered although no publish of them was confirmed (their outcome
    was unknown, or a refused one had been sent). orphans: deliveries. doubled: class -> deliveries.
    """

    topic: str
    subscription: str
    expected: int = 0
    delivered: int = 0
    deliveries: int = 0
    unconfirmed: int = 0
    lost: int = 0
    pending: int = 0
    altered: int = 0
    orphans: int = 0
    doubled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DOUBLED, 0))


@dataclass(slots=True)
class BrokerAudit:
    """confirmed: publishes it confirmed. lost: pairs expected from messages that it confirmed."""

    confirmed: int = 0
    deliveries: int = 0
    lost: int = 0
    doubled: int = 0


@dataclass(slots=True)
class PublisherAudit:
    published: int = 0
    confirmed: int = 0
    retried: int = 0
    gap: Gap = Gap()


@dataclass(slots=True)
class Audit:
    """The whole answer. outcomes: outcome -> publishes. bad_lines: reason -> lines not understood."""

    run_id: str
    complete: bool
    published: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    ids_reused: int = 0
    subscriptions: list[SubscriptionAudit] = field(default_factory=list)
    brokers: dict[str, BrokerAudit] = field(default_factory=dict)
    publishers: dict[str, PublisherAudit] = field(default_factory=dict)
    bad_lines: dict[str, int] = field(default_factory=dict)
    lost_ids: list[str] = field(default_factory=list)

    @property
    def confirmed(self) -> int:
        return self.outcomes["confirmed"]

    def total(self, name: str) -> int:
        """The sum of one count over all subscriptions."""
        return sum(getattr(entry, name) for entry in self.subscriptions)

    def doubled(self, kind: str) -> int:
        return sum(entry.doubled[kind] for entry in self.subscriptions)

    @property
    def faults(self) -> list[str]:
        """Why it does not hold; empty when it does."""
        counts = {
            "lost": self.total("lost"),
            "altered": self.total("altered"),
            "doubled without explanation": self.doubled("unexplained"),
            "delivered but never published": self.total("orphans"),
            "ids used twice": self.ids_reused,
            "lines not understood": sum(self.bad_lines.values()),
        }
        faults = [f"{count} {what}" for what, count in counts.items() if count]
        return faults + ([] if self.complete else ["the run did not end in order"])

    @property
    def holds(self) -> bool:
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds, "faults": self.faults}


@dataclass(slots=True)
class _Sent:
    """What is known of one message from its publishes."""

    size: int
    body_hash: str
    topic: str
    attempts: int
    confirmed_ns: int | None = None
    broker: str = NO_BROKER


# Ids of lost messages that an audit names; a broken run may have millions.
LOST_IDS_MAX = 20


def audit(manifest: Manifest, events: Events) -> Audit:
    """Judge a run. Linear in the number of rows, but for sorting each publisher's confirms."""
    result = Audit(manifest.run_id, manifest.complete, bad_lines=dict(events.bad))
    for broker in manifest.brokers:
        result.brokers[broker] = BrokerAudit()
    sent = _read_published(result, events.published)
    by_pair = _deliveries_by_pair(events.delivered)
    kills = _kills(manifest)
    for topic, names in manifest.topics.items():
        for name in names:
            got = by_pair.pop((topic, name), {})
            entry = SubscriptionAudit(topic, name)
            result.subscriptions.append(entry)
            _judge_deliveries(result, entry, sent, got, kills)
            _judge_expected(result, entry, sent, got, _last_owed_ns(manifest))
    _measure_gaps(result, events.published, _end_ns(manifest, events))
    return result


def longest_gap(publisher_rows: Iterable[Row], until_ns: int, from_ns: int = 0) -> Gap:
    """The longest time without a confirm while one was waited for, within these times.

    See the module's text. What waited before from_ns counts from then on.
    """
    rows = list(publisher_rows)
    confirmed = np.array([row["outcome"] == "confirmed" for row in rows], dtype=bool)
    intended = np.array([row["intended_ns"] for row in rows], dtype=np.int64)
    settled = np.array([row.get("confirmed_ns") or 0 for row in rows], dtype=np.int64)
    return longest_silence(intended, settled, confirmed, until_ns, from_ns)


def longest_silence(
    intended: NDArray[np.int64],
    settled: NDArray[np.int64],
    confirmed: NDArray[np.bool_],
    until_ns: int,
    from_ns: int = 0,
) -> Gap:
    """The same of a publish in each place. settled: counts where it was confirmed."""
    confirms = np.sort(settled[confirmed])
    ends = settled.copy()
    # What has no confirm waits for the next one of its publisher, or to the end.
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


def classify(
    earlier: Sequence[Row], repeat: Row, attempts: int, kills: Mapping[str, list[int]]
) -> str:
    """Why a pair was delivered again. earlier: its deliveries before, in the order of arrival."""
    broker = repeat["broker"]
    if attempts > 1:
        return "unknown"
    if any(row["ack"] != "acked" and row["broker"] == broker for row in earlier):
        return "owed"
    acks_ns = [
        row.get("acknowledged_ns") or row["received_ns"]
        for row in earlier
        if row["broker"] == broker
    ]
    for kill_ns in kills.get(broker, ()):
        if (
            acks_ns
            and min(acks_ns) <= kill_ns + KILL_NOTICED_NS
            and kill_ns < repeat["received_ns"]
        ):
            return "acked_without_proof"
    return "unexplained"


def _read_published(result: Audit, rows: Iterable[Row]) -> dict[str, _Sent]:
    """message id -> what was sent; counts outcomes, publishers and brokers on the way."""
    sent: dict[str, _Sent] = {}
    for row in rows:
        result.published += 1
        result.outcomes[row["outcome"]] += 1
        publisher = result.publishers.setdefault(row["publisher"], PublisherAudit())
        publisher.published += 1
        publisher.retried += row["attempts"] > 1
        known = sent.get(row["message_id"])
        if known is None:
            known = sent[row["message_id"]] = _Sent(
                row["size"], row["body_hash"], row["topic"], row["attempts"]
            )
        else:
            result.ids_reused += 1
        if row["outcome"] == "confirmed":
            publisher.confirmed += 1
            result.brokers.setdefault(row["broker"], BrokerAudit()).confirmed += 1
            known.confirmed_ns = row["confirmed_ns"]
            known.broker = row["broker"]
    return sent


def _deliveries_by_pair(rows: Iterable[Row]) -> dict[tuple[str, str], dict[str, list[Row]]]:
    """(topic, subscription) -> message id -> deliveries in the order of arrival."""
    found: dict[tuple[str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row["topic"], row["subscription"]][row["message_id"]].append(row)
    for messages in found.values():
        for deliveries in messages.values():
            if len(deliveries) > 1:
                deliveries.sort(key=_received_ns)
    return found


def _received_ns(row: Row) -> int:
    return int(row["received_ns"])


def _kills(manifest: Manifest) -> dict[str, list[int]]:
    kills: dict[str, list[int]] = defaultdict(list)
    for incident in manifest.incidents:
        if incident.kind in ("kill", "cut"):
            kills[incident.broker].append(incident.at_ns)
    return kills


def _judge_deliveries(
    result: Audit,
    entry: SubscriptionAudit,
    sent: Mapping[str, _Sent],
    got: Mapping[str, list[Row]],
    kills: Mapping[str, list[int]],
) -> None:
    for message_id, deliveries in got.items():
        entry.deliveries += len(deliveries)
        for row in deliveries:
            result.brokers.setdefault(row["broker"], BrokerAudit()).deliveries += 1
        message = sent.get(message_id)
        if message is None or message.topic != entry.topic:
            entry.orphans += len(deliveries)
            continue
        entry.unconfirmed += message.confirmed_ns is None
        entry.altered += any(
            row["size"] != message.size or row["body_hash"] != message.body_hash
            for row in deliveries
        )
        for number in range(1, len(deliveries)):
            repeat = deliveries[number]
            entry.doubled[classify(deliveries[:number], repeat, message.attempts, kills)] += 1
            result.brokers[repeat["broker"]].doubled += 1


def _judge_expected(
    result: Audit,
    entry: SubscriptionAudit,
    sent: Mapping[str, _Sent],
    got: Mapping[str, list[Row]],
    last_owed_ns: int | None,
) -> None:
    for message_id, message in sent.items():
        if message.topic != entry.topic or message.confirmed_ns is None:
            continue
        entry.expected += 1
        if message_id in got:
            entry.delivered += 1
            continue
        if last_owed_ns is not None and message.confirmed_ns > last_owed_ns:
            entry.pending += 1
            continue
        entry.lost += 1
        result.brokers[message.broker].lost += 1
        if len(result.lost_ids) < LOST_IDS_MAX:
            result.lost_ids.append(message_id)


def _last_owed_ns(manifest: Manifest) -> int | None:
    """Until when a confirmed message must have been delivered; None: whenever it was confirmed."""
    if manifest.end_ns is None or not manifest.grace_ns:
        return None
    return manifest.end_ns - manifest.grace_ns


def _end_ns(manifest: Manifest, events: Events) -> int:
    """Of the run; of one that did not end in order, or went on after it, the last time in its rows."""
    names = ("intended_ns", "sent_ns", "confirmed_ns", "received_ns", "acknowledged_ns")
    rows = itertools.chain(events.published, events.delivered)
    times = (row.get(name) or 0 for row in rows for name in names)
    return max(manifest.end_ns or 0, max(times, default=0))


def _measure_gaps(result: Audit, rows: Iterable[Row], end_ns: int) -> None:
    by_publisher: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_publisher[row["publisher"]].append(row)
    for name, publisher_rows in by_publisher.items():
        result.publishers[name].gap = longest_gap(publisher_rows, end_ns)
