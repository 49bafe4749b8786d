"""The agent's HTTP server: uvicorn with bounds on connections before any login.

A request must arrive within REQUEST_WITHIN_S, headers and body together, or its connection is closed. A
connection on which none begins is closed too. There are fewer connections than descriptors.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import time
from collections.abc import Generator
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from messagebus.broker import Broker
from messagebus.errors import ConfigError
from messagebus.tls import TlsFiles

log = logging.getLogger("messagebus.agent")

STOP_TIMEOUT_S = 2
# Enough for the largest request, 4 MiB, over a slow line. HAProxy's own bound for headers is 5 s.
REQUEST_WITHIN_S = 10.0
# Number of accepts that Python 3.11 tries in a row; it logs each failure when descriptors run out.
ACCEPTED_AT_ONCE = 16
BACKLOG = 1_024
# For the broker's links, peers, files and the checks of balancers.
DESCRIPTORS_KEPT = 128
CONNECTIONS_MAX = 30_000
# One log line for all connections closed within this time.
TOLD_EVERY_S = 60.0


class _Protocol(H11Protocol):
    """One connection. It is closed when a request does not arrive in time."""

    _deadline: asyncio.TimerHandle | None = None
    closed, told_at_s = 0, 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > _connections_max():
            self._close("there are too many")
        else:
            self._await_request()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._await_request()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._forget()

    def on_response_complete(self) -> None:
        self._forget()  # uvicorn's keep-alive has begun
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        self._deadline = self.loop.call_later(REQUEST_WITHIN_S, self._close, "no request in time")

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self, why: str) -> None:
        self.transport.abort()
        kind = type(self)
        kind.closed += 1
        if time.monotonic() - kind.told_at_s >= TOLD_EVERY_S or not kind.told_at_s:
            log.warning(
                "connections closed count=%d last=%s reason=%r", kind.closed, self.client, why
            )
            kind.closed, kind.told_at_s = 0, time.monotonic()


def _connections_max() -> int:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    bound = CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else soft - DESCRIPTORS_KEPT
    return max(1, min(CONNECTIONS_MAX, bound))


# The access log would be a line per client and minute, and one for each bad request; h11 alone keeps the
# agent small.
_UVICORN: dict[str, Any] = {
    "log_config": None,
    "log_level": "error",
    "access_log": False,
    "lifespan": "off",
    "loop": "asyncio",
    "http": _Protocol,
    "ws": "none",
    "server_header": False,
    "timeout_keep_alive": 75,
    "timeout_graceful_shutdown": STOP_TIMEOUT_S,
    "backlog": ACCEPTED_AT_ONCE,
}


class Server(uvicorn.Server):
    """A server that leaves signals to the service. tls: clients show a certificate of our authority."""

    def __init__(self, application: ASGIApp, tls: TlsFiles | None) -> None:
        settings = dict(_UVICORN)
        if tls is not None:
            settings["ssl_context_factory"] = lambda _config, _default: tls.server_context()
        super().__init__(uvicorn.Config(application, **settings))

    async def run_on(self, listener: socket.socket) -> None:
        """Serve until `stop`."""
        await self.serve(sockets=[listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)  # uvicorn's backlog is how many are accepted at once, too

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def stop(self) -> None:
        self.should_exit = True


def listen(key: str, address: Broker) -> socket.socket:
    """Return a listening socket. Raises ConfigError, which begins with key."""
    host = address.host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is said: else 40 ms an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, address.port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as fault:
        listener.close()
        raise ConfigError(f"{key} {address}: {fault.strerror or fault}") from fault
    return listener
