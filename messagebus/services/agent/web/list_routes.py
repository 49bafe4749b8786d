"""Routes of the consumer list: for consumers, which are counted as they ask, and for those who watch them."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from messagebus._io.loop import Tasks
from messagebus.broker import WIRE_VERSION
from messagebus.clock import monotonic_ms
from messagebus.services.agent.web.parts import Parts
from messagebus.services.agent.web.requests import (
    WAIT_S_MAX,
    WAITING_MAX,
    Waiting,
    disconnected,
    first_of,
    read_id,
    read_version,
    read_wait_s,
)

# Generations that a client may be ahead of the list here, which was restored from an old backup.
APPLIED_AHEAD_MAX = 1_000
# Wait for the proof of a login, 25 ms commonly, so that a client is counted when it has its answer.
PROOF_WAIT_S = 0.2


@dataclass(slots=True)
class _Reader:
    """Client that asks for the list. who: its id and subscription. login: its header `Authorization`.

    is_counted: its login was good.
    """

    who: tuple[str, str]
    applied: int
    login: str
    is_counted: bool = False


class ListRoutes:
    """The list and its readers. waiting: shared with the other routes for clients."""

    def __init__(self, parts: Parts, waiting: Waiting) -> None:
        self._parts, self._waiting = parts, waiting
        self._waiting_as = Counter[tuple[str, str]]()
        self._counting = Tasks()

    async def consumer_list(self, request: Request) -> Response:
        lists, query = self._parts.lists, request.query_params
        generation = read_version(query.get("generation", "-1"), "generation")
        wait_s = min(read_wait_s(query.get("wait_s", "0")), WAIT_S_MAX)
        reader = self._reader(request)
        if lists.current is None:
            return PlainTextResponse(f"no consumer list: {lists.fault}\n", 503)
        if "generation" in query and lists.current.generation <= generation:
            return await self._wait_for_list(request, reader, generation, wait_s)
        if reader is not None:
            await asyncio.wait({self._counting.spawn(self._count(reader))}, timeout=PROOF_WAIT_S)
        return self._list(request)

    async def _wait_for_list(
        self, request: Request, reader: _Reader | None, generation: int, wait_s: float
    ) -> Response:
        if self._waiting.count >= WAITING_MAX:
            return PlainTextResponse("too many clients wait here\n", 503)
        counting = self._counting.spawn(self._count_waiting(reader)) if reader is not None else None
        with self._waiting.one():
            try:
                ended = await first_of(
                    self._parts.lists.newer_than(generation),
                    disconnected(request),
                    timeout_s=wait_s,
                )
                if ended != 1 and counting is not None:
                    await asyncio.wait({counting}, timeout=PROOF_WAIT_S)
            finally:
                if counting is not None:
                    counting.cancel()
                is_last = reader is not None and self._waits_no_more(reader)
        if ended == 1:
            # Clients may share an id: one that still waits here is not dropped.
            if reader is not None and is_last:
                self._parts.clients.left(*reader.who, monotonic_ms())
            return Response(status_code=499)
        if reader is not None and reader.is_counted:
            self._note_request(reader)
            self._parts.clients.answered(*reader.who, monotonic_ms())
        current = self._parts.lists.current
        if current is not None and current.generation > generation:
            return self._list(request)
        return Response(status_code=304, headers=self._list_headers())

    def _list(self, request: Request) -> Response:
        headers = self._list_headers()
        if request.headers.get("If-None-Match") == headers["ETag"] and not request.query_params.get(
            "wait_s"
        ):
            return Response(status_code=304, headers=headers)
        return PlainTextResponse(self._parts.lists.text, headers=headers)

    def _list_headers(self) -> dict[str, str]:
        current = self._parts.lists.current
        assert current is not None
        return {
            "ETag": self._parts.lists.etag,
            "MB-Generation": str(current.generation),
            "MB-Cluster": current.cluster,
            "MB-Wire": WIRE_VERSION,
            "Cache-Control": "no-cache",
        }

    def _reader(self, request: Request) -> _Reader | None:
        """Return who asks, None for one that says no id or has no list yet. Raises BadRequest."""
        query = request.query_params
        client_id = read_id(query.get("client", ""), "client")
        if not client_id:
            return None
        subscription = read_id(query.get("subscription", ""), "subscription")
        applied = read_version(query.get("applied", "0"), "applied")
        if not applied and "generation" not in query:
            return None  # It has no list that is old; where it ends now, nobody would hear of it.
        header = request.headers.get("Authorization", "")
        return _Reader((client_id, subscription), applied, header)

    async def _count(self, reader: _Reader) -> None:
        """Count a client once its login is proved. While the broker is away nobody can prove one."""
        login = self._parts.login
        if self._parts.upkeep.link.is_open and not await login.is_user(reader.login):
            return
        self._note_request(reader)
        reader.is_counted = True

    async def _count_waiting(self, reader: _Reader) -> None:
        await self._count(reader)
        if reader.is_counted:
            self._waiting_as[reader.who] += 1

    def _waits_no_more(self, reader: _Reader) -> bool:
        """Return whether nobody else that is counted waits under this id."""
        if not reader.is_counted:
            return False
        self._waiting_as[reader.who] -= 1
        if self._waiting_as[reader.who]:
            return False
        del self._waiting_as[reader.who]
        return True

    def _note_request(self, reader: _Reader) -> None:
        current = self._parts.lists.current
        # A generation that no client can have applied must not hold up a push.
        if current is not None and reader.applied > current.generation + APPLIED_AHEAD_MAX:
            return
        self._parts.clients.note_request(*reader.who, reader.applied, monotonic_ms())

    async def clients(self, _request: Request) -> Response:
        now_ms = monotonic_ms()
        return JSONResponse(
            {
                "clients": [
                    {
                        "id": client.id,
                        "subscription": client.subscription,
                        "applied": client.applied,
                        "age_s": round(client.age_ms / 1000, 3),
                        "waits": bool(self._waiting_as[client.id, client.subscription]),
                    }
                    for client in self._parts.clients.living(now_ms)
                ],
                "left": [
                    {
                        "id": client.id,
                        "subscription": client.subscription,
                        "age_s": round(client.age_ms / 1000, 3),
                    }
                    for client in self._parts.clients.gone(now_ms)
                ],
            }
        )
