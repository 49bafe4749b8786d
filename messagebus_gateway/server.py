"""HTTP servers of the gateway: uvicorn with httptools, and bounds on connections and slow requests."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Generator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from messagebus import Broker, ConfigError

__all__ = ["NAMES", "Server", "listen"]

NAMES = "messagebus.names"
"""Entry of a request's scope: the names in its client's certificate."""

HEADER_BYTES_MAX = 16 * 1024
BACKLOG = 1_024
KEEP_ALIVE_S = 75
STOP_S = 2
# A client that reads nothing for so long is cut off: else what it was sent would stay in memory for its life.
UNREAD_S = 30.0


def _bounded(request_s: float, connections_max: int) -> type[asyncio.Protocol]:
    """Return the protocol of one connection. request_s: for a request to arrive, headers and body."""

    class Bounded(HttpToolsProtocol):
        _deadline: asyncio.TimerHandle | None = None
        _header_bytes, _is_open, _in_head = 0, False, True
        _names: tuple[str, ...] = ()

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._names = _names_in(transport.get_extra_info("peercert"))
            if len(self.connections) > connections_max:
                transport.abort()
            else:
                self._await_request()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # Most requests arrive whole, and need no timer.
            if self._is_open and self._deadline is None:
                self._await_request()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._header_bytes, self._is_open, self._in_head = 0, True, True
            self._forget()
            if self._names:
                self.scope[NAMES] = self._names  # type: ignore[literal-required]

        def on_url(self, url: bytes) -> None:
            super().on_url(url)
            self._count(len(url))

        def on_header(self, name: bytes, value: bytes) -> None:
            # Fields behind a chunked body are no headers: no proxy before has seen them as such.
            if self._in_head:
                super().on_header(name, value)
            self._count(len(name) + len(value))

        def on_headers_complete(self) -> None:
            self._in_head = False
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._is_open = False
            self._forget()
            super().on_message_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _count(self, size: int) -> None:
            self._header_bytes += size
            if self._header_bytes > HEADER_BYTES_MAX:
                self.transport.abort()

        def _await_request(self) -> None:
            self._forget()
            self._deadline = self.loop.call_later(request_s, self.transport.abort)

        def _forget(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Bounded


def _names_in(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the names that a verified certificate is for: its alternative names, and its common name."""
    if not certificate:
        return ()
    names = [
        value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")
    ]
    subject = [part for parts in certificate.get("subject", ()) for part in parts]
    return (*names, *(value for kind, value in subject if kind == "commonName"))


class Server(uvicorn.Server):
    """A server on a listening socket, which leaves signals to the service. sockets: WebSockets, too."""

    def __init__(
        self,
        application: ASGIApp,
        listener: socket.socket,
        *,
        request_s: float,
        connections_max: int,
        tls_cert_file: str = "",
        tls_key_file: str = "",
        tls_client_ca_file: str = "",
        sockets: bool = False,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                log_config=None,
                log_level="error",
                access_log=False,
                lifespan="off",
                loop="none",
                http=_bounded(request_s, connections_max),
                ws="websockets-sansio" if sockets else "none",
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=STOP_S,
                backlog=BACKLOG,
                ssl_certfile=tls_cert_file or None,
                ssl_keyfile=tls_key_file or None,
                ssl_ca_certs=tls_client_ca_file or None,
                # Who shows none may still have a token.
                ssl_cert_reqs=ssl.CERT_OPTIONAL if tls_client_ca_file else ssl.CERT_NONE,
            )
        )
        self._listener = listener
        self.begun = asyncio.Event()

    async def run(self) -> None:  # type: ignore[override]
        """Serve until `should_exit` is set."""
        await self.serve(sockets=[self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def listen(key: str, address: str) -> socket.socket:
    """Return a listening socket; port 0 takes a free one. Raises ConfigError, which begins with key."""
    host, _, port = address.rpartition(":")
    if port != "0":
        where = Broker.parse(address)
        host, port = where.host, str(where.port)
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is said: else 40 ms a request.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Linux counts a window that stays closed, too. Each connection has it from its listener.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            unread_ms = round(UNREAD_S * 1000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
        listener.bind((host, int(port)))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as fault:
        listener.close()
        raise ConfigError(f"{key} {address}: {fault.strerror or fault}") from fault
    return listener
