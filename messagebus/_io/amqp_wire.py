"""The wire to real brokers: AMQP links, agents over HTTP, the consumer list.

`namesake` looks for another project's distribution `messagebus`. Each of the two overwrites files of the
other.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import re
import secrets
import socket
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, metadata
from typing import TYPE_CHECKING

from messagebus._io.amqp.link import Credentials, Link, dial, dial_named
from messagebus._io.wire import Topology
from messagebus.broker import Broker, BrokerList
from messagebus.config import BusConfig
from messagebus.errors import LinkLost
from messagebus.topology import GATE

if TYPE_CHECKING:
    from messagebus._io.agents.consumer_list import ListFollower

log = logging.getLogger("messagebus")

HOST_MAX = 100


class AmqpWire:
    """The wire of one client object, by its configuration. Without a client_id it makes one of its own.

    HTTP is imported by the first client that runs: one in memory needs none.
    Operators see by the client id who works by which list. No playbook would wait for an invisible client.
    """

    redial_first_ms = 100

    def __init__(self, bus: BusConfig) -> None:
        self._given = bus
        self._named: tuple[int, BusConfig] | None = None
        if told := namesake():
            log.warning("wrong environment reason=%r", told)

    @property
    def _bus(self) -> BusConfig:
        """The configuration with the client id of this process: after a fork there are two clients."""
        if self._given.client_id:
            return self._given
        if self._named is None or self._named[0] != os.getpid():
            self._named = os.getpid(), replace(self._given, client_id=_own_id())
        return self._named[1]

    def topology(self) -> Topology:
        from messagebus._io.agents.registration import topology_for

        return topology_for(self._bus)

    def follow(
        self, *, subscription: str, interval_s: int, on_list: Callable[[BrokerList], None]
    ) -> ListFollower:
        from messagebus._io.agents.consumer_list import ListFollower

        return ListFollower(
            self._bus, subscription=subscription, interval_s=interval_s, on_list=on_list
        )

    async def dial(self, broker: Broker | None, *, timeout_ms: int) -> Link:
        return await dial(broker or self._bus.address, self._login(), timeout_ms=timeout_ms)

    def _login(self) -> Credentials:
        from messagebus._io.agents.registration import credentials

        return credentials(self._bus)

    async def dial_to_publish(self, broker: Broker, *, timeout_ms: int, waits: bool) -> Link:
        if not self._bus.list_urls:
            raise LinkLost(broker.name, "without a consumer list no broker is known by its name")
        link = await dial_named(broker, self._login(), timeout_ms=timeout_ms)
        # A broker that boots opens its gate some 0.3 s behind its port: cheaper than as many logins.
        look = functools.partial(link.try_call, "queue_declare", queue=GATE, passive=True)
        pause_s = 0.02  # a fifth of the time until then
        try:
            while not (await look()).message_count:
                if not waits or pause_s > timeout_ms / 10_000:
                    raise LinkLost(broker.name, "its gate is shut")
                await asyncio.sleep(pause_s)
                pause_s *= 1.25
        except BaseException:
            await link.hang_up()
            raise
        return link


def _own_id() -> str:
    """Return a client id of host, process, and a random part for this object."""
    host = re.sub(r"[^\w.-]", "-", socket.gethostname(), flags=re.ASCII)[:HOST_MAX]
    return f"{host}:{os.getpid()}:{secrets.token_hex(4)}"


OURS = "messagebus-rabbitmq"


@functools.cache
def namesake() -> str:
    """Return one line that says that it is installed here and what to do; "" where it is not."""
    try:
        found = metadata("messagebus")
    except PackageNotFoundError:
        return ""
    return (
        f"another project's distribution 'messagebus' {found['Version']} is installed here and has files of "
        f"the same names: pip uninstall messagebus {OURS}, then pip install {OURS}"
    )
