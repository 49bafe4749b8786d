"""Gives back what nobody takes before the broker's consumer timeout strikes.

A broker that waits for an answer for longer than its consumer timeout (30 minutes, where nobody set it
otherwise) closes the channel, and everything owed on it comes again. That strikes deliveries in our
buffers too, where an application rests or is slow. So before that time they are given back, and the
consumer is cancelled, so that other consumers get them; it goes on when the application asks again.
What the application holds cannot be helped. Runs on one asyncio loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from messagebus._io.inbox import Inbox
from messagebus.message import Delivery

__all__ = ["Resting"]

log = logging.getLogger("messagebus.consumer")

# Of the timeout: a broker looks once a minute, and what it waits for must be on its way by then.
SHARE = 0.75
# Looked at so often, as a share of the timeout, and each second at most.
LOOK_SHARE, LOOK_MIN_NS = 0.05, 1_000_000_000


class Resting:
    """The links of one consumer that rest.

    timeout_s: the broker's consumer timeout. cancel: no more deliveries of this broker. consume: again.
    """

    def __init__(
        self,
        inbox: Inbox,
        timeout_s: int,
        *,
        cancel: Callable[[str], None],
        consume: Callable[[str], None],
    ) -> None:
        self._inbox, self._cancel, self._consume = inbox, cancel, consume
        self._age_ns = round(timeout_s * 1e9 * SHARE)
        self._look_ns = min(LOOK_MIN_NS, round(timeout_s * 1e9 * LOOK_SHARE))
        self._looked_ns = 0
        self._brokers: set[str] = set()
        self._was_full = False
        self.untouched: Callable[[int], list[Delivery]] = lambda _before_ns: []
        """What was taken and the application never saw, if it arrived before that time."""

    def __bool__(self) -> bool:
        """Whether some link rests. From any thread."""
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
        given_back = self._inbox.give_back_untouched(self.untouched(before_ns))
        for broker in found | given_back.keys():
            self._rest(broker, given_back.get(broker, 0), now_ns)

    def _is_old(self, broker: str, before_ns: int) -> bool:
        oldest = self._inbox.oldest(broker)
        return oldest is not None and oldest.received_ns < before_ns

    def _rest(self, broker: str, given_back: int, now_ns: int) -> None:
        self._was_full = self._was_full or self._inbox.is_full
        self._brokers.add(broker)
        self._cancel(broker)
        given_back += self._inbox.give_back_buffered(broker)
        if given_back:
            log.warning(
                "given back untouched broker=%s deliveries=%d waited_s>=%.0f",
                broker,
                given_back,
                self._age_ns / 1e9,
            )

    def asked(self) -> None:
        """The application asks for deliveries, and there are none."""
        brokers, self._brokers = self._brokers, set()
        self._was_full = False
        for broker in brokers:
            self._consume(broker)

    def forget(self, broker: str) -> None:
        """Its link is gone; a new one begins anew."""
        self._brokers.discard(broker)
