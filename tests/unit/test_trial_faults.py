import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from messagebus.admin import BrokerList
from messagebus.core.membership import Judgement, ListKeeper
from ops.local.cluster import LocalCluster
from tests.support.trials.outer_faults import OUTER_FAULTS, lying, set_clock
from tests.support.trials.strange_faults import STRANGE_FAULTS

YEAR_S = 365 * 86_400


@pytest.mark.parametrize("name", sorted(OUTER_FAULTS | STRANGE_FAULTS))
def test_a_fault_says_what_it_does_before_it_does_anything(name: str, tmp_path: Path) -> None:
    fault = (OUTER_FAULTS | STRANGE_FAULTS)[name](LocalCluster(tmp_path), "mb2")
    assert str(fault) == f"{name} mb2"
    assert fault.cuts in ("", "cut")
    assert fault.lasts_s <= 5


def test_a_clock_is_off_as_long_as_its_file_says_so(tmp_path: Path) -> None:
    set_clock(tmp_path, -10 * YEAR_S)
    told = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import os, sys, time; print(time.time()); os.remove(sys.argv[1]); print(time.time_ns())",
            str(tmp_path / "off_s"),
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert time.time() - float(told[0]) > 9 * YEAR_S
    assert abs(time.time() - float(told[1]) / 1e9) < YEAR_S


def test_a_forged_list_is_one_that_a_client_with_a_cluster_and_hosts_refuses() -> None:
    keeper = ListKeeper(cluster="c", hosts_allowed=("127.*",))
    with lying("127.0.0.1", 0, "127.0.0.1:5672", "c") as (port, asked):
        url = f"http://127.0.0.1:{port}/consumer-list"
        for _ in range(4):
            forged = BrokerList.parse(httpx.get(url, trust_env=False).text)
            judged, why = keeper.judge(
                generation=forged.generation,
                cluster=forged.cluster,
                hosts=[each.broker.host for each in forged.listed],
                now_ms=0,
            )
            assert judged is Judgement.REFUSED, why
    assert asked == ["/consumer-list"] * 4
