"""Counts of clients, as frozen snapshots."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

__all__ = [
    "AppStats",
    "BrokerStats",
    "ConsumerStats",
    "Durability",
    "Outcome",
    "Published",
    "PublisherStats",
    "RelayStats",
    "Status",
]


class Status(enum.Enum):
    """State of a client's life."""

    INITIALIZED = "initialized"
    """Made, not started."""
    RUNNING = "running"
    """Started, whether a broker is there or not."""
    STOPPED = "stopped"
    """For good: a client starts once."""


RUNNING = Status.RUNNING
"""Looked up once: an enum's members are found by a slow hook of its class, in 0.1 us."""


def why_not_running(status: Status, what: str, block: str) -> str:
    """Return the error text for a client that is not running, with what to do about it."""
    if status is Status.INITIALIZED:
        return f"the {what} was not started: call start(), or use it by `{block}`"
    return f"the {what} is {status.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherStats:
    """Snapshot of a publisher; counts since its start.

    confirmed, refused, unroutable, unknown: outcomes; unconfirmed: sent where no confirm is wanted.
    retried: sends after the first of a message. backlog: accepted and not sent. window: sent and not
    answered; a batch counts once. settling: destinations that are registered and settled just now,
    whose publishes wait.
    broker: the one that takes publishes now, "" when there is none or it does not say.
    dials: links tried. moves: links changed in good order. links_lost: links that ended by themselves.
    last_confirm_age_s: since the last answer of a broker; None before the first.
    list_age_s: since the last good answer about the consumer list; None without one. list_faults: as of
    `ConsumerStats`.
    redundant: messages confirmed by two brokers. downgraded: confirmed by one, where two were preferred.
    Each counts once in confirmed, too; the other counts and `broker` are of both links, and of the first.
    spooled: outcomes, as the others. spool_messages, spool_bytes: in the spool now, with what other processes
    left; deleted some moments after it is empty. spool_oldest_s: age of the oldest, 0 for none.
    replayed: messages of the spool that a broker confirmed; not among `confirmed`. spool_failures: sends from
    the spool that a broker refused, and that are tried again. spool_damaged: places of spool files that could
    not be read. spool_fault: why the spool takes nothing now, "" while it does.
    """

    confirmed: int
    refused: int
    unroutable: int
    unknown: int
    unconfirmed: int
    retried: int
    backlog: int
    window: int
    settling: int
    broker: str
    dials: int
    moves: int
    links_lost: int
    last_confirm_age_s: float | None
    list_age_s: float | None
    list_faults: int
    redundant: int = 0
    downgraded: int = 0
    spooled: int = 0
    spool_messages: int = 0
    spool_bytes: int = 0
    spool_oldest_s: float = 0.0
    replayed: int = 0
    spool_failures: int = 0
    spool_damaged: int = 0
    spool_fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStats:
    """Snapshot of one broker of a consumer.

    state: of its link. delivered: messages that arrived from it. owed: deliveries without an answer,
    handed out or not.
    """

    state: str
    delivered: int
    owed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStats:
    """Snapshot of a consumer; counts since its start.

    brokers: by ``host:port``. delivered: messages that arrived. acked, nacked: answers that were sent.
    buffered: arrived and not handed out. handed_out: in the application's hands, without an answer.
    list_generation: of the list that is followed, 0 where it does not say. acks_stale: answers that
    could go nowhere, because their link had ended.
    batches_damaged: parked whole, because they could not be unpacked.
    list_age_s: since the last good answer about the list; None without one.
    list_faults: answers that changed nothing because they were no list, older, or none at all.
    retried, parked: answered by a copy, for another run or in the parking queue.
    given_back: deliveries that nobody had seen before the broker's consumer timeout came near.
    handling: runs of handlers under way; oldest_run_s: age of the oldest run.
    overrunning: of these, runs that go on although their time was over.
    failed: runs that did not end well. dropped: deliveries that their policy dropped.

    With deduplication; else 0 and "":
    duplicates: deliveries acked unseen, because their message had ended before.
    deferred: deliveries that had to wait, because another run of their message went on.
    dedup_too_old: deliveries without a record that are older than `Dedup.remember_s`.
    undeduplicated: runs without a claim: the store was away, or the message has no id.
    dedup_state: "ok"; "waiting": the store is away, and nothing new is handed out; "open": it is away, and
    handlers run without it. store_away_s: for how long. store_s: mean time of its last calls.

    Where order is kept; else 0:
    order_waiting: deliveries behind others of their keys, or between two runs. order_gaps: parked, so that
    what followed went past them. keys_resting: keys whose first delivery failed and waits for its next run.
    keys_parked, keys_stopped: by a policy's `then`.
    """

    brokers: Mapping[str, BrokerStats]
    delivered: int
    acked: int
    nacked: int
    acks_stale: int
    batches_damaged: int
    buffered: int
    handed_out: int
    list_generation: int
    list_age_s: float | None
    list_faults: int
    retried: int = 0
    parked: int = 0
    given_back: int = 0
    handling: int = 0
    oldest_run_s: float = 0.0
    overrunning: int = 0
    failed: int = 0
    dropped: int = 0
    duplicates: int = 0
    deferred: int = 0
    dedup_too_old: int = 0
    undeduplicated: int = 0
    dedup_state: str = ""
    store_away_s: float = 0.0
    store_s: float = 0.0
    order_waiting: int = 0
    order_gaps: int = 0
    keys_resting: int = 0
    keys_parked: int = 0
    keys_stopped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayStats:
    """Snapshot of a relay of an outbox; counts since its start.

    published: rows confirmed. failed: publishes of rows that were refused or unroutable. parked: rows given
    up by it. held: rows in memory; in_flight: of these, published and without an end. shards: parts of the
    outbox that this relay has, of 16. database_faults: calls of the database that failed.
    Of the whole table, some seconds old: rows_waiting: added and not published; rows_retrying: of these,
    failed before; rows_parked; None before the first count, and while the database does not answer.
    oldest_s: age of the oldest row that waits, None when none does.
    """

    published: int
    failed: int
    parked: int
    held: int
    in_flight: int
    shards: int
    database_faults: int
    rows_waiting: int | None
    rows_retrying: int | None
    rows_parked: int | None
    oldest_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppStats:
    """Snapshot of an app that runs.

    consumers: of each subscription and queue, by name, once it has started. publisher: of the handlers'
    shared publisher. relay: of its outbox; None where it runs none.
    """

    consumers: Mapping[str, ConsumerStats]
    publisher: PublisherStats
    relay: RelayStats | None = None


class Outcome(enum.Enum):
    """End of a publish. Every publish ends in exactly one of these."""

    CONFIRMED = "confirmed"
    """A broker took responsibility."""
    REFUSED = "refused"
    """A broker said no (basic.nack), or the deadline passed before anything was sent: it is not stored."""
    UNROUTABLE = "unroutable"
    """No queue took it (basic.return)."""
    UNKNOWN = "unknown"
    """A link ended before the answer: it may or may not be stored. Publish again with the same id."""
    SPOOLED = "spooled"
    """No broker took it: it lies fsynced in the spool on this host's disk, and one will get it later.
    Only with `PublisherConfig.spool`."""


CONFIRMED_OUTCOME = Outcome.CONFIRMED
"""Looked up once, as `RUNNING`."""


class Durability(enum.Enum):
    """Level of what a confirmed message survives. It belongs to a destination, on every broker.

    No level survives the loss of the broker's disk.
    """

    FSYNC = "fsync"
    """Kill and power-off of the broker: written and fsynced to settled quorum queues before the confirm."""
    PAGE_CACHE = "page-cache"
    """Kill of the broker's process, not a power-off of its machine: handed to the operating system for
    durable classic queues before the confirm. That RabbitMQ 3.10 fsyncs them too is not promised."""
    NONE = "none"
    """Nothing: no confirm was waited for. What the broker had not read yet is gone with the link, what
    stood in its memory with its process, and nobody is told. The queues are those of page-cache."""


class Published(NamedTuple):
    """Result of one publish. A named tuple: it costs 0.15 us to make, a frozen dataclass 0.9.

    message_id: the one it has now, made or given. durability: what it survives if it is confirmed; FSYNC if
    it is spooled, on this host; else NONE. reason: in words, where the broker or the library gave one.
    broker: the broker that answered as ``host:port``, "" where none did or it is not identified.
    attempts: how often it was sent; above 1 an earlier copy may be stored too, under the same id.
    sent_ns, settled_ns: time.monotonic_ns() of the last send (0: never sent) and of the outcome.
    brokers: all that confirmed it: two of a redundant publish, none where nobody did; `broker` is the first.
    """

    message_id: str
    outcome: Outcome
    durability: Durability
    broker: str = ""
    attempts: int = 1
    sent_ns: int = 0
    settled_ns: int = 0
    reason: str = ""
    brokers: tuple[str, ...] = ()
