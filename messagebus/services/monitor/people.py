"""People and programs that look at the page: their roles, passwords, sessions and tries.

A role may do what the roles before it may. Without anybody configured everybody on this host is a viewer.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from messagebus import Secret
from messagebus.clock import whole_ms
from messagebus.http.allowance import Allowances
from messagebus.http.connections import source_of

SESSION_S = 12 * 3_600
SESSIONS_MAX = 1_000
TRIES_PER_MINUTE = 5
# Requests of one session or address: so many at once, and so many each second; a page counts for several.
BURST, RATE_PER_S = 200, 100
# 32 MiB and about 80 ms a password.
SCRYPT_N, SCRYPT_R, SCRYPT_P = 1 << 15, 8, 1
SCRYPT_MEMORY_MAX = 64 * 1024 * 1024
PASSWORD_BYTES_MAX = 1_024
PASSWORD_FORM = re.compile(r"scrypt:[A-Za-z0-9+/]{22}==:[A-Za-z0-9+/]{43}=")

Clock = Callable[[], float]


class Role(enum.IntEnum):
    """Role of somebody who looks; each may do all that those before it may."""

    NOBODY = 0
    VIEWER = 1
    """Sees everything except bodies, keys and headers of messages."""
    READER = 2
    """Also sees these; the journal records each look."""
    OPERATOR = 3
    """Redrives and drops parked messages, drains brokers."""
    ADMIN = 4
    """Also purges, deletes and declares."""


ROLES = {role.name.lower(): role for role in Role if role is not Role.NOBODY}


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody with a password, kept as its hash."""

    name: str
    password: Secret
    role: Role


@dataclass(frozen=True, slots=True)
class Token:
    """A program's bearer token, kept as its SHA-256."""

    name: str
    sha256: bytes
    role: Role


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy before us, of these networks. header: names the people that it has logged in; "" for none.

    others: role of those that roles does not name.
    """

    header: str
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
    roles: Mapping[str, Role]
    others: Role | None

    def has(self, address: str) -> bool:
        """Return whether an address is one of the proxy's."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self.networks)

    def client_of(self, peer: str, forwarded: Sequence[str]) -> str:
        """Return who calls: the last address in ``X-Forwarded-For`` that is not the proxy's own."""
        for address in (
            each.strip() for text in reversed(forwarded) for each in reversed(text.split(","))
        ):
            if not self.has(peer):
                break
            peer = address
        return peer


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who sent a request. form_token: what each of their forms must carry; "" where none can."""

    name: str
    role: Role
    form_token: str = field(default="", repr=False)


NOBODY = Principal("", Role.NOBODY)


def hash_password(text: str) -> str:
    """Return the text for the settings file; two calls differ by their salt."""
    salt = secrets.token_bytes(16)
    return f"scrypt:{_text(salt)}:{_text(_scrypt(text, salt))}"


def is_password(text: str, kept: Secret) -> bool:
    """Return whether the text is the password; takes 80 ms of a core: not for an event loop."""
    _, salt, digest = kept.reveal().split(":")
    return hmac.compare_digest(_scrypt(text, base64.b64decode(salt)), base64.b64decode(digest))


def _scrypt(text: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        text.encode("utf-8", "surrogatepass")[:PASSWORD_BYTES_MAX],
        salt=salt,
        n=SCRYPT_N,
        r=SCRYPT_R,
        p=SCRYPT_P,
        maxmem=SCRYPT_MEMORY_MAX,
        dklen=32,
    )


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


# Of nobody: a login with an unknown name takes as long as one with a known.
_UNKNOWN = Secret("scrypt:AAAAAAAAAAAAAAAAAAAAAA==:" + "A" * 43 + "=")


class Logins:
    """Everybody who may look, and the sessions of those who logged in. One thread; `check` for any."""

    def __init__(
        self,
        people: Sequence[Person] = (),
        tokens: Sequence[Token] = (),
        proxy: Proxy | None = None,
        *,
        clock: Clock = time.monotonic,
    ) -> None:
        self._clock = clock
        self._sessions: OrderedDict[bytes, tuple[Principal, float]] = OrderedDict()
        # Of those who have no session: everybody on this host, programs, people of a proxy.
        self._form_key = secrets.token_bytes(32)
        # By address alone: a limit of a name would be used up by strangers, who know the name.
        self._tries = Allowances(burst=TRIES_PER_MINUTE, rate_per_s=TRIES_PER_MINUTE / 60)
        self._people: dict[str, Person] = {}
        self.change(people, tokens, proxy)

    def change(
        self, people: Sequence[Person], tokens: Sequence[Token], proxy: Proxy | None
    ) -> None:
        """Take other people. Sessions of those who are gone, or have another password or role, end."""
        before, self._people = self._people, {each.name: each for each in people}
        self._tokens, self._proxy = tuple(tokens), proxy
        for digest, (who, _) in list(self._sessions.items()):
            if self._people.get(who.name) != before.get(who.name):
                del self._sessions[digest]

    @property
    def is_open(self) -> bool:
        """True while nobody is configured: everybody on this host is a viewer."""
        return not (self._people or self._tokens or (self._proxy and self._proxy.header))

    def check(self, name: str, password: str) -> bool:
        """Return whether this is their password; takes 80 ms, the same for unknown names. Any thread."""
        person = self._people.get(name)
        right = is_password(password, person.password if person else _UNKNOWN)
        return right and person is not None

    def may_try(self, address: str) -> bool:
        """Count a try from an address; False: there were too many. A right one does not count."""
        return self._tries.take(source_of(address), whole_ms(self._clock()))

    def was_right(self, address: str) -> None:
        """Count a try from an address no more."""
        self._tries.give_back(source_of(address))

    def begin(self, name: str) -> str:
        """Begin a session of somebody whose password was right, and return its secret for the cookie.

        Returns "" for somebody who is there no more.
        """
        if name not in self._people:
            return ""
        secret = secrets.token_urlsafe(32)
        principal = Principal(name, self._people[name].role, secrets.token_urlsafe(32))
        self._sessions[_digest(secret)] = principal, self._clock() + SESSION_S
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return secret

    def end(self, secret: str) -> None:
        """End a session, if it is one."""
        self._sessions.pop(_digest(secret), None)

    def by_session(self, secret: str) -> Principal | None:
        """Return whose session it is; None when it ended."""
        found = self._sessions.get(_digest(secret)) if secret else None
        if found is None:
            return None
        principal, until_s = found
        if until_s <= self._clock():
            self.end(secret)
            return None
        return principal

    def by_token(self, text: str) -> Principal | None:
        """Return the program whose bearer token it is."""
        digest = _digest(text)
        for each in self._tokens:
            if hmac.compare_digest(digest, each.sha256):
                return Principal(each.name, each.role)
        return None

    def by_proxy(self, address: str, headers: Callable[[str], list[str]]) -> Principal | None:
        """Return whom a proxy names; None unless it is one of the named addresses, and names one.

        headers: returns all of one name. Of two, one may be the caller's own that the proxy has passed on.
        """
        if self._proxy is None or not (self._proxy.header and self._proxy.has(address)):
            return None
        names = headers(self._proxy.header)
        name = names[0] if len(names) == 1 else ""
        role = self._proxy.roles.get(name, self._proxy.others) if name else None
        return None if role is None else Principal(name, role, self._form_token(name))

    def anybody(self) -> Principal:
        """Return who a request without any login is."""
        return Principal("", Role.VIEWER, self._form_token("")) if self.is_open else NOBODY

    def _form_token(self, name: str) -> str:
        return hmac.new(self._form_key, name.encode(), hashlib.sha256).hexdigest()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
