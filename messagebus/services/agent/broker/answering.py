"""The answer of an agent, for its broker, to a registration of names.

Held: the broker has them, settled. Later: it takes no publish before it has them. No: neither is
certain. It asks `upkeep` to apply the map, and waits no longer than the caller can.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from messagebus._io.amqp.control import port_refuses
from messagebus.broker import Broker
from messagebus.errors import LinkError, TopologyError
from messagebus.services.agent.broker.management import ManagementUnavailable
from messagebus.services.agent.broker.plan import expires_s_of
from messagebus.services.agent.broker.reconcile import NotBroughtAbout
from messagebus.services.agent.broker.settle import SLOW_S
from messagebus.services.agent.broker.upkeep import LINK_WAIT_S, Upkeep
from messagebus.services.agent.topology.register import Answer, Register, Reply

# Time that a registration waits here for its answer; a slow settle takes SLOW_S.
ANSWER_TIMEOUT_S = SLOW_S + 1.5
PROBE_TIMEOUT_S = 0.5


class Answering:
    """The answers of one agent. on_used: called with the name of an expiring subscription asked for."""

    def __init__(
        self,
        broker: Broker,
        register: Register,
        upkeep: Upkeep,
        *,
        on_used: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._broker, self._register, self._upkeep = broker, register, upkeep
        self._on_used = on_used

    async def answer(self, names: Iterable[str]) -> Reply:
        """Answer for these names, after the map with them was stored."""
        names, stored = list(names), self._register.intact
        upkeep = self._upkeep
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                async with asyncio.timeout(await self._patience_s()):
                    await upkeep.link.wait_open()
                await self._renew(names)
                await self._bring_about(names)
            told = "; ".join(upkeep.refusals.reasons(names))  # of MQTT, which others need not heed
            return Reply(answer=Answer.HELD, stored=stored, reason=told)
        except (LinkError, TopologyError, TimeoutError, ManagementUnavailable) as fault:
            upkeep.wake()
            kind = Answer.LATER if await self._is_shut() else Answer.NO
            reason = "; ".join(upkeep.refusals.reasons(names)) or str(fault) or "broker is too slow"
            return Reply(answer=kind, stored=stored, reason=reason)

    async def _bring_about(self, names: Sequence[str]) -> None:
        """Apply the map. A refusal of other names does not count against these."""
        try:
            await self._upkeep.bring_about()
        except NotBroughtAbout:
            if not names or not self._upkeep.has(names):
                raise
        if not self._upkeep.has(names):
            raise NotBroughtAbout("its broker refuses it")

    async def _renew(self, names: Iterable[str]) -> None:
        """Note the use of expiring subscriptions; make an expired one again, which is no loss."""
        for name in names:
            entry = self._register.entries.get(name)
            if entry is None or not expires_s_of(entry):
                continue
            self._on_used(name)
            if name in self._upkeep.expiring() and await self._upkeep.use_of(name) is None:
                await self._upkeep.make_again(name)

    async def _patience_s(self) -> float:
        """Return the time to wait for a link: 0 for a broker that refuses connections."""
        if self._upkeep.link.is_open:
            return LINK_WAIT_S
        return 0.0 if await self._port_refuses() else LINK_WAIT_S

    async def _is_shut(self) -> bool:
        """Return whether the broker can take no publish before this agent lets it."""
        try:
            async with asyncio.timeout(LINK_WAIT_S):
                if await self._upkeep.gate_is_shut():
                    return True
        except TimeoutError:
            return False
        return not self._upkeep.link.is_open and await self._upkeep.link.node_is_gone()

    async def _port_refuses(self) -> bool:
        return await port_refuses(self._broker, timeout_s=PROBE_TIMEOUT_S)
