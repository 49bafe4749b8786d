"""The return of untaken deliveries, before the broker's consumer timeout.

A broker that waits for an answer longer than its consumer timeout (30 minutes by default)
closes the channel, and all unanswered deliveries on it come again. That affects deliveries in our
buffers too, where an application rests or is slow. So before that time they are given back, and the
consumer is cancelled, so that other consumers get them; it goes on when the application asks again.
Deliveries that the application holds cannot be given back. A single active consumer is never cancelled:
its deliveries would come again behind those of the next one. Runs on one asyncio loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from messagebus._io.consume.inbox import Inbox
from messagebus._io.consume.pipeline import Pipeline
from messagebus.message import Delivery

log = logging.getLogger("messagebus.consumer")

# Share of the timeout: a broker looks once a minute, and the answers must be on their way by then.
SHARE = 0.75
# Share after which the held parts of a partly copied batch are copied as well.
LAST_SHARE = 0.95
# Interval of checks, as a share of the timeout, at most a second.
LOOK_SHARE, LOOK_MIN_NS = 0.05, 1_000_000_000


class IdleLinks:
    """The idle links of one consumer.

    timeout_s: the broker's consumer timeout. cancel: stops deliveries of this broker; False: it is not
    cancelled, because of the order, and buffered deliveries go back with its link. consume: restarts them.
    withdraw: takes out deliveries that the application never saw and that arrived before that time; with
    the flag, all of them if there is one.
    """

    def __init__(
        self,
        inbox: Inbox,
        pipeline: Pipeline,
        timeout_s: int,
        *,
        cancel: Callable[[str], bool],
        consume: Callable[[str], None],
        withdraw: Callable[[int, bool], list[Delivery]],
    ) -> None:
        self._inbox, self._pipeline = inbox, pipeline
        self._cancel, self._consume = cancel, consume
        self._withdraw = withdraw
        self._age_ns = round(timeout_s * 1e9 * SHARE)
        self._last_ns = round(timeout_s * 1e9 * LAST_SHARE)
        self._look_ns = min(LOOK_MIN_NS, round(timeout_s * 1e9 * LOOK_SHARE))
        self._looked_ns = 0
        self._brokers: set[str] = set()
        self._was_full = False

    def __bool__(self) -> bool:
        """Return whether any link rests. From any thread."""
        return bool(self._brokers)

    def tick(self, now_ns: int) -> None:
        """Give back deliveries that have waited too long; go on where there is room again."""
        if now_ns - self._looked_ns < self._look_ns:
            return
        self._looked_ns = now_ns
        if self._was_full and not self._pipeline.plain.is_full:
            self.resume()
        before_ns = now_ns - self._age_ns
        found = {broker for broker in self._inbox.brokers if self._is_old(broker, before_ns)}
        taken: dict[str, list[Delivery]] = {}
        for delivery in self._withdraw(before_ns, self._inbox.in_order):
            if not delivery._ledger.is_live:
                self._pipeline.first.never_answered([delivery])
            else:
                taken.setdefault(delivery._ledger.broker, []).append(delivery)
                if delivery.received_ns < before_ns:
                    found.add(delivery._ledger.broker)
        for broker in found:
            self._rest_old(broker, taken.pop(broker, []), before_ns)
        for deliveries in taken.values():  # of other brokers
            self._pipeline.first.put_back(deliveries)
        self._inbox.finish_batches(now_ns - self._last_ns)

    def _is_old(self, broker: str, before_ns: int) -> bool:
        oldest = self._inbox.oldest(broker)
        return oldest is not None and oldest.received_ns < before_ns

    def rest(self) -> None:
        """Give back all that is buffered, and consume nothing until the application asks."""
        for broker in self._inbox.brokers:
            self._rest(broker, [], time.monotonic_ns())
        self._was_full = False  # room is no reason to go on

    def _rest(self, broker: str, taken: list[Delivery], before_ns: int) -> int:
        self._was_full = self._was_full or self._pipeline.plain.is_full
        self._brokers.add(broker)
        if not self._cancel(broker):
            self._inbox.keep_back(broker, taken)
            return 0
        return self._inbox.give_back(broker, taken, before_ns)

    def _rest_old(self, broker: str, taken: list[Delivery], before_ns: int) -> None:
        if given_back := self._rest(broker, taken, before_ns):
            log.warning(
                "given back untouched broker=%s deliveries=%d waited_s>=%.0f",
                broker,
                given_back,
                self._age_ns / 1e9,
            )

    def is_idle(self, broker: str) -> bool:
        """Return whether nothing is to be consumed from this broker until the application asks."""
        return broker in self._brokers

    def keep_idle(self, broker: str) -> None:
        """Stay idle on a new link."""
        self._brokers.add(broker)

    def resume(self) -> None:
        """Consume again from idle brokers: the application asks for deliveries, and there are none."""
        brokers, self._brokers = self._brokers, set()
        self._was_full = False
        for broker in brokers:
            self._consume(broker)

    def forget(self, broker: str) -> None:
        """Drop the state of a lost link."""
        self._brokers.discard(broker)
