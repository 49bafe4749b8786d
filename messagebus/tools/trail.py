"""Trail: a client's hook that tells agents about its failures, and about a share of all other messages.

    publisher = Publisher(bus, hooks=[Trail(bus, share=0.01)])

`messagebus trace` and the monitor's page read it. A row is handed to a thread of the trail's own; nothing
waits for it. A row that finds no room, or no agent that takes it, is dropped and counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
import time
from collections import deque
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from messagebus._io.agents.http import http_client
from messagebus.clock import wall_ms
from messagebus.config import BusConfig, with_agents
from messagebus.core.ends import END_UNCONFIRMED
from messagebus.errors import ConfigError, MessageBusError, reason_of
from messagebus.hooks import Hooks
from messagebus.message import Delivery, Message
from messagebus.recording.recorder import is_sampled
from messagebus.stats import Outcome, Published

log = logging.getLogger("messagebus.trail")

SHARE = 0.01
# 2 MB of rows that wait for an agent: some seconds of failures only, at full rate.
ROWS_MAX = 10_000
ROWS_A_REQUEST = 2_000
EVERY_S = 1.0
ANSWER_WITHIN_S = 5.0
STOP_WITHIN_S = 3.0
# The first row that is dropped is logged, and then each so many.
LOGGED_EVERY = 10_000
GOOD = frozenset({Outcome.CONFIRMED, Outcome.SPOOLED})


class Trail(Hooks):
    """The trail of one process. Any number of clients, any threads; `close` it when they have stopped.

    bus: None for the settings of the environment. share: part of the messages without a failure that is
    reported, 0 to 1; every process reports the same ones, by their ids. client: name of this process in the
    rows; None: its host and number.
    Raises ConfigError without list addresses.
    """

    def __init__(
        self, bus: BusConfig | None, *, share: float = SHARE, client: str | None = None
    ) -> None:
        bus = with_agents(bus)
        if not 0 <= share <= 1:
            raise ConfigError(f"share {share}: 0 to 1")
        self._bus, self._share = bus, share
        self._client = client or f"{os.getpid()}@{socket.gethostname()}"
        self._rows = deque[dict[str, Any]]()
        self.reported = self.dropped = 0
        """Rows that an agent took, and rows that were given up, since the start."""
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def close(self) -> None:
        """Send what waits, in 3 s at most, and end."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(STOP_WITHIN_S + ANSWER_WITHIN_S)

    def published(self, destination: str, message: Message, published: Published) -> None:
        is_good = published.outcome in GOOD or published.reason == END_UNCONFIRMED.reason
        if not is_good or is_sampled(message.message_id, self._share):
            what, error = f"published: {published.outcome.value}", published.reason
            self._add(message.message_id, destination, what, published.broker, error)

    def handled(self, delivery: Delivery, answer: str, error: BaseException | None) -> None:
        if answer != "ack" or is_sampled(delivery.message_id, self._share):
            why = f"{type(error).__name__}: {error}" if error else ""
            self._add(
                delivery.message_id,
                str(delivery.source),
                f"handled: {answer}",
                delivery.receipt.broker,
                why,
                delivery.attempt,
            )

    def deduplicated(self, delivery: Delivery, verdict: str) -> None:
        if verdict == "park" or is_sampled(delivery.message_id, self._share):
            what, broker = f"not handled: {verdict}", delivery.receipt.broker
            self._add(delivery.message_id, str(delivery.source), what, broker, "")

    def _add(
        self, id: str, name: str, what: str, broker: str, error: str, attempt: int = 0
    ) -> None:
        if self._thread is None:
            self._begin()
        if len(self._rows) >= ROWS_MAX or self._ending.is_set():
            self._drop(1, f"{ROWS_MAX} rows wait")
            return
        self._rows.append(
            {
                **{"message_id": id, "name": name, "what": what, "broker": broker},
                **{"client": self._client, "error": error[:300], "attempt": attempt},
                "at_ms": wall_ms(),
            }
        )

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None:
                work = lambda: asyncio.run(self._send_all())  # noqa: E731
                self._thread = threading.Thread(target=work, name="messagebus-trail", daemon=True)
                self._thread.start()

    async def _send_all(self) -> None:
        async with http_client(self._bus, timeout=ANSWER_WITHIN_S) as http:
            until_s = None
            while True:
                is_last = self._ending.is_set()
                until_s = until_s or (time.monotonic() + STOP_WITHIN_S if is_last else None)
                while self._rows and not (until_s and time.monotonic() > until_s):
                    await self._send(http)
                if is_last:
                    return
                await asyncio.to_thread(self._ending.wait, EVERY_S)

    async def _send(self, http: httpx.AsyncClient) -> None:
        rows = [self._rows.popleft() for _ in range(min(len(self._rows), ROWS_A_REQUEST))]
        body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        fault = ""
        for url in self._bus.list_urls:
            try:
                auth = httpx.BasicAuth(
                    self._bus.current_user(), self._bus.current_password().reveal()
                )
                address = urlunsplit(urlsplit(url)._replace(path="/trail", query=""))
                answer = await http.post(address, content=body, auth=auth)
            except (httpx.HTTPError, MessageBusError, OSError) as trouble:
                fault = reason_of(trouble)
                continue
            if answer.is_success:
                self.reported += len(rows)
                return
            fault = f"HTTP {answer.status_code}"
        self._drop(len(rows), fault)

    def _drop(self, count: int, why: str) -> None:
        before, self.dropped = self.dropped, self.dropped + count
        if before // LOGGED_EVERY != self.dropped // LOGGED_EVERY or not before:
            log.warning("rows of the trail dropped count=%d reason=%r", self.dropped, why)
