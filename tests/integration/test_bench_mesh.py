"""Small versions of the figures' programs: a mesh, and a consumer that reports its memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.figures.client import memory
from bench.figures.client.mesh import mesh_figures, rest_figures
from bench.figures.scene import Scene
from messagebus import BusConfig, declare
from ops.local.cluster import LocalCluster


@pytest.mark.parametrize("kind", ["publisher", "consumer"])
def test_a_client_at_rest_tells_what_it_costs(cluster: LocalCluster, topic: str, kind: str) -> None:
    declare(BusConfig.from_env(cluster.client_env()), [f"{topic}/sink"])
    found = {f.id: f.value for f in rest_figures(cluster, kind, topic, "sink", rest_s=0.2)}
    assert found[f"way.rest.{kind}_mb"] > 10
    assert 0 <= found[f"way.rest.{kind}_cpu_percent"] < 100


def test_a_small_mesh_attaches_and_idles(tmp_path: Path) -> None:
    found = {f.id: f for f in mesh_figures(Scene(tmp_path, print, quick=True))}
    assert found["client.mesh.attach_s"].value > 0
    assert found["client.mesh.consumer_mb"].value > 10


def test_a_stream_is_received_whole_and_its_memory_told(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MESSAGES", 6000)
    monkeypatch.setattr(memory, "PORTION", 2000)
    scene = Scene(tmp_path, print, started=cluster)
    found = {f.id: f for f in memory.stream_figures(scene)}
    assert found["client.stream.growth_mb"].what.startswith("6,000 messages")
    assert found["client.stream.memory_mb"].value > 10
    assert found["client.stream.rate"].value > 0
