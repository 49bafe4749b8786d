"""Promise: sites that forward to each other have every message, whatever is cut or killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clients.conform.proxies import Proxy
from messagebus import BusConfig, Publisher, declare
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.load import drain

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"a": "mb1", "b": "mb2", "c": "mb3"}
WITHIN_S = 120.0
SOME, MANY = 200, 1_000


class Sites:
    """Brokers of the cluster, each a site by itself, with a line to it that can be cut."""

    def __init__(self, cluster: LocalCluster, topic: str, folder: Path) -> None:
        self.cluster, self.topic, self.folder = cluster, f"site-{topic}", folder
        self.lines: dict[str, Proxy] = {}
        self.sent = Counter[str]()
        self.forwarders: dict[str, subprocess.Popen[str]] = {}

    def bus(self, site: str, *, broker: str = "") -> BusConfig:
        return BusConfig(
            broker=broker or self.cluster.node(NAMES[site]).broker,
            user="admin",
            password=self.cluster.admin_password,
            cluster=site,
        )

    def open(self, *lines: str) -> None:
        """Declare what there is to read and to forward, and a line for each forwarder."""
        for site in {site for line in lines for site in line}:
            forwarded = [f"{self.topic}/forward-{line[1]}" for line in lines if line[0] == site]
            declare(self.bus(site), [f"{self.topic}/all", *forwarded])
        for line in lines:
            self.lines[line] = Proxy(self.cluster.node(NAMES[line[1]]).broker)

    def start(self, line: str) -> None:
        here, there = line[0], line[1]
        target = self.folder / f"{line}.toml"
        target.write_text(
            f'broker = "{self.lines[line].address}"\nuser = "admin"\ncluster = "{there}"\n'
            f'password = "{self.cluster.admin_password.reveal()}"\n'
        )
        target.chmod(0o600)
        bus = self.bus(here)
        settings = {
            "MESSAGEBUS_BROKER": bus.broker,
            "MESSAGEBUS_USER": bus.user,
            "MESSAGEBUS_PASSWORD": bus.password.reveal(),
            "MESSAGEBUS_CLUSTER": here,
        }
        self.forwarders[line] = subprocess.Popen(
            [sys.executable, "-m", "messagebus", "forward", self.topic, "--to-bus", str(target)],
            cwd=ROOT,
            env={**os.environ, **settings},
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(self, line: str) -> None:
        process = self.forwarders.pop(line)
        process.kill()
        process.communicate()

    def stop(self, line: str) -> str:
        """Stop it, and return what it says at its end."""
        process = self.forwarders.pop(line)
        eventually(lambda: catches(process.pid, signal.SIGTERM), within_s=WITHIN_S)
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate()
        assert process.returncode == 0, told
        return told

    def send(self, site: str, count: int) -> None:
        with Publisher(self.bus(site)) as publisher:
            ends = publisher.send_many(self.topic, [b"x" * 1_000] * count)
        self.sent.update(each.message_id for each in ends)

    def ready(self, site: str, subscription: str) -> int:
        """Return how many messages wait there, as the page shows them."""
        with self.cluster.management(NAMES[site]) as management:
            path = f"/api/queues/%2F/mb.sub%2F{self.topic}%2F{subscription}"
            return int(management.get(path).raise_for_status().json().get("messages", -1))

    def forwarded(self) -> None:
        """Wait until nothing is left to forward."""
        for line in self.lines:
            place = line[0], f"forward-{line[1]}"
            eventually(lambda: self.ready(*place) == 0, within_s=WITHIN_S)  # noqa: B023

    def received(self, site: str) -> Counter[str]:
        return drain(self.bus(site), self.topic, "all", expected=set(self.sent))

    def close(self) -> None:
        for line in list(self.forwarders):
            self.kill(line)
        for proxy in self.lines.values():
            proxy.close()
        for name in NAMES.values():
            with self.cluster.management(name) as management:
                for kind in ("queues", "exchanges"):
                    for each in management.get(f"/api/{kind}/%2F").raise_for_status().json():
                        if self.topic in each["name"]:
                            place = each["name"].replace("/", "%2F")
                            management.delete(f"/api/{kind}/%2F/{place}")


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has begun so far that this signal does not just end it."""
    (caught,) = re.findall(
        r"^SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE
    )
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.fixture
def sites(broken: LocalCluster, topic: str, tmp_path: Path) -> Iterator[Sites]:
    made = Sites(broken, topic, tmp_path)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def cut(line: Proxy) -> Iterator[None]:
    line.refusing = True
    line.cut()
    try:
        yield
    finally:
        line.heal()


@pytest.mark.guarantee("forwarded-at-least-once")
def test_both_sites_have_every_message_though_both_lines_are_cut_in_turn_and_forwarders_killed(
    sites: Sites,
) -> None:
    """In the turns a forwarder is killed with its line whole, with its line cut, and while it drains."""
    sites.open("ab", "ba")
    for line in sites.lines:
        sites.start(line)
    for turn in range(4):
        line = ("ab", "ba")[turn % 2]
        here, there = line[0], line[1]
        for site in "ab":
            sites.send(site, SOME)
        with cut(sites.lines[line]):
            sites.send(here, MANY)
            sites.send(there, SOME)
            eventually(
                lambda: sites.ready(here, f"forward-{there}") >= MANY,  # noqa: B023
                within_s=WITHIN_S,
                what="messages wait where the page shows them",
            )
            if turn < 2:
                sites.kill(line)
                sites.start(line)
        if turn >= 2:
            eventually(
                lambda: sites.ready(here, f"forward-{there}") < MANY,  # noqa: B023
                within_s=WITHIN_S,
            )
            sites.kill(line)
            sites.start(line)
    sites.forwarded()
    for line in ("ab", "ba"):
        sites.stop(line)
    for site in "ab":
        got = sites.received(site)
        assert got.keys() == sites.sent.keys(), "0 lost, and nothing else"
        # Deliveries of a killed forwarder whose confirm it had not seen, or whose ack the broker had not.
        doubles = got.total() - len(got)
        print(f"site {site}: {len(got)} messages, 0 lost, {doubles} doubles")
        assert doubles <= 4 * MANY


@pytest.mark.guarantee("forward-loops-end")
def test_in_a_ring_of_three_sites_each_has_each_message_once(sites: Sites) -> None:
    sites.open("ab", "bc", "ca")
    for line in sites.lines:
        sites.start(line)
    for site in "abc":
        sites.send(site, SOME)
    got = {site: sites.received(site) for site in "abc"}
    sites.forwarded()
    assert {site: dict(each) for site, each in got.items()} == dict.fromkeys("abc", sites.sent)
    told = [sites.stop(line) for line in ("ab", "bc", "ca")]
    for each in told:
        assert f"forwarded {2 * SOME} messages, passed over {SOME}" in each
