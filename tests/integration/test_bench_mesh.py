"""Small versions of the figures' programs: a mesh, and a consumer that reports its memory."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.environment import CHECKOUT
from bench.figures.client.mesh import mesh_figures
from bench.figures.scene import Case, Scene, direct_task, take_turn
from messagebus import BusConfig, declare
from ops.local.cluster import LocalCluster

WITHIN_S = 120.0


@pytest.mark.parametrize("kind", ["publisher", "consumer"])
def test_a_client_at_rest_tells_what_it_costs(cluster: LocalCluster, topic: str, kind: str) -> None:
    env = {**os.environ, **cluster.client_env()}
    declare(BusConfig.from_env(cluster.client_env()), [f"{topic}/sink"])
    done = subprocess.run(
        [sys.executable, "-m", "bench.figures.rest", kind, topic, "sink", "0.2"],
        cwd=CHECKOUT,
        env=env,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    assert set(json.loads(done.stdout)) == {"cpu_s", "rss_bytes"}


def test_a_small_mesh_attaches_and_idles(tmp_path: Path) -> None:
    found = {f.id: f for f in mesh_figures(Scene(tmp_path, print, quick=True))}
    assert found["client.mesh.attach_s"].value > 0
    assert found["client.mesh.consumer_mb"].value > 10


def test_a_stream_is_received_whole_and_its_memory_told(
    cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    scene = Scene(tmp_path, print, started=cluster)
    task = dataclasses.replace(direct_task(scene, topic), window=500, messages=3000, warm_up=0)
    take_turn(Case("fill", "ours_async", task))
    consuming = dataclasses.replace(task, verb="consume")
    done = subprocess.run(
        [sys.executable, "-m", "bench.figures.client.stream_consumer", consuming.to_json()],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["received"] == 3000
    assert last["rss_bytes"] > 10_000_000
