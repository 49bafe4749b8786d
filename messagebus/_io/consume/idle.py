"""The return of deliveries that nobody takes, before the broker's consumer timeout strikes.

A broker that waits for an answer for longer than its consumer timeout (30 minutes, where nobody set it
otherwise) closes the channel, and everything owed on it comes again. That strikes deliveries in our
buffers too, where an application rests or is slow. So before that time they are given back, and the
consumer is cancelled, so that other consumers get them; it goes on when the application asks again.
What the application holds cannot be helped. A single active consumer is never cancelled: what the broker
sent it would come again behind what the next one gets. Runs on one asyncio loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from messagebus._io.consume.inbox import Inbox
from messagebus.message import Delivery

__all__ = ["Resting"]

log = logging.getLogger("messagebus.consumer")

# Of the timeout: a broker looks once a minute, and what it waits for must be on its way by then.
SHARE = 0.75
# What is still held then of a batch that was copied in part is copied as well.
LAST_SHARE = 0.95
# Looked at so often, as a share of the timeout, and each second at most.
LOOK_SHARE, LOOK_MIN_NS = 0.05, 1_000_000_000


class Resting:
    """The links of one consumer that rest.

    timeout_s: the broker's consumer timeout. cancel: no more deliveries of this broker; False: it is not
    cancelled, because of the order, and what waits goes back with its link. consume: again.
    """

    def __init__(
        self,
        inbox: Inbox,
        timeout_s: int,
        *,
        cancel: Callable[[str], bool],
        consume: Callable[[str], None],
    ) -> None:
        self._inbox, self._cancel, self._consume = inbox, cancel, consume
        self._age_ns = round(timeout_s * 1e9 * SHARE)
        self._last_ns = round(timeout_s * 1e9 * LAST_SHARE)
        self._look_ns = min(LOOK_MIN_NS, round(timeout_s * 1e9 * LOOK_SHARE))
        self._looked_ns = 0
        self._brokers: set[str] = set()
        self._was_full = False
        self.untouched: Callable[[int, bool], list[Delivery]] = lambda _before_ns, _all_if_any: []
        """What was taken and the application never saw, if it arrived before that time; or, if there is
        some, all of it.
        """

    def __bool__(self) -> bool:
        """Tell whether some link rests. From any thread."""
        return bool(self._brokers)

    def tick(self, now_ns: int) -> None:
        """Give back what has waited for too long; go on where there is room again."""
        if now_ns - self._looked_ns < self._look_ns:
            return
        self._looked_ns = now_ns
        if self._was_full and not self._inbox.is_full:
            self.asked()
        before_ns = now_ns - self._age_ns
        found = {broker for broker in self._inbox.brokers if self._is_old(broker, before_ns)}
        taken: dict[str, list[Delivery]] = {}
        for delivery in self.untouched(before_ns, self._inbox.in_order):
            if delivery.ledger.is_live:
                taken.setdefault(delivery.ledger.broker, []).append(delivery)
                if delivery.received_ns < before_ns:
                    found.add(delivery.ledger.broker)
        for broker in found:
            self._rest(broker, taken.pop(broker, []), before_ns)
        for deliveries in taken.values():  # of others, in between
            self._inbox.put_back(deliveries)
        self._inbox.finish_batches(now_ns - self._last_ns)

    def _is_old(self, broker: str, before_ns: int) -> bool:
        oldest = self._inbox.oldest(broker)
        return oldest is not None and oldest.received_ns < before_ns

    def _rest(self, broker: str, taken: list[Delivery], before_ns: int) -> None:
        self._was_full = self._was_full or self._inbox.is_full
        self._brokers.add(broker)
        if not self._cancel(broker):
            self._inbox.keep_back(broker, taken)
        elif given_back := self._inbox.give_back(broker, taken, before_ns):
            log.warning(
                "given back untouched broker=%s deliveries=%d waited_s>=%.0f",
                broker,
                given_back,
                self._age_ns / 1e9,
            )

    def rests(self, broker: str) -> bool:
        """Tell whether nothing is to be consumed from this broker until the application asks."""
        return broker in self._brokers

    def goes_on(self, broker: str) -> None:
        """It rests on a new link."""
        self._brokers.add(broker)

    def asked(self) -> None:
        """The application asks for deliveries, and there are none."""
        brokers, self._brokers = self._brokers, set()
        self._was_full = False
        for broker in brokers:
            self._consume(broker)

    def forget(self, broker: str) -> None:
        """Its link is gone; a new one begins anew."""
        self._brokers.discard(broker)
