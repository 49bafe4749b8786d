"""Two balancers with one address, by VRRP, before real brokers: one dies, one hangs, both have it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.clients.rabbitmq import Standalone
from bench.commands import measured
from bench.load.profile import Profile
from inventory import shell
from messagebus import BusConfig, Publisher
from ops.local.cluster import LocalCluster
from tests.hosts.conftest import MakeLab
from tests.hosts.lab import ROOT, Host, Lab
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
name = "{node.name}"
address = "{node.broker}"
agent = "{node.agent}"
check = "{node.check}"
management = "{node.management}"
node_list_file = "/unused"
"""
# Parts of a lab's management network that this machine has: a local cluster's addresses, with its epmd's.
OURS = ("8/29", "16/29")
CLOCK_OFF_S = 7
LOAD = Profile.from_values(
    {
        "name": "hosts",
        "load": {
            "schedule": {"kind": "constant", "rate_per_s": 200},
            "publishers": 2,
            "consumers": 2,
        },
        "messages": {"places": ["load/all"]},
        "time": {"warm_up_s": 0, "measured_s": 2, "drain_s": 60},
    },
    "test",
)


class Pair:
    """Two hosts of a lab as balancers of a cluster of this machine, which has addresses in their network."""

    def __init__(self, lab: Lab, cluster: LocalCluster, folder: Path) -> None:
        self.lab, self.cluster, self.folder = lab, cluster, folder
        self.shared = f"{lab.management}.100"
        self.inventory = folder / "inventory.toml"
        text = TOP.format(cluster=cluster, shared=self.shared)
        text += "".join(BALANCER.format(host=host) for host in lab.hosts)
        text += "".join(BROKER.format(node=node) for node in cluster.layout.nodes)
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
    """Two provisioned balancers."""
    lab = make_lab("bare")
    for host in lab.hosts:  # keepalived says that it runs to the real systemd alone
        host.run("apt-get -qq -y install systemd", within_s=OPS_WITHIN_S)
        host.power_off()
    lab.boot()
    with addresses_in(lab.management):
        cluster = make_cluster(2, network=lab.management)
        made = Pair(lab, cluster, tmp_path_factory.mktemp("pair"))
        assert "haproxy, keepalived" in made.run("ops", "provision", "--yes")
        again = made.run("ops", "provision", "--yes")
        assert again.count("nothing to change") == len(lab.hosts), again
        made.run("lb", "apply")
        for host in lab.hosts:
            host.run("systemctl start haproxy")
            answers(host)
        yield made


@contextmanager
def addresses_in(network: str) -> Iterator[None]:
    """Give this machine the addresses of a local cluster in a lab's network."""
    routes = [("local", f"{network}.{part}", "dev", "lo") for part in OURS]
    for route in routes:
        subprocess.run(["ip", "route", "replace", *route], check=True)
    try:
        yield
    finally:
        for route in routes:
            subprocess.run(["ip", "route", "del", *route], check=False)


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


class Fronted(Standalone):
    """The brokers of a pair, for clients that dial its shared address."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair.cluster)
        self._bus = pair.bus

    def env(self) -> dict[str, str]:
        (url,) = self._bus.list_urls
        return {**super().env(), "MESSAGEBUS_BROKER": self._bus.broker, "MESSAGEBUS_LIST_URL": url}


def test_load_from_two_hosts_is_accounted_for_and_their_clocks_are_told(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hosts of the balancers have this machine's checkout, and one of them another time."""
    monkeypatch.setenv(shell.ENV_SSH_CONFIG, str(pair.lab.home / ".ssh" / "config"))
    first, other = pair.lab.hosts
    for host in pair.lab.hosts:
        shows_checkout(host)
    other.run(f"date -s '+{CLOCK_OFF_S} seconds'")
    result = measured(LOAD, tmp_path / "run", Fronted(pair), (first.name, other.name))
    other.run(f"date -s '-{CLOCK_OFF_S} seconds'")
    assert result.fates is not None
    assert result.fates.published == result.fates.confirmed == result.fates.delivered == 400
    lines = dict(each.split(": ", 1) for each in result.about["environment"]["load_hosts"])
    assert lines.keys() == {first.name, other.name}
    off_s = {name: clock_off_s(line) for name, line in lines.items()}
    assert off_s[other.name] - off_s[first.name] == pytest.approx(CLOCK_OFF_S, abs=1)


def clock_off_s(line: str) -> float:
    found = re.search(r"its clock (\S+) ms", line)
    assert found, line
    return float(found[1]) / 1e3


def shows_checkout(host: Host) -> None:
    """Show a host the checkout and its Python, at the same paths, until it is off."""
    for folder in {ROOT, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}:
        if folder != Path("/usr"):
            host.run(f"mkdir -p {folder} && mount -t hostfs none {folder} -o ro,{folder}")
