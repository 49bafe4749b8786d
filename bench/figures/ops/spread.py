"""Publishers that hold connections and renew them, and how evenly the balancer has spread them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from lb.runtime import servers
from messagebus import BusConfig, Publisher, PublisherConfig
from ops.local.cluster import LocalCluster

__all__ = ["a_lifetime_passes", "resting", "sessions", "unevenness"]

# With those of the load 36, which two, three, four or six brokers can share evenly.
RESTING = 32
LIFETIME_S = 10
# A connection is renewed within 20 % of its lifetime; the last one is then let go of.
JITTER, LET_GO_S = 0.2, 1.0
START_S = 30.0


@contextmanager
def resting(cluster: LocalCluster) -> Iterator[None]:
    """Publishers with nothing to publish, whose connections live for LIFETIME_S."""
    bus = BusConfig.from_env(cluster.client_env())
    config = PublisherConfig(connection_lifetime_s=LIFETIME_S)
    with ExitStack() as stack:
        for _ in range(RESTING):
            publisher = Publisher(bus, config)
            publisher.start(require="one", timeout_s=START_S)
            stack.callback(publisher.stop)
        yield


def a_lifetime_passes() -> None:
    """Wait until each connection that was there is renewed."""
    time.sleep(LIFETIME_S * (1 + JITTER) + LET_GO_S)


def sessions(cluster: LocalCluster) -> Mapping[str, int]:
    """broker's name -> connections through HAProxy. Raises BalancerUnreachable."""
    found = servers(cluster.layout.admin_socket)
    return {name: state.sessions for name, state in found.items()}


def unevenness(sessions: Mapping[str, int]) -> float:
    """By how many per cent of an even share the broker that is farthest from it is away from it."""
    even = sum(sessions.values()) / len(sessions)
    return 100 * max(abs(count - even) for count in sessions.values()) / even
