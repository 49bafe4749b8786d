"""One server of a store or database, outside of a cluster, which tests and the bench start and break.

server = SingleServer(layout_in(folder, "postgresql", host="127.0.0.1"), folder)
server.start()
server.kill(); server.restart(); server.freeze(); server.thaw()
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from messagebus.secret import Secret
from ops.errors import LocalFault
from ops.local import preflight, process, servers
from ops.local.layout import Server
from ops.local.parts import Part, server_part
from ops.run.waiting import Patience

SENTINELS = 3
MONITORED = "bus"
POLL_S = 0.05
LOG_TAIL_CHARS = 1000


@dataclass(frozen=True, slots=True)
class SingleServer:
    """One server in a folder. `url` holds the password; `address` does not."""

    layout: Server
    folder: Path

    @property
    def password(self) -> str:
        return self.layout.password_file.read_text().strip()

    @property
    def url(self) -> str:
        return servers.url(self.layout, Secret(self.password))

    @property
    def address(self) -> str:
        return servers.url(self.layout)

    @property
    def host(self) -> str:
        return self.layout.host

    @property
    def port(self) -> int:
        return self.layout.port

    @property
    def user(self) -> str:
        """The user of PostgreSQL and MariaDB."""
        return servers.USER

    @property
    def database(self) -> str:
        """The database of `url`."""
        return self.url.rpartition("/")[2]

    @property
    def log(self) -> str:
        """All that it has written to its standard output."""
        return self._log_file.read_text(errors="replace")

    def start(self) -> None:
        """Start it, and wait until it takes logins. Does nothing when it runs. Raises LocalFault."""
        if process.find(self._pid_file):
            return
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        part = self._part
        process.spawn(
            part.argv,
            env=part.env,
            log=self._log_file,
            pid_file=self._pid_file,
            mark=f"{self.folder}#{self.layout.name}#",
        )
        wait_until(self._is_up, f"{self.layout.name} takes no logins", moves=self._movement)

    def _movement(self) -> tuple[int, int]:
        found = process.find(self._pid_file)
        return self._log_file.stat().st_size, found.cpu_ticks if found else 0

    def _is_up(self) -> bool:
        if not process.find(self._pid_file):
            raise LocalFault(f"{self.layout.name} ended: {self.log[-LOG_TAIL_CHARS:]}")
        return servers.serves(self.layout)

    def stop(self) -> None:
        """Stop it in an orderly way."""
        self._signal(self._part.stop, children=False)
        if found := process.find(self._pid_file):
            process.wait_gone([found], within_s=self._part.stop_within_s)
        self.kill()

    def kill(self) -> None:
        """Kill it, with all its children, as the loss of its machine would."""
        process.kill(self._held())

    def freeze(self) -> None:
        """Stop all its processes by SIGSTOP: it holds its connections and answers nothing."""
        self._held()

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start it anew, after `kill` or in an orderly way, and wait until it takes logins."""
        self.stop()
        self.start()

    @property
    def _part(self) -> Part:
        return server_part(self.layout)

    @property
    def _pid_file(self) -> Path:
        return self.folder / "run" / f"{self.layout.name}.pid"

    @property
    def _log_file(self) -> Path:
        return self.folder / "run" / f"{self.layout.name}.log"

    def _family(self) -> list[process.Process]:
        found = process.find(self._pid_file)
        return process.family(found) if found else []

    def _held(self) -> list[process.Process]:
        found = process.find(self._pid_file)
        return process.hold(found) if found else []

    def _signal(self, number: signal.Signals, *, children: bool = True) -> None:
        family = self._family()
        for one in family if children else family[:1]:
            process.send(one, number)
        if not children:
            for one in family:
                process.send(one, signal.SIGCONT)


def layout_in(
    folder: Path,
    kind: str,
    *,
    host: str,
    name: str = "",
    persistence: str = "everysec",
    master: SingleServer | None = None,
    monitors: str = "",
) -> Server:
    """Return the layout of a new server, with files that it can start from. Raises LocalFault.

    master: the Redis that it copies, or that a sentinel monitors by the name `monitors`.
    """
    name = name or kind
    own = folder / "secrets" / f"{name}.password"
    layout = Server(
        name=name,
        kind=kind,
        host=host,
        port=preflight.free_port(host, servers.kind_of(kind).port),
        dir=folder / name,
        password_file=master.layout.password_file if master else own,
        persistence=persistence,
        master=(master.host, master.port) if master else (),
        monitors=monitors,
    )
    servers.prepare(layout)
    return layout


class MakeServer(Protocol):
    """A function that makes a server of a kind and starts it; the arguments are those of `layout_in`."""

    def __call__(
        self,
        kind: str,
        *,
        persistence: str = "everysec",
        master: SingleServer | None = None,
        monitors: str = "",
    ) -> SingleServer: ...


@contextmanager
def server_factory(folder: Path, hosts: Iterator[str]) -> Iterator[MakeServer]:
    """Give a function that makes a server, started, at the next address; all are killed at the exit."""
    started: list[SingleServer] = []

    def make(
        kind: str,
        *,
        persistence: str = "everysec",
        master: SingleServer | None = None,
        monitors: str = "",
    ) -> SingleServer:
        layout = layout_in(
            folder,
            kind,
            host=next(hosts),
            name=f"{kind}{len(started) + 1}",
            persistence=persistence,
            master=master,
            monitors=monitors,
        )
        started.append(SingleServer(layout, folder))
        started[-1].start()
        return started[-1]

    try:
        yield make
    finally:
        for server in started:
            server.kill()


@dataclass(frozen=True, slots=True)
class RedisWithReplica:
    """A Redis, its replica, and three sentinels that make the replica the master when the first is gone."""

    first: SingleServer
    replica: SingleServer
    sentinels: Sequence[SingleServer]

    @property
    def password(self) -> str:
        """The password of both Redis servers; the sentinels ask for none."""
        return self.first.password

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses of the sentinels."""
        return [(sentinel.host, sentinel.port) for sentinel in self.sentinels]

    @property
    def url(self) -> str:
        """The address of a store, with the password: whichever is the master."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"redis+sentinel://:{self.password}@{hosts}/{MONITORED}/0"

    @property
    def master(self) -> SingleServer:
        """The server that the first sentinel names as the master."""
        at = _at(_ask(self.sentinels[0]))
        return next(each for each in (self.first, self.replica) if (each.host, each.port) == at)

    def is_whole(self) -> bool:
        """Return whether one of the two copies the other without a lag, and all sentinels agree."""
        import redis

        try:
            masters = [_ask(each) for each in self.sentinels]
            if len({_at(one) for one in masters}) != 1:
                return False
            for server in (self.first, self.replica):
                with redis.Redis(server.host, server.port, password=self.password) as client:
                    told = client.info("replication")
                if told["role"] == "master":
                    copy = told.get("slave0", {})
                    is_synced = copy.get("state") == "online" and copy.get("lag", 9) <= 1
                    if _at(masters[0]) != (server.host, server.port) or not is_synced:
                        return False
                elif told["master_link_status"] != "up":
                    return False
        except (redis.RedisError, OSError):
            return False
        return all(_knows_all(each) for each in self.sentinels)

    def restart(self) -> None:
        """Start all that does not run."""
        for server in (self.first, self.replica, *self.sentinels):
            server.start()


def redis_with_replica(make: MakeServer) -> RedisWithReplica:
    """Start them, and wait until the sentinels know each other and the replica."""
    first = make("redis", persistence="always")
    replica = make("redis", persistence="always", master=first)
    sentinels = [make("sentinel", master=first, monitors=MONITORED) for _ in range(SENTINELS)]
    for sentinel in sentinels:
        wait_until(lambda: _knows_all(sentinel), "the sentinels know each other")  # noqa: B023
    return RedisWithReplica(first, replica, sentinels)


def wait_until(
    condition: Callable[[], bool], what: str, *, moves: Callable[[], object] = lambda: None
) -> None:
    """Wait for a condition. moves: as in `Patience`. Raises LocalFault when nothing moves any more."""
    patience = Patience(moves)
    while not condition():
        if why := patience.spent():
            raise LocalFault(f"{why}: {what}")
        time.sleep(POLL_S)


def _knows_all(sentinel: SingleServer) -> bool:
    known = _ask(sentinel)
    return bool(known["num-slaves"] == 1 and known["num-other-sentinels"] == SENTINELS - 1)


def _at(master: dict[str, Any]) -> tuple[str, int]:
    return str(master["ip"]), int(master["port"])


def _ask(sentinel: SingleServer) -> dict[str, Any]:
    import redis

    with redis.Redis(sentinel.host, sentinel.port, decode_responses=True) as client:
        known: dict[str, Any] = client.sentinel_master(MONITORED)
    return known
