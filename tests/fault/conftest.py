"""One cluster of three brokers for all fault tests, whole again after each of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from messagebus import BusConfig
from ops.local.cluster import LocalCluster
from tests.support.faults import bus_config, forget, restore

_numbers = itertools.count(1)


@pytest.fixture
def broken(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The shared cluster, to break at will: it is restored afterwards."""
    cluster.wait_ready()
    yield cluster
    restore(cluster)


@pytest.fixture
def bus(broken: LocalCluster) -> BusConfig:
    """Settings of one of its applications."""
    return bus_config(broken)


@pytest.fixture
def topic(broken: LocalCluster) -> Iterator[str]:
    """A name that no other test uses; everything created under it is deleted afterwards."""
    name = f"t{next(_numbers)}"
    yield name
    restore(broken)
    forget(broken, name)
