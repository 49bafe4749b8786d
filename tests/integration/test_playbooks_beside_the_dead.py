"""Every playbook, each while one other broker, one agent and one of two balancers are dead.

The clocks of two agents are a day off, one ahead, one behind.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.trials.outer_faults import OTHER_CLOCK
from messagebus import BusConfig
from ops.local.cluster import LocalCluster
from tests.support.cluster import MakeCluster
from tests.support.eventually import eventually
from tests.support.playbooks import AuditedLoad, lb, ops

# Five playbooks and two boots, which take ten times as long on a machine that is busy with other tests.
pytestmark = pytest.mark.timeout(1800)

RECEIVED_FIRST = 50
DAY_S = 86_400


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> Iterator[LocalCluster]:
    """A cluster of its own: this changes its brokers."""
    made = make_cluster(4, up=False, balancers=2)
    for name, off_s in (("mb2", -DAY_S), ("mb3", DAY_S)):
        folder = made.dir / "nodes" / name / "python"
        folder.mkdir(parents=True)
        (folder / "sitecustomize.py").write_text(OTHER_CLOCK)
        (folder / "off_s").write_text(str(off_s))
    made.up()
    yield made
    made.down()


@pytest.fixture
def load(bus: BusConfig, topic: str) -> AuditedLoad:
    return AuditedLoad(bus, topic)


def carry_out(cluster: LocalCluster, *words: str, broker: str) -> None:
    done = ops(cluster, *words, "--yes")
    assert done.returncode == 0, done.stderr
    told = f"note: dead, and left out: broker {broker}, agent of mb2, balancer haproxy2"
    assert told in done.stderr
    assert f"{broker} was dead meanwhile; when it is back: `python -m consumer_lists push`" in (
        done.stderr
    )
    assert "haproxy2 was dead meanwhile; when it is back: `python -m lb apply`" in done.stderr


@pytest.mark.guarantee("playbooks-beside-the-dead")
def test_every_playbook_goes_on_while_a_broker_an_agent_and_a_balancer_are_dead_and_loses_nothing(
    cluster: LocalCluster, load: AuditedLoad
) -> None:
    # Before anything is published: what lies on its disk is lost when it is replaced.
    cluster.kill("mb1")
    with load.running(publishers=2, consumers=2):
        eventually(lambda: len(load.received) > RECEIVED_FIRST, within_s=60)
        cluster.kill("mb2", agent=True)
        cluster.kill("haproxy2")
        carry_out(cluster, "add", "mb5", broker="mb1")
        carry_out(cluster, "restart", "mb3", broker="mb1")
        carry_out(cluster, "upgrade", "mb4", broker="mb1")
        carry_out(cluster, "remove", "mb5", broker="mb1")
        cluster.kill("mb1", agent=True)
        cluster.kill("mb3")
        carry_out(cluster, "replace", "mb1", "--lose-messages", broker="mb3")
        for part in ("mb3", "mb2-agent", "haproxy2"):
            cluster.start(part)
        assert lb(cluster, "apply").returncode == 0
        cluster.wait_ready()
    assert load.lost == set()
    assert cluster.names == ["mb1", "mb2", "mb3", "mb4"]
