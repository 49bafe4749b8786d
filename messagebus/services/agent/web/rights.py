"""Callers and their rights: operators by their token, applications by their login."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from messagebus.admin.proof import ASK, PROOF, Challenges, answer_proof, is_nonce
from messagebus.errors import ConfigError
from messagebus.http.allowance import SharedPlaces
from messagebus.http.connections import source_of
from messagebus.services.agent.topology.register import Entry
from messagebus.services.agent.web.login import Admission, Judged
from messagebus.services.agent.web.parts import Parts
from messagebus.services.agent.web.requests import (
    BODY_BYTES_MAX,
    BadRequest,
    TooMany,
    error,
    read_body,
    target_of,
)
from messagebus.topology import Wanted, parse_wanted

# Of all bodies together that arrive from callers whose token is not known yet; of one source half.
UNPROVEN_BYTES_MAX = 64 << 20
# Of all bodies together that arrive from users of the bus; of one user half.
USERS_BYTES_MAX = 64 << 20
FORBIDDEN_SHOWN = 5


class Rights:
    """The rights of callers on what one agent has."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._challenges = Challenges(parts.login.token)
        self._unproven = SharedPlaces(UNPROVEN_BYTES_MAX)
        self._of_users = SharedPlaces(USERS_BYTES_MAX)
        names = (f"{parts.started}/{parts.started}", f"queue:{parts.started}")
        self._anything = {name: parse_wanted(name) for name in names}

    async def operators_only(self, request: Request) -> Response | None:
        if await self._is_operator(request):
            return None
        told = {"WWW-Authenticate": f"{self._challenges.header}, Bearer"}
        return error(401, "operators' token wanted", told)

    async def judged(self, request: Request, wanted: Mapping[str, Wanted]) -> Judged | Response:
        """Judge the caller and its rights on all of these; or return the refusal of an unknown caller."""
        if await self._is_operator(request):
            return Judged(admission=Admission.YES)
        judged = await self._parts.login.admit(request.headers.get("Authorization", ""), wanted)
        match judged.admission:
            case Admission.YES:
                return judged
            case Admission.NO:
                told = f'{self._challenges.header}, Basic realm="messagebus"'
                return error(401, "login refused", {"WWW-Authenticate": told})
            case Admission.UNKNOWN:
                told = f" ({judged.reason})" if judged.reason else ""
                why = f"the broker here cannot check the login{told}: ask another agent"
                linked = self._parts.upkeep.link.is_open
                return JSONResponse({"error": why, "reason": judged.reason, "linked": linked}, 503)

    async def readable(self, request: Request) -> dict[str, Entry] | Response:
        """Return the living entries that the caller's rights cover, or the refusal."""
        entries = self._parts.topology.register.entries
        known = {name: parse_wanted(name) for name, entry in entries.items() if entry.alive}
        # A user who may read any name need not be checked for each of thousands.
        judged = await self.judged(request, self._anything)
        if not isinstance(judged, Response) and judged.forbidden:
            judged = await self.judged(request, known)
        if isinstance(judged, Response):
            return judged
        if known and len(judged.forbidden) == len(known):
            return forbidden(judged)
        return {name: entries[name] for name in known.keys() - set(judged.forbidden)}

    async def readable_part(self, request: Request) -> dict[str, Entry] | Response | None:
        """Return as `readable`, but None when the caller's rights cover all entries."""
        entries = await self.readable(request)
        is_all = not isinstance(entries, Response) and self.is_all(entries)
        return None if is_all else entries

    def is_all(self, entries: Mapping[str, Entry]) -> bool:
        known = self._parts.topology.register.entries
        return len(entries) == sum(entry.alive for entry in known.values())

    def proving(
        self, answer: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Wrap an endpoint so that it proves the token to callers that want it."""

        async def proven(request: Request) -> Response:
            ask = request.headers.get(ASK, "")
            if ask and not is_nonce(ask):
                raise BadRequest(f"{ASK}: 16 to 64 hexadecimal digits")
            response = await answer(request)
            if ask:
                with contextlib.suppress(ConfigError):
                    response.headers[PROOF] = answer_proof(
                        self._parts.login.token(),
                        ask=ask,
                        method=request.method,
                        target=target_of(request),
                        broker=self._parts.broker,
                        status=response.status_code,
                        etag=response.headers.get("ETag", ""),
                        body=bytes(response.body),
                    )
            return response

        return proven

    async def _is_operator(self, request: Request) -> bool:
        """Return whether the caller has the token: it proves it, or sends it."""
        known = getattr(request.state, "is_operator", None)
        if known is None:
            header = request.headers.get("Authorization", "")
            known = self._parts.login.is_operator(header)
            if not known and Challenges.is_proof(header):
                about = {
                    "me": self._parts.broker,
                    "method": request.method,
                    "target": target_of(request),
                }
                with contextlib.suppress(ConfigError):
                    # Strangers may fill the room for bodies that come before their proof is looked at.
                    if self._challenges.proves_head(header, **about):
                        body = await read_body(request)
                    else:
                        body = await self._unproven_body(request)
                    known = self._challenges.proves(header, **about, body=body)
            request.state.is_operator = known  # a proof is good for one request
        return bool(known)

    async def body(self, request: Request, judged: Judged, most: int = BODY_BYTES_MAX) -> bytes:
        """Read the body of a caller that was let in. Raises BadRequest."""
        if not judged.user:
            return await read_body(request, most=most)
        return await _within(self._of_users, judged.user, request, most)

    async def _unproven_body(self, request: Request) -> bytes:
        source = source_of(request.client.host) if request.client else ""
        return await _within(self._unproven, source, request, BODY_BYTES_MAX)


async def _within(places: SharedPlaces, whose: str, request: Request, most: int) -> bytes:
    """Read a body within the room that many share, which it takes until it has come. Raises BadRequest."""
    taken = 0

    def take(size: int) -> None:
        nonlocal taken
        if not places.enter(whose, size):
            raise TooMany("too many bodies arrive at once: send fewer requests in parallel")
        taken += size

    try:
        return await read_body(request, take, most=most)
    finally:
        places.leave(whose, taken)


def forbidden(judged: Judged) -> Response:
    names = ", ".join(judged.forbidden[:FORBIDDEN_SHOWN])
    left = len(judged.forbidden) - FORBIDDEN_SHOWN
    more = f" and {left} more" if left > 0 else ""
    text = f"the rights of user {judged.user!r} do not cover {names}{more}"
    return JSONResponse({"error": text, "forbidden": True}, 403)
