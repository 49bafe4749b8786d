"""Names, addresses, ports and files of a local cluster. Pure; reads nothing and starts nothing.

Every node has an address of its own (127.0.0.11, .12, ...), HAProxy has 127.0.0.10. So all nodes use
the same ports, as real hosts would. `offset` moves all of these ports together. epmd and the
distribution of Erlang listen on 127.0.0.1 only, in a `block` of ports that no other local cluster has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ops.errors import LocalFault

DEFAULT_NETWORK = "127.0.0"
BALANCER = "haproxy"
HERE = Path("/")
"""Root folder of this system."""
EPMD = "epmd"

AMQP_PORT = 5672
MANAGEMENT_PORT = 15672
AGENT_PORT = 8081
CHECK_PORT = 8082
STATS_PORT = 8404

# The name in certificates of brokers and agents, beside their own addresses.
SERVER_NAME = "bus.test"
CA = "ca.pem"
"""Name of the certificate of the authority that signs all others."""

# 127.0.0.10 is HAProxy, 127.0.0.11 is mb1; the last address of a network is .254.
BALANCER_HOST = 10
# 127.0.0.9 is the second one, and so on.
BALANCERS_MAX = 9
NODES_MAX = 99
# epmd listens at 16 addresses at most, two of them its own.
EPMD_HOSTS_MAX = 12
# Below Linux's range of ephemeral ports (32768-60999), so that no client's port is in the way.
BLOCK_FIRST = 21_000
BLOCK_SIZE = 100
BLOCKS = 100

# Only a measured run with load from other hosts has addresses that others reach.
LOOPBACK = "127."
_NETWORK = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}", re.ASCII)
_NODE = re.compile(r"mb([1-9][0-9]?)")


def node_number(name: str) -> int:
    """Return the number of a node: 1 for ``mb1``. Raises LocalFault for other names."""
    found = _NODE.fullmatch(name)
    if not found:
        raise LocalFault(f"{name!r}: local brokers are called mb1, mb2, ... mb{NODES_MAX}")
    return int(found[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLayout:
    """One broker with its agent.

    version: of its RabbitMQ, a key of `roots.RELEASES`; "" for that of `Layout.root`.
    """

    name: str
    host: str
    amqp_port: int
    management_port: int
    agent_port: int
    check_port: int
    distribution_port: int
    dir: Path
    version: str = ""

    @property
    def broker(self) -> str:
        """The broker's ``host:port``: its name in the consumer list, and its cluster_name."""
        return f"{self.host}:{self.amqp_port}"

    @property
    def management(self) -> str:
        return f"{self.host}:{self.management_port}"

    @property
    def agent(self) -> str:
        return f"{self.host}:{self.agent_port}"

    @property
    def check(self) -> str:
        return f"{self.host}:{self.check_port}"

    @property
    def node_name(self) -> str:
        """The name of the Erlang node."""
        return f"{self.name}@localhost"

    @property
    def home(self) -> Path:
        """The HOME of the broker: Erlang looks for its cookie there."""
        return self.dir / "home"

    @property
    def data_dir(self) -> Path:
        return self.dir / "data"

    @property
    def log_dir(self) -> Path:
        return self.dir / "log"

    @property
    def agent_dir(self) -> Path:
        return self.dir / "agent"

    @property
    def python_dir(self) -> Path:
        """The folder of modules that its agent imports before all others: tests set its clock there."""
        return self.dir / "python"

    @property
    def list_file(self) -> Path:
        return self.dir / "list.txt"

    @property
    def sockets(self) -> list[tuple[str, int]]:
        """The addresses at which the node listens for others."""
        ports = (self.amqp_port, self.management_port, self.agent_port, self.check_port)
        return [(self.host, port) for port in ports]


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerLayout:
    """One HAProxy."""

    name: str
    amqp: str
    list_address: str
    stats: str
    dir: Path

    @property
    def config(self) -> Path:
        return self.dir / "haproxy.cfg"

    @property
    def admin_socket(self) -> Path:
        return self.dir / "admin.sock"

    @property
    def state_file(self) -> Path:
        return self.dir / "server-state"

    @property
    def master_pid_file(self) -> Path:
        return self.dir / "master.pid"


class ServerChoice(NamedTuple):
    """A server that a cluster has beside its brokers: redis, postgresql or mariadb.

    port: 0 until its first start. persistence: Redis's appendfsync, or none.
    """

    kind: str
    port: int = 0
    persistence: str = "everysec"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server. master: address of the Redis that it copies, or that the sentinel monitors by a name."""

    name: str
    kind: str
    host: str
    port: int
    dir: Path
    password_file: Path
    persistence: str = "everysec"
    master: tuple[str, int] | tuple[()] = ()
    monitors: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A local cluster. dir: absolute. numbers: its nodes, ascending; 1 is mb1.

    balancers: their number, 1 to BALANCERS_MAX: haproxy, haproxy2, ...
    choices: servers of stores and databases, at the address of the first balancer.
    tls: brokers and agents speak TLS alone, and require certificates.
    root: folder of the system whose brokers and HAProxy these are; / is this one's.
    versions: number of a broker whose RabbitMQ is another one -> its version.
    """

    dir: Path
    numbers: tuple[int, ...]
    network: str = DEFAULT_NETWORK
    offset: int = 0
    block: int = 0
    cluster: str = "local"
    tls: bool = False
    root: Path = HERE
    balancers: int = 1
    choices: tuple[ServerChoice, ...] = ()
    versions: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _NETWORK.fullmatch(self.network) or any(
            int(part) > 255 for part in self.network.split(".")
        ):
            raise LocalFault(f"network {self.network!r}: three numbers, such as 127.0.7")
        if not self.numbers or not all(1 <= number <= NODES_MAX for number in self.numbers):
            raise LocalFault(f"1 to {NODES_MAX} brokers, not {list(self.numbers)}")
        if not 1 <= self.balancers <= BALANCERS_MAX:
            raise LocalFault(f"1 to {BALANCERS_MAX} balancers, not {self.balancers}")

    @property
    def nodes(self) -> list[NodeLayout]:
        return [self._node(number) for number in self.numbers]

    def node(self, name: str) -> NodeLayout:
        """Return a node. Raises LocalFault for a name that this cluster does not have."""
        number = node_number(name)
        if number not in self.numbers:
            names = ", ".join(f"mb{known}" for known in self.numbers)
            raise LocalFault(f"no broker {name} here; there are {names}")
        return self._node(number)

    def _node(self, number: int) -> NodeLayout:
        return NodeLayout(
            name=f"mb{number}",
            host=f"{self.network}.{BALANCER_HOST + number}",
            amqp_port=AMQP_PORT + self.offset,
            management_port=MANAGEMENT_PORT + self.offset,
            agent_port=AGENT_PORT + self.offset,
            check_port=CHECK_PORT + self.offset,
            distribution_port=self.epmd_port + number,
            dir=self.dir / "nodes" / f"mb{number}",
            version=self.versions.get(number, ""),
        )

    @property
    def epmd_hosts(self) -> list[str]:
        """The addresses at which agents ask epmd about another broker, also one that is added later."""
        return [self._node(number).host for number in range(1, EPMD_HOSTS_MAX + 1)]

    def with_node(self, name: str, version: str = "") -> Layout:
        """Add a node, if it is not there. version: of its RabbitMQ; "" leaves it as it is."""
        number = node_number(name)
        versions = {**self.versions, number: version} if version else self.versions
        return replace(self, numbers=tuple(sorted({*self.numbers, number})), versions=versions)

    def without_node(self, name: str) -> Layout:
        number = node_number(name)
        left = tuple(each for each in self.numbers if each != number)
        versions = {each: version for each, version in self.versions.items() if each != number}
        return replace(self, numbers=left, versions=versions)

    @property
    def fronts(self) -> list[BalancerLayout]:
        """The balancers, in their order; each has an address of its own."""
        return [self._front(number) for number in range(1, self.balancers + 1)]

    @property
    def front(self) -> BalancerLayout:
        """The first balancer."""
        return self._front(1)

    def _front(self, number: int) -> BalancerLayout:
        name = f"{BALANCER}{number if number > 1 else ''}"
        host = f"{self.network}.{BALANCER_HOST + 1 - number}"
        return BalancerLayout(
            name=name,
            amqp=f"{host}:{AMQP_PORT + self.offset}",
            list_address=f"{host}:{AGENT_PORT + self.offset}",
            stats=f"{host}:{STATS_PORT + self.offset}",
            dir=self.dir / name,
        )

    @property
    def servers(self) -> list[Server]:
        return [
            Server(
                name=choice.kind,
                kind=choice.kind,
                host=f"{self.network}.{BALANCER_HOST}",
                port=choice.port,
                dir=self.dir / "servers" / choice.kind,
                password_file=self.secret(f"{choice.kind}.password"),
                persistence=choice.persistence,
            )
            for choice in self.choices
        ]

    @property
    def list_url(self) -> str:
        return f"{self.scheme}://{self.front.list_address}/consumer-list"

    @property
    def epmd_port(self) -> int:
        return BLOCK_FIRST + self.block * BLOCK_SIZE

    @property
    def sockets(self) -> Iterator[tuple[str, int]]:
        """The addresses at which the cluster listens for others: they must be free before it starts."""
        for front in self.fronts:
            for address in (front.amqp, front.list_address, front.stats):
                host, _, port = address.rpartition(":")
                yield host, int(port)
        for node in self.nodes:
            yield from node.sockets

    @property
    def secrets_dir(self) -> Path:
        return self.dir / "secrets"

    def secret(self, name: str) -> Path:
        return self.secrets_dir / name

    @property
    def tls_dir(self) -> Path:
        return self.dir / "tls"

    def tls_file(self, name: str) -> Path:
        """Return a file of the certificates' folder: ``ca.pem``; NAME.pem and NAME.key of mb1, client, ..."""
        return self.tls_dir / name

    @property
    def scheme(self) -> str:
        """The scheme of URLs of agents and management APIs."""
        return "https" if self.tls else "http"

    @property
    def run_dir(self) -> Path:
        return self.dir / "run"

    @property
    def inventory(self) -> Path:
        return self.dir / "inventory.toml"

    @property
    def haproxy(self) -> Path:
        """The script that becomes the HAProxy of a root folder other than /."""
        return self.dir / "enter-haproxy"

    @property
    def list_file(self) -> Path:
        """The operators' copy of the consumer list."""
        return self.dir / "consumer_lists" / f"{self.cluster}.txt"

    def log_file(self, part: str) -> Path:
        """Return the file with the standard output of a part (mb1, mb1-agent, haproxy, epmd)."""
        return self.run_dir / f"{part}.log"

    @property
    def state_file(self) -> Path:
        return self.dir / "cluster.json"

    def to_json(self) -> str:
        state: dict[str, Any] = {
            "cluster": self.cluster,
            "network": self.network,
            "offset": self.offset,
            "block": self.block,
            "numbers": list(self.numbers),
            "tls": self.tls,
            "root": str(self.root),
            "balancers": self.balancers,
            "choices": self.choices,
            "versions": self.versions,
        }
        return json.dumps(state, indent=2) + "\n"

    @classmethod
    def from_json(cls, dir: Path, text: str) -> Layout:
        """Read the text of `to_json`. Raises LocalFault for anything else."""
        try:
            state = json.loads(text)
            numbers = tuple(int(number) for number in state.pop("numbers"))
            root = Path(state.pop("root", HERE))
            choices = tuple(ServerChoice(*choice) for choice in state.pop("choices", ()))
            versions = {int(each): str(of) for each, of in state.pop("versions", {}).items()}
            return cls(
                dir=dir, numbers=numbers, root=root, choices=choices, versions=versions, **state
            )
        except (ValueError, TypeError, KeyError, AttributeError) as fault:
            raise LocalFault(f"{dir / 'cluster.json'} is damaged: {fault}") from fault
