"""Connections parsed by httptools, and WebSockets: for the gateway.

httptools gathers a field of a head without a bound and tells of it when it is whole, so the bytes are counted
as they arrive.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode

from messagebus.http.allowance import Places
from messagebus.http.connections import NAMES, ROOM, Bounded, Connection, Connections

__all__ = ["HttpTools", "WebSockets"]


class HttpTools(Bounded, HttpToolsProtocol):
    """One connection."""

    def __init__(self, connections: Connections, **how: Any) -> None:
        super().__init__(**how)
        self._connection = Connection(connections)
        self._header_bytes_max = connections.bounds.header_bytes_max
        self._in_head, self._is_whole, self._is_upgraded = True, True, False
        # Of the fields that the parser has passed on, and of what it keeps to itself.
        self._header_bytes = self._kept_bytes = 0
        self._names: tuple[str, ...] = ()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._names = names_in(transport.get_extra_info("peercert"))
        self._connection.opened(transport)

    def data_received(self, data: bytes) -> None:
        self._kept_bytes += len(data)
        super().data_received(data)
        if self._kept_bytes > self._header_bytes_max:
            self._connection.close("a head with too many bytes")
        elif not self._is_whole:
            self._connection.awaits(in_head=self._in_head)
        elif self.timeout_keep_alive_task is None and self._is_idle():
            # What came begins no request, and has ended uvicorn's own limit.
            self._connection.awaits()

    def _is_idle(self) -> bool:
        return not self._is_upgraded and (self.cycle is None or self.cycle.response_complete)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes, self._in_head, self._is_whole = 0, True, False
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
        self._in_head, self._kept_bytes, self._header_bytes = False, 0, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._kept_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_whole, self._kept_bytes = True, 0
        self._connection.works()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._is_whole and not self.pipeline:
            self._connection.rests()  # uvicorn's keep-alive begins
        super().on_response_complete()

    def handle_websocket_upgrade(self) -> None:
        self._connection.lost()  # the socket takes its place
        self._is_upgraded = self._is_whole = True
        super().handle_websocket_upgrade()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self._header_bytes_max:
            self._connection.close("a head with too many bytes")


def names_in(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the names that a verified certificate is for: its alternative names, and its common name."""
    if not certificate:
        return ()
    names = [
        value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI")
    ]
    subject = [part for parts in certificate.get("subject", ()) for part in parts]
    return (*names, *(value for kind, value in subject if kind == "commonName"))


class WebSockets(Bounded, WebSocketsSansIOProtocol):
    """One WebSocket. Pings find out whether its client lives; everything that arrives shows it, too.

    A message has as much time to arrive as the body of a request.
    """

    def __init__(self, connections: Connections, **how: Any) -> None:
        super().__init__(**how)
        self._connection = Connection(connections)
        self._heard_s = 0.0
        # Bytes of the message that is not whole. They take places of `_room`.
        self._unfinished_bytes, self._room = 0, Places(2 * self.config.ws_max_size)
        self._got_whole = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._connection.opened(self.transport):
            self._connection.works()

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if self.response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            return
        scope: Any = self.scope
        scope[ROOM] = self._take_room
        if names := names_in(self.transport.get_extra_info("peercert")):
            scope[NAMES] = names

    def _take_room(self, room: Places) -> None:
        self._holds(0)
        self._room = room

    def data_received(self, data: bytes) -> None:
        self._heard_s, self._got_whole = self.loop.time(), False
        super().data_received(data)
        if self.close_sent:
            return
        unfinished = len(self.conn.reader.buffer)
        if self.frames:
            unfinished = len(data) + (0 if self._got_whole else self._unfinished_bytes)
        if self._got_whole or not unfinished or self.read_paused:
            self._connection.works()
        if unfinished and not self.read_paused:
            self._connection.awaits(in_head=False)
        if not self._holds(unfinished):
            self._refuse(CloseCode.TRY_AGAIN_LATER, "too many bytes of messages arrive at once")

    def _refuse(self, code: CloseCode, reason: str) -> None:
        """Close; what still comes is read and dropped, since the client would not see the code otherwise."""
        self._holds(0)
        self._connection.works()
        self.conn.fail(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.close)

    def send_receive_event_to_app(self) -> None:
        self._got_whole = True
        super().send_receive_event_to_app()

    def _holds(self, size: int) -> bool:
        """Hold so many bytes. False: there is no room for them."""
        more = size - self._unfinished_bytes
        if more > 0 and not self._room.enter(more):
            return False
        self._room.leave(max(0, -more))
        self._unfinished_bytes = size
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._holds(0)
        super().connection_lost(exc)

    def keepalive_timeout(self) -> None:
        # The answer to a ping waits behind what is not read yet.
        if self.read_paused or self._heard_s >= self.ping_sent_at:
            self.pong_timer = self.pending_ping_payload = None
            self.schedule_ping()
        else:
            super().keepalive_timeout()
