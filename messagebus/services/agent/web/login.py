"""Admission to the topology: operators by token, applications by their broker login and its rights.

An application's name and password are tried at the agent's own broker, and so are its rights, so there is
one place where users are kept. A good login is remembered for REMEMBERED_S as a salted hash, with its
rights; a bad one is not.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from messagebus._io.amqp.control import Right
from messagebus.destination import Delay, Queue, Stream, Subscription, Topic
from messagebus.errors import ConfigError, LinkLost
from messagebus.secret import Secret
from messagebus.topology import Wanted

REMEMBERED_S = 60.0
REMEMBERED_MAX = 1_000
# Wrong passwords may come in floods: this many are tried at the broker at once. Logins that were good before
# have places of their own: no stranger fills them, who may know the name of a user.
TRIES_AT_ONCE = 4
# Beyond this number of waiting logins the answer is "unknown" at once: at 25 ms a try it would be too late.
WAITING_MAX = 64
WAITING_PER_USER_MAX = 16
# Names made by one user here and not deleted since.
NAMES_PER_USER_MAX = 10_000


class Admission(Enum):
    """The decision on a caller. UNKNOWN: the broker cannot be asked now."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The judgement on one request.

    user: "" for operators. forbidden: names beyond the user's rights. reason: why it is UNKNOWN.
    """

    admission: Admission
    user: str = ""
    forbidden: tuple[str, ...] = ()
    reason: str = ""


def rights_for(wanted: Wanted) -> tuple[Right, ...]:
    """Return the rights of which one is enough to create it: a user may publish to it, or consume from it."""
    match wanted:
        case Topic() | Delay():
            return (Right("write", wanted.exchange),)
        case Subscription() | Stream():
            return (Right("read", wanted.amqp_queue),)
        case Queue():
            return (Right("write", wanted.exchange), Right("read", wanted.amqp_queue))


@dataclass(slots=True)
class _Known:
    until_s: float
    rights: set[Right] = field(default_factory=set)


class Login:
    """The judge of `Authorization` headers.

    token: the operators' token, read at every use. try_login: returns which of these rights a user has, None
    when the broker refuses user or password; raises LinkLost when it cannot say.
    """

    def __init__(
        self,
        *,
        token: Callable[[], Secret],
        try_login: Callable[[str, Secret, Collection[Right]], Awaitable[set[Right] | None]],
    ) -> None:
        self.token = token
        self._try_login = try_login
        self._salt = os.urandom(16)
        # Logins that were good at some time. Each entry says whether its login still is.
        self._good: dict[bytes, _Known] = {}
        self._waiting = Counter[tuple[str, bool]]()
        self._waiting_strangers = 0
        self._tries = {known: asyncio.Semaphore(TRIES_AT_ONCE) for known in (False, True)}
        self._created: dict[str, set[str]] = {}
        self._proving: dict[bytes, asyncio.Task[Judged]] = {}

    def is_operator(self, header: str) -> bool:
        """Return whether the header carries the operators' token."""
        scheme, _, text = header.partition(" ")
        if scheme.lower() != "bearer":
            return False
        try:
            return Secret(text.strip()) == self.token()
        except ConfigError:
            return False

    async def is_user(self, header: str) -> bool:
        """Return whether a header has a good login; those that ask by one at the same time share its try."""
        basic = _read_basic(header)
        if basic is None:
            return self.is_operator(header)
        mark = self._mark(*basic)
        known = self._good.get(mark)
        if known is not None and known.until_s > time.monotonic():
            return True
        proving = self._proving.get(mark)
        if proving is None:
            proving = self._proving[mark] = asyncio.create_task(self.admit(header, {}))
            proving.add_done_callback(lambda _: self._proving.pop(mark))
        return (await asyncio.shield(proving)).admission is Admission.YES

    async def admit(self, header: str, wanted: Mapping[str, Wanted]) -> Judged:
        """Judge a header: the operators' token, or a good broker login, and its rights on all of these."""
        if self.is_operator(header):
            return Judged(admission=Admission.YES)
        basic = _read_basic(header)
        if basic is None:
            return Judged(admission=Admission.NO)
        user, mark = basic[0], self._mark(*basic)
        asked = {name: rights_for(each) for name, each in wanted.items()}
        known = self._good.get(mark)
        if known is None or known.until_s <= time.monotonic():
            known = _Known(time.monotonic() + REMEMBERED_S)
        elif all(known.rights.intersection(rights) for rights in asked.values()):
            return Judged(admission=Admission.YES, user=user)
        # One right of each name is enough, and most users have the first: the others are seldom asked for.
        for turn in range(max(map(len, asked.values()), default=1)):
            unsure = [
                rights[turn]
                for rights in asked.values()
                if len(rights) > turn and not known.rights.intersection(rights)
            ]
            if turn and not unsure:
                break
            try:
                with self._place(user, is_known=mark in self._good) as tries:
                    async with tries:
                        found = await self._try_login(*basic, unsure)
            except LinkLost as fault:
                return Judged(admission=Admission.UNKNOWN, reason=fault.reason)
            if found is None:
                self._good.pop(mark, None)
                return Judged(admission=Admission.NO)
            known.rights |= found
        self._remember(mark, known)
        forbidden = (n for n, rights in asked.items() if not known.rights.intersection(rights))
        return Judged(admission=Admission.YES, user=user, forbidden=tuple(forbidden))

    def has_room(self, user: str, names: Iterable[str], alive: Callable[[str], bool]) -> bool:
        """Return whether a user may make these, too, and count them as made. alive: whether a name exists."""
        new = {name for name in names if not alive(name)}
        if not user or not new:
            return True
        made = {name for name in self._created.get(user, ()) if alive(name)} | new
        if len(made) > NAMES_PER_USER_MAX:
            return False
        self._created[user] = made
        return True

    @contextlib.contextmanager
    def _place(self, user: str, *, is_known: bool) -> Iterator[asyncio.Semaphore]:
        """Take a waiting place, of known logins or of others. Raises LinkLost when none is free."""
        place = (user, is_known)
        full = self._waiting[place] >= WAITING_PER_USER_MAX
        if full or (not is_known and self._waiting_strangers >= WAITING_MAX):
            raise LinkLost("", "too many logins wait to be tried")
        self._waiting[place] += 1
        self._waiting_strangers += not is_known
        try:
            yield self._tries[is_known]
        finally:
            self._waiting_strangers -= not is_known
            self._waiting[place] -= 1
            if not self._waiting[place]:
                del self._waiting[place]

    def _mark(self, user: str, password: Secret) -> bytes:
        text = f"{len(user)}:{user}:{password.reveal()}".encode()
        return hmac.digest(self._salt, text, hashlib.sha256)

    def _remember(self, mark: bytes, known: _Known) -> None:
        if len(self._good) >= REMEMBERED_MAX:
            self._good.clear()
        self._good[mark] = known


def _read_basic(header: str) -> tuple[str, Secret] | None:
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = (
            base64.b64decode(text.strip(), validate=True).decode().partition(":")
        )
    except ValueError:
        return None
    return (user, Secret(password)) if colon and user else None
