"""Faults of a running local cluster, and their repair."""

from __future__ import annotations

import signal
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import httpx

from bench.faults import client_id, close_listed, push_list
from messagebus import BusConfig
from messagebus.broker import Broker, BrokerList, ListedBroker
from ops.local.cluster import LocalCluster
from ops.local.process import send
from ops.local.status import operator_tls
from tests.support.eventually import eventually

__all__ = [
    "agent_answer",
    "ask_agent",
    "balancer_configured",
    "balancer_state",
    "bus_config",
    "client_id",
    "close_connections",
    "delete_queue",
    "direct",
    "forget",
    "metric",
    "operators_drain",
    "queue_exists",
    "register",
    "reload_balancer",
    "restore",
    "unregister",
    "write_list",
]

SOCKET_TIMEOUT_S = 2.0
HTTP_TIMEOUT_S = 60.0
RELOAD_WITHIN_S = 60.0
# The management API lists a connection only at its next statistics interval (1 s here).
LISTED_WITHIN_S = 60.0


def bus_config(cluster: LocalCluster, **settings: Any) -> BusConfig:
    """Return an application's settings: everything through the balancer."""
    defaults: dict[str, Any] = {
        "broker": cluster.broker,
        "list_urls": (cluster.list_url,),
        "user": "bus",
        "password": cluster.password,
    }
    if cluster.layout.tls:
        secured = BusConfig.from_env(cluster.client_env())
        return replace(secured, password_file="", **(defaults | settings))
    return BusConfig(**(defaults | settings))


def direct(cluster: LocalCluster, name: str, **settings: Any) -> BusConfig:
    """Return the same settings, but publishing to this broker and no other."""
    return bus_config(cluster, broker=cluster.node(name).broker, **settings)


def ask_agent(
    cluster: LocalCluster, name: str, method: str, path: str, **request: Any
) -> httpx.Response:
    """Send a request to the broker's agent, as an operator. Raises httpx.HTTPError without an answer."""
    layout = cluster.layout
    return httpx.request(
        method,
        f"{layout.scheme}://{cluster.node(name).agent}{path}",
        headers={"Authorization": f"Bearer {cluster.token.reveal()}"},
        timeout=HTTP_TIMEOUT_S,
        trust_env=False,
        # Reading the system's certificates takes 20 ms of a processor.
        verify=layout.tls and operator_tls(layout).client_context(),
        **request,
    )


def agent_answer(cluster: LocalCluster, name: str, path: str) -> Any:
    """Return an agent's answer to GET path."""
    return ask_agent(cluster, name, "GET", path).raise_for_status().json()


def metric(cluster: LocalCluster, name: str, figure: str) -> float:
    """Return one figure of an agent's metrics, by its name without the prefix."""
    text = ask_agent(cluster, name, "GET", "/metrics").raise_for_status().text
    lines = [line for line in text.splitlines() if line.startswith(f"messagebus_agent_{figure}{{")]
    assert lines, f"no metric {figure}"
    return float(lines[0].rpartition(" ")[2])


def register(cluster: LocalCluster, *wanted: str) -> Any:
    """Have these created, as an operator; return the answer of the agents, complete or not."""
    return _change(cluster, wanted, alive=True)


def unregister(cluster: LocalCluster, *wanted: str) -> Any:
    """Have these deleted on every broker."""
    return _change(cluster, wanted, alive=False)


def _change(cluster: LocalCluster, wanted: Collection[str], *, alive: bool) -> Any:
    name = next(n for n in cluster.names if cluster.process_of(n, agent=True))
    body = {"wanted": list(wanted), "alive": alive}
    return ask_agent(cluster, name, "POST", "/topology", json=body).raise_for_status().json()


def forget(cluster: LocalCluster, topic: str) -> None:
    """Delete a topic with its subscriptions and its stream, or a queue of that name."""
    entries = agent_answer(cluster, cluster.names[0], "/topology")["entries"]
    alive = [entry["wanted"] for entry in entries if entry["alive"]]
    ours = [w for w in alive if w.split("/")[0].rpartition(":")[2] == topic]
    if ours:
        unregister(cluster, *ours)


def operators_drain(cluster: LocalCluster, name: str, draining: bool) -> None:
    """Set or clear the operators' flag of a broker."""
    body = {"draining": draining}
    ask_agent(cluster, name, "POST", "/drain", json=body).raise_for_status()


def queue_exists(cluster: LocalCluster, name: str, queue: str) -> bool:
    with cluster.management(name) as management:
        return (
            management.get(f"{_queue_path(queue)}?disable_stats=true").status_code == httpx.codes.OK
        )


def delete_queue(cluster: LocalCluster, name: str, queue: str) -> None:
    """Delete a queue behind the agents' back."""
    with cluster.management(name) as management:
        management.delete(_queue_path(queue)).raise_for_status()


def purge_queue(cluster: LocalCluster, name: str, queue: str) -> None:
    with cluster.management(name) as management:
        management.delete(f"{_queue_path(queue)}/contents").raise_for_status()


def _queue_path(queue: str) -> str:
    return f"/api/queues/%2F/{quote(queue, safe='')}"


def close_connections(cluster: LocalCluster, name: str, wanted: str) -> None:
    """Have the broker close every connection of one client; return when it had some."""
    eventually(
        lambda: close_listed(cluster, name, wanted),
        within_s=LISTED_WITHIN_S,
        what=f"{name} lists a connection of {wanted}",
    )


def write_list(cluster: LocalCluster, names: Iterable[str], *, draining: Iterable[str] = ()) -> int:
    """Give every node a list of these brokers, with a new generation, as `consumer_lists push` does."""
    generation = _generation(cluster) + 1
    listed = tuple(
        ListedBroker(
            broker=Broker.parse(cluster.node(name).broker),
            draining=name in set(draining),
            agent_port=cluster.node(name).agent_port,
        )
        for name in names
    )
    push_list(
        cluster, BrokerList(cluster=cluster.layout.cluster, generation=generation, listed=listed)
    )
    return generation


def _generation(cluster: LocalCluster) -> int:
    files = [cluster.layout.list_file, *(node.list_file for node in cluster.layout.nodes)]
    return max(BrokerList.parse(file.read_text()).generation for file in files)


def balancer_state(cluster: LocalCluster, name: str) -> str:
    """Return the broker's state as HAProxy sees it: UP, DOWN, DRAIN, ..."""
    for line in _ask_balancer(cluster, "show stat").splitlines():
        fields = line.split(",")
        if fields[0] == "mb_brokers" and fields[1] == name:
            return fields[17].split()[0]
    return ""


def reload_balancer(cluster: LocalCluster) -> None:
    """Have the master start a new worker; return when that one answers."""
    master = cluster.process_of("haproxy")
    assert master is not None
    before = _worker(cluster)
    send(master, signal.SIGUSR2)
    eventually(lambda: _worker(cluster) not in ("", before), within_s=RELOAD_WITHIN_S)


def _worker(cluster: LocalCluster) -> str:
    for line in _ask_balancer(cluster, "show info").splitlines():
        if line.startswith("Pid:"):
            return line
    return ""


def _ask_balancer(cluster: LocalCluster, command: str) -> str:
    """Run one command of the admin socket; "" while nobody answers."""
    try:
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(SOCKET_TIMEOUT_S)
            admin.connect(str(cluster.layout.front.admin_socket))
            admin.sendall(command.encode() + b"\n")
            return b"".join(iter(lambda: admin.recv(65_536), b"")).decode()
    except OSError:
        return ""


@contextmanager
def balancer_configured(cluster: LocalCluster, text: str) -> Iterator[None]:
    """Run HAProxy with another configuration while the block runs."""
    config = cluster.layout.front.config
    before = config.read_text()
    try:
        config.write_text(text)
        reload_balancer(cluster)
        yield
    finally:
        config.write_text(before)
        reload_balancer(cluster)


def restore(cluster: LocalCluster) -> None:
    """Thaw, start and undrain all parts that need it; return when publishes pass."""
    for part in cluster.status()["parts"]:
        _restore_process(cluster, part["name"], part["state"])
        if part["kind"] == "broker":
            _restore_process(cluster, f"{part['name']}-agent", part["agent_state"])
    listed = cluster.consumer_list()
    wanted = {cluster.node(name).broker for name in cluster.names}
    if listed.names != wanted or any(entry.draining for entry in listed):
        write_list(cluster, cluster.names)
    for name in cluster.names:
        if agent_answer(cluster, name, "/topology")["broker"] and _is_drained(cluster, name):
            operators_drain(cluster, name, False)
    cluster.wait_ready()


def _restore_process(cluster: LocalCluster, name: str, state: str) -> None:
    if state == "frozen":
        cluster.thaw(name)
    elif state in ("stopped", "gone"):
        cluster.start(name)


def _is_drained(cluster: LocalCluster, name: str) -> bool:
    return bool(ask_agent(cluster, name, "GET", "/health").json().get("draining"))
