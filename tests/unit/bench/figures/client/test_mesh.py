from __future__ import annotations

import os

import pytest

from bench.figures.client.mesh import MB, figures_of, rss_bytes_of


def test_the_worst_consumer_counts_and_links_on_average() -> None:
    attached = [{"attach_s": 1.0}, {"attach_s": 3.0}]
    idle = [
        {"cpu_percent": 0.5, "rss_bytes": 60e6, "link_bytes": 200e3},
        {"cpu_percent": 1.5, "rss_bytes": 50e6, "link_bytes": 100e3},
    ]
    found = {f.id: f for f in figures_of(attached, idle, 50e3, brokers=64, repeat="again")}
    assert found["client.mesh.attach_s"].value == 3
    assert found["client.mesh.idle_cpu_percent"].met is False
    assert found["client.mesh.consumer_mb"].value == pytest.approx(60)
    assert found["client.mesh.consumer_mb"].met is True
    assert found["client.mesh.link_kb"].value == pytest.approx(150)
    assert found["client.mesh.server_link_kb"].value == pytest.approx(50)


def test_memory_of_a_process_is_read_from_proc() -> None:
    assert rss_bytes_of(os.getpid()) > 5 * MB
