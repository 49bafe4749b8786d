"""The destinations of one publisher: registered before the first publish, refused when forbidden.

Runs on one asyncio loop. A destination opens when the destination is registered and the current link was
seen to have it. A broker that forbids an exchange closes the whole link for it. So a forbidden
destination is refused for REFUSED_S, or each publish to it would cost all the others their link. Publishing
does not create an undeclared queue, unless that is asked for: a mistyped name would keep messages without
a reader. Publishes to it are unroutable, and it is looked for again after ABSENT_S.

A publisher of thousands of destinations publishes over a new link at once: a dial looks for LOOKS_AT_ONCE of
them. The others *rest*, and the link is asked for each when a message waits for it. A destination that has
rested for FORGET_S is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from messagebus._io.amqp.link import Link
from messagebus._io.loop import Tasks
from messagebus._io.publish.targets import NO_SPOOL, Address
from messagebus._io.wire import Topology
from messagebus.core.ends import REFUSED, End, Item
from messagebus.core.pending import PendingPublishes
from messagebus.destination import Queue
from messagebus.errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    ChannelRefused,
    LinkError,
    LoginRefused,
    MessageBusError,
    reason_of,
)
from messagebus.topology import Options

log = logging.getLogger("messagebus.publisher")

REGISTER_TIMEOUT_MS = 30_000
RETRY_S = 0.1
REFUSED_S = 5.0
ABSENT_S = 1.0
# A first dial has half a second, login included. An idle RabbitMQ answers 500 such questions in 40 ms; one
# that declares its topics by itself makes several requests for each.
LOOKS_AT_ONCE = 100
FORGET_S = 3_600.0


@dataclass(frozen=True, slots=True)
class _Refusal:
    reason: str
    until_s: float
    unroutable: bool

    def holds_for(self, address: Address) -> bool:
        return time.monotonic() < self.until_s and not (self.unroutable and _creates(address))


@dataclass(frozen=True, slots=True)
class _Resting:
    address: Address
    until_s: float


class Destinations:
    """The open and refused destinations of a publisher.

    link: gives the current link. settle, wake, leave: callbacks of the driver.
    on_login_refused: called when an agent refuses our user; retrying does not help.
    """

    def __init__(
        self,
        topology: Topology,
        pending: PendingPublishes,
        tasks: Tasks,
        *,
        link: Callable[[], Link | None],
        settle: Callable[[list[Item]], None],
        wake: Callable[[], None],
        leave: Callable[[], None],
        on_login_refused: Callable[[LoginRefused], None],
    ) -> None:
        self._topology, self._pending, self._tasks = topology, pending, tasks
        self._backlog = pending.backlog
        self._link, self._settle, self._wake, self._leave = link, settle, wake, leave
        self._on_login_refused = on_login_refused
        self._loop = asyncio.get_running_loop()
        self.known: dict[str, Address] = {}
        """Name -> address of the destinations that are open or being opened."""
        self.deflated: set[str] = set()
        """Those whose topic is declared so that batches are compressed."""
        self._options = {""}  # a few: what programs ask of their destinations
        self._refusals: dict[str, _Refusal] = {}
        self.on_partitioned: Callable[[Address, Options, list[Item]], str] | None = None
        """Takes over a topic with partitions and what waits for it; returns why it does not, "" else."""
        self._partitioned: dict[str, Options] = {}
        # Destinations that a link found deleted; the next publish registers them again.
        self._gone: dict[str, Address] = {}
        self._resting: dict[str, _Resting] = {}
        self._to_look_for: dict[str, Address] = {}  # rested, and a message waits

    def use(self, address: Address) -> None:
        """Open the destination of an address for which a message is accepted in this turn of the loop."""
        destination = address.destination
        if destination in self.known:
            return
        if destination in self._partitioned:  # a call that began before this was known
            self._loop.call_soon(self._hand_on, address)
            return
        refusal = self._refusals.get(destination)
        if refusal is not None and refusal.holds_for(address):
            self._loop.call_soon(self._refuse_again, destination, refusal)
            return
        self.known[destination] = address
        self._options.add(address.options_text)
        self._gone.pop(destination, None)
        if self._resting.pop(destination, None) is not None:
            if not self._to_look_for:
                self._tasks.spawn(self._look(), cancelled=self._look_cancelled, pause_s=RETRY_S)
            self._to_look_for[destination] = address
            return
        if not address.wanted:
            self._backlog.open(destination)
            return
        self._spawn(self._open(address), address)

    def _refuse_again(self, destination: str, refusal: _Refusal) -> None:
        if destination not in self.known:
            items = self._pending.refuse_destination(
                destination, refusal.reason, unroutable=refusal.unroutable
            )
            self._settle(items)

    def of_place(self, place: str) -> list[str]:
        """Return the names of a place as it was asked for, of which publishes may be open on a link."""
        known = (self.known, self._resting, self._gone)
        names = [place + asked for asked in self._options]
        return [name for name in names if any(name in each for each in known)]

    def opening(self) -> list[str]:
        """Return the destinations that are being registered and settled. Other threads ask, too."""
        is_open = self._pending.is_usable
        return [each for each in list(self.known) if not is_open(each)]

    async def verify(self, link: Link) -> list[Address]:
        """Check which of the destinations in use a new link has; those that it lacks wait or are refused.

        Those for which messages wait come first. Returns those that were not looked for: they `rest` once the
        link is used. Raises LinkLost.
        """
        used = [
            each
            for destination, each in self.known.items()
            if each.wanted and self._pending.is_usable(destination)
        ]
        if len(used) > LOOKS_AT_ONCE:
            awaited = {item.destination for item in self._pending.unsettled()}
            used.sort(key=lambda each: each.destination not in awaited)
        await self._look_for(used[:LOOKS_AT_ONCE], link)
        self.open_held()
        return used[LOOKS_AT_ONCE:]

    def rest(self, addresses: list[Address]) -> None:
        """Close these until messages wait for them, and forget what has rested for long."""
        now_s = time.monotonic()
        old = {name for name, each in self._resting.items() if now_s >= each.until_s}
        if old:
            old -= {item.destination for item in self._pending.unsettled()}
        for name in old:
            del self._resting[name]
            self._backlog.forget(name)
        for name in [name for name, each in self._refusals.items() if now_s >= each.until_s]:
            del self._refusals[name]
        closed = {
            each.destination
            for each in addresses
            if self.known.get(each.destination) is each
            and self._pending.is_usable(each.destination)
        }
        if closed:
            self._pending.close(closed)
        for name in closed:
            self._resting[name] = _Resting(self.known.pop(name), now_s + FORGET_S)
        self.open_held()

    async def _look(self) -> None:
        """Open what rested and is wanted again, if the link has it."""
        while self._to_look_for:
            some = list(self._to_look_for.values())[:LOOKS_AT_ONCE]
            if (link := self._link()) is not None:  # else the next dial looks for what is open
                try:
                    await self._look_for(some, link)
                except LinkError:
                    await asyncio.sleep(RETRY_S)
                    continue
                if self._link() is not link:
                    continue
            for address in some:
                del self._to_look_for[address.destination]
                if self.known.get(address.destination) is address:
                    self._backlog.open(address.destination)
            self._wake()

    async def _look_for(self, addresses: list[Address], link: Link) -> None:
        """Close or refuse those of these that the link lacks. Raises LinkLost."""
        wanted = dict.fromkeys(each for address in addresses for each in address.wanted)
        faults = await self._topology.verify(link, wanted)
        for address in addresses:
            fault = next((faults[each] for each in address.wanted if each in faults), None)
            if fault is None or self.known.get(address.destination) is not address:
                continue
            if isinstance(fault, ChannelRefused) and fault.code == NOT_FOUND:
                self._close(address, str(fault))
            else:
                self._refuse(address, str(fault))

    def _close(self, address: Address, reason: str) -> None:
        log.info("destination gone destination=%s reason=%r", address.name, reason)
        self._gone[address.destination] = address
        del self.known[address.destination]
        self._pending.close({address.destination})

    def open_held(self) -> None:
        """Open what has vanished or rests, where messages wait for it; the rest stays closed."""
        resting = {name: each.address for name, each in self._resting.items()}
        for destination, address in (self._gone | resting).items():
            if self._backlog.holds(destination):
                self.use(address)

    def link_lost(self, why: LinkError) -> None:
        """Refuse messages for an exchange, if the broker closed the link because it is forbidden."""
        self.open_held()
        if not isinstance(why, ChannelRefused) or why.code != ACCESS_REFUSED:
            return
        for address in list(self.known.values()):
            if f"'{address.exchange}'" in why.reason:
                self._refuse(address, why.reason)

    async def _open(self, address: Address) -> None:
        try:
            for each in address.wanted:
                if isinstance(each, Queue) and not each.create and not await self._exists(each):
                    told = f"{each} was never declared; `declare` it, or publish to Queue(..., create=True)"
                    self._refuse(address, told, unroutable=True)
                    return
            found = await self._topology.register(
                address.wanted, timeout_ms=REGISTER_TIMEOUT_MS, enough=True
            )
            options = found.options.get(str(address.wanted[0]), {})
            if options.get("deflate") or getattr(address.wanted[0], "deflate", False):
                self.deflated.add(address.destination)
            if options.get("partitions"):
                self._partitioned[address.destination] = options
                self._hand_on(address)
                return
            if (link := self._link()) is not None:
                for fault in (await self._topology.verify(link, address.wanted)).values():
                    raise fault
        except LoginRefused as fault:
            self._on_login_refused(fault)
            self._refuse(address, str(fault))
        except LinkError as fault:
            if isinstance(fault, ChannelRefused) and fault.code == ACCESS_REFUSED:
                # Since RabbitMQ 4.2.6 a user without any right on an exchange may not even look at it.
                self._refuse(address, fault.reason)
                return
            # It ended meanwhile, or this broker lacks the exchange: the next link will have it.
            self._leave()
            self._spawn(self._open_later(address), address)
        except MessageBusError as fault:
            self._refuse(address, str(fault))
        else:
            self._backlog.open(address.destination)
            self._wake()

    def _spawn(self, opening: Coroutine[Any, Any, None], address: Address) -> None:
        self._tasks.spawn(opening, cancelled=lambda: self._cancelled(address), pause_s=RETRY_S)

    def _cancelled(self, *addresses: Address) -> None:
        """Have these opened again for their messages: the application has cancelled all tasks."""
        for address in addresses:
            if self.known.get(address.destination) is address:
                self._gone[address.destination] = self.known.pop(address.destination)
        self.open_held()

    def _look_cancelled(self) -> None:
        addresses = list(self._to_look_for.values())
        self._to_look_for.clear()
        self._cancelled(*addresses)

    def _hand_on(self, address: Address) -> None:
        """Have what waits for a partitioned topic published to the homes of its partitions."""
        options = self._partitioned[address.destination]
        if address.routing_key:
            told = f"{address.name} has partitions: a delayed message has no place in their order"
        elif self.on_partitioned is None:
            told = f"{address.name} {NO_SPOOL}"
        else:
            self.known.pop(address.destination, None)
            items = self._pending.take_out(lambda item: item.destination == address.destination)
            try:
                told = self.on_partitioned(address, options, items)
            except MessageBusError as fault:
                told = reason_of(fault)
            if not told:
                return
            self._settle(self._pending.ends.settle(items, End(REFUSED, told)))
        self._partitioned.pop(address.destination, None)
        self._refuse(address, told)

    async def _open_later(self, address: Address) -> None:
        await asyncio.sleep(RETRY_S)
        await self._open(address)

    async def _exists(self, queue: Queue) -> bool:
        return await self._topology.exists(queue, timeout_ms=REGISTER_TIMEOUT_MS)

    def _refuse(self, address: Address, reason: str, *, unroutable: bool = False) -> None:
        log.warning("destination refused destination=%s reason=%r", address.name, reason)
        destination = address.destination
        self.known.pop(destination, None)
        until_s = time.monotonic() + (ABSENT_S if unroutable else REFUSED_S)
        self._refusals[destination] = _Refusal(reason, until_s, unroutable)
        self._pending.close({destination})
        self._settle(self._pending.refuse_destination(destination, reason, unroutable=unroutable))


def _creates(address: Address) -> bool:
    return any(isinstance(each, Queue) and each.create for each in address.wanted)
