"""The state of a local cluster's parts: their processes, and what they answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx

from lb.errors import LbError
from lb.runtime import servers as balanced
from messagebus.broker import BrokerList
from messagebus.tls import TlsFiles
from ops.local import files, process, secrets, servers
from ops.local.layout import CA, EPMD, BalancerLayout, Layout, NodeLayout
from ops.local.parts import Part, agent_part, part

PROBE_S = 0.5
PidFile = Callable[[str], Path]
"""Returns the pid file of a part."""


def cluster_status(layout: Layout, listed: BrokerList, pid_file: PidFile) -> dict[str, Any]:
    """Return the state of all parts, as `python -m ops local status --json` prints it."""
    return {
        "cluster": layout.cluster,
        "dir": str(layout.dir),
        "broker": layout.front.amqp,
        "list_url": layout.list_url,
        "user": "bus",
        "password_file": str(layout.secret(secrets.BUS)),
        "admin_user": "admin",
        "admin_password_file": str(layout.secret(secrets.ADMIN)),
        "token_file": str(layout.secret(secrets.TOKEN)),
        "stats_url": f"http://{layout.front.stats}/",
        "admin_socket": str(layout.front.admin_socket),
        "generation": listed.generation,
        "parts": [
            *(_node_status(layout, node, listed, pid_file) for node in layout.nodes),
            *(_part_status(part(layout, front.name), pid_file) for front in layout.fronts),
            _part_status(part(layout, EPMD), pid_file),
            *(
                {
                    **_part_status(part(layout, server.name), pid_file),
                    "address": f"{server.host}:{server.port}",
                    "url": servers.url(server),
                    "password_file": str(server.password_file),
                }
                for server in layout.servers
            ),
        ],
    }


def not_ready(layout: Layout, nodes: Iterable[NodeLayout]) -> list[str]:
    """Return each broker that takes no publishes, with the reason."""
    silent = [
        f"{node.name} ({verdict})"
        for node in nodes
        if (verdict := _verdict(layout, node)) != "ready"
    ]
    if silent:
        return silent
    states = {front.name: _balancer_states(front) for front in layout.fronts}
    return [
        f"{node.name} ({name}: {known.get(node.name, 'silent')})"
        for node in nodes
        for name, known in states.items()
        if known.get(node.name) != "up"
    ]


def _node_status(
    layout: Layout, node: NodeLayout, listed: BrokerList, pid_file: PidFile
) -> dict[str, Any]:
    entry = listed.find(node.broker)
    agent = process.find(pid_file(agent_part(node.name)))
    return {
        **_part_status(part(layout, node.name), pid_file),
        "address": node.broker,
        "management": f"{layout.scheme}://{node.management}",
        "agent": f"{layout.scheme}://{node.agent}",
        "check": node.check,
        "agent_pid": agent.pid if agent else None,
        "agent_state": _state(part(layout, agent_part(node.name)), pid_file),
        "verdict": _verdict(layout, node),
        "listed": entry is not None,
        "draining": entry is not None and entry.draining,
    }


def _part_status(wanted: Part, pid_file: PidFile) -> dict[str, Any]:
    found = process.find(pid_file(wanted.name))
    return {
        "kind": wanted.kind,
        "name": wanted.name,
        "pid": found.pid if found else None,
        "state": _state(wanted, pid_file),
    }


def _state(wanted: Part, pid_file: PidFile) -> str:
    """Return running, booting (alive, does not answer), frozen, stopped (by us) or gone (died)."""
    file = pid_file(wanted.name)
    found = process.find(file)
    if found is None:
        return "gone" if file.exists() else "stopped"
    if found.state == "T":
        return "frozen"
    return "running" if answers(wanted.address) else "booting"


def answers(address: tuple[str, int]) -> bool:
    try:
        with socket.create_connection(address, timeout=PROBE_S):
            return True
    except OSError:
        return False


def operator_tls(layout: Layout) -> TlsFiles:
    """Return the operators' certificates of a local cluster; none without TLS."""
    if not layout.tls:
        return TlsFiles()
    return TlsFiles(
        ca_file=str(layout.tls_file(CA)),
        cert_file=str(layout.tls_file(f"{files.OPERATOR}.pem")),
        key_file=str(layout.tls_file(f"{files.OPERATOR}.key")),
    )


def _verdict(layout: Layout, node: NodeLayout) -> str:
    """Return the verdict of the node's agent: ready, drain or down; silent when it does not answer."""
    try:
        answer = httpx.get(
            f"{layout.scheme}://{node.agent}/health",
            timeout=PROBE_S,
            trust_env=False,
            verify=operator_tls(layout).client_context(),
        )
        return str(answer.json()["verdict"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return "silent"


def _balancer_states(front: BalancerLayout) -> dict[str, str]:
    """Return HAProxy's verdict on each broker: up, down, drain, maint; empty when it does not answer."""
    try:
        return {name: server.verdict for name, server in balanced(front.admin_socket).items()}
    except LbError:
        return {}
