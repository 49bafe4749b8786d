"""The programs of a local cluster: their names, commands and addresses. Pure."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from dataclasses import dataclass

from inventory.tables import HAPROXY
from ops.commands.kits import CHECKOUT
from ops.local import servers
from ops.local.layout import EPMD, BalancerLayout, Layout, NodeLayout, Server
from ops.local.roots import EPMD_PROGRAM, RABBITMQ_SERVER, RABBITMQCTL, chrooted, root_of

AGENT_SUFFIX = "-agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A long-lived program. kind: epmd, broker, agent, balancer or server. address: answers TCP there.

    stop: signal that ends it. stop_within_s: time between it and SIGKILL.
    """

    name: str
    kind: str
    argv: list[str]
    env: dict[str, str]
    address: tuple[str, int]
    stop_within_s: float
    stop: signal.Signals = signal.SIGTERM


def agent_part(node: str) -> str:
    return f"{node}{AGENT_SUFFIX}"


def part_names(layout: Layout) -> list[str]:
    """Return all parts in the order in which they start."""
    nodes = [node.name for node in layout.nodes]
    fronts = [front.name for front in layout.fronts]
    kinds = [choice.kind for choice in layout.choices]
    return [EPMD, *nodes, *map(agent_part, nodes), *fronts, *kinds]


def part(layout: Layout, name: str) -> Part:
    """Return a part. Raises LocalFault for a name that this cluster does not have."""
    if name == EPMD:
        return _epmd(layout)
    for front in layout.fronts:
        if name == front.name:
            return _balancer(layout, front)
    for server in layout.servers:
        if name == server.name:
            return server_part(server)
    if name.endswith(AGENT_SUFFIX):
        return _agent(layout, name)
    return _broker(layout, name)


def _epmd(layout: Layout) -> Part:
    return Part(
        name=EPMD,
        kind="epmd",
        argv=chrooted(layout.root, layout.dir, epmd_argv(layout.epmd_hosts, port=layout.epmd_port)),
        env=epmd_environment(layout.epmd_port),
        address=("127.0.0.1", layout.epmd_port),
        stop_within_s=2,
    )


def _broker(layout: Layout, name: str) -> Part:
    node = layout.node(name)
    return Part(
        name=name,
        kind="broker",
        argv=chrooted(root_of(layout, node), layout.dir, broker_argv(node)),
        env=broker_environment(node, epmd_port=layout.epmd_port),
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
            **epmd_environment(layout.epmd_port),
            "HOME": str(node.home),
            "PYTHONPATH": f"{node.python_dir}:{CHECKOUT}",
        },
        address=(node.host, node.agent_port),
        stop_within_s=5,
    )


def server_part(server: Server) -> Part:
    return Part(
        name=server.name,
        kind="server",
        argv=servers.argv(server),
        env=servers.environment(server),
        address=(server.host, server.port),
        stop_within_s=20,
        stop=servers.kind_of(server.kind).stop,
    )


def _balancer(layout: Layout, front: BalancerLayout) -> Part:
    """Return HAProxy as master and worker: the master keeps its pid over reloads."""
    host, _, port = front.amqp.rpartition(":")
    argv = [str(HAPROXY), "-W", "-f", str(front.config), "-p", str(front.master_pid_file)]
    return Part(
        name=front.name,
        kind="balancer",
        argv=chrooted(layout.root, layout.dir, argv),
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(front.dir)},
        address=(host, int(port)),
        stop_within_s=5,
    )


# Two schedulers, few threads: several brokers share a small machine. Idle schedulers sleep at once
# instead of spinning. Three nodes were ready after 8 to 9 s on 2 cores with and without these; the
# threads fall from 20 to 13 each.
ERLANG_ARGS = (
    *("+S", "2:2", "+SDcpu", "2:2", "+SDio", "4"),
    *("+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none"),
    *("-start_epmd", "false"),
)


def broker_argv(node: NodeLayout) -> list[str]:
    """Start a broker in the foreground.

    RABBITMQ_ALLOW_INPUT (see `broker_environment`) makes the script become the Erlang machine, so that
    the pid is the broker's; -noinput takes the input away again.

    The node's name is given to Erlang itself: distribution is then up before RabbitMQ looks, which
    otherwise starts another Erlang machine to make sure of epmd, and an epmd that nobody owns.
    """
    port = str(node.distribution_port)
    return [
        RABBITMQ_SERVER,
        "-noinput",
        *ERLANG_ARGS,
        *("-sname", node.node_name),
        *("-kernel", "inet_dist_listen_min", port),
        *("-kernel", "inet_dist_listen_max", port),
        *("-kernel", "inet_dist_use_interface", "{127,0,0,1}"),
        *("-mnesia", "core_dir", f'"{node.log_dir}"'),  # else where its caller stands
    ]


def broker_environment(node: NodeLayout, *, epmd_port: int) -> dict[str, str]:
    """Return a broker's whole environment: no RabbitMQ setting of the user reaches a local broker."""
    nothing = str(node.dir / "none")
    return {
        **epmd_environment(epmd_port),
        "HOME": str(node.home),
        "ERL_CRASH_DUMP": str(node.log_dir / "erl_crash.dump"),
        "RABBITMQ_ALLOW_INPUT": "1",
        "RABBITMQ_NODENAME": node.node_name,
        "RABBITMQ_DIST_PORT": str(node.distribution_port),
        "RABBITMQ_CONF_ENV_FILE": nothing,
        "RABBITMQ_CONFIG_FILE": nothing,
        "RABBITMQ_ADVANCED_CONFIG_FILE": str(node.dir / "advanced.config"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(node.dir / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(node.data_dir),
        "RABBITMQ_LOG_BASE": str(node.log_dir),
        "RABBITMQ_PID_FILE": str(node.dir / "rabbitmq.pid"),
    }


def ctl_argv(layout: Layout, node: NodeLayout, words: Iterable[str]) -> list[str]:
    """Run rabbitmqctl with these words, in the environment of the broker that it asks."""
    return chrooted(root_of(layout, node), layout.dir, [RABBITMQCTL, *words])


def epmd_argv(hosts: Iterable[str] = (), *, port: int) -> list[str]:
    """Start epmd in the foreground, so that its pid is known.

    hosts: addresses at which agents of other brokers ask it.
    """
    return [EPMD_PROGRAM, "-address", ",".join(["127.0.0.1", *hosts]), "-port", str(port)]


def epmd_environment(port: int) -> dict[str, str]:
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "ERL_EPMD_PORT": str(port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
