"""The kit's cases that break nothing and watch no clock, on our own client and on the one in Go."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from messagebus_conform.cases import CASES
from messagebus_conform.run import PASSED, bus_of, run_all
from ops.local.cluster import LocalCluster
from tests.support.faults import restore

ROOT = Path(__file__).resolve().parents[2]
# Times of the kit are those of an idle machine.
PATIENCE = 6.0
BUILD_WITHIN_S = 300
# Unroutable, unknown, lists that lie, a broker again, own links, prefetch, batches, copies, names, headers.
SHORT = (2, 3, 4, 7, 9, 10, 11, 12, 13, 19, 20)


def python(_folder: Path) -> list[str]:
    return [sys.executable, "-m", "messagebus_conform.python_driver"]


def go(folder: Path) -> list[str]:
    if not shutil.which("go"):
        told = "go is not installed: the client in Go is not tested"
        assert os.environ.get("CI") != "true", told
        pytest.skip(told)
    program = folder / "client"
    subprocess.run(
        ["go", "build", "-o", program, "./conform"],
        cwd=ROOT / "clients" / "go",
        check=True,
        capture_output=True,
        timeout=BUILD_WITHIN_S,
    )
    return [str(program)]


@pytest.mark.parametrize("build", [python, go], ids=["python", "go"])
def test_a_client_passes_the_cases_that_break_nothing(
    cluster: LocalCluster, tmp_path: Path, build: object
) -> None:
    assert callable(build)
    command = build(tmp_path)
    assert not any(CASES[number - 1].alone for number in SHORT)
    try:
        results = run_all(bus_of(cluster, tmp_path, patience=PATIENCE), command, only=SHORT)
    finally:
        restore(cluster)
    assert [str(each) for each in results if each.result != PASSED] == []
    assert [each.number for each in results] == list(SHORT)
