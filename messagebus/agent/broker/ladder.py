"""The exit of the delay ladder on the agent's own broker, and the messages that found no queue there.

It is declared before the queues of the map and bound after them. A message that is due while they are not
all bound waits in its step, and does not count as undelivered. A broker set up by an earlier version has an
exchange DUE with bindings of its own; it is made anew when OUT leads to every queue.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

from messagebus._io.amqp.control import Control
from messagebus.agent.metrics import Figure
from messagebus.destination import UNDELIVERED_QUEUE
from messagebus.errors import ChannelRefused
from messagebus.topology import DUE, LADDER, Declarations

__all__ = ["Ladder"]

log = logging.getLogger("messagebus.agent")

PRECONDITION_FAILED = 406
# Every REPAIR_EVERY-th look declares the ladder again, in case a part was deleted.
REPAIR_EVERY = 10

_DUE = Declarations(exchanges=tuple(e for e in LADDER.exchanges if e.name == DUE))
_BEFORE_DUE = Declarations(
    exchanges=tuple(e for e in LADDER.exchanges if e.name != DUE), queues=LADDER.queues
)


class Ladder:
    """The exit of the ladder on one broker.

    leads_out: every due message leaves its step, for its queue or the undelivered queue. undelivered:
    number of messages there, None before the first look.
    """

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self._is_old = False
        self._looks = itertools.count(1)
        self._told = 0
        self.leads_out = False
        self.undelivered: int | None = None

    def figures(self) -> Iterator[Figure]:
        if self.undelivered is not None:
            yield Figure("undelivered", "Due, and without a queue.", self.undelivered)

    async def begin(self, control: Control) -> None:
        """Declare the exchanges and queues that the map's bindings need. Raises LinkError."""
        self.leads_out = self._is_old = False
        await control.declare(_BEFORE_DUE)
        try:
            await control.declare(_DUE, aside=True)
        except ChannelRefused as refused:
            if refused.code != PRECONDITION_FAILED:
                raise
            self._is_old = True

    async def lead_out(self, control: Control) -> None:
        """Bind the exit, after all queues are bound and its own is settled. Raises LinkError."""
        if self.leads_out:
            return
        if self._is_old:
            log.info("delay ladder of an earlier version is led out anew broker=%s", self._broker)
            # A message due between these two stays in its step and is tried again.
            await control.delete_exchange(DUE)
            await control.declare(_DUE)
            self._is_old = False
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
        self._tell(found[0])

    def _tell(self, undelivered: int) -> None:
        """Log a line for the first of them, and whenever there are twice as many."""
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
