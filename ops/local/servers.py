"""Servers beside the brokers: Redis, PostgreSQL and MariaDB, the monitor and Prometheus.

Each has a folder, a port and a password of its own, and is never a service of the system. The programs
are this system's, whatever root folder the brokers come from.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inventory import shell
from messagebus.files import write_whole
from messagebus.secret import Secret
from ops.commands.kits import CHECKOUT
from ops.errors import LocalFault
from ops.local.layout import Server, ServerChoice
from ops.run.waiting import START_AT_MOST_S

CHOICES = ("redis", "postgresql", "mariadb", "monitor", "prometheus")
"""Servers that a local cluster may have beside its brokers."""
PERSISTENCE = ("everysec", "always", "no", "none")
USER = "bus"
PASSWORD_BYTES = 24
PROBE_S = 1.0
POSTGRESQL_BINS = "usr/lib/postgresql/*/bin"
POSTGRES_USER = "postgres"
MARIADB_OPTIONS = "my.cnf"
# Protocol 3.0, and what PostgreSQL calls the first byte of its answer to a known user: a question for
# the password. A server that still recovers answers with an error.
POSTGRESQL_PROTOCOL, POSTGRESQL_ASKS = 196_608, b"R"
# MariaDB's greeting: version 10 of the protocol, behind the packet's length and number.
MARIADB_GREETS = 10
REDIS_ASKS = (b"-NOAUTH", b"+PONG")
# What a local server needs of memory is little: tests run several.
POSTGRESQL_SETTINGS = ("shared_buffers=32MB", "unix_socket_directories=", "max_connections=200")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of server. stop: signal that ends it in an orderly way."""

    package: str
    port: int
    stop: signal.Signals
    find: Callable[[], str]
    prepare: Callable[[Server], None]
    argv: Callable[[Server], list[str]]
    serves: Callable[[Server, socket.socket], bool]


def kind_of(name: str) -> Kind:
    """Return a kind of server. Raises LocalFault for an unknown one."""
    if name not in KINDS:
        raise LocalFault(f"no server {name!r}: there are {', '.join(KINDS)}")
    return KINDS[name]


def choices_of(words: str) -> list[ServerChoice]:
    """Return what ``redis:always,postgresql`` asks for. Raises LocalFault for other words."""
    chosen = {}
    for word in filter(None, words.split(",")):
        kind, _, persistence = word.strip().partition(":")
        if kind not in CHOICES:
            raise LocalFault(f"no server {kind!r}: there are {', '.join(CHOICES)}")
        if persistence and (kind != "redis" or persistence not in PERSISTENCE):
            raise LocalFault(f"{word!r}: redis:{'|'.join(PERSISTENCE)} is its persistence")
        chosen[kind] = ServerChoice(kind, 0, persistence or PERSISTENCE[0])
    return list(chosen.values())


def install(kind: str) -> str:
    """Return the command that installs a kind of server."""
    return f"ops/local/install.sh {kind_of(kind).package}"


def prepare(server: Server) -> None:
    """Make the password, the settings and, where there are none, the data of a server that does not run.

    Raises LocalFault, with the command that installs it, where its program is missing.
    """
    kind = kind_of(server.kind)
    if not kind.find():
        raise LocalFault(f"{server.kind} is not installed: {install(server.kind)}")
    server.dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    server.password_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not server.password_file.exists():
        write_whole(server.password_file, secrets.token_hex(PASSWORD_BYTES))
    kind.prepare(server)


def argv(server: Server) -> list[str]:
    """Return the command that runs it in the foreground."""
    return kind_of(server.kind).argv(server)


def environment(server: Server) -> dict[str, str]:
    """Return its whole environment: no setting of the user reaches it."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": str(server.dir)}
    return {**env, "PYTHONPATH": str(CHECKOUT)} if server.kind == "monitor" else env


def url(server: Server, password: Secret | None = None) -> str:
    """Return its address for clients, without the password by default."""
    if server.kind in ("monitor", "prometheus"):
        return f"http://{server.host}:{server.port}/"
    scheme = {"mariadb": "mysql", "sentinel": "redis"}.get(server.kind, server.kind)
    database = {"postgresql": "/postgres", "mariadb": f"/{USER}"}.get(server.kind, "/0")
    user = "" if scheme == "redis" else USER
    word = f":{password.reveal()}" if password else ""
    login = f"{user}{word}@" if user or word else ""
    return f"{scheme}://{login}{server.host}:{server.port}{database}"


def serves(server: Server) -> bool:
    """Return whether it takes logins: a listening port is not enough while it recovers or loads its data."""
    try:
        with socket.create_connection((server.host, server.port), timeout=PROBE_S) as probe:
            return kind_of(server.kind).serves(server, probe)
    except OSError:
        return False


def _password(server: Server) -> str:
    return server.password_file.read_text().strip()


def _run(argv: Sequence[str]) -> None:
    shell.run(argv, timeout_s=START_AT_MOST_S)


def _finish(unfinished: Path, data: Path) -> None:
    """Give the folder its name only when all is in it: what was interrupted is begun anew."""
    unfinished.rename(data)


# -- Redis and its sentinels


def _redis_prepare(server: Server) -> None:
    password = _password(server)
    lines: list[str] = []
    if server.kind == "sentinel" and server.master:
        # A sentinel writes what it learns into this file, so it is made once.
        if (server.dir / "redis.conf").exists():
            return
        host, port = server.master
        # By itself it would announce the address that its connection to the master has.
        lines = [
            f"sentinel announce-ip {server.host}",
            f"sentinel monitor {server.monitors} {host} {port} 2",
            f"sentinel auth-pass {server.monitors} {password}",
            f"sentinel down-after-milliseconds {server.monitors} 2000",
            f"sentinel failover-timeout {server.monitors} 5000",
        ]
    else:
        lines = [
            f"requirepass {password}",
            f"masterauth {password}",
            f"replica-announce-ip {server.host}",
            'save ""',
            f"appendonly {'no' if server.persistence == 'none' else 'yes'}",
        ]
        if server.persistence != "none":
            lines.append(f"appendfsync {server.persistence}")
        if server.master:
            lines.append("replicaof {} {}".format(*server.master))
    common = [f"bind {server.host}", f"port {server.port}", f'dir "{server.dir}"', "daemonize no"]
    write_whole(server.dir / "redis.conf", "\n".join([*common, *lines, ""]))


def _redis_argv(server: Server) -> list[str]:
    program = "redis-sentinel" if server.kind == "sentinel" else "redis-server"
    return [shutil.which(program) or program, str(server.dir / "redis.conf")]


def _redis_serves(server: Server, probe: socket.socket) -> bool:
    probe.sendall(b"PING\r\n")
    return probe.recv(64).startswith(REDIS_ASKS)


# -- PostgreSQL


def _postgresql(program: str) -> str:
    """Return the path of a program of the newest version that is installed, "" where there is none."""
    found = sorted(
        Path("/").glob(f"{POSTGRESQL_BINS}/{program}"), key=lambda path: int(path.parts[4])
    )
    return str(found[-1]) if found else ""


def _as_postgres() -> list[str]:
    """Return the words before a command that PostgreSQL refuses to run as root.

    The user postgres may not enter the folders of root in which the cluster's is, hence the capability.
    """
    if os.geteuid() != 0:
        return []
    user = [f"--reuid={POSTGRES_USER}", f"--regid={POSTGRES_USER}", "--init-groups"]
    enter = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    return ["/usr/bin/setpriv", *user, *enter, "--"]


def _postgresql_prepare(server: Server) -> None:
    if (data := server.dir / "data").exists():
        _forget_zombie(data / "postmaster.pid")
        return
    # Its folder must belong to its user, and it makes none in a folder that is not its user's.
    unfinished = server.dir / "data.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(mode=0o700)
    if os.geteuid() == 0:
        shutil.chown(unfinished, POSTGRES_USER, POSTGRES_USER)
    _run(
        [
            *_as_postgres(),
            *(_postgresql("initdb"), "-D", str(unfinished), "-U", USER, "-E", "UTF8"),
            *("--locale=C.UTF-8", "-A", "scram-sha-256", f"--pwfile={server.password_file}"),
            *("--no-sync", "--no-instructions"),
        ]
    )
    _finish(unfinished, data)


def _forget_zombie(lock: Path) -> None:
    """Remove the lock of a killed server that init has not reaped: PostgreSQL takes it for alive."""
    try:
        pid = int(lock.read_text().split()[0])
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, ValueError, IndexError):
        return
    if stat.rpartition(")")[2].split()[0] == "Z":
        lock.unlink()


def _postgresql_argv(server: Server) -> list[str]:
    return [
        *_as_postgres(),
        *(_postgresql("postgres"), "-D", str(server.dir / "data")),
        *("-h", server.host, "-p", str(server.port)),
        *(word for setting in POSTGRESQL_SETTINGS for word in ("-c", setting)),
    ]


def _postgresql_serves(server: Server, probe: socket.socket) -> bool:
    words = f"user\0{USER}\0database\0postgres\0\0".encode()
    probe.sendall(struct.pack("!ii", 8 + len(words), POSTGRESQL_PROTOCOL) + words)
    return probe.recv(1) == POSTGRESQL_ASKS


# -- MariaDB


def _mariadb_prepare(server: Server) -> None:
    options = {
        "datadir": str(server.dir / "data"),
        "bind-address": server.host,
        "port": str(server.port),
        "socket": "mariadb.sock",  # within datadir: a Unix socket's path may have 107 bytes
        "pid-file": "mariadb.pid",
        "init-file": str(server.dir / "users.sql"),
        "innodb-buffer-pool-size": "64M",
        "performance-schema": "OFF",
        "skip-name-resolve": "ON",
        "max-connect-errors": "1000000",  # each look at the port counts as one
        **({"user": "root"} if os.geteuid() == 0 else {}),
    }
    words = "".join(f"{name} = {value}\n" for name, value in options.items())
    write_whole(server.dir / MARIADB_OPTIONS, f"[mariadbd]\n{words}")
    users = [
        f"CREATE DATABASE IF NOT EXISTS {USER};",
        f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED BY '{_password(server)}';",
        f"GRANT ALL ON *.* TO '{USER}'@'%';",
    ]
    write_whole(server.dir / "users.sql", "\n".join([*users, ""]))
    if (data := server.dir / "data").exists():
        return
    unfinished = server.dir / "data.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    _run(
        [
            *(shutil.which("mariadb-install-db") or "", "--no-defaults", *as_root),
            *(f"--datadir={unfinished}", "--skip-test-db", "--skip-name-resolve"),
        ]
    )
    _finish(unfinished, data)


def _mariadb_argv(server: Server) -> list[str]:
    return [_mariadb(), f"--defaults-file={server.dir / MARIADB_OPTIONS}"]


def _mariadb() -> str:
    return shutil.which("mariadbd", path="/usr/sbin:/usr/bin") or ""


def _mariadb_serves(server: Server, probe: socket.socket) -> bool:
    return probe.recv(5)[4:] == bytes([MARIADB_GREETS])


# -- What watches the cluster; its settings are written by `ops.local.watching`


def _http_serves(path: str) -> Callable[[Server, socket.socket], bool]:
    def serves_http(server: Server, probe: socket.socket) -> bool:
        probe.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        return probe.recv(32).startswith(b"HTTP/1.1 200")

    return serves_http


def _prometheus_argv(server: Server) -> list[str]:
    return [
        shutil.which("prometheus") or "prometheus",
        f"--config.file={server.dir / 'prometheus.yml'}",
        f"--storage.tsdb.path={server.dir / 'data'}",
        f"--web.listen-address={server.host}:{server.port}",
    ]


_MONITOR = Kind(
    package="python3",
    port=8085,
    stop=signal.SIGTERM,
    find=lambda: sys.executable,
    prepare=lambda server: None,
    argv=lambda server: [
        *(sys.executable, "-m", "messagebus", "monitor"),
        *("--config", str(server.dir / "monitor.toml")),
    ],
    serves=_http_serves("/healthz"),
)
_PROMETHEUS = Kind(
    package="prometheus",
    port=9090,
    stop=signal.SIGTERM,
    find=lambda: shutil.which("prometheus") or "",
    prepare=lambda server: None,
    argv=_prometheus_argv,
    serves=_http_serves("/-/ready"),
)
_REDIS = Kind(
    package="redis-server",
    port=6379,
    stop=signal.SIGTERM,
    find=lambda: shutil.which("redis-server") or "",
    prepare=_redis_prepare,
    argv=_redis_argv,
    serves=_redis_serves,
)
_SENTINEL = Kind(
    package="redis-sentinel",
    port=26_379,
    stop=signal.SIGTERM,
    find=lambda: shutil.which("redis-sentinel") or "",
    prepare=_redis_prepare,
    argv=_redis_argv,
    serves=_redis_serves,
)
_POSTGRESQL = Kind(
    package="postgresql",
    port=5432,
    stop=signal.SIGINT,  # its SIGTERM waits for clients to leave
    find=lambda: _postgresql("postgres"),
    prepare=_postgresql_prepare,
    argv=_postgresql_argv,
    serves=_postgresql_serves,
)
_MARIADB = Kind(
    package="mariadb-server",
    port=3306,
    stop=signal.SIGTERM,
    find=_mariadb,
    prepare=_mariadb_prepare,
    argv=_mariadb_argv,
    serves=_mariadb_serves,
)
KINDS: Mapping[str, Kind] = {
    "redis": _REDIS,
    "postgresql": _POSTGRESQL,
    "mariadb": _MARIADB,
    "sentinel": _SENTINEL,
    "monitor": _MONITOR,
    "prometheus": _PROMETHEUS,
}
