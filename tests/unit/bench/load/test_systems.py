from __future__ import annotations

import pytest

from bench.faults import FAULTS
from bench.load.systems import ALL_FAULTS, SYSTEMS


@pytest.mark.parametrize("name", SYSTEMS)
def test_what_can_be_done_to_a_system_is_a_fault_that_there_is(name: str) -> None:
    assert set(SYSTEMS[name].faults) <= FAULTS.keys()


def test_everything_can_be_done_to_ours() -> None:
    assert set(ALL_FAULTS) == FAULTS.keys()
    assert SYSTEMS["messagebus"].faults == ALL_FAULTS
