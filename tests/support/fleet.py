"""Many agents in one process, whose figures follow a seeded script: for tests and measurements at scale.

`Fleet` knows what is true, answers `GET /observe` and the list as agents do, and each of its agents may be
silent, slow or wrong. `transport` answers without sockets; `serving` on real ports, one for each agent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from messagebus.config import BusConfig
from messagebus.observing.snapshot import (
    Answer,
    Kind,
    Room,
    Row,
    Totals,
    answer_to_json,
)
from messagebus.secret import Secret
from tests.support.observed import NOW_MS, state

SHARE_CHANGED = 0.1


class Fleet:
    """Agents of `brokers` brokers with `names` subscriptions each.

    now_ms: their clock, moved by `step`. rows: what is true, by broker. answers: in place of an agent's own,
    by broker: raises, or returns the response.
    """

    def __init__(
        self, brokers: int, names: int, *, seed: int = 1, first_port: int = 20_000
    ) -> None:
        self.random, self.now_ms = random.Random(seed), NOW_MS
        self.ports = {f"127.0.0.1:{first_port + n}": first_port + n for n in range(brokers)}
        self.generation = 1
        well = state(cluster="fleet", topology="t", rabbitmq="3.12.14", entries=0)
        self.states = dict.fromkeys(self.ports, well)
        self.rows: dict[str, dict[tuple[str, Kind], Row]] = {}
        self._steps = 1
        self._changed: dict[str, dict[tuple[str, Kind], int]] = {}
        self.answers: dict[str, Callable[[httpx.Request], httpx.Response]] = {}
        self.asked: list[httpx.URL] = []
        for name in self.ports:
            rows = [self._row(f"topic{n // 10}/sub{n}") for n in range(names)]
            self.rows[name] = {(row.name, row.kind): row for row in rows}
            self._changed[name] = dict.fromkeys(self.rows[name], self._steps)

    @property
    def bus(self) -> BusConfig:
        """Settings of a client whose list is served by the first agent."""
        port = next(iter(self.ports.values()))
        return BusConfig(
            list_urls=(f"http://127.0.0.1:{port}/consumer-list",),
            user="bus",
            password=Secret("pw"),
        )

    def step(self, ms: int = 2_000) -> None:
        """Let time pass: a tenth of all rows change."""
        self.now_ms += ms
        self._steps += 1
        for broker, rows in self.rows.items():
            for key in self.random.sample(sorted(rows), round(len(rows) * SHARE_CHANGED)):
                came, left = self.random.randrange(20), self.random.randrange(20)
                row = rows[key]
                left = min(left, row.ready + came)
                rows[key] = replace(
                    row,
                    ready=row.ready + came - left,
                    arrived=(row.arrived or 0) + came,
                    departed=(row.departed or 0) + left,
                )
                self._changed[broker][key] = self._steps

    def answer(
        self, broker: str, *, since: str = "", names: frozenset[str] = frozenset()
    ) -> Answer:
        """Return what an agent tells now."""
        changed = self._changed[broker]
        rows = {
            key: replace(row, counted_at_ms=self.now_ms, swept_at_ms=self.now_ms)
            for key, row in self.rows[broker].items()
            if changed[key] > int(since or 0) and (not names or row.name in names)
        }
        arrived = sum(row.arrived or 0 for row in self.rows[broker].values())
        return Answer(
            broker=broker,
            life="a",
            at_ms=self.now_ms,
            received_at_ms=self.now_ms,
            state=self.states[broker],
            rows=rows,
            mark=str(self._steps),
            counted_at_ms=self.now_ms,
            swept_at_ms=self.now_ms,
            room=Room(
                disk_free=9 << 30, disk_limit=1 << 30, memory_used=1 << 30, memory_limit=4 << 30
            ),
            totals=Totals(published=arrived),
            whole=not since and not names,
        )

    @contextlib.contextmanager
    def serving(self) -> Iterator[BusConfig]:
        """Serve on real ports, from a thread of their own, until the end."""
        sockets = [
            socket.create_server(("127.0.0.1", port), backlog=64) for port in self.ports.values()
        ]
        routes = [Route("/{path:path}", self._served)]
        middleware = [Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=1)]
        config = uvicorn.Config(
            Starlette(routes=routes, middleware=middleware), log_level="error", lifespan="off"
        )
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=sockets)))
        thread.start()
        try:
            yield self.bus
        finally:
            server.should_exit = True
            thread.join()
            for each in sockets:
                each.close()

    @property
    def transport(self) -> httpx.AsyncBaseTransport:
        """A transport of httpx without sockets."""

        async def handle(request: httpx.Request) -> httpx.Response:
            self.asked.append(request.url)
            return await self._respond(request)

        return httpx.MockTransport(handle)

    async def _respond(self, request: httpx.Request) -> httpx.Response:
        broker, query = f"{request.url.host}:{request.url.port}", request.url.params
        if request.url.path == "/consumer-list":
            response = httpx.Response(200, text=self._list())
            del response.headers["Content-Length"]  # httpx counts no bytes that no socket brought
            return response
        if broker in self.answers:
            return self.answers[broker](request)
        if "state_after" in query:
            version = int(query["state_after"])
            async for _ in self._polls(float(query["wait_s"])):
                if self.states[broker].version != version:
                    break
            else:
                return httpx.Response(304)
            answer = replace(self.answer(broker), rows={}, whole=False)
        else:
            names = frozenset(filter(None, query.get("names", "").split(",")))
            answer = self.answer(broker, since=query.get("since", ""), names=names)
        return httpx.Response(200, json=answer_to_json(answer, self.now_ms))

    @staticmethod
    async def _polls(within_s: float) -> AsyncIterator[None]:
        for _ in range(round(within_s / 0.05)):
            yield
            await asyncio.sleep(0.05)

    async def _served(self, request: Request) -> Response:
        port = request.scope["server"][1]
        url = f"http://127.0.0.1:{port}{request.url.path}?{request.url.query}"
        found = await self._respond(httpx.Request("GET", url))
        kind = found.headers.get("Content-Type")
        return Response(found.content, found.status_code, media_type=kind)

    def _list(self) -> str:
        lines = [f"{broker} agent={port}" for broker, port in self.ports.items()]
        return "\n".join(["# cluster: fleet", f"# generation: {self.generation}", *lines, ""])

    def _row(self, name: str) -> Row:
        ready = self.random.choice((0, 0, 0, self.random.randrange(500)))
        at_ms, oldest = self.now_ms, self.now_ms - self.random.randrange(90_000) if ready else None
        return Row(name, "sub", ready, 0, self.random.randrange(5), ready, 0, oldest, at_ms, at_ms)


def body_of(answer: Answer, now_ms: int) -> bytes:
    """Return the bytes of an answer as an agent sends it, before compression."""
    return json.dumps(answer_to_json(answer, now_ms), separators=(",", ":")).encode()
