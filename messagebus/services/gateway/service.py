"""The life of a gateway: start, health, and a polite end at SIGTERM."""

# serving ─ SIGTERM ─▶ not ready, for drain_s: balancers leave ─▶ ending: pulls end, leases get grace_s
#                              stopped ◀─ readers, publishers and the admin port are closed ◀─┘
#
# Owners: `Pulls` has deliveries, `Publishers` the clients that publish, `People` who may do what;
# `Gateway` has the servers, and the tasks that close idle clients and take back what rights no longer
# cover.

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
from pathlib import Path

import uvloop
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from messagebus.clock import monotonic_ms
from messagebus.http.connections import Bounds, connections_below_descriptors
from messagebus.http.guard import Guard, ProgramsOnly, host_names, is_loopback
from messagebus.http.listening import Tls, listen, parse_listen
from messagebus.http.server import Server
from messagebus.services.gateway.clients import Bus, Publishers, RealBus
from messagebus.services.gateway.config import GatewayConfig
from messagebus.services.gateway.metrics import Metrics
from messagebus.services.gateway.peers import Peers
from messagebus.services.gateway.people import LOOK_EVERY_MS, People
from messagebus.services.gateway.problems import Problem
from messagebus.services.gateway.pulling import Pulls
from messagebus.services.gateway.pushing import Push
from messagebus.services.gateway.web import Parts, application
from messagebus.terminal import say
from messagebus.tls import TlsFiles

log = logging.getLogger("messagebus.gateway")

IDLE_EVERY_S = 5.0
HEAD_S = 10.0
ADMIN_CONNECTIONS_MAX = 64


class Gateway:
    """A gateway on the running loop. Raises ConfigError when it is made."""

    def __init__(self, config: GatewayConfig, bus: Bus | None = None) -> None:
        self._config = config
        bus = bus or RealBus(config.bus, config.publisher)
        people = People(
            config.tokens_file,
            bus_login=config.bus_login,
            anonymous=config.anonymous,
            limits=config.limits,
            now_ms=monotonic_ms(),
        )
        self.pulls = Pulls(bus, config.name, config.limits)
        self.metrics = Metrics(self.pulls)
        self._people = people
        self._publishers = Publishers(bus, people.refuse)
        self._ending = asyncio.Event()
        self._peers = Peers(config.peers)
        self._pushes = [Push(each, bus, self.metrics) for each in config.push]
        parts = Parts(
            config=config,
            bus=bus,
            people=people,
            publishers=self._publishers,
            pulls=self.pulls,
            metrics=self.metrics,
            peers=self._peers,
            ending=self._ending,
        )
        self._sockets = [listen("listen", config.listen)]
        try:
            self._sockets.append(listen("admin", config.admin))
        except Exception:
            self._sockets[0].close()
            raise
        limits = config.limits
        # Beside its own descriptors this port leaves those of the other.
        most = connections_below_descriptors(limits.connections_max) - ADMIN_CONNECTIONS_MAX
        bounds = Bounds(
            connections_max=max(1, min(limits.connections_max, most)),
            head_s=min(HEAD_S, limits.request_s),
            request_s=limits.request_s,
        )
        self._servers = [
            Server(application(parts), self._sockets[0], bounds, tls=_tls(config), is_fast=True),
            Server(self._admin(), self._sockets[1], Bounds(connections_max=ADMIN_CONNECTIONS_MAX)),
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._serving: list[asyncio.Task[None]] = []
        self._not_ready = ""

    @property
    def name(self) -> str:
        """Its name in leases."""
        return self._config.name

    @property
    def url(self) -> str:
        """The address of the service."""
        return _url(
            self._sockets[0].getsockname(), "https" if self._config.tls_cert_file else "http"
        )

    @property
    def admin_url(self) -> str:
        """The address of /livez, /readyz and /metrics."""
        return _url(self._sockets[1].getsockname(), "http")

    async def start(self) -> None:
        """Serve; returns when connections are taken. Raises ConfigError for a push that may not be."""
        try:
            await self._publishers.start()
            begun = [each.start() for each in self._pushes]
            for fault in await asyncio.gather(*begun, return_exceptions=True):
                if fault is not None:
                    raise fault
        except BaseException:
            for push in self._pushes:
                await push.stop()
            await self._publishers.stop()
            self._close()
            raise
        self.pulls.start()
        self._tasks.append(asyncio.create_task(self._close_idle()))
        self._tasks.append(asyncio.create_task(self._watch_rights()))
        self._serving = [asyncio.create_task(each.run()) for each in self._servers]
        for each in self._servers:
            await each.begun.wait()

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(IDLE_EVERY_S)
            await self._publishers.close_idle()

    async def _watch_rights(self) -> None:
        """Take from principals what is theirs no more, whether they send requests or not."""
        while True:
            await asyncio.sleep(LOOK_EVERY_MS / 1000)
            self._people.look(monotonic_ms())
            for principal in self._people.logins_in_use():
                with contextlib.suppress(Problem):  # one that is refused is over
                    await self._publishers.prove(principal)
            self.pulls.take_back(self._people.by_name())

    def not_ready(self) -> str:
        """Return why no balancer should send requests here; "" when it should."""
        if self._not_ready:
            return self._not_ready
        stats = self._publishers.own.stats()
        return "" if stats.broker else "no broker is connected"

    async def stop(self, drain_s: float | None = None, grace_s: float | None = None) -> str:
        """End politely. Returns what could not be finished, in words; "" for nothing."""
        drain_s = self._config.drain_s if drain_s is None else drain_s
        grace_s = self._config.grace_s if grace_s is None else grace_s
        self._not_ready = "this gateway ends"
        await asyncio.sleep(drain_s)
        self._ending.set()
        await self.pulls.drain(grace_s)
        for push in self._pushes:
            await push.stop()
        self._servers[0].stop()
        await asyncio.gather(self._serving[0])
        leases = await self.pulls.stop()
        await self._peers.close()
        publishes = await self._publishers.stop()
        self._servers[1].stop()
        await asyncio.gather(self._serving[1])
        for task in self._tasks:
            task.cancel()
        self._close()
        left = [(leases, "leases given back"), (publishes, "publishes without an end")]
        return ", ".join(f"{count} {what}" for count, what in left if count)

    def _close(self) -> None:
        for listener in self._sockets:
            listener.close()

    def _admin(self) -> Starlette:
        async def live(_request: Request) -> Response:
            return PlainTextResponse("live\n")

        async def ready(_request: Request) -> Response:
            why = self.not_ready()
            return PlainTextResponse(f"{why or 'ready'}\n", 503 if why else 200)

        async def metrics(_request: Request) -> Response:
            text = generate_latest(self.metrics.registry)
            return Response(text, media_type=CONTENT_TYPE_LATEST)

        host, _port = parse_listen(self._config.admin)
        guard = Guard(is_open=is_loopback(host), names=host_names(self._config.names))
        return Starlette(
            routes=[Route("/livez", live), Route("/readyz", ready), Route("/metrics", metrics)],
            middleware=[Middleware(ProgramsOnly, guard)],
        )


def _tls(config: GatewayConfig) -> Tls | None:
    if not config.tls_cert_file:
        return None
    files = TlsFiles(
        ca_file=config.tls_client_ca_file,
        cert_file=config.tls_cert_file,
        key_file=config.tls_key_file,
    )
    # A client that shows none may still have a token.
    return Tls(files, ssl.CERT_OPTIONAL if config.tls_client_ca_file else ssl.CERT_NONE)


def _url(address: tuple[str, int], scheme: str) -> str:
    host, port = address[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def serve_file(path: str | Path) -> int:
    """Run a gateway as a file says; see `serve`. Raises ConfigError."""
    return serve(GatewayConfig.from_file(path))


def serve(config: GatewayConfig) -> int:
    """Run a gateway until SIGTERM or SIGINT; a second signal ends it at once. Returns the exit code."""

    async def main() -> int:
        asked = asyncio.Event()
        loop = asyncio.get_running_loop()

        def ask() -> None:
            if asked.is_set():
                raise SystemExit(1)
            asked.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ask)
        gateway = Gateway(config)
        await gateway.start()
        say(f"gateway: serves on {gateway.url}", err=True)
        await asked.wait()
        left = await gateway.stop()
        say(f"gateway: ended{f': {left}' if left else ''}", err=True)
        return 1 if left else 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())
