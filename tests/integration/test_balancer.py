"""The balancer's kit on a whole cluster: real brokers, real agents, real HAProxy."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain

import httpx
import pytest

from inventory.inventory import Inventory, load
from lb import agents, runtime
from lb.runtime import STATES_BY_AGENT
from messagebus.broker import Broker
from messagebus.services.agent.consumer_list import EXPIRY_MS, LEFT_MS
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.faults import agent_answer

GREETING = b"AMQP\x00\x00\x09\x01"
START = b"\x00\x0a\x00\x0a"
# A client asks to wait this long, and hangs up before.
WAIT_S, GONE_AFTER_S = 20.0, 1.0


@pytest.fixture
def inventory(cluster: LocalCluster) -> Iterator[Inventory]:
    """The shared cluster's inventory; every broker is ready before and after."""
    cluster.wait_ready()
    read = load(cluster.inventory)
    yield read
    for node in read.brokers:
        agents.ready(read, node.name, within_s=60 * FACTOR)


@contextmanager
def _connected(cluster: LocalCluster) -> Iterator[socket.socket]:
    """Open a connection through HAProxy that a broker has answered."""
    address = Broker.parse(cluster.broker)
    with socket.create_connection((address.host, address.port), timeout=5 * FACTOR) as connection:
        connection.sendall(GREETING)
        assert START in connection.recv(4096)
        yield connection


def test_real_brokers_pass_the_gate_check_and_real_agents_are_understood(
    inventory: Inventory,
) -> None:
    def understood() -> bool:
        servers = runtime.servers(inventory.balancer.socket).values()
        return all(each.verdict == "up" and each.agent == STATES_BY_AGENT[0] for each in servers)

    eventually(understood, within_s=60)
    checks = [each.check for each in runtime.servers(inventory.balancer.socket).values()]
    # With a star in front while the next check is under way.
    assert all(re.fullmatch(r"(\* )?L7OK( \(tcp-check\))?", check) for check in checks)


def test_agents_that_die_cut_nobody(cluster: LocalCluster, inventory: Inventory) -> None:
    with ExitStack() as stack:
        held = [stack.enter_context(_connected(cluster)) for _ in inventory.brokers]
        for node in inventory.brokers:
            cluster.kill(node.name, agent=True)
            stack.callback(cluster.start, node.name, agent=True)

        def noticed() -> bool:
            servers = runtime.servers(inventory.balancer.socket).values()
            return all(each.agent not in STATES_BY_AGENT for each in servers)

        eventually(noticed, within_s=60)
        verdicts = {each.verdict for each in runtime.servers(inventory.balancer.socket).values()}
        assert verdicts == {"up"}
        assert not any(_ended(connection) for connection in held)


def test_an_agent_hears_through_the_balancer_that_a_waiting_client_has_gone(
    cluster: LocalCluster, inventory: Inventory
) -> None:
    """Else the playbooks would wait for it until it expires."""
    client = "gone-through-the-balancer"
    generation = cluster.consumer_list().generation
    query = f"client={client}&generation={generation}&applied={generation}&wait_s={WAIT_S}"
    with suppress(httpx.ReadTimeout):
        login = ("bus", cluster.password.reveal())
        httpx.get(f"{cluster.list_url}?{query}", auth=login, timeout=GONE_AFTER_S, trust_env=False)

    def seen() -> list[dict[str, object]]:
        answers = [agent_answer(cluster, name, "/clients")["clients"] for name in cluster.names]
        return [each for each in chain.from_iterable(answers) if each["id"] == client]

    eventually(lambda: not any(each["waits"] for each in seen()), within_s=60)
    # An answer that went nowhere would have made it a client seen just now.
    assert all(float(str(each["age_s"])) >= (EXPIRY_MS - LEFT_MS) / 1000 for each in seen())


def test_the_command_shows_drains_and_refuses(cluster: LocalCluster, inventory: Inventory) -> None:
    path = inventory.balancer.socket
    # A check on a busy machine may come too late for a moment.
    eventually(lambda: runtime.servers(path)["mb3"].verdict == "up", within_s=60)
    drained = _lb(cluster, "drain", "mb3")
    assert (drained.returncode, drained.stdout.split()[:2]) == (0, ["mb3", "drain"])
    shown = json.loads(_lb(cluster, "status", "--json").stdout)
    assert [server["drained"] for server in shown["balancers"][0]["servers"]] == [
        False,
        False,
        True,
    ]
    assert _lb(cluster, "ready", "mb3").returncode == 0
    unknown = _lb(cluster, "drain", "mb33")
    assert unknown.returncode == 2
    assert unknown.stderr.splitlines() == [
        "lb: no broker 'mb33' in the inventory; did you mean 'mb3'? [messagebus explain configerror]"
    ]
    assert _lb(cluster, "apply").stdout == "nothing to do\n"


def _lb(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lb", *words],
        env={**os.environ, "MESSAGEBUS_INVENTORY": str(cluster.inventory)},
        capture_output=True,
        text=True,
        timeout=60 * FACTOR,
        check=False,
    )


def _ended(connection: socket.socket) -> bool:
    """Return whether the other side has hung up."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
