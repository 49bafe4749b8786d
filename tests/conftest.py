"""Fixtures that every test may use."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from hypothesis import settings

from ops.local.cluster import LocalCluster
from tests.support.cluster import MakeCluster, cluster_factory
from tests.support.examples import examples
from tests.support.fake_amqp import FakeRabbit
from tests.support.leaks import LEAKS
from tests.support.orders import orders_rabbit
from tests.support.starts import note_starts

# A shell that starts the suite in the background has it ignore SIGINT, and so would every process that
# a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# A suite that is told to end (a time limit, CI) stops what it started, as after Ctrl-C.
signal.signal(signal.SIGTERM, signal.default_int_handler)

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
    """A running cluster of three brokers, shared: a test leaves it as it was and uses names of its own."""
    with _clusters(request, tmp_path_factory) as make:
        yield make()


def _clusters(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AbstractContextManager[MakeCluster]:
    """Return a maker of clusters in a new folder, which stays for a look when a test has failed."""
    folder = tmp_path_factory.mktemp("clusters")
    return cluster_factory(folder, keep=lambda: request.session.testsfailed > 0)


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


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run for a password in a log. All clusters have been stopped and searched by now."""
    if LEAKS.told:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LEAKS.told:
        terminalreporter.section("secrets that were shown")
        for line in LEAKS.told:
            terminalreporter.write_line(line)
