"""WebSocket of a subscription: deliveries for the client's credit, answers and publishes the other way.

Text frames of JSON. From the client: ``{"t": "credit", "n": 100}``; ``ack``, ``release``, ``retry``, ``park``
and ``extend`` with ``leases``; ``publish`` with ``to`` and the envelope of a batch's line. To the client:
``deliver`` with a delivery, ``answered``, ``outcome``, ``error``. Deliveries without an answer at the end
come again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from messagebus import MessageBusError
from messagebus.bodies import decode_json
from messagebus.services.gateway.people import Principal
from messagebus.services.gateway.problems import Problem, encoded, problem_of_fault
from messagebus.services.gateway.pulling import Holding, Pulls, Reader, as_json
from messagebus.services.gateway.reading import read_count

PROTOCOL = "messagebus.v1"
CREDIT_MAX = 1_000
# More credit than that is no mistake: it is bounded, since it adds up.
COUNT_MAX = 1 << 53
ROOM_S = 1.0  # between looks for room, where the principal holds all it may
# Publishes of one socket that wait for their ends; then its frames are not read.
PUBLISHES_MAX = 100
GOING_AWAY, REFUSED = 1012, 1008

Answer = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]


class Socket:
    """One socket that is accepted. answer: carries out a frame of the client, and returns what it is told."""

    def __init__(
        self,
        socket: WebSocket,
        pulls: Pulls,
        reader: Reader,
        principal: Principal,
        *,
        lease_s: float,
        ending: asyncio.Event,
        answer: Answer,
    ) -> None:
        self._socket, self._principal = socket, principal
        self._held = Holding(pulls, reader, principal, lease_s)
        self._ending, self._answer = ending, answer
        self._credit = 0
        self._changed = self._held.freed  # set for more credit, too
        self._publishing: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the client hangs up or the gateway ends."""
        works: list[asyncio.Task[Any]] = [
            asyncio.create_task(each)
            for each in (
                *(self._deliver(), self._read()),
                *(self._ending.wait(), self._principal.over.wait()),
            )
        ]
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (*works, *self._publishing):
                each.cancel()
            await asyncio.gather(*works, *self._publishing, return_exceptions=True)
            self._held.give_back()
            code = GOING_AWAY if self._ending.is_set() else REFUSED
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await self._socket.close(code)

    async def _deliver(self) -> None:
        told = False
        while True:
            room = self._held.room(min(self._credit, CREDIT_MAX - len(self._held)))
            if room <= 0:
                if self._credit and not told:
                    full = self._held.is_full
                    detail = f"{self._principal.name if full else 'this socket'} holds all the leases it may"
                    await self._tell("error", Problem(429, detail).body)
                    told = True
                self._changed.clear()
                # Leases that end elsewhere make room, too, and are not told.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(ROOM_S if self._credit else None):
                        await self._changed.wait()
                continue
            told = False
            leases = await self._held.pull(room)
            self._credit -= len(leases)
            for lease in leases:
                await self._tell("deliver", as_json(lease))

    async def _read(self) -> None:
        """Take the client's frames; the first that is none of ours ends it."""
        while True:
            frame = decode_json((await self._socket.receive_text()).encode())
            kind = frame.pop("t")
            if kind == "credit":
                try:
                    more = read_count({"n": frame["n"]}, "n", 0, 0, COUNT_MAX)
                except Problem as problem:
                    await self._tell("error", problem.body)
                    continue
                self._credit = min(CREDIT_MAX, self._credit + more)
                self._changed.set()
            elif kind == "publish":
                if len(self._publishing) >= PUBLISHES_MAX:
                    await asyncio.wait(self._publishing, return_when=asyncio.FIRST_COMPLETED)
                task = asyncio.create_task(self._carry_out(kind, "outcome", frame))
                self._publishing.add(task)
                task.add_done_callback(self._publishing.discard)
            else:
                await self._carry_out(kind, "answered", frame)

    async def _carry_out(self, kind: str, answer: str, frame: dict[str, Any]) -> None:
        reference = {"ref": frame.pop("ref")} if "ref" in frame else {}
        try:
            found = await self._answer(kind, frame)
        except Problem as problem:
            await self._tell("error", problem.body | reference)
        except MessageBusError as fault:
            await self._tell("error", problem_of_fault(fault).body | reference)
        else:
            await self._tell(answer, found | reference)

    async def _tell(self, kind: str, value: Mapping[str, Any]) -> None:
        await self._socket.send_text(encoded({"t": kind, **value}).decode())
