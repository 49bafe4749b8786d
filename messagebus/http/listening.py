"""Listening sockets, and TLS on them."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Any

from messagebus.broker import Broker, parse_port
from messagebus.clock import whole_ms
from messagebus.errors import ConfigError
from messagebus.http.connections import Connection, Connections
from messagebus.tls import TlsFiles

__all__ = ["Handshake", "Tls", "listen", "parse_listen"]

log = logging.getLogger("messagebus.http")

BACKLOG = 1_024
# Linux ends a connection whose client has closed its window for so long, or does not answer at all.
UNREAD_S = 30.0


def parse_listen(text: str) -> tuple[str, int]:
    """Read ``HOST:PORT``, ``:PORT`` for all addresses, or ``[::1]:PORT``; port 0 is any free one.

    Returns the host without brackets, and the port. Raises ValueError.
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"{text!r}: HOST:PORT wanted")
    if host:
        Broker.parse(f"{host}:1")
    return host.strip("[]"), 0 if port == "0" else parse_port(port)


def listen(key: str, address: str) -> socket.socket:
    """Return a listening socket; see `parse_listen`. Raises ConfigError, which begins with key."""
    try:
        host, port = parse_listen(address)
    except ValueError as fault:
        raise ConfigError(f"{key}: {fault}") from None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is said: else 40 ms an answer.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Each connection has it from its listener.
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            unread_ms = whole_ms(UNREAD_S)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as fault:
        listener.close()
        raise ConfigError(f"{key} {address}: {fault.strerror or fault}") from fault
    return listener


class Tls:
    """TLS of one listener. Each connection uses the files as they are then: new ones need no restart.

    clients: ssl.CERT_REQUIRED, CERT_OPTIONAL or CERT_NONE of clients' certificates.
    """

    def __init__(self, files: TlsFiles, clients: ssl.VerifyMode = ssl.CERT_REQUIRED) -> None:
        """Read the files. Raises ConfigError."""
        self._files, self._clients = files, clients
        self._context = files.server_context(clients)
        self._fault = ""

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection; the last good one while the files are not good."""
        try:
            self._context, self._fault = self._files.server_context(self._clients), ""
        except ConfigError as fault:
            if str(fault) != self._fault:
                self._fault = str(fault)
                log.warning("certificates not read again reason=%r", self._fault)
        return self._context


class Handshake(asyncio.Protocol):
    """A connection until TLS is agreed on; it has a place and a limited time from its first moment.

    asyncio's own servers tell their protocol of a connection only when the handshake is over.
    """

    def __init__(self, connections: Connections, tls: Tls, inner: asyncio.Protocol) -> None:
        self._connection, self._tls, self._inner = Connection(connections), tls, inner
        self._within_s = connections.bounds.head_s
        self._early = bytearray()
        self._is_lost = False
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._connection.opened(transport):
            self._task = asyncio.get_running_loop().create_task(self._agree(transport))

    async def _agree(self, plain: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            over: Any = await loop.start_tls(
                plain,
                self,
                self._tls.context(),
                server_side=True,
                ssl_handshake_timeout=self._within_s,
            )
        except (OSError, TimeoutError):
            plain.abort()
            return
        finally:
            self._connection.lost()
        if self._is_lost or over is None:
            return
        self._inner.connection_made(over)
        over.set_protocol(self._inner)
        if self._early and not over.is_closing():
            self._inner.data_received(bytes(self._early))

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._connection.lost()
