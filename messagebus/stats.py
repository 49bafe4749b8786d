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
    """State of a client."""

    INITIALIZED = "initialized"
    """Created, not started."""
    RUNNING = "running"
    """Started, with or without a connection to a broker."""
    STOPPED = "stopped"
    """Stopped permanently: a client starts once."""


RUNNING = Status.RUNNING
"""Looked up once: an enum's members are found by a slow hook of its class, in 0.1 us."""


def why_not_running(status: Status, what: str, block: str) -> str:
    """Return the error text for a client that is not running, with what to do about it."""
    if status is Status.INITIALIZED:
        return f"the {what} was not started: call start(), or use it by `{block}`"
    return f"the {what} is {status.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherStats:
    """Snapshot of a publisher. Counts are since its start, times in seconds.

    confirmed, refused, unroutable, unknown: publishes by outcome. unconfirmed: messages sent to a destination
    without confirms.
    retried: sends after the first send of a message. backlog: messages accepted and not yet sent. window:
    messages sent and not yet confirmed; a batch counts once.
    settling: destinations whose queues are not on disk yet; their publishes wait.
    broker: the broker that receives the publishes now, by its address where it does not say its name; ""
    while there is none.
    dials: connections tried. moves: planned changes to another broker. links_lost: connections that ended
    unexpectedly.
    last_confirm_age_s: time since a broker last answered a publish; None before the first answer.
    list_age_s, list_faults: as of `ConsumerStats`.
    redundant: messages that two brokers confirmed. downgraded: messages for two brokers that only one
    confirmed. Both count in `confirmed`, too. With redundant publishing, the other counts are of both
    connections, and `broker` is that of the first.
    spooled: publishes that ended in the disk spool. spool_messages, spool_bytes: messages in the spool and
    size of its files, with those that other processes left. spool_oldest_s: age of the oldest, 0 if none.
    replayed: messages of the spool that a broker confirmed; they do not count in `confirmed`.
    spool_failures: sends from the spool that a broker refused; they are repeated.
    spool_damaged: places in spool files that could not be read. spool_fault: why the spool accepts nothing
    now; "" while it accepts messages.
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

    state: of the connection, such as ``open``. delivered: messages received from the broker. owed:
    deliveries without an answer, handed out to the application or not.
    """

    state: str
    delivered: int
    owed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStats:
    """Snapshot of a consumer. Counts are since its start, times in seconds.

    brokers: ``host:port`` -> its snapshot. delivered: messages received. acked, nacked: answers sent.
    buffered: deliveries received and not yet handed out. handed_out: deliveries that the application has and
    has not answered.
    list_generation: generation of the consumer list in use; 0 if the list has none.
    acks_stale: answers after the connection of their delivery had ended; the broker redelivers it.
    batches_damaged: batches that could not be unpacked and were parked.
    list_age_s: time since the last valid consumer list; None before the first.
    list_faults: requests for the list that failed, or whose answer was older or not valid.
    retried, parked: deliveries copied for another run, or into the parking queue.
    given_back: deliveries returned unhandled before the broker's consumer timeout.
    handling: runs of handlers in progress. oldest_run_s: duration of the longest of them.
    overrunning: runs that exceed their time limit and have not ended.
    failed: runs that failed. dropped: deliveries that the retry policy dropped.

    With deduplication, otherwise 0 and "":
    duplicates: deliveries acked without a run, because a run of their message had succeeded before.
    deferred: deliveries that waited for another run of their message.
    dedup_too_old: deliveries without a record that are older than `Dedup.remember_s`.
    undeduplicated: runs without deduplication: the store did not answer, or the message has no id.
    dedup_state: "ok"; "waiting": the store does not answer, and nothing is handed out; "open": the store does
    not answer, and handlers run without it. store_away_s: time without an answer of the store.
    store_s: mean duration of its last calls.

    If order is kept, otherwise 0:
    order_waiting: deliveries that wait behind others of their key, or for their next run.
    order_gaps: parked deliveries that later ones of their key passed.
    keys_resting: keys whose first delivery failed and waits for its next run.
    keys_parked, keys_stopped: keys that the retry policy (`then`) parked or stopped.
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
    """Snapshot of a relay of an outbox. Counts are since its start.

    published: rows that a broker confirmed. failed: publishes of rows that were refused or unroutable.
    parked: rows that failed too often and were parked by this relay. held: rows in memory. in_flight: rows
    published and not yet confirmed. shards: parts of the outbox that this relay has, of 16.
    database_faults: calls of the database that failed.
    The following are of the whole table, and a few seconds old; they are None before the first count and
    while the database does not answer. rows_waiting: rows added and not yet published. rows_retrying: waiting
    rows that have failed before. rows_parked: parked rows.
    oldest_s: age of the oldest waiting row in seconds; None if no row waits.
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
    """Snapshot of a running app.

    consumers: name of the subscription or queue -> its consumer; empty before the start. publisher: the
    publisher that the handlers share. relay: the relay of the outbox; None if the app runs none.
    """

    consumers: Mapping[str, ConsumerStats]
    publisher: PublisherStats
    relay: RelayStats | None = None


class Outcome(enum.Enum):
    """Outcome of a publish. Every publish ends in exactly one of these."""

    CONFIRMED = "confirmed"
    """A broker has stored the message, at the durability of its destination."""
    REFUSED = "refused"
    """The message is not stored: a broker rejected it (basic.nack), or its deadline passed before."""
    UNROUTABLE = "unroutable"
    """The message is not stored: no queue took it (basic.return)."""
    UNKNOWN = "unknown"
    """The connection ended before the answer: it may or may not be stored. Publish again with the same id."""
    SPOOLED = "spooled"
    """No broker took the message: it is fsynced in the spool on this host's disk, and is sent to a broker
    later. Only with `PublisherConfig.spool`."""


CONFIRMED_OUTCOME = Outcome.CONFIRMED
"""Looked up once, as `RUNNING`."""


class Durability(enum.Enum):
    """Durability of a destination: what its confirmed messages survive, on every broker.

    No level survives the loss of the broker's disk.
    """

    FSYNC = "fsync"
    """A kill and a power-off of the broker: quorum queues fsync each message before the confirm."""
    PAGE_CACHE = "page-cache"
    """A kill of the broker's process, but not a power-off of its machine: durable classic queues write each
    message to the page cache before the confirm."""
    NONE = "none"
    """Nothing: the publisher waits for no confirm. Messages that the broker has not read are lost with the
    connection, those in its memory with its process, without an error. The queues are those of page-cache."""


# A named tuple: it costs 0.15 us to make, a frozen dataclass 0.9.
class Published(NamedTuple):
    """Result of one publish, as a named tuple.

    message_id: the id of the message, given or generated. outcome: how the publish ended.
    durability: what a confirmed message survives; FSYNC for a spooled one, on this host; otherwise NONE.
    reason: why it was not confirmed, in words; "" if neither broker nor library gave a reason.
    broker: ``host:port`` of the broker that answered; "" if none did, or its name is not known.
    attempts: number of sends. Above 1, an earlier copy may be stored too, under the same id.
    sent_ns, settled_ns: time.monotonic_ns() of the last send (0: never sent) and of the outcome.
    brokers: every broker that confirmed: two for a redundant publish; `broker` is the first.
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
