"""Addresses of databases (DSNs): one reading of them, for relays of an outbox and for stores.

    address = Address.parse("postgresql://shop:password@db1:5432,db2:5432/shop?sslmode=verify-full")
    connection = address.connect(autocommit=True)

PostgreSQL's are libpq's own, those of MySQL and SQLite as SQLAlchemy writes them; a driver in the scheme
(``postgresql+psycopg://``) is ignored. An option that is not known is an error: TLS that an address asks for
is given or refused. A relative path means the folder in which the process was when it read the address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote

from messagebus.dialects import MYSQL, POSTGRESQL, SQLITE, Dialect, dialect_named
from messagebus.errors import ConfigError
from messagebus.secret import Secret, split_address

__all__ = ["Address"]

WANTED = "postgresql://HOST/DB, mysql://HOST/DB or sqlite:///PATH"
# Options of libpq that are paths; it reads these files at each connection.
_LIBPQ_PATHS = ("sslrootcert", "sslcert", "sslkey", "sslcrl", "sslcrldir", "passfile")
# Values of theirs that stand for no file of the caller's.
_NO_PATH = ("", "system")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a database. shown: the address without its password."""

    database: Dialect
    shown: str
    _options: Callable[[], dict[str, Any]] = field(repr=False)

    @classmethod
    def parse(cls, url: str | Secret) -> Address:
        """Read ``postgresql://user:password@host/name``, ``mysql://…`` or ``sqlite:///path``.

        A path with four slashes is absolute. MySQL's options: ``unix_socket``, ``charset=utf8mb4``,
        ``ssl_ca``, ``ssl_cert``, ``ssl_key``, ``ssl_verify_cert`` and ``ssl_verify_identity``. Raises
        ConfigError, which shows no password.
        """
        text = url.reveal() if isinstance(url, Secret) else url
        scheme, separator, rest = text.partition("://")
        if not separator:
            raise ConfigError(f"database: an address wanted: {WANTED}")
        parts = split_address(text)
        try:
            database = dialect_named(scheme.partition("+")[0].lower())
        except ConfigError:
            raise ConfigError(f"{scheme}://…: {WANTED}") from None
        user = f"{parts.username}@" if parts.username else ""
        shown = f"{database.name}://{user}{parts.netloc.rpartition('@')[2]}{parts.path}"
        match database.name:
            case "sqlite":
                path = _sqlite(parts)
                return cls(database, f"sqlite:///{path}", lambda: {"database": path})
            case "mysql":
                options = _mysql(parts, shown)
                return cls(database, shown, lambda: options)
        _check_ports(parts, shown)
        return cls(database, shown, lambda: _postgresql(f"postgresql://{rest}", shown))

    def options(self) -> dict[str, Any]:
        """Return the options of the driver's `connect` that the address stands for.

        Raises ConfigError for a PostgreSQL address that libpq does not understand, and ModuleNotFoundError
        without its driver.
        """
        if self.database.name == MYSQL:
            import pymysql  # noqa: F401 - raises here
        return dict(self._options())

    def connect(self, settings: Mapping[str, Any], *, makes_file: bool = False) -> Any:
        """Open a connection; any thread may call. Raises the driver's errors, and as `options`.

        settings: options of the driver's `connect` where the address says nothing. makes_file: a file of
        SQLite that is not there is made; a mistyped path would be an empty database.
        """
        options = {**settings, **self.options()}
        if self.database.name == POSTGRESQL:
            import psycopg

            # Without prepared statements, which a pooler between us and the server may not know.
            return psycopg.connect(**options, prepare_threshold=None)
        if self.database.name == MYSQL:
            import pymysql

            of_tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
            try:
                made = pymysql.connect(**options)
            except FileNotFoundError as fault:  # Python's own, which names no file
                files = ", ".join(f"{k} {v}" for k, v in of_tls.items() if isinstance(v, str))
                raise ConfigError(f"{self.shown}: {files}: no such file") from fault
            if of_tls:
                _check_tls(made, self.shown)
            return made
        assert self.database.name == SQLITE
        import sqlite3

        path = quote(options.pop("database"))
        return sqlite3.connect(
            f"file:{path}?mode={'rwc' if makes_file else 'rw'}", uri=True, **options
        )


def _check_ports(parts: SplitResult, shown: str) -> None:
    """Raise ConfigError where the port of a host is no number; there may be several hosts."""
    for host in parts.netloc.rpartition("@")[2].split(","):
        port = "" if host.endswith("]") else host.rpartition(":")[2] if ":" in host else ""
        if port and not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
            raise ConfigError(f"{shown}: the port is a number")


def _absolute(path: str) -> str:
    return path if path in _NO_PATH else str(Path(path).absolute())


def _sqlite(parts: SplitResult) -> str:
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not path or path == ":memory:":
        raise ConfigError(
            "sqlite: a file wanted, as in sqlite:///shop.db or sqlite:////absolute/shop.db;"
            " memory is seen by one connection only"
        )
    if parts.query:
        raise ConfigError(f"sqlite:///{path}: an address of SQLite has no options here")
    return _absolute(path)


def _postgresql(url: str, shown: str) -> dict[str, Any]:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        options = conninfo_to_dict(url)
    except psycopg.Error:
        # Its text quotes what it did not understand, which may be a part of the password.
        raise ConfigError(f"{shown}: not a URL that PostgreSQL understands") from None
    return {
        name: _absolute(str(value)) if name in _LIBPQ_PATHS else value
        for name, value in options.items()
    }


def _utf8mb4(value: str) -> str:
    if value != "utf8mb4":
        raise ValueError("utf8mb4")
    return value


def _truth(value: str) -> bool:
    if value.lower() not in _TRUTH:
        raise ValueError("true or false")
    return _TRUTH[value.lower()]


_MYSQL_OPTIONS: dict[str, Callable[[str], object]] = {
    "unix_socket": _absolute,
    "charset": _utf8mb4,
    "ssl_ca": _absolute,
    "ssl_cert": _absolute,
    "ssl_key": _absolute,
    "ssl_verify_cert": _truth,
    "ssl_verify_identity": _truth,
}


def _mysql(parts: SplitResult, shown: str) -> dict[str, Any]:
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := given.keys() - _MYSQL_OPTIONS.keys():
        raise ConfigError(
            f"{shown}: unknown: {', '.join(sorted(unknown))}; known: {', '.join(sorted(_MYSQL_OPTIONS))}"
        )
    options: dict[str, Any] = {}
    for name, value in given.items():
        try:
            options[name] = _MYSQL_OPTIONS[name](value)
        except ValueError as fault:
            raise ConfigError(f"{shown}: {name} {value!r}: {fault}") from None
    _check_ports(parts, shown)
    options |= {"host": parts.hostname or "localhost", "port": parts.port or 3306}
    options |= {"user": unquote(parts.username or ""), "password": unquote(parts.password or "")}
    if name := unquote(parts.path.removeprefix("/")):
        options["database"] = name
    return options


def _check_tls(connection: Any, shown: str) -> None:
    """Raise ConfigError where a driver goes on in clear with a server that has no TLS, as old ones do."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_cipher'")
        found = cursor.fetchone()
    if not (found and found[1]):
        connection.close()
        raise ConfigError(f"{shown}: TLS is asked for, and the server has none")
