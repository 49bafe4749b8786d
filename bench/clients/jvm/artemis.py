"""ActiveMQ Artemis under load, over STOMP 1.2: a receipt for every message, an ack for every delivery.

Publisher n is connected to node n modulo their count. A consumer is connected to every node, as our
consumers are. In a cluster it is connected to one node, and the nodes forward messages to each other.

The STOMP client is written here, as far as a load needs it, because no client of Artemis' own protocols is
in Python: its cost is a floor, not the cost of stomp.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable
from typing import NamedTuple

from bench.clients.jvm.artemis_nodes import NODES, durability, is_cluster, started
from bench.errors import BenchError
from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED, UNKNOWN
from bench.load.profile import Profile

__all__ = [
    "Frame",
    "Link",
    "Receiver",
    "Sender",
    "durability",
    "frame",
    "opened",
    "parse",
    "started",
]

OPEN_WITHIN_S = 30.0


class Frame(NamedTuple):
    """One STOMP frame, with names and values as received, escaped."""

    command: bytes
    headers: dict[bytes, bytes]
    body: bytes


def frame(command: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    lines = "".join(f"{name}:{_escaped(value)}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


def _escaped(value: str) -> str:
    """Escape a header's value. An unescaped colon ends it: an address::queue would name another address.

    Artemis reports no error then.
    """
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace(":", "\\c")


def parse(data: bytes) -> tuple[list[Frame], bytes]:
    """Split received bytes into whole frames and the beginning of the next."""
    frames, at = [], 0
    while (end := data.find(b"\n\n", at)) >= 0:
        # Line feeds separate frames: heartbeats, and one after every frame of Artemis.
        command, *lines = data[at:end].lstrip(b"\n").split(b"\n")
        # The first of repeated headers counts.
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
    """One connection. on_frames: is called with each received list of frames.

    At the end of the connection it is called with an empty list; see `fault`.
    """

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
        """Check the connection. Raises BenchError when it is closed or failed."""
        if self.fault:
            raise BenchError(f"{self.broker}: {self.fault}")

    def close(self) -> None:
        self.transport.close()


async def opened(broker: str, on_frames: Callable[[list[Frame]], None]) -> Link:
    """Connect and wait for the broker's greeting. Raises BenchError."""
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


# Bytes that Artemis adds to a message's body when it compares with a window in bytes.
ENVELOPE_BYTES = 512
ACK_MODES = {"each": "client-individual", "many": "client", "none": "auto"}


class Sender:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._window = profile.load.window
        nodes = where.env[NODES].split()
        self._broker = nodes[where.number % len(nodes)]
        # Without `persistent` a message is kept in memory alone, even with a receipt.
        self._head = {
            "destination": where.topic,
            "destination-type": "MULTICAST",
            "persistent": "true",
        }
        self._open: dict[int, int] = {}
        self._ends: list[End] = []
        self._room = asyncio.Event()

    async def open(self) -> None:
        self._link = await opened(self._broker, self._on_frames)

    async def room(self) -> None:
        while len(self._open) >= self._window:
            self._room.clear()
            await self._room.wait()
            self._link.check()

    async def send(self, sequence: int, body: bytes, key: str) -> None:
        self._link.check()
        if len(self._open) >= self._window:
            await self.room()
        headers = self._head | {"receipt": str(sequence), "content-length": str(len(body))}
        if key:
            headers["JMSXGroupID"] = key
        self._open[sequence] = time.monotonic_ns()
        self._link.write(frame("SEND", headers, body))

    def ends(self) -> list[End]:
        ends, self._ends = self._ends, []
        return ends

    async def close(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_ended(), timeout_s)
        now_ns = time.monotonic_ns()
        for sequence, sent_ns in self._open.items():
            self._ends.append(End(sequence, UNKNOWN, self._broker, sent_ns, now_ns))
        self._link.close()

    async def _all_ended(self) -> None:
        while self._open and not self._link.fault:
            self._room.clear()
            await self._room.wait()

    def _on_frames(self, frames: list[Frame]) -> None:
        now_ns = time.monotonic_ns()
        for each in frames:
            if each.command == b"RECEIPT":
                sequence = int(each.headers[b"receipt-id"])
                sent_ns = self._open.pop(sequence)
                self._ends.append(End(sequence, CONFIRMED, self._broker, sent_ns, now_ns))
        self._room.set()


class Receiver:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._where, load, messages = where, profile.load, profile.messages
        nodes = where.env[NODES].split()
        self._nodes = [nodes[where.number % len(nodes)]] if is_cluster(profile) else nodes
        self._ack = load.ack
        self._per_ack = max(1, load.prefetch // 4) if load.ack == "many" else 1
        largest = max([size for _, size in messages.sizes] or [messages.size])
        self._window_bytes = load.prefetch * (largest + ENVELOPE_BYTES)
        self._had: list[Delivered] = []
        # Node -> number of its deliveries without an ack, and the id of the last one.
        self._owed: dict[str, tuple[int, bytes]] = {}
        self._links: dict[str, Link] = {}
        self._some = asyncio.Event()

    async def open(self) -> None:
        queue = f"{self._where.topic}::{self._where.topic}.{self._where.subscription}"
        for node in self._nodes:
            link = await opened(node, functools.partial(self._on_frames, node))
            self._links[node] = link
            headers = {"id": "0", "destination": queue, "ack": ACK_MODES[self._ack]}
            headers["consumer-window-size"] = str(self._window_bytes)
            link.write(frame("SUBSCRIBE", headers))

    async def take(self, max_wait_s: float) -> list[Delivered]:
        if not self._had:
            self._some.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._some.wait(), max_wait_s)
        for node, link in self._links.items():
            link.check()
            self._answer(node, 1)
        had, self._had = self._had, []
        return had

    async def close(self) -> None:
        for link in self._links.values():
            link.close()

    def _on_frames(self, node: str, frames: list[Frame]) -> None:
        now_ns = time.monotonic_ns()
        for each in frames:
            if each.command == b"MESSAGE":
                self._had.append(Delivered(each.body, node, now_ns))
                if self._ack != "none":
                    count, _ = self._owed.get(node, (0, b""))
                    self._owed[node] = (count + 1, each.headers[b"ack"])
                    self._answer(node, self._per_ack)
        self._some.set()

    def _answer(self, node: str, least: int) -> None:
        """Ack a node's last delivery if `least` are open; with ack `many` this answers earlier ones too."""
        count, last = self._owed.get(node, (0, b""))
        if count >= least and count:
            del self._owed[node]
            self._links[node].write(b"ACK\nid:" + last + b"\n\n\0")
