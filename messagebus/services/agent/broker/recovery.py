"""Recovery of a broker's queues: after its boot, before the gate may open, and at intervals later.

A queue that died at boot is started again. One that is still being read from disk has no leader yet:
it is listed as live and its declaration is answered, but it confirms nothing. 600,000 messages of
1 KB in four queues took 10 to 18 s on two busy cores after a SIGKILL. A publisher let in by the gate
waited that long for its first confirm. Behind a shut gate nobody waits: others take the publishes.

`Ladder` is the exit of the delay ladder, with the messages that found no queue there. It is declared before
the queues of the map and bound after them. A message that is due while they are not all bound waits in its
step, and does not count as undelivered.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Iterator

from messagebus._io.amqp.control import Control
from messagebus.destination import UNDELIVERED_QUEUE
from messagebus.services.agent.broker.settle import Settler
from messagebus.services.agent.web.metrics import Figure
from messagebus.topology import LADDER

log = logging.getLogger("messagebus.agent")

# Limit of the wait, so that one queue that never comes back does not hold the others back for ever. Some
# millions of messages are read in this time.
LEADERS_WAIT_S = 120.0
# Dead-letter workers end without notice by the broker; until they are started again no message leaves a
# delay step.
LOOK_EVERY_S = 10.0
NAMES_SHOWN = 3
STREAMS = "mb.stream/"
# Dead-lettering that was started again in so many of the last looks is ended by a message, not by chance.
LOOKS_KEPT, ENDS_AGAIN_MIN = 6, 3


class Recovery:
    """The recovery of one broker.

    revived: number of dead queues started again, in all. dead: names of those that stay dead.
    """

    def __init__(self, broker: str, settler: Settler) -> None:
        self._broker, self._settler = broker, settler
        self._waiting_since_s: float | None = None
        self._looked_s = 0.0
        self.revived = 0
        self.dead: frozenset[str] = frozenset()
        self._ended = deque[bool](maxlen=LOOKS_KEPT)

    @property
    def fault(self) -> str:
        """Queues that neither take nor give, and the first step; "" when there are none."""
        if self.dead:
            some = ", ".join(sorted(self.dead)[:NAMES_SHOWN])
            more = (
                f" and {len(self.dead) - NAMES_SHOWN} more" if len(self.dead) > NAMES_SHOWN else ""
            )
            why = "their processes are dead: restart the broker"
            if any(name.startswith(STREAMS) for name in self.dead):
                why += "; a stream that stays dead has lost its coordinator: OPERATIONS.md"
            return f"queues take and give nothing: {some}{more} ({why})"
        if sum(self._ended) >= ENDS_AGAIN_MIN:
            return (
                "dead-lettering ends again and again: delays, retries and parking stand still "
                "(a message with a strange x-death: its queue is named in the broker's log)"
            )
        return ""

    def figures(self) -> Iterator[Figure]:
        yield Figure("queues_revived", self.revived)
        yield Figure("queues_dead", len(self.dead))

    async def revive(self) -> None:
        """Start dead queues: one that died at boot would hold every confirm back."""
        await self._revive_dead_lettering()
        revived = await self._settler.queues_revived()
        if revived:
            log.warning("queues revived broker=%s queues=%d", self._broker, revived)
            self.revived += revived

    async def look(self) -> None:
        """Restart what has ended, and note what stays dead. Acts every LOOK_EVERY_S."""
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            await self._revive_dead_lettering()
            await self.find_dead()

    async def find_dead(self) -> frozenset[str]:
        """Start dead queues again, and return the names of those that stay dead."""
        before, found = self.fault, await self._settler.queues_dead()
        if found:
            await self._settler.queues_revived()
            found = await self._settler.queues_dead()
        if found is not None:
            self.dead = frozenset(found)
        if self.fault != before:
            log.warning("queues stuck broker=%s reason=%r", self._broker, self.fault)
        return self.dead

    async def _revive_dead_lettering(self) -> None:
        self._looked_s = time.monotonic()
        workers = await self._settler.dead_lettering_revived()
        self._ended.append(bool(workers))
        if workers:
            log.warning("dead-lettering revived broker=%s queues=%d", self._broker, workers)

    async def has_leaders(self) -> bool:
        """Return whether the queues can confirm; True after LEADERS_WAIT_S, and where it is unknown."""
        leaderless = await self._settler.queues_without_leader()
        if not leaderless:
            return True
        now_s = time.monotonic()
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
            log.info("queues are read from disk broker=%s queues=%d", self._broker, leaderless)
        if now_s - self._waiting_since_s < LEADERS_WAIT_S:
            return False
        log.warning(
            "queues without a leader broker=%s queues=%d waited_s=%.0f",
            self._broker,
            leaderless,
            LEADERS_WAIT_S,
        )
        return True

    def begin_anew(self) -> None:
        """Reset the wait: the link ended, and the next one may lead to another boot."""
        self._waiting_since_s = None


# Every REPAIR_EVERY-th look declares the ladder again, in case a part was deleted.
REPAIR_EVERY = 10


class Ladder:
    """The exit of the ladder on one broker.

    leads_out: every due message leaves its step, for its queue or the undelivered queue. undelivered:
    number of messages there, None before the first look.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._looks = itertools.count(1)
        self._logged = 0
        self.leads_out = False
        self.undelivered: int | None = None

    def figures(self) -> Iterator[Figure]:
        if self.undelivered is not None:
            yield Figure("undelivered", self.undelivered)

    async def begin(self, control: Control) -> None:
        """Declare the exchanges and queues that the map's bindings need. Raises LinkError."""
        self.leads_out = False
        await control.declare(LADDER)

    async def lead_out(self, control: Control) -> None:
        """Bind the exit, after all queues are bound and its own is settled. Raises LinkError."""
        if self.leads_out:
            return
        await control.bind(LADDER)
        self.leads_out = True

    async def look(self, control: Control) -> None:
        """Count the undelivered messages, and log when there are more. Raises LinkError.

        leads_out is False afterwards when their queue has vanished.
        """
        found = await control.counts(UNDELIVERED_QUEUE)
        if found is None:
            log.warning("queue vanished broker=%s name=%s", self._broker, UNDELIVERED_QUEUE)
            await self.begin(control)
            return
        if self.leads_out and not next(self._looks) % REPAIR_EVERY:
            await control.declare(LADDER)
            await control.bind(LADDER)
        self._log(found[0])

    def _log(self, undelivered: int) -> None:
        """Log a line for the first of them, and whenever there are twice as many."""
        self.undelivered = undelivered
        if undelivered >= max(1, 2 * self._logged):
            log.warning(
                "delayed messages found no queue broker=%s messages=%d"
                " (messagebus parked list undelivered)",
                self._broker,
                undelivered,
            )
            self._logged = undelivered
        elif undelivered < self._logged:
            self._logged = undelivered
