"""A store in PostgreSQL, MySQL, MariaDB or SQLite: the application's own database, for many hosts.

A turn is one transaction of up to four statements: read and lock the records that exist, ask the clock and
the inbox, insert new records, update old ones. Two turns that insert the same record are told apart by its
key: the one that comes second is rolled back and carried out anew, on the first one's records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

from messagebus.core.claims import DONE, NOBODY, STATE_NAMES, Answer, Record, Rule, Turn, apply
from messagebus.databases import cut, execute, recognise
from messagebus.dialects import (
    DIALECTS,
    MYSQL,
    POSTGRESQL,
    SQLITE,
    clock_ms,
    dialect_named,
    is_conflict,
    is_login_refused,
    is_missing_column,
    is_missing_table,
)
from messagebus.dsn import Address
from messagebus.errors import REASON_CHARS_MAX, ConfigError, MessageBusError, StoreAway, reason_of
from messagebus.inbox import inbox_ddl, table_missing
from messagebus.secret import Secret
from messagebus.stores import StoreCounts
from messagebus.stores.thread import StoreThread

__all__ = ["SqlStore", "dedup_ddl"]

T = TypeVar("T")
Connect = Callable[[], Any]

# For connecting, and for each reply where the driver has such a limit. A consumer's store_timeout_s may end
# a wait before.
TIMEOUT_S = 5
# Time after which a statement is cut off, at the next call.
STUCK_S = 10.0
# Wait for another transaction's lock: each takes some ms. MySQL counts whole seconds.
LOCK_TIMEOUT_MS = 1_000
# A turn that met another one is carried out anew, so often and for so long.
TRIES_MAX, TRIES_S = 10, 2.0
# Keys in one statement.
KEYS_MAX = 500
NO_KEYS = (b"",)
# Rows whose time is over are deleted a slice at a time, by the first bits of their id, which is a hash.
SLICES, SLICE_INTERVAL_S = 4_096, 1.0

COLUMNS = ("id", "state", "owner", "unended", "lease_ms", "expires_ms")
_CONNECTING: dict[str, dict[str, Any]] = {
    SQLITE: {},
    POSTGRESQL: {
        "connect_timeout": TIMEOUT_S,
        "tcp_user_timeout": TIMEOUT_S * 1000,
        "keepalives_idle": TIMEOUT_S,
        "keepalives_interval": 1,
        "keepalives_count": TIMEOUT_S,
    },
    MYSQL: {"connect_timeout": TIMEOUT_S, "read_timeout": TIMEOUT_S, "write_timeout": TIMEOUT_S},
}
# Settings of the connection. None on PostgreSQL: a pooler such as PgBouncer gives the server's session to
# other clients, with what was set in it. Poolers for MySQL keep the settings of each client's session apart.
_SETTINGS = {
    SQLITE: (f"PRAGMA busy_timeout = {LOCK_TIMEOUT_MS}",),
    POSTGRESQL: (),
    MYSQL: (
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        f"SET SESSION innodb_lock_wait_timeout = {LOCK_TIMEOUT_MS // 1000}",
    ),
}
# A turn sees what was committed before each of its statements, and on MySQL locks no gaps between records. On
# PostgreSQL both statements are one round trip, in place of the driver's own BEGIN.
_BEGIN = {
    SQLITE: "BEGIN IMMEDIATE",
    POSTGRESQL: (
        f"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"
    ),
}


def dedup_ddl(dialect: str) -> list[str]:
    """Return the statements that make the tables of store and inbox where there are none.

    dialect: sqlite, postgresql or mysql, which stands for MariaDB too. Raises ConfigError for another one.
    """
    about = dialect_named(dialect)
    made = (
        "CREATE TABLE IF NOT EXISTS messagebus_dedup (\n"
        f"    id {about.key} PRIMARY KEY,\n"
        "    state SMALLINT NOT NULL,\n"
        f"    owner {about.token} NOT NULL,\n"
        "    unended SMALLINT NOT NULL,\n"
        "    lease_ms BIGINT NOT NULL,\n"
        "    expires_ms BIGINT NOT NULL\n"
        # A record changes three times in its life: room for that beside it.
        f"){' WITH (fillfactor = 70)' if about.name == POSTGRESQL else about.by_key}"
    )
    return [made, inbox_ddl(dialect)]


class _MetAnother(Exception):
    """A record that was not there has been inserted by another turn meanwhile."""


class SqlStore:
    """Records in two tables of a database. One thread with one connection; one transaction for each turn.

    source: ``postgresql://user:password@host/database`` (needs psycopg), ``mysql://…`` (needs PyMySQL), an
        Engine of SQLAlchemy, or a function that returns a new connection of sqlite3, psycopg or PyMySQL, not
        in autocommit mode. Addresses are those of `messagebus.dsn.Address`.
    """

    def __init__(self, source: str | Secret | object) -> None:
        self._connect, self._shown = _connector(source)
        self._thread = StoreThread(self._forget_parent)
        self._parents: object = None
        # Used on the thread alone, but for the cut.
        self._connection: Any = None
        self._busy_since_s = 0.0
        self._dialect = ""
        self._slice, self._sliced_s = 0, time.monotonic()

    @classmethod
    def from_url(cls, url: str) -> Self:
        return cls(url)

    async def create(self) -> None:
        """Make the tables where there are none. The user of the database must be allowed to."""
        await self._run(self._create)

    async def turn(self, turn: Turn, rule: Rule) -> Answer:
        return await self._run(lambda: self._turn(turn, rule))

    async def next_fence(self, key: bytes) -> int:
        return await self._run(lambda: self._next_fence(key))

    async def forget(self, keys: Sequence[bytes]) -> int:
        return await self._run(lambda: self._forget(keys)) if keys else 0

    async def show(self, keys: Sequence[bytes]) -> list[Record | None]:
        return await self._run(lambda: self._show(keys))

    async def count(self) -> StoreCounts:
        counts = dict.fromkeys(STATE_NAMES.values(), 0)
        for state, number in await self._run(self._count):
            counts[STATE_NAMES[state]] += number
        return StoreCounts(**counts)

    async def close(self) -> None:
        await self._thread.close(self._disconnect, lambda: cut(self._connection))

    def _forget_parent(self) -> None:
        """Keep the parent's connection: to close it would end that one."""
        self._parents, self._connection = self._connection, None
        self._busy_since_s = 0.0

    async def _run(self, work: Callable[[], T]) -> T:
        working = self._thread.submit(lambda: self._work(work))
        if (since_s := self._busy_since_s) and time.monotonic() - since_s > STUCK_S:
            cut(self._connection)
        return await working

    # All that follows is on the thread.
    def _work(self, work: Callable[[], T]) -> T:
        self._busy_since_s = time.monotonic()
        try:
            return self._carry_out(work)
        finally:
            self._busy_since_s = 0.0

    def _carry_out(self, work: Callable[[], T]) -> T:
        is_new = self._connection is None
        until = time.monotonic() + TRIES_S
        for _ in range(TRIES_MAX):
            try:
                self._begin()
                done = work()
                self._connection.commit()
                self._delete_expired()
                return done
            except _MetAnother:
                self._connection.rollback()
            except MessageBusError:
                self._disconnect()
                raise
            except Exception as fault:
                if not _is_drivers(fault):
                    self._disconnect()
                    raise
                told = self._translated(fault)
                self._disconnect()  # this ends a transaction that is open, too
                if is_conflict(fault) and time.monotonic() < until:
                    continue
                if is_new or not isinstance(told, StoreAway):
                    raise told from fault
                is_new = True  # the server may have been restarted since the last turn
        raise StoreAway(f"{self._shown}: other transactions were in the way {TRIES_MAX} times")

    def _begin(self) -> None:
        if self._connection is None:
            made = self._connect()
            self._connection = made
            found = recognise(made)
            if found.is_async:
                raise ConfigError(f"{self._shown}: a connection used without `await` is wanted")
            self._dialect = found.dialect
            for setting in _SETTINGS[self._dialect]:
                self._execute(setting)
            made.commit()
            if self._dialect == POSTGRESQL:
                made.autocommit = True
        if self._dialect == POSTGRESQL or (
            self._dialect == SQLITE and not self._connection.in_transaction
        ):
            self._connection.execute(_BEGIN[self._dialect])

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.close()
            except Exception as fault:
                if not _is_drivers(fault):
                    raise

    def _translated(self, fault: Exception) -> MessageBusError:
        if is_missing_table(fault):
            missing = "inbox" if "messagebus_inbox" in str(fault) else "dedup"
            return table_missing(f"messagebus_{missing}", self._dialect)
        if is_missing_column(fault):
            told = reason_of(fault, REASON_CHARS_MAX)
            return ConfigError(f"{self._shown}: a column is missing in its tables: {told}")
        if is_login_refused(fault):
            return ConfigError(f"{self._shown}: user, password or database refused")
        return StoreAway(f"{self._shown}: {reason_of(fault, REASON_CHARS_MAX)}")

    def _execute(self, sql: str, parameters: Sequence[object] = ()) -> Any:
        return execute(self._connection, sql, parameters)

    def _create(self) -> None:
        if self._dialect == POSTGRESQL:
            # Its IF NOT EXISTS fails where two make a table at once; the lock ends with the transaction.
            self._execute("SELECT pg_advisory_xact_lock(hashtext('messagebus_dedup'))")
        for statement in dedup_ddl(self._dialect):
            self._execute(statement)

    def _turn(self, turn: Turn, rule: Rule) -> Answer:
        held = (*turn.parked, *turn.release, *turn.extend)
        keys = {*turn.done, *turn.claim, *(key for key, _token in held)}
        # A turn without a key asks for one that nobody has: whether all tables are there.
        before = self._read(keys or NO_KEYS, lock=bool(keys))
        now_ms, noted = self._clock_and_inbox(turn.claim)
        before |= noted
        after = dict(before)
        answer = apply(after, turn, rule, now_ms)
        changed = {key: each for key, each in after.items() if each is not before.get(key)}
        self._put({key: changed[key] for key in changed if key not in before}, new=True)
        self._put({key: changed[key] for key in changed if key in before}, new=False)
        return answer

    def _next_fence(self, key: bytes) -> int:
        before = self._read([key], lock=True)
        number = 1 + (before[key].lease_ms if before else 0)
        # A record that counts, and is never forgotten.
        self._put({key: Record(DONE, NOBODY, 0, number, 1 << 62)}, new=not before)
        return number

    def _put(self, records: dict[bytes, Record], *, new: bool) -> None:
        about = DIALECTS[self._dialect]
        begin, end = about.insert_new, about.insert_new_end
        if not new:
            sets = ", ".join([about.replaced.format(name) for name in COLUMNS[1:]])
            begin, end = "INSERT INTO", f" {about.on_conflict} {sets}"
        # In the order of keys, so that two turns never wait for each other.
        for some in _some(sorted(records)):
            rows = ", ".join([self._row(key, records[key]) for key in some])
            executed = self._execute(f"{begin} messagebus_dedup VALUES {rows}{end}")
            if new and executed.changed != len(some):
                raise _MetAnother

    def _row(self, key: bytes, record: Record) -> str:
        state, owner, unended, lease_ms, expires_ms = record
        numbers = f"{unended}, {lease_ms}, {expires_ms}"
        return f"({self._literals([key])}, {state}, {self._literals([owner])}, {numbers})"

    def _literals(self, keys: Sequence[bytes]) -> str:
        """Return SQL of bytes. Of thousands of parameters each would cost a driver some us."""
        begin, end = DIALECTS[self._dialect].literal
        return begin + f"{end}, {begin}".join([key.hex() for key in keys]) + end

    def _read(self, keys: Iterable[bytes], *, lock: bool = False) -> dict[bytes, Record]:
        found: dict[bytes, Record] = {}
        suffix = " ORDER BY id FOR UPDATE" if lock and self._dialect != SQLITE else ""
        for some in _some(sorted(keys)):
            where = f"WHERE id IN ({self._literals(some)}){suffix}"
            sql = f"SELECT {', '.join(COLUMNS)} FROM messagebus_dedup {where}"
            for key, state, owner, *times in self._execute(sql).rows:
                found[bytes(key)] = Record(state, bytes(owner), *times)
        return found

    def _clock_and_inbox(self, keys: Sequence[bytes]) -> tuple[int, dict[bytes, Record]]:
        """Return the time of the database, after all locks are held, and what handlers have noted as done."""
        noted: dict[bytes, Record] = {}
        now_ms = 0
        for some in _some(keys or NO_KEYS):
            ids = self._literals(some)
            inbox = f"SELECT id, expires_ms FROM messagebus_inbox WHERE id IN ({ids})"
            sql = f"{inbox} UNION ALL SELECT NULL, {clock_ms(self._dialect)}"
            for key, ms in self._execute(sql).rows:
                if key is None:
                    now_ms = ms
                else:
                    noted[bytes(key)] = Record(DONE, NOBODY, 0, 0, ms)
        return now_ms, {key: each for key, each in noted.items() if each.expires_ms > now_ms}

    def _show(self, keys: Sequence[bytes]) -> list[Record | None]:
        found = self._read(set(keys))
        now_ms, noted = self._clock_and_inbox(list(keys))
        records = [noted.get(key) or found.get(key) for key in keys]
        return [each if each and each.expires_ms > now_ms else None for each in records]

    def _count(self) -> list[tuple[int, int]]:
        sql = (
            f"SELECT state, COUNT(*) FROM messagebus_dedup WHERE expires_ms > {clock_ms(self._dialect)}"
            " GROUP BY state"
        )
        return list(self._execute(sql).rows)

    def _forget(self, keys: Sequence[bytes]) -> int:
        there = set()
        for some in _some(sorted(set(keys))):
            for table in ("messagebus_dedup", "messagebus_inbox"):
                where = f"FROM {table} WHERE id IN ({self._literals(some)})"
                there |= {bytes(key) for (key,) in self._execute(f"SELECT id {where}").rows}
                self._execute(f"DELETE {where}")
        return len(there)

    def _delete_expired(self) -> None:
        """Delete a slice of what is over, in a transaction of its own; what is in its way has time."""
        if time.monotonic() - self._sliced_s < SLICE_INTERVAL_S:
            return
        self._sliced_s = time.monotonic()
        width = (1 << 16) // SLICES
        low, high = self._slice * width, (self._slice + 1) * width
        self._slice = (self._slice + 1) % SLICES
        end = high.to_bytes(2) if high < 1 << 16 else b"\xff" * 16
        try:
            self._begin()
            for table in ("messagebus_dedup", "messagebus_inbox"):
                self._execute(
                    f"DELETE FROM {table} WHERE id >= ? AND id < ?"
                    f" AND expires_ms <= {clock_ms(self._dialect)}",
                    (low.to_bytes(2), end),
                )
            self._connection.commit()
        except Exception as fault:
            if not _is_drivers(fault):
                raise
            self._disconnect()

    def __repr__(self) -> str:
        return f"SqlStore({self._shown})"


def _some(keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for first in range(0, len(keys), KEYS_MAX):
        yield keys[first : first + KEYS_MAX]


def _is_drivers(fault: Exception) -> bool:
    """Return whether an error is of a driver: PEP 249 names the root of its errors `Error`."""
    names = {kind.__name__ for kind in type(fault).__mro__}
    return isinstance(fault, OSError) or not names.isdisjoint({"Error", "SQLAlchemyError"})


# -- where connections come from


def _connector(source: object) -> tuple[Connect, str]:
    """Return a function that connects, and words for it without the password."""
    kinds = {
        f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(source).__mro__
    }
    if isinstance(source, str | Secret):
        address = Address.parse(source)
        address.options()  # a wrong address, or a missing driver, is told here
        settings = _CONNECTING[address.database.name]
        return lambda: address.connect(settings, makes_file=True), address.shown
    if "sqlalchemy.Engine" in kinds:
        engine: Any = source
        return lambda: _of_engine(engine), engine.url.render_as_string(hide_password=True)
    if "sqlalchemy.AsyncEngine" in kinds:
        raise ConfigError(
            "AsyncEngine: its connect_args, which may ask for TLS, cannot be read: give the store an address,"
            " such as postgresql://HOST/DB?sslmode=verify-full, or an Engine"
        )
    if callable(source):
        return source, "the database"
    raise ConfigError(
        f"{type(source).__name__}: a URL, an Engine or a function that connects is wanted"
    )


def _of_engine(engine: Any) -> Any:
    """Return a connection of the driver's own that the engine's pool has let go."""
    pooled = engine.raw_connection()
    pooled.detach()
    return pooled.dbapi_connection
