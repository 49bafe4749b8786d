"""Nodes of a Java system: started together, each on an address of its own, ended by their pids."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError
from bench.harness.sampling import Probe
from bench.processes import Children

__all__ = ["NODES_MAX", "Node", "hosts", "log_of", "probes", "run_tool", "running", "wait_until"]

NODES_MAX = 9
# Nodes of a local cluster have 127.x.y.11 to .109, HAProxy .10: both can run on one network.
HOST_FIRST = 201
UP_WITHIN_S = 90.0
CONNECT_WITHIN_S = 1.0
POLL_S = 0.1


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
            "not all ports answer",
            lambda: children.check(names),
        )
        yield children
    finally:
        children.stop_all()


def log_of(node: Node, folder: Path) -> Path:
    return folder / "logs" / f"{node.name}.log"


def wait_until(
    condition: Callable[[], bool], what: str, check: Callable[[], object] = lambda: None
) -> None:
    """Wait for a condition. Raises BenchError with `what` after a timeout, or any error of `check`."""
    until_s = time.monotonic() + UP_WITHIN_S
    while not condition():
        check()
        if time.monotonic() > until_s:
            raise BenchError(f"not up within {UP_WITHIN_S:.0f} s: {what}")
        time.sleep(POLL_S)


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
