"""The outbox's tables: how they are made, and every statement on them, for each database.

Two tables: the rows, and the leases by which relays share the shards of the rows. A relay's statements are
each a transaction of their own. Numbers stand in them as literals; texts are parameters, written ``?`` here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from messagebus.core.relay import Exchange, Failure
from messagebus.core.shards import SHARDS
from messagebus.dialects import MYSQL, dialect_named
from messagebus.errors import ConfigError

__all__ = [
    "CHANNEL",
    "COLUMNS",
    "DEFAULT_TABLE",
    "DESTINATION",
    "KEY",
    "MESSAGE_ID",
    "REASON_CHARS_MAX",
    "Statement",
    "Table",
]

DEFAULT_TABLE = "messagebus_outbox"
CHANNEL = "messagebus_outbox"
REASON_CHARS_MAX = 500
# Rows with a wrong shard that are put right at once.
MISPLACED_MAX = 1_000
_MISPLACED = f"(shard < 0 OR shard >= {SHARDS})"
# Rows that one statement changes; each adds a parameter, of which PostgreSQL takes 65,535.
ROWS_MAX = 500
# PostgreSQL cuts names at 63 bytes; the longest one made here has 9 more than the table.
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,49}(\.[A-Za-z_][A-Za-z0-9_]{0,49})?")

Statement = tuple[str, tuple[object, ...]]
"""Text with ``?`` for each parameter, and the parameters."""

COLUMNS = (
    *("message_id", "destination", "msg_key", "shard", "content_type"),
    *("headers", "options", "body", "created_ms"),
)
"""Columns of an added row, in the order of `Table.insert`; the others have defaults."""
_READ = ("id", "shard", "msg_key", "attempts", "message_id", "destination", "content_type")
KEY, MESSAGE_ID, DESTINATION = map(_READ.index, ("msg_key", "message_id", "destination"))
"""Places of these in a row that was read."""
_READ_ALL = ", ".join((*_READ, "headers", "options", "body", "created_ms"))
_PARKED = ("id", "message_id", "destination", "msg_key", "content_type", "body", "created_ms")
_PARKED_COLUMNS = ", ".join((*_PARKED, "attempts", "parked_ms", "reason"))


class Table:
    """The statements on one outbox. database: its kind; name: may have a schema in front."""

    def __init__(self, database: str, name: str = DEFAULT_TABLE) -> None:
        if not _TABLE.fullmatch(name):
            raise ConfigError(f"table {name!r}: letters, digits and _, at most 50, or schema.table")
        self.database, self.name = dialect_named(database), name
        self.leases = f"{name}_lease"
        now = self.database.now_ms
        self._waits = f"parked_ms = 0 AND not_before_ms <= {now}"
        self._key = self.database.exact.format("o.msg_key")
        same = "b.msg_key = o.msg_key"  # this finds rows in the index
        if self._key != "o.msg_key":
            same += f" AND {self.database.exact.format('b.msg_key')} = {self._key}"
        self._key_waits = (
            f"({self._key} = '' OR NOT EXISTS (SELECT 1 FROM {name} b WHERE b.shard = o.shard"
            f" AND {same} AND b.id < o.id AND b.parked_ms = 0 AND b.not_before_ms > 0"
            f" AND b.not_before_ms > {now}))"
        )

    # Making.
    def ddl(self) -> list[str]:
        """Return the statements that make both tables, without semicolons."""
        db, name = self.database, self.name
        schema, _, bare = name.rpartition(".")
        index, on = name.replace(".", "_"), name
        if schema and db.name == "sqlite":  # there the index has the schema, and not its table
            index, on = f"{schema}.{bare}", bare
        waiting = " WHERE parked_ms = 0" if db.has_partial_indexes else ""
        later = " WHERE not_before_ms > 0" if db.has_partial_indexes else ""
        # MySQL finds parked rows in the index of those that wait.
        parked = [f"CREATE INDEX {index}_parked ON {on} (id) WHERE parked_ms > 0"]
        return [
            f"CREATE TABLE {name} (\n"
            f"  id {db.identity},\n"
            "  message_id VARCHAR(255) NOT NULL,\n"
            "  destination VARCHAR(300) NOT NULL,\n"
            "  msg_key VARCHAR(255) NOT NULL,\n"
            "  shard SMALLINT NOT NULL,\n"
            "  content_type VARCHAR(255) NOT NULL,\n"
            f"  headers {db.long_text} NOT NULL,\n"
            f"  options {db.long_text} NOT NULL,\n"
            "  created_ms BIGINT NOT NULL,\n"
            "  attempts INTEGER NOT NULL DEFAULT 0,\n"
            "  not_before_ms BIGINT NOT NULL DEFAULT 0,\n"
            "  parked_ms BIGINT NOT NULL DEFAULT 0,\n"
            f"  reason VARCHAR({REASON_CHARS_MAX}) NOT NULL DEFAULT '',\n"
            # The last: SQLite reads all of a body to come to what is behind it.
            f"  body {db.body} NOT NULL\n"
            f"){db.end}",
            f"CREATE INDEX {index}_waiting ON {on}"
            f" ({'' if db.has_partial_indexes else 'parked_ms, '}shard, id){waiting}",
            f"CREATE INDEX {index}_later ON {on} (shard, msg_key, id){later}",
            *(parked if db.has_partial_indexes else ()),
            f"CREATE TABLE {self.leases} (\n"
            "  name VARCHAR(64) NOT NULL PRIMARY KEY,\n"
            "  owner VARCHAR(32) NOT NULL,\n"
            "  until_ms BIGINT NOT NULL\n"
            f"){db.end}",
        ]

    def drop_ddl(self) -> list[str]:
        """Return the statements that drop both tables."""
        return [f"DROP TABLE {self.leases}", f"DROP TABLE {self.name}"]

    # Adding.
    def insert(self, *, notify: bool) -> str:
        """Return the insert of one row of COLUMNS. notify: wakes relays at the commit; PostgreSQL only."""
        text = f"INSERT INTO {self.name} ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
        if not notify:
            return text
        return f"WITH added AS ({text}) SELECT pg_notify('{CHANNEL}', '')"

    # Relaying.
    def writes(self, exchange: Exchange, message_ids: Mapping[int, object]) -> list[Statement]:
        """Return what tells the table how publishes ended.

        message_ids: of the rows as they were read: a database that came back older gives ids again, and a
        row that has another message id is another row.
        """
        alike: dict[Failure, list[int]] = {}
        for failure in exchange.failures:
            alike.setdefault(failure._replace(id=0), []).append(failure.id)
        return [
            *(
                self._fail(failure, some, message_ids)
                for failure, ids in alike.items()
                for some in _some(ids)
            ),
            *(self._delete(some, message_ids) for some in _some(exchange.delete)),
        ]

    def _delete(self, ids: Sequence[int], message_ids: Mapping[int, object]) -> Statement:
        where, values = self._rows(ids, message_ids)
        return f"DELETE FROM {self.name} WHERE {where}", values

    def _fail(
        self, failure: Failure, ids: Sequence[int], message_ids: Mapping[int, object]
    ) -> Statement:
        now = self.database.now_ms
        when = (
            f"parked_ms = {now}" if failure.parked else f"not_before_ms = {now} + {failure.wait_ms}"
        )
        where, values = self._rows(ids, message_ids)
        reason = failure.reason.replace("\0", " ")[:REASON_CHARS_MAX]
        text = f"UPDATE {self.name} SET attempts = {failure.attempts}, {when}, reason = ? WHERE {where}"
        return text, (reason, *values)

    def _rows(
        self, ids: Sequence[int], message_ids: Mapping[int, object]
    ) -> tuple[str, tuple[object, ...]]:
        """Return a condition for rows with these ids that are still what was read, and its parameters.

        A message id that is no text, which SQLite keeps, identifies nothing: its id alone counts.
        """
        known, others = list[int](), list[int]()
        for each in ids:
            (known if isinstance(message_ids[each], str) else others).append(each)
        conditions = []
        if known:
            # The ids alone are what every database looks up in its index. Of pairs SQLite and PostgreSQL look
            # up those of VALUES, MySQL those of a list.
            pairs = ", ".join([f"({each}, ?)" for each in known])
            values = "" if self.database.name == MYSQL else "VALUES "
            conditions.append(
                f"(id IN ({_numbers(known)}) AND (id, message_id) IN ({values}{pairs}))"
            )
        if others:
            conditions.append(f"id IN ({_numbers(others)})")
        return " OR ".join(conditions), tuple(message_ids[each] for each in known)

    def read(self, exchange: Exchange, *, key_waits: bool) -> Statement:
        """Return what reads the oldest rows that may be published.

        Without an id to begin at: ids are given before a transaction commits, so a lower one may appear
        later. Without a lock on rows: to skip those that another relay has would be to overtake it.
        """
        where = [f"shard IN ({_numbers(exchange.shards)})", self._waits]
        if key_waits:
            where.append(self._key_waits)
        if exchange.held:
            where.append(f"id NOT IN ({_numbers(exchange.held)})")
        if exchange.full:
            where.append(f"{self._key} NOT IN ({', '.join('?' * len(exchange.full))})")
        # The sizes are summed before any body is read.
        oldest = (
            f"SELECT {_READ_ALL} FROM {self.name} o WHERE {' AND '.join(where)}"
            f" ORDER BY id LIMIT {exchange.limit}"
        )
        text = (
            f"SELECT {_READ_ALL} FROM (SELECT w.*,"
            f" SUM(LENGTH(body)) OVER (ORDER BY id) - LENGTH(body) AS bytes_before FROM ({oldest}) w) s"
            f" WHERE bytes_before < {exchange.bytes_max} ORDER BY id"
        )
        return text, exchange.full

    def any_due(self, *, key_waits: bool = True) -> str:
        """Return what reads one row that is to be published now, if there is one."""
        behind = f" AND {self._key_waits}" if key_waits else ""
        return f"SELECT id FROM {self.name} o WHERE {self._waits}{behind} LIMIT 1"

    def columns(self) -> str:
        """Return what reads all columns of no row; it fails where the table lacks one."""
        return f"SELECT {_READ_ALL}, not_before_ms, parked_ms, reason FROM {self.name} WHERE 1 = 0"

    def misplaced(self) -> str:
        """Return what reads rows that no relay would: others wrote them with a shard that does not exist."""
        return (
            f"SELECT id, msg_key, message_id FROM {self.name} WHERE parked_ms = 0"
            f" AND {_MISPLACED} LIMIT {MISPLACED_MAX}"
        )

    def place(
        self, ids: Mapping[int, Sequence[int]], message_ids: Mapping[int, object]
    ) -> list[Statement]:
        """Return what puts rows into their shards. ids: shard -> its rows. message_ids: as of `writes`."""
        placed = ((shard, *self._rows(some, message_ids)) for shard, some in ids.items())
        return [
            (f"UPDATE {self.name} SET shard = {shard} WHERE {_MISPLACED} AND ({where})", values)
            for shard, where, values in placed
        ]

    # Leases.
    def make_leases(self) -> list[Statement]:
        """Return what adds the shards that are not in the table of leases."""
        db = self.database
        rows = ", ".join(f"('{shard}', '', 0)" for shard in range(SHARDS))
        return [(f"{db.insert_new} {self.leases} VALUES {rows}{db.insert_new_end}", ())]

    def renew(
        self, owner: str, lease_ms: int, take: Sequence[int], release: Sequence[int]
    ) -> list[Statement]:
        """Return what renews the leases of an owner, lets some go, and takes free ones."""
        db, leases, now = self.database, self.leases, self.database.now_ms
        until = f"until_ms = {now} + {lease_ms}"
        asked: list[Statement] = []
        if release:
            asked.append(
                (
                    f"UPDATE {leases} SET owner = '', until_ms = 0 WHERE owner = ?"
                    f" AND name IN ({_names(release)})",
                    (owner,),
                )
            )
        asked += [
            (f"UPDATE {leases} SET {until} WHERE owner = ?", (owner,)),
            (
                f"{db.insert_new} {leases} VALUES (?, ?, {now} + {lease_ms}){db.insert_new_end}",
                (_relay(owner), owner),
            ),
            (
                f"DELETE FROM {leases} WHERE until_ms < {now}"
                f" AND name NOT IN ({_names(range(SHARDS))})",
                (),
            ),
        ]
        if take:
            asked.append(
                (
                    f"UPDATE {leases} SET owner = ?, {until} WHERE name IN ({_names(take)})"
                    f" AND until_ms <= {now}",
                    (owner,),
                )
            )
        return asked

    def read_leases(self) -> str:
        """Return what reads name, owner and ms that are left of all leases, those of relays too."""
        return f"SELECT name, owner, until_ms - {self.database.now_ms} FROM {self.leases}"

    def release_all(self, owner: str) -> list[Statement]:
        """Return what ends the leases of an owner, and the owner."""
        return [
            (f"DELETE FROM {self.leases} WHERE name = ?", (_relay(owner),)),
            (f"UPDATE {self.leases} SET owner = '', until_ms = 0 WHERE owner = ?", (owner,)),
        ]

    # Questions and orders of operators.
    def status(self) -> str:
        """Return what counts rows: waiting, time of the oldest, of these failed before, parked.

        Each from an index: no row of the table is read but the oldest. The ``+ 0`` keeps SQLite from the
        index of all that wait. MySQL reads the rows that wait to find those that failed.
        """
        rows = f"FROM {self.name} WHERE parked_ms"
        return (
            f"SELECT (SELECT COUNT(*) {rows} = 0),"
            f" (SELECT created_ms {rows} = 0 ORDER BY id LIMIT 1),"
            f" (SELECT COUNT(*) {rows} + 0 = 0 AND not_before_ms > 0),"
            f" (SELECT COUNT(*) {rows} > 0)"
        )

    def parked(self, limit: int, destination: str = "") -> Statement:
        """Return what reads parked rows, the oldest first."""
        where, values = self._parked_rows((), destination)
        return (
            f"SELECT {_PARKED_COLUMNS} FROM {self.name} WHERE {where} ORDER BY id LIMIT {limit}",
            values,
        )

    def parked_ids(self, ids: Sequence[int], destination: str = "") -> Statement:
        """Return what reads id, message id and destination of parked rows. ids: none for all."""
        where, values = self._parked_rows(ids, destination)
        return (
            f"SELECT id, message_id, destination FROM {self.name} WHERE {where} ORDER BY id",
            values,
        )

    def retry(self, message_ids: Mapping[int, object]) -> list[Statement]:
        """Return what gives parked rows to the relays again. message_ids: as of `writes`."""
        change = f"UPDATE {self.name} SET parked_ms = 0, not_before_ms = 0, attempts = 0"
        return list(self._judged(change, message_ids))

    def drop(self, message_ids: Mapping[int, object]) -> list[Statement]:
        """Return what deletes parked rows. message_ids: as of `writes`."""
        return list(self._judged(f"DELETE FROM {self.name}", message_ids))

    def _judged(self, change: str, message_ids: Mapping[int, object]) -> Iterator[Statement]:
        for some in _some(list(message_ids)):
            where, values = self._rows(some, message_ids)
            yield f"{change} WHERE parked_ms > 0 AND ({where})", values

    def _parked_rows(self, ids: Sequence[int], destination: str) -> tuple[str, tuple[object, ...]]:
        where, values = "parked_ms > 0", ()
        if ids:
            where += f" AND id IN ({_numbers(ids)})"
        return (f"{where} AND destination = ?", (destination,)) if destination else (where, values)


def _some(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for first in range(0, len(ids), ROWS_MAX):
        yield ids[first : first + ROWS_MAX]


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _names(shards: Sequence[int]) -> str:
    return ", ".join(f"'{shard}'" for shard in shards)


def _relay(owner: str) -> str:
    """Return the name of the lease that says that this relay lives."""
    return f"relay {owner}"
