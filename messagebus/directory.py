"""Asking and telling the bus without publishing or consuming: which brokers, which destinations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from messagebus._io.following import fetch_list
from messagebus._io.https import http_client
from messagebus._io.registering import Registration, topology_for
from messagebus.broker import BrokerList, ListedBroker
from messagebus.config import BusConfig
from messagebus.errors import ListError, ListUnavailable
from messagebus.topology import Wanted, parse_wanted

__all__ = ["Registration", "brokers", "declare"]

DECLARE_TIMEOUT_S = 30.0


def declare(
    bus: BusConfig, wanted: Iterable[Wanted | str], *, timeout_s: float = DECLARE_TIMEOUT_S
) -> Registration:
    """Make topics, subscriptions and queues exist on every broker, settled.

    wanted: also as text: ``orders``, ``orders/billing``, ``queue:jobs``. What exists stays as it is.
    Raises RegistrationIncomplete (it names the brokers), TopologyMismatch, LoginRefused, NameInvalid.
    """
    parsed = [parse_wanted(each) if isinstance(each, str) else each for each in wanted]
    return asyncio.run(topology_for(bus).register(parsed, timeout_ms=int(timeout_s * 1000)))


def brokers(bus: BusConfig) -> BrokerList:
    """The consumer list as it is now. Raises ListUnavailable or ListInvalid, of the last address."""
    if not bus.list_urls:
        return BrokerList(listed=(ListedBroker(broker=bus.address),))
    return asyncio.run(_fetch(bus))


async def _fetch(bus: BusConfig) -> BrokerList:
    fault: ListError = ListUnavailable("no list address")
    async with http_client(bus) as http:
        for url in bus.list_urls:
            try:
                found = await fetch_list(http, url)
            except ListError as why:
                fault = why
            else:
                assert found is not None, "only a waiting fetch is answered with nothing newer"
                return found
    raise fault
