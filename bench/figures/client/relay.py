"""A TCP relay that can silently drop all data of its open connections, without a reset.

It simulates a path that loses its packets: open connections stay open and silent in both directions; new
connections work. It runs on a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Self

__all__ = ["Relay"]

READ_BYTES = 65_536
START_WITHIN_S = 10.0
STOP_WITHIN_S = 10.0


class Relay:
    """A relay that listens on a loopback port of its own choice and passes bytes to host:port.

    with Relay("127.0.0.10", 5672) as relay:
        connect_to(relay.address)
        relay.swallow()
    """

    def __init__(self, host: str, port: int, *, listen: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self._listen = listen
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._pairs: set[_Pair] = set()
        self._thread = threading.Thread(target=self._work, name="relay", daemon=True)
        self.address = ""

    def swallow(self) -> None:
        """Drop all data of the connections that are open now, from now on."""
        self._loop.call_soon_threadsafe(self._swallow)

    def heal(self) -> None:
        """End every connection whose data was dropped, like a recovered path that no longer knows it."""
        self._loop.call_soon_threadsafe(self._heal)

    def _heal(self) -> None:
        for pair in [pair for pair in self._pairs if pair.silent]:
            pair.close()

    def _swallow(self) -> None:
        for pair in self._pairs:
            pair.silent = True

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(START_WITHIN_S):
            raise TimeoutError("the relay does not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_WITHIN_S)

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._accept, self._listen, 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        self._started.set()
        await self._stopping.wait()
        server.close()
        for pair in list(self._pairs):
            pair.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        pair = _Pair(writer, far_writer)
        self._pairs.add(pair)
        try:
            await asyncio.gather(pair.pass_on(reader, far_writer), pair.pass_on(far_reader, writer))
        finally:
            self._pairs.discard(pair)
            pair.close()


class _Pair:
    """The two ends of one connection."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.silent = False
        self._ends = (near, far)

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass data until one end closes. While the pair is silent, the other end does not notice."""
        with contextlib.suppress(OSError):
            while block := await reader.read(READ_BYTES):
                if not self.silent:
                    writer.write(block)
                    await writer.drain()
        if not self.silent:
            writer.close()

    def close(self) -> None:
        for end in self._ends:
            end.close()
