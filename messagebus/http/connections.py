"""Bounds of a listener's connections: how many, from one address, and for how long.

Each counts before anybody has logged in. A connection *waits* while no whole request of it has arrived: its
time is limited, and it gives way to a new connection when there are too many. So a client that sends a
request at once is served while hundreds of others send nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
from dataclasses import dataclass

from messagebus.clock import LogLimit
from messagebus.http.allowance import SharedPlaces

__all__ = [
    *("NAMES", "ROOM", "Bounded", "Bounds", "Connection", "Connections"),
    *("connections_below_descriptors", "source_of"),
]

log = logging.getLogger("messagebus.http")

NAMES = "messagebus.names"
"""Entry of a request's scope: the names in its client's certificate."""

ROOM = "messagebus.room"
"""Entry of a WebSocket's scope: a function that takes the `Places` of its messages that are not whole."""

# For links to brokers, peers, files and other listeners of the process.
DESCRIPTORS_KEPT = 128
# One log line for all connections closed within this time.
LOG_EVERY_MS = 60_000
# Progress of a client that is sent more than it reads, in each `write_s`: 2 KiB a second.
WRITTEN_BYTES_MIN = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of one listener.

    connections_max: half of them may come from one source. head_s: time to the whole head of a request,
    and for the handshake of TLS. request_s: time from the head to the end of the body. header_bytes_max:
    bytes of a head, or of fields behind a body. write_s: time within which a client reads 64 KiB of what
    waits for it, or all of it.
    """

    connections_max: int
    head_s: float = 10.0
    request_s: float = 10.0
    header_bytes_max: int = 16 << 10
    write_s: float = 30.0


def connections_below_descriptors(most: int, *, kept: int = DESCRIPTORS_KEPT) -> int:
    """Return the number of connections that fits the limit of descriptors, with some kept; `most` at most."""
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(1, min(most, soft - kept))


def source_of(host: str) -> str:
    """Return the source that an address counts for: an IPv4 address, or a network of 64 bits of IPv6.

    One host commonly has all addresses of such a network.
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


class Connections:
    """All connections of one listener. refused: new ones without a place; evicted: those that gave way."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.refused = self.evicted = 0
        self._places = SharedPlaces(bounds.connections_max)
        self._sources: dict[Connection, str] = {}
        # The one that has waited longest first; of all, and of each source.
        self._waiting: dict[Connection, None] = {}
        self._waiting_of: dict[str, dict[Connection, None]] = {}
        self._closed, self._lines = 0, LogLimit(LOG_EVERY_MS)

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, connection: Connection, source: str) -> bool:
        """Take a place; the connection waits. False: there is none, and no waiting one that gives way."""
        if not self._places.enter(source):
            is_of_all = self._places.has(source)
            waiting = self._waiting if is_of_all else self._waiting_of.get(source, {})
            oldest = next(iter(waiting), None)
            if oldest is None:
                self.refused += 1
                return False
            self.evicted += 1
            self.leave(oldest)
            oldest.close("there are too many")
            self._places.enter(source)
        self._sources[connection] = source
        self.waits(connection)
        return True

    def end(self) -> None:
        """Abort all connections: their listener ends. Their loop must turn once more."""
        for connection in list(self._sources):
            connection.abort()

    def leave(self, connection: Connection) -> None:
        """Give the place back; once more does nothing."""
        self.works(connection)
        source = self._sources.pop(connection, None)
        if source is not None:
            self._places.leave(source)

    def waits(self, connection: Connection) -> None:
        """Note that a connection waits for a request from now on."""
        source = self._sources.get(connection)
        if source is not None:
            self._waiting[connection] = None
            self._waiting_of.setdefault(source, {})[connection] = None

    def works(self, connection: Connection) -> None:
        """Note that a whole request of a connection has arrived."""
        if connection not in self._waiting:
            return
        del self._waiting[connection]
        source = self._sources[connection]
        of_source = self._waiting_of[source]
        del of_source[connection]
        if not of_source:
            del self._waiting_of[source]

    def log_closed(self, source: str, why: str) -> None:
        """Count a connection that was closed, and log it; one line for all within LOG_EVERY_MS."""
        self._closed += 1
        if self._lines.allows():
            log.warning("connections closed count=%d last=%s reason=%r", self._closed, source, why)
            self._closed = 0


class Connection:
    """One connection: its place, the time of its request, the time of what is written to it."""

    __slots__ = (
        *("_all", "_bounds", "_deadline", "_in_head", "_loop", "_source", "_transport"),
        *("_unread", "_unread_bytes"),
    )

    def __init__(self, connections: Connections) -> None:
        self._all, self._bounds = connections, connections.bounds
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._in_head, self._unread_bytes, self._source = False, 0, ""

    def opened(self, transport: asyncio.Transport) -> bool:
        """Take a place and wait for a request. False: there is none, and the transport is aborted."""
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._source = source_of(peer[0]) if isinstance(peer, tuple) else ""
        if not self._all.enter(self, self._source):
            self.close("there are too many")
            return False
        self.awaits()
        return True

    def awaits(self, *, in_head: bool = True) -> None:
        """Limit the time of a request that is not whole, from the first such call on."""
        if self._deadline is not None:
            if in_head == self._in_head:
                return
            self._deadline.cancel()
        else:
            self._all.waits(self)
        self._in_head = in_head
        within_s = self._bounds.head_s if in_head else self._bounds.request_s
        self._deadline = self._loop.call_later(within_s, self.close, "no request in time")

    def works(self) -> None:
        """End that limit: a whole request has arrived."""
        self._forget()
        self._all.works(self)

    def rests(self) -> None:
        """Wait for another request, without a limit of its own."""
        self._forget()
        self._all.waits(self)

    def lost(self) -> None:
        """Give the place back, at the end of the connection."""
        self._forget()
        self.reads()
        self._all.leave(self)

    def lags(self) -> None:
        """Limit the time of what is written: the client does not read it as fast as it comes."""
        if self._unread is None and self._transport is not None:
            self._unread_bytes = self._transport.get_write_buffer_size()
            self._unread = self._loop.call_later(self._bounds.write_s, self._look)

    def reads(self) -> None:
        """End that limit."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def close(self, why: str) -> None:
        """Abort the connection and log it."""
        self.abort()
        self._all.log_closed(self._source, why)

    def abort(self) -> None:
        """End the connection at once."""
        self._forget()
        if self._transport is not None:
            self._transport.abort()

    def _look(self) -> None:
        before, self._unread = self._unread_bytes, None
        assert self._transport is not None
        if self._transport.get_write_buffer_size() > before - WRITTEN_BYTES_MIN:
            self.close("its client reads too slowly")
        else:
            self.lags()

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Bounded(asyncio.Protocol):
    """The protocol of one connection, before a class that parses: its end, and what its client reads late.

    _connection: set before the connection is made.
    """

    _connection: Connection

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.lost()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._connection.lags()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connection.reads()
