"""Stores of processed ids: choice by address, SQLite, calls in a thread."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.connection import SSLConnection

from messagebus.core.claims import ENDED, KEY_BYTES, LATER, RUN, TOKEN_BYTES, Rule, Turn
from messagebus.errors import ConfigError, StoreAway
from messagebus.secret import Secret
from messagebus.stores import Dedup, Store, open_store, sqlite, thread
from messagebus.stores.memory import MemoryStore
from messagebus.stores.redis import RedisStore
from messagebus.stores.sql import SqlStore, dedup_ddl
from messagebus.stores.sqlite import SqliteStore
from messagebus.stores.thread import StoreThread

RULE = Rule(30_000, 60_000, 2)


def keys(first: int, count: int) -> list[bytes]:
    return [number.to_bytes(KEY_BYTES) for number in range(first, first + count)]


MANY = "9" * 5_000  # more digits than int() takes


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory:", "MemoryStore(max=1000000)"),
        ("memory:?max=10", "MemoryStore(max=10)"),
        ("sqlite:///c.db", f"SqliteStore('{Path.cwd()}/c.db', synchronous='FULL')"),
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
        *(f"memory:?max={MANY}", f"redis://h/{MANY}", f"redis://h?wait_replicas={MANY}"),
    ],
)
def test_a_wrong_url_is_one_line_without_a_password(url: str) -> None:
    with pytest.raises(ConfigError) as fault:
        open_store(url)
    assert "\n" not in str(fault.value)
    assert ":hidden" not in str(fault.value)
    if "1" in url.partition("hidden")[0] or "[hidden" in url:  # a part of the password
        assert "hidden" not in str(fault.value)


@pytest.mark.parametrize("url", ["redis:hidden", "redis://:hidden@h", "redis+sentinel://:hidden@h"])
def test_a_package_that_is_missing_is_named_with_what_to_install(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "messagebus.stores.redis", raising=False)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError) as fault:
        Dedup(url)
    told = "redis is not installed: pip install 'messagebus-rabbitmq[redis]'"
    assert str(fault.value) == f"store redis: package {told}"


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


async def test_tables_without_a_column_are_no_store_that_is_away(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        for statement in dedup_ddl("sqlite"):
            connection.execute(statement)
        connection.execute("ALTER TABLE messagebus_dedup DROP COLUMN unended")
    store = SqlStore(f"sqlite:///{tmp_path}/app.db")
    with pytest.raises(
        ConfigError, match=r"a column is missing in its tables: no such column: unended"
    ):
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


WITHIN_S = 60
KEY = bytes(KEY_BYTES)
DONE = Turn(done=[KEY])
CLAIM = Turn(claim=[KEY], token=b"t" * TOKEN_BYTES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "claims.db"


async def fault_of(store: SqliteStore, turn: Turn = DONE) -> str:
    with pytest.raises(StoreAway) as fault:
        await store.turn(turn, RULE)
    assert "\n" not in str(fault.value)
    return str(fault.value)


async def test_a_file_that_another_process_locks_is_away_and_comes_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_S", 0.05)
    store = SqliteStore(path)
    await store.turn(DONE, RULE)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert await fault_of(store) == f"{path}: locked by another process for 50 ms"
    assert (await store.turn(CLAIM, RULE)).verdicts[0].kind == ENDED
    await store.close()


def damage(path: Path, first: int) -> None:
    """Overwrite the file from this byte on."""
    size = path.stat().st_size if path.exists() else 10_000
    with path.open("ab") as file:
        file.truncate(first)
        file.write(os.urandom(size - first))


def remove(path: Path) -> None:
    for each in path.parent.iterdir():
        each.unlink()


async def test_a_damaged_file_is_away_until_it_is_moved(path: Path) -> None:
    damage(path, 0)
    store = SqliteStore(path)
    told = await fault_of(store)
    assert "damaged" in told
    assert "move it away" in told
    remove(path)
    await store.turn(DONE, RULE)
    await store.close()


async def test_pages_that_are_damaged_later_are_told(path: Path) -> None:
    store = SqliteStore(path)
    many = [number.to_bytes(KEY_BYTES) for number in range(2_000)]
    await store.turn(Turn(done=many), RULE)
    await store.close()
    damage(path, 4096)
    assert "damaged" in await fault_of(store, Turn(claim=many, token=b"t" * TOKEN_BYTES))
    await store.close()


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_disk_without_room_changes_nothing_and_is_told(path: Path) -> None:
    store = SqliteStore(path)
    await store.turn(CLAIM, RULE)
    with full_disk(64 * 1024):
        many = [number.to_bytes(KEY_BYTES) for number in range(1, 20_000)]
        told = await fault_of(store, Turn(done=[KEY, *many]))
    assert told in (f"{path}: the disk is full", f"{path}: disk I/O error")
    [record] = await store.show([KEY])
    assert record
    assert record.owner == CLAIM.token, "the turn was carried out in part"
    await store.turn(DONE, RULE)
    await store.close()


async def test_a_file_that_was_removed_is_made_again(path: Path) -> None:
    store = SqliteStore(path)
    await store.turn(DONE, RULE)
    remove(path)
    assert (await store.turn(CLAIM, RULE)).verdicts[0].is_first
    assert sum(await store.count()) == 1
    assert (await SqliteStore(path).show([KEY])) != [None]
    await store.close()


@pytest.mark.parametrize("kind", [SqliteStore, SqlStore])
def test_a_fork_claims_by_itself_and_its_parent_goes_on(
    path: Path, kind: type[SqliteStore] | type[SqlStore]
) -> None:
    store = SqliteStore(path) if kind is SqliteStore else SqlStore(f"sqlite:///{path}")

    async def claimed(number: int) -> str:
        if isinstance(store, SqlStore):
            await store.create()
        turn = Turn(claim=[bytes([number] * 16)], token=bytes([number] * 8))
        async with asyncio.timeout(WITHIN_S):
            answer = await store.turn(turn, RULE)
        return answer.verdicts[0].kind

    async def in_fork() -> bool:
        try:
            return (await claimed(1), await claimed(2)) == (RUN, RUN)
        finally:
            await store.close()

    assert asyncio.run(claimed(1)) == RUN
    if (pid := os.fork()) == 0:
        os._exit(0 if asyncio.run(in_fork()) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert asyncio.run(claimed(3)) == RUN
    asyncio.run(store.close())


async def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    assert "no such folder" in await fault_of(SqliteStore(tmp_path / "none" / "claims.db"))
    assert "four slashes" in await fault_of(SqliteStore("no-such/claims.db"))


def test_only_safe_ways_to_sync_are_taken() -> None:
    with pytest.raises(ConfigError, match="FULL or NORMAL"):
        SqliteStore("a", synchronous="OFF")


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
async def test_done_is_stored_in_the_way_that_was_asked_for(path: Path, synchronous: str) -> None:
    store = SqliteStore(path, synchronous=synchronous)

    def pragmas(connection: sqlite3.Connection) -> tuple[str, int]:
        [(mode,)] = connection.execute("PRAGMA journal_mode")
        [(level,)] = connection.execute("PRAGMA synchronous")
        return mode, level

    assert await store._run(pragmas) == ("wal", 2 if synchronous == "FULL" else 1)
    await store.close()


CHILD = """
import asyncio, sys
from messagebus.core.claims import Rule, Turn
from messagebus.stores.sql import SqlStore
from messagebus.stores.sqlite import SqliteStore

async def main():
    store, number = SqliteStore(sys.argv[1]), 0
    while True:
        keys = [(number * 50 + each).to_bytes(16) for each in range(50)]
        await store.turn(Turn(done=keys), Rule(30_000, 600_000, 2))
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""


@pytest.fixture
def turns_told(path: Path) -> list[int]:
    """Numbers of the turns that a process said were done, before it was killed at work."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout
    told = [child.stdout.readline() for _ in range(20)]
    child.send_signal(signal.SIGKILL)
    told += child.stdout.readlines()
    child.wait()
    child.stdout.close()
    return [int(line) for line in told if line.endswith("\n")]


async def test_what_was_done_outlives_the_kill_of_its_process(
    path: Path, turns_told: list[int]
) -> None:
    last = turns_told[-1]
    store = SqliteStore(path)
    keys = [number.to_bytes(KEY_BYTES) for number in range((last + 2) * 50)]
    kinds = [
        [each.kind for each in (await store.turn(Turn(claim=keys[at : at + 50]), RULE)).verdicts]
        for at in range(0, len(keys), 50)
    ]
    assert all(each == [ENDED] * 50 for each in kinds[: last + 1]), "a done turn is forgotten"
    assert kinds[-1] in ([ENDED] * 50, [RUN] * 50), "a turn is there in part"
    await store.close()


async def test_records_that_are_over_are_deleted_in_the_background(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "SLICE_INTERVAL_S", 0.0)
    monkeypatch.setattr(sqlite, "SLICES", 8)
    monkeypatch.setattr(sqlite, "SLICE_KEYS", (1 << 16) // 8)
    store = SqliteStore(path)
    old = [bytes([number]) * KEY_BYTES for number in range(0, 256, 5)]
    kept = [bytes([number]) * KEY_BYTES for number in range(1, 256, 5)]
    await store.turn(Turn(done=old), RULE._replace(remember_ms=0))
    for _ in range(8):
        await store.turn(Turn(done=kept), RULE)

    def rows(connection: sqlite3.Connection) -> int:
        [(number,)] = connection.execute("SELECT count(*) FROM messagebus_claims")
        return int(number)

    assert await store._run(rows) == len(kept)
    await store.close()


async def test_two_processes_share_the_claims(path: Path) -> None:
    first, second = SqliteStore(path), SqliteStore(path)
    assert (await first.turn(CLAIM, RULE)).verdicts[0].kind == RUN
    other = CLAIM._replace(token=b"o" * TOKEN_BYTES)
    assert (await second.turn(other, RULE)).verdicts[0].kind == LATER
    await first.close()
    await second.close()


async def test_work_is_done_in_its_order_on_one_thread_and_its_errors_are_the_callers() -> None:
    seen: list[tuple[int, int]] = []

    def work(number: int) -> int:
        seen.append((number, threading.get_ident()))
        return 100 // number

    made = StoreThread(lambda: None)
    results = [made.submit(partial(work, number)) for number in (1, 2, 4)]
    assert await asyncio.gather(*results) == [100, 50, 25]
    assert [number for number, _thread in seen] == [1, 2, 4]
    assert len({ident for _number, ident in seen}) == 1
    with pytest.raises(ZeroDivisionError):
        await made.submit(lambda: work(0))
    await made.close(lambda: None)


async def test_a_closed_thread_begins_again_and_one_that_never_began_has_no_end() -> None:
    ended: list[str] = []
    made = StoreThread(lambda: None)
    await made.close(lambda: ended.append("never begun"))
    for _ in range(2):
        assert await made.submit(lambda: 1) == 1
        await made.close(lambda: ended.append("once"))
    assert ended == ["once", "once"]


async def test_work_that_hangs_is_cut_off_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread, "STUCK_AT_CLOSE_S", 0.01)
    hangs, made, ended = threading.Event(), StoreThread(lambda: None), list[bool]()
    work = made.submit(hangs.wait)
    await made.close(lambda: ended.append(True), hangs.set)
    assert await work
    assert ended == [True]


@pytest.mark.parametrize("kind", [SqliteStore, SqlStore])
async def test_a_store_finds_its_file_whatever_folder_its_process_goes_to(
    kind: type[SqliteStore | SqlStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = kind.from_url("sqlite:///claims.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    if isinstance(store, SqlStore):
        await store.create()
    await store.turn(Turn(done=[b"k" * 16]), Rule(30_000, 60_000, 5))
    await store.close()
    assert (tmp_path / "claims.db").exists()
    assert not list((tmp_path / "elsewhere").iterdir())


async def test_tls_of_redis_verifies_the_name_of_each_host_and_of_each_sentinel() -> None:
    plain: Any = RedisStore("rediss://h:1")._make().connection_pool
    master: Any = RedisStore("rediss+sentinel://u:p@h,i:2/bus")._make().connection_pool
    sentinels = [each.connection_pool for each in master.sentinel_manager.sentinels]
    assert len(sentinels) == 2
    for pool in (plain, master, *sentinels):
        assert issubclass(pool.connection_class, SSLConnection)
        assert pool.connection_kwargs["ssl_check_hostname"] is True
    assert [each.connection_kwargs.get("password") for each in sentinels] == [None, None]
