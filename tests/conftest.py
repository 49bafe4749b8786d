"""Fixtures that every test may use."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from ops.local.cluster import LocalCluster
from tests.support.cluster import MakeCluster, cluster_factory

# A shell that starts the suite in the background has it ignore SIGINT, and so would every process that
# a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def make_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeCluster]:
    """``make_cluster(brokers=3, up=True)``: a cluster of one's own, to break at will."""
    folder = tmp_path_factory.mktemp("clusters")
    with cluster_factory(folder, keep=lambda: request.session.testsfailed > 0) as make:
        yield make


@pytest.fixture(scope="session")
def cluster(make_cluster: MakeCluster) -> LocalCluster:
    """A running cluster of three brokers, shared: leave it as you found it, use names of your own."""
    return make_cluster()
