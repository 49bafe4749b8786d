"""The segments of a partitioned topic that one consumer is attached to; `core.group` decides which.

Runs on the consumer's loop. Each segment is a queue on the home of its partition. To `core.membership` and
the inbox it is a broker of its own, by the name ``host:port#7.1``, with a channel of its own on the one
connection to that home. A channel is closed and never cancelled, so what it holds comes again, in order, to
the next consumer. The main channel of the connection consumes the queue that counts the members.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from messagebus._io.amqp.link import CLOSING_TIMEOUT_S, Link
from messagebus._io.loop import Tasks
from messagebus._io.wire import ASK_AGAIN_S, Wire, follow_homes
from messagebus.broker import Broker
from messagebus.clock import monotonic_ms
from messagebus.core.group import Group
from messagebus.core.homes import Home, joined, read_chains, segment_of
from messagebus.destination import Subscription
from messagebus.errors import LinkError
from messagebus.message import SEGMENT_MARK
from messagebus.topology import Options

log = logging.getLogger("messagebus.consumer")

ROUND_MS, COUNT_MS = 250, 2_000
COUNT_TIMEOUT_S = 1.0


def broker_of(name: str) -> str:
    """Return the broker of a segment's name, or of a broker's."""
    return name.partition(SEGMENT_MARK)[0]


class Segments:
    """The segments of one consumer.

    delivered: name -> number of deliveries of its current channel. on_change: called with the names of the
    segments to be attached to, when these have changed.
    """

    def __init__(
        self,
        wire: Wire,
        source: Subscription,
        options: Options,
        *,
        delivered: Callable[[str], int],
        on_change: Callable[[list[str]], None],
    ) -> None:
        self._wire, self._source = wire, source
        self._delivered, self._on_change = delivered, on_change
        self._homes, self._count_of = str(options["homes"]), int(options["partitions"])
        self._all = self._first_unfinished()
        self._group = Group(secrets.token_hex(8), self._count_of)
        self.names = list(self._all)
        """The segments to be attached to."""
        self._members: dict[str, int] = {}
        self._left: set[str] = set()
        self._parents: dict[str, asyncio.Task[Link]] = {}
        self._tasks, self._closing = Tasks(), Tasks()
        self._round_ms = self._count_ms = 0
        self._tasks.keep_running(self._follow, ASK_AGAIN_S)

    def _follow(self) -> Coroutine[Any, Any, None]:
        """Ask the agents for other homes from now on."""
        topic = self._source.topic.name
        return follow_homes(self._wire.topology(), topic, lambda: self._homes, self._learn, log=log)

    def _first_unfinished(self) -> list[str]:
        """Return, of each partition, the first segment that may have something for us: the others wait."""
        chains = read_chains(self._homes, self._count_of)
        homes = (chain.first(self._source.name) for chain in chains)
        return [_name(partition, home) for partition, home in enumerate(homes)]

    def _learn(self, text: str, _sent_ms: int) -> bool:
        """Go to the next segment of a partition when the one before is finished."""
        known = self._homes
        self._homes = joined(known, text or known, self._count_of)
        if self._homes == known:  # an agent may know less than we do
            return False
        now = self._first_unfinished()
        moved = {old: new for old, new in zip(self._all, now, strict=True) if old != new}
        if moved:
            topic = self._source.topic.name
            log.info("partitions moved topic=%s segments=%s", topic, ",".join(moved.values()))
            self._all = now
            self.names = [moved.get(name, name) for name in self.names]
            self._on_change(self.names)
        return True

    def queue(self, name: str) -> str:
        """Return the queue of a segment."""
        return self._source.segment_queue(name.partition(SEGMENT_MARK)[2])

    @property
    def members(self) -> int:
        """The number of consumers of the group, as far as it is known."""
        return max(self._members.values(), default=1)

    @property
    def active(self) -> list[str]:
        """The segments that are served to this consumer."""
        return [name for name in self._all if self._delivered(name)]

    async def dial(self, name: str, *, timeout_ms: int) -> Link:
        """Open a channel for a segment on the connection to its home. Raises as `Wire.dial`."""
        broker = broker_of(name)
        task = self._parents.get(broker)
        if task is None or (task.done() and not _is_open(task)):
            task = asyncio.create_task(self._dial(broker, timeout_ms))
            self._parents[broker] = task
        parent = await asyncio.shield(task)
        return await parent.open_channel()

    async def _dial(self, broker: str, timeout_ms: int) -> Link:
        link = await self._wire.dial(Broker.parse(broker), timeout_ms=timeout_ms)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await link.call(
                    "basic_consume",
                    queue=self._source.group_queue,
                    on_message_callback=lambda *_: None,
                    consumer_tag="messagebus-member",
                )
        except BaseException:
            await link.hang_up()
            raise
        return link

    def tick(self) -> None:
        """Count the members, and begin a round, when it is time."""
        now = monotonic_ms()
        if now - self._count_ms >= COUNT_MS:
            self._count_ms = now
            self._leave_former_homes()
            for broker, task in self._parents.items():
                if task.done() and _is_open(task):
                    self._tasks.spawn(self._count(broker, task.result()))
        if now - self._round_ms >= ROUND_MS:
            self._round_ms = now
            names = self._group.wanted(self._all, self.active, self.members, random.random())
            if names and names != self.names:
                self.names = names
                self._on_change(names)

    def _leave_former_homes(self) -> None:
        """Hang up on brokers without a segment for us, now and in the last look: they may be stopped."""
        without = self._parents.keys() - set(map(broker_of, self._all))
        for broker in without & self._left:
            if (task := self._parents.pop(broker)).done() and _is_open(task):
                self._closing.spawn(task.result().close())
            self._members.pop(broker, None)
        self._left = without

    async def _count(self, broker: str, link: Link) -> None:
        with contextlib.suppress(LinkError, TimeoutError):
            async with asyncio.timeout(COUNT_TIMEOUT_S):
                found = await link.call(
                    "queue_declare", queue=self._source.group_queue, passive=True
                )
                self._members[broker] = found.consumer_count
                return
        self._members.pop(broker, None)

    async def stop(self) -> None:
        """Close the connections."""
        await self._tasks.cancel()
        for task in self._parents.values():
            if not task.done():
                task.cancel()
            elif _is_open(task):
                self._closing.spawn(task.result().close())
        await self._closing.finish(CLOSING_TIMEOUT_S)


def _name(partition: int, home: Home) -> str:
    return f"{home.broker}{SEGMENT_MARK}{segment_of(partition, home)}"


def _is_open(task: asyncio.Task[Link]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().is_open
