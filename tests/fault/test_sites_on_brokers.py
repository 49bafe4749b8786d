"""Promise: sites of RabbitMQ that forward to each other have every message, whatever is cut or killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.conform.proxies import Proxy
from messagebus import BusConfig, declare
from ops.local.cluster import LocalCluster
from tests.support.load import drain
from tests.support.sites import Sites, assert_none_lost

NAMES = {"a": "mb1", "b": "mb2", "c": "mb3"}
SOME, MANY = 200, 1_000


class RealSites(Sites):
    """Brokers of the cluster, each a site by itself."""

    def __init__(self, cluster: LocalCluster, topic: str, folder: Path) -> None:
        self.cluster, self.topic, self.folder = cluster, f"site-{topic}", folder
        self.sent, self.lines, self.forwarders = Counter(), {}, {}

    def bus(self, site: str) -> BusConfig:
        return BusConfig(
            broker=self.cluster.node(NAMES[site]).broker,
            user="admin",
            password=self.cluster.admin_password,
            cluster=site,
        )

    def open(self, *lines: str) -> None:
        """Declare what there is to read and to forward; start a forwarder with its line for each."""
        for site in {site for line in lines for site in line}:
            forwarded = [f"{self.topic}/forward-{line[1]}" for line in lines if line[0] == site]
            declare(self.bus(site), [f"{self.topic}/all", *forwarded])
        for line in lines:
            self.lines[line] = Proxy(self.cluster.node(NAMES[line[1]]).broker)
            self.start(line)

    def left(self, line: str) -> int:
        """Return what the page shows."""
        with self.cluster.management(NAMES[line[0]]) as management:
            path = f"/api/queues/%2F/mb.sub%2F{self.topic}%2Fforward-{line[1]}"
            return int(management.get(path).raise_for_status().json().get("messages", -1))

    def received(self, site: str) -> Counter[str]:
        return drain(self.bus(site), self.topic, "all", expected=set(self.sent))

    def close(self) -> None:
        self.kill_all()
        for proxy in self.lines.values():
            proxy.close()
        for name in NAMES.values():
            with self.cluster.management(name) as management:
                for kind in ("queues", "exchanges"):
                    for each in management.get(f"/api/{kind}/%2F").raise_for_status().json():
                        if self.topic in each["name"]:
                            place = each["name"].replace("/", "%2F")
                            management.delete(f"/api/{kind}/%2F/{place}")


@pytest.fixture
def sites(broken: LocalCluster, topic: str, tmp_path: Path) -> Iterator[RealSites]:
    made = RealSites(broken, topic, tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.guarantee("forwarded-at-least-once")
def test_both_sites_have_every_message_though_both_lines_are_cut_in_turn_and_forwarders_killed(
    sites: RealSites,
) -> None:
    sites.open("ab", "ba")
    sites.turns(some=SOME, many=MANY)
    sites.forwarded()
    for line in ("ab", "ba"):
        sites.stop(line)
    assert_none_lost(sites, {site: sites.received(site) for site in "ab"}, doubles_max=4 * MANY)


@pytest.mark.guarantee("forward-loops-end")
def test_in_a_ring_of_three_sites_each_has_each_message_once(sites: RealSites) -> None:
    sites.open("ab", "bc", "ca")
    for site in "abc":
        sites.send(site, SOME)
    got = {site: sites.received(site) for site in "abc"}
    sites.forwarded()
    assert {site: dict(each) for site, each in got.items()} == dict.fromkeys("abc", sites.sent)
    told = [sites.stop(line) for line in ("ab", "bc", "ca")]
    for each in told:
        assert f"forwarded {2 * SOME} messages, passed over {SOME}" in each
