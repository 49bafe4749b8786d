"""Queries and commands to the bus without publishing or consuming: brokers and destinations."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from urllib.parse import urlsplit

from messagebus._io.agents import subscriptions
from messagebus._io.agents.consumer_list import fetch_list
from messagebus._io.agents.http import http_client
from messagebus._io.agents.registration import topology_for
from messagebus._io.agents.subscriptions import (
    PurgedMessages,
    SubscriptionCount,
    SubscriptionCounts,
)
from messagebus._io.loop import run_blocking
from messagebus._io.wire import Registration
from messagebus.broker import BrokerList, ListedBroker
from messagebus.clock import whole_ms
from messagebus.config import BusConfig, bus_of, with_agents
from messagebus.destination import Queue, Source, Stream, Subscription, Topic
from messagebus.errors import (
    ListError,
    ListInvalid,
    ListUnavailable,
    MessageBusError,
    NameInvalid,
    NotFound,
    NotReady,
    reason_of,
)
from messagebus.secret import Secret
from messagebus.terminal import closest
from messagebus.topology import Wanted, as_list, parse_wanted

__all__ = [
    "PurgedMessages",
    "Registration",
    "SubscriptionCount",
    "SubscriptionCounts",
    "brokers",
    "count_subscriptions",
    "declare",
    "delete_subscriptions",
    "delete_topics",
    "drain_broker",
    "purge_subscriptions",
]

PORTS = {"http": 80, "https": 443}

DECLARE_TIMEOUT_S = 30.0
# Time after which a command says that nobody answers.
REACH_S = 3.0
REACH_AGAIN_S = 0.2
# For each address of a name: the first one may belong to a host that is off.
REACH_ONE_S = 1.0


def declare(
    bus: BusConfig | None,
    wanted: Iterable[Wanted | str] | Wanted | str,
    *,
    timeout_s: float = DECLARE_TIMEOUT_S,
) -> Registration:
    """Create topics, subscriptions and queues on every broker; existing ones stay as they are.

    It returns when every broker has them on disk. bus: None for the settings of the environment, as of
    `Publisher`; so for all functions here. wanted: one of them or a list, as objects or as text:
    ``orders``, ``orders/billing``, ``queue:jobs``. timeout_s: the longest wait, in seconds.
    Raises RegistrationIncomplete (it names the brokers), TopologyMismatch, LoginRefused or NameInvalid.
    """
    parsed = [parse_wanted(each) if isinstance(each, str) else each for each in as_list(wanted)]
    return run_blocking(topology_for(bus_of(bus)).register(parsed, timeout_ms=whole_ms(timeout_s)))


def reach(bus: BusConfig, *, publishing: bool = False, timeout_s: float = REACH_S) -> None:
    """Wait until the bus's entry address accepts connections. Raises NotReady, with every address.

    publishing: the balancer's address; else those of the list, if there are any.
    """
    places = [(bus.address.host, bus.address.port)]
    if bus.list_urls and not publishing:
        parts = [urlsplit(url) for url in bus.list_urls]
        places = [(each.hostname or "", each.port or PORTS[each.scheme]) for each in parts]
    until_s, faults = time.monotonic() + timeout_s, dict[str, str]()
    while True:
        for host, port in places:
            left_s = max(REACH_AGAIN_S, until_s - time.monotonic())
            try:
                socket.create_connection((host, port), timeout=min(left_s, REACH_ONE_S)).close()
            except OSError as fault:
                faults[f"{host}:{port}"] = fault.strerror or reason_of(fault)
            else:
                return
        if time.monotonic() + REACH_AGAIN_S >= until_s:
            told = ", ".join(f"{place} ({why})" for place, why in faults.items())
            raise NotReady(f"no answer from {told}")
        time.sleep(REACH_AGAIN_S)


def brokers(bus: BusConfig | None) -> BrokerList:
    """Fetch the current consumer list. Raises ListUnavailable or ListInvalid, of the last address."""
    bus = bus_of(bus)
    if not bus.list_urls:
        return BrokerList(listed=(ListedBroker(broker=bus.address),))
    return run_blocking(_fetch(bus))


def count_subscriptions(bus: BusConfig | None) -> SubscriptionCounts:
    """Count the messages in every subscription and queue, on every broker of the list, through the agents.

    Raises ConfigError without list addresses, ListError without a list, LoginRefused.
    """
    bus = with_agents(bus)
    return run_blocking(subscriptions.count(bus, brokers(bus)))


def nearest(bus: BusConfig, name: str) -> str:
    """Return the topic or queue with the most similar name; "" where none is, or nobody can be asked.

    name: ``orders`` or ``queue:jobs``.
    """
    if not bus.list_urls:
        return ""
    try:
        known = run_blocking(subscriptions.known(bus))
    except MessageBusError:
        return ""
    names = {str(each.topic) if isinstance(each, Subscription) else str(each) for each in known}
    return closest(name, names - {name})


def delete_subscriptions(
    bus: BusConfig | None,
    names: Iterable[str | Source | Stream] | str | Source | Stream,
    *,
    token: Secret,
) -> Registration:
    """Delete subscriptions, queues and streams on all brokers, with all their messages.

    token: that of operators. Of the result: a broker in `later` deletes them when it is up again, before it
    accepts publishes; for a broker in `missing`, repeat the call. Raises ConfigError, NameInvalid,
    LoginRefused, ListError without a list, and TopologyError if one of them never existed or no majority of
    agents answers.
    """
    bus = with_agents(bus)
    return run_blocking(
        subscriptions.delete(bus, brokers(bus), _source_names(names, Stream), token=token)
    )


def delete_topics(
    bus: BusConfig | None, names: Iterable[str | Topic] | str | Topic, *, token: Secret
) -> Registration:
    """Delete topics that have no subscription and no stream, so no messages either, on all brokers.

    A client that declares a deleted topic creates it again. So does a publisher with its next message,
    which ends unroutable, or unknown if its link was open. Result and errors are those of
    `delete_subscriptions`; TopologyError also names the subscriptions and the stream that must be deleted
    first.
    """
    wanted = [parse_wanted(each) if isinstance(each, str) else each for each in as_list(names)]
    if others := [str(each) for each in wanted if not isinstance(each, Topic)]:
        raise NameInvalid(f"{others[0]}: not a topic")
    bus = with_agents(bus)
    return run_blocking(
        subscriptions.delete(bus, brokers(bus), [str(each) for each in wanted], token=token)
    )


def purge_subscriptions(
    bus: BusConfig | None, names: Iterable[str | Source] | str | Source, *, token: Secret
) -> PurgedMessages:
    """Drop the waiting messages of subscriptions and queues, on every broker of the list that answers.

    Messages that are delivered and not yet answered stay. token: that of operators. Raises the errors of
    `count_subscriptions`, and NameInvalid.
    """
    bus = with_agents(bus)
    return run_blocking(subscriptions.purge(bus, brokers(bus), _source_names(names), token=token))


def drain_broker(bus: BusConfig | None, name: str, *, draining: bool, token: Secret) -> None:
    """Begin or end the drain of a broker: balancers send it no new connections; all others stay.

    name: ``host:port``. draining: True begins the drain, False ends it; the broker's agent stores it. token:
    that of operators. Raises NotFound for a broker that is not on the list, LinkLost if its agent does not
    do it, LoginRefused, ListError without a list, ConfigError.
    """
    bus = with_agents(bus)
    listed = next((each for each in brokers(bus) if each.broker.name == name), None)
    if listed is None:
        raise NotFound(f"{name}: not in the consumer list")
    run_blocking(subscriptions.set_draining(bus, listed, draining=draining, token=token))


def _source_names(names: Iterable[str | Wanted] | str | Wanted, *also: type) -> list[str]:
    wanted = [parse_wanted(each) if isinstance(each, str) else each for each in as_list(names)]
    for each in wanted:
        if not isinstance(each, (Subscription, Queue, *also)):
            raise NameInvalid(f"{each}: a subscription is TOPIC/NAME, a queue is queue:NAME")
    return [str(each) for each in wanted]


async def _fetch(bus: BusConfig) -> BrokerList:
    fault: ListError = ListUnavailable("no list address")
    async with http_client(bus) as http:
        for url in bus.list_urls:
            try:
                found = await fetch_list(http, url)
            except ListInvalid as why:
                fault = ListInvalid(f"{url}: {why}")
            except ListError as why:
                fault = why
            else:
                assert found is not None, "only a waiting fetch is answered with nothing newer"
                return found
    raise fault
