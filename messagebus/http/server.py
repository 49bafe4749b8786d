"""HTTP server of the agent, the gateway and the monitor: uvicorn, with bounds before any login."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from messagebus.http.connections import Bounded, Bounds, Connection, Connections
from messagebus.http.listening import BACKLOG, Handshake, Tls

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["ACCEPTED_AT_ONCE", "STOP_TIMEOUT_S", "Server"]

STOP_TIMEOUT_S = 2
# Answers that are open for so long after a stop are ended: streams, and requests that wait for news.
OPEN_S = 1.0
KEEP_ALIVE_S = 75
# Number of accepts that Python 3.11 tries in a row; it logs each failure when descriptors run out.
ACCEPTED_AT_ONCE = 16

Protocol = Callable[..., asyncio.Protocol]


class Server(uvicorn.Server):
    """A server on a listening socket, which leaves signals to its service.

    is_fast: parse by httptools and serve WebSockets, too; else h11 alone, which keeps a process small.
    connections: those that are open.
    """

    def __init__(
        self,
        application: ASGIApp,
        listener: socket.socket,
        bounds: Bounds,
        *,
        tls: Tls | None = None,
        is_fast: bool = False,
    ) -> None:
        self.connections = Connections(bounds)
        http: Protocol = functools.partial(_H11, self.connections)
        sockets: Any = "none"
        if is_fast:
            from messagebus.http import fast

            http = functools.partial(fast.HttpTools, self.connections)
            sockets = functools.partial(fast.WebSockets, self.connections)
        if tls is not None:
            http = functools.partial(_with_tls, self.connections, tls, http)
        settings: dict[str, Any] = {"http": http, "ws": sockets}
        self._answers = _Answers(application)
        super().__init__(
            uvicorn.Config(
                self._answers,
                **settings,
                log_config=None,
                log_level="error",
                # It would be a line for each client and minute, and one for each bad request.
                access_log=False,
                lifespan="off",
                loop="none",
                proxy_headers=False,
                server_header=False,
                h11_max_incomplete_event_size=bounds.header_bytes_max,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=STOP_TIMEOUT_S,
                backlog=ACCEPTED_AT_ONCE,
            )
        )
        self._listener = listener
        self.begun = asyncio.Event()

    async def run(self) -> None:  # type: ignore[override]
        """Serve until `stop`."""
        await self.serve(sockets=[self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._listener.listen(BACKLOG)  # uvicorn's backlog is how many are accepted at once, too
        self.begun.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def stop(self) -> None:
        """End, once open answers are written, or after OPEN_S."""
        if not self.should_exit:
            asyncio.get_running_loop().call_later(OPEN_S, self._answers.end)
        self.should_exit = True


class _Answers:
    """The answers of an application that are open. `end` ends each as HTTP does, so nobody logs a failure."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application
        self._open = set[asyncio.Task[Any]]()
        self._is_ending = False

    def end(self) -> None:
        self._is_ending = True
        for task in self._open:
            task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        begun = False

        async def noting(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._application(scope, receive, noting)
        except asyncio.CancelledError:
            if not self._is_ending:
                raise
            task.uncancel()
            if not begun:
                headers = [(b"content-length", b"0"), (b"retry-after", b"1")]
                await send({"type": "http.response.start", "status": 503, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._open.discard(task)


def _with_tls(connections: Connections, tls: Tls, http: Protocol, **how: Any) -> asyncio.Protocol:
    return Handshake(connections, tls, http(**how))


class _H11(Bounded, H11Protocol):
    """One connection, parsed by h11, which bounds the bytes of a head while they arrive."""

    def __init__(self, connections: Connections, **how: Any) -> None:
        super().__init__(**how)
        self._connection = Connection(connections)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connection.opened(transport)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        self._connection.rests()  # uvicorn's keep-alive begins
        super().on_response_complete()
        if self.conn.their_state is not h11.IDLE:
            self._look()

    def _look(self) -> None:
        state = self.conn.their_state
        if state in (h11.IDLE, h11.SEND_BODY):
            self._connection.awaits(in_head=state is h11.IDLE)
        else:
            self._connection.works()
