"""Two balancers with one address, by VRRP, before real brokers: one dies, one hangs, both have it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from messagebus import BusConfig, Publisher
from ops.local.cluster import LocalCluster
from tests.hosts.conftest import MakeLab
from tests.hosts.lab import Host, Lab
from tests.hosts.test_failover import keep_figures
from tests.support.cluster import MakeCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.playbooks import AuditedLoad

# Hosts are made in it, and HAProxy and keepalived are installed.
pytestmark = pytest.mark.timeout(1800)

OPS_WITHIN_S, MOVED_WITHIN_S, SEND_WITHIN_S = 900.0, 60.0, 60.0
AMQP, LIST = 5672, 8081

TOP = """\
cluster = "lab"
list_file = "{cluster.dir}/consumer_lists/local.txt"
token_file = "{cluster.dir}/secrets/token"
admin_user = "admin"
admin_password_file = "{cluster.dir}/secrets/admin.password"
supervisor = "systemd"

[balancer]
vrrp_address = "{shared}/24"
vrrp_interface = "eth0"
amqp = "0.0.0.0:5672"
list = "0.0.0.0:8081"
stats = "0.0.0.0:8404"
config = "/etc/haproxy/haproxy.cfg"
socket = "/var/lib/haproxy/admin.sock"
state_file = "/var/lib/haproxy/server-state"
master_pid_file = "/run/haproxy.pid"
probe_user = "probe"
probe_password_file = "{cluster.dir}/secrets/probe.password"
"""
BALANCER = """
[[balancers]]
name = "{host.name}"
host = "{host.name}"

[[hosts]]
name = "{host.name}"
ssh = "{host.name}"
"""
BROKER = """
[[brokers]]
name = "{name}"
address = "{ip}:5672"
agent = "{ip}:8081"
check = "{ip}:8082"
management = "{ip}:15672"
node_list_file = "/unused"
"""


class Pair:
    """Two hosts of a lab as balancers of a cluster of this machine."""

    def __init__(self, lab: Lab, cluster: LocalCluster, folder: Path) -> None:
        self.lab, self.cluster, self.folder = lab, cluster, folder
        self.shared = f"{lab.management}.100"
        self.inventory = folder / "inventory.toml"
        text = TOP.format(cluster=cluster, shared=self.shared)
        text += "".join(BALANCER.format(host=host) for host in lab.hosts)
        for number, node in enumerate(cluster.layout.nodes, start=1):
            text += BROKER.format(name=node.name, ip=f"{lab.management}.{10 + number}")
        self.inventory.write_text(text)

    def run(self, kit: str, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", kit, *words, "--inventory", str(self.inventory)],
            env=self.lab.environment
            | {"MESSAGEBUS_SSH_CONFIG": str(self.lab.home / ".ssh" / "config")},
            capture_output=True,
            text=True,
            timeout=OPS_WITHIN_S * FACTOR,
        )
        assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout + done.stderr

    @property
    def bus(self) -> BusConfig:
        own = BusConfig.from_env(self.cluster.client_env())
        url = f"http://{self.shared}:{LIST}/consumer-list"
        return BusConfig(
            broker=f"{self.shared}:{AMQP}",
            list_urls=(url,),
            user=own.user,
            password_file=own.password_file,
        )

    def has_it(self, host: Host) -> bool:
        return host.is_running and f" {self.shared}/" in host.run("ip -4 addr show eth0")

    def holders(self) -> list[Host]:
        return [host for host in self.lab.hosts if self.has_it(host)]

    def only_holder(self) -> Host:
        """Wait until one of both has the address, and return it."""
        eventually(lambda: len(self.holders()) == 1, within_s=MOVED_WITHIN_S, what="one has it")
        (host,) = self.holders()
        return host

    def other(self, host: Host) -> Host:
        (other,) = (each for each in self.lab.hosts if each is not host)
        return other


class Ticks:
    """A publisher that sends one message after the other, and knows its longest wait for a confirm."""

    def __init__(self, bus: BusConfig, topic: str) -> None:
        self._bus, self._topic = bus, topic
        self._stop = threading.Event()
        self.longest_s, self.confirmed = 0.0, list[str]()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._publish, daemon=True)
        thread.start()
        try:
            eventually(
                lambda: len(self.confirmed) > 20, within_s=SEND_WITHIN_S, what="it publishes"
            )
            yield
            self.goes_on()
        finally:
            self._stop.set()
            thread.join(SEND_WITHIN_S * FACTOR)

    def goes_on(self) -> None:
        before = len(self.confirmed)
        eventually(
            lambda: len(self.confirmed) > before + 20, within_s=SEND_WITHIN_S, what="it goes on"
        )

    def _publish(self) -> None:
        with Publisher(self._bus) as publisher:
            while not self._stop.wait(0.005):
                began_s = time.monotonic()
                sent = publisher.send_safe(self._topic, b"x", timeout_s=SEND_WITHIN_S * FACTOR)
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
                self.confirmed.append(sent.message_id)


@pytest.fixture(scope="module")
def pair(
    make_lab: MakeLab, make_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """Two provisioned balancers. What they dial of brokers is passed on to a cluster of this machine."""
    lab, cluster = make_lab("bare"), make_cluster(2)
    for host in lab.hosts:  # keepalived says that it runs to the real systemd alone
        host.run("apt-get -qq -y install systemd", within_s=OPS_WITHIN_S)
        host.power_off()
    lab.boot()
    made = Pair(lab, cluster, tmp_path_factory.mktemp("pair"))
    with passed_on(lab, cluster, made.folder):
        assert "haproxy, keepalived" in made.run("ops", "provision", "--yes")
        again = made.run("ops", "provision", "--yes")
        assert again.count("nothing to change") == len(lab.hosts), again
        made.run("lb", "apply")
        for host in lab.hosts:
            host.run("systemctl start haproxy")
            answers(host)
        yield made


@contextmanager
def passed_on(lab: Lab, cluster: LocalCluster, folder: Path) -> Iterator[None]:
    """Give each broker an address in the hosts' network; connections go on to its own, of loopback."""
    lines = [
        "defaults",
        " mode tcp",
        " timeout connect 5s",
        " timeout client 1h",
        " timeout server 1h",
    ]
    addresses = []
    for number, node in enumerate(cluster.layout.nodes, start=1):
        addresses.append(f"{lab.management}.{10 + number}")
        for to in (node.broker, node.agent, node.check):
            port = to.rpartition(":")[2]
            lines += [
                f"listen {node.name}_{port}",
                f" bind {addresses[-1]}:{port}",
                f" server it {to}",
            ]
    config = folder / "passing.cfg"
    config.write_text("\n".join(lines) + "\n")
    for address in addresses:
        subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", lab.name], check=True)
    with subprocess.Popen(["haproxy", "-db", "-f", str(config)]) as passing:
        try:
            yield
        finally:
            passing.terminate()


@pytest.mark.guarantee("balancer-pair")
def test_a_power_off_of_the_balancer_with_the_address_moves_it_and_loses_nothing(
    pair: Pair,
) -> None:
    first = pair.only_holder()
    with loaded(pair, "power") as ticks:
        first.power_off()
        ticks.goes_on()
        assert pair.holders() == [pair.other(first)]
        ticks.goes_on()
        keep_figures("balancer-pair", {"power_off_longest_wait_s": round(ticks.longest_s, 2)})
        first.boot()
        answers(first)
        # Nobody is cut because the first is back.
        assert pair.only_holder() is pair.other(first)


@pytest.mark.guarantee("balancer-pair")
def test_an_haproxy_that_hangs_gives_the_address_away_and_loses_nothing(pair: Pair) -> None:
    first = pair.only_holder()
    with loaded(pair, "hang") as ticks:
        first.run("pkill -STOP haproxy")
        eventually(
            lambda: pair.holders() == [pair.other(first)], within_s=MOVED_WITHIN_S, what="it moves"
        )
        ticks.goes_on()
        first.run("pkill -CONT haproxy")
        answers(first)
        assert pair.only_holder() is pair.other(first)


@pytest.mark.guarantee("balancer-pair")
def test_two_balancers_that_have_the_address_at_once_lose_nothing(pair: Pair) -> None:
    """One that says nothing of itself, and still has the address, is a split brain."""
    first = pair.only_holder()
    with loaded(pair, "split") as ticks:
        first.run("pkill -STOP keepalived")
        eventually(lambda: len(pair.holders()) == 2, within_s=MOVED_WITHIN_S, what="both have it")
        for _ in range(5):
            ticks.goes_on()
        first.run("pkill -CONT keepalived")
        pair.only_holder()
        ticks.goes_on()


@contextmanager
def loaded(pair: Pair, topic: str) -> Iterator[Ticks]:
    """Run a load through the shared address; at the end all that was confirmed was received."""
    load, ticks = AuditedLoad(pair.bus, topic), Ticks(pair.bus, topic)
    with load.running(publishers=1, consumers=1):
        with ticks.running():
            yield ticks
        eventually(
            lambda: load.received.keys() >= set(ticks.confirmed),
            within_s=SEND_WITHIN_S,
            what="all that was confirmed is received",
        )
    assert load.confirmed
    assert load.lost == set()


def answers(host: Host) -> None:
    """Wait until the host's HAProxy answers with the list, through a broker's agent."""
    argv = ["curl", "-sf", f"http://{host.address}:{LIST}/consumer-list"]
    eventually(
        lambda: subprocess.run(argv, capture_output=True).returncode == 0,
        within_s=MOVED_WITHIN_S,
        what=f"{host.name} answers",
    )
