from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from bench.clients import packages
from bench.clients.nodes import NODES_MAX, hosts
from bench.clients.packages import PACKAGES, Package, fetch
from bench.errors import BenchError

TWO = Package("two", "1.0", ("org.one:one:1.0", "org.two:two_2.13:2.0"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(packages, "CACHE", tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    return tmp_path


def maven_says(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Run a shell with a script instead of Maven; its folder is the last argument's."""
    real = subprocess.run

    def run(argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return real(["sh", "-c", script, "sh", argv[-1].partition("=")[2]], **options)

    monkeypatch.setattr("subprocess.run", run)


def test_what_is_whole_is_fetched_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven_says(monkeypatch, 'touch "$1/one.jar"')
    assert (TWO.fetch() / "one.jar").exists()
    assert TWO.classpath == f"{cache}/two-1.0/*"
    maven_says(monkeypatch, "exit 1")
    assert TWO.fetch() == cache / "two-1.0"


def test_what_is_not_whole_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven_says(monkeypatch, 'touch "$1/one.jar"; echo "no route to host"; exit 1')
    with pytest.raises(BenchError, match="two: cannot be fetched: no route to host"):
        TWO.fetch()
    assert list(cache.iterdir()) == []


def test_without_java_or_maven_it_says_what_to_install(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None if name == "mvn" else "/bin/java")
    with pytest.raises(BenchError, match="apt-get install maven"):
        TWO.fetch()
    (cache / "two-1.0").mkdir()
    assert TWO.missing() == ""
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert "java is not installed" in TWO.missing()


def test_the_command_knows_every_package() -> None:
    choice = fetch.params[0].type
    assert isinstance(choice, click.Choice)
    assert (
        list(choice.choices)
        == sorted(PACKAGES)
        == ["artemis", "hdfs", "kafka", "nats", "perf-test", "s3a"]
    )


def test_every_node_has_an_address_of_its_own_that_no_local_cluster_has() -> None:
    assert hosts("127.0.80", 3) == ["127.0.80.201", "127.0.80.202", "127.0.80.203"]
    assert hosts("127.0.80", NODES_MAX)[-1] == "127.0.80.209"
