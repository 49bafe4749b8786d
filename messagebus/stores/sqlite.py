"""A store in a SQLite file, for the processes of one host."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import parse_qsl, unquote

from messagebus.clock import wall_ms
from messagebus.core.claims import STATE_NAMES, Answer, Record, Rule, Turn, apply
from messagebus.errors import ConfigError, StoreAway
from messagebus.secret import split_address
from messagebus.stores import StoreCounts
from messagebus.stores.thread import StoreThread

__all__ = ["SqliteStore"]

T = TypeVar("T")

# Wait for another process's transaction: each takes some ms. Below a consumer's store_timeout_s.
BUSY_TIMEOUT_S = 0.4
SYNCHRONOUS = ("FULL", "NORMAL")
# Keys in one statement; SQLite takes 32,766.
KEYS_MAX = 500
# Records whose time is over are deleted a slice at a time, by the first 16 bits of their key, a hash:
# no index is needed, and a slice of 10 million records is read in 1 ms.
SLICES, SLICE_KEYS, SLICE_INTERVAL_S = 4_096, 16, 1.0

TABLE = """
CREATE TABLE IF NOT EXISTS messagebus_claims (
    key BLOB PRIMARY KEY,
    state INTEGER NOT NULL,
    owner BLOB NOT NULL,
    unended INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL
) WITHOUT ROWID
"""
PUT = "INSERT OR REPLACE INTO messagebus_claims VALUES (?, ?, ?, ?, ?, ?)"


class SqliteStore:
    """Records in a SQLite file with a write-ahead log. One thread; one transaction for each turn.

    path: of the file, made when it is missing, on a local disk: its lock is not safe on a network's.
    synchronous: "FULL" keeps what is done through a power-off; "NORMAL" is faster and may forget the last of
    it, which then runs again.
    """

    def __init__(self, path: str | Path, *, synchronous: str = "FULL") -> None:
        if synchronous.upper() not in SYNCHRONOUS:
            raise ConfigError(f"synchronous {synchronous!r}: {' or '.join(SYNCHRONOUS)}")
        # A relative path means the folder of this moment, wherever the process goes later.
        self._path, self._synchronous = Path(path).absolute(), synchronous.upper()
        self._is_relative = not Path(path).is_absolute()
        self._thread = StoreThread(self._forget_parent)
        self._parents: object = None
        # Used on the thread alone.
        self._connection: sqlite3.Connection | None = None
        self._inode = 0
        self._slice, self._sliced_s = 0, time.monotonic()

    @classmethod
    def from_url(cls, url: str) -> Self:
        """Read ``sqlite:///relative/path`` or ``sqlite:////absolute/path``, with ``?synchronous=NORMAL``."""
        parts = split_address(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        synchronous = given.pop("synchronous", "FULL")
        if parts.netloc or len(parts.path) < 2 or given:
            raise ConfigError(
                "sqlite: sqlite:///relative/path or sqlite:////absolute/path; ?synchronous=FULL or NORMAL"
            )
        return cls(unquote(parts.path[1:]), synchronous=synchronous)

    @property
    def path(self) -> Path:
        """The path of its file."""
        return self._path

    async def turn(self, turn: Turn, rule: Rule) -> Answer:
        return await self._run(lambda connection: self._turn(connection, turn, rule))

    def _turn(self, connection: sqlite3.Connection, turn: Turn, rule: Rule) -> Answer:
        held = (*turn.parked, *turn.release, *turn.extend)
        keys = {*turn.done, *turn.claim, *(key for key, _token in held)}
        connection.execute("BEGIN IMMEDIATE")
        before = _read(connection, keys)
        after = dict(before)
        answer = apply(after, turn, rule, wall_ms())
        changed = [(key, *record) for key, record in after.items() if record is not before.get(key)]
        connection.executemany(PUT, changed)
        self._delete_expired(connection)
        connection.execute("COMMIT")
        return answer

    def _delete_expired(self, connection: sqlite3.Connection) -> None:
        if time.monotonic() - self._sliced_s < SLICE_INTERVAL_S:
            return
        self._sliced_s = time.monotonic()
        low, high = self._slice * SLICE_KEYS, (self._slice + 1) * SLICE_KEYS
        self._slice = (self._slice + 1) % SLICES
        end = high.to_bytes(2) if high < 1 << 16 else b"\xff" * 17
        connection.execute(
            "DELETE FROM messagebus_claims WHERE key >= ? AND key < ? AND expires_ms <= ?",
            (low.to_bytes(2), end, wall_ms()),
        )

    async def forget(self, keys: Sequence[bytes]) -> int:
        def forget(connection: sqlite3.Connection) -> int:
            connection.execute("BEGIN IMMEDIATE")
            found = connection.executemany(
                "DELETE FROM messagebus_claims WHERE key = ?", [(key,) for key in set(keys)]
            )
            connection.execute("COMMIT")
            return found.rowcount

        return await self._run(forget) if keys else 0

    async def show(self, keys: Sequence[bytes]) -> list[Record | None]:
        found = await self._run(lambda connection: _read(connection, set(keys)))
        now_ms = wall_ms()
        records = [found.get(key) for key in keys]
        return [record if record and record.expires_ms > now_ms else None for record in records]

    async def count(self) -> StoreCounts:
        counts = dict.fromkeys(STATE_NAMES.values(), 0)
        rows = await self._run(
            lambda connection: connection.execute(
                "SELECT state, count(*) FROM messagebus_claims WHERE expires_ms > ? GROUP BY state",
                (wall_ms(),),
            ).fetchall()
        )
        for state, number in rows:
            counts[STATE_NAMES[state]] += number
        return StoreCounts(**counts)

    async def close(self) -> None:
        await self._thread.close(self._disconnect)

    def _forget_parent(self) -> None:
        """Keep the parent's connection: to close it would end that one."""
        self._parents, self._connection = self._connection, None

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._thread.submit(lambda: self._work(work))

    # On the thread.
    def _work(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._connected())
        except sqlite3.Error as fault:
            told = self._described(fault)
            self._disconnect()  # this ends a transaction that is open, too
            raise StoreAway(f"{self._path}: {told}") from fault
        except OSError as fault:
            raise StoreAway(f"{self._path}: {fault.strerror}") from fault

    def _connected(self) -> sqlite3.Connection:
        if self._connection is not None:
            try:
                if self._path.stat().st_ino == self._inode:
                    return self._connection
            except FileNotFoundError:
                pass
            self._disconnect()  # the file was removed or exchanged: others use the new one
        if not self._path.parent.is_dir():
            hint = "; an absolute path has four slashes" if self._is_relative else ""
            raise StoreAway(f"{self._path}: no such folder: {self._path.parent}{hint}")
        made = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        self._connection = made
        made.execute("PRAGMA journal_mode = WAL")
        made.execute(f"PRAGMA synchronous = {self._synchronous}")
        made.execute(TABLE)
        self._inode = self._path.stat().st_ino
        return made

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _described(self, fault: sqlite3.Error) -> str:
        match getattr(fault, "sqlite_errorcode", 0) & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return f"locked by another process for {BUSY_TIMEOUT_S * 1000:.0f} ms"
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return f"damaged ({fault}): move it away; its messages may run once more"
            case sqlite3.SQLITE_FULL:
                return "the disk is full"
        return str(fault)

    def __repr__(self) -> str:
        return f"SqliteStore({str(self._path)!r}, synchronous={self._synchronous!r})"


def _read(connection: sqlite3.Connection, keys: Iterable[bytes]) -> dict[bytes, Record]:
    wanted = list(keys)
    found: dict[bytes, Record] = {}
    for first in range(0, len(wanted), KEYS_MAX):
        some = wanted[first : first + KEYS_MAX]
        rows = connection.execute(
            "SELECT key, state, owner, unended, lease_ms, expires_ms FROM messagebus_claims"
            f" WHERE key IN ({','.join('?' * len(some))})",
            some,
        )
        found |= {row[0]: Record._make(row[1:]) for row in rows}
    return found
