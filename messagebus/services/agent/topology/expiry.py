"""The deletion of unused expiring subscriptions, on all brokers.

RabbitMQ lets a queue expire by itself (`x-expires`), each broker for itself. That alone is not enough:
the map still wants it, so it would be made again for ever. So each agent watches the use of expiring
subscriptions on its own broker: consumers of the queue, clients that fetch the list for it, and
registrations. When it saw no use for longer than the expiry, it asks the others. When a majority knows of
no use either, one of them leaves the tombstone. A queue that expired while the subscription is in use
elsewhere is made again, and its messages are reported as a loss.

An agent that lost sight of its broker has seen nothing: it starts to count anew, so an outage keeps a
subscription longer, never shorter. A consumer that comes late registers first, which makes an expired
queue again at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator

from messagebus.errors import LinkError, TopologyError
from messagebus.services.agent.broker.upkeep import Upkeep
from messagebus.services.agent.consumer_list import ListFile
from messagebus.services.agent.topology.agreement import Topology
from messagebus.services.agent.topology.peers import Peers
from messagebus.services.agent.topology.register import majority
from messagebus.services.agent.web.metrics import Figure

log = logging.getLogger("messagebus.agent")

# One passive declaration per expiring subscription; a shorter use may not be seen.
LOOK_INTERVAL_S = 1.0
# A subscription without its queue that was used within this time is in use now, and is made
# again. Otherwise RabbitMQ was a little earlier than we are, and its time soon ends here too.
IN_USE_S = 2 * LOOK_INTERVAL_S


class Uses:
    """The observed uses of expiring subscriptions on one broker. Other parts of the agent report here.

    look_now: set when a queue may have expired.
    """

    def __init__(self) -> None:
        self.at_s: dict[str, float] = {}
        self.look_now = asyncio.Event()

    def used(self, name: str, ago_s: float = 0.0) -> None:
        """Record a use of it, present or about to come."""
        at_s = time.monotonic() - ago_s
        self.at_s[name] = max(at_s, self.at_s.get(name, at_s))

    def gone(self, _name: str) -> None:
        """Look at once: its queue may have expired."""
        self.look_now.set()


class Expiry:
    """One agent's part in expiry. Runs on one loop.

    clients: subscriptions for which a client fetched the list here, and the seconds since then.
    """

    def __init__(
        self,
        *,
        me: str,
        uses: Uses,
        upkeep: Upkeep,
        topology: Topology,
        peers: Peers,
        lists: ListFile,
        clients: Callable[[], Iterable[tuple[str, float]]],
    ) -> None:
        self._me, self._uses = me, uses
        self._upkeep, self._topology, self._peers = upkeep, topology, peers
        self._lists, self._clients = lists, clients
        self._dials = 0
        self.deleted = 0

    def figures(self) -> Iterator[Figure]:
        yield Figure("expired", self.deleted)

    def unused_s(self) -> dict[str, float | None]:
        """Return the seconds without use of each expiring subscription here; None: it was not watched."""
        linked, now_s = self._upkeep.link.is_open, time.monotonic()
        return {
            name: now_s - self._uses.at_s[name] if linked and name in self._uses.at_s else None
            for name in self._upkeep.expiring()
        }

    async def run(self) -> None:
        """Look every LOOK_INTERVAL_S, for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await self._uses.look_now.wait()
            self._uses.look_now.clear()
            try:
                await self.look()
            except (LinkError, TopologyError) as fault:
                log.info("expiring subscriptions not looked at reason=%s", fault)

    async def look(self) -> None:
        """Watch once, and decide. Raises LinkError or TopologyError."""
        expiring = self._upkeep.expiring()
        if self._dials != self._upkeep.link.dials:  # nobody watched between the links
            self._dials = self._upkeep.link.dials
            self._uses.at_s.clear()
        if not self._upkeep.link.is_open:
            return
        self._uses.at_s = {n: at_s for n, at_s in self._uses.at_s.items() if n in expiring}
        for name, ago_s in self._clients():
            if name in expiring:
                self._uses.used(name, ago_s)
        gone = set[str]()
        for name in expiring:
            try:
                consumers = await self._upkeep.use_of(name)
            except LinkError:
                if name in self._upkeep.expiring():
                    raise
                continue  # deleted while the others were looked at
            if consumers is None:
                gone.add(name)
            elif consumers or name not in self._uses.at_s:
                self._uses.used(name)
        # It may have expired before it was first watched.
        for name in gone - self._uses.at_s.keys():
            self._uses.used(name, expiring[name] + LOOK_INTERVAL_S)
        await self._decide(expiring, gone)

    async def _decide(self, expiring: dict[str, int], gone: set[str]) -> None:
        mine = self.unused_s()
        due = {n for n in expiring if n in gone or (mine.get(n) or 0.0) > expiring[n]}
        current = self._lists.current
        if not due or current is None:
            return
        answers = {self._me: mine, **await self._peers.unused(current.listed)}
        for name in sorted(due):
            known = {b: s for b, told in answers.items() if (s := told.get(name)) is not None}
            # Each step waits, and a consumer that stops deletes its own meanwhile.
            if not known or name not in self._upkeep.expiring():
                continue
            if name in gone and min(known.values()) < IN_USE_S:
                await self._upkeep.make_again(name, lost=True)
            elif min(known.values()) <= expiring[name]:
                continue
            elif len(known) >= majority(len(current.listed)) and min(known) == self._me:
                await self._delete(name, known)

    async def _delete(self, name: str, known: dict[str, float]) -> None:
        log.info("subscription expired name=%s unused_s=%.0f", name, min(known.values()))
        await self._topology.change([name], alive=False)
        self.deleted += 1
