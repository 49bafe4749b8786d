"""Costs of features a message: order, deduplication, spool, outbox, replay, recorder.

No load of `bench run` has them. Brokers are in memory, except for outbox and replay. One Redis, one
PostgreSQL, a SQLite file and the spool lie beside them, on the disk of the run. The clients are this process.
An added cost is the difference of two turns, one with the feature and one without.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Literal, NamedTuple

import psycopg
from redis import Redis

from bench.errors import BenchError
from bench.figures.figure import Figure, Maker, at_least, at_most
from bench.figures.groups import BEHIND_HAPROXY, Group, Setup, repeat_command, server
from bench.harness.loop import run_on_best_loop
from bench.processes import wait_until
from messagebus import (
    AsyncConsumer,
    BusConfig,
    Delivery,
    Durability,
    Message,
    Outcome,
    Published,
    Publisher,
    Receipt,
    Replay,
    Spool,
    Stream,
    Subscription,
    Topic,
    declare,
)
from messagebus.outbox import AsyncRelay, Outbox, RelayConfig
from messagebus.outbox.table import COLUMNS, DEFAULT_TABLE, Table
from messagebus.recording.recorder import Recorder
from messagebus.stores import Rule, Store, Turn
from messagebus.stores.redis import PREFIX, RedisStore
from messagebus.stores.sqlite import SqliteStore
from messagebus.testing import MemoryBus

TOPIC, SUBSCRIPTION = "orders", "billing"
BODY, KB_BODY = b"x" * 200, b"x" * 1024
AT_ONCE, CONCURRENCY, KEYS, WITHIN_S = 500, 10, 1_000, 60.0


# Order: CPU time of this process a message.
MESSAGES, GOAL_KEYED = 50_000, 1.5


def _keyed(number: int) -> Message:
    return Message(body=BODY, key=f"customer-{number % KEYS}")


def _order(setup: Setup) -> Iterator[Figure]:
    count = setup.part(MESSAGES)
    handled_us("key", count)  # imports, and a warm allocator
    pairs = [(handled_us("none", count), handled_us("key", count)) for _ in setup.turns()]
    what = f'order="key", {KEYS:,} keys: CPU time of a message that a coroutine handles'
    make, ratios = _make("order", setup), [keyed / plain for plain, keyed in pairs]
    yield make("added_us", f"{what}, added", [keyed - plain for plain, keyed in pairs], "us")
    yield make("ratio", f"{what}, of that without order", ratios, "times", (at_most, GOAL_KEYED))


def handled_us(order: Literal["none", "key"], count: int) -> float:
    return run_on_best_loop(_handled_us(order, count))


async def _handled_us(order: Literal["none", "key"], count: int) -> float:
    bus = MemoryBus()
    bus.declare(f"{TOPIC}/{SUBSCRIPTION}")
    async with bus.async_publisher() as publisher:
        for begun in range(0, count, AT_ONCE):
            numbers = range(begun, min(count, begun + AT_ONCE))
            await publisher.send_many(TOPIC, [*map(_keyed, numbers)])
    consumer = bus.async_consumer(TOPIC, subscription=SUBSCRIPTION, order=order)
    left, done = count, asyncio.Event()

    async def handle(_delivery: Delivery) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    began_s = time.process_time()
    async with consumer:
        running = asyncio.create_task(consumer.run(handle, concurrency=CONCURRENCY))
        await done.wait()
        took_s = time.process_time() - began_s
        await consumer.stop()
        await running
    return took_s / count * 1e6


# Deduplication: what claims cost a consumer and the store.
# As in `messagebus.stores`: bytes of a key and of a claim's token.
KEY_BYTES, TOKEN_BYTES = 16, 8
RULE = Rule(lease_ms=30_000, remember_ms=86_400_000, unended_max=5)
CLAIMS, SQLITE_CLAIMS, A_TURN = 50_000, 20_000, 100
GOAL_SERVER_US, GOAL_BYTES = 8.0, 128.0
GOAL_SQLITE_PER_S, GOAL_REDIS_PER_S = 15_000.0, 30_000.0


def _dedup(setup: Setup) -> Iterator[Figure]:
    make = _make("dedup", setup)

    def in_sqlite() -> float:
        path = setup.folder / f"{secrets.token_hex(4)}.sqlite"
        return run_on_best_loop(claims_per_s(SqliteStore(path), setup.part(SQLITE_CLAIMS)))

    what = f"Claimed and done in SQLite, {A_TURN} a turn, synchronous FULL"
    rates = [in_sqlite() for _ in setup.turns()]
    yield make("sqlite_rate", what, rates, "/s", (at_least, GOAL_SQLITE_PER_S))
    with server("redis", setup.folder) as url, Redis.from_url(url) as redis:
        count, rates, costs = setup.part(CLAIMS), list[float](), list[float]()
        for _ in setup.turns():
            before_s = _server_cpu_s(redis)
            rates.append(run_on_best_loop(claims_per_s(RedisStore(url), count)))
            costs.append((_server_cpu_s(redis) - before_s) / count * 1e6)
        what = f"Claimed and done in Redis on this host, {A_TURN} a turn"
        yield make("redis_rate", what, rates, "/s", (at_least, GOAL_REDIS_PER_S))
        said = f"{what}: CPU time of the server a message"
        yield make("redis_server_us", said, costs, "us", (at_most, GOAL_SERVER_US))
        for state, size in zip(("running", "done"), record_bytes(url, redis), strict=True):
            said = f"Bytes of a record in Redis, {state}, by MEMORY USAGE"
            yield make(f"redis_{state}_bytes", said, size, "B", (at_most, GOAL_BYTES))


async def claims_per_s(store: Store, count: int) -> float:
    """Claim messages and mark them done as one consumer does: a turn ends the claims of the last one."""
    keys = [secrets.token_bytes(KEY_BYTES) for _ in range(count)]
    await store.turn(Turn(), RULE)  # connected
    began_s, done = time.perf_counter(), list[bytes]()
    for begun in range(0, count, A_TURN):
        claimed = keys[begun : begun + A_TURN]
        token = begun.to_bytes(TOKEN_BYTES)
        answer = await store.turn(Turn(done=done, claim=claimed, token=token), RULE)
        if any(verdict.kind != "run" for verdict in answer.verdicts):
            raise BenchError("a store refuses the claim of a new message")
        done = claimed
    await store.turn(Turn(done=done), RULE)
    took_s = time.perf_counter() - began_s
    await store.close()
    return count / took_s


def _server_cpu_s(redis: Redis) -> float:
    found = redis.info("cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


def record_bytes(url: str, redis: Redis) -> tuple[float, float]:
    """Return the bytes of a record that is running, and of one that is done."""
    key = secrets.token_bytes(KEY_BYTES)

    async def size_after(turn: Turn) -> float:
        store = RedisStore(url)
        await store.turn(turn, RULE)
        await store.close()
        return float(redis.memory_usage(PREFIX + key) or 0)

    running = run_on_best_loop(size_after(Turn(claim=[key], token=bytes(TOKEN_BYTES))))
    return running, run_on_best_loop(size_after(Turn(done=[key])))


# Spool: what a publisher accepts without a broker, and sends when there is one.
SPOOLED, THREADS, POLL_S = 40_000, 64, 0.005


class Spooled(NamedTuple):
    """One repetition: rates per second, and bytes on the disk beside each body."""

    accept: float
    replay: float
    more_bytes: float


def _spool(setup: Setup) -> Iterator[Figure]:
    make, count = _make("spool", setup), setup.part(SPOOLED, THREADS)
    turns = [spooled(count) for _ in setup.turns()]
    what = f"Spooled without a broker: send_safe in {THREADS} threads, 1 KB, one fdatasync for many"
    accepted = [turn.accept for turn in turns]
    yield make("accept_rate", what, accepted, "/s", (at_least, 10_000.0))
    what = "Sent from the spool and confirmed, 1 KB, to a broker in memory"
    yield make("replay_rate", what, [turn.replay for turn in turns], "/s")
    what = "Bytes of the spool for a message beside its body"
    yield make("bytes", what, [turn.more_bytes for turn in turns], "B", (at_most, 120.0))


def spooled(count: int) -> Spooled:
    folder = Path(tempfile.mkdtemp(prefix="messagebus-spool-"))
    bus = MemoryBus()
    bus.declare(f"{TOPIC}/{SUBSCRIPTION}")
    try:
        with bus.publisher(spool=Spool(folder)) as publisher:
            publisher.send_safe(TOPIC, KB_BODY)
            bus.stop_brokers()
            while publisher.send_safe(TOPIC, KB_BODY).outcome is not Outcome.SPOOLED:
                pass
            accept = _accepted_per_s(publisher, count)
            stats = publisher.stats()
            more_bytes = stats.spool_bytes / stats.spool_messages - len(KB_BODY)
            bus.start_brokers()
            return Spooled(accept, _replayed_per_s(publisher), more_bytes)
    finally:
        shutil.rmtree(folder)


def _accepted_per_s(publisher: Publisher, count: int) -> float:
    def send(_number: int) -> None:
        for _ in range(count // THREADS):
            publisher.send_safe(TOPIC, KB_BODY)

    began_s = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(send, range(THREADS)))
    return count // THREADS * THREADS / (time.perf_counter() - began_s)


def _replayed_per_s(publisher: Publisher) -> float:
    """Measure from the first confirm on, without the dial."""
    while not (first := publisher.stats().replayed):
        time.sleep(POLL_S)
    began_s = time.perf_counter()
    while publisher.stats().spool_messages:
        time.sleep(POLL_S)
    return (publisher.stats().replayed - first) / (time.perf_counter() - began_s)


# Outbox in PostgreSQL, with one broker behind HAProxy.
# A message costs a transaction less than a second INSERT would.
ADDS, ADDS_A_TRANSACTION, ROWS = 5_000, 100, 30_000
# Waits of up to two polls, so that a commit is at no moment between polls rather than at another.
WAITS, WAIT_MAX_S, LOOK_S = 200, 0.4, 0.001
GOAL_ADD, GOAL_ROWS_PER_S, GOAL_POLLED_MS, GOAL_NOTIFIED_MS = 2.0, 5_000.0, 150.0, 30.0


def _outbox(setup: Setup) -> Iterator[Figure]:
    make = _make("outbox", setup)
    bus = BusConfig.from_env(setup.cluster.client_env())
    declare(bus, [f"{TOPIC}/{SUBSCRIPTION}"])
    with server("postgresql", setup.folder) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in Table("postgresql").ddl():
                connection.execute(statement.encode())
        found = [_add_ratio(url, setup) for _ in setup.turns()]
        what = "`Outbox.add`: time of psycopg's own INSERT of such a row"
        yield make("add_ratio", what, found, "times", (at_most, GOAL_ADD))
        found = [run_on_best_loop(_rows_per_s(url, bus, setup)) for _ in setup.turns()]
        what = f"Outbox: rows relayed in order, {KEYS:,} keys, one relay"
        yield make("relay_rate", what, found, "rows/s", (at_least, GOAL_ROWS_PER_S))
        for word, notify, most in (
            ("polled", False, GOAL_POLLED_MS),
            ("notified", True, GOAL_NOTIFIED_MS),
        ):
            found = [
                run_on_best_loop(_wait_ms(url, bus, setup, notify=notify)) for _ in setup.turns()
            ]
            what = f"Outbox, {word}: commit to delivery, p50"
            yield make(f"{word}_ms", what, found, "ms", (at_most, most))


def _add_ratio(url: str, setup: Setup) -> float:
    """Return the time of `Outbox.add` divided by that of its INSERT alone; one after the other by turns."""
    outbox, took_s = Outbox(), dict.fromkeys(("added", "inserted"), 0.0)
    insert = Table("postgresql").insert(notify=False).replace("?", "%s").encode()
    with psycopg.connect(url) as connection:
        for _ in range(0, setup.part(ADDS), ADDS_A_TRANSACTION):
            outbox.add(connection, TOPIC, BODY, key="k")  # the transaction has begun
            [row] = connection.execute(f"SELECT {', '.join(COLUMNS)} FROM {DEFAULT_TABLE}".encode())
            start_s = time.perf_counter()
            for number in range(ADDS_A_TRANSACTION):
                outbox.add(connection, TOPIC, BODY, key=f"k{number % KEYS}")
            half_s = time.perf_counter()
            for _ in range(ADDS_A_TRANSACTION):
                connection.execute(insert, (secrets.token_hex(16), *row[1:]))
            took_s["added"] += half_s - start_s
            took_s["inserted"] += time.perf_counter() - half_s
            connection.rollback()
    return took_s["added"] / took_s["inserted"]


async def _rows_per_s(url: str, bus: BusConfig, setup: Setup) -> float:
    outbox, count = Outbox(), setup.part(ROWS)
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
    if not await relay.drained(WITHIN_S):
        raise BenchError(f"the relay has rows left after {WITHIN_S:g} s")
    took_s, done = time.perf_counter() - began_s, relay.stats().published - before
    await relay.stop()
    async with AsyncConsumer(bus, TOPIC, subscription=SUBSCRIPTION) as consumer:
        while count > 0:
            for delivery in await consumer.receive_many(AT_ONCE):
                consumer.ack(delivery)
                count -= 1
    return done / took_s


async def _wait_ms(url: str, bus: BusConfig, setup: Setup, *, notify: bool) -> float:
    outbox, waits_ms = Outbox(notify=notify), list[float]()
    connection = await psycopg.AsyncConnection.connect(url)
    async with (
        connection,
        AsyncConsumer(bus, TOPIC, subscription=SUBSCRIPTION) as consumer,
        AsyncRelay(url, bus, RelayConfig(notify=notify)),
    ):
        for _ in range(setup.part(WAITS)):
            await asyncio.sleep(random.uniform(0, WAIT_MAX_S))
            await outbox.add(connection, TOPIC, BODY)
            await connection.commit()
            committed_s = time.perf_counter()
            delivery = await consumer.receive(WITHIN_S)
            waits_ms.append((time.perf_counter() - committed_s) * 1e3)
            if delivery is None:
                raise BenchError(f"a committed row does not arrive within {WITHIN_S:g} s")
            consumer.ack(delivery)
    return statistics.median(waits_ms)


# Replay of a stream, on three brokers behind HAProxy.
BROKERS, STORED, BLOCK, PREFETCH = 3, 200_000, 2_000, 4_000
GOAL_REPLAY = 60_000.0


def _replay(setup: Setup) -> Iterator[Figure]:
    make, count = _make("replay", setup), setup.part(STORED)
    bus = BusConfig.from_env(setup.cluster.client_env())
    declare(bus, [Stream("streamed")])
    with ExitStack() as stack:
        publishers = [stack.enter_context(Publisher(bus)) for _ in range(BROKERS)]
        for begun in range(0, count, BLOCK):
            some = [KB_BODY] * min(BLOCK, count - begun)
            publishers[begun // BLOCK % BROKERS].send_many("streamed", some)
    turns = [_replayed(bus) for _ in setup.turns()]
    what, rates = f"Replayed in one process, 1 KB, {BROKERS} brokers", [rate for rate, _ in turns]
    yield make("rate", what, rates, "messages/s", (at_least, GOAL_REPLAY))
    yield make("cpu_us", f"{what}: CPU time a message", [us for _, us in turns], "us")


def _replayed(bus: BusConfig) -> tuple[float, float]:
    """Return messages a second, and CPU time of a message in us."""
    began_s, cpu_s, count = time.perf_counter(), time.process_time(), 0
    for _ in Replay(bus, "streamed", prefetch=PREFETCH):
        count += 1
    return count / (time.perf_counter() - began_s), (time.process_time() - cpu_s) / count * 1e6


# Recorder: CPU time of a row, its thread and its file included.
RECORDED, BROKER = 50_000, "mb1:5672"


def _recorder(setup: Setup) -> Iterator[Figure]:
    make, count = _make("recorder", setup), setup.part(RECORDED, BLOCK)
    recorded_us(BLOCK)  # imports, and a warm allocator
    turns = [recorded_us(count) for _ in setup.turns()]
    for number, (id, words) in enumerate(
        (("publish_us", "publish"), ("handle_us", "handled delivery"))
    ):
        what = f"Recorder: CPU time of a {words} of 1 KB, its thread and its file included"
        yield make(id, what, [turn[number] for turn in turns], "us")


def recorded_us(count: int) -> tuple[float, float]:
    """Return the CPU time of the recorder for a publish and a handled delivery, in us."""
    messages = [Message(body=KB_BODY, message_id=f"{number:032x}") for number in range(count)]
    ended = [
        Published(each.message_id, Outcome.CONFIRMED, Durability.FSYNC, BROKER, 1, 5, 7)
        for each in messages
    ]
    billing = Subscription(Topic(TOPIC), SUBSCRIPTION)
    came = [Delivery(each, Receipt(BROKER, 1, 1), billing, False, 8) for each in messages]
    with (
        tempfile.TemporaryDirectory() as folder,
        Recorder(folder, run_id="r", rows_max=count) as recorder,
    ):

        def cost_us(work: Callable[[], None], rows: int) -> float:
            began_s = time.process_time()
            work()
            # The rows are on the disk, so their cost is in the time.
            wait_until(lambda: recorder.stats().written >= rows, within_s=WITHIN_S, what="written")
            return (time.process_time() - began_s) / count * 1e6

        def publish() -> None:
            for message, end in zip(messages, ended, strict=True):
                recorder.published(TOPIC, recorder.publishing(TOPIC, message), end)

        def handle() -> None:
            for delivery in came:
                recorder.handled(delivery, "ack", None)

        return cost_us(publish, count), cost_us(handle, 2 * count)


def _make(feature: str, setup: Setup) -> Maker:
    return Maker(f"feature.{feature}", repeat_command(f"feature.{feature}", setup.repeat))


IN_MEMORY = "no broker: in memory"
GROUPS = (
    Group("feature.order", 0, IN_MEMORY, _order),
    Group("feature.dedup", 0, f"{IN_MEMORY}; SQLite and Redis", _dedup),
    Group("feature.spool", 0, IN_MEMORY, _spool),
    Group("feature.outbox", 1, "HAProxy before one broker, and PostgreSQL", _outbox),
    Group("feature.replay", BROKERS, BEHIND_HAPROXY, _replay),
    Group("feature.recorder", 0, IN_MEMORY, _recorder),
)
