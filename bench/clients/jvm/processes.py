"""Nodes of a Java system: started together, each on an address of its own, ended by their pids."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.clients.jvm.maven import Package
from bench.errors import BenchError
from bench.harness.sampling import Probe
from bench.load.profile import Profile
from bench.processes import Children, wait_until

NODES_MAX = 9
# Nodes of a local cluster have 127.x.y.11 to .109, HAProxy .10: both can run on one network.
HOST_FIRST = 201
UP_WITHIN_S = 90.0
CONNECT_WITHIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Node:
    """One node. ports: all listening ports, the one for clients first. argv: arguments after ``java``."""

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


def hosts(network: str, count: int) -> list[str]:
    """Return the nodes' addresses. network: for example ``127.0.0``."""
    return [f"{network}.{HOST_FIRST + each}" for each in range(count)]


Prepare = Callable[[Sequence[str], Path, Profile], list[Node]]
"""Writes the files of nodes at these addresses into a folder."""


@contextmanager
def started(
    program: Package, profile: Profile, network: str, say: Callable[[str], None], prepare: Prepare
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
    names = [node.name for node in nodes]
    env = {key: value for key, value in os.environ.items() if key != "CLASSPATH"}
    try:
        for node in nodes:
            children.start(node.name, ["java", *node.argv], env, folder)
        wait_until(
            lambda: all(_answers(node.host, port) for node in nodes for port in node.ports),
            within_s=UP_WITHIN_S,
            what="not all ports answer",
            check=lambda: children.check(names),
        )
        yield children
    finally:
        children.stop_all()


def run_tool(argv: Sequence[str], output: Path, within_s: float) -> str:
    """Run a Java program and return its output, which is also kept in a file. Raises BenchError."""
    try:
        with output.open("w") as file:
            done = subprocess.run(
                ["java", *argv],
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=within_s,
                check=False,
            )
    except subprocess.TimeoutExpired as fault:
        raise BenchError(
            f"it did not end within {within_s:.0f} s; what it said: {output}"
        ) from fault
    if done.returncode:
        raise BenchError(f"it ended with exit code {done.returncode}; what it said: {output}")
    return output.read_text(errors="replace")


def probes(nodes: Sequence[Node], children: Children) -> list[Probe]:
    """Return probes of the nodes' processes. They do not count waiting messages."""
    return [Probe(node.broker, children.pid(node.name), _nothing) for node in nodes]


def _nothing() -> Mapping[str, int]:
    return {}


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), CONNECT_WITHIN_S):
            return True
    except OSError:
        return False
