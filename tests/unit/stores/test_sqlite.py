"""messagebus.stores.sqlite: faults of its file are said in one line, and what was done outlives a kill."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from messagebus.core.claims import ENDED, KEY_BYTES, LATER, RUN, TOKEN_BYTES, Rule, Turn
from messagebus.errors import ConfigError, StoreAway
from messagebus.stores import sqlite
from messagebus.stores.sql import SqlStore
from messagebus.stores.sqlite import SqliteStore

WITHIN_S = 60
RULE = Rule(30_000, 60_000, 2)
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
