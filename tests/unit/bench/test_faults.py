from pathlib import Path

import pytest

from bench.faults import FAULTS, drained, fault_of
from messagebus import BrokerList
from ops.local.cluster import LocalCluster


def test_draining_is_the_next_generation_of_the_list() -> None:
    listed = BrokerList.parse("# cluster: c\n# generation: 4\na:1\nb:2\n")
    shut = drained(listed, "b:2", draining=True)
    assert shut.render() == "# cluster: c\n# generation: 5\na:1\nb:2 draining\n"
    assert drained(shut, "b:2", draining=False).render() == (
        "# cluster: c\n# generation: 6\na:1\nb:2\n"
    )


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_says_what_it_does_before_it_does_anything(name: str, tmp_path: Path) -> None:
    fault = fault_of(name, LocalCluster(tmp_path), "mb2")
    assert str(fault).startswith(name)
    assert fault.cuts in ("", "kill", "cut")
    assert fault.lasts_s <= 5
