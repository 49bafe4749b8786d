"""Programs that runs measure or need: fetched once into ``.cache``, by Maven or by Go.

Each is fetched at its first use; ``python -m bench fetch NAME`` does it ahead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

import click

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.processes import run

CACHE = CHECKOUT / ".cache"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
FETCH_WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Package:
    """A program in Java with its artifacts, ``group:artifact:version``; their dependencies are fetched too.

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
        return _fetched(self, self._by_maven)

    def _by_maven(self, folder: Path) -> None:
        file = folder / "pom.xml"
        file.write_text(pom(self))
        argv = ["mvn", "-q", "-B", "-f", str(file), PLUGIN, f"-DoutputDirectory={folder}"]
        run(argv, within_s=FETCH_WITHIN_S, what=f"{self.name}: cannot be fetched")


@dataclass(frozen=True, slots=True)
class GoPackage:
    """A program in Go. module: the path of its main package."""

    name: str
    version: str
    module: str

    @property
    def folder(self) -> Path:
        return CACHE / f"{self.name}-{self.version}"

    @property
    def is_here(self) -> bool:
        return self.folder.is_dir()

    def missing(self) -> str:
        """Return why it cannot be run here; "" when it can, once it is fetched."""
        if not self.is_here and not shutil.which("go"):
            return "go is not installed: apt-get install golang-go"
        return ""

    def fetch(self) -> Path:
        """Return the folder with the program, filled on the first call. Raises BenchError."""
        return _fetched(self, self._by_go)

    def _by_go(self, folder: Path) -> None:
        argv = ["go", "install", f"{self.module}@v{self.version}"]
        env = {**os.environ, "GOBIN": str(folder), "GOFLAGS": ""}
        run(argv, within_s=FETCH_WITHIN_S, what=f"{self.name}: cannot be fetched", env=env)


def _fetched(package: Package | GoPackage, fill: Callable[[Path], None]) -> Path:
    if reason := package.missing():
        raise BenchError(f"{package.name}: {reason}")
    if package.is_here:
        return package.folder
    # Only a complete folder gets the name; two concurrent fetches do not mix.
    fresh = package.folder.with_name(f".{package.folder.name}-{os.getpid()}")
    try:
        fresh.mkdir(parents=True)
        fill(fresh)
        if not package.is_here:
            fresh.rename(package.folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return package.folder


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
NATS = GoPackage("nats", "2.15.3", "github.com/nats-io/nats-server/v2")
PACKAGES = {each.name: each for each in (PERF_TEST, KAFKA, ARTEMIS, S3A, HDFS, NATS)}


@click.command(
    epilog="Example: python -m bench fetch kafka",
    short_help="Fetch a program through Maven or Go.",
)
@click.argument("name", type=click.Choice(sorted(PACKAGES)))
def fetch(name: str) -> None:
    """Fetch a program through Maven or Go into .cache, where a run finds or puts it."""
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
