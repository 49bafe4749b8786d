"""Proof that a peer has the operators' token, without sending it. Wire format: docs/WIRE.md.

The client signs the request with a nonce of the server's, so that nobody can send it again. It gives a nonce
of its own, with which the server signs its answer, so that nobody can answer in its place.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Generator, Mapping

import httpx

from messagebus.secret import Secret

__all__ = ["ASK", "PROOF", "Challenges", "NotProven", "TokenProof", "answer_proof", "is_nonce"]

SCHEME, ASK, PROOF = "MB-Proof", "MB-Ask", "MB-Proof"
# Age at which a nonce gets a successor; it stays good for as long again. A client that asks twice within
# this time needs no second one.
NONCE_S = 60.0

_WORD = re.compile(r"[0-9a-f]{16,64}", re.ASCII)
_FIELDS = re.compile(r'(\w+)="([^"\\]*)"')


class NotProven(httpx.HTTPError):
    """Raised when a server does not prove that it has the token."""


def is_nonce(text: str) -> bool:
    """Return whether it has the form of a client's nonce: 16 to 64 hexadecimal digits."""
    return _WORD.fullmatch(text) is not None


def _fields(header: str) -> dict[str, str]:
    """Return the fields of a header such as ``MB-Proof nonce="...", ask="..."``; {} for another scheme."""
    scheme, _, text = header.partition(" ")
    return dict(_FIELDS.findall(text)) if scheme.lower() == SCHEME.lower() else {}


def _signed(token: Secret, *parts: str | bytes) -> str:
    """Return the HMAC over the parts, each behind its length, so that they cannot be split otherwise."""
    summed = hmac.new(token.reveal().encode(), digestmod=hashlib.sha256)
    for part in parts:
        part = part.encode() if isinstance(part, str) else part
        summed.update(b"%d:" % len(part))
        summed.update(part)
    return summed.hexdigest()


def _target(request: httpx.Request) -> str:
    """Return path and query as they are sent."""
    return request.url.raw_path.decode("ascii")


def _request_proof(
    token: Secret, *, nonce: str, ask: str, to: str, method: str, target: str, body: bytes
) -> str:
    return _signed(token, "ask", nonce, ask, to, method, target, body)


def _head_proof(token: Secret, *, nonce: str, ask: str, to: str, method: str, target: str) -> str:
    return _signed(token, "head", nonce, ask, to, method, target)


def answer_proof(
    token: Secret,
    *,
    ask: str,
    method: str,
    target: str,
    broker: str,
    status: int,
    etag: str,
    body: bytes,
) -> str:
    """Return the header PROOF of an answer to the client that sent `ask`."""
    signed = _signed(token, "answer", ask, method, target, broker, str(status), etag, body)
    return f'{SCHEME} broker="{broker}", proof="{signed}"'


class Challenges:
    """Nonces of one server, and the check of requests that prove the token by one of them."""

    def __init__(self, token: Callable[[], Secret]) -> None:
        self._token = token
        # Nonce -> the asks that have used it. The newest last; at most two.
        self._nonces: dict[str, set[str]] = {}
        self._since_s = 0.0

    @property
    def nonce(self) -> str:
        """The nonce for a client that is to ask again."""
        now_s = time.monotonic()
        age_s = now_s - self._since_s
        if not self._nonces or age_s > NONCE_S:
            kept = list(self._nonces.items())[-1:] if age_s <= 2 * NONCE_S else []
            self._nonces = {**dict(kept), secrets.token_hex(16): set()}
            self._since_s = now_s
        return next(reversed(self._nonces))

    @property
    def header(self) -> str:
        return f'{SCHEME} nonce="{self.nonce}"'

    @staticmethod
    def is_proof(header: str) -> bool:
        return bool(_fields(header))

    def proves_head(self, header: str, *, me: str, method: str, target: str) -> bool:
        """Return whether a request proves the token before its body has come, which `proves` looks at.

        Arguments and errors as of `proves`.
        """
        given = _fields(header)
        if self._unused(given, me) is None:
            return False
        nonce, ask, to = (given.get(key, "") for key in ("nonce", "ask", "to"))
        wanted = _head_proof(
            self._token(), nonce=nonce, ask=ask, to=to, method=method, target=target
        )
        return hmac.compare_digest(wanted.encode(), given.get("head", "").encode())

    def _unused(self, given: Mapping[str, str], me: str) -> set[str] | None:
        """Return the asks that have used the nonce of a request to this agent; None for one of no use."""
        _ = self.nonce  # old ones are dropped
        used = self._nonces.get(given.get("nonce", ""))
        ask = given.get("ask", "")
        if used is None or ask in used or not is_nonce(ask) or given.get("to", "") not in ("", me):
            return None
        return used

    def proves(self, header: str, *, me: str, method: str, target: str, body: bytes) -> bool:
        """Return whether the request proves the token, is for this server, and comes for the first time.

        me: broker name of this agent. Raises ConfigError when there is no token here.
        """
        given = _fields(header)
        if (used := self._unused(given, me)) is None:
            return False
        nonce, ask, to = (given.get(key, "") for key in ("nonce", "ask", "to"))
        wanted = _request_proof(
            self._token(), nonce=nonce, ask=ask, to=to, method=method, target=target, body=body
        )
        if not hmac.compare_digest(wanted.encode(), given.get("proof", "").encode()):
            return False
        # Only a client with the token comes as far as this, so no other can make it large.
        used.add(ask)
        return True


class TokenProof(httpx.Auth):
    """Authentication that signs requests with the operators' token and has answers prove it. Thread-safe.

    For one agent. to: broker name of the agent that is asked, "" for any. on_proven: called at each answer
    that proves the token. signs: False for a request that needs no token: only the answer has to prove it.

    Raises NotProven, from the request.
    """

    requires_request_body = True
    requires_response_body = True

    def __init__(
        self,
        token: Callable[[], Secret],
        *,
        to: str = "",
        on_proven: Callable[[], None] = lambda: None,
        signs: bool = True,
    ) -> None:
        self._token = token
        self._to = to
        self._on_proven = on_proven
        self._signs = signs
        self._nonce = ""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        token = self._token()
        ask = self._prepare(request, token)
        response = yield request
        if self._signs and response.status_code == httpx.codes.UNAUTHORIZED:
            nonce = _fields(response.headers.get("WWW-Authenticate", "")).get("nonce", "")
            if nonce and nonce != self._nonce:
                self._nonce = nonce
                ask = self._prepare(request, token)
                response = yield request
        if response.is_error:
            return  # it says that nothing was done
        self._check(token, ask, request, response)
        self._on_proven()

    def _prepare(self, request: httpx.Request, token: Secret) -> str:
        ask = secrets.token_hex(16)
        request.headers[ASK] = ask
        if self._signs and self._nonce:
            about = {"nonce": self._nonce, "ask": ask, "to": self._to}
            place = {"method": request.method, "target": _target(request)}
            fields = {
                **about,
                "head": _head_proof(token, **about, **place),
                "proof": _request_proof(token, **about, **place, body=request.content),
            }
            told = ", ".join(f'{key}="{value}"' for key, value in fields.items())
            request.headers["Authorization"] = f"{SCHEME} {told}"
        return ask

    def _check(
        self, token: Secret, ask: str, request: httpx.Request, response: httpx.Response
    ) -> None:
        told = response.headers.get(PROOF, "")
        broker = _fields(told).get("broker", "")
        wanted = answer_proof(
            token,
            ask=ask,
            method=request.method,
            target=_target(request),
            broker=broker,
            status=response.status_code,
            etag=response.headers.get("ETag", ""),
            body=response.content,
        )
        if not hmac.compare_digest(wanted.encode(), told.encode()):
            raise NotProven("it does not prove that it has the operators' token")
        if self._to not in ("", broker):
            raise NotProven(f"the agent of {broker} answers")
