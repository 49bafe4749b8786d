"""Java programs: fetched once from Maven Central, by Maven itself, into ``.cache``; and nodes of them.

Each is fetched at its first use; ``python -m bench fetch NAME`` does it ahead. Nodes are started together,
each on an address of its own, and ended by their pids.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import click

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.faults import Fault
from bench.harness.sampling import Probe
from bench.load.profile import Profile
from bench.processes import Children, run, wait_until

CACHE = CHECKOUT / ".cache"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
FETCH_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Package:
    """A program with its artifacts, ``group:artifact:version``; their dependencies are fetched too.

    alone: artifacts that are fetched without theirs.
    """

    name: str
    version: str
    artifacts: tuple[str, ...]
    alone: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return CACHE / f"{self.name}-{self.version}"

    @property
    def classpath(self) -> str:
        return f"{self.folder}/*"

    @property
    def is_here(self) -> bool:
        return self.folder.is_dir()

    def missing(self) -> str:
        """Return why it cannot be run here; "" when it can, once it is fetched."""
        if not shutil.which("java"):
            return "java is not installed: apt-get install openjdk-17-jre-headless"
        if not self.is_here and not shutil.which("mvn"):
            return "maven is not installed: apt-get install maven"
        return ""

    def fetch(self) -> Path:
        """Return the folder with its jars, filled on the first call. Raises BenchError."""
        if reason := self.missing():
            raise BenchError(f"{self.name}: {reason}")
        if self.is_here:
            return self.folder
        # Only a complete folder gets the name; two concurrent fetches do not mix.
        fresh = self.folder.with_name(f".{self.folder.name}-{os.getpid()}")
        try:
            fresh.mkdir(parents=True)
            file = fresh / "pom.xml"
            file.write_text(pom(self))
            argv = ["mvn", "-q", "-B", "-f", str(file), PLUGIN, f"-DoutputDirectory={fresh}"]
            run(argv, within_s=FETCH_WITHIN_S, what=f"{self.name}: cannot be fetched")
            if not self.is_here:
                fresh.rename(self.folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return self.folder


PERF_TEST = Package("perf-test", "2.22.1", ("com.rabbitmq:perf-test:2.22.1",))
# slf4j-simple: the one logger that needs no file; it reports problems on stderr.
KAFKA = Package(
    "kafka",
    "4.1.2",
    (
        "org.apache.kafka:kafka_2.13:4.1.2",
        "org.apache.kafka:kafka-tools:4.1.2",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
)
ARTEMIS = Package(
    "artemis",
    "2.40.0",
    (
        "org.apache.activemq:artemis-cli:2.40.0",
        "org.apache.activemq:artemis-stomp-protocol:2.40.0",
        "org.slf4j:slf4j-simple:2.0.17",
    ),
)
# Spark's way to S3, for the Hadoop of PySpark 4.3, with the parts of Amazon's client that it loads: the whole
# client would be 600 MB.
S3A = Package(
    "s3a",
    "3.5.0",
    (
        "software.amazon.awssdk:s3:2.35.4",
        "software.amazon.awssdk:s3-transfer-manager:2.35.4",
        "software.amazon.awssdk:sts:2.35.4",
    ),
    alone=(
        "org.apache.hadoop:hadoop-aws:3.5.0",
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
    ),
)
# A name node and a data node in one JVM, for tests; PySpark brings the clients.
HDFS = Package(
    "hdfs",
    "3.5.0",
    (),
    alone=(
        "org.apache.hadoop:hadoop-client-minicluster:3.5.0",
        "org.mockito:mockito-core:4.11.0",
        "junit:junit:4.13.2",
    ),
)
PACKAGES = {each.name: each for each in (PERF_TEST, KAFKA, ARTEMIS, S3A, HDFS)}


@click.command(
    epilog="Example: python -m bench fetch kafka",
    short_help="Fetch a system written in Java, through Maven.",
)
@click.argument("name", type=click.Choice(sorted(PACKAGES)))
def fetch(name: str) -> None:
    """Fetch a system written in Java, through Maven, into .cache; a run does it by itself at first use."""
    click.echo(PACKAGES[name].fetch())


def pom(package: Package) -> str:
    """Return a Maven project that only has the package's dependencies."""
    nothing = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>".format(
            *map(escape, artifact.split(":")), nothing if artifact in package.alone else ""
        )
        for artifact in (*package.artifacts, *package.alone)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>messagebus</groupId><artifactId>{escape(package.name)}</artifactId>"
        f"<version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


NODES_MAX = 9
# Nodes of a local cluster have 127.x.y.11 to .109, HAProxy .10: both can run on one network.
HOST_FIRST = 201
# Without a word in a node's log; a JVM beside busy processes takes its time.
UP_WITHIN_S = 120.0
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
        raise BenchError(f"{name} of node {number}: systems in Java have no faults here")


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
    env = {key: value for key, value in os.environ.items() if key != "CLASSPATH"}
    try:
        for node in nodes:
            children.start(node.name, ["java", *node.argv], env, folder)
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
