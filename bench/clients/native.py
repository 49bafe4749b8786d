"""A native RabbitMQ cluster: the same nodes, joined, with queues that have a member on every node.

Publisher and consumer n connect to node n modulo their count, without a balancer. Messages cross from
node to node if the leader of a queue is another one. The client is messagebus' own in both cases, so the
comparison is between the brokers. ``fsync`` means quorum queues, ``page-cache`` classic queues mirrored to
all nodes (policy ha-mode all), where the version has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from bench.clients import messagebus, rabbitmq
from bench.faults import call
from bench.harness.interface import Where
from bench.load.profile import Profile, places
from bench.processes import wait_until
from messagebus import BusConfig, Subscription, Topic, declare
from messagebus.topology import with_options
from ops.local.cluster import LocalCluster
from ops.local.parts import agent_part
from ops.local.secrets import ADMIN

C = TypeVar("C")
NODES = "BENCH_NODES"
NAME = "native-cluster"
# The management API shows the members at its next statistics interval.
MEMBERS_WITHIN_S = 15.0
MIRRORED = {"pattern": "^mb", "apply-to": "queues", "definition": {"ha-mode": "all"}}


def durability(profile: Profile) -> str:
    nodes = profile.system.brokers
    return {
        "fsync": f"fsynced by {nodes // 2 + 1} of {nodes} nodes before the confirm (quorum queues with "
        "a member on each)",
        "page-cache": f"handed to the operating systems of all {nodes} nodes before the confirm "
        "(mirrored classic queues)",
    }[profile.system.durability]


class Native(rabbitmq.Standalone):
    """The joined nodes: costs and faults are those of the same nodes alone."""

    @property
    def _nodes(self) -> list[str]:
        return self.cluster.brokers

    def env(self) -> Mapping[str, str]:
        """Return the clients' environment. They declare and check queues, which needs the admin's rights."""
        return {
            NODES: " ".join(self._nodes),
            "MESSAGEBUS_USER": "admin",
            "MESSAGEBUS_PASSWORD_FILE": str(self.cluster.layout.secret(ADMIN)),
        }

    def declare(self, profile: Profile) -> None:
        level = profile.system.durability
        options = {} if level == "fsync" else {"durability": level}
        names = [f"{topic}/{subscription}" for topic, subscription in places(profile)]
        wanted = [with_options(name, options) for name in names]
        declare(BusConfig.from_env(_at(self.env(), 0)), wanted)
        self._check_members(profile)

    def _check_members(self, profile: Profile) -> None:
        """Wait until every queue of the run has all its members. Raises BenchError after a timeout."""
        of, others = ("members", 0) if profile.system.durability == "fsync" else ("slave_nodes", 1)
        names = {Subscription(Topic(t), s).amqp_queue for t, s in places(profile)}

        def lacking() -> list[str]:
            with self.cluster.management(self.cluster.names[0]) as management:
                queues = management.get("/api/queues").raise_for_status().json()
            whole = [q for q in queues if len(q.get(of, [])) + others == len(self._nodes)]
            return sorted(names - {queue["name"] for queue in whole})

        wait_until(
            lambda: not lacking(),
            within_s=MEMBERS_WITHIN_S,
            what=lambda: f"not on every node: {', '.join(lacking())}",
        )

    def about(self) -> Mapping[str, Any]:
        return {
            "nodes": f"{len(self._nodes)} RabbitMQ in one native cluster",
            "path": "each client to one node, by turns; no balancer",
        }


@contextmanager
def started(profile: Profile, network: str, say: Callable[[str], None]) -> Iterator[Native]:
    """Start standalone nodes, stop balancer and agents, and join the other nodes to the first."""
    with rabbitmq.started(profile, network, say) as running:
        cluster = running.cluster
        join(cluster)
        with cluster.management(cluster.names[0]) as management:
            # A name for all nodes: a client cannot tell from it which node it is connected to.
            management.put("/api/cluster-name", json={"name": NAME}).raise_for_status()
            if profile.system.durability == "page-cache":
                management.put("/api/policies/%2F/mirrored", json=MIRRORED).raise_for_status()
        yield Native(cluster)


def join(cluster: LocalCluster) -> None:
    """Stop balancer and agents, and join the other nodes to the first."""
    cluster.stop("haproxy")
    for name in cluster.names:
        cluster.stop(agent_part(name))
    for name in cluster.names[1:]:
        _join(cluster, name)


def _join(cluster: LocalCluster, name: str) -> None:
    """Do what ``rabbitmqctl stop_app; reset; join_cluster; start_app`` do, without their start-up."""
    first = cluster.node(cluster.names[0]).node_name
    for order in (
        "rabbit:stop()",
        _since_3_13("rabbit_db:reset()", "rabbit_mnesia:reset()"),
        _since_3_13(
            f"rabbit_db_cluster:join('{first}', disc)",
            f"rabbit_mnesia:join_cluster('{first}', disc)",
        ),
        "rabbit:start()",
    ):
        call(cluster, name, order)


def _since_3_13(order: str, before: str) -> str:
    """Return an expression that gives an order to the database of a node, Khepri or Mnesia."""
    there = "element(1, code:ensure_loaded(rabbit_db))"
    return f"case {there} of module -> {order}; _ -> {before} end"


def _at(env: Mapping[str, str], number: int) -> dict[str, str]:
    """Return the environment of client `number`, with its own node."""
    nodes = env[NODES].split()
    return {**env, "MESSAGEBUS_BROKER": nodes[number % len(nodes)]}


def _of_one_node(client: Callable[[Profile, Where], C]) -> Callable[[Profile, Where], C]:
    return lambda profile, where: client(
        profile, dataclasses.replace(where, env=_at(where.env, where.number))
    )


Sender, Receiver = _of_one_node(messagebus.Sender), _of_one_node(messagebus.Receiver)
