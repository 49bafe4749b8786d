"""Counts of clients, as frozen snapshots."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BrokerStats", "ConsumerStats", "PublisherStats", "Status"]


class Status(enum.Enum):
    """State of a client's life."""

    INITIALIZED = "initialized"
    """Made, not started."""
    RUNNING = "running"
    """Started, whether a broker is there or not."""
    STOPPED = "stopped"
    """For good: a client starts once."""


RUNNING = Status.RUNNING
"""Looked up once: an enum's members are found by a slow hook of its class."""


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
    last_confirm_age_ms: since the last answer of a broker; None before the first.
    list_age_ms: since the last good answer about the consumer list; None without one. list_faults: as of
    `ConsumerStats`.
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
    last_confirm_age_ms: int | None
    list_age_ms: int | None
    list_faults: int


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
    list_age_ms: since the last good answer about the list; None without one.
    list_faults: answers that changed nothing because they were no list, older, or none at all.
    retried, parked: answered by a copy, for another run or in the parking queue.
    given_back: deliveries that nobody had seen before the broker's consumer timeout came near.
    handling: runs of handlers under way; oldest_run_s: age of the oldest run.
    overrunning: of these, runs that go on although their time was over.
    failed: runs that did not end well. dropped: deliveries that their policy dropped.
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
    list_age_ms: int | None
    list_faults: int
    retried: int = 0
    parked: int = 0
    given_back: int = 0
    handling: int = 0
    oldest_run_s: float = 0.0
    overrunning: int = 0
    failed: int = 0
    dropped: int = 0
