"""Who may change the topology: operators by token, applications by their broker login.

An application's name and password are tried at the agent's own broker, so there is one place where
users are kept. A good login is remembered for REMEMBERED_S as a salted hash; a bad one is not.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum

from messagebus.errors import ConfigError, LinkLost
from messagebus.secret import Secret

__all__ = ["Admission", "Login"]

REMEMBERED_S = 60.0
REMEMBERED_MAX = 1_000
# Wrong passwords may come in floods: so many are tried at the broker at once. Users who were good before
# have places of their own, which strangers cannot fill.
TRIES_AT_ONCE = 4
# Who finds a longer row is told at once that nobody can say: at 25 ms a try it would be too late for him.
WAITING_MAX = 64
WAITING_PER_USER_MAX = 16


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
        self._users: dict[str, None] = {}  # that were good at some time
        self._waiting = Counter[str]()
        self._waiting_strangers = 0
        self._tries = {known: asyncio.Semaphore(TRIES_AT_ONCE) for known in (False, True)}

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
            with self._place(basic[0]) as tries:
                async with tries:
                    good = await self._try_login(*basic)
        except LinkLost:
            return Admission.UNKNOWN
        if good:
            self._remember(basic[0], mark)
        return Admission.YES if good else Admission.NO

    @contextlib.contextmanager
    def _place(self, user: str) -> Iterator[asyncio.Semaphore]:
        """In the row of those who were good before, or of the others. Raises LinkLost when it is full."""
        is_known = user in self._users
        full = self._waiting[user] >= WAITING_PER_USER_MAX
        if full or (not is_known and self._waiting_strangers >= WAITING_MAX):
            raise LinkLost("", "too many logins wait to be tried")
        self._waiting[user] += 1
        self._waiting_strangers += not is_known
        try:
            yield self._tries[is_known]
        finally:
            self._waiting_strangers -= not is_known
            self._waiting[user] -= 1
            if not self._waiting[user]:
                del self._waiting[user]

    def _mark(self, user: str, password: Secret) -> bytes:
        text = f"{len(user)}:{user}:{password.reveal()}".encode()
        return hmac.digest(self._salt, text, hashlib.sha256)

    def _remember(self, user: str, mark: bytes) -> None:
        if len(self._good) >= REMEMBERED_MAX:
            self._good.clear()
        if len(self._users) >= REMEMBERED_MAX:
            self._users.clear()
        self._good[mark], self._users[user] = time.monotonic() + REMEMBERED_S, None


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
