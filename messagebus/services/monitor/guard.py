"""Bounds and headers of all requests, before any route: nothing foreign runs, reads along or sends forms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from messagebus.http.allowance import SharedPlaces
from messagebus.http.connections import source_of
from messagebus.http.guard import Guard, Sender, has_bearer

BODY_BYTES_MAX = 64 * 1024
BODY_WITHIN_S = 20.0
# Of all bodies that arrive together; of one address half.
BODIES_BYTES_MAX = 16 << 20
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # Other sites learn nothing. Without any referrer a browser would send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guarded:
    """Bounds and headers of all requests. guard: judges who may send them."""

    def __init__(self, inner: ASGIApp, guard: Callable[[], Guard]) -> None:
        self._inner, self._guard = inner, guard
        self._arriving = SharedPlaces(BODIES_BYTES_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {key.lower() for key, _ in message["headers"]}
                message["headers"] = [
                    *message["headers"],
                    *(
                        (key.lower().encode(), value.encode())
                        for key, value in HEADERS.items()
                        if key.lower().encode() not in given
                    ),
                ]
            await send(message)

        fault = self._fault(scope, headers)
        if fault:
            await PlainTextResponse(f"{fault[1]}\n", fault[0])(scope, receive, answer)
            return
        client = scope.get("client")
        body = _Bounded(receive, self._arriving, source_of(client[0]) if client else "")
        try:
            await self._inner(scope, body, answer)
        finally:
            body.give_back()

    def _fault(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        guard, is_read = self._guard(), scope["method"] in ("GET", "HEAD")
        if has_bearer(headers):
            return None if is_read else self._size_fault(headers)
        if not guard.is_host(headers.get("host", "")):
            # A foreign page whose name is made to lead to this host would read along.
            return 421, "only by a loopback address, or the name in `url`" if guard.is_open else (
                "this name is not one of this monitor"
            )
        sender = guard.sender(headers, scope["scheme"])
        if is_read:
            # A link leads here from anywhere; nothing else of another site does.
            follows = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
            if sender is Sender.FOREIGN and follows != ("navigate", "document"):
                return 403, "only from a page of this monitor, or by a link"
            return None
        if sender is not Sender.OURS:
            return 403, "only from a page of this monitor"
        return self._size_fault(headers)

    @staticmethod
    def _size_fault(headers: Headers) -> tuple[int, str] | None:
        length = headers.get("content-length", "0")
        is_number = length.isascii() and length.isdigit() and len(length) < 20
        if is_number and int(length) <= BODY_BYTES_MAX:
            return None
        return 413, f"at most {BODY_BYTES_MAX} bytes"


class _Bounded:
    """The body of a request: at most 64 KiB, within 20 s, and within the room that all bodies share."""

    def __init__(self, receive: Receive, room: SharedPlaces, source: str) -> None:
        self._receive, self._bytes, self._until_s = receive, 0, 0.0
        self._room, self._source, self._taken = room, source, 0
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()
        self._until_s = self._until_s or asyncio.get_running_loop().time() + BODY_WITHIN_S
        async with asyncio.timeout_at(self._until_s):
            message = await self._receive()
        size = len(message.get("body", b""))
        if not self._room.enter(self._source, size):
            raise HTTPException(429, "too many requests arrive at once", {"Retry-After": "5"})
        self._taken += size
        self._bytes += size
        self._is_whole = not message.get("more_body", False)
        if self._bytes > BODY_BYTES_MAX:
            return {"type": "http.disconnect"}
        return message

    def give_back(self) -> None:
        """Give the room back: the request has been answered."""
        self._room.leave(self._source, self._taken)
        self._taken = 0
