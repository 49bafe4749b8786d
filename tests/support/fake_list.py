"""Address of a list without agents: it serves a consumer list, waits for newer ones, takes registrations.

Speaks HTTP on asyncio, so that thousands may wait at once. For tests and figures with brokers of
`fake_amqp`; a test of how agents answer wants `fake_agent` or a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urlsplit

from messagebus.broker import Broker, BrokerList, ListedBroker
from tests.support.eventually import let_accepted_begin

WAIT_MAX_S = 60.0


class FakeList:
    """Address of a list.

    text: the list that it serves, "" answers 503. asked: requests so far. incomplete: broker -> reason, for
    clients that register.
    """

    def __init__(self, brokers: Iterable[str] = (), *, host: str = "127.0.0.1") -> None:
        self.host, self.port = host, 0
        self.asked = 0
        self.incomplete: dict[str, str] = {}
        self._generation, self.text = 0, ""
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()
        self.show(brokers)

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/consumer-list"

    def show(self, brokers: Iterable[str], *, draining: Iterable[str] = ()) -> None:
        """Serve a list of these, ``host:port``, under a new generation. On the loop that serves."""
        self._generation += 1
        drained = set(draining)
        listed = tuple(
            ListedBroker(broker=Broker.parse(name), draining=name in drained) for name in brokers
        )
        made = BrokerList(cluster="fake", generation=self._generation, listed=listed)
        self.text = made.render() if listed else ""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, backlog=1024)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await let_accepted_begin()
            for task in list(self._busy):
                task.cancel()
            await asyncio.gather(*self._busy, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                writer.write(await self._answer(reader, head.decode("latin-1")))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # they have hung up, or we are to
        finally:
            self._busy.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, head: str) -> bytes:
        self.asked += 1
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ")
        fields = {
            name.lower(): value for name, _, value in (each.partition(": ") for each in lines)
        }
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        if method == "POST":
            return self._registered(json.loads(body))
        query = parse_qs(urlsplit(target).query)
        known = int(query.get("generation", ["-1"])[0])
        wait_s = min(float(query.get("wait_s", ["0"])[0]), WAIT_MAX_S)
        if known >= self._generation:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
        if known >= self._generation:
            return _response("304 Not Modified", b"")
        status = "200 OK" if self.text else "503 Service Unavailable"
        marks = f'ETag: "{self._generation}"\r\nMB-Generation: {self._generation}\r\nMB-Cluster: fake\r\n'
        return _response(status, self.text.encode() or b"no list\n", marks)

    def _registered(self, _asked: object) -> bytes:
        listed = BrokerList.parse(self.text).names if self.text else ()
        told = {
            "complete": not self.incomplete,
            "held": sorted(set(listed) - set(self.incomplete)),
            "later": [],
            "missing": self.incomplete,
        }
        return _response("200 OK", json.dumps(told).encode())


def _response(status: str, body: bytes, marks: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\n{marks}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@asynccontextmanager
async def serve_list(listing: FakeList) -> AsyncIterator[FakeList]:
    """Run it on the running loop."""
    await listing.start()
    try:
        yield listing
    finally:
        await listing.stop()
