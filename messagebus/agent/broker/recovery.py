"""Recovery of a broker's queues: after its boot, before the gate may open, and at intervals later.

A queue that died at boot is started again. One that is still being read from disk has no leader yet:
it is listed as live and its declaration is answered, but it confirms nothing. 600,000 messages of
1 KB in four queues took 10 to 18 s on two busy cores after a SIGKILL. A publisher let in by the gate
waited that long for its first confirm. Behind a shut gate nobody waits: others take the publishes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from messagebus._io.admin.settle import Settler
from messagebus.agent.metrics import Figure

__all__ = ["LEADERS_WAIT_S", "Recovery"]

log = logging.getLogger("messagebus.agent")

# Limit of the wait, so that one queue that never comes back does not hold the others back for ever. Some
# millions of messages are read in this time.
LEADERS_WAIT_S = 120.0
# Dead-letter workers end without notice by the broker; until they are started again no message leaves a
# delay step.
LOOK_EVERY_S = 10.0


class Recovery:
    """The recovery of one broker. revived: number of dead queues started again, in all."""

    def __init__(self, broker: str, settler: Settler) -> None:
        self._broker, self._settler = broker, settler
        self._waiting_since_s: float | None = None
        self._looked_s = 0.0
        self.revived = 0

    def figures(self) -> Iterator[Figure]:
        yield Figure("queues_revived", "Dead after a boot.", self.revived, True)

    async def revive(self) -> None:
        """Start dead queues: one that died at boot would hold every confirm back."""
        await self._revive_dead_lettering()
        revived = await self._settler.queues_revived()
        if revived:
            log.warning("queues revived broker=%s queues=%d", self._broker, revived)
            self.revived += revived

    async def look(self) -> None:
        """Restart dead-lettering where it has ended. Acts every LOOK_EVERY_S."""
        if time.monotonic() - self._looked_s >= LOOK_EVERY_S:
            await self._revive_dead_lettering()

    async def _revive_dead_lettering(self) -> None:
        self._looked_s = time.monotonic()
        if workers := await self._settler.dead_lettering_revived():
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
