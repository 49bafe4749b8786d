"""The configuration of NATS' nodes, and the consumers of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nats.js.api import AckPolicy

from bench.clients.nats import _consumer, configuration, durability
from bench.load.profile import Profile
from tests.support.results import profile_with

HOSTS = ["127.0.0.201", "127.0.0.202", "127.0.0.203"]


def profile(brokers: int = 1, **load: Any) -> Profile:
    return profile_with({"consumers": 4} | load, system={"name": "nats", "brokers": brokers})


def test_a_node_alone_syncs_before_it_confirms_where_the_profile_says_so() -> None:
    assert configuration(1, HOSTS[:1], Path("/own"), "fsync") == (
        'server_name: node-1\nlisten: "127.0.0.201:4222"\nmax_payload: 16777216\n'
        'jetstream {\n  store_dir: "/own"\n  sync_interval: always\n}\n'
    )
    assert "sync_interval" not in configuration(1, HOSTS[:1], Path("/own"), "page-cache")


def test_nodes_of_a_cluster_know_each_other() -> None:
    told = configuration(2, HOSTS, Path("/own"), "fsync")
    assert 'listen: "127.0.0.202:6222"' in told
    routes = ", ".join(f'"nats://{host}:6222"' for host in HOSTS)
    assert f"routes: [{routes}]" in told


def test_what_a_confirm_means_names_the_copies() -> None:
    assert "fsynced by one broker" in durability(profile())
    assert "fsynced by 2 of 3 copies" in durability(profile(5))


def test_the_consumers_of_a_subscription_share_one_bound() -> None:
    found = _consumer("load0", "sink0", profile(prefetch=100))
    assert (found.max_ack_pending, found.ack_policy) == (400, AckPolicy.EXPLICIT)
    without = _consumer("load0", "sink0", profile(ack="none"))
    assert (without.max_ack_pending, without.ack_policy) == (None, AckPolicy.NONE)
