"""The kit's cases that break nothing and watch no clock, on our own client and on the one in Go."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.conform.cases import CASES
from clients.conform.run import PASSED, bus_of, run_all
from ops.local.cluster import LocalCluster
from tests.support.conform_clients import built
from tests.support.faults import restore

# Times of the kit are those of an idle machine.
PATIENCE = 6.0
# Unroutable, unknown, lists that lie, a broker again, own links, prefetch, batches, copies, names, headers.
SHORT = (2, 3, 4, 7, 9, 10, 11, 12, 13, 19, 20)


@pytest.mark.parametrize("language", ["python", "go"])
def test_a_client_passes_the_cases_that_break_nothing(
    cluster: LocalCluster, tmp_path: Path, language: str
) -> None:
    command = built(language, tmp_path)
    assert not any(CASES[number - 1].alone for number in SHORT)
    try:
        results = run_all(bus_of(cluster, tmp_path, patience=PATIENCE), command, only=SHORT)
    finally:
        restore(cluster)
    assert [str(each) for each in results if each.result != PASSED] == []
    assert [each.number for each in results] == list(SHORT)
