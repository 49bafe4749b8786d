"""Real servers beside the brokers: started, killed, frozen and found again, with their data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import redis

from ops.errors import LocalFault
from ops.local import servers
from ops.local.servers import choices_of
from tests.support.eventually import eventually
from tests.support.servers import MONITORED, MakeServer, RedisWithReplica, SingleServer

CONNECT_S = 2


def postgresql(server: SingleServer) -> psycopg.Connection:
    return psycopg.connect(server.url, connect_timeout=CONNECT_S, autocommit=True)


def mariadb(server: SingleServer) -> pymysql.Connection:
    return pymysql.connect(
        host=server.host,
        port=server.port,
        user=server.user,
        password=server.password,
        database=server.database,
        connect_timeout=CONNECT_S,
        read_timeout=CONNECT_S,
        autocommit=True,
    )


def rows(server: SingleServer, sql: str) -> list[int]:
    """Run a statement and return the first column."""
    connect: Callable[[SingleServer], object] = (
        postgresql if server.layout.kind == "postgresql" else mariadb
    )
    with connect(server) as connection, connection.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute(sql)
        return [row[0] for row in cursor.fetchall()] if cursor.description else []


@pytest.mark.parametrize("name", ["postgresql", "mariadb"])
def test_a_database_keeps_what_was_committed_when_it_is_killed(
    request: pytest.FixtureRequest, name: str
) -> None:
    server: SingleServer = request.getfixturevalue(f"{name}_server")
    rows(server, "CREATE TABLE kept (n integer)")
    rows(server, "INSERT INTO kept VALUES (7)")
    server.kill()
    assert not servers.serves(server.layout)
    server.restart()
    assert rows(server, "SELECT n FROM kept") == [7]


@pytest.mark.parametrize("name", ["postgresql", "mariadb", "redis"])
def test_a_frozen_server_answers_nothing_until_it_is_thawed(
    request: pytest.FixtureRequest, name: str
) -> None:
    server: SingleServer = request.getfixturevalue(f"{name}_server")
    server.freeze()
    try:
        assert not servers.serves(server.layout)
    finally:
        server.thaw()
    eventually(lambda: servers.serves(server.layout), within_s=60)


def test_redis_that_syncs_always_keeps_what_it_answered_when_it_is_killed(
    redis_server: SingleServer,
) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.set("kept", 7)
    redis_server.kill()
    redis_server.restart()
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.get("kept") == b"7"


def test_sentinels_make_the_replica_the_master_when_the_master_is_killed(
    redis_failover: RedisWithReplica,
) -> None:
    sentinel: Any = redis.Sentinel(  # type: ignore[no-untyped-call]
        redis_failover.addresses, password=redis_failover.password
    )
    redis_failover.first.kill()
    wanted = (redis_failover.replica.host, redis_failover.replica.port)

    def has_failed_over() -> bool:
        try:
            return bool(sentinel.discover_master(MONITORED) == wanted)
        except redis.sentinel.MasterNotFoundError:
            return False  # known to be down, and the replica not yet promoted

    eventually(has_failed_over, within_s=60)


def test_a_missing_program_is_told_with_the_command_that_installs_it(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalFault, match=r"redis is not installed: .*install.sh redis-server"):
        make_server("redis")


def test_servers_are_chosen_by_name() -> None:
    assert [choice.kind for choice in choices_of("redis:always, mariadb")] == ["redis", "mariadb"]
    assert choices_of("redis:always")[0].persistence == "always"
    with pytest.raises(
        LocalFault, match="no server 'oracle': there are redis, postgresql, mariadb"
    ):
        choices_of("oracle")
    with pytest.raises(LocalFault, match="'redis:never'"):
        choices_of("redis:never")
