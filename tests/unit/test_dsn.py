"""Addresses of databases: relay and store read them alike, and give what they ask for or refuse it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from messagebus.dsn import Address
from messagebus.errors import ConfigError
from messagebus.outbox.session import Session
from messagebus.secret import Secret
from messagebus.stores.sql import SqlStore

HERE = Path.cwd()


class Connected(Exception):
    """Raised in place of a connection."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options that drivers were asked to connect with."""
    found: list[dict[str, Any]] = []

    def connect(**options: Any) -> None:
        found.append(options)
        raise Connected

    monkeypatch.setattr(psycopg, "connect", connect)
    monkeypatch.setattr(pymysql, "connect", connect)
    return found


@pytest.mark.parametrize(
    ("url", "options"),
    [
        (
            "postgresql://shop:pa%40ss@h1:5432,h2:5433/db?sslmode=verify-full",
            {"host": "h1,h2", "port": "5432,5433", "password": "pa@ss", "sslmode": "verify-full"},
        ),
        (
            "postgresql+psycopg://shop@[::1]:5432/db",
            {"host": "::1", "port": "5432", "dbname": "db"},
        ),
        ("postgresql:///db?host=/socket", {"host": "/socket", "dbname": "db"}),
        ("postgres://h/db?sslrootcert=ca.pem", {"host": "h", "sslrootcert": f"{HERE}/ca.pem"}),
        ("postgresql://h/db?sslrootcert=system", {"sslrootcert": "system"}),
        (
            "mysql://shop:pa%40ss@h:3307/db?ssl_ca=ca.pem&ssl_verify_identity=true",
            {
                **{"host": "h", "port": 3307, "user": "shop", "password": "pa@ss"},
                **{"database": "db", "ssl_ca": f"{HERE}/ca.pem", "ssl_verify_identity": True},
            },
        ),
        ("mariadb+pymysql:///db?unix_socket=/s&charset=utf8mb4", {"unix_socket": "/s"}),
    ],
)
async def test_relay_and_store_connect_with_all_that_an_address_asks_for(
    url: str, options: dict[str, Any], asked: list[dict[str, Any]]
) -> None:
    session = Session(Address.parse(Secret(url)))
    with pytest.raises(Connected):
        await session.run([])
    await session.close()
    with pytest.raises(Connected):
        SqlStore(url)._connect()
    for given in asked:
        assert given | options == given
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://bus:se%zzsame-1@host/db", "not a URL that PostgreSQL understands"),
        (
            "postgresql://bus:sesame-1@h1:5432,h2:54x/db",
            "postgresql://bus@h1:5432,h2:54x/db: the port",
        ),
        ("mysql://bus:sesame-1@host:99999/db", "mysql://bus@host:99999/db: the port is a number"),
        ("mysql://bus:sesame-1@host/db?ssl=1", "unknown: ssl; known: charset, ssl_ca, ssl_cert"),
        ("mysql://bus:sesame-1@host/db?ssl_verify_identity=maybe", "true or false"),
        ("mysql://bus:sesame-1@host/db?charset=latin1", "charset 'latin1': utf8mb4"),
        ("sqlite:///shop.db?mode=ro", "has no options"),
        ("sqlite://shop.db", "a file wanted"),
        ("sqlite:///:memory:", "a file wanted"),
        ("oracle://bus:sesame-1@host/db", "oracle://…: postgresql://HOST/DB, mysql://HOST/DB or"),
        ("shop.db", "an address wanted"),
    ],
)
def test_an_address_that_cannot_be_meant_is_told_without_its_password(url: str, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Address.parse(url).options()
    assert told in str(raised.value)
    assert "same-1" not in f"{raised.value!r} {raised.value.__cause__!r}"


def test_a_password_is_in_no_repr() -> None:
    assert "sesame" not in repr(Address.parse("mysql://bus:sesame@host/db"))


def test_a_relative_path_is_the_folder_where_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address = Address.parse("sqlite:///shop.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(sqlite3.OperationalError):
        address.connect({})
    address.connect({}, makes_file=True).close()
    assert (tmp_path / "shop.db").exists()
    assert address.shown == f"sqlite:///{tmp_path}/shop.db"


class InClear:
    """Connection to MySQL without TLS."""

    def __init__(self) -> None:
        self.is_closed = False

    def cursor(self) -> InClear:
        return self

    def __enter__(self) -> InClear:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, sql: str) -> None:
        assert "Ssl_cipher" in sql

    def fetchone(self) -> tuple[str, str]:
        return "Ssl_cipher", ""

    def close(self) -> None:
        self.is_closed = True


def test_a_server_without_tls_is_refused_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyMySQL before 1.2 goes on in clear."""
    made = InClear()
    monkeypatch.setattr(pymysql, "connect", lambda **_: made)
    assert Address.parse("mysql://bus@host/db").connect({}) is made
    with pytest.raises(ConfigError, match="TLS is asked for, and the server has none"):
        Address.parse("mysql://bus@host/db?ssl_ca=ca.pem").connect({})
    assert made.is_closed


def test_a_file_of_tls_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"mysql://.*: ssl_ca /nowhere/ca\.pem: no such file"):
        Address.parse("mysql://bus:secret@127.0.0.1:1/db?ssl_ca=/nowhere/ca.pem").connect({})
