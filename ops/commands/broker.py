"""Commands that start a RabbitMQ node by hand, without a service manager. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from ops.local.layout import NodeLayout

__all__ = ["ERLANG_ARGS", "RABBITMQ_SERVER", "environment", "epmd", "epmd_environment", "start"]

# The package's wrapper in /usr/sbin wants root and changes to the user rabbitmq; this one does not.
RABBITMQ_SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
EPMD = "/usr/bin/epmd"

# Two schedulers, few threads: several brokers share a small machine. Idle schedulers sleep at once
# instead of spinning. Three nodes were ready after 8 to 9 s on 2 cores with and without these; the
# threads fall from 20 to 13 each.
ERLANG_ARGS = (
    *("+S", "2:2", "+SDcpu", "2:2", "+SDio", "4"),
    *("+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none"),
    *("-start_epmd", "false"),
)


def start(node: NodeLayout) -> list[str]:
    """Start a broker in the foreground.

    RABBITMQ_ALLOW_INPUT (see `environment`) makes the script become the Erlang machine, so that
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
    ]


def environment(node: NodeLayout, *, epmd_port: int) -> dict[str, str]:
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


def epmd(hosts: Iterable[str] = (), *, port: int) -> list[str]:
    """Start epmd in the foreground, so that its pid is known.

    hosts: addresses at which agents of other brokers ask it.
    """
    return [EPMD, "-address", ",".join(["127.0.0.1", *hosts]), "-port", str(port)]


def epmd_environment(port: int) -> dict[str, str]:
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "ERL_EPMD_PORT": str(port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
    }
