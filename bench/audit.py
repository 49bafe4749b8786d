"""The audit of a run: messages lost, altered, doubled and why, and the gaps of the publishers.

Pure set logic on recorded rows, independent of Spark, so that the two check each other. docs/MEASURING.md,
"What fails a verdict", defines faults, explained repeats and gaps. `messagebus.recording.events.FAULTS` has
the faults' names and texts.

An expected pair is a subscription of a topic (from the manifest) and a message with a confirmed publish.
A gap counts from the intended time, not from the sending: a publisher that is held back counts too.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from bench.harness.outcomes import Gap, longest_silence
from bench.rows import Events, Row
from messagebus.recording.events import FAULTS, OUTCOMES
from messagebus.recording.manifest import Manifest

DOUBLED = ("unknown", "owed", "acked_without_proof", "unexplained")
# Used where brokers are killed on purpose: the publishers' wait for them is measured separately.
ALLOWED = ("unconfirmed",)
# A consumer answers into the socket of a dead broker until it notices the death.
KILL_NOTICED_NS = 1_000_000_000
# Acks that a broker may have received but not applied: no more than it reads within this time.
ACK_UNPROVEN_NS = 60_000_000_000
# The largest difference between clocks of processes and hosts.
EARLY_NS = 1_000_000_000
NEVER_NS = 1 << 63


@dataclass(slots=True)
class SubscriptionAudit:
    """The counts of one subscription of one topic.

    expected, delivered, lost, pending: confirmed messages. deliveries: all deliveries, including repeats.
    unconfirmed: messages delivered although no publish of them was confirmed (the outcome was unknown, or
    a refused message had been sent). orphans: deliveries. unexpected: messages of another topic. late:
    first deliveries. doubled: class -> deliveries.
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
    unexpected: int = 0
    late: int = 0
    doubled: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DOUBLED, 0))


@dataclass(slots=True)
class BrokerAudit:
    """The counts of one broker.

    confirmed: publishes that it confirmed. lost: lost pairs of the messages that it confirmed.
    """

    confirmed: int = 0
    deliveries: int = 0
    lost: int = 0
    doubled: int = 0


@dataclass(slots=True)
class PublisherAudit:
    """The counts of one publisher. missing: its numbers between the lowest and the highest without a row."""

    published: int = 0
    confirmed: int = 0
    retried: int = 0
    gap: Gap = field(default_factory=Gap)
    missing: int = 0


@dataclass(slots=True)
class Audit:
    """The result of an audit. outcomes: outcome -> publishes. bad_lines: reason -> lines not understood.

    run_faults: name of `FAULTS` -> count, for faults that are not counted by subscription. allowed: names of
    faults that do not fail the audit.
    """

    run_id: str
    complete: bool
    published: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    run_faults: dict[str, int] = field(default_factory=lambda: dict.fromkeys(FAULTS, 0))
    allowed: tuple[str, ...] = ()
    subscriptions: list[SubscriptionAudit] = field(default_factory=list)
    brokers: dict[str, BrokerAudit] = field(default_factory=dict)
    publishers: dict[str, PublisherAudit] = field(default_factory=dict)
    bad_lines: dict[str, int] = field(default_factory=dict)
    lost_ids: list[str] = field(default_factory=list)

    @property
    def confirmed(self) -> int:
        return self.outcomes["confirmed"]

    def total(self, name: str) -> int:
        """Return the sum of one count over all subscriptions."""
        return sum(getattr(entry, name) for entry in self.subscriptions)

    def doubled(self, kind: str) -> int:
        return sum(entry.doubled[kind] for entry in self.subscriptions)

    @property
    def counts(self) -> dict[str, int]:
        """The faults that were found: name of `FAULTS` -> count."""
        every = self.run_faults | {
            "lost": self.total("lost"),
            "late": self.total("late"),
            "unexplained": self.doubled("unexplained"),
            "unconfirmed": sum(self.outcomes.values()) - self.confirmed,
            "bad": sum(self.bad_lines.values()),
            "incomplete": int(not self.complete),
            "nothing": int(not self.confirmed),
        }
        return {name: every[name] for name in FAULTS if every[name]}

    @property
    def faults(self) -> list[str]:
        """The reasons why the audit does not hold; empty when it holds."""
        return [_described(name, n) for name, n in self.counts.items() if name not in self.allowed]

    @property
    def put_up_with(self) -> list[str]:
        """The faults that were found and are allowed."""
        return [_described(name, n) for name, n in self.counts.items() if name in self.allowed]

    @property
    def holds(self) -> bool:
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds, "faults": self.faults, "counts": self.counts}


def _described(name: str, count: int) -> str:
    return FAULTS[name] if name in ("incomplete", "nothing") else f"{count:,} {FAULTS[name]}"


@dataclass(slots=True)
class _Sent:
    """The publish of one message: the first confirmed one, else the first.

    copies: copies that brokers may have stored. sent_ns, intended_ns: times of the first publish.
    """

    row: Row
    publishes: int = 0
    sendings: int = 0
    copies: int = 0
    confirms: int = 0
    differ: bool = False
    sent_ns: int = NEVER_NS
    intended_ns: int = NEVER_NS

    def add(self, row: Row) -> None:
        first = self.row
        self.publishes += 1
        self.sendings += row["attempts"]
        self.copies += row["attempts"] - (row["outcome"] in ("refused", "unroutable"))
        self.copies += SPOOLED_COPIES * (row["outcome"] == "spooled")
        self.confirms += row["outcome"] == "confirmed"
        self.differ |= any(row[name] != first[name] for name in ("size", "body_hash", "topic"))
        self.sent_ns = min(self.sent_ns, row["sent_ns"])
        self.intended_ns = min(self.intended_ns, row["intended_ns"])
        if _rank(row) < _rank(first):
            self.row = row

    @property
    def is_confirmed(self) -> bool:
        return self.confirms > 0

    @property
    def is_reused(self) -> bool:
        return self.differ or self.confirms > 1

    @property
    def topic(self) -> str:
        return str(self.row["topic"])

    @property
    def since_ns(self) -> int:
        """The earliest time of a delivery. Of several sendings only the last one's time is known."""
        return self.sent_ns if self.sendings == 1 else self.intended_ns


def _rank(row: Row) -> tuple[int, int]:
    return OUTCOME_ORDER.index(row["outcome"]), row.get("confirmed_ns") or 0


# A confirmed publish says most about a message, then one that may have been stored.
OUTCOME_ORDER = ("confirmed", "spooled", "unknown", "refused", "unroutable")
# A spooled message is sent later, by whichever process; again after each crash before its cursor was written.
SPOOLED_COPIES = 1_000


# Ids of lost messages that an audit names; a broken run may have millions.
LOST_IDS_MAX = 20


def audit(manifest: Manifest, events: Events, allow: Iterable[str] = ()) -> Audit:
    """Judge a run. allow: names of `FAULTS` that it may have. Linear in the rows, except for some sorting."""
    result = Audit(
        manifest.run_id, manifest.complete, bad_lines=dict(events.bad), allowed=tuple(allow)
    )
    for broker in manifest.brokers:
        result.brokers[broker] = BrokerAudit()
    sent = _read_published(result, events.published)
    by_pair = _deliveries_by_pair(events.delivered)
    kills = _kills(manifest)
    wrong: set[str] = set()
    renumbered = _renumbered(events.published)
    for topic, names in manifest.topics.items():
        for name in names:
            got = by_pair.pop((topic, name), {})
            entry = SubscriptionAudit(topic, name)
            result.subscriptions.append(entry)
            wrong |= _judge_deliveries(result, entry, sent, got, kills)
            wrong |= _judge_expected(result, entry, sent, got, manifest.last_owed_ns)
            entry.late = _late(sent, got, renumbered)
    result.run_faults |= {
        "altered": result.total("altered"),
        "orphan": result.total("orphans"),
        "unexpected": result.total("unexpected"),
    }
    _judge_messages(result, manifest, sent, events.delivered, wrong)
    if (
        manifest.grace_ns
        and manifest.grace_ns > (_end_ns(manifest, events) - manifest.start_ns) / 2
    ):
        result.run_faults["pending"] = result.total("pending")
    _judge_records(result, manifest, events)
    _measure_gaps(result, events.published, _end_ns(manifest, events))
    return result


def longest_gap(publisher_rows: Iterable[Row], until_ns: int, from_ns: int = 0) -> Gap:
    """Return the longest time without a confirm, within these times, while a confirm was awaited.

    See the module's text. A message that waited before from_ns counts from from_ns on.
    """
    rows = list(publisher_rows)
    confirmed = np.array([row["outcome"] == "confirmed" for row in rows], dtype=bool)
    intended = np.array([row["intended_ns"] for row in rows], dtype=np.int64)
    settled = np.array([row.get("confirmed_ns") or 0 for row in rows], dtype=np.int64)
    return longest_silence(intended, settled, confirmed, until_ns, from_ns)


def why_again(deliveries: Sequence[Row], copies: int, kills: Mapping[str, list[int]]) -> list[str]:
    """Return the reason of each delivery of a pair after its first. deliveries: in the order of arrival.

    copies: copies of the message that brokers may have stored; each one beyond the first explains a repeat.
    """
    found, spare = [], copies - 1
    last_of = {deliveries[0]["broker"]: deliveries[0]} if deliveries else {}
    for row in deliveries[1:]:
        broker = row["broker"]
        why = _by_broker(last_of.get(broker), row, kills.get(broker, ()))
        if not why and spare > 0:
            why, spare = "unknown", spare - 1
        found.append(why or "unexplained")
        last_of[broker] = row
    return found


def _by_broker(last: Row | None, repeat: Row, kills_ns: Iterable[int]) -> str:
    """Return why a broker repeated a delivery to a consumer; "" if unexplained.

    last: the broker's previous delivery of the message to this consumer.
    """
    if last is None:
        return ""
    if last["ack"] != "acked":
        return "owed"
    ack_ns = last.get("acknowledged_ns") or last["received_ns"]
    is_unproven = any(
        kill_ns - ACK_UNPROVEN_NS <= ack_ns <= kill_ns + KILL_NOTICED_NS
        and kill_ns < repeat["received_ns"]
        for kill_ns in kills_ns
    )
    return "acked_without_proof" if is_unproven else ""


def _read_published(result: Audit, rows: Iterable[Row]) -> dict[str, _Sent]:
    """Return message id -> publish; count outcomes, publishers and brokers on the way."""
    sent: dict[str, _Sent] = {}
    numbers: dict[str, set[int]] = defaultdict(set)
    for row in rows:
        numbers[row["publisher"]].add(row["sequence"])
        result.published += 1
        result.outcomes[row["outcome"]] += 1
        publisher = result.publishers.setdefault(row["publisher"], PublisherAudit())
        publisher.published += 1
        publisher.retried += row["attempts"] > 1
        publisher.confirmed += row["outcome"] == "confirmed"
        sent.setdefault(row["message_id"], _Sent(row)).add(row)
    for name, own in numbers.items():
        result.publishers[name].missing = max(own) - min(own) + 1 - len(own)
    for message in sent.values():
        if message.is_confirmed:
            result.brokers.setdefault(message.row["broker"], BrokerAudit()).confirmed += 1
    return sent


def _deliveries_by_pair(rows: Iterable[Row]) -> dict[tuple[str, str], dict[str, list[Row]]]:
    """Group rows as (topic, subscription) -> message id -> deliveries in the order of arrival."""
    found: dict[tuple[str, str], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row["topic"], row["subscription"]][row["message_id"]].append(row)
    for messages in found.values():
        for deliveries in messages.values():
            if len(deliveries) > 1:
                deliveries.sort(key=_arrival)
    return found


def _arrival(row: Row) -> tuple[int, str, str]:
    return int(row["received_ns"]), row["broker"], row["ack"]


def _kills(manifest: Manifest) -> dict[str, list[int]]:
    kills: dict[str, list[int]] = defaultdict(list)
    for broker, at_ns in manifest.kills:
        kills[broker].append(at_ns)
    return kills


def _judge_deliveries(
    result: Audit,
    entry: SubscriptionAudit,
    sent: Mapping[str, _Sent],
    got: Mapping[str, list[Row]],
    kills: Mapping[str, list[int]],
) -> set[str]:
    """Count the deliveries of one subscription; return the ids of altered and of unexpected messages."""
    wrong = set()
    for message_id, deliveries in got.items():
        entry.deliveries += len(deliveries)
        for row in deliveries:
            result.brokers.setdefault(row["broker"], BrokerAudit()).deliveries += 1
        message = sent.get(message_id)
        repeats = why_again(deliveries, message.copies if message else 0, kills)
        for repeat, why in zip(deliveries[1:], repeats, strict=True):
            entry.doubled[why] += 1
            result.brokers[repeat["broker"]].doubled += 1
        if message is None:
            entry.orphans += len(deliveries)
            continue
        if message.topic != entry.topic:
            entry.unexpected += 1
            wrong.add(message_id)
        entry.unconfirmed += not message.is_confirmed
        if any(
            row[name] != message.row[name] for row in deliveries for name in ("size", "body_hash")
        ):
            entry.altered += 1
            wrong.add(message_id)
    return wrong


def _judge_expected(
    result: Audit,
    entry: SubscriptionAudit,
    sent: Mapping[str, _Sent],
    got: Mapping[str, list[Row]],
    last_owed_ns: int | None,
) -> set[str]:
    """Count the messages of one subscription that it should have had; return the ids of lost ones."""
    lost = set()
    for message_id, message in sent.items():
        if message.topic != entry.topic or not message.is_confirmed:
            continue
        entry.expected += 1
        if message_id in got:
            entry.delivered += 1
            continue
        if last_owed_ns is not None and message.row["confirmed_ns"] > last_owed_ns:
            entry.pending += 1
            continue
        entry.lost += 1
        lost.add(message_id)
        result.brokers[message.row["broker"]].lost += 1
        if len(result.lost_ids) < LOST_IDS_MAX:
            result.lost_ids.append(message_id)
    return lost


def _renumbered(rows: Iterable[Row]) -> set[str]:
    """Return the publishers that gave one number to several messages, as a restarted publisher does."""
    seen: dict[tuple[str, int], str] = {}
    return {
        row["publisher"]
        for row in rows
        if seen.setdefault((row["publisher"], row["sequence"]), row["message_id"])
        != row["message_id"]
    }


def _late(
    sent: Mapping[str, _Sent], got: Mapping[str, list[Row]], renumbered: Collection[str]
) -> int:
    """Count first deliveries that came after a later message of their publisher and key.

    Only messages from one broker to one consumer are compared.
    Counts only messages that were sent once: a message that was sent again promises no order. Publishers
    in `renumbered` are judged by their intended times, which keep increasing.
    """
    arrivals = []
    for message_id, (first, *_) in got.items():
        message = sent.get(message_id)
        if message and message.sendings == 1 and not first["redelivered"]:
            row = message.row
            stream = (first["consumer"], first["broker"], row["publisher"], row.get("key") or "")
            is_anew = row["publisher"] in renumbered
            number = message.intended_ns if is_anew else row["sequence"]
            arrivals.append((first["received_ns"], number, stream))
    reached: dict[tuple[str, ...], int] = {}
    late = 0
    for _, sequence, stream in sorted(arrivals):
        late += sequence < reached.get(stream, sequence)
        reached[stream] = max(sequence, reached.get(stream, sequence))
    return late


def _judge_messages(
    result: Audit,
    manifest: Manifest,
    sent: Mapping[str, _Sent],
    delivered: Iterable[Row],
    wrong: Collection[str],
) -> None:
    """Judge each message, independent of its subscription: by the first of its faults.

    wrong: ids of lost, altered and unexpected messages; these faults come before a time or an outcome.
    """
    first_ns: dict[str, int] = {}
    for row in delivered:
        message_id, at_ns = row["message_id"], int(row["received_ns"])
        first_ns[message_id] = min(at_ns, first_ns.get(message_id, at_ns))
    found = result.run_faults
    for message_id, message in sent.items():
        came_ns = first_ns.get(message_id)
        found["reused"] += message.is_reused
        if message.is_confirmed:
            found["unjudged"] += not manifest.topics.get(message.topic)
            found["unlisted"] += message.row["broker"] not in (
                manifest.brokers or (message.row["broker"],)
            )
        if came_ns is None or message.is_reused or message_id in wrong:
            continue
        is_refused = not message.is_confirmed and message.copies <= 0
        found["refused_delivered"] += is_refused
        found["early"] += not is_refused and came_ns < message.since_ns - EARLY_NS


def _judge_records(result: Audit, manifest: Manifest, events: Events) -> None:
    """Add the faults that no row shows."""
    left_out = manifest.recorders.values()
    missing = sum(each.missing for each in result.publishers.values())
    # Of rows that were dropped, and of lines that are not understood, the number is known already.
    known = sum(each.dropped for each in left_out) + sum(events.bad.values())
    result.run_faults |= {
        "missing": max(0, missing - known),
        "absent": len(events.absent),
        "unread": len(events.unread),
        "dropped": sum(each.dropped for each in left_out),
        "deleted": sum(each.files_deleted for each in left_out),
        "silent": len(set(manifest.publishers) - result.publishers.keys()),
    }
    shares = {each.share for each in left_out}
    result.run_faults["shares"] = len(left_out) if len(shares) > 1 else 0


def _end_ns(manifest: Manifest, events: Events) -> int:
    """Return the run's end, or the last time in its rows if that is later or the run did not end in order."""
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
