"""A small mesh: all consumers attach to all brokers, and report what they cost."""

from __future__ import annotations

from pathlib import Path

from bench.figures.client.mesh import mesh_figures
from bench.figures.groups import Setup


def test_a_small_mesh_attaches_and_idles(tmp_path: Path) -> None:
    found = {f.id: f for f in mesh_figures(Setup(tmp_path, print, quick=True))}
    assert found["client.mesh.attach_s"].value > 0
    assert found["client.mesh.consumer_mb"].value > 10
