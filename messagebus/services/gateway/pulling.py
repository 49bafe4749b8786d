"""Deliveries for callers: one consumer a subscription and login, leases, and the demand of callers."""

# A delivery:  buffered by the consumer ─ pull ─▶ leased ─┬─ ack, retry, park ─▶ answered
#                                                         ├─ release, a cancelled call, lost rights ─▶ nacked
#                                                         └─ its time is over ─▶ nacked, counted
#
# A reader:    none ─ first caller ─▶ attached ─ nobody asks ─▶ rests, its buffer given back ─▶ let go
#
# Owners: `Leases` has who holds what until when, `Demand` how many callers wait for; a `Reader` has one
# consumer; `Pulls` has them all, ticks each TICK_MS, and is called by HTTP requests and WebSockets on one
# loop.

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import logging
import secrets
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from messagebus import (
    AsyncConsumer,
    ConsumerConfig,
    Delivery,
    MessageBusError,
    NotReady,
    Source,
    Status,
)
from messagebus.clock import monotonic_ms, whole_ms
from messagebus.envelope import tagged
from messagebus.services.gateway.clients import Bus
from messagebus.services.gateway.config import Limits
from messagebus.services.gateway.demand import LINGER_MS, TICK_MS, Demand, LetGo, Rest
from messagebus.services.gateway.leases import DONE, STALE, Lease, Leases
from messagebus.services.gateway.people import Principal
from messagebus.services.gateway.problems import Problem

log = logging.getLogger("messagebus.gateway")

LEASE_S_MIN, LEASE_S_MAX = 1.0, 900.0
AHEAD_MAX = 1_000
FIRST_MAX = 50  # of each broker, until the demand is known
READERS_MAX = 1_000
STOP_S = 5.0
# A comment of a stream is sent when nothing else was, so that proxies keep the connection.
HOLDING_WAIT_S = 15.0
HOLDING_PULL_MAX, HOLDING_PULL_BYTES = 100, 1 << 20
ACK_SAFE_S = 10.0
KEY_BYTES, SESSION_BYTES = 32, 4


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A leased delivery. freed: called when its lease ends, however."""

    reader: Reader
    delivery: Delivery
    freed: Callable[[Lease[Held]], None] | None = None


class Reader:
    """One subscription for one login. Links live from the first caller until nobody has asked for long."""

    def __init__(self, consumer: AsyncConsumer, prefetch: int, source: str = "") -> None:
        self.consumer, self.source = consumer, source
        self.demand = Demand(monotonic_ms(), ahead_max=AHEAD_MAX)
        # All that waits may lie on one broker: more than its prefetch is not counted on.
        self.demand.credit = self._prefetch = prefetch
        self.held = 0
        self._used: Counter[str] = Counter()  # of each broker's prefetch, since it was granted
        self._granted_ns = 0
        self.buffered_since_ms: int | None = None

    async def take(
        self, most: int, wait_s: float, bytes_max: int, room: Callable[[], int]
    ) -> list[Delivery]:
        """Wait for a delivery and take what is there, no more than there is room for then, but one.

        Cancelled, it has taken nothing.
        """
        found: list[Delivery] = []
        size, demand = 0, self.demand
        demand.asks(most)
        try:
            self.look()
            if first := await self.consumer.receive(wait_s):
                found.append(first)
                size, count = len(first.body), min(most, room())
                while len(found) < count and size < bytes_max:
                    if (delivery := self.consumer.receive_immediate()) is None:
                        break
                    found.append(delivery)
                    size += len(delivery.body)
        finally:
            self.held += len(found)
            self._used.update(each.receipt.broker for each in found)
            demand.goes(most, len(found), monotonic_ms(), size)
        return found

    def ended(self, delivery: Delivery) -> None:
        """Note that a delivery is in nobody's hands any more."""
        self.held -= 1
        if delivery.received_ns >= self._granted_ns:
            self._used[delivery.receipt.broker] -= 1

    @property
    def spent(self) -> str:
        """The broker of which callers hold all that it may send; "" if each has room."""
        if not self._used:
            return ""
        ((broker, count),) = self._used.most_common(1)
        return broker if count >= self._prefetch else ""

    def look(self) -> bool:
        """Give back, grow or end as the demand says. Returns False when it is to end."""
        at_ms, buffered = monotonic_ms(), self.consumer.stats().buffered
        if not buffered:
            self.buffered_since_ms = None
        elif self.buffered_since_ms is None:
            self.buffered_since_ms = at_ms
        # Where order is kept all would go back first, behind what is held.
        fixed = self.consumer.in_order and self.held > 0
        spent = bool(self.spent)
        match self.demand.look(at_ms, buffered=buffered, held=self.held, spent=spent, fixed=fixed):
            case Rest(credit):
                brokers = max(1, len(self.consumer.stats().brokers))
                self._prefetch = max(1, -(-credit // brokers))
                self._used, self._granted_ns = Counter(), time.monotonic_ns()
                self.consumer.rest(prefetch=self._prefetch)
                self.buffered_since_ms = None
                if self.demand.callers:
                    self.consumer.resume()
            case LetGo():
                return False
        return True


class Pulls:
    """All readers and leases of one gateway."""

    def __init__(self, bus: Bus, name: str, limits: Limits) -> None:
        self._bus = bus
        session = secrets.token_hex(SESSION_BYTES)
        self.leases: Leases[Held] = Leases(
            name,
            session,
            secrets.token_bytes(KEY_BYTES),
            limits.leases_max,
            limits.leased_bytes_max,
        )
        self.readers: dict[tuple[str, str], Reader] = {}
        self._opening: weakref.WeakValueDictionary[tuple[str, str], asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._answering: dict[str, asyncio.Future[dict[str, str]]] = {}  # by token
        self._closing: set[asyncio.Task[int]] = set()
        self._ticking: asyncio.Task[None] | None = None
        self.expired = 0
        self._unheld = asyncio.Event()
        self._unheld.set()

    def start(self) -> None:
        self._ticking = asyncio.create_task(self._tick())

    async def reader(self, principal: Principal, source: Source, first: int) -> Reader:
        """Return the reader of a subscription, attached. Raises MessageBusError, and Problem.

        first: what its first caller wants; with less, what came would be given back for a larger prefetch.
        """
        login = "" if principal.login is None else principal.name
        place = (str(source), login)
        if found := self.readers.get(place):
            return found
        async with self._opening.setdefault(place, asyncio.Lock()):
            if found := self.readers.get(place):
                return found
            if len(self.readers) >= READERS_MAX:
                detail = f"more than {READERS_MAX:,} subscriptions are in use"
                raise Problem(503, detail, retry=True, retry_after_s=LINGER_MS / 1000)
            # A consumer creates what it names.
            if not (principal.may("declare", str(source)) or await self._bus.exists(source)):
                raise Problem(404, f"{source} was never declared, and {principal.name} may not")
            prefetch = min(first, FIRST_MAX)
            config = ConsumerConfig(prefetch=prefetch, handed_out_max=1_000_000)
            consumer = self._bus.consumer(source, config, principal.login)
            try:
                await consumer.start(require="one" if login else None, timeout_s=STOP_S)
            except NotReady:
                if principal.login and not await self._bus.may_read(source, principal.login):
                    raise Problem(403, f"the rights of this user do not cover {source}") from None
                raise
            made = self.readers[place] = Reader(consumer, prefetch, str(source))
        return made

    async def pull(
        self,
        principal: Principal,
        reader: Reader,
        most: int,
        *,
        wait_s: float,
        bytes_max: int,
        lease_s: float,
        kept: dict[str, Lease[Held]] | None = None,
        freed: Callable[[Lease[Held]], None] | None = None,
    ) -> list[Lease[Held]]:
        """Wait for deliveries and lease them. Cancelled, it has taken nothing.

        kept: gets the leases at once, by token, so that who is cancelled then can give them back.
        """
        leases = self.leases
        deliveries = await reader.take(most, wait_s, bytes_max, lambda: leases.room(principal.name))
        at_ms, lease_ms = monotonic_ms(), whole_ms(lease_s)
        self._unheld.clear()
        made = [
            leases.grant(principal.name, Held(reader, each, freed), at_ms, lease_ms, len(each.body))
            for each in deliveries
        ]
        if not len(leases):
            self._unheld.set()
        if kept is not None:
            kept |= {each.token: each for each in made}
        return made

    def take_back(self, by_name: Mapping[str, Principal]) -> None:
        """Give back what principals hold that are gone, or may not consume from it any more.

        by_name: who may call now.
        """
        for lease in self.leases.held():
            principal = by_name.get(lease.principal)
            if principal is None or not principal.may("consume", lease.item.reader.source):
                self.give_back([lease])
        for place, reader in list(self.readers.items()):
            if place[1] and place[1] not in by_name:
                del self.readers[place]
                self._end(reader)

    def give_back(self, leases: Iterable[Lease[Held]]) -> None:
        """End leases whose deliveries nobody has got, and give these back."""
        for lease in leases:
            if self.leases.end(lease):
                self._released(lease)

    def _released(self, lease: Lease[Held]) -> bool:
        held = self._ended(lease)
        return held.reader.consumer.nack(held.delivery)

    def _ended(self, lease: Lease[Held]) -> Held:
        held = lease.item
        held.reader.ended(held.delivery)
        if not len(self.leases):
            self._unheld.set()
        if held.freed is not None:
            held.freed(lease)
        return held

    async def answer(
        self, principal: Principal, what: str, tokens: Sequence[str], **how: Any
    ) -> list[str]:
        """Answer leases: "ack", "release", "retry", "park" or "extend". Returns the end of each, in order.

        how: after_s of retry, reason of retry and park, lease_s of extend, confirmed of ack.
        """
        if what == "extend":
            lease_ms = whole_ms(how["lease_s"])
            ends = [self.leases.extend(t, principal.name, monotonic_ms(), lease_ms) for t in tokens]
            return [each if isinstance(each, str) else "done" for each in ends]
        taken = [self.leases.take(token, principal.name, what) for token in tokens]
        # Answers to the same leases whose end is not known yet: of another request, or before in this one.
        before = {each: found for each in tokens if (found := self._answering.get(each))}
        pairs = zip(tokens, taken, strict=True)
        told = {token: STALE for token, lease in pairs if isinstance(lease, Lease)}
        ended: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._answering |= dict.fromkeys(told, ended)
        try:
            if what == "ack" and how.get("confirmed"):
                answers = await self._ack_safe(taken)
            else:
                answers = await self._answer(what, taken, how)
            for token, lease, end in zip(tokens, taken, answers, strict=True):
                if isinstance(lease, Lease):
                    told[token] = end
                    if end != DONE:
                        self.leases.failed(lease)
        finally:
            for token in told:
                del self._answering[token]
            ended.set_result(told)
        for place, (token, lease) in enumerate(zip(tokens, taken, strict=True)):
            if lease == DONE and (other := before.get(token, ended if token in told else None)):
                answers[place] = (await asyncio.shield(other))[token]
        return answers

    async def _answer(
        self, what: str, taken: Sequence[Lease[Held] | str], how: Mapping[str, Any]
    ) -> list[str]:
        answers: list[str] = []
        copies: list[tuple[int, Any]] = []
        for place, lease in enumerate(taken):
            if isinstance(lease, str):
                answers.append(lease)
                continue
            if what == "release":
                done = self._released(lease)
            else:
                held = self._ended(lease)
                consumer = held.reader.consumer
                if what == "ack":
                    done = consumer.ack(held.delivery)
                else:
                    reason = how.get("reason", "")
                    copying = (
                        consumer.park(held.delivery, reason=reason)
                        if what == "park"
                        else consumer.retry(held.delivery, after_s=how["after_s"], reason=reason)
                    )
                    copies.append((place, copying))
                    done = True
            answers.append("done" if done else "stale")
        copied = await asyncio.gather(*(each for _, each in copies), return_exceptions=True)
        for (place, _), end in zip(copies, copied, strict=True):
            answers[place] = "done" if end is True else "stale"
        return answers

    async def _ack_safe(self, taken: Sequence[Lease[Held] | str]) -> list[str]:
        """Ack all, and wait for a round trip behind the last one on each link."""
        answers, last = [], dict[tuple[int, str, int], tuple[Held, list[int]]]()
        for place, lease in enumerate(taken):
            answers.append(lease if isinstance(lease, str) else "done")
            if isinstance(lease, str):
                continue
            held = self._ended(lease)
            receipt = held.delivery.receipt
            link = (id(held.reader), receipt.broker, receipt.epoch)
            before = last.get(link)
            if before is not None and not before[0].reader.consumer.ack(before[0].delivery):
                answers[before[1][-1]] = "stale"
            last[link] = (held, [*(before[1] if before else ()), place])

        async def confirm(held: Held, places: list[int]) -> None:
            if not await held.reader.consumer.ack_safe(held.delivery, ACK_SAFE_S):
                for place in places:
                    answers[place] = "stale"

        await asyncio.gather(*(confirm(*each) for each in last.values()))
        return answers

    @property
    def buffered(self) -> int:
        """Deliveries that were fetched and are in nobody's hands."""
        return sum(each.consumer.stats().buffered for each in self.readers.values())

    @property
    def buffered_oldest_s(self) -> float:
        """Time for which something has been buffered at most."""
        since = [s for each in self.readers.values() if (s := each.buffered_since_ms) is not None]
        return (monotonic_ms() - min(since)) / 1000 if since else 0.0

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            try:
                for lease in self.leases.run_out(monotonic_ms()):
                    self.expired += 1
                    self._released(lease)
                for place, reader in list(self.readers.items()):
                    if not reader.look():
                        del self.readers[place]
                        self._end(reader)
            except MessageBusError:
                log.exception("tick failed")

    def _end(self, reader: Reader, drain_s: float = STOP_S) -> None:
        task = asyncio.create_task(reader.consumer.stop(drain_s))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def drain(self, grace_s: float) -> None:
        """Wait until no lease is held, for so long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._unheld.wait()

    async def stop(self) -> int:
        """Give back what is still leased, and end all links. Returns how many leases there were."""
        if self._ticking is not None:
            self._ticking.cancel()
        left = self.leases.end_all()
        for lease in left:
            self._released(lease)
        for reader in self.readers.values():
            if reader.consumer.status is Status.RUNNING:
                self._end(reader)
        self.readers.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)
        return len(left)


def body_of(delivery: Delivery) -> dict[str, str]:
    """Return the body as a member: as text where it is one."""
    try:
        return {"body": delivery.body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(delivery.body).decode()}


class Holding:
    """The leases of a stream or a socket of one subscription, by token. freed: set when one ends."""

    def __init__(self, pulls: Pulls, reader: Reader, principal: Principal, lease_s: float) -> None:
        self._pulls, self._reader, self._principal = pulls, reader, principal
        self._lease_s = lease_s
        self._leases: dict[str, Lease[Held]] = {}
        self.freed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def is_full(self) -> bool:
        """True while its principal holds all the leases it may."""
        return not self._pulls.leases.room(self._principal.name)

    def room(self, most: int) -> int:
        """Return the number that a pull may ask for, at most this; 0 or less for none."""
        return min(most, HOLDING_PULL_MAX, self._pulls.leases.room(self._principal.name))

    async def pull(self, most: int) -> list[Lease[Held]]:
        """Wait for deliveries and lease them. Cancelled, it has taken nothing."""
        return await self._pulls.pull(
            self._principal,
            self._reader,
            most,
            wait_s=HOLDING_WAIT_S,
            bytes_max=HOLDING_PULL_BYTES,
            lease_s=self._lease_s,
            kept=self._leases,
            freed=self._end,
        )

    def give_back(self) -> None:
        """Give back what is unanswered."""
        self._pulls.give_back(list(self._leases.values()))

    def _end(self, lease: Lease[Held]) -> None:
        self._leases.pop(lease.token, None)
        self.freed.set()


def as_json(lease: Lease[Held]) -> dict[str, Any]:
    """Return a leased delivery as JSON."""
    delivery = lease.item.delivery
    message = delivery.message
    found: dict[str, Any] = {
        "id": message.message_id,
        "lease": lease.token,
        "lease_until": _written(lease.until_ms),
        "broker": delivery.receipt.broker,
        "redelivered": delivery.redelivered,
        "attempt": delivery.attempt,
        "key": message.key,
        "content_type": message.content_type,
        "headers": {name: tagged(value) for name, value in message.headers.items()},
    }
    for name in ("type", "correlation_id", "reply_to", "priority", "content_encoding", "app_id"):
        if value := getattr(message, name):
            found[name] = value
    return found | body_of(delivery)


@functools.lru_cache(maxsize=1024)  # of all deliveries of a pull it is the same
def _written(until_ms: int) -> str:
    """Return a time of the monotonic clock as text, by the clock of now."""
    until = datetime.now(UTC) + timedelta(milliseconds=until_ms - monotonic_ms())
    return until.isoformat(timespec="milliseconds").replace("+00:00", "Z")
