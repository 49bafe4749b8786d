"""Small versions of the figures' programs: a mesh, and a consumer that reports its memory."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bench.environment import CHECKOUT
from bench.figures.client.mesh import mesh_figures, rest_figures
from bench.figures.scene import Scene
from bench.figures.turns import direct_task, fill
from bench.harness.turn import COMMAND
from messagebus import BusConfig, declare
from ops.local.cluster import LocalCluster

WITHIN_S = 120.0


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
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    task = direct_task(Scene(tmp_path, print, started=cluster), topic)
    consuming = replace(task, verb="consume", way="stream", window=500, messages=3000, warm_up=0)
    fill(consuming)
    done = subprocess.run(
        [*COMMAND, consuming.to_json()],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    *samples, turn = map(json.loads, done.stdout.splitlines())
    assert samples[-1]["received"] == 3000
    assert samples[-1]["rss_bytes"] > 10_000_000
    assert turn["messages"] == 3000
