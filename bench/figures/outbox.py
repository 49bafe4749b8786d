"""The outbox in PostgreSQL: the cost of `add`, the rate of one relay in order, and commit to delivery.

One broker behind HAProxy, one PostgreSQL beside it, its files on the same disk. The application, the relay
and the consumer are this process.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Iterator
from functools import partial

import psycopg

from bench.figures.form import Figure, Maker, at_least, at_most
from bench.figures.scene import Group, Scene, repeat_command, server
from bench.harness.loop import best_loop, event_loop
from messagebus import AsyncConsumer, BusConfig, declare
from messagebus.outbox import AsyncRelay, Outbox, RelayConfig
from messagebus.outbox.table import Table

NAME = "once.outbox"
TOPIC, SUBSCRIPTION = "outbox", "sink"
BODY = b"x" * 200
ADDS, ADDS_A_TRANSACTION = 5_000, 100
ROWS, KEYS = 30_000, 1_000
# Waits of up to two polls, so that a commit is at no moment between polls rather than at another.
WAITS, WAIT_MAX_S = 200, 0.4
LOOK_S = 0.001
WITHIN_S = 60.0
GOAL_ADD_US, GOAL_ROWS_PER_S = 150.0, 5_000.0
GOAL_POLLED_MS, GOAL_NOTIFIED_MS = 150.0, 30.0


def _figures(scene: Scene) -> Iterator[Figure]:
    bus = BusConfig.from_env(scene.cluster.client_env())
    declare(bus, [f"{TOPIC}/{SUBSCRIPTION}"])
    with server("postgresql", scene.folder) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in Table("postgresql").ddl():
                connection.execute(statement.encode())
        make = Maker("once", repeat_command(NAME, scene.repeat))
        measure = partial(_measured, scene)
        found = measure(lambda: _add_us(url, scene))
        yield make("outbox_add", "`Outbox.add`", found, "us", (at_most, GOAL_ADD_US))
        found = measure(lambda: _run(_rows_per_s(url, bus, scene)))
        what = f"Rows relayed in order, {KEYS:,} keys, one relay"
        yield make("outbox_rate", what, found, "rows/s", (at_least, GOAL_ROWS_PER_S))
        for word, notify, most in (
            ("polled", False, GOAL_POLLED_MS),
            ("notified", True, GOAL_NOTIFIED_MS),
        ):
            found = measure(lambda: _run(_wait_ms(url, bus, scene, notify=notify)))  # noqa: B023
            what = f"Commit to delivery, p50, {word}"
            yield make(f"outbox_{word}", what, found, "ms", (at_most, most))


def _measured(scene: Scene, once: object) -> list[float]:
    assert callable(once)
    return [once() for _ in range(scene.repeat)]


def _run(work: object) -> float:
    with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
        return float(runner.run(work))  # type: ignore[arg-type]


def _add_us(url: str, scene: Scene) -> float:
    outbox, count = Outbox(), scene.part(ADDS)
    took_s = 0.0
    with psycopg.connect(url) as connection:
        for begun in range(0, count, ADDS_A_TRANSACTION):
            connection.execute("SELECT 1")  # the transaction has begun
            start_s = time.perf_counter()
            for number in range(begun, begun + ADDS_A_TRANSACTION):
                outbox.add(connection, TOPIC, BODY, key=f"k{number % KEYS}")
            took_s += time.perf_counter() - start_s
            connection.rollback()
    return took_s / count * 1e6


async def _rows_per_s(url: str, bus: BusConfig, scene: Scene) -> float:
    outbox, count = Outbox(), scene.part(ROWS)
    with psycopg.connect(url) as connection:
        for number in range(count):
            outbox.add(connection, TOPIC, BODY, key=f"k{number % KEYS}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ANALYZE messagebus_outbox")
    relay = AsyncRelay(url, bus)
    await relay.start(require="one")
    while not relay.stats().published:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)
    began_s, before = time.perf_counter(), relay.stats().published
    assert await relay.drained(WITHIN_S)
    took_s, done = time.perf_counter() - began_s, relay.stats().published - before
    await relay.stop()
    await _empty(bus, count)
    return done / took_s


async def _empty(bus: BusConfig, count: int) -> None:
    async with AsyncConsumer(bus, TOPIC, subscription=SUBSCRIPTION) as consumer:
        while count > 0:
            for delivery in await consumer.receive_many(500):
                consumer.ack(delivery)
                count -= 1


async def _wait_ms(url: str, bus: BusConfig, scene: Scene, *, notify: bool) -> float:
    outbox, waits_ms = Outbox(notify=notify), list[float]()
    connection = await psycopg.AsyncConnection.connect(url)
    async with (
        connection,
        AsyncConsumer(bus, TOPIC, subscription=SUBSCRIPTION) as consumer,
        AsyncRelay(url, bus, RelayConfig(notify=notify)) as relay,
    ):
        assert await relay.drained(WITHIN_S)
        for _ in range(scene.part(WAITS)):
            await asyncio.sleep(random.uniform(0, WAIT_MAX_S))
            await outbox.add(connection, TOPIC, BODY)
            await connection.commit()
            committed_s = time.perf_counter()
            delivery = await consumer.receive(WITHIN_S)
            waits_ms.append((time.perf_counter() - committed_s) * 1e3)
            assert delivery is not None
            consumer.ack(delivery)
    return statistics.median(waits_ms)


GROUP = Group(NAME, 1, "HAProxy before one broker, and PostgreSQL", _figures)
