"""Nodes of systems that are no RabbitMQ, each a process on an address of its own, ended by its pid."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.errors import BenchError
from bench.faults import Fault
from bench.harness.sampling import Probe
from bench.load.profile import Profile
from bench.processes import Children, wait_until

NODES_MAX = 9
# Nodes of a local cluster have 127.x.y.11 to .109, HAProxy .10: both can run on one network.
HOST_FIRST = 201
# Without a word in a node's log; a JVM beside busy processes takes its time.
UP_WITHIN_S = 120.0
CONNECT_WITHIN_S = 1.0
COPIES_MAX = 3


@dataclass(frozen=True, slots=True)
class Node:
    """One node. ports: all listening ports, the one for clients first. argv: its command."""

    number: int
    host: str
    ports: tuple[int, ...]
    argv: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def broker(self) -> str:
        return f"{self.host}:{self.ports[0]}"


def copies(nodes: int) -> int:
    """Return the number of nodes that have each message, in a system that copies them."""
    return min(COPIES_MAX, nodes)


def in_sync(nodes: int) -> int:
    """Return the number of copies that must have a message before its confirm: more than half."""
    return copies(nodes) // 2 + 1


def hosts(network: str, count: int) -> list[str]:
    """Return the nodes' addresses. network: for example ``127.0.0``."""
    return [f"{network}.{HOST_FIRST + each}" for each in range(count)]


Prepare = Callable[[Sequence[str], Path, Profile], list[Node]]
"""Writes the files of nodes at these addresses into a folder."""


class Nodes:
    """The running nodes of a run: a `bench.harness.interface.Running` without faults.

    setting: the environment variable that gives load processes the addresses of all nodes. about: of the
    results. declared: makes the topics of a profile, where the nodes' configuration does not.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        children: Children,
        setting: str,
        about: Mapping[str, Any],
        declared: Callable[[Profile], object] = lambda profile: None,
    ) -> None:
        self._nodes, self._children, self._setting, self._about = nodes, children, setting, about
        self.declare = declared

    def env(self) -> Mapping[str, str]:
        return {self._setting: ",".join(node.broker for node in self._nodes)}

    def probes(self) -> list[Probe]:
        """Return probes of the nodes' processes. They do not count waiting messages."""
        return [Probe(node.broker, self._children.pid(node.name), dict) for node in self._nodes]

    def about(self) -> Mapping[str, Any]:
        return self._about

    def fault(self, name: str, number: int) -> Fault:
        raise BenchError(f"{name} of node {number}: this system has no faults here")


def wait_up(
    nodes: Sequence[Node], children: Children, condition: Callable[[], object], what: str
) -> None:
    """Wait for a condition as long as the nodes live and their logs grow. Raises BenchError."""
    names = [node.name for node in nodes]
    wait_until(
        condition,
        within_s=UP_WITHIN_S,
        what=what,
        check=lambda: children.check(names),
        moves=children.log_bytes,
    )


class Program(Protocol):
    """A program that is here, or can be fetched."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def fetch(self) -> object:
        """Have it here. Raises BenchError."""


@contextmanager
def started_nodes(
    program: Program, profile: Profile, network: str, say: Callable[[str], None], prepare: Prepare
) -> Iterator[tuple[list[Node], Children]]:
    """Fetch a program and run nodes of it with folders and addresses of their own; remove them afterwards.

    Raises BenchError.
    """
    program.fetch()
    with tempfile.TemporaryDirectory(prefix="messagebus-run-", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        nodes = prepare(hosts(network, profile.system.brokers), folder, profile)
        say(f"{program.name.capitalize()} {program.version}: {len(nodes)} nodes start")
        with running(nodes, folder) as children:
            yield nodes, children


@contextmanager
def running(nodes: Sequence[Node], folder: Path) -> Iterator[Children]:
    """Run the nodes; enter the context when all their ports answer. Raises BenchError."""
    for node in nodes:
        for port in node.ports:
            if _answers(node.host, port):
                raise BenchError(f"{node.host}:{port} is taken; --network chooses other addresses")
    children = Children(folder / "logs")
    env = {key: value for key, value in os.environ.items() if key != "CLASSPATH"}
    try:
        for node in nodes:
            children.start(node.name, node.argv, env, folder)
        ports = [(node.host, port) for node in nodes for port in node.ports]
        wait_up(nodes, children, lambda: all(_answers(*each) for each in ports), "all ports answer")
        yield children
    finally:
        children.stop_all()


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), CONNECT_WITHIN_S):
            return True
    except OSError:
        return False
