"""Guard against pages of other sites, which a browser lets send requests to any address.

Such a page cannot have a bearer token. All else that shows who calls a browser sends by itself: cookies,
Basic credentials, certificates, and the address that it calls from. So a request without a bearer token
counts by what the browser says about the page: ``Origin``, which is missing in most GETs, and
``Sec-Fetch-Site``, which is missing over plain HTTP. Where both are missing a header of one's own shows a
program: a page of another site cannot set one. The name in ``Host`` matters where nobody logs in: a foreign
name may be made to lead here (DNS rebinding). A page of that name may set any header, a made-up bearer token
too, so a token excuses no foreign name unless the service refuses all that are not known.
"""

from __future__ import annotations

import enum
import ipaddress
import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from messagebus.broker import Broker
from messagebus.clock import LogLimit

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger("messagebus.http")

__all__ = [
    *("Fault", "Guard", "ProgramsOnly", "Sender"),
    *("has_bearer", "has_own_header", "host_names", "is_loopback", "is_public_url", "names_faults"),
]

# A page of another site that sets one asks for leave first, by a request of its own (CORS).
OWN_HEADERS = "mb-"
# One log line for all refused requests within this time.
LOG_EVERY_MS = 60_000
NAME_CHARS_MAX = 253


class Sender(enum.Enum):
    """Sender of a request, as the request describes it."""

    OURS = "a page of ours"
    PERSON = "a person who typed the address, or followed a link in another program than a browser"
    FOREIGN = "a page of another site"
    UNKNOWN = "a program, or a browser that says nothing"


class Fault(NamedTuple):
    """Refusal of a request. code: of HTTP. text: one line."""

    code: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Judge of requests; services with logins ask it about those without a bearer token.

    url: the public address of the service, where a proxy ends TLS; "" for none. origins: of other pages that
    may call. is_open: nobody logs in, so that only loopback addresses and the name in url are right.
    names: hosts by which the service is called, in lower case; None: any name, since who calls logs in. A
    name without a dot is right beside them: no site of the Internet has one.
    """

    url: str = ""
    origins: Collection[str] = ()
    is_open: bool = False
    names: Collection[str] | None = None

    def is_host(self, host: str) -> bool:
        """Return whether a request's ``Host`` is one of ours: an address, ``localhost``, the name in url."""
        name = _name_of(host)
        public = urlsplit(self.url).hostname if self.url else None
        if name and name == public:
            return True
        if is_loopback(name):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return self._is_name(name, public)
        return not self.is_open

    def _is_name(self, name: str, public: str | None) -> bool:
        if self.names is None:
            return not (self.is_open or public)
        return bool(name) and ("." not in name or name in self.names)

    def sender(self, headers: Mapping[str, str], scheme: str) -> Sender:
        """Return who has sent a request with these headers, by their names in lower case."""
        origin = headers.get("origin")
        if origin == "null" and headers.get("sec-fetch-site") == "same-origin":
            return Sender.OURS  # a form of a page that tells no referrer
        if origin is not None:
            ours = _origin_of(self.url or f"{scheme}://{headers.get('host', '')}")
            # A frame without an origin of its own says "null", of whatever site it is.
            is_ours = origin == ours or (origin in self.origins and origin != "null")
            return Sender.OURS if is_ours else Sender.FOREIGN
        match headers.get("sec-fetch-site"):
            case None:
                return Sender.UNKNOWN
            case "same-origin":
                return Sender.OURS
            case "none":
                return Sender.PERSON
        return Sender.FOREIGN

    def fault_of_page(self, headers: Mapping[str, str]) -> Fault | None:
        """Return the refusal of a request to a service without pages; None where no page has sent it.

        headers: by their names in lower case.
        """
        if "origin" in headers or self.sender(headers, "") is Sender.FOREIGN:
            return Fault(403, "pages may not call this service")
        host = headers.get("host")
        # Browsers send one with every request.
        if host is None or self.is_host(host):
            return None
        if self.names is None:
            return Fault(421, "only by a loopback address")
        return Fault(421, "a name that is not one of `names` in the settings")


def has_bearer(headers: Mapping[str, str]) -> bool:
    """Return whether a request has a bearer token; whether it is a good one is not looked at."""
    return headers.get("authorization", "")[:7].lower() == "bearer "


def has_own_header(headers: Mapping[str, str]) -> bool:
    """Return whether a request has a header that a page of another site cannot set."""
    return any(name.startswith(OWN_HEADERS) for name in headers)


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or ``localhost``; brackets may be around it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def names_faults(names: Collection[object]) -> list[str]:
    """Return the faults of hosts by which a service is called: names or addresses without a port."""
    return [f"names: {each!r} is no host's" for each in names if not _is_host(each)]


def host_names(names: Collection[str]) -> Collection[str] | None:
    """Return names of settings for a `Guard`; None where they are empty, so that any name is right."""
    return frozenset(each.lower() for each in names) or None


def _is_host(name: object) -> bool:
    if not isinstance(name, str) or ":" in name:
        return False
    try:
        return bool(Broker.parse(name))
    except ValueError:
        return False


def is_public_url(url: str) -> bool:
    """Return whether a text is an origin such as ``https://bus.example``, without a path."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    has_more = parts.path not in ("", "/") or parts.query or parts.fragment or parts.username
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not has_more


def _origin_of(url: str) -> str:
    """Return the origin of an address as browsers write it; "" for what is none."""
    try:
        parts = urlsplit(url)
        is_default = parts.port == {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return ""
    host = parts.hostname or ""
    port = "" if parts.port is None or is_default else f":{parts.port}"
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def _name_of(host: str) -> str:
    """Return the name or address in ``Host``, without port and brackets; "" for what is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


class ProgramsOnly:
    """ASGI middleware of a service without pages: refuses requests of any page."""

    def __init__(self, inner: ASGIApp, guard: Guard) -> None:
        self._inner, self._guard = inner, guard
        self._lines = LogLimit(LOG_EVERY_MS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = {
                name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
            }
            if (fault := self._guard.fault_of_page(headers)) is not None:
                if self._lines.allows():
                    host = headers.get("host", "")[:NAME_CHARS_MAX]
                    log.warning("request refused host=%r reason=%r", host, fault.text)
                body = json.dumps({"error": fault.text}).encode()
                kind = [(b"content-type", b"application/json")]
                await send({"type": "http.response.start", "status": fault.code, "headers": kind})
                await send({"type": "http.response.body", "body": body})
                return
        await self._inner(scope, receive, send)
