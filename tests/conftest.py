"""Fixtures that every test may use."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from messagebus import BusConfig, Stream
from messagebus._io.agents.subscriptions import topology
from messagebus.admin import count_subscriptions, delete_subscriptions
from messagebus.errors import MessageBusError
from ops.local.cluster import LocalCluster
from tests import tiers
from tests.support.cluster import MakeCluster, cluster_factory, end
from tests.support.examples import examples
from tests.support.fake_amqp import FakeRabbit
from tests.support.leaks import LEAKS
from tests.support.orders import orders_rabbit
from tests.support.servers import (
    MakeServer,
    RedisWithReplica,
    SingleServer,
    redis_with_replica,
    server_factory,
)
from tests.support.starts import note_starts

# A shell that starts the suite in the background has it ignore SIGINT, and so would every process that
# a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A suite that is told to end (a time limit, CI) stops what it started, as after Ctrl-C.
signal.signal(signal.SIGTERM, signal.default_int_handler)

# Files that take longer than this begin first, the longest of all before the others, and among them those
# with clusters of their own: the shared one would be idle beside them.
LONG_S = 60
SHARED = pytest.StashKey[LocalCluster]()
ENDED = pytest.StashKey[bool]()
RANK = pytest.StashKey[tuple[int, float, str]]()
LONG_APART, LONG, SHARING, APART = range(4)

# The duration of one example shows how busy the machine is.
settings.register_profile("patient", settings.default, deadline=None, max_examples=examples(100))
settings.load_profile("patient")


@pytest.fixture(scope="module")
def make_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeCluster]:
    """Function that makes a cluster of the module's own, to break at will.

    ``make_cluster(brokers=3, up=True, tls=False)``.
    """
    with _clusters(request, tmp_path_factory) as make:
        yield make


@pytest.fixture(scope="session")
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """A running cluster of three brokers, shared: a test leaves it as it was and uses names of its own.

    It ends after the last test that shares it: unused it takes a tenth of a processor.
    """
    with _clusters(request, tmp_path_factory) as make:
        request.config.stash[SHARED] = shared = make()
        yield shared


def _shares(item: pytest.Item) -> bool:
    """Return whether a test uses the shared cluster: by its fixture, and not by one of its module's own."""
    if not isinstance(item, pytest.Function):
        return False
    params = item.callspec.params if hasattr(item, "callspec") else {}
    is_own = hasattr(item.module, "cluster")
    return ("cluster" in item.fixturenames and not is_own) or params.get("bus_config") == "rabbitmq"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=tiers.TIERS, help="what `make test` runs, or the rest")
    parser.addoption("--part", choices=tuple(tiers.PARTS), help="one part of the suite")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of the tier and the part that were asked for, in the order that takes least.

    The longest files come first, then those that share the cluster.
    """
    kept = _selected(config, items)
    if dropped := [item for item in items if item not in kept]:
        config.hook.pytest_deselected(items=dropped)
    items[:] = kept
    if not config.getoption("--part"):
        return
    sharing = {item.path for item in items if _shares(item)}
    before = tiers.read_durations()["tests"]
    seconds = defaultdict[Path, float](float)
    for item in items:
        seconds[item.path] += before.get(item.nodeid, tiers.UNKNOWN_S)
    for item in items:
        file_s = seconds[item.path]
        long, short = (LONG, SHARING) if item.path in sharing else (LONG_APART, APART)
        group = long if file_s > LONG_S else short
        item.stash[RANK] = (group, -file_s, item.path.as_posix())
    items.sort(key=lambda item: item.stash[RANK])


def _selected(config: pytest.Config, items: list[pytest.Item]) -> dict[pytest.Item, None]:
    """Return the tests that were asked for, in their order."""
    tier, part = config.getoption("--tier"), config.getoption("--part")
    is_in = tiers.is_selected(items, tier) if tier else [True] * len(items)
    return {
        item: None
        for item, is_selected in zip(items, is_in, strict=True)
        if is_selected and part in {None, tiers.part_of(item)}
    }


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the shared cluster again for a file that comes after its end: not every order is ours."""
    stash = item.config.stash
    if SHARED in stash and _shares(item) and item.config.stash.get(ENDED, False):
        stash[SHARED].up()
        stash[ENDED] = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Empty the shared cluster behind a file, and end it behind the last; its fixture clears it away."""
    yield
    stash = item.config.stash
    if SHARED not in stash or nextitem is None or stash.get(ENDED, False):
        return
    if RANK in nextitem.stash and nextitem.stash[RANK][0] == APART:
        end(stash[SHARED])
        stash[ENDED] = True
    elif nextitem.path != item.path and _shares(item):
        _empty(stash[SHARED])


def _empty(cluster: LocalCluster) -> None:
    """Delete what tests have declared: 100 idle subscriptions take a quarter of a processor.

    A stream that is left cannot be moved, as others try.
    """
    bus = BusConfig.from_env(cluster.client_env())
    try:
        names = {each.name for each in count_subscriptions(bus).counts}
        names |= {str(each) for each in asyncio.run(topology(bus)) if isinstance(each, Stream)}
        if names:
            delete_subscriptions(bus, sorted(names), token=cluster.token)
    except MessageBusError as fault:  # what is left costs time only
        print(f"not emptied: {fault}", file=sys.stderr)


def _clusters(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AbstractContextManager[MakeCluster]:
    """Return a maker of clusters in a new folder, which stays for a look when a test has failed."""
    folder = tmp_path_factory.mktemp("clusters")
    return cluster_factory(folder, keep=lambda: request.session.testsfailed > 0)


@pytest.fixture(scope="module")
def make_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MakeServer]:
    """Function that starts a server of the module's own: ``make_server("redis", persistence="always")``."""
    folder = tmp_path_factory.mktemp("servers")
    with server_factory(folder, keep=lambda: request.session.testsfailed > 0) as make:
        yield make


@pytest.fixture(scope="module")
def redis_server(make_server: MakeServer) -> SingleServer:
    """A Redis that syncs its file before it answers."""
    return make_server("redis", persistence="always")


@pytest.fixture(scope="module")
def postgresql_server(make_server: MakeServer) -> SingleServer:
    return make_server("postgresql")


@pytest.fixture(scope="module")
def mariadb_server(make_server: MakeServer) -> SingleServer:
    return make_server("mariadb")


@pytest.fixture
def redis_failover(make_server: MakeServer) -> RedisWithReplica:
    """A Redis, its replica and three sentinels, new for each test: a failover cannot be undone."""
    return redis_with_replica(make_server)


@pytest.fixture
def rabbit() -> Iterator[FakeRabbit]:
    """A fake broker with one topic and one subscription."""
    with orders_rabbit() as rabbit:
        yield rabbit


@pytest.fixture(params=["hot", "plain"])
def hot_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Our own codec or pika's, for all clients that start from now on."""
    monkeypatch.setenv("MESSAGEBUS_HOT_PATH", "0" if request.param == "plain" else "1")
    return str(request.param)


# Secrets.
@pytest.fixture(scope="session", autouse=True)
def _logs_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Look for passwords in clusters that tests made by the command's own means."""
    yield
    for file in tmp_path_factory.getbasetemp().glob("**/secrets/bus.password"):
        LEAKS.look_into(file.parents[1])


def pytest_configure() -> None:
    note_starts()
    logging.getLogger().addHandler(LEAKS)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    LEAKS.heard(f"{report.nodeid}: its output", report.capstdout + report.capstderr)
    LEAKS.heard(f"{report.nodeid}: its failure", report.longreprtext)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of pytest-xdist has found."""
    LEAKS.also(getattr(node, "workeroutput", {}).get("leaks", ()))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run for a password in a log. All clusters have been stopped and searched by now."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["leaks"] = LEAKS.told
    if LEAKS.told:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LEAKS.told:
        terminalreporter.section("secrets that were shown")
        for line in LEAKS.told:
            terminalreporter.write_line(line)
