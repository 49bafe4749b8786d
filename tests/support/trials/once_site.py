"""The servers and programs of `once`, and the faults that befall them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import redis

from bench.faults import close_connections
from bench.processes import wait_until
from messagebus import BusConfig, declare
from messagebus.commands.outbox import SETTING as OUTBOX_SETTING
from ops.local.cluster import LocalCluster
from tests.support.killed import Killed
from tests.support.servers import MakeServer, RedisWithReplica, SingleServer, redis_with_replica
from tests.support.trials import once_app
from tests.support.trials.once_judge import KILLED, STOOD, STORE_AWAY, Happening

WHOLE_WITHIN_S = 300.0
CONNECT_S, LOOK_S = 10, 0.1
DOWN_S, FROZEN_S = 2.0, 4.0
# Long enough that the claims of a worker run out.
STANDS_S = 1.5 * once_app.LEASE_S
APPLICATION, RELAY, WORKER = "application", "relay", "worker"
# Kind -> number of its processes, arguments of ``python -m``.
PROGRAMS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    APPLICATION: (2, ("tests.support.trials.once_app",)),
    RELAY: (2, ("messagebus", "outbox", "relay")),
    WORKER: (3, ("messagebus", "worker", "tests.support.trials.once_app:app", "--grace-s", "5")),
}


class Fleet:
    """Programs of several kinds, which are killed and frozen, and started again as a supervisor would.

    Faults come from one thread at a time. programs: as PROGRAMS. setting: environment variable that gets the
    name of a start, such as worker-1.3. happened: what befell processes, for a judge.
    """

    def __init__(
        self, folder: Path, programs: Mapping[str, tuple[int, tuple[str, ...]]], *, setting: str
    ) -> None:
        self._folder, self._programs, self._setting = folder, programs, setting
        self._is_ending, self._lock = threading.Event(), threading.RLock()
        self.all: dict[str, list[Killed]] = {}
        self.happened: list[Happening] = []
        self.ended_alone = 0
        """Processes that ended without a fault, and were started again."""

    def start(self, env: Mapping[str, str]) -> None:
        """Start all. env: whole environment of each."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for kind, (count, argv) in self._programs.items():
            self.all[kind] = [
                Killed(
                    ["-m", *argv],
                    env,
                    self._folder / f"{kind}-{number + 1}.log",
                    setting=self._setting,
                )
                for number in range(count)
            ]
        threading.Thread(target=self._keep_alive, daemon=True).start()

    def kill(self, kind: str, number: int) -> None:
        """Kill a process of a kind, and start it again. number: chooses it."""
        with self._lock:
            process = self._chosen(kind, number)
            name, began_ns = process.name, time.monotonic_ns()
            process.kill()
            self.happened.append(Happening(KILLED, name, began_ns, time.monotonic_ns()))

    def freeze(self, kind: str, number: int, *, lasts_s: float) -> None:
        """Let a process of a kind stand for so long."""
        with self._lock:
            process, began_ns = self._chosen(kind, number), time.monotonic_ns()
            name = process.name
            process.send(signal.SIGSTOP)
        self._is_ending.wait(lasts_s)
        with self._lock:
            process.send(signal.SIGCONT)
            self.happened.append(Happening(STOOD, name, began_ns, time.monotonic_ns()))

    def stop(self, kinds: Collection[str]) -> None:
        """End all processes of these kinds for good, in order."""
        with self._lock:
            for process in [each for kind in kinds for each in self.all.pop(kind)]:
                process.stop()

    def end(self) -> None:
        """Kill everything, whatever its state; the last call."""
        self._is_ending.set()
        with self._lock:
            for processes in self.all.values():
                for process in processes:
                    process.end()

    def _chosen(self, kind: str, number: int) -> Killed:
        return self.all[kind][number % len(self.all[kind])]

    def _keep_alive(self) -> None:
        """Start again what ends by itself, such as a relay that finds no database at its start."""
        before_ns = time.monotonic_ns()
        while not self._is_ending.wait(LOOK_S):
            with self._lock:
                now_ns = time.monotonic_ns()
                for process in [each for some in self.all.values() for each in some]:
                    name = process.name
                    # What `end` has just killed stays dead.
                    if not self._is_ending.is_set() and process.revive():
                        self.happened.append(Happening(KILLED, name, before_ns, now_ns))
                        self.ended_alone += 1
                before_ns = now_ns


class Site:
    """All that runs. make: makes servers, which its owner ends. counts: faults by kind."""

    def __init__(
        self, cluster: LocalCluster, folder: Path, make: MakeServer, say: Callable[[str], None]
    ) -> None:
        self.cluster, self._folder, self._say = cluster, folder, say
        self.fleet = Fleet(folder / "logs", PROGRAMS, setting=once_app.PROCESS)
        self._store_away: list[Happening] = []
        self.counts: Counter[str] = Counter()
        self.database = make("postgresql", persistence="always")
        self.redis: RedisWithReplica = redis_with_replica(make)
        with self.connected() as connection:
            for statement in once_app.DDL:
                connection.execute(statement.encode())
        bus = BusConfig.from_env(cluster.client_env())
        declare(bus, [*once_app.TABLES.values()], timeout_s=WHOLE_WITHIN_S)

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection]:
        """Give a connection in autocommit mode; a server that is slow to answer is asked again."""
        found: list[psycopg.Connection] = []

        def connects() -> bool:
            try:
                url = self.database.url
                found.append(psycopg.connect(url, connect_timeout=CONNECT_S, autocommit=True))
            except psycopg.OperationalError:
                return False
            return True

        wait_until(connects, within_s=WHOLE_WITHIN_S, what="PostgreSQL answers")
        with found[0] as connection:
            yield connection

    def copies(self) -> dict[str, int]:
        """Return queue -> number of its messages, over all brokers, of what our handlers consume."""
        names = tuple(f"mb.sub/{place}" for place in once_app.TABLES.values())
        found: Counter[str] = Counter()
        for name in self.cluster.names:
            with self.cluster.management(name) as management:
                queues = management.get("/api/queues?columns=name,messages").raise_for_status()
            for each in queues.json():
                if each["name"] in names or each["name"].startswith("mb.delay/"):
                    found[each["name"]] += each.get("messages", 0)
        return dict(+found)

    def start(self, *, total: int, seconds: float, defect: str = "") -> None:
        """Start all programs; orders are made from now on. defect: one of `once_app.DEFECTS`, planted."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith("MESSAGEBUS_")}
        ours = {
            OUTBOX_SETTING: self.database.url,
            "MESSAGEBUS_PUBLISHER_REDUNDANT": f"{once_app.ORDERS},{once_app.BILLED}",
            once_app.DATABASE: self.database.url,
            once_app.STORE: self.redis.url,
            once_app.FOLDER: str(self._folder),
            once_app.TOTAL: str(total),
            once_app.SECONDS: str(seconds),
            once_app.BEGAN_NS: str(time.monotonic_ns()),
            once_app.DEFECT: defect,
        }
        self.fleet.start(plain | self.cluster.client_env() | ours)

    @property
    def happened(self) -> list[Happening]:
        """Return the events of processes and of the store, for the judge."""
        return [*self.fleet.happened, *self._store_away]

    def fail_over(self) -> None:
        """Kill Redis's master; return when its replica has taken over and has a replica again."""
        self._wait(self.redis.is_whole, "Redis has its replica")
        master = self.redis.master
        began_ns, stored = time.monotonic_ns(), _replicated(master)["master_repl_offset"]
        replica = self.redis.replica if master is self.redis.first else self.redis.first
        # So what was stored before began_ns cannot be lost.
        self._wait(
            lambda: _replicated(replica).get("slave_repl_offset", 0) >= stored,
            "the replica has what the master has stored",
        )
        master.kill()
        self._wait(
            lambda: self.redis.master is not master,
            "the sentinels have made the replica the master",
        )
        self._store_away.append(Happening(STORE_AWAY, "", began_ns, time.monotonic_ns()))
        master.start()
        self._wait(self.redis.is_whole, "Redis has a replica again")

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, within_s=WHOLE_WITHIN_S, what=what)

    def restart_database(self) -> None:
        self.database.kill()
        time.sleep(DOWN_S / 2)
        self.database.start()

    def restart(self, name: str, *, agent: bool = False, down_s: float = DOWN_S / 2) -> None:
        """Kill a broker, HAProxy or an agent, and start it again."""
        self.cluster.kill(name, agent=agent)
        time.sleep(down_s)
        self.cluster.start(name, agent=agent)

    def freeze(self, name: str) -> None:
        self.cluster.freeze(name)
        time.sleep(FROZEN_S)
        self.cluster.thaw(name)

    def stop_and_start(self, name: str) -> None:
        self.cluster.stop(name)
        self.cluster.start(name)

    def do(self, kind: str, number: int) -> None:
        """Do one fault of FAULTS. number: chooses the broker or process. Raises BenchError, LocalFault."""
        began_s, names = time.monotonic(), self.cluster.names
        if kind in PROCESS_FAULTS:
            PROCESS_FAULTS[kind](self, number)
        else:
            SERVER_FAULTS[kind](self, names[number % len(names)])
            self.cluster.wait_ready(within_s=WHOLE_WITHIN_S)
        self.counts[kind] += 1
        self._say(f"  {kind}: whole again after {time.monotonic() - began_s:.1f} s")


def _replicated(server: SingleServer) -> Mapping[str, Any]:
    with redis.Redis(server.host, server.port, password=server.password) as client:
        found: Mapping[str, Any] = client.info("replication")
    return found


SERVER_FAULTS: Mapping[str, Callable[[Site, str], object]] = {
    "broker killed": lambda site, name: site.restart(name, down_s=DOWN_S),
    "broker frozen": Site.freeze,
    "broker restarted": Site.stop_and_start,
    "connections cut": lambda site, name: close_connections(site.cluster, name),
    "HAProxy killed": lambda site, _: site.restart(site.cluster.layout.front.name),
    "agent killed": lambda site, name: site.restart(name, agent=True),
    "Redis failed over": lambda site, _: site.fail_over(),
    "PostgreSQL killed": lambda site, _: site.restart_database(),
}
"""Kind -> what befalls a broker, or whatever its name says."""
PROCESS_FAULTS: Mapping[str, Callable[[Site, int], object]] = {
    "application killed": lambda site, number: site.fleet.kill(APPLICATION, number),
    "relay killed": lambda site, number: site.fleet.kill(RELAY, number),
    "worker killed": lambda site, number: site.fleet.kill(WORKER, number),
    "worker frozen": lambda site, number: site.fleet.freeze(WORKER, number, lasts_s=STANDS_S),
}
FAULTS = (*SERVER_FAULTS, *PROCESS_FAULTS)
