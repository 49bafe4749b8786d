"""Leases: who holds which delivery until when. Pure: times are passed in, in whole milliseconds.

A lease is written ``<gateway>.<session>.<number>.<mac>``. The mac, 128 bits over the rest, the principal
and the place of the delivery, makes it impossible to guess and of one principal only. The session is that
of the process: after a restart no lease of before is good. How the latest were answered is kept: an answer
whose own answer got lost is given again, and is told the same.
"""

from __future__ import annotations

import heapq
import hmac
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

DONE, ANSWERED, STALE, UNKNOWN = "done", "answered", "stale", "unknown"
MAC_BYTES = 16
TOKEN_CHARS_MAX = 200
RECENT = 1 << 17  # leases whose answers are kept, a byte each
ENDS_SPARE = 100  # old entries beside the leases, before they are swept
_WAYS = ("", "ack", "release", "retry", "park")


@dataclass(slots=True)
class Lease(Generic[T]):
    """One delivery in a principal's hands. token: its written form. size: bytes that it keeps here."""

    token: str
    principal: str
    item: T
    until_ms: int
    number: int
    size: int = 0


class Leases(Generic[T]):
    """All leases of one gateway process. key: of the macs. most, bytes_most: by principal."""

    def __init__(
        self, gateway: str, session: str, key: bytes, most: int, bytes_most: int = 1 << 40
    ) -> None:
        self._begin = f"{gateway}.{session}"
        self._key, self._most, self._bytes_most = key, most, bytes_most
        self._held: dict[int, Lease[T]] = {}
        self._ends: list[
            tuple[int, int]
        ] = []  # a heap; an entry whose lease has another end is old
        self._counts: dict[str, tuple[int, int]] = {}  # of each principal, and their bytes
        self._number = 0
        self._answers = bytearray(RECENT)  # of the latest, by number: how it was answered

    def __len__(self) -> int:
        return len(self._held)

    def held(self) -> list[Lease[T]]:
        """Return all leases."""
        return list(self._held.values())

    def room(self, principal: str) -> int:
        """Return how many more this principal may hold."""
        count, size = self._counts.get(principal, (0, 0))
        return max(0, self._most - count) if size < self._bytes_most else 0

    def grant(self, principal: str, item: T, now_ms: int, lease_ms: int, size: int = 0) -> Lease[T]:
        """Lease a delivery to a principal."""
        self._number += 1
        token = f"{self._begin}.{self._number}"
        mac, until_ms = self._mac(token, principal), now_ms + lease_ms
        lease = Lease(f"{token}.{mac}", principal, item, until_ms, self._number, size)
        self._answers[self._number % RECENT] = 0
        self._held[self._number] = lease
        count, held = self._counts.get(principal, (0, 0))
        self._counts[principal] = (count + 1, held + size)
        heapq.heappush(self._ends, (lease.until_ms, self._number))
        return lease

    def find(self, token: str, principal: str, what: str = "") -> Lease[T] | str:
        """Return the lease; or UNKNOWN: not one of this principal; or how it ended.

        DONE: it was answered so before (what: "ack", "release", "retry", "park"); ANSWERED: in another way;
        STALE: it ran out, its link ended, or that is too long ago.
        """
        signed, _, mac = token[:TOKEN_CHARS_MAX].rpartition(".")
        begin, _, number = signed.rpartition(".")
        if begin != self._begin or not (number.isascii() and number.isdigit()):
            return UNKNOWN
        made = self._mac(signed, principal)
        if not hmac.compare_digest(mac.encode(errors="surrogatepass"), made.encode()):
            return UNKNOWN
        place = int(number)
        if found := self._held.get(place):
            return found
        before = self._answers[place % RECENT] if place > self._number - RECENT else 0
        return STALE if not before else DONE if _WAYS[before] == what else ANSWERED

    def take(self, token: str, principal: str, what: str) -> Lease[T] | str:
        """Return the lease and end it, answered so; else as `find`."""
        found = self.find(token, principal, what)
        if isinstance(found, Lease):
            self.end(found)
            self._answers[found.number % RECENT] = _WAYS.index(what)
        return found

    def failed(self, lease: Lease[T]) -> None:
        """Note that the answer to a lease that was taken did not arrive."""
        self._answers[lease.number % RECENT] = 0

    def end(self, lease: Lease[T]) -> bool:
        """End a lease. False: it has ended."""
        if self._held.pop(lease.number, None) is None:
            return False
        count, held = self._counts[lease.principal]
        if count > 1:
            self._counts[lease.principal] = (count - 1, held - lease.size)
        else:
            del self._counts[lease.principal]
        return True

    def extend(self, token: str, principal: str, now_ms: int, lease_ms: int) -> Lease[T] | str:
        """Let a lease end that long from now; else as `find`."""
        found = self.find(token, principal)
        if isinstance(found, Lease):
            found.until_ms = now_ms + lease_ms
            heapq.heappush(self._ends, (found.until_ms, found.number))
            if len(self._ends) > 2 * len(self._held) + ENDS_SPARE:
                self._ends = [(each.until_ms, n) for n, each in self._held.items()]
                heapq.heapify(self._ends)
        return found

    def run_out(self, now_ms: int) -> list[Lease[T]]:
        """End all leases whose time is over, and return them, the oldest first."""
        over = []
        while self._ends and self._ends[0][0] <= now_ms:
            until_ms, number = heapq.heappop(self._ends)
            lease = self._held.get(number)
            if lease is not None and lease.until_ms == until_ms:
                self.end(lease)
                over.append(lease)
        return over

    def end_all(self) -> list[Lease[T]]:
        """End all leases and return them."""
        held = list(self._held.values())
        for lease in held:
            self.end(lease)
        return held

    def _mac(self, token: str, principal: str) -> str:
        made = hmac.digest(self._key, f"{token}\0{principal}".encode(), "sha256")
        return made[:MAC_BYTES].hex()
