"""HTTP server for health checks: on a thread of its own, so that it answers while the application cannot."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Collection
from http import HTTPStatus
from typing import NamedTuple

from messagebus.checks import raise_faults
from messagebus.errors import ConfigError
from messagebus.http.connections import Bounded, Bounds, Connection, Connections
from messagebus.http.guard import Guard, host_names, is_loopback, names_faults
from messagebus.http.listening import listen, parse_listen

__all__ = ["Answer", "Ask", "ProbeServer", "parse_address"]

log = logging.getLogger("messagebus.http")

# Probes come one by one; when there are more, one that sends nothing gives way.
CONNECTIONS_MAX = 32
HEAD_S, WRITE_S = 5.0, 5.0
HEAD_BYTES_MAX = 8 << 10
PATH_CHARS_MAX = 200  # in the log
TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """Response to one request. code: of HTTP."""

    code: int
    content_type: str
    body: bytes


Ask = Callable[[str], Answer]
"""Function from a path to its answer; called on the server's threads."""


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, ``:PORT`` for all addresses, or ``[::1]:PORT``. Raises ConfigError."""
    try:
        return parse_listen(text)
    except ValueError:
        raise ConfigError(f"health {text!r}: HOST:PORT wanted") from None


class ProbeServer:
    """HTTP server that listens until `close`. Raises ConfigError when it cannot.

    ask: may be replaced at any time. names: hosts by which it is called, beside addresses and names without a
    dot; empty: any name, unless it listens on a loopback address.
    """

    def __init__(
        self,
        address: tuple[str, int],
        ask: Ask,
        *,
        names: Collection[str] = (),
        head_s: float = HEAD_S,
        write_s: float = WRITE_S,
    ) -> None:
        raise_faults(names_faults(names))
        self.ask = ask
        host, port = address
        self._listener = listen("health", f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        bounds = Bounds(
            connections_max=2 * CONNECTIONS_MAX,  # of which one source has half
            head_s=head_s,
            header_bytes_max=HEAD_BYTES_MAX,
            write_s=write_s,
        )
        self._connections = Connections(bounds)
        self._guard = Guard(is_open=is_loopback(host), names=host_names(names))
        self._ending = asyncio.Event()
        self._under_way: dict[str, asyncio.Future[Answer]] = {}  # by path
        self._loop = asyncio.new_event_loop()
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._run, name="messagebus-health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await self._loop.create_server(self._probe, sock=self._listener)
        await self._ending.wait()
        server.close()
        self._connections.end()
        await asyncio.sleep(0)

    def _probe(self) -> _Probe:
        return _Probe(self._connections, self._guard, self._answer)

    async def _answer(self, path: str) -> Answer:
        """Return an answer, made on a thread of its own: metrics are asked of other processes.

        All who ask for a path meanwhile get the same, so clients that hang up leave one thread behind.
        """
        if (made := self._under_way.get(path)) is None:
            made = self._under_way[path] = self._loop.create_future()
            self._make(path, made)
        return await asyncio.shield(made)

    def _make(self, path: str, future: asyncio.Future[Answer]) -> None:
        def tell(answer: Answer) -> None:
            del self._under_way[path]
            future.set_result(answer)

        def make() -> None:
            try:
                answer = self.ask(path)
            except Exception:
                log.exception("no answer to a probe path=%r", path[:PATH_CHARS_MAX])
                answer = Answer(500, TEXT, b"failed\n")
            with contextlib.suppress(RuntimeError):  # the server has ended
                self._loop.call_soon_threadsafe(tell, answer)

        threading.Thread(target=make, name="messagebus-probe", daemon=True).start()


class _Probe(Bounded):
    """One connection, of one request."""

    def __init__(
        self,
        connections: Connections,
        guard: Guard,
        answer: Callable[[str], Awaitable[Answer]],
    ) -> None:
        self._connection = Connection(connections)
        self._guard, self._answer = guard, answer
        self._head = bytearray()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connection.opened(transport)

    def data_received(self, data: bytes) -> None:
        if self._task is not None:
            return
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._connection.works()
            self._task = asyncio.get_running_loop().create_task(self._respond())
        elif len(self._head) > HEAD_BYTES_MAX:
            self._connection.close("a head with too many bytes")

    async def _respond(self) -> None:
        head, _, _ = bytes(self._head).decode("latin-1").partition("\r\n\r\n")
        first, *lines = head.split("\r\n")
        method, _, rest = first.partition(" ")
        if fault := self._guard.fault_of_page(_headers_of(lines)):
            answer = Answer(fault.code, TEXT, f"{fault.text}\n".encode())
        elif method != "GET":
            answer = Answer(405, TEXT, b"GET\n")
        else:
            answer = await self._answer(rest.partition(" ")[0].partition("?")[0])
        head = (
            f"HTTP/1.0 {answer.code} {HTTPStatus(answer.code).phrase}\r\n"
            f"Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
            "Connection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + answer.body)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._task is not None:
            self._task.cancel()


def _headers_of(lines: list[str]) -> dict[str, str]:
    """Return the headers by their names in lower case; of one that is sent twice the last."""
    parts = [line.partition(":") for line in lines]
    return {name.strip().lower(): value.strip() for name, _, value in parts}
