"""Deliveries as server-sent events: a number unanswered at once; answers come by requests of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse

from messagebus.services.gateway.leases import Lease
from messagebus.services.gateway.people import Principal
from messagebus.services.gateway.problems import encoded
from messagebus.services.gateway.pulling import (
    HOLDING_WAIT_S,
    Held,
    Holding,
    Pulls,
    Reader,
    as_json,
)


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
        self._pulls, self._principal = pulls, principal
        self._held = Holding(pulls, reader, principal, lease_s)
        self._most, self._acks_sent, self._ending = in_flight, acks_sent, ending

    def response(self) -> StreamingResponse:
        """Return the answer that carries the stream. Deliveries unanswered at its end are given back."""
        return StreamingResponse(
            self._events(),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _events(self) -> AsyncIterator[bytes]:
        ending = asyncio.create_task(_either(self._ending, self._principal.over))
        try:
            yield b": messagebus\n\n"
            while not ending.done():
                leases = await self._next(ending)
                if not leases:
                    full = self._held.is_full
                    yield b": no more leases: answer some\n\n" if full else b": alive\n\n"
                for lease in leases:
                    # A slow reader gets no more of them once its rights were taken.
                    if ending.done():
                        break
                    yield _event(lease)
                    if self._acks_sent:
                        await self._pulls.answer(self._principal, "ack", [lease.token])
        finally:
            ending.cancel()
            self._principal.sockets.leave()
            self._held.give_back()

    async def _next(self, ending: asyncio.Task[bool]) -> list[Lease[Held]]:
        room = self._held.room(self._most - len(self._held))
        if room <= 0:
            self._held.freed.clear()
            working: asyncio.Task[object] = asyncio.create_task(self._held.freed.wait())
        else:
            working = asyncio.create_task(self._held.pull(room))
        try:
            await asyncio.wait(
                {working, ending}, timeout=HOLDING_WAIT_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            if not working.done():
                working.cancel()
                await asyncio.wait({working})
        found = None if working.cancelled() else working.result()
        return found if isinstance(found, list) else []


async def _either(*events: asyncio.Event) -> bool:
    """Wait until one of these is set."""
    waits = [asyncio.create_task(each.wait()) for each in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
    return True


def _event(lease: Lease[Held]) -> bytes:
    return b"id: %b\nevent: message\ndata: %b\n\n" % (lease.token.encode(), encoded(as_json(lease)))
