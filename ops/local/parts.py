"""The programs of a local cluster: their names, commands and addresses. Pure."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from lb.hosts import HAPROXY
from ops.commands import broker
from ops.commands.kits import CHECKOUT
from ops.local.layout import EPMD, BalancerLayout, Layout
from ops.local.roots import entered

__all__ = ["AGENT_SUFFIX", "CHECKOUT", "Part", "agent_part", "part", "part_names"]

AGENT_SUFFIX = "-agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A long-lived program. kind: epmd, broker, agent or balancer. address: answers TCP there.

    stop_within_s: time between SIGTERM and SIGKILL.
    """

    name: str
    kind: str
    argv: list[str]
    env: dict[str, str]
    address: tuple[str, int]
    stop_within_s: float


def agent_part(node: str) -> str:
    return f"{node}{AGENT_SUFFIX}"


def part_names(layout: Layout) -> list[str]:
    """Return all parts in the order in which they start."""
    nodes = [node.name for node in layout.nodes]
    return [EPMD, *nodes, *map(agent_part, nodes), *(front.name for front in layout.fronts)]


def part(layout: Layout, name: str) -> Part:
    """Return a part. Raises LocalFault for a name that this cluster does not have."""
    if name == EPMD:
        return _epmd(layout)
    for front in layout.fronts:
        if name == front.name:
            return _balancer(layout, front)
    if name.endswith(AGENT_SUFFIX):
        return _agent(layout, name)
    return _broker(layout, name)


def _epmd(layout: Layout) -> Part:
    return Part(
        name=EPMD,
        kind="epmd",
        argv=entered(
            layout.root, layout.dir, broker.epmd(layout.epmd_hosts, port=layout.epmd_port)
        ),
        env=broker.epmd_environment(layout.epmd_port),
        address=("127.0.0.1", layout.epmd_port),
        stop_within_s=2,
    )


def _broker(layout: Layout, name: str) -> Part:
    node = layout.node(name)
    return Part(
        name=name,
        kind="broker",
        argv=entered(layout.root, layout.dir, broker.start(node)),
        env=broker.environment(node, epmd_port=layout.epmd_port),
        address=(node.host, node.amqp_port),
        stop_within_s=20,
    )


def _agent(layout: Layout, name: str) -> Part:
    node = layout.node(name.removesuffix(AGENT_SUFFIX))
    return Part(
        name=name,
        kind="agent",
        argv=[
            *(sys.executable, "-m", "messagebus", "-v", "agent"),
            *("--config", str(node.dir / "agent.toml")),
        ],
        env={
            **broker.epmd_environment(layout.epmd_port),
            "HOME": str(node.home),
            "PYTHONPATH": f"{node.python_dir}:{CHECKOUT}",
        },
        address=(node.host, node.agent_port),
        stop_within_s=5,
    )


def _balancer(layout: Layout, front: BalancerLayout) -> Part:
    """Return HAProxy as master and worker: the master keeps its pid over reloads."""
    host, _, port = front.amqp.rpartition(":")
    argv = [HAPROXY, "-W", "-f", str(front.config), "-p", str(front.master_pid_file)]
    return Part(
        name=front.name,
        kind="balancer",
        argv=entered(layout.root, layout.dir, argv),
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(front.dir)},
        address=(host, int(port)),
        stop_within_s=5,
    )
