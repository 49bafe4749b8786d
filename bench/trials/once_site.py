"""The servers and programs of `bench.trials.once`, and the faults that befall them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import redis

from bench.faults import close_connections
from bench.processes import wait_until
from bench.trials import once_app
from bench.trials.once_judge import STORE_AWAY, Happening
from bench.trials.once_processes import Fleet
from messagebus import BusConfig, declare
from messagebus.commands.outbox import SETTING as OUTBOX_SETTING
from messagebus.recording.manifest import Incident
from ops.local.cluster import LocalCluster
from ops.local.single import (
    RedisWithReplica,
    SingleServer,
    layout_in,
    redis_with_replica,
)

WHOLE_WITHIN_S = 120.0
CONNECT_S = 10
DOWN_S, FROZEN_S = 2.0, 4.0
# Long enough that the claims of a worker run out.
STANDS_S = 1.5 * once_app.LEASE_S

# The controls are killed with those of ours whose work they do.
APPLICATION, RELAY, WORKER, POLLER, CONSUMER = (
    *("application", "relay", "worker"),
    *("hand-poller", "hand-consumer"),
)
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    APPLICATION: ("bench.trials.once_app",),
    RELAY: ("messagebus", "outbox", "relay"),
    WORKER: ("messagebus", "worker", "bench.trials.once_app:app", "--grace-s", "5"),
    POLLER: ("bench.trials.once_naive", "poller"),
    CONSUMER: ("bench.trials.once_naive", "consumer"),
}
NUMBERS: Mapping[str, int] = {APPLICATION: 2, RELAY: 2, WORKER: 3, POLLER: 1, CONSUMER: 1}


class Site:
    """All that runs. counts: faults by kind. incidents: those of brokers, for audits."""

    def __init__(self, cluster: LocalCluster, folder: Path, *, say: Callable[[str], None]) -> None:
        self.cluster, self.folder, self._say = cluster, folder, say
        self._servers: list[SingleServer] = []
        self.fleet = Fleet(folder / "logs", PROGRAMS, NUMBERS, setting=once_app.PROCESS)
        self._store_away: list[Happening] = []
        self.incidents: list[Incident] = []
        self.counts: Counter[str] = Counter()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the servers and make the tables; end everything at the exit."""
        try:
            self._begin()
            yield
        finally:
            self.fleet.end()
            for server in self._servers:
                server.kill()

    def _begin(self) -> None:
        self.database = self._make("postgresql")
        self.redis: RedisWithReplica = redis_with_replica(self._make)
        with self.connected() as connection:
            for statement in once_app.DDL:
                connection.execute(statement.encode())
        declare(
            BusConfig.from_env(self.cluster.client_env()),
            [*once_app.PLACES, *once_app.PLACES_OF_CONTROLS],
            timeout_s=WHOLE_WITHIN_S,
        )

    def _make(
        self,
        kind: str,
        *,
        persistence: str = "always",
        master: SingleServer | None = None,
        monitors: str = "",
    ) -> SingleServer:
        number = len(self._servers) + 1
        layout = layout_in(
            self.folder / "servers",
            kind,
            host=f"{self.cluster.layout.network}.{200 + number}",
            name=f"{kind}{number}",
            persistence=persistence,
            master=master,
            monitors=monitors,
        )
        server = SingleServer(layout, self.folder / "servers")
        self._servers.append(server)
        server.start()
        return server

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection]:
        """Give a connection in autocommit mode; a server that is slow to answer is asked again."""
        until_s = time.monotonic() + WHOLE_WITHIN_S
        while True:
            try:
                connection = psycopg.connect(
                    self.database.url, connect_timeout=CONNECT_S, autocommit=True
                )
            except psycopg.OperationalError:
                if time.monotonic() > until_s:
                    raise
                time.sleep(once_app.AGAIN_S)
            else:
                break
        with connection:
            yield connection

    def copies(self) -> dict[str, int]:
        """Return queue -> number of its messages, over all brokers, of what our own handlers consume."""
        names = tuple(f"mb.sub/{place}" for place in once_app.PLACES if place != once_app.BY_HAND)
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
            once_app.FOLDER: str(self.folder),
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

    # -- servers

    def fail_over(self) -> None:
        """Kill Redis's master; return when its replica has taken over and has a replica again."""
        wait_until(self.redis.is_whole, within_s=WHOLE_WITHIN_S, what="Redis has its replica")
        master = self.redis.master
        began_ns, told = time.monotonic_ns(), _replicated(master)["master_repl_offset"]
        replica = self.redis.replica if master is self.redis.first else self.redis.first
        # So what was stored before began_ns cannot be lost.
        wait_until(
            lambda: _replicated(replica).get("slave_repl_offset", 0) >= told,
            within_s=WHOLE_WITHIN_S,
            what="the replica has what the master was told",
        )
        master.kill()
        wait_until(
            lambda: self.redis.master is not master,
            within_s=WHOLE_WITHIN_S,
            what="the sentinels have made the replica the master",
        )
        self._store_away.append(Happening(STORE_AWAY, "", began_ns, time.monotonic_ns()))
        master.start()
        wait_until(self.redis.is_whole, within_s=WHOLE_WITHIN_S, what="Redis has a replica again")

    def restart_database(self) -> None:
        self.database.kill()
        time.sleep(DOWN_S / 2)
        self.database.start()

    def break_broker(self, how: str, name: str) -> None:
        """Kill, freeze or restart a broker, or cut its connections; wait until it takes publishes again."""
        cluster, at_ns = self.cluster, time.monotonic_ns()
        match how:
            case "kill":
                cluster.kill(name)
                time.sleep(DOWN_S)
                cluster.start(name)
            case "freeze":
                cluster.freeze(name)
                time.sleep(FROZEN_S)
                cluster.thaw(name)
            case "restart":
                cluster.stop(name)
                cluster.start(name)
            case "cut":
                close_connections(cluster, name)
        cluster.wait_ready(within_s=WHOLE_WITHIN_S)
        kind = how if how in ("kill", "freeze") else "cut"
        self.incidents.append(Incident(kind, cluster.node(name).broker, at_ns, time.monotonic_ns()))

    def restart_part(self, name: str, *, agent: bool = False) -> None:
        """Kill HAProxy or an agent, and start it again."""
        self.cluster.kill(name, agent=agent)
        time.sleep(DOWN_S / 2)
        self.cluster.start(name, agent=agent)
        self.cluster.wait_ready(within_s=WHOLE_WITHIN_S)

    def do(self, kind: str, number: int) -> None:
        """Do one fault of FAULTS. number: chooses the broker or process. Raises BenchError, LocalFault."""
        began_s = time.monotonic()
        FAULTS[kind](self, number)
        self.counts[kind] += 1
        self._say(f"  {kind}: whole again after {time.monotonic() - began_s:.1f} s")


def _replicated(server: SingleServer) -> Mapping[str, Any]:
    with redis.Redis(server.host, server.port, password=server.password) as client:
        found: Mapping[str, Any] = client.info("replication")
    return found


def _of_broker(how: str) -> Callable[[Site, int], None]:
    return lambda site, number: site.break_broker(how, _name(site, number))


def _name(site: Site, number: int) -> str:
    return site.cluster.names[number % len(site.cluster.names)]


SERVER_FAULTS: Mapping[str, Callable[[Site, int], None]] = {
    "broker killed": _of_broker("kill"),
    "broker frozen": _of_broker("freeze"),
    "broker restarted": _of_broker("restart"),
    "connections cut": _of_broker("cut"),
    "HAProxy killed": lambda site, _: site.restart_part(site.cluster.layout.front.name),
    "agent killed": lambda site, number: site.restart_part(_name(site, number), agent=True),
    "Redis failed over": lambda site, _: site.fail_over(),
    "PostgreSQL killed": lambda site, _: site.restart_database(),
}
PROCESS_FAULTS: Mapping[str, Callable[[Site, int], None]] = {
    "application killed": lambda site, number: site.fleet.kill([APPLICATION], number),
    "relay killed": lambda site, number: site.fleet.kill([RELAY, POLLER], number),
    "worker killed": lambda site, number: site.fleet.kill([WORKER, CONSUMER], number),
    "worker frozen": lambda site, number: site.fleet.freeze(
        [WORKER, CONSUMER], number, lasts_s=STANDS_S
    ),
}
FAULTS = {**SERVER_FAULTS, **PROCESS_FAULTS}
