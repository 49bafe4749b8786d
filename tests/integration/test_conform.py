"""The conformance kit: our own client passes it, each case finds its defect, and other languages pass it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clients.conform.cases import CASES
from clients.conform.run import FAILED, PASSED, bus_of, judge, prepare, run_all
from clients.conform.stage import Bus
from ops.local.cluster import LocalCluster
from tests.support.cluster import MakeCluster
from tests.support.conform_clients import LANGUAGES, built
from tests.support.conform_defects import DEFECTS
from tests.support.faults import restore

# Times of the kit are those of an idle machine.
PATIENCE = 4.0
AT_ONCE = 3


@pytest.fixture(scope="module")
def secure(make_cluster: MakeCluster) -> LocalCluster:
    """One broker that speaks TLS."""
    return make_cluster(brokers=1, tls=True)


@pytest.fixture
def conform_bus(
    cluster: LocalCluster, secure: LocalCluster, tmp_path: Path
) -> Iterator[Callable[[], Bus]]:
    """Function that gives the shared cluster to the kit, under new names; restored afterwards."""
    yield lambda: bus_of(cluster, tmp_path, patience=PATIENCE, secure=secure)
    restore(cluster)


def failures(bus: Bus, command: Sequence[str]) -> list[str]:
    results = run_all(bus, command, on_result=lambda each: print(each.row))
    assert len(results) == len(CASES) == 22
    return [
        f"{each.number} {each.name}: {each.detail}" for each in results if each.result != PASSED
    ]


def test_our_own_client_passes_every_case(conform_bus: Callable[[], Bus]) -> None:
    command = [sys.executable, "-m", "clients.conform.python_driver"]
    assert failures(conform_bus(), command) == []


def test_each_case_fails_on_a_client_with_its_defect(conform_bus: Callable[[], Bus]) -> None:
    bus = conform_bus()
    bus.patience = 1.0
    assert sorted(DEFECTS) == [case.number for case in CASES]
    prepare(bus, CASES)

    def passed(number: int) -> str:
        command = [sys.executable, "-m", "tests.support.conform_defects", str(number)]
        result = judge(bus, command, CASES[number - 1])
        return "" if result.result == FAILED and "kit itself" not in result.detail else str(result)

    quiet = [case.number for case in CASES if not case.alone]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        missed = list(pool.map(passed, quiet))
    missed += [passed(case.number) for case in CASES if case.alone]
    assert [each for each in missed if each] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_client_of_another_language_passes_every_case(
    conform_bus: Callable[[], Bus], language: str, tmp_path: Path
) -> None:
    assert failures(conform_bus(), built(language, tmp_path)) == []
