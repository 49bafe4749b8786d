"""messagebus.stores: settings and URLs of stores, and the store in memory."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from messagebus.core.claims import ENDED, KEY_BYTES, LATER, TOKEN_BYTES, Rule, Turn
from messagebus.errors import ConfigError
from messagebus.secret import Secret
from messagebus.stores import Dedup, Store, open_store
from messagebus.stores.memory import MemoryStore
from messagebus.stores.sql import SqlStore, dedup_ddl

RULE = Rule(30_000, 60_000, 2)


def keys(first: int, count: int) -> list[bytes]:
    return [number.to_bytes(KEY_BYTES) for number in range(first, first + count)]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory:", "MemoryStore(max=1000000)"),
        ("memory:?max=10", "MemoryStore(max=10)"),
        ("sqlite:///claims.db", "SqliteStore('claims.db', synchronous='FULL')"),
        ("sqlite:////a/b.db?synchronous=normal", "SqliteStore('/a/b.db', synchronous='NORMAL')"),
        ("redis://u:hidden@h/3", "RedisStore('redis://h/3')"),
        ("rediss://h:1?wait_replicas=1", "RedisStore('rediss://h:1')"),
        (
            "redis+sentinel://:hidden@h,[::1]:2/bus/1",
            "RedisStore('redis+sentinel://h,[::1]:2/bus/1')",
        ),
    ],
)
def test_a_store_is_opened_by_its_url_and_shows_no_password(url: str, shown: str) -> None:
    store = open_store(Secret(url))
    assert isinstance(store, Store)
    assert repr(store) == shown
    assert "hidden" not in repr(Dedup(store))
    assert "hidden" not in repr(Dedup(Secret(url)))


@pytest.mark.parametrize(
    "url",
    [
        *("", "memory", "redis", "x://u:hidden@h", "sqlite:", "sqlite://", "sqlite://hidden/a"),
        *("sqlite:///a?synchronous=off", "sqlite:///a?hidden=1", "memory://h", "memory:?max=x"),
        *("memory:?max=0", "redis:///1", "redis://:hidden@h/x", "redis://h/1/2", "redis://h,i/1"),
        *("redis://h?wait_replicas=many", "redis://h?else=1", "redis+sentinel://h", "redis://h:x"),
        *(
            "redis+other://h/1",
            "redis://:hidden@[h",
            "redis://u:1/hidden@h",
            "redis://u:1#hidden@h",
        ),
        *("redis://u:1?hidden=1@h", "postgresql://u:[hidden]@h/d", "mysql://u:[hidden@h/d"),
        *("memory://[hidden", "sqlite://[hidden", "sqlite:///a%00b"),
    ],
)
def test_a_wrong_url_is_one_line_without_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as fault:
        open_store(url)
    assert "\n" not in str(fault.value)
    assert ":hidden" not in str(fault.value)
    if "1" in url.partition("hidden")[0] or "[hidden" in url:  # a part of the password
        assert "hidden" not in str(fault.value)


def test_the_path_of_a_file_may_hold_what_parts_a_login_from_a_host() -> None:
    assert repr(open_store("sqlite:////a@b/c.db")).startswith("SqliteStore('/a@b/c.db'")


def test_all_wrong_settings_are_told_at_once() -> None:
    wrong: Any = 7
    with pytest.raises(ConfigError) as fault:
        Dedup(wrong, remember_s=0, lease_s="1", on_store_away="go", too_old="", unended_max=10_000)  # type: ignore[arg-type]
    told = str(fault.value)
    for each in ("remember_s 0", "lease_s '1'", "on_store_away 'go'", "too_old ''", "unended_max"):
        assert each in told
    assert "store: a Store or its URL wanted, not int" in told
    with pytest.raises(ConfigError, match="remember_s 10: at least lease_s 30"):
        Dedup("memory:", remember_s=10)
    with pytest.raises(ConfigError, match="store"):
        Dedup("nowhere:")


def test_a_rule_has_the_settings_in_ms() -> None:
    assert Dedup("memory:", lease_s=2, remember_s=3, unended_max=4).rule == Rule(2_000, 3_000, 4)
    assert isinstance(Dedup("memory:").opened(), MemoryStore)
    store = MemoryStore()
    assert Dedup(store).opened() is store


async def test_a_full_memory_forgets_the_oldest_that_are_done_and_counts_them() -> None:
    store = MemoryStore(max=80)
    await store.turn(Turn(claim=keys(0, 40), token=bytes(TOKEN_BYTES)), RULE)
    await store.turn(Turn(done=keys(100, 10)), RULE._replace(remember_ms=40_000))
    await store.turn(Turn(done=keys(200, 30)), RULE)
    await store.turn(Turn(done=keys(300, 1)), RULE)
    counts = await store.count()
    assert (counts.running, counts.done, counts.forgotten) == (40, 31, 10)
    assert await store.show(keys(100, 10)) == [None] * 10


async def test_what_is_over_goes_before_what_is_not() -> None:
    store = MemoryStore(max=2)
    await store.turn(Turn(done=keys(0, 2)), RULE._replace(remember_ms=0))
    await store.turn(Turn(done=keys(9, 1)), RULE)
    assert (await store.count())[2:] == (1, 0, 0)


async def test_tables_of_another_version_are_no_store_that_is_away(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        for statement in dedup_ddl("sqlite"):
            connection.execute(statement)
        connection.execute("ALTER TABLE messagebus_dedup DROP COLUMN unended")
    store = SqlStore(f"sqlite:///{tmp_path}/app.db")
    with pytest.raises(ConfigError, match=r"of another version: no such column: unended"):
        await store.turn(Turn(claim=[bytes(16)], token=b"somebody"), RULE)
    await store.close()


async def test_a_clock_that_is_set_ends_no_claim_in_memory_and_forgets_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, rule = MemoryStore(), Dedup("memory:").rule
    done, running = bytes(16), b"r" * 16
    await store.turn(Turn(done=[done], claim=[running], token=b"somebody"), rule)
    now_ns, week_ns = time.time_ns(), 7 * 86_400 * 10**9
    for jump_ns in (week_ns, -week_ns):
        monkeypatch.setattr(time, "time_ns", lambda at_ns=now_ns + jump_ns: at_ns)
        answer = await store.turn(Turn(claim=[done, running], token=b"other..."), rule)
        assert [each.kind for each in answer.verdicts] == [ENDED, LATER]
        assert answer.verdicts[1].ms <= rule.lease_ms
        assert None not in await store.show([done, running])
