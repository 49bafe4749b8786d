"""The way out of the delay ladder on the agent's own broker, and what found no queue there.

Declared before the queues of the map, bound after them: what is due while they are not all bound waits in
its step, and is not taken for undelivered. A broker that an earlier version has set up has an exchange
DUE with bindings of its own; it is made anew in one step when OUT leads to every queue.
"""

from __future__ import annotations

import itertools
import logging

from messagebus._io.amqp.control import Control
from messagebus.destination import UNDELIVERED_QUEUE
from messagebus.errors import ChannelRefused
from messagebus.topology import DUE, LADDER, Declarations

__all__ = ["Ladder"]

log = logging.getLogger("messagebus.agent")

PRECONDITION_FAILED = 406
# Each so-manieth look makes again what somebody may have deleted.
REPAIR_EVERY = 10

_DUE = Declarations(exchanges=tuple(e for e in LADDER.exchanges if e.name == DUE))
_BEFORE_DUE = Declarations(
    exchanges=tuple(e for e in LADDER.exchanges if e.name != DUE), queues=LADDER.queues
)


class Ladder:
    """Of one broker.

    leads_out: whether all that is due leaves its step, to its queue or to the undelivered. undelivered:
    how many of those there are, None before the first look.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._is_old = False
        self._looks = itertools.count(1)
        self._told = 0
        self.leads_out = False
        self.undelivered: int | None = None

    async def begin(self, control: Control) -> None:
        """Declare what the bindings of the map need. Raises LinkError."""
        self.leads_out = self._is_old = False
        await control.declare(_BEFORE_DUE)
        try:
            await control.declare(_DUE, aside=True)
        except ChannelRefused as refused:
            if refused.code != PRECONDITION_FAILED:
                raise
            self._is_old = True

    async def lead_out(self, control: Control) -> None:
        """All queues are bound, these too are settled: let go what is due. Raises LinkError."""
        if self.leads_out:
            return
        if self._is_old:
            log.info("delay ladder of an earlier version is led out anew broker=%s", self._broker)
            # What comes due between these two stays in its step and is tried again.
            await control.delete_exchange(DUE)
            await control.declare(_DUE)
            self._is_old = False
        await control.bind(LADDER)
        self.leads_out = True

    async def look(self, control: Control) -> None:
        """Count the undelivered, and tell when there are more. Raises LinkError.

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
        self._tell(found[0])

    def _tell(self, undelivered: int) -> None:
        """A line for the first of them, and whenever there are twice as many."""
        self.undelivered = undelivered
        if undelivered >= max(1, 2 * self._told):
            log.warning(
                "delayed messages found no queue broker=%s messages=%d"
                " (messagebus parked list undelivered)",
                self._broker,
                undelivered,
            )
            self._told = undelivered
        elif undelivered < self._told:
            self._told = undelivered
