"""Redis killed, frozen, emptied, full, closed to us, failed over: told in one line, its losses counted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import pytest
import redis

from messagebus.core.claims import ENDED, KEY_BYTES, RUN, TOKEN_BYTES, Answer, Held, Rule, Turn
from messagebus.errors import ConfigError, StoreAway
from messagebus.stores.redis import RedisStore
from tests.support.eventually import FACTOR, eventually_async
from tests.support.servers import MONITORED, MakeServer, RedisWithReplica, SingleServer

RULE = Rule(30_000, 600_000, 2)
TIMEOUT_S = 0.5
BACK_WITHIN_S = 60 * FACTOR
RECORD_BYTES_MAX, CLAIM_BYTES_MAX = 80, 120


def new_keys(count: int) -> list[bytes]:
    return [os.urandom(KEY_BYTES) for _ in range(count)]


@pytest.fixture
async def store(redis_server: SingleServer) -> AsyncIterator[RedisStore]:
    redis_server.start()
    made = RedisStore(redis_server.url)
    yield made
    await made.close()


async def in_time(call: Awaitable[Answer]) -> Answer:
    """Wait as a consumer does."""
    async with asyncio.timeout(TIMEOUT_S):
        return await call


async def until_back(store: RedisStore, turn: Turn) -> Answer:
    """Repeat a turn until it is carried out."""
    async with asyncio.timeout(BACK_WITHIN_S):
        while True:
            try:
                return await in_time(store.turn(turn, RULE))
            except (StoreAway, TimeoutError):
                await asyncio.sleep(0.05)


async def test_a_killed_redis_is_away_and_what_was_done_is_there_after_its_start(
    store: RedisStore, redis_server: SingleServer
) -> None:
    done, again = new_keys(2)
    await store.turn(Turn(done=[done], claim=[again], token=b"a" * TOKEN_BYTES), RULE)
    redis_server.kill()
    with pytest.raises(StoreAway) as fault:
        await store.turn(Turn(), RULE)
    assert "\n" not in str(fault.value)
    assert redis_server.password not in str(fault.value)
    redis_server.restart()
    answer = await until_back(store, Turn(claim=[done, again], token=b"a" * TOKEN_BYTES))
    assert [each.kind for each in answer.verdicts] == [ENDED, RUN]


async def test_a_master_that_became_a_replica_is_left(
    store: RedisStore, redis_server: SingleServer
) -> None:
    """Its connections live on and refuse every write; the name leads to the new master."""
    [key] = new_keys(1)
    await store.turn(Turn(), RULE)
    with redis.Redis.from_url(redis_server.url) as admin:
        before = {each["id"] for each in admin.client_list()} - {str(admin.client_id())}
        assert before
        admin.replicaof("127.0.0.1", "1")
        try:
            with pytest.raises(StoreAway, match=r"(?i)read.?only"):
                await store.turn(Turn(done=[key]), RULE)
            await eventually_async(
                lambda: not before & {each["id"] for each in admin.client_list()},
                within_s=BACK_WITHIN_S,
            )
        finally:
            admin.replicaof("NO", "ONE")
    await store.turn(Turn(done=[key]), RULE)


async def test_a_frozen_redis_costs_a_turn_its_time_and_no_later_one(
    store: RedisStore, redis_server: SingleServer
) -> None:
    keys = new_keys(100)
    turn = Turn(claim=keys, token=b"a" * TOKEN_BYTES)
    await store.turn(Turn(), RULE)
    redis_server.freeze()
    try:
        with pytest.raises(TimeoutError):
            await in_time(store.turn(turn, RULE))
    finally:
        redis_server.thaw()
    # The turn that was given up may be carried out beside this one: both have the same token.
    answer = await until_back(store, turn)
    assert {each.kind for each in answer.verdicts} == {RUN}
    await store.turn(Turn(done=keys), RULE)
    assert {each and each.state for each in await store.show(keys)} == {4}


async def test_a_redis_without_its_data_and_its_scripts_goes_on(
    store: RedisStore, redis_server: SingleServer
) -> None:
    [key] = new_keys(1)
    await store.turn(Turn(done=[key]), RULE)
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
        client.script_flush()
    assert (
        (await store.turn(Turn(claim=[key], token=b"a" * TOKEN_BYTES), RULE)).verdicts[0].is_first
    )


async def test_a_full_redis_is_told_and_drops_no_record_for_a_new_one(
    make_server: MakeServer,
) -> None:
    server = make_server("redis")
    store = RedisStore(server.url)
    done, new = new_keys(1), new_keys(1)
    await store.turn(Turn(done=done), RULE)
    with redis.Redis.from_url(server.url) as client:
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreAway, match="full: its maxmemory is reached"):
            await store.turn(Turn(done=new), RULE)
        client.config_set("maxmemory", 0)
    assert [bool(each) for each in await store.show([*done, *new])] == [True, False]
    await store.turn(Turn(done=new), RULE)
    await store.close()


async def test_a_wrong_password_is_an_error_of_the_settings(redis_server: SingleServer) -> None:
    redis_server.start()
    for url in (redis_server.url.replace(redis_server.password, "wrong"), redis_server.address):
        store = RedisStore(url)
        with pytest.raises(ConfigError, match="login refused") as fault:
            await store.turn(Turn(), RULE)
        assert redis_server.password not in str(fault.value)
        await store.close()


async def test_a_redis_cluster_is_refused(make_server: MakeServer) -> None:
    server = make_server("redis")
    config = server.layout.dir / "redis.conf"
    config.write_text(config.read_text() + "\ncluster-enabled yes\n")
    server.restart()
    store = RedisStore(server.url)
    with pytest.raises(ConfigError, match="Redis Cluster"):
        await store.turn(Turn(done=new_keys(10)), RULE)
    await store.close()


async def test_a_record_takes_no_more_than_its_bytes(
    store: RedisStore, redis_server: SingleServer
) -> None:
    keys = new_keys(1_000)
    with redis.Redis.from_url(redis_server.url) as client:
        claim = Turn(claim=keys, token=b"a" * TOKEN_BYTES)
        # A claim lives for the time of a run; what is done is what fills the memory.
        for turn, most in ((claim, CLAIM_BYTES_MAX), (Turn(done=keys), RECORD_BYTES_MAX)):
            await store.turn(turn, RULE)
            used = [int(client.memory_usage(b"mb:" + key) or 0) for key in keys]
            assert 0 < sum(used) / len(keys) <= most


async def test_sentinels_name_the_new_master_and_lost_records_are_counted(
    redis_failover: RedisWithReplica,
) -> None:
    group = redis_failover
    hosts = ",".join(f"{host}:{port}" for host, port in group.addresses)
    store = RedisStore(f"redis+sentinel://:{group.password}@{hosts}/{MONITORED}?wait_replicas=1")
    copied, lost = new_keys(50), new_keys(50)
    before = -1
    async with asyncio.timeout(20 * FACTOR):  # until the replica is in step
        while store.unreplicated != before:
            before = store.unreplicated
            await store.turn(Turn(done=copied), RULE)
    with redis.Redis.from_url(group.replica.url) as client:  # it cannot follow any more
        client.config_set("masterauth", "wrong")
        client.client_kill_filter(_type="master")
    await store.turn(Turn(done=lost), RULE)
    group.first.kill()
    assert store.unreplicated == before + 1, "a turn that no replica has is not counted"
    answer = await until_back(store, Turn(claim=[*copied, *lost], token=b"a" * TOKEN_BYTES))
    kinds = [each.kind for each in answer.verdicts]
    assert kinds[:50] == [ENDED] * 50
    forgotten = sum(each == RUN for each in kinds[50:])
    assert forgotten == 50, "the replica had what it could not have"
    held = [Held(key, b"a" * TOKEN_BYTES) for key in lost]
    assert (await store.turn(Turn(extend=held), RULE)).kept == [True] * 50
    await store.close()


async def test_no_sentinel_and_no_server_are_told_in_one_line() -> None:
    for url, told in (
        ("redis://127.0.0.1:1", "Connect call failed"),
        ("redis+sentinel://127.0.0.1:1/bus", "no Sentinel names a master"),
    ):
        store = RedisStore(url)
        with pytest.raises(StoreAway, match=told) as fault:
            await store.turn(Turn(), RULE)
        assert "\n" not in str(fault.value)
        await store.close()


def test_the_script_has_the_numbers_of_the_states() -> None:
    from messagebus.core import claims

    states: Any = (claims.FIRST, claims.RUNNING, claims.WAITING, claims.DONE, claims.PARKED)
    assert states == (1, 2, 3, 4, 5)
    assert [ord(digit) & 15 for digit in "45"] == [claims.DONE, claims.PARKED]
