"""Clients of the bus for each principal: the gateway's own, and those of bus logins, closed when idle."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from messagebus import (
    AsyncConsumer,
    AsyncPublisher,
    BusConfig,
    ConsumerConfig,
    LoginRefused,
    MessageBusError,
    NotReady,
    PublisherConfig,
    Secret,
    Source,
    declare,
)
from messagebus._io.agents.registration import credentials
from messagebus._io.amqp.control import Right, rights_of
from messagebus.admin import count_subscriptions
from messagebus.clock import monotonic_ms, whole_ms
from messagebus.services.gateway.people import Principal
from messagebus.services.gateway.problems import Problem, problem_of_fault

log = logging.getLogger("messagebus.gateway")

Login = tuple[str, Secret] | None

LOGINS_MAX = 100
IDLE_S = 60.0
LOGIN_TIMEOUT_S = 5.0
STOP_S = 10.0
COUNT_EVERY_MS = 1_000
# A login that the bus has taken is believed for so long, as agents believe it.
PROVEN_MS, PROVEN_MAX = 60_000, 1_000
# Logins that are tried at the bus at once. Those that were good before have places of their own, which
# strangers cannot fill; of new ones so many wait, in all and of one source.
TRIES_AT_ONCE, WAITING_MAX, WAITING_OF_SOURCE_MAX = 8, 1_000, 100


class Bus(Protocol):
    """Maker of clients; they are not started."""

    def publisher(self, login: Login) -> AsyncPublisher: ...

    def consumer(self, source: Source, config: ConsumerConfig, login: Login) -> AsyncConsumer: ...

    async def declare(self, name: str, login: Login) -> dict[str, str]:
        """Make it exist on every broker. Returns the brokers that lack it, each with its reason."""

    async def exists(self, source: Source) -> bool:
        """Return whether some broker has it; True as well where nobody can say."""

    async def takes(self, user: str, password: Secret) -> bool:
        """Return whether a broker takes this login. Raises MessageBusError when none can say."""

    async def may_read(self, source: Source, login: tuple[str, Secret]) -> bool:
        """Return whether a login may read it. Raises MessageBusError when no broker can say."""


class RealBus:
    """The bus behind the addresses of a `BusConfig`."""

    def __init__(self, bus: BusConfig, publisher: PublisherConfig) -> None:
        self._bus, self._publisher = bus, publisher
        self._counting, self._counted_ms = asyncio.Lock(), -COUNT_EVERY_MS
        self._there: set[str] | None = None  # when it was counted; None: nobody could say

    def publisher(self, login: Login) -> AsyncPublisher:
        return AsyncPublisher(self._as(login), self._publisher)

    def consumer(self, source: Source, config: ConsumerConfig, login: Login) -> AsyncConsumer:
        return AsyncConsumer(self._as(login), source, config=config)

    async def declare(self, name: str, login: Login) -> dict[str, str]:
        found = await asyncio.to_thread(declare, self._as(login), [name])
        return dict(found.missing)

    async def exists(self, source: Source) -> bool:
        """Ask all agents, at most once in COUNT_EVERY_MS for all callers."""
        asked_ms = monotonic_ms()
        async with self._counting:
            if self._counted_ms < asked_ms:
                await asyncio.sleep(max(0, self._counted_ms + COUNT_EVERY_MS - asked_ms) / 1000)
                self._counted_ms, self._there = monotonic_ms(), await self._count()
        return self._there is None or str(source) in self._there

    async def takes(self, user: str, password: Secret) -> bool:
        """Log in by another connection: those that are open say nothing of a password that has changed."""
        return await self._rights((user, password)) is not None

    async def may_read(self, source: Source, login: tuple[str, Secret]) -> bool:
        return bool(await self._rights(login, Right("read", source.amqp_queue)))

    async def _rights(self, login: Login, *rights: Right) -> set[Right] | None:
        who, timeout_ms = credentials(self._as(login)), whole_ms(LOGIN_TIMEOUT_S)
        return await rights_of(self._bus.address, who, rights, timeout_ms=timeout_ms)

    async def _count(self) -> set[str] | None:
        try:
            found = await asyncio.to_thread(count_subscriptions, self._bus)
        except MessageBusError:
            return None
        return {each.name for each in found.counts} if found.answered else None

    def _as(self, login: Login) -> BusConfig:
        if login is None:
            return self._bus
        user, password = login
        return replace(self._bus, user=user, password=password, user_file="", password_file="")


@dataclass(slots=True, eq=False)
class _Used:
    publisher: AsyncPublisher
    users: int = 0
    free_ms: int = 0


class Publishers:
    """One publisher for all tokens, and one for each bus login.

    on_refused: called with a principal whose login the bus does not take any more. Principals whose login
    the bus has taken are kept, the latest PROVEN_MAX of them.
    """

    def __init__(self, bus: Bus, on_refused: Callable[[Principal], None] = lambda _: None) -> None:
        self._bus, self._on_refused = bus, on_refused
        self._proven: OrderedDict[str, tuple[int, Principal]] = OrderedDict()
        self._tries = {known: asyncio.Semaphore(TRIES_AT_ONCE) for known in (False, True)}
        self._waiting = Counter[str]()
        self.own = bus.publisher(None)
        self._others: dict[str, _Used] = {}
        # Whoever waits keeps it: a login that is refused leaves nothing behind.
        self._opening: weakref.WeakValueDictionary[str, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    async def start(self) -> None:
        await self.own.start()

    async def stop(self) -> int:
        """Wait for what is under way. Returns how many publishes have no end."""
        others = [each.publisher for each in self._others.values()]
        ends = await asyncio.gather(*(each.stop(STOP_S) for each in (self.own, *others)))
        return sum(ends)

    @asynccontextmanager
    async def of(self, principal: Principal) -> AsyncIterator[AsyncPublisher]:
        """Use a principal's publisher. Raises Problem 401, 403 and 503."""
        principal.check_lasts()
        if principal.login is None:
            yield self.own
            return
        used = self._others.get(principal.name)
        if used is None:
            async with self._opening.setdefault(principal.name, asyncio.Lock()):
                used = self._others.get(principal.name) or await self._open(principal)
        used.users += 1
        try:
            yield used.publisher
        finally:
            used.users -= 1
            used.free_ms = monotonic_ms()

    async def prove(self, principal: Principal, source: str = "") -> None:
        """Have the bus take a login again, unless it did so within PROVEN_MS. Raises Problem 401 and 503.

        source: where the request comes from. While no broker can say, a login that was good before goes on.
        """
        name = principal.name
        if principal.login is None or self._is_proven(name):
            return
        async with self._opening.setdefault(name, asyncio.Lock()):
            if self._is_proven(name):
                return
            try:
                with self._waits(source, is_known=name in self._proven) as tries:
                    async with tries:
                        takes = await self._bus.takes(*principal.login)
            except MessageBusError:
                return
            if takes:
                self._proven[name] = monotonic_ms(), principal
                self._proven.move_to_end(name)
                if len(self._proven) > PROVEN_MAX:
                    self._proven.popitem(last=False)
                return
            self._proven.pop(name, None)
            used = self._others.pop(name, None)
        self._on_refused(principal)
        if used is not None:
            await used.publisher.stop(STOP_S)
        detail = "the bus refuses this login"
        raise Problem(401, detail, outcome="not sent", docs=LoginRefused.docs)

    @contextmanager
    def _waits(self, source: str, *, is_known: bool) -> Iterator[asyncio.Semaphore]:
        """Wait for a try among those of known logins, or of others. Raises Problem 503."""
        if is_known:
            yield self._tries[True]
            return
        if self._waiting[source] >= WAITING_OF_SOURCE_MAX or self._waiting.total() >= WAITING_MAX:
            detail = "too many logins wait to be tried at the bus"
            raise Problem(503, detail, outcome="not sent", retry=True, retry_after_s=1)
        self._waiting[source] += 1
        try:
            yield self._tries[False]
        finally:
            self._waiting[source] -= 1
            self._waiting = +self._waiting  # without sources that have none

    def _is_proven(self, name: str) -> bool:
        found = self._proven.get(name)
        return found is not None and monotonic_ms() - found[0] < PROVEN_MS

    async def _open(self, principal: Principal) -> _Used:
        if len(self._others) >= LOGINS_MAX:
            detail = f"more than {LOGINS_MAX} bus logins are in use"
            raise Problem(503, detail, outcome="not sent", retry=True, retry_after_s=IDLE_S)
        publisher = self._bus.publisher(principal.login)
        try:
            await publisher.start(require="one", timeout_s=LOGIN_TIMEOUT_S)
        except LoginRefused as fault:
            raise problem_of_fault(fault) from None
        except NotReady as fault:
            raise Problem(
                *(503, str(fault)),
                outcome="not sent",
                retry=True,
                retry_after_s=1,
                docs=fault.docs,
            ) from None
        used = self._others[principal.name] = _Used(publisher, free_ms=monotonic_ms())
        return used

    async def close_idle(self) -> None:
        """End publishers of logins that nobody used for long. Called now and then."""
        before_ms = monotonic_ms() - whole_ms(IDLE_S)
        idle = [
            n for n, each in self._others.items() if not each.users and each.free_ms < before_ms
        ]
        gone = [self._others.pop(name).publisher for name in idle]
        await asyncio.gather(*(each.stop(STOP_S) for each in gone))
