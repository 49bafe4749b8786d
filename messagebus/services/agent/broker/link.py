"""The agent's link to its own broker, and what is asked over it.

One at a time: the upkeep dials it and hands it over when it is ready. It applies nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from messagebus._io.amqp.control import Control, node_is_gone, port_refuses
from messagebus._io.amqp.link import Credentials, Link, dial
from messagebus.errors import LinkLost
from messagebus.services.agent.config import AgentConfig

DIAL_TIMEOUT_MS = 1_000
EPMD_TIMEOUT_S = 0.5


class OwnLink:
    """The link to one broker.

    tried: set once the first link is open or has failed: before that nothing is known.
    dials: number of links dialled so far.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._control: Control | None = None
        self._opened = asyncio.Event()
        self.tried = asyncio.Event()
        self.dials = 0

    @property
    def is_open(self) -> bool:
        """True from the moment when the link is ready until it is lost."""
        return self._opened.is_set()

    @property
    def control(self) -> Control:
        """The open link. Raises LinkLost."""
        control = self._control
        if control is None or not control.is_open:
            raise LinkLost(self._config.broker, "no link to the broker")
        return control

    async def wait_open(self) -> None:
        """Wait until there is a link to the broker."""
        await self._opened.wait()

    async def dial(self) -> Control:
        """Dial a link for the upkeep. Raises LinkError."""
        self.dials += 1
        return await Control.dial(
            self._config.address, self._credentials("agent"), timeout_ms=DIAL_TIMEOUT_MS
        )

    async def dial_tap(self) -> Link:
        """Open a link of the agent's user for a tap. Raises LinkError."""
        return await dial(
            self._config.address, self._credentials("tap of agent"), timeout_ms=DIAL_TIMEOUT_MS
        )

    def opened(self, control: Control) -> None:
        """Take this link into use."""
        self._control = control
        self._opened.set()
        self.tried.set()

    def lost(self) -> None:
        """Note at once that nothing comes over it any more."""
        self._opened.clear()

    def ended(self) -> None:
        """Drop a link that ended, or that failed before it was opened."""
        self._control = None
        self._opened.clear()
        self.tried.set()

    async def counts(self, queues: Iterable[str]) -> dict[str, tuple[int, int] | None]:
        """Return ready messages and consumers by queue name, None for a missing one. Raises LinkError."""
        return await self.control.count_all(list(queues))

    async def purge(self, queues: Iterable[str]) -> dict[str, int | None]:
        """Drop the ready messages of these queues. Returns how many by name. Raises LinkError."""
        control = self.control
        return {queue: await control.purge(queue) for queue in queues}

    async def node_is_gone(self) -> bool:
        """Return whether the broker's process is certainly dead. It has no gate then, nor after its boot."""
        name = self._config.node_name
        host = name.partition("@")[2] or self._config.address.host
        port = self._config.epmd_port
        return bool(name) and await node_is_gone(host, name, port, timeout_s=EPMD_TIMEOUT_S)

    async def port_refuses(self) -> bool:
        """Return whether nobody listens at the broker's address."""
        return await port_refuses(self._config.address, timeout_s=EPMD_TIMEOUT_S)

    def _credentials(self, what: str) -> Credentials:
        return Credentials(
            user=self._config.user,
            password=self._config.password,
            client_id=f"{what} {self._config.broker}",
            tls=self._config.tls_files.client_context() if self._config.tls else None,
        )
