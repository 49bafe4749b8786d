"""Queue in memory that behaves like RabbitMQ's: its takers, redeliveries and expiry.

Not thread-safe: its broker holds the lock. Times are milliseconds of the bus's own clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Protocol

from messagebus._io.amqp.copy_headers import counted, numbered, read_ttl_ms
from messagebus.clock import wall_ms

__all__ = ["Address", "Arrived", "MemoryQueue", "MemoryStream", "Stored", "Taker"]

NEVER_MS = 1 << 62
# Flag in the first byte of a property list: the message has a time to live.
EXPIRATION = 1

Arrived = tuple[int, bool, bytes, bytes]
"""A delivery on its way to its taker: tag, whether redelivered, properties, body."""


class Address(Protocol):
    """Exchange and routing key by which a message got into a queue."""

    exchange: str
    key: str


class Stored:
    """Message in a queue. place: kept by a classic queue when it is given back.

    is_brief: its time to live is 0, so it waits for nobody once it is at the head.
    """

    __slots__ = ("address", "body", "deliveries", "expires_ms", "is_brief", "place", "raw")

    def __init__(self, place: int, address: Address, raw: bytes, body: bytes) -> None:
        self.place = place
        self.address = address
        self.raw = raw
        self.body = body
        self.deliveries = 0
        self.expires_ms = NEVER_MS
        self.is_brief = False


class Taker:
    """Consumers of one link, one after the other, of one queue. Its tags never begin anew.

    bring: gives deliveries to its link; called under the lock. prefetch: 0 for no limit.
    """

    __slots__ = ("_before", "bring", "last_tag", "prefetch", "queue", "unacked")

    def __init__(
        self, queue: MemoryQueue, prefetch: int, bring: Callable[[list[Arrived]], None]
    ) -> None:
        self.queue, self.prefetch, self.bring = queue, prefetch, bring
        self.unacked: dict[int, Stored] = {}
        self.last_tag = 0
        self._before = 0

    def again(self, prefetch: int) -> None:
        """Consume again: deliveries that the cancelled consumer left unanswered take none of its room."""
        self.prefetch = prefetch
        self._before = self.last_tag

    @property
    def room(self) -> int:
        if not self.prefetch:
            return NEVER_MS
        before = sum(tag <= self._before for tag in self.unacked) if self._before else 0
        return self.prefetch - len(self.unacked) + before


class MemoryQueue:
    """Queue. arguments: as given to queue.declare. dead_letter(queue, stored, reason): takes dead letters."""

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, str | int | bool],
        *,
        delivery_limit: int | None,
        dead_letter: Callable[[MemoryQueue, Stored, str], None],
        clock: Callable[[], int],
    ) -> None:
        self.name, self.arguments = name, arguments
        self._dead_letter, self._clock = dead_letter, clock
        self.is_quorum = arguments.get("x-queue-type") == "quorum"
        limits = [arguments.get("x-delivery-limit"), delivery_limit]
        found = [int(limit) for limit in limits if limit is not None]
        self._delivery_limit = min(found) if found and self.is_quorum else NEVER_MS
        self.ttl_ms = int(arguments["x-message-ttl"]) if "x-message-ttl" in arguments else None
        self.expires_ms = int(arguments["x-expires"]) if "x-expires" in arguments else None
        self._single_active = bool(arguments.get("x-single-active-consumer"))
        self.ready: deque[Stored] = deque()
        self._returned = 0  # number of messages at the head that were given back, in that order
        self._brief: list[Stored] = []  # just put: takers with room now may have them
        self.takers: deque[Taker] = deque()
        self._leaving: set[Taker] = set()  # takers that get no more, and owe answers
        self._timed = False
        self.unused_since_ms = clock()

    # In.
    def put(self, stored: Stored, *, ttl_ms: int | None = None) -> None:
        """Add a message at the end. ttl_ms: its time to live, in place of its own. `hand_out` follows."""
        if stored.raw[0] & EXPIRATION or self.ttl_ms is not None or ttl_ms is not None:
            own_ms = read_ttl_ms(stored.raw) if ttl_ms is None else ttl_ms
            lives_ms = [each for each in (own_ms, self.ttl_ms) if each is not None]
            if lives_ms:
                self._timed = True
                stored.expires_ms = self._clock() + min(lives_ms)
                if not min(lives_ms):
                    stored.is_brief = True
                    self._brief.append(stored)
        self.ready.append(stored)

    def take_all(self) -> list[Stored]:
        """Take out the messages that wait, in order."""
        taken, self._returned = list(self.ready), 0
        self.ready.clear()
        return taken

    def _put_back(self, returned: list[Stored]) -> None:
        """Put messages back, or dead-letter those that came back too often. returned: in order.

        A quorum queue hands out returned messages before anything else, in that order; a classic one
        puts each into its old place.
        """
        kept = []
        for stored in returned:
            stored.deliveries += 1
            if stored.deliveries > self._delivery_limit:
                self._dead_letter(self, stored, "delivery_limit")
            else:
                kept.append(stored)
        ready = self.ready
        if self.is_quorum:
            for stored in kept:
                ready.insert(self._returned, stored)
                self._returned += 1
            return
        if kept and (not ready or kept[-1].place < ready[0].place):
            ready.extendleft(reversed(kept))
            return
        for stored in kept:
            at = next((n for n, each in enumerate(ready) if each.place > stored.place), len(ready))
            ready.insert(at, stored)

    # Out.
    def attach(self, taker: Taker) -> None:
        self._leaving.discard(taker)
        if taker not in self.takers:
            self.takers.append(taker)
        self.hand_out()

    def cancel(self, taker: Taker) -> None:
        """Stop deliveries to the taker; it may still answer those that it has."""
        if taker in self.takers:
            self.takers.remove(taker)
            self._leaving.add(taker)
            self.unused_since_ms = self._clock()
            self.hand_out()

    def detach(self, taker: Taker) -> None:
        """Remove the taker and take its open deliveries back; a quorum queue in the order of its tags."""
        if taker in self.takers:
            self.takers.remove(taker)
            self.unused_since_ms = self._clock()
        self._leaving.discard(taker)
        left = list(taker.unacked.values())
        if not self.is_quorum:
            left.sort(key=lambda stored: stored.place)
        taker.unacked.clear()
        self._put_back(left)
        self.hand_out()

    def hand_out(self) -> None:
        """Hand out to takers with room in turns; with a single active consumer to the first one."""
        if self._timed:
            self.expire()
        if self.ready and self.takers:
            self._share_out()
        self._brief.clear()
        if self.ready and self.ready[0].is_brief:
            self.expire()

    def _share_out(self) -> None:
        if len(self.takers) == 1 or self._single_active:
            taker = self.takers[0]
            count = min(len(self.ready), taker.room)
            if count > 0:
                self._give(taker, count)
            return
        while self.ready and (found := self._next_with_room()) is not None:
            self._give(found, 1)

    def _next_with_room(self) -> Taker | None:
        for _ in range(len(self.takers)):
            self.takers.rotate(-1)
            if self.takers[-1].room > 0:
                return self.takers[-1]
        return None

    def _give(self, taker: Taker, count: int) -> None:
        given: list[Arrived] = []
        tag, unacked = taker.last_tag, taker.unacked
        for _ in range(count):
            if self._timed and not self._is_fresh():
                break
            stored = self._pop()
            tag += 1
            unacked[tag] = stored
            if stored.deliveries:
                raw = counted(stored.raw, stored.deliveries) if self.is_quorum else stored.raw
                given.append((tag, True, raw, stored.body))
            else:
                given.append((tag, False, stored.raw, stored.body))
        taker.last_tag = tag
        if given:
            taker.bring(given)

    def _pop(self) -> Stored:
        self._returned = max(0, self._returned - 1)
        return self.ready.popleft()

    def _is_fresh(self) -> bool:
        """Return whether there is a first message, and its time is not over."""
        self.expire()
        return bool(self.ready)

    # Answers.
    def ack(self, taker: Taker, tag: int, multiple: bool) -> list[Stored]:
        """Return the messages that this ack answers, in order. `hand_out` follows."""
        unacked = taker.unacked
        if not multiple:
            stored = unacked.pop(tag, None)
            return [] if stored is None else [stored]
        if tag >= taker.last_tag or not tag:
            found = list(unacked.values())
            unacked.clear()
            return found
        tags = [each for each in unacked if each <= tag]
        return [unacked.pop(each) for each in tags]

    def nack(self, taker: Taker, tag: int, requeue: bool) -> Stored | None:
        """Give a message back, for any taker with room, or dead-letter it. `hand_out` follows."""
        stored = taker.unacked.pop(tag, None)
        if stored is None:
            return None
        if requeue:
            self._put_back([stored])
            self.hand_out()
        else:
            self._dead_letter(self, stored, "rejected")
        return stored

    # Time.
    def due_ms(self) -> int:
        """Return when the message at the head expires; others behind it do not count."""
        return self.ready[0].expires_ms if self._timed and self.ready else NEVER_MS

    def expire(self) -> None:
        """Dead-letter messages at the head that have expired."""
        now_ms = self._clock()
        while self.ready and self.ready[0].expires_ms <= now_ms:
            if self.ready[0] in self._brief:
                return
            self._dead_letter(self, self._pop(), "expired")

    def gone_ms(self) -> int:
        """Return when an unused queue that expires is deleted."""
        if self.expires_ms is None or self.takers:
            return NEVER_MS
        return self.unused_since_ms + self.expires_ms

    @property
    def unacked(self) -> int:
        return sum(len(taker.unacked) for taker in (*self.takers, *self._leaving))


class MemoryStream(MemoryQueue):
    """Stream: keeps what is put, and each taker reads it from a place of its own."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.kept: list[Stored] = []
        self._kept_ms: list[int] = []  # by the broker's clock
        self._next: dict[Taker, int] = {}

    def put(self, stored: Stored, *, ttl_ms: int | None = None) -> None:
        self.kept.append(stored)
        self._kept_ms.append(wall_ms())

    def read_from(self, taker: Taker, offset: object) -> None:
        """Set the place of a taker: "first", "last", "next", an offset, or a time."""
        end = len(self.kept)
        match offset:
            case "last":
                at = max(0, end - 1)
            case int():
                at = offset
            case datetime():
                since_ms = int(offset.timestamp()) * 1000
                at = next((n for n, ms in enumerate(self._kept_ms) if ms >= since_ms), end)
            case _:
                at = 0 if offset == "first" else end
        self._next[taker] = at

    def detach(self, taker: Taker) -> None:
        if taker in self.takers:
            self.takers.remove(taker)
        self._leaving.discard(taker)
        self._next.pop(taker, None)
        taker.unacked.clear()

    def hand_out(self) -> None:
        for taker in self.takers:
            at = self._next[taker]
            given: list[Arrived] = []
            for stored in self.kept[at : at + max(0, taker.room)]:
                taker.last_tag += 1
                taker.unacked[taker.last_tag] = stored
                raw = numbered(stored.raw, at + len(given))
                given.append((taker.last_tag, False, raw, stored.body))
            if given:
                self._next[taker] = at + len(given)
                taker.bring(given)
