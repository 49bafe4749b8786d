"""Who may change the topology: operators by token, applications by their broker login.

An application's name and password are tried at the agent's own broker, so there is one place where
users are kept. A good login is remembered for REMEMBERED_S as a salted hash; a bad one is not.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import time
from collections.abc import Awaitable, Callable
from enum import Enum

from messagebus.errors import ConfigError, LinkLost
from messagebus.secret import Secret

__all__ = ["Admission", "Login"]

REMEMBERED_S = 60.0
REMEMBERED_MAX = 1_000
# Wrong passwords may come in floods: so many are tried at the broker at once.
TRIES_AT_ONCE = 4


class Admission(Enum):
    """May this caller change the topology? UNKNOWN: the broker cannot be asked now."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class Login:
    """Judges `Authorization` headers.

    token: the operators' token, read at every use. try_login: whether the broker accepts a user and
    a password; raises LinkLost when it cannot say.
    """

    def __init__(
        self,
        *,
        token: Callable[[], Secret],
        try_login: Callable[[str, Secret], Awaitable[bool]],
    ) -> None:
        self._token = token
        self._try_login = try_login
        self._salt = os.urandom(16)
        self._good: dict[bytes, float] = {}
        self._tries = asyncio.Semaphore(TRIES_AT_ONCE)

    def is_operator(self, header: str) -> bool:
        """Whether the header carries the operators' token."""
        scheme, _, text = header.partition(" ")
        if scheme.lower() != "bearer":
            return False
        try:
            return Secret(text.strip()) == self._token()
        except ConfigError:
            return False

    async def admit(self, header: str) -> Admission:
        """Whether the header is the operators' token or a good broker login."""
        if self.is_operator(header):
            return Admission.YES
        basic = _read_basic(header)
        if basic is None:
            return Admission.NO
        mark = self._mark(*basic)
        if self._good.get(mark, 0.0) > time.monotonic():
            return Admission.YES
        try:
            async with self._tries:
                good = await self._try_login(*basic)
        except LinkLost:
            return Admission.UNKNOWN
        if good:
            self._remember(mark)
        return Admission.YES if good else Admission.NO

    def _mark(self, user: str, password: Secret) -> bytes:
        text = f"{len(user)}:{user}:{password.reveal()}".encode()
        return hmac.digest(self._salt, text, hashlib.sha256)

    def _remember(self, mark: bytes) -> None:
        if len(self._good) >= REMEMBERED_MAX:
            self._good.clear()
        self._good[mark] = time.monotonic() + REMEMBERED_S


def _read_basic(header: str) -> tuple[str, Secret] | None:
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = (
            base64.b64decode(text.strip(), validate=True).decode().partition(":")
        )
    except (binascii.Error, UnicodeDecodeError):
        return None
    return (user, Secret(password)) if colon and user else None
