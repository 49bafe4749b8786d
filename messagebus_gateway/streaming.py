"""Deliveries as server-sent events: so many unanswered at once; answers come by requests of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse

from messagebus_gateway.leases import Lease
from messagebus_gateway.people import Principal
from messagebus_gateway.pulling import Held, Pulls, Reader, as_json

__all__ = ["Stream"]

# A comment is sent when nothing else was, so that proxies keep the connection.
ALIVE_S = 15.0
PULL_MAX, PULL_BYTES = 100, 1 << 20


class Stream:
    """One stream. acks_sent: a delivery is acked when it was written: at most once."""

    def __init__(
        self,
        pulls: Pulls,
        reader: Reader,
        principal: Principal,
        *,
        in_flight: int,
        lease_s: float,
        acks_sent: bool,
        ending: asyncio.Event,
    ) -> None:
        self._pulls, self._reader, self._principal = pulls, reader, principal
        self._most, self._lease_s, self._acks_sent = in_flight, lease_s, acks_sent
        self._ending = ending
        self._freed = asyncio.Event()
        self._leases: dict[str, Lease[Held]] = {}

    def response(self) -> StreamingResponse:
        """Return the answer that carries the stream. What is unanswered at its end is given back."""
        return StreamingResponse(
            self._events(),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _events(self) -> AsyncIterator[bytes]:
        ending = asyncio.create_task(self._ending.wait())
        try:
            yield b": messagebus\n\n"
            while not ending.done():
                leases = await self._next(ending)
                if not leases:
                    full = not self._pulls.leases.room(self._principal.name)
                    yield b": no more leases: answer some\n\n" if full else b": alive\n\n"
                for lease in leases:
                    yield _event(lease)
                    if self._acks_sent:
                        await self._pulls.answer(self._principal, "ack", [lease.token])
        finally:
            ending.cancel()
            self._principal.sockets.leave()
            self._pulls.give_back(list(self._leases.values()))

    async def _next(self, ending: asyncio.Task[bool]) -> list[Lease[Held]]:
        room = min(
            self._most - len(self._leases), PULL_MAX, self._pulls.leases.room(self._principal.name)
        )
        if room <= 0:
            self._freed.clear()
            working: asyncio.Task[object] = asyncio.create_task(self._freed.wait())
        else:
            working = asyncio.create_task(
                self._pulls.pull(
                    self._principal,
                    self._reader,
                    room,
                    wait_s=ALIVE_S,
                    bytes_max=PULL_BYTES,
                    lease_s=self._lease_s,
                    kept=self._leases,
                    freed=self._end,
                )
            )
        try:
            await asyncio.wait(
                {working, ending}, timeout=ALIVE_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            if not working.done():
                working.cancel()
                await asyncio.wait({working})
        found = None if working.cancelled() else working.result()
        return found if isinstance(found, list) else []

    def _end(self, lease: Lease[Held]) -> None:
        self._leases.pop(lease.token, None)
        self._freed.set()


def _event(lease: Lease[Held]) -> bytes:
    told = json.dumps(as_json(lease), ensure_ascii=False, separators=(",", ":"))
    return f"id: {lease.token}\nevent: message\ndata: {told}\n\n".encode()
