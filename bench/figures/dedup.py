"""Deduplication: CPU time a message with each store, the stores' rates, bytes a record, and added latency.

Brokers are in memory; one Redis and a SQLite file lie beside them, on the disk of the run. The clients of
stores are this process. A rate counts messages of which each is claimed and then told as done, 100 in a turn.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from redis import Redis

from bench.errors import BenchError
from bench.figures.form import Figure, Maker, at_least, at_most
from bench.figures.scene import Group, Scene, repeat_command, server
from bench.harness.loop import best_loop, event_loop
from messagebus import Dedup
from messagebus.stores import Rule, Store, Turn
from messagebus.stores.memory import MemoryStore
from messagebus.stores.redis import PREFIX, RedisStore
from messagebus.stores.sqlite import SqliteStore
from messagebus.testing import MemoryBus

T = TypeVar("T")

NAME = "once.dedup"
# As of `messagebus.stores`: bytes of a key and of a claim's token.
KEY_BYTES, TOKEN_BYTES = 16, 8
RULE = Rule(lease_ms=30_000, remember_ms=86_400_000, unended_max=5)
TOPIC, SUBSCRIPTION = "orders", "billing"
BODY = b"x" * 200
MESSAGES, READ = 50_000, 500
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


def _figures(scene: Scene) -> Iterator[Figure]:
    make = Maker("once", repeat_command(NAME, scene.repeat))
    added = [added_us(scene.part(MESSAGES)) for _ in range(scene.repeat)]
    what = "Deduplication in memory: CPU time added to each message that is received and acked"
    yield make("dedup_memory_us", what, added, "us", (at_most, GOAL_MEMORY_US))
    yield from _of_sqlite(scene, make)
    with server("redis", scene.folder) as url:
        yield from _of_redis(scene, make, url)


def _of_sqlite(scene: Scene, make: Maker) -> Iterator[Figure]:
    def once() -> Cost:
        path = scene.folder / f"{secrets.token_hex(4)}.sqlite"
        return _run(partial(cost, SqliteStore(path), scene.part(SQLITE_CLAIMS)))

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
        found = _run(partial(cost, RedisStore(url), count))
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
        plain = _run(partial(latencies_ms, None, for_s))
        deduped = _run(partial(latencies_ms, RedisStore(url), for_s))
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


def _run(work: Callable[[], Awaitable[T]]) -> T:
    async def main() -> T:
        return await work()

    with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
        return runner.run(main())


# In memory.
def added_us(count: int) -> float:
    """Return the CPU time that deduplication in memory adds to a message, in us."""
    plain = _run(partial(consumed_us, None, count))
    return _run(partial(consumed_us, MemoryStore(), count)) - plain


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

        _run(once)
        sizes.append(float(redis.memory_usage(PREFIX + key) or 0))
    return sizes[0], sizes[1]


def used_bytes(url: str, redis: Redis, count: int) -> float:
    """Return the bytes by which a Redis' memory grows for each record that is done, its tables included."""
    redis.flushall()
    before = int(redis.info("memory")["used_memory"])
    _run(partial(cost, RedisStore(url), count))
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


GROUP = Group(NAME, 0, "no broker: in memory; Redis beside it", _figures)
