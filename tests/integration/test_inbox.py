"""Once: the effect of a message is in the database once, whatever runs at once, fails or is killed."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from messagebus.databases import MYSQL, POSTGRESQL, SQLITE, execute, is_conflict
from messagebus.errors import ConfigError
from messagebus.inbox import Once, inbox_ddl
from tests.support.connections import KINDS, Database, connect, result_of, some_wait, transaction
from tests.support.eventually import eventually

SERVERS = {POSTGRESQL: "postgresql_server", MYSQL: "mariadb_server"}
SUBSCRIPTION = "orders/billing"
COPIES = 4
pytestmark = pytest.mark.guarantee("inbox")
every_kind = pytest.mark.parametrize(("database", "kind"), KINDS, indirect=["database"])
every_database = pytest.mark.parametrize("database", [SQLITE, POSTGRESQL, MYSQL], indirect=True)
every_server = pytest.mark.parametrize("database", [POSTGRESQL, MYSQL], indirect=True)


class Undone(Exception):
    """The application's own fault, after which it rolls back."""


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """A database of the dialect that the test is asked for, with the inbox and a table of effects."""
    dialect: str = request.param
    if dialect == SQLITE:
        made = Database(dialect, path=tmp_path / "app.db")
    else:
        made = Database(dialect, server=request.getfixturevalue(SERVERS[dialect]))
    if made.server:
        made.server.start()  # where an earlier test has ended it
    with connect(made) as connection:
        for sql in (
            "DROP TABLE IF EXISTS effects",
            "CREATE TABLE effects (n INTEGER)",
            inbox_ddl(dialect),
        ):
            execute(connection, sql)
        connection.commit()
    return made


def a_message() -> Once:
    return Once.of(SUBSCRIPTION, os.urandom(8).hex())


def again(once: Once) -> Once:
    """Return what the next copy's handler is given."""
    return Once(once._key)


def effects(database: Database) -> int:
    with connect(database) as connection:
        return int(execute(connection, "SELECT COUNT(*) FROM effects").rows[0][0])


def bill(connection: Any, once: Once, begin: Callable[[Once, Any], bool] = Once.begin) -> bool:
    """Handle a message: its effect is one row."""
    if not begin(once, connection):
        return False
    execute(connection, "INSERT INTO effects VALUES (1)")
    return True


# Of every kind of connection.
@every_kind
async def test_the_second_copy_finds_what_the_first_has_committed(
    database: Database, kind: str
) -> None:
    once = a_message()
    async with transaction(kind, database) as connection:
        assert await result_of(once.begin(connection)) is True
        await result_of(execute(connection, "INSERT INTO effects VALUES (1)"))
    assert once.is_duplicate is False
    async with transaction(kind, database) as connection:
        copy = again(once)
        assert await result_of(copy.begin(connection)) is False
    assert copy.is_duplicate is True
    assert effects(database) == 1


@every_kind
async def test_after_a_rollback_the_message_runs_again(database: Database, kind: str) -> None:
    once = a_message()
    with pytest.raises(Undone):  # noqa: PT012
        async with transaction(kind, database) as connection:
            assert await result_of(once.begin(connection))
            await result_of(execute(connection, "INSERT INTO effects VALUES (1)"))
            raise Undone
    assert effects(database) == 0
    async with transaction(kind, database) as connection:
        assert await result_of(again(once).begin(connection)) is True


@every_kind
async def test_a_missing_table_is_told_with_the_command_that_makes_it(
    database: Database, kind: str
) -> None:
    with connect(database) as other:
        execute(other, "DROP TABLE messagebus_inbox")
        other.commit()
    told = f"messagebus_inbox does not exist: `messagebus dedup ddl --database {database.dialect}`"
    with pytest.raises(ConfigError, match=told):
        async with transaction(kind, database) as connection:
            await result_of(a_message().begin(connection))


@pytest.mark.parametrize("database", [POSTGRESQL], indirect=True)
def test_a_driver_that_does_not_say_what_it_inserted_ends_the_run_and_not_the_message(
    database: Database,
) -> None:
    """psycopg knows no number of rows in a pipeline: each message passed for its own copy."""
    told = pytest.raises(ConfigError, match="does not say what it inserted")
    with connect(database) as connection, connection.pipeline(), told:
        a_message().begin(connection)


# At once.
def effects_of_copies(database: Database, begin: Callable[[Once, Any], bool]) -> int:
    """Return how many effects copies of one message have that all begin before one has committed."""
    once = a_message()
    all_begin = threading.Barrier(COPIES)

    def handle() -> bool:
        with connect(database) as connection:
            all_begin.wait(timeout=30)
            ran = bill(connection, again(once), begin)
            connection.commit()
            return ran

    with ThreadPoolExecutor(COPIES) as pool:
        ran = [each.result() for each in [pool.submit(handle) for _ in range(COPIES)]]
    assert sum(ran) == effects(database)
    return sum(ran)


@every_database
def test_copies_at_once_have_one_effect(database: Database) -> None:
    assert effects_of_copies(database, Once.begin) == 1


@every_server
def test_a_look_before_the_insert_instead_of_the_key_would_be_noticed(database: Database) -> None:
    with connect(database) as connection:
        wide = "BYTEA" if database.dialect == POSTGRESQL else "BINARY(16)"
        execute(connection, "DROP TABLE messagebus_inbox")
        execute(connection, f"CREATE TABLE messagebus_inbox (id {wide}, expires_ms BIGINT)")
        connection.commit()
    all_have_looked = threading.Barrier(COPIES)

    def look_then_insert(once: Once, connection: Any) -> bool:
        found = execute(connection, "SELECT 1 FROM messagebus_inbox WHERE id = ?", (once._key,))
        all_have_looked.wait(timeout=30)
        if not found.rows:
            execute(connection, "INSERT INTO messagebus_inbox VALUES (?, 0)", (once._key,))
        return not found.rows

    assert effects_of_copies(database, look_then_insert) == COPIES
    with connect(database) as connection:
        execute(connection, "DROP TABLE messagebus_inbox")
        connection.commit()


@every_server
@pytest.mark.parametrize("commits", [True, False])
def test_a_copy_waits_for_the_end_of_the_firsts_transaction(
    database: Database, commits: bool
) -> None:
    once = a_message()

    def second_copy() -> bool:
        with connect(database) as connection:
            ran = bill(connection, again(once))
            connection.commit()
            return ran

    with connect(database) as first, connect(database) as looks, ThreadPoolExecutor(1) as pool:
        assert bill(first, once)
        second = pool.submit(second_copy)
        eventually(lambda: some_wait(database, looks), within_s=60)
        assert not second.done()
        first.commit() if commits else first.rollback()
        assert second.result(timeout=30) is not commits
    assert effects(database) == 1


# What databases refuse, and what a handler's next run does about it.
@every_server
def test_a_deadlock_ends_one_transaction_and_the_next_run_finds_what_is_done(
    database: Database,
) -> None:
    one, other = a_message(), a_message()
    both_hold_one = threading.Barrier(2)

    def handle(first: Once, second: Once) -> int:
        """Handle two messages in one transaction; return the run that committed."""
        for run in (1, 2, 3):
            with connect(database) as connection:
                try:
                    bill(connection, again(first))
                    if run == 1:
                        both_hold_one.wait(timeout=30)
                    bill(connection, again(second))
                    connection.commit()
                    return run
                except (psycopg.Error, pymysql.Error) as fault:
                    connection.rollback()
                    if not is_conflict(fault):
                        raise
        raise AssertionError("three runs")

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(handle, one, other), pool.submit(handle, other, one)]
        assert sorted(each.result(timeout=60) for each in runs) == [1, 2]
    assert effects(database) == 2


@pytest.mark.parametrize("database", [POSTGRESQL], indirect=True)
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_serialization_failure_ends_the_run_and_the_next_one_finds_what_is_done(
    database: Database, level: str
) -> None:
    once = a_message()
    with connect(database) as connection, connect(database) as other:
        execute(connection, f"SET TRANSACTION ISOLATION LEVEL {level}")
        execute(connection, "SELECT 1")  # from here on it sees no later commit
        assert bill(other, once)
        other.commit()
        with pytest.raises(psycopg.errors.SerializationFailure) as raised:
            bill(connection, again(once))
        assert is_conflict(raised.value)
        connection.rollback()
        assert not bill(connection, again(once))
    assert effects(database) == 1


@every_server
@pytest.mark.parametrize("fault", ["kill", "restart", "connection"])
def test_what_was_not_committed_when_the_server_or_connection_ended_runs_again(
    database: Database, fault: str
) -> None:
    assert database.server
    once = a_message()
    with connect(database) as connection:
        assert bill(connection, once)
        if fault == "connection":
            _end_connection(database, connection)
        else:
            database.server.kill() if fault == "kill" else database.server.stop()
            database.server.start()
        with pytest.raises((psycopg.OperationalError, pymysql.OperationalError)):
            connection.commit()
    assert effects(database) == 0
    with connect(database) as later:
        assert bill(later, again(once))
        later.commit()
    assert effects(database) == 1


def _end_connection(database: Database, connection: Any) -> None:
    with connect(database) as other:
        if database.dialect == POSTGRESQL:
            pid = connection.info.backend_pid
            execute(other, "SELECT pg_terminate_backend(?)", (pid,))
        else:
            execute(other, f"KILL CONNECTION {connection.thread_id()}")


@pytest.mark.parametrize("database", [SQLITE], indirect=True)
def test_a_locked_sqlite_file_ends_the_run_and_the_next_one_has_the_effect(
    database: Database,
) -> None:
    once = a_message()
    with connect(database) as holds, sqlite3.connect(str(database.path), timeout=0) as waits:
        assert bill(holds, a_message())
        with pytest.raises(sqlite3.OperationalError, match="locked") as raised:
            bill(waits, once)
        assert is_conflict(raised.value)
        waits.rollback()
        holds.commit()
        assert bill(waits, again(once))
    waits.close()
    assert effects(database) == 2


def test_one_message_of_two_subscriptions_is_two(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "app.db") as connection:
        execute(connection, inbox_ddl(SQLITE))
        assert Once.of("orders/billing", "17").begin(connection)
        assert Once.of("orders/shipping", "17").begin(connection)
        assert not Once.of("orders/billing", "17").begin(connection)
    connection.close()


def test_faults_of_its_settings_are_told() -> None:
    with pytest.raises(ConfigError, match="key: 16 bytes, not 5"):
        Once(b"short")
    with pytest.raises(ConfigError, match="remember_s 0: 1 or more"):
        Once.of("orders/billing", "17", remember_s=0)
    with pytest.raises(
        ConfigError, match="database 'oracle': postgresql, mysql, mariadb or sqlite"
    ):
        inbox_ddl("oracle")
