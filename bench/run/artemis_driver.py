"""ActiveMQ Artemis under load, over STOMP: a receipt for every message, an ack for every delivery.

Publisher n is connected to node n modulo their count. A consumer is connected to every node, as our own
are; in a cluster to one, and the nodes hand on what others want.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time

from bench.harness.interface import Delivered, End, Where
from bench.harness.outcomes import CONFIRMED, UNKNOWN
from bench.load.profile import Profile
from bench.run.artemis_nodes import NODES, durability, is_cluster, started
from bench.run.artemis_stomp import Frame, Link, frame, opened

__all__ = ["Receiver", "Sender", "durability", "started"]

# What Artemis counts for a message beside its body, when it compares with a window in bytes.
ENVELOPE_BYTES = 512
ACK_MODES = {"each": "client-individual", "many": "client", "none": "auto"}


class Sender:
    def __init__(self, profile: Profile, where: Where) -> None:
        self._window = profile.load.window
        nodes = where.env[NODES].split()
        self._broker = nodes[where.number % len(nodes)]
        # Without `persistent` it is in memory alone, receipt or not.
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
        # Node -> what it delivered and is not acked, the last one's id.
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
        """The last delivery's, which with `many` answers those before it too."""
        count, last = self._owed.get(node, (0, b""))
        if count >= least and count:
            del self._owed[node]
            self._links[node].write(b"ACK\nid:" + last + b"\n\n\0")
