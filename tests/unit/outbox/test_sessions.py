"""Sessions of SQLAlchemy whose database is chosen by class: one is used, several are refused."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Session, scoped_session, sessionmaker

from messagebus.databases import execute
from messagebus.errors import ConfigError
from messagebus.outbox import Outbox


class Orders(DeclarativeBase):
    """Classes in the shop's database."""


class Audits(DeclarativeBase):
    """Classes in another one."""


def engine(path: Path, name: str) -> sqlalchemy.Engine:
    made = sqlalchemy.create_engine(
        f"sqlite:///{path}/{name}.db", poolclass=sqlalchemy.pool.NullPool
    )
    with made.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE notes (n INTEGER)")
    return made


@pytest.mark.parametrize("scoped", [False, True])
def test_a_session_that_has_its_database_by_class_adds_there(tmp_path: Path, scoped: bool) -> None:
    shop = engine(tmp_path, "shop")
    make = sessionmaker(binds={Orders: shop, Audits: shop})
    session: Any = scoped_session(make) if scoped else make()
    execute(session, "INSERT INTO notes VALUES (?)", (1,))
    session.commit()
    session.close()
    with shop.connect() as connection:
        assert connection.exec_driver_sql("SELECT n FROM notes").fetchall() == [(1,)]


@pytest.mark.parametrize("has_default", [False, True])
def test_a_session_with_several_databases_is_refused_before_anything_is_written(
    tmp_path: Path, has_default: bool
) -> None:
    shop, audit = engine(tmp_path, "shop"), engine(tmp_path, "audit")
    binds: dict[Any, Any] = {Audits: audit} if has_default else {Orders: shop, Audits: audit}
    with Session(shop if has_default else None, binds=binds) as session:
        with pytest.raises(ConfigError, match="several databases: give it the connection"):
            execute(session, "INSERT INTO notes VALUES (?)", (1,))
        chosen = session.connection(bind_arguments={"bind": shop})
        execute(chosen, "INSERT INTO notes VALUES (?)", (2,))
        session.commit()
    with shop.connect() as connection:
        assert connection.exec_driver_sql("SELECT n FROM notes").fetchall() == [(2,)]


async def test_asyncio_sessions_do_the_same(tmp_path: Path) -> None:
    for name in ("shop", "audit"):
        await asyncio.to_thread(engine, tmp_path, name)
    shop, audit = (
        create_async_engine(
            f"sqlite+aiosqlite:///{tmp_path}/{name}.db", poolclass=sqlalchemy.pool.NullPool
        )
        for name in ("shop", "audit")
    )
    async with AsyncSession(binds={Orders: shop}) as session:
        await execute(session, "INSERT INTO notes VALUES (?)", (1,))
        found = await execute(session, "SELECT n FROM notes")
        assert found.rows == [(1,)]
    async with AsyncSession(binds={Orders: shop, Audits: audit}) as session:
        with pytest.raises(ConfigError, match="several databases"):
            execute(session, "SELECT n FROM notes")
    await shop.dispose()
    await audit.dispose()


def emits_begin(shop: sqlalchemy.Engine) -> None:
    """As the documentation of SQLAlchemy has it for savepoints of SQLite."""

    @sqlalchemy.event.listens_for(shop, "connect")
    def connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @sqlalchemy.event.listens_for(shop, "begin")
    def begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")


def test_a_savepoint_of_sqlite_that_may_be_the_whole_transaction_is_refused(tmp_path: Path) -> None:
    """Its release would commit, and the rollback of the transaction take nothing back."""
    shop = engine(tmp_path, "shop")
    with Session(shop) as session, session.begin():
        with session.begin_nested(), pytest.raises(ConfigError, match="savepoint would commit"):
            execute(session, "INSERT INTO notes VALUES (?)", (1,))
        execute(session, "INSERT INTO notes VALUES (?)", (2,))
    emits_begin(shop)
    with Session(shop) as session:
        with session.begin_nested():
            execute(session, "INSERT INTO notes VALUES (?)", (3,))
        session.rollback()
    with shop.connect() as connection:
        assert connection.exec_driver_sql("SELECT n FROM notes").fetchall() == [(2,)]


async def test_a_savepoint_of_an_asyncio_session_is_refused_alike(tmp_path: Path) -> None:
    await asyncio.to_thread(engine, tmp_path, "shop")
    shop = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    async with AsyncSession(shop) as session, session.begin_nested():
        with pytest.raises(ConfigError, match="savepoint would commit"):
            await execute(session, "INSERT INTO notes VALUES (?)", (1,))
    await shop.dispose()


async def test_python_warns_of_an_add_that_nobody_awaits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It added nothing, and nobody was told."""
    told: list[str] = []
    shop = create_async_engine(
        f"sqlite+aiosqlite:///{tmp_path}/shop.db", poolclass=sqlalchemy.pool.NullPool
    )
    async with shop.connect() as connection:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            # Unlike one that is recorded, a warning that is shown keeps nothing alive.
            monkeypatch.setattr(warnings, "showwarning", lambda what, *_: told.append(str(what)))
            Outbox().add(connection, "orders", b"1")
            gc.collect()
    assert any("was never awaited" in each for each in told)
    await shop.dispose()


@pytest.mark.parametrize("driver", ["sqlite3", "aiosqlite"])
async def test_a_row_without_its_table_is_answered_with_what_makes_the_table(
    tmp_path: Path, driver: str
) -> None:
    path = tmp_path / "shop.db"

    async def add() -> None:
        if driver == "sqlite3":
            with closing(sqlite3.connect(path)) as connection:
                Outbox().add(connection, "orders", b"x")
        else:
            async with aiosqlite.connect(path) as waited:
                await Outbox().add(waited, "orders", b"x")

    with pytest.raises(sqlite3.OperationalError, match="no such table") as fault:
        await add()
    told = "`messagebus outbox ddl --database sqlite` prints what makes it"
    assert fault.value.__notes__ == [told]
