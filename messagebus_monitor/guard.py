"""Bounds and headers of all requests, before any route: nothing foreign runs, reads along or sends forms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 64 * 1024
BODY_WITHIN_S = 20.0
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Bounds and headers of all requests. has_logins: whether somebody must say who they are."""

    def __init__(self, inner: ASGIApp, has_logins: Callable[[], bool]) -> None:
        self._inner, self._has_logins = inner, has_logins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}

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
        await self._inner(scope, _Bounded(receive), answer)

    def _fault(self, scope: Scope, headers: dict[str, str]) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._has_logins() and not _is_local(host):
            # A foreign page whose name is made to lead to this host would read along.
            return 421, "only by a loopback address"
        if scope["method"] in ("GET", "HEAD"):
            return None
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES_MAX:
            return 413, f"at most {BODY_BYTES_MAX} bytes"
        site = headers.get("sec-fetch-site")
        is_ours = (
            site == "same-origin"
            if site is not None
            else headers.get("origin") == f"{scope['scheme']}://{host}"
        )
        if not is_ours and "authorization" not in headers:
            return 403, "only from a page of this monitor"
        return None


class _Bounded:
    """The body of a request: at most 64 KiB, within 20 s."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._bytes, self._until_s = receive, 0, 0.0
        self._is_whole = False

    async def __call__(self) -> Message:
        if self._is_whole:
            return await self._receive()
        self._until_s = self._until_s or asyncio.get_running_loop().time() + BODY_WITHIN_S
        async with asyncio.timeout_at(self._until_s):
            message = await self._receive()
        self._bytes += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        if self._bytes > BODY_BYTES_MAX:
            return {"type": "http.disconnect"}
        return message


def _is_local(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    return name in ("localhost", "[::1]") or name.startswith("127.")
