"""A whole local cluster: it comes up, breaks as told, and leaves nothing behind."""

from __future__ import annotations

from ops.local import process
from ops.local.cluster import LocalCluster


def test_every_broker_calls_itself_as_the_list_does(cluster: LocalCluster) -> None:
    for name in cluster.names:
        with cluster.management(name) as management:
            overview = management.get("/api/overview").raise_for_status().json()
        assert overview["cluster_name"] == cluster.node(name).broker
    assert cluster.consumer_list().names == {cluster.node(name).broker for name in cluster.names}


def test_a_killed_broker_is_gone_and_comes_back(cluster: LocalCluster) -> None:
    cluster.kill("mb2")
    assert cluster.process_of("mb2") is None
    assert process.marked(f"{cluster.dir}#mb2#") == []
    cluster.start("mb2")
    assert cluster.process_of("mb2") is not None
