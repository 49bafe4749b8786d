"""Clients of the shared cluster, each test with names of its own."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import pytest

from messagebus import BusConfig
from ops.local.cluster import LocalCluster
from tests.support.faults import bus_config, forget, restore

# Pytest runs these when they are named. The first two pass on a machine that does nothing else, and not yet
# beside the whole suite; the last fetches 57 MB for what test_spark_addresses.py shows of another address.
collect_ignore = [
    name
    for name in ("test_clients_together.py", "test_conform.py", "test_spark_hdfs.py")
    if not any(name in each for each in sys.argv)
]

_numbers = itertools.count(1)


@pytest.fixture
def bus(cluster: LocalCluster) -> BusConfig:
    """Settings of an application."""
    return bus_config(cluster)


@pytest.fixture
def topic(cluster: LocalCluster) -> Iterator[str]:
    """A name that no other test uses; everything created under it is deleted afterwards."""
    name = f"i{next(_numbers)}"
    yield name
    forget(cluster, name)


@pytest.fixture
def broken(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, to break; restored afterwards."""
    yield cluster
    restore(cluster)
