"""Guard against pages of other sites, which a browser lets send requests to any address.

Such a page cannot have a bearer token. All else that shows who calls a browser sends by itself: cookies,
Basic credentials, certificates, and the address that it calls from. So a request without a bearer token
counts by what the browser says about the page: ``Origin``, which is missing in most GETs, and
``Sec-Fetch-Site``, which is missing over plain HTTP. Where both are missing a header of one's own shows a
program: a page of another site cannot set one. The name in ``Host`` matters where nobody logs in: a foreign
name may be made to lead here (DNS rebinding).
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["Guard", "ProgramsOnly", "Sender", "has_bearer", "has_own_header", "is_public_url"]

# A page of another site that sets one asks for leave first, by a request of its own (CORS).
OWN_HEADERS = "mb-"


class Sender(enum.Enum):
    """Sender of a request, as the request describes it."""

    OURS = "a page of ours, or a person who typed the address"
    FOREIGN = "a page of another site"
    UNKNOWN = "a program, or a browser that says nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Judge of requests without a bearer token.

    url: the public address of the service, where a proxy ends TLS; "" for none. origins: of other pages that
    may call. is_open: nobody logs in, so that only loopback addresses and the name in url are right.
    """

    url: str = ""
    origins: Collection[str] = ()
    is_open: bool = False

    def is_host(self, host: str) -> bool:
        """Return whether a request's ``Host`` is one of ours: an address, ``localhost``, the name in url."""
        name = _name_of(host)
        public = urlsplit(self.url).hostname if self.url else None
        if name and name == public:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name == "localhost" or not (self.is_open or public)
        return address.is_loopback or not self.is_open

    def sender(self, headers: Mapping[str, str], scheme: str) -> Sender:
        """Return who has sent a request with these headers, by their names in lower case."""
        origin = headers.get("origin")
        if origin == "null" and headers.get("sec-fetch-site") == "same-origin":
            return Sender.OURS  # a form of a page that tells no referrer
        if origin is not None:
            ours = self.url.rstrip("/") if self.url else f"{scheme}://{headers.get('host', '')}"
            is_ours = origin == ours or origin in self.origins
            return Sender.OURS if is_ours else Sender.FOREIGN
        match headers.get("sec-fetch-site"):
            case None:
                return Sender.UNKNOWN
            case "same-origin" | "none":
                return Sender.OURS
        return Sender.FOREIGN


def has_bearer(headers: Mapping[str, str]) -> bool:
    """Return whether a request has a bearer token; whether it is a good one is not looked at."""
    return headers.get("authorization", "")[:7].lower() == "bearer "


def has_own_header(headers: Mapping[str, str]) -> bool:
    """Return whether a request has a header that a page of another site cannot set."""
    return any(name.startswith(OWN_HEADERS) for name in headers)


def is_public_url(url: str) -> bool:
    """Return whether a text is an origin such as ``https://bus.example``, without a path."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    has_more = parts.path not in ("", "/") or parts.query or parts.fragment or parts.username
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not has_more


def _name_of(host: str) -> str:
    """Return the name or address in ``Host``, without port and brackets; "" for what is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


class ProgramsOnly:
    """ASGI middleware of a service that has no pages: requests of any page are refused."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner, self._guard = inner, Guard()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if "origin" in headers or self._guard.sender(headers, "") is Sender.FOREIGN:
                refused = JSONResponse({"error": "pages may not call an agent"}, 403)
                await refused(scope, receive, send)
                return
        await self._inner(scope, receive, send)
