"""A made-up bus for the monitor's pages: the same names and figures for one seed, alive at each look.

As `messagebus.observing.ask.Asker`, but without agents.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import uvicorn

from messagebus import BusConfig
from messagebus.observing.snapshot import (
    Answer,
    Balancer,
    Bus,
    Client,
    Consumer,
    Kind,
    Loss,
    Mirror,
    ObservedBroker,
    Room,
    Row,
    Server,
    Totals,
)
from messagebus.services.monitor.config import MonitorConfig
from messagebus.services.monitor.eventlog import EventLog
from messagebus.services.monitor.watch import Watch, course_of
from messagebus.services.monitor.web import Monitor
from tests.support.observed import answer

NAMES = (
    *("payments/fraud", "shipments/warehouse", "analytics/clicks", "orders/billing"),
    *("orders/warehouse", "payments/ledger", "search-index/products", "emails/outbox"),
    *("orders/search", "orders/audit", "orders/crm", "payments/audit", "invoices/archive"),
    *("invoices/pdf", "users/welcome", "users/crm", "catalog/search", "catalog/cache"),
    *("catalog/feeds", "pricing/recalc", "inventory/levels", "inventory/forecast"),
    *("refunds/ledger", "refunds/audit", "shipments/tracking", "shipments/notify"),
    *("clicks/sessions", "clicks/attribution", "reviews/moderation", "coupons/ledger"),
    *("queue:thumbnails", "vouchers/pdf", "returns/warehouse", "sms/outbox", "push/outbox"),
    *("tickets/crm"),
)
SLOW, ALONE, SILENT, DRAINS, SINGLE = "payments/fraud", "shipments/warehouse", 8, 3, 4
BEGAN_MS = 3_600_000
# Rates are of three steps, at most a minute apart.
STEP_S = 15
SLOW_SINCE_S, ALONE_SINCE_S = 1_080, 700
PROXIED = BusConfig(list_urls=("http://127.0.0.1:1/list",))


class MadeUp:
    """A bus of so many brokers, one of them silent. names: of its subscriptions and queues."""

    def __init__(
        self,
        brokers: int = 8,
        names: tuple[str, ...] = NAMES,
        *,
        seed: int = 7,
        silent: bool = True,
    ) -> None:
        self.names, self.count, self._is_silent = names, brokers, silent
        self._random = random.Random(seed)
        self._rates = {name: self._random.lognormvariate(3.2, 1.2) for name in names}
        self._consumers = {name: self._random.choice((2, 4, 4, 6, 8)) for name in names}
        self._began_ms = _now_ms()
        self.asked: list[tuple[str, ...]] = []
        self.ago_ms = 0

    async def close(self) -> None:
        """Do nothing: no connection is open."""

    async def changed(self, *, within_s: float) -> bool:
        """Wait: states never change here."""
        await asyncio.sleep(within_s)
        return False

    async def look(self, *, names: Iterable[str] = (), all_clients: bool = False) -> Bus:
        """Return the bus at this moment."""
        self.asked.append(tuple(names))
        return self.bus()

    def bus(self) -> Bus:
        """Return the bus at this moment."""
        now_ms = _now_ms() - self.ago_ms
        return Bus(
            at_ms=now_ms,
            brokers=tuple(self._seen(number, now_ms) for number in range(1, self.count + 1)),
            cluster="prod-eu",
            generation=57,
            list_age_ms=3_000,
            balancers=tuple(
                Balancer(
                    url=f"http://lb{number}:8404",
                    servers=tuple(
                        Server(name=f"mb{i}", status="UP", sessions=40 + i)
                        for i in range(1, self.count + 1)
                    ),
                )
                for number in (1, 2)
            ),
        )

    def _seen(self, number: int, now_ms: int) -> ObservedBroker:
        name = f"mb{number}.example:5672"
        answer = self._answer(name, number, now_ms)
        if self._is_silent and number == SILENT:
            return ObservedBroker(
                broker=name,
                fault="no answer within 1.5 s",
                last=answer,
                silent_since_ms=now_ms - 14_000,
            )
        return ObservedBroker(broker=name, last=answer, draining=number == DRAINS, skew_ms=4)

    def _answer(self, name: str, number: int, now_ms: int) -> Answer:
        seconds = (now_ms - self._began_ms + BEGAN_MS) / 1_000
        published = int(seconds * 180)
        lost = Loss(
            wanted="orders/billing",
            what="queue",
            name="mb.sub/orders/billing",
            noticed_at_ms=self._began_ms - 7_200_000,
            repaired=True,
        )
        made = answer(
            name,
            *(row for each in self.names for row in self._rows(each, number, now_ms)),
            at_ms=now_ms,
            life="a1b2",
            room=Room(
                disk_free=44_250_000_000 if number == 6 else (300 + 9 * number) * 1_000_000_000,
                disk_limit=4_000_000_000,
                memory_used=2_100_000_000,
                memory_limit=12_800_000_000,
                connections=440 + 7 * number,
            ),
            totals=Totals(published=published, confirmed=published, acked=int(published * 2.6)),
            clients=(
                Client(
                    id=f"report-nightly@batch-{i}",
                    subscription="orders/audit",
                    applied=56,
                    age_ms=400,
                )
                for i in (2, 3)
            ),
            consumers=tuple(
                Consumer(
                    name=SLOW,
                    client=f"fraud-scorer-{i}@gpu-{1 + i % 4}",
                    peer=f"10.0.0.{i}:4000",
                    prefetch=25,
                    owed=25,
                    active=True,
                )
                for i in range(1, 9)
                if (i, number) != (4, 1)
            ),
            version=4711,
            verdict="drain" if number == DRAINS else "ready",
            draining="upgrade" if number == DRAINS else "",
            cluster="prod-eu",
            generation=57,
            topology="9f1c02b7d4e85a33",
            entries=len(self.names),
            mirror=Mirror(
                copies=1 if number == SINGLE else 2, connected=number != SINGLE, alone=False
            ),
            losses=(lost,) if number == 2 else (),
            lost=number == 2,
            certificate_s=90 * 86_400,
            rabbitmq="3.12.14",
            agent="0.2.0",
        )
        return replace(
            made, counted_at_ms=now_ms - 900, swept_at_ms=now_ms - 2_500, client_count=52
        )

    def _rows(self, name: str, number: int, now_ms: int) -> list[Row]:
        rate, mixed = self._rates[name] / self.count, random.Random(f"{name!r} {number}")
        seconds = (now_ms - self._began_ms + BEGAN_MS) / 1_000
        oldest_ms, ready, consumers = (
            int(mixed.expovariate(1 / 700)),
            mixed.randrange(4),
            self._consumers[name],
        )
        arrived = int(rate * seconds)
        departed = arrived - ready
        grown_s = (now_ms - self._began_ms) / 1_000
        if name == SLOW:
            late_s = max(0.0, grown_s + SLOW_SINCE_S)
            oldest_ms = int((0.8 + mixed.random() * 0.03) * late_s * 1_000)
            ready = int(3_400 * late_s / SLOW_SINCE_S)
            departed = int(arrived * 0.79)
        elif name == ALONE and number == 5:
            waits_s = max(0.0, ALONE_SINCE_S + grown_s)
            oldest_ms, ready = int(waits_s * 1_000), int(1.7 * waits_s)
            consumers = 0 if waits_s else consumers
        elif name == "analytics/clicks":
            ready, oldest_ms = 1_400, (38 if number == 3 else 22) * 1_000
        elif mixed.random() < 0.3:
            ready = 0
        parked = {
            "payments/fraud": {1: 9, 2: 25, 7: 7},
            "orders/billing": {2: 37},
            "orders/audit": {5: 6},
        }
        counted = now_ms - 900, now_ms - 2_500
        kind: Kind = "queue" if name.startswith("queue:") else "sub"
        unacked, oldest = (
            consumers * 25 if name == SLOW else 0,
            now_ms - oldest_ms if ready else None,
        )
        made = [Row(name, kind, ready, unacked, consumers, arrived, departed, oldest, *counted)]
        if count := parked.get(name, {}).get(number, 0):
            made.append(Row(name, "park", count, 0, 0, count, 0, now_ms - 7_860_000, *counted))
        return made


async def remembered(watch: Watch, asker: MadeUp, *, minutes: int = 40) -> None:
    """Have a watch look as if it had begun so long ago: rules hold by now, and curves have a past."""
    for ago_s in range(minutes * 60, 0, -STEP_S):
        asker.ago_ms = ago_s * 1_000
        await watch.once()
        board, at_s = watch.board, watch.board.view.now_ms / 1_000
        for name, each in board.sources.items():
            for later_s in range(5, STEP_S, 5):
                watch.history.put(f"source:{name}", at_s + later_s, course_of(each))
    asker.ago_ms = 0
    await watch.once()


class Served:
    """A monitor of a made-up bus on a port of this host, in a thread of its own."""

    def __init__(
        self,
        config: MonitorConfig,
        asker: MadeUp,
        events: EventLog | None = None,
        *,
        minutes: int = 40,
    ) -> None:
        self._minutes = minutes
        self.asker, self.events = asker, events or EventLog()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._config, self._ready = config, threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    @contextmanager
    def running(self) -> Iterator[Served]:
        """Serve while in the context."""
        self._thread.start()
        assert self._ready.wait(60)
        try:
            yield self
        finally:
            self._server.should_exit = True
            self._thread.join(60)

    async def _run(self) -> None:
        self.watch = Watch(self.asker, self.events)
        await remembered(self.watch, self.asker, minutes=self._minutes)
        self.monitor = Monitor(self._config, self.watch)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.monitor.application(),
                log_config=None,
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=1,
            )
        )
        watching = asyncio.create_task(self.watch.run())
        self._ready.set()
        await self._server.serve([self._listener])
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        self.events.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
