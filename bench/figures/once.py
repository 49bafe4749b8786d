"""Deduplication, spool and outbox: what each costs, and the rates and the latency that it leaves.

Of deduplication: CPU time a message with each store, the stores' rates, bytes a record, and added latency.
Of a publisher's spool: messages taken per second without a broker, and sent when there is one. Brokers are in
memory; one Redis, a SQLite file and the spool lie beside them, on the disk of the run. The clients of stores
are this process. A rate counts messages of which each is claimed and then told as done, 100 in a turn.

Of the outbox in PostgreSQL: the cost of `add`, the rate of one relay in order, and commit to delivery, with
one broker behind HAProxy and one PostgreSQL beside it, its files on the same disk. Application, relay and
consumer are this process.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import shutil
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psycopg
from redis import Redis

from bench.errors import BenchError
from bench.figures.form import Figure, Maker, at_least, at_most
from bench.figures.scene import Group, Scene, repeat_command, server
from bench.harness.loop import run_on_best_loop
from messagebus import AsyncConsumer, BusConfig, Dedup, Outcome, Publisher, Spool, declare
from messagebus.outbox import AsyncRelay, Outbox, RelayConfig
from messagebus.outbox.table import Table
from messagebus.stores import Rule, Store, Turn
from messagebus.stores.memory import MemoryStore
from messagebus.stores.redis import PREFIX, RedisStore
from messagebus.stores.sqlite import SqliteStore
from messagebus.testing import MemoryBus

DEDUPED = "once.dedup"
# As of `messagebus.stores`: bytes of a key and of a claim's token.
KEY_BYTES, TOKEN_BYTES = 16, 8
RULE = Rule(lease_ms=30_000, remember_ms=86_400_000, unended_max=5)
TOPIC, SUBSCRIPTION = "orders", "billing"
BODY = b"x" * 200
CONSUMED, READ = 50_000, 500
CLAIMS, SQLITE_CLAIMS, A_TURN = 50_000, 20_000, 100
RATE_PER_S, EVERY_S, LATENCY_MS = 3_000, 0.005, 10_000
RECEIVE_S = 5.0
BEETLE_MESSAGES, RECORDS = 2_000, 200_000
BEETLE_READ = ("status", "delay", "timeout", "attempts", "exceptions")
BEETLE_KEYS = (*BEETLE_READ, "ack_count", "mutex", "expires")
GOAL_MEMORY_US = 2.0
GOAL_SQLITE_PER_S, GOAL_SQLITE_US = 15_000.0, 25.0
GOAL_REDIS_PER_S, GOAL_REDIS_US, GOAL_SERVER_US, GOAL_BYTES = 30_000.0, 15.0, 8.0, 100.0
GOAL_P50_MS, GOAL_P99_MS = 1.0, 5.0


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of claims and ends. cpu_us: of this process, a message; server_us: of the server's."""

    per_s: float
    cpu_us: float
    server_us: float = 0.0


def _dedup_figures(scene: Scene) -> Iterator[Figure]:
    make = Maker("once", repeat_command(DEDUPED, scene.repeat))
    added = [added_us(scene.part(CONSUMED)) for _ in range(scene.repeat)]
    what = "Deduplication in memory: CPU time added to each message that is received and acked"
    yield make("dedup_memory_us", what, added, "us", (at_most, GOAL_MEMORY_US))
    yield from _of_sqlite(scene, make)
    with server("redis", scene.folder) as url:
        yield from _of_redis(scene, make, url)


def _of_sqlite(scene: Scene, make: Maker) -> Iterator[Figure]:
    def once() -> Cost:
        path = scene.folder / f"{secrets.token_hex(4)}.sqlite"
        return run_on_best_loop(cost(SqliteStore(path), scene.part(SQLITE_CLAIMS)))

    found = [once() for _ in range(scene.repeat)]
    rates, costs = [each.per_s for each in found], [each.cpu_us for each in found]
    what = f"Claimed and done in SQLite, {A_TURN} a turn, synchronous FULL"
    yield make("dedup_sqlite_rate", what, rates, "/s", (at_least, GOAL_SQLITE_PER_S))
    yield make("dedup_sqlite_us", f"{what}: CPU time", costs, "us", (at_most, GOAL_SQLITE_US))


def _of_redis(scene: Scene, make: Maker, url: str) -> Iterator[Figure]:
    redis = Redis.from_url(url)

    def once() -> Cost:
        before = server_cpu_s(redis)
        count = scene.part(CLAIMS)
        found = run_on_best_loop(cost(RedisStore(url), count))
        return Cost(found.per_s, found.cpu_us, (server_cpu_s(redis) - before) / count * 1e6)

    found = [once() for _ in range(scene.repeat)]
    what = f"Claimed and done in Redis on this host, {A_TURN} a turn"
    rates = [each.per_s for each in found]
    yield make("dedup_redis_rate", what, rates, "/s", (at_least, GOAL_REDIS_PER_S))
    clients = [each.cpu_us for each in found]
    yield make("dedup_redis_us", f"{what}: CPU time here", clients, "us", (at_most, GOAL_REDIS_US))
    servers = [each.server_us for each in found]
    told = f"{what}: CPU time of the server"
    yield make("dedup_redis_server_us", told, servers, "us", (at_most, GOAL_SERVER_US))
    for state, size in zip(("running", "done"), record_bytes(url, redis), strict=True):
        told = f"Bytes of a record in Redis, {state}, by MEMORY USAGE"
        yield make(f"dedup_redis_{state}_bytes", told, size, "B", (at_most, GOAL_BYTES))
    used = [used_bytes(url, redis, scene.part(RECORDS)) for _ in range(scene.repeat)]
    told = f"Bytes of Redis' memory a record, done, of {scene.part(RECORDS):,}"
    yield make("dedup_redis_used_bytes", told, used, "B")
    yield from _of_beetle(scene, make, redis)
    with_p50, with_p99, for_s = [], [], scene.part(LATENCY_MS) / 1000
    for _ in range(scene.repeat):
        plain = run_on_best_loop(latencies_ms(None, for_s))
        deduped = run_on_best_loop(latencies_ms(RedisStore(url), for_s))
        with_p50.append(_at(deduped, 0.50) - _at(plain, 0.50))
        with_p99.append(_at(deduped, 0.99) - _at(plain, 0.99))
    told = f"Latency added by claims in Redis at {RATE_PER_S:,}/s"
    yield make("dedup_latency_p50", f"{told}, p50", with_p50, "ms", (at_most, GOAL_P50_MS))
    yield make("dedup_latency_p99", f"{told}, p99", with_p99, "ms", (at_most, GOAL_P99_MS))
    redis.close()


def _of_beetle(scene: Scene, make: Maker, redis: Redis) -> Iterator[Figure]:
    """Make figures of the commands that Beetle 6.1 (Ruby) gives to Redis, by its published source.

    They are given here from Python, each waited for as there: Ruby's own cost is not in them.
    """
    count = scene.part(BEETLE_MESSAGES)
    what = "Beetle's commands to Redis, given from Python: messages of two copies"
    rates = [beetle_per_s(redis, count) for _ in range(scene.repeat)]
    yield make("beetle_redis_rate", what, rates, "/s")
    told = "Bytes of a message that runs, in Redis, with Beetle's keys, by MEMORY USAGE"
    yield make("beetle_redis_running_bytes", told, beetle_bytes(redis), "B")


def beetle_per_s(redis: Redis, count: int) -> float:
    """Return messages a second: of each two copies come, the first one is run, the second one acked."""
    began_s = time.perf_counter()
    for _ in range(count):
        key = _beetle_begins(redis)
        redis.mset({f"{key}:status": "completed", f"{key}:timeout": 0})
        redis.incr(f"{key}:ack_count")
        assert not redis.msetnx({f"{key}:status": "incomplete"})
        redis.mget([f"{key}:{suffix}" for suffix in BEETLE_READ])
        redis.incr(f"{key}:ack_count")
        redis.delete(*(f"{key}:{suffix}" for suffix in BEETLE_KEYS))
    return count / (time.perf_counter() - began_s)


def beetle_bytes(redis: Redis) -> float:
    """Return the bytes of all keys of a message while its handler runs."""
    key = _beetle_begins(redis)
    return float(sum(redis.memory_usage(each) or 0 for each in redis.scan_iter(f"{key}:*")))


def _beetle_begins(redis: Redis) -> str:
    """Give the commands of a message that was never seen; return the beginning of its keys."""
    key, now_s = f"msgid:{TOPIC}:{uuid.uuid4()}", int(time.time())
    first: dict[str, str | int] = {
        "status": "incomplete",
        "expires": now_s + 86_400,
        "timeout": now_s + 600,
    }
    redis.msetnx({f"{key}:{suffix}": value for suffix, value in first.items()})
    redis.incr(f"{key}:attempts")
    return key


# In memory.
def added_us(count: int) -> float:
    """Return the CPU time that deduplication in memory adds to a message, in us."""
    plain = run_on_best_loop(consumed_us(None, count))
    return run_on_best_loop(consumed_us(MemoryStore(), count)) - plain


async def consumed_us(store: Store | None, count: int) -> float:
    """Return the CPU time of this process a message that is received and acked, in us."""
    bus = MemoryBus()
    bus.declare(f"{TOPIC}/{SUBSCRIPTION}")
    async with bus.async_publisher() as publisher:
        for begun in range(0, count, READ):
            await publisher.send_many(TOPIC, [BODY] * min(READ, count - begun))
    consumer = bus.async_consumer(TOPIC, subscription=SUBSCRIPTION, dedup=_dedup(store))
    left, began_s = count, time.process_time()
    async with consumer:
        while left:
            for delivery in await consumer.receive_many(READ):
                consumer.ack(delivery)
                left -= 1
    return (time.process_time() - began_s) / count * 1e6


def _dedup(store: Store | None) -> Dedup | None:
    return None if store is None else Dedup(store)


# Stores by themselves.
async def cost(store: Store, count: int) -> Cost:
    """Claim messages and tell them as done, as one consumer does: a turn tells the last one's ends."""
    keys = [secrets.token_bytes(KEY_BYTES) for _ in range(count)]
    await store.turn(Turn(), RULE)  # connected
    began_s, began_cpu_s, done = time.perf_counter(), time.process_time(), list[bytes]()
    for begun in range(0, count, A_TURN):
        claimed = keys[begun : begun + A_TURN]
        token = begun.to_bytes(TOKEN_BYTES)
        answer = await store.turn(Turn(done=done, claim=claimed, token=token), RULE)
        assert all(verdict.kind == "run" for verdict in answer.verdicts)
        done = claimed
    await store.turn(Turn(done=done), RULE)
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    await store.close()
    return Cost(count / took_s, cpu_s / count * 1e6)


def server_cpu_s(redis: Redis) -> float:
    """Return the CPU time that a Redis has used since its start, in s."""
    found = redis.info("cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


def record_bytes(url: str, redis: Redis) -> tuple[float, float]:
    """Return the bytes of a record that is running, and of one that is done."""
    store, key = RedisStore(url), secrets.token_bytes(KEY_BYTES)
    sizes = []
    for turn in (Turn(claim=[key], token=bytes(TOKEN_BYTES)), Turn(done=[key])):

        async def once(turn: Turn = turn) -> None:
            await store.turn(turn, RULE)
            await store.close()

        run_on_best_loop(once())
        sizes.append(float(redis.memory_usage(PREFIX + key) or 0))
    return sizes[0], sizes[1]


def used_bytes(url: str, redis: Redis, count: int) -> float:
    """Return the bytes by which a Redis' memory grows for each record that is done, its tables included."""
    redis.flushall()
    before = int(redis.info("memory")["used_memory"])
    run_on_best_loop(cost(RedisStore(url), count))
    return (int(redis.info("memory")["used_memory"]) - before) / count


# Latency.
async def latencies_ms(store: Store | None, for_s: float) -> list[float]:
    """Return the time from each publish to its receipt, in ms, at RATE_PER_S over brokers in memory."""
    bus, found, each = MemoryBus(), list[float](), round(RATE_PER_S * EVERY_S)
    count = round(for_s / EVERY_S) * each
    consumer = bus.async_consumer(TOPIC, subscription=SUBSCRIPTION, dedup=_dedup(store))
    async with consumer, bus.async_publisher() as publisher:

        async def publish() -> None:
            due_s = time.perf_counter()
            for _ in range(count // each):
                due_s += EVERY_S
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                stamp = time.perf_counter_ns().to_bytes(8)
                await publisher.send_many(TOPIC, [stamp] * each)

        publishing = asyncio.create_task(publish())
        while len(found) < count:
            deliveries = await consumer.receive_many(READ, timeout_s=RECEIVE_S)
            now_ns = time.perf_counter_ns()
            if not deliveries:
                raise BenchError(f"nothing was received for {RECEIVE_S:g} s")
            for delivery in deliveries:
                found.append((now_ns - int.from_bytes(delivery.body)) / 1e6)
                consumer.ack(delivery)
        await publishing
    if store is not None:
        await store.close()
    return found


def _at(found: list[float], share: float) -> float:
    return sorted(found)[int(len(found) * share)]


DEDUP = Group(DEDUPED, 0, "no broker: in memory; Redis beside it", _dedup_figures)


SPOOLED_NAME = "once.spool"
SPOOLED_BODY = b"x" * 1024
SPOOLED, THREADS = 40_000, 64
POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class _Turn:
    """One repetition: rates per second, and bytes on the disk beside each body."""

    publish: float
    accept: float
    replay: float
    more_bytes: float


def spool_figures(scene: Scene) -> Iterator[Figure]:
    """Measure what the spool takes and sends per second, and its bytes."""
    turns = [_turn() for _ in range(scene.repeat)]
    make = Maker("once", repeat_command(SPOOLED_NAME, scene.repeat))
    yield make(
        "spool_accept",
        f"Spooled without a broker: send_safe in {THREADS} threads, 1 KB, one fdatasync for many",
        [turn.accept for turn in turns],
        "/s",
        (at_least, 10_000.0),
    )
    yield make(
        "spool_replay",
        "Sent from the spool and confirmed, 1 KB, to a broker in memory",
        [turn.replay for turn in turns],
        "/s",
    )
    yield make(
        "spool_replay_ratio",
        "The same, as a share of what send_many of that publisher publishes without the spool",
        [turn.replay / turn.publish for turn in turns],
        "",
        (at_least, 0.5),
    )
    yield make(
        "spool_bytes",
        "Bytes of the spool for each message beside its body",
        [turn.more_bytes for turn in turns],
        "B",
        (at_most, 120.0),
    )


def _turn() -> _Turn:
    folder = Path(tempfile.mkdtemp(prefix="messagebus-spool-"))
    bus = MemoryBus()
    bus.declare("orders/billing")
    try:
        with bus.publisher(spool=Spool(folder)) as publisher:
            publisher.flush()
            began = time.perf_counter()
            publisher.send_many("orders", [SPOOLED_BODY] * SPOOLED)
            publish = SPOOLED / (time.perf_counter() - began)
            bus.stop_brokers()
            while publisher.send_safe("orders", SPOOLED_BODY).outcome is not Outcome.SPOOLED:
                pass
            accept = _accepted_per_s(publisher)
            stats = publisher.stats()
            more_bytes = stats.spool_bytes / stats.spool_messages - len(SPOOLED_BODY)
            bus.start_brokers()
            replay = _replayed_per_s(publisher)
    finally:
        shutil.rmtree(folder)
    return _Turn(publish, accept, replay, more_bytes)


def _accepted_per_s(publisher: Publisher) -> float:
    def send(_number: int) -> None:
        for _ in range(SPOOLED // THREADS):
            publisher.send_safe("orders", SPOOLED_BODY)

    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(send, range(THREADS)))
    return SPOOLED // THREADS * THREADS / (time.perf_counter() - began)


def _replayed_per_s(publisher: Publisher) -> float:
    """Measure from the first confirm on: the dial is another figure."""
    while not (first := publisher.stats().replayed):
        time.sleep(POLL_S)
    began = time.perf_counter()
    while publisher.stats().spool_messages:
        time.sleep(POLL_S)
    return (publisher.stats().replayed - first) / (time.perf_counter() - began)


SPOOL = Group(SPOOLED_NAME, 0, "no broker: in memory", spool_figures)


RELAYED = "once.outbox"
OUTBOX_TOPIC, SINK = "outbox", "sink"
ADDS, ADDS_A_TRANSACTION = 5_000, 100
ROWS, KEYS = 30_000, 1_000
# Waits of up to two polls, so that a commit is at no moment between polls rather than at another.
WAITS, WAIT_MAX_S = 200, 0.4
LOOK_S = 0.001
WITHIN_S = 60.0
GOAL_ADD_US, GOAL_ROWS_PER_S = 150.0, 5_000.0
GOAL_POLLED_MS, GOAL_NOTIFIED_MS = 150.0, 30.0


def _outbox_figures(scene: Scene) -> Iterator[Figure]:
    bus = BusConfig.from_env(scene.cluster.client_env())
    declare(bus, [f"{OUTBOX_TOPIC}/{SINK}"])
    with server("postgresql", scene.folder) as url:
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in Table("postgresql").ddl():
                connection.execute(statement.encode())
        make = Maker("once", repeat_command(RELAYED, scene.repeat))
        found = [_add_us(url, scene) for _ in range(scene.repeat)]
        yield make("outbox_add", "`Outbox.add`", found, "us", (at_most, GOAL_ADD_US))
        found = [run_on_best_loop(_rows_per_s(url, bus, scene)) for _ in range(scene.repeat)]
        what = f"Rows relayed in order, {KEYS:,} keys, one relay"
        yield make("outbox_rate", what, found, "rows/s", (at_least, GOAL_ROWS_PER_S))
        for word, notify, most in (
            ("polled", False, GOAL_POLLED_MS),
            ("notified", True, GOAL_NOTIFIED_MS),
        ):
            found = [
                run_on_best_loop(_wait_ms(url, bus, scene, notify=notify))
                for _ in range(scene.repeat)
            ]
            what = f"Commit to delivery, p50, {word}"
            yield make(f"outbox_{word}", what, found, "ms", (at_most, most))


def _add_us(url: str, scene: Scene) -> float:
    outbox, count = Outbox(), scene.part(ADDS)
    took_s = 0.0
    with psycopg.connect(url) as connection:
        for begun in range(0, count, ADDS_A_TRANSACTION):
            connection.execute("SELECT 1")  # the transaction has begun
            start_s = time.perf_counter()
            for number in range(begun, begun + ADDS_A_TRANSACTION):
                outbox.add(connection, OUTBOX_TOPIC, BODY, key=f"k{number % KEYS}")
            took_s += time.perf_counter() - start_s
            connection.rollback()
    return took_s / count * 1e6


async def _rows_per_s(url: str, bus: BusConfig, scene: Scene) -> float:
    outbox, count = Outbox(), scene.part(ROWS)
    with psycopg.connect(url) as connection:
        for number in range(count):
            outbox.add(connection, OUTBOX_TOPIC, BODY, key=f"k{number % KEYS}")
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
    async with AsyncConsumer(bus, OUTBOX_TOPIC, subscription=SINK) as consumer:
        while count > 0:
            for delivery in await consumer.receive_many(500):
                consumer.ack(delivery)
                count -= 1


async def _wait_ms(url: str, bus: BusConfig, scene: Scene, *, notify: bool) -> float:
    outbox, waits_ms = Outbox(notify=notify), list[float]()
    connection = await psycopg.AsyncConnection.connect(url)
    async with (
        connection,
        AsyncConsumer(bus, OUTBOX_TOPIC, subscription=SINK) as consumer,
        AsyncRelay(url, bus, RelayConfig(notify=notify)) as relay,
    ):
        assert await relay.drained(WITHIN_S)
        for _ in range(scene.part(WAITS)):
            await asyncio.sleep(random.uniform(0, WAIT_MAX_S))
            await outbox.add(connection, OUTBOX_TOPIC, BODY)
            await connection.commit()
            committed_s = time.perf_counter()
            delivery = await consumer.receive(WITHIN_S)
            waits_ms.append((time.perf_counter() - committed_s) * 1e3)
            assert delivery is not None
            consumer.ack(delivery)
    return statistics.median(waits_ms)


OUTBOX = Group(RELAYED, 1, "HAProxy before one broker, and PostgreSQL", _outbox_figures)
