"""The publishing half of a relay: rows as publishes, and what their ends say about the rows.

`core.relay` decides which rows go out. A row that wants two brokers waits in the table where there is one;
every SECOND_MS one of them tries for all. So does one of which the home is away.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from messagebus.aio import AsyncPublisher
from messagebus.clock import monotonic_ms
from messagebus.core.ends import DEADLINE_PASSED, PUBLISHER_STOPPED
from messagebus.core.redundancy import REQUIRED
from messagebus.core.relay import SECOND_MS, End, RelayedRows
from messagebus.errors import BacklogFull, ConfigError, MessageInvalid, NameInvalid, Stopped
from messagebus.outbox.rows import ToPublish, to_publish
from messagebus.outbox.table import DESTINATION, KEY
from messagebus.stats import Outcome, Published

UNSENT = (DEADLINE_PASSED, PUBLISHER_STOPPED)


class RowSender:
    """The publishes of the rows of one relay, on one loop."""

    def __init__(
        self,
        publisher: AsyncPublisher,
        rows: RelayedRows,
        contents: Mapping[int, Sequence[Any]],
        *,
        wanted: asyncio.Event,
        timeout_s: int,
        on_end: Callable[[], None],
    ) -> None:
        """Create it. contents: id -> row as it was read. wanted: set when there may be something to send.

        on_end: called when the table is to be told of an end.
        """
        self._publisher, self._rows, self._contents = publisher, rows, contents
        self._wanted, self._timeout_s, self._on_end = wanted, timeout_s, on_end
        # The time to try one row that wants two brokers, where there was one; 0 while there are two.
        self._second_at_ms = 0

    async def run(self) -> None:
        """Publish what may go, for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            for row_id in self._rows.take(monotonic_ms(), stuck=self._stuck()):
                await self._send(row_id)

    def _stuck(self) -> int:
        """Return how many of the rows that were sent wait for a home that is away, when it matters."""
        sent = self._rows.sent() if self._rows.is_full else ()
        return sum(bool(self._away_home(row_id)) for row_id in sent)

    def _away_home(self, row_id: int) -> str:
        """Return the broker that is the home of a row's partition, and away; "" where there is none."""
        values = self._contents[row_id]
        destination = values[DESTINATION]
        return self._publisher._away_home(destination, values[KEY])

    async def _send(self, row_id: int) -> None:
        try:
            publish = to_publish(self._contents[row_id])
        except Exception as fault:  # other hands write anything: nested too deep, times too large
            self._end(row_id, End.INVALID, f"the row is no message: {fault}")
            return
        if self._second_at_ms and self._wants_two(publish):
            if monotonic_ms() < self._second_at_ms:
                self._end(row_id, End.NO_SECOND, "there was no second broker")
                return
            self._second_at_ms = monotonic_ms() + SECOND_MS  # this one tries for all
        if home := self._away_home(row_id):
            self._end(row_id, End.HOME_AWAY, f"home {home} of its partition is away")
            return
        try:
            future = await self._submit(publish)
        except (MessageInvalid, NameInvalid, ConfigError) as fault:
            self._end(row_id, End.INVALID, str(fault))
        except (BacklogFull, Stopped) as fault:
            self._end(row_id, End.NOT_SENT, str(fault))
        else:
            future.add_done_callback(lambda done: self._published(row_id, done))

    def _wants_two(self, publish: ToPublish) -> bool:
        """Return whether one broker is not enough for a publish."""
        config = self._publisher.config
        told = publish.options.get("redundant", str(publish.destination) in config.redundant)
        return (config.redundancy if told is True else told) == REQUIRED

    async def _submit(self, publish: ToPublish) -> asyncio.Future[Published]:
        return await self._publisher.submit(
            publish.destination,
            publish.message,
            timeout_s=self._timeout_s,
            **publish.options,
        )

    def _published(self, row_id: int, done: asyncio.Future[Published]) -> None:
        if done.cancelled():
            self._end(row_id, End.NOT_SENT, "cancelled")
            return
        published = done.result()
        if published.outcome is Outcome.CONFIRMED:
            if len(published.brokers) > 1:
                self._second_at_ms = 0
            self._end(row_id, End.CONFIRMED, "")
        elif published.outcome is Outcome.UNKNOWN and published.brokers:
            self._second_at_ms = monotonic_ms() + SECOND_MS
            self._end(row_id, End.NO_SECOND, published.reason)
        elif published.outcome is not Outcome.UNROUTABLE and self._away_home(row_id):
            self._end(row_id, End.HOME_AWAY, published.reason)
        elif _is_unsent(published):
            self._end(row_id, End.NOT_SENT, published.reason)
        else:
            self._end(row_id, End.FAILED, f"{published.outcome.value}: {published.reason}")

    def _end(self, row_id: int, end: End, reason: str) -> None:
        self._rows.ended(row_id, end, reason, monotonic_ms(), random.random())
        self._on_end()
        self._wanted.set()


def _is_unsent(published: Published) -> bool:
    """Return whether nothing is known against the message: no broker was there, or did not answer."""
    if published.outcome is Outcome.UNKNOWN:
        return True
    return published.outcome is Outcome.REFUSED and published.reason.startswith(UNSENT)
