"""Faults that HAProxy accepts and a message bus must not have. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from inventory.inventory import Inventory

# A Unix socket's address has room for 107 bytes, and HAProxy binds under a longer, temporary name.
SOCKET_PATH_BYTES_MAX = 97
# A publisher gives up its first dial after this time (BusConfig.dial_timeout_s).
DIAL_TIMEOUT_S = 0.5
# A publisher renews its connection at random between its lifetime and this multiple of it.
LIFETIME_SPREAD = 1.2
# A waiting fetch must be answered before the balancer gives up on the agent.
LIST_SLACK_S = 5
# The file descriptors of Debian's rabbitmq-server.service, less those for queues, logs and agents.
BROKER_SESSIONS_MAX = 60_000
# Every balancer must see a drain within half a second.
AGENT_INTER_S_MAX = 0.5


def faults(inventory: Inventory) -> list[str]:
    """Return one sentence for each fault, in the operator's words; empty when all is well."""
    found = [*_all_balancers(inventory)]
    for balancer in inventory.balancers:
        begin = f"{balancer.name}: " if inventory.more else ""
        one = inventory.at(balancer)
        found += [begin + fault for fault in (*_timers(one), *_balancer(one))]
    return found


def _all_balancers(inventory: Inventory) -> Iterator[str]:
    if not inventory.brokers:
        yield "no broker in the inventory"
    together = sum(balancer.server_sessions_max for balancer in inventory.balancers)
    if together > BROKER_SESSIONS_MAX:
        yield (
            f"server_sessions_max: {together} from {len(inventory.balancers)} balancers together, and"
            f" a broker takes {BROKER_SESSIONS_MAX}"
        )


def _timers(inventory: Inventory) -> Iterator[str]:
    timers = inventory.balancer.timers
    for key in ("client_s", "server_s"):
        if getattr(timers, key) <= 2 * timers.heartbeat_s:
            yield (
                f"{key} {getattr(timers, key)}: more than twice heartbeat_s"
                f" ({timers.heartbeat_s}), or idle connections are cut"
            )
    if timers.list_server_s < timers.list_wait_s + LIST_SLACK_S:
        yield (
            f"list_server_s {timers.list_server_s}: at least {LIST_SLACK_S} more than list_wait_s"
            f" ({timers.list_wait_s}), or waiting fetches are cut"
        )
    if timers.connect_s >= DIAL_TIMEOUT_S:
        yield (
            f"connect_s {timers.connect_s}: less than {DIAL_TIMEOUT_S}, after which publishers"
            " give up themselves"
        )
    if timers.check_fast_inter_s > timers.check_inter_s:
        yield f"check_fast_inter_s {timers.check_fast_inter_s}: not above check_inter_s"
    if timers.agent_inter_s > AGENT_INTER_S_MAX:
        yield (
            f"agent_inter_s {timers.agent_inter_s}: at most {AGENT_INTER_S_MAX}, or a drain"
            " is seen late"
        )
    if timers.hard_stop_s <= LIFETIME_SPREAD * timers.connection_lifetime_s:
        yield (
            f"hard_stop_s {timers.hard_stop_s}: above {LIFETIME_SPREAD} times connection_lifetime_s"
            f" ({timers.connection_lifetime_s}), or a reload cuts publishers"
        )


def _balancer(inventory: Inventory) -> Iterator[str]:
    balancer = inventory.balancer
    if len(str(balancer.socket).encode()) > SOCKET_PATH_BYTES_MAX:
        yield f"socket {balancer.socket}: at most {SOCKET_PATH_BYTES_MAX} bytes"
    if balancer.server_sessions_max > balancer.sessions_max:
        yield (
            f"server_sessions_max {balancer.server_sessions_max}: not above sessions_max"
            f" ({balancer.sessions_max})"
        )
    addresses = [balancer.amqp, balancer.list, balancer.stats]
    if len(set(addresses)) < len(addresses):
        yield "amqp, list and stats need an address each"
    if balancer.probe_user == inventory.admin_user:
        yield "probe_user is the administrator: the gate check's password is stored in a file"
    if balancer.probe_password is not None and not balancer.probe_password.reveal():
        yield f"probe_password_file {balancer.probe_password_file} is empty"
