"""Callers: principals from a file of tokens, or the bus's own users. Secrets are never shown.

A file of tokens is TOML and is read again when it changes; a file that became unreadable keeps the tokens of
before, and is told in the log:

    [[token]]
    name = "shop"
    sha256 = "..."                  # of the token: `printf %s "$TOKEN" | sha256sum`
    # or: certificate = "shop.example", a name in the certificate that the client shows
    publish = ["orders", "clicks.*", "queue:jobs"]
    consume = ["orders/billing"]
    declare = ["orders/*"]
    rate_per_s = 1000               # messages; 0 or nothing: no limit
"""

from __future__ import annotations

import asyncio
import base64
import fnmatch
import hashlib
import logging
import math
import re
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from messagebus import ConfigError, Secret
from messagebus.config import read_toml
from messagebus.http.allowance import Bucket, Places
from messagebus.services.gateway.config import Limits
from messagebus.services.gateway.problems import Problem

log = logging.getLogger("messagebus.gateway")

LOOK_EVERY_MS = 1_000
_KEYS = {"name", "sha256", "certificate", "publish", "consume", "declare", "rate_per_s"}
_CHALLENGE = {"WWW-Authenticate": 'Bearer, Basic realm="messagebus"'}


@dataclass(eq=False, slots=True, weakref_slot=True)
class Principal:
    """Somebody who calls. publish, consume, declare: shell patterns of names.

    login: user and password of the bus, whose own rights decide; None: the gateway's own login is used.
    over: set when token or rights have changed, or the bus refuses the login: whatever is open ends.
    """

    name: str
    publish: tuple[str, ...] = ()
    consume: tuple[str, ...] = ()
    declare: tuple[str, ...] = ()
    login: tuple[str, Secret] | None = None
    bucket: Bucket = field(default_factory=lambda: Bucket(0))
    requests: Places = field(default_factory=lambda: Places(Limits().requests_max))
    sockets: Places = field(default_factory=lambda: Places(Limits().sockets_max))
    bodies: Places = field(default_factory=lambda: Places(Limits().bodies_bytes_max))
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def may(self, right: str, name: str) -> bool:
        """Return whether it has this right ("publish", "consume", "declare")."""
        patterns: tuple[str, ...] = getattr(self, right)
        return any(fnmatch.fnmatchcase(name, each) for each in patterns)

    def check_lasts(self) -> None:
        """Raise Problem 403 when its rights were taken, while a body came for one."""
        if self.over.is_set():
            raise Problem(403, f"{self.name} lost its rights meanwhile", outcome="not sent")

    def has_rights_of(self, other: Principal) -> bool:
        """Return whether another one may do the same, as fast."""
        mine, theirs = (
            (each.publish, each.consume, each.declare, each.bucket.rate_per_s)
            for each in (self, other)
        )
        return mine == theirs

    def check(self, right: str, name: str) -> None:
        """Raise Problem 403 unless it has this right."""
        if not self.may(right, name):
            raise Problem(403, f"{self.name} may not {right} {name}", outcome="not sent")

    def charge(self, count: int, now_ms: int) -> None:
        """Take messages from its rate. Raises Problem 429."""
        if not (wait_s := self.bucket.take(count, now_ms)):
            return
        rate = self.bucket.rate_per_s
        raise Problem(
            429,
            f"{self.name} sends more than {rate:g} messages a second",
            outcome="not sent",
            retry=True,
            retry_after_s=wait_s,
            headers={
                "RateLimit-Policy": f'"messages";q={rate:g};w=1',
                "RateLimit": f'"messages";r={self.bucket.left(now_ms)};t={int(wait_s) + 1}',
            },
        )


class People:
    """All principals. anonymous: "publish", "consume", "all" or ""."""

    def __init__(
        self, tokens_file: str, *, bus_login: bool, anonymous: str, limits: Limits, now_ms: int
    ) -> None:
        """Read the tokens. Raises ConfigError."""
        self._path, self._bus_login, self._limits = tokens_file, bus_login, limits
        self._tokens: dict[bytes, Principal] = {}
        self._file_mark: object = None
        # Whoever asks or holds something keeps it, and `Publishers` those that the bus has taken: logins of
        # strangers push out nobody's.
        self._logins: weakref.WeakValueDictionary[str, Principal] = weakref.WeakValueDictionary()
        self._looked_ms = now_ms
        if tokens_file:
            self._file_mark = _mark(tokens_file)
            self._take(read_tokens(tokens_file))
        self._anonymous = None
        if anonymous:
            every = ("*",)
            publishes, consumes = anonymous in ("publish", "all"), anonymous in ("consume", "all")
            self._anonymous = self._bounded(
                Principal(
                    "anonymous",
                    publish=every if publishes else (),
                    consume=every if consumes else (),
                    declare=every if anonymous == "all" else (),
                )
            )

    def principal(self, authorization: str, now_ms: int, names: Iterable[str] = ()) -> Principal:
        """Return who calls, by the header of that name, or else by the names in a certificate.

        Raises Problem 401.
        """
        self.look(now_ms)
        scheme, _, said = authorization.partition(" ")
        match scheme.lower():
            case "bearer":
                found = self._tokens.get(hashlib.sha256(said.strip().encode()).digest())
                if found is not None:
                    return found
                raise _unauthorized("this token is not known")
            case "basic" if self._bus_login:
                return self._login(said)
            case "":
                for name in names:
                    if found := self._tokens.get(_named(name)):
                        return found
        match scheme.lower():
            case "" if self._anonymous is not None:
                return self._anonymous
        raise _unauthorized("log in by a token" + (" or Basic" if self._bus_login else ""))

    def _login(self, credentials: str) -> Principal:
        try:
            user, colon, password = (
                base64.b64decode(credentials.strip(), validate=True).decode().partition(":")
            )
        except ValueError:
            raise _unauthorized("Basic credentials that cannot be read") from None
        if not (colon and user):
            raise _unauthorized("Basic credentials that cannot be read")
        # Whoever has another password is somebody else: his links are his own, and so are his leases.
        digest = hashlib.sha256(f"{user}\0{password}".encode()).hexdigest()[:16]
        found = self._logins.get(digest)
        if found is None:
            every = ("*",)
            found = self._logins[digest] = self._bounded(
                Principal(f"{user}#{digest}", every, every, every, login=(user, Secret(password)))
            )
        return found

    def by_name(self) -> dict[str, Principal]:
        """Return all who may call now, by their names."""
        known = *self._tokens.values(), *self._logins.values(), self._anonymous
        return {each.name: each for each in known if each is not None}

    def logins_in_use(self) -> list[Principal]:
        """Return those of the bus's own users who have something open."""
        return [e for e in self._logins.values() if e.requests.taken or e.sockets.taken]

    def refuse(self, principal: Principal) -> None:
        """End what a bus login has open: the bus does not take it any more."""
        principal.over.set()
        for digest, each in list(self._logins.items()):
            if each is principal:
                del self._logins[digest]

    def look(self, now_ms: int) -> None:
        """Read the tokens again if their file has changed, at most once in LOOK_EVERY_MS."""
        if now_ms - self._looked_ms < LOOK_EVERY_MS:
            return
        self._looked_ms = now_ms
        if not self._path or (mark := _mark(self._path)) == self._file_mark:
            return
        self._file_mark = mark
        try:
            self._take(read_tokens(self._path))
        except ConfigError as fault:
            log.error("tokens kept reason=%r", str(fault))
        else:
            log.info("tokens read count=%d", len(self._tokens))

    def _take(self, read: Mapping[bytes, Principal]) -> None:
        """Take over new tokens; who was there before keeps buckets and places.

        Principals stay the same as long as token and rights do; all others of before are over.
        """
        before = {each.name: (key, each) for key, each in self._tokens.items()}
        tokens = dict[bytes, Principal]()
        for key, each in read.items():
            old_key, old = before.get(each.name, (b"", None))
            if old is not None and old_key == key and old.has_rights_of(each):
                tokens[key] = old
                continue
            tokens[key] = self._bounded(each)
            if old is not None:
                each.requests, each.sockets = old.requests, old.sockets
                each.bodies, each.large = old.bodies, old.large
                if old.bucket.rate_per_s == each.bucket.rate_per_s:
                    each.bucket = old.bucket
        kept = {id(each) for each in tokens.values()}
        for each in self._tokens.values():
            if id(each) not in kept:
                each.over.set()
        self._tokens = tokens

    def _bounded(self, principal: Principal) -> Principal:
        principal.requests = Places(self._limits.requests_max)
        principal.sockets = Places(self._limits.sockets_max)
        principal.bodies = Places(self._limits.bodies_bytes_max)
        principal.large = asyncio.Semaphore(max(1, self._limits.large_turns // 2))
        return principal


def _unauthorized(detail: str) -> Problem:
    return Problem(401, detail, outcome="not sent", headers=_CHALLENGE)


def _named(certificate: str) -> bytes:
    """Return the key of a name in a certificate; no digest of a token has its length."""
    return b"a name in the certificate of a client: " + certificate.encode()


def _mark(path: str) -> object:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    # Of its permissions, too, only this one tells.
    return found.st_ctime_ns, found.st_size, found.st_ino


def read_tokens(path: str | Path) -> dict[bytes, Principal]:
    """Read a file of tokens. Raises ConfigError with every fault; it shows no digest."""
    values = read_toml(path)
    faults = [f"{key}: unknown; tables [[token]] wanted" for key in values if key != "token"]
    found: dict[bytes, Principal] = {}
    entries = values.get("token", [])
    if not isinstance(entries, list):
        entries, faults = [], [*faults, "token: tables [[token]] wanted"]
    for place, entry in enumerate(entries, start=1):
        try:
            digest, principal = _read_token(entry)
        except (ValueError, TypeError, KeyError) as fault:
            faults.append(f"token {place}: {fault}")
            continue
        if digest in found or any(each.name == principal.name for each in found.values()):
            faults.append(f"token {place} ({principal.name}): there is one before it")
        found[digest] = principal
    if faults:
        raise ConfigError(f"{path}: {'; '.join(faults)}")
    return found


def _read_token(entry: Any) -> tuple[bytes, Principal]:
    if not isinstance(entry, Mapping):
        raise TypeError("a table wanted")
    if unknown := set(entry) - _KEYS:
        raise ValueError(f"{min(unknown)}: unknown")
    name, rate = entry.get("name"), entry.get("rate_per_s", 0)
    if not (isinstance(name, str) and name.isprintable() and 0 < len(name) <= 100):
        raise ValueError("name: a text wanted")
    key = _read_key(entry.get("sha256"), entry.get("certificate"))
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise ValueError("rate_per_s: a number from 0")
    rights: dict[str, tuple[str, ...]] = {}
    for right in ("publish", "consume", "declare"):
        said = entry.get(right, [])
        if not (isinstance(said, list) and all(isinstance(each, str) for each in said)):
            raise ValueError(f"{right}: a list of names wanted")
        rights[right] = tuple(said)
    return key, Principal(
        name, rights["publish"], rights["consume"], rights["declare"], bucket=Bucket(rate)
    )


def _read_key(digest: Any, certificate: Any) -> bytes:
    """Return the key of a token's digest, or of a certificate's name. Raises ValueError."""
    if (digest is None) == (certificate is None):
        raise ValueError("sha256 or certificate wanted, not both")
    if certificate is not None:
        if not (isinstance(certificate, str) and certificate):
            raise ValueError("certificate: a name wanted")
        return _named(certificate)
    if not re.fullmatch(r"[0-9A-Fa-f]{64}", str(digest)):
        raise ValueError("sha256: 64 hexadecimal digits wanted")
    if str(digest).lower() == hashlib.sha256().hexdigest():
        raise ValueError("sha256: it is that of an empty text, which is no token")
    return bytes.fromhex(str(digest))
