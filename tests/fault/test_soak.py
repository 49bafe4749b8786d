"""One minute of the soak: every fault of brokers and links once or nearly, an audit at the end."""

from __future__ import annotations

from pathlib import Path

from bench.faults import FAULTS
from bench.trials.soak import TOPIC, Soak, draws
from ops.local.cluster import LocalCluster
from tests.support.faults import forget, restore

SEED = 5
LASTS_S, EVERY_S = 60.0, 6.0


def test_a_minute_of_random_faults_loses_nothing(broken: LocalCluster, tmp_path: Path) -> None:
    said: list[str] = []
    try:
        _, result = Soak(broken, tmp_path / "run", say=said.append).run(
            lasts_s=LASTS_S, every_s=EVERY_S, faults=draws(SEED, broken.names, FAULTS)
        )
    finally:
        restore(broken)
        forget(broken, TOPIC)
    assert result.holds, (result.faults, said)
    assert result.confirmed > 1000
    assert result.total("delivered") == result.total("expected") == 2 * result.confirmed
    assert sum(any(name in line for name in FAULTS) for line in said) >= 3
