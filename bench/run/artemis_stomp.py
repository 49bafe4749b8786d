"""STOMP 1.2 as Artemis speaks it, as far as a load needs it: frames, and a connection on the asyncio loop.

Written here because no client of Artemis' own protocols is in Python: what it costs is a floor, not what
stomp.py costs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from bench.errors import BenchError

__all__ = ["Frame", "Link", "frame", "opened", "parse"]

OPEN_WITHIN_S = 30.0


class Frame(NamedTuple):
    """Names and values as they came, escaped."""

    command: bytes
    headers: dict[bytes, bytes]
    body: bytes


def frame(command: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    lines = "".join(f"{name}:{_escaped(value)}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


def _escaped(value: str) -> str:
    """A colon in a value ends it otherwise: an address::queue would be another one, without an error."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace(":", "\\c")


def parse(data: bytes) -> tuple[list[Frame], bytes]:
    """Whole frames, and what is left of the next."""
    frames, at = [], 0
    while (end := data.find(b"\n\n", at)) >= 0:
        # Between frames are line feeds: heartbeats, and one behind every frame of Artemis.
        command, *lines = data[at:end].lstrip(b"\n").split(b"\n")
        # Of a header that comes twice the first counts.
        headers = {name: value for name, _, value in (line.partition(b":") for line in lines[::-1])}
        start = end + 2
        length = headers.get(b"content-length")
        stop = data.find(b"\0", start) if length is None else start + int(length)
        if not 0 <= stop < len(data):
            break
        frames.append(Frame(command, headers, data[start:stop]))
        at = stop + 1
        while data[at : at + 1] == b"\n":
            at += 1
    return frames, data[at:]


class Link(asyncio.Protocol):
    """One connection. on_frames: is told what came, and at the end nothing: see `fault`."""

    transport: asyncio.Transport

    def __init__(self, broker: str, on_frames: Callable[[list[Frame]], None]) -> None:
        self.broker = broker
        self.fault = ""
        self._on_frames = on_frames
        self._rest = b""

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        frames, self._rest = parse(self._rest + data if self._rest else data)
        for each in frames:
            if each.command == b"ERROR":
                said = each.headers.get(b"message", each.body)
                self.fault = said.decode(errors="replace").replace("\\c", ":")
        self._on_frames(frames)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fault = self.fault or (str(exc) if exc else "it hung up")
        self._on_frames([])

    def check(self) -> None:
        """Raises BenchError when it is gone."""
        if self.fault:
            raise BenchError(f"{self.broker}: {self.fault}")

    def close(self) -> None:
        self.transport.close()


async def opened(broker: str, on_frames: Callable[[list[Frame]], None]) -> Link:
    """Connected and greeted. Raises BenchError."""
    greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_all(frames: list[Frame]) -> None:
        if greeted.done():
            on_frames(frames)
        elif frames and frames[0].command == b"CONNECTED":
            greeted.set_result(None)
            on_frames(frames[1:])
        else:
            greeted.set_exception(BenchError(f"{broker}: {link.fault or 'no greeting'}"))

    host, port = broker.rsplit(":", 1)
    link = Link(broker, on_all)
    hello = frame("CONNECT", {"accept-version": "1.2", "host": host, "heart-beat": "0,0"})
    try:
        async with asyncio.timeout(OPEN_WITHIN_S):
            loop = asyncio.get_running_loop()
            link.transport, _ = await loop.create_connection(lambda: link, host, int(port))
            link.write(hello)
            await greeted
    except (OSError, TimeoutError) as fault:
        raise BenchError(f"{broker}: cannot connect: {fault or 'no answer'}") from fault
    return link
