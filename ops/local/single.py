"""One server of a store or database, outside of a cluster, which tests and the bench start and break.

server = SingleServer(layout_in(folder, "postgresql", host="127.0.0.1"), folder)
server.start()
server.kill(); server.restart(); server.freeze(); server.thaw()
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from messagebus.secret import Secret
from ops.errors import LocalFault
from ops.local import preflight, process, servers
from ops.local.layout import Server
from ops.local.parts import Part, server_part
from ops.run.waiting import Patience

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


def wait_until(
    condition: Callable[[], bool], what: str, *, moves: Callable[[], object] = lambda: None
) -> None:
    """Wait for a condition. moves: as in `Patience`. Raises LocalFault when nothing moves any more."""
    patience = Patience(moves)
    while not condition():
        if why := patience.spent():
            raise LocalFault(f"{why}: {what}")
        time.sleep(POLL_S)
