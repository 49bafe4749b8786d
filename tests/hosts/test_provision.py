"""Bare hosts become a running cluster over SSH; a second time nothing changes; playbooks work there."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from messagebus import BusConfig, Consumer, Publisher
from ops.dist import main as make_dist
from tests.hosts.lab import ROOT, SUITE, Host, Lab
from tests.support.eventually import FACTOR, eventually
from tests.support.playbooks import AuditedLoad

# Hosts are made in it, and RabbitMQ is installed.
pytestmark = pytest.mark.timeout(1800)

OPS_WITHIN_S = 900.0
DEADLINE_S = 60.0
USERS = {
    "admin": "",
    "probe": "",
    "mb-agent": "agent",
    "pub": "publisher",
    "con": "consumer",
    "app": "application",
}
AMQP, LIST, HTTP = 5670, 8080, 8088
BOTH = {"mb1": "mbA", "mb2": "mbB"}
# In the inventory, in place of a host's name for SSH.
BY_SUDO = '"op@mbB"\nsudo = "yes"'
SUDOERS = "/etc/sudoers.d/op"

TOP = """\
cluster = "lab"
list_file = "lists/lab.txt"
token_file = "token"
admin_user = "admin"
admin_password_file = "admin"
supervisor = "systemd"

[balancer]
host = "mbA"
amqp = "{balancer}:5670"
list = "{balancer}:8080"{http}
stats = "{balancer}:8404"
config = "/etc/haproxy/haproxy.cfg"
socket = "/var/lib/haproxy/admin.sock"
state_file = "/var/lib/haproxy/server-state"
master_pid_file = "/run/haproxy.pid"
probe_user = "probe"
probe_password_file = "probe"

[provision]
disk_free_mb = 20
wal_mb_max = 16
"""
HOST = """
[[hosts]]
name = "{name}"
ssh = "{name}"
"""
BROKER = """
[[brokers]]
name = "{broker}"
host = "{host}"
address = "{ip}:5672"
agent = "{ip}:8081"
check = "{ip}:8082"
management = "{ip}:15672"
node_list_file = "/etc/messagebus/consumer-list.txt"
"""
USER = """
[[users]]
name = "{name}"
role = "{role}"
password_file = "{name}"
"""
GATEWAY = """
[[gateways]]
name = "gw1"
host = "mbB"
user = "app"
tokens_file = "tokens.toml"
address = "{ip}:8090"
admin = "{ip}:8091"
"""
UNIT = "messagebus@gateway"
# The environment of the package is made where it will be, by the machine's own Python.
PACKAGE = """
mount -t tmpfs tmpfs /opt
/usr/bin/python3 -m venv /opt/messagebus
pip="/opt/messagebus/bin/python -m pip install -q --no-cache-dir"
$pip --require-hashes --only-binary :all: -r "$1/requirements.txt"
$pip --no-deps "$1"/*.whl
sh deploy/debian/package.sh /opt/messagebus deploy/debian "$1"
cd "$1"
mv messagebus_*.deb older.deb
dpkg-deb -R older.deb tree
sed -i 's/^Version: .*/Version: 9.9.9/' tree/DEBIAN/control
dpkg-deb -Zgzip -z1 -b tree newer.deb
"""
INDEX = """
cd /srv/packages
{ dpkg-deb -f ours.deb; echo Filename: ./ours.deb; echo Size: $(stat -c %s ours.deb)
  echo SHA256: $(sha256sum ours.deb | cut -d ' ' -f 1); echo; } >> Packages
apt-get -qq update
"""


class Cluster:
    """Inventory of hosts of the lab. Its file is written anew by `of`. has_gateway: on mbB."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.inventory = folder / "inventory.toml"
        self.has_gateway = False
        (folder / "lists").mkdir()
        for name in (*USERS, "token"):
            (folder / name).write_text(secrets.token_hex(16))

    def of(self, brokers: dict[str, str], **ssh: str) -> None:
        """Write the inventory. brokers: name -> its host. ssh: of a host, where it is not its name."""
        hosts = [host.name for host in self.lab.hosts]
        front = self.lab["mbA"].address
        http = f'\nhttp = "{front}:{HTTP}"' if self.has_gateway else ""
        text = TOP.format(balancer=front, http=http)
        text += GATEWAY.format(ip=self.lab["mbB"].address) if self.has_gateway else ""
        for name in hosts:
            lines = HOST.format(name=name)
            text += lines.replace(f'ssh = "{name}"', f"ssh = {ssh[name]}") if name in ssh else lines
        for broker, host in brokers.items():
            text += BROKER.format(broker=broker, host=host, ip=self.lab[host].address)
        for name, role in USERS.items():
            text += USER.format(name=name, role=role) if role else ""
        self.inventory.write_text(text)

    def ops(self, *words: str, kit: str = "ops") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", kit, *words, "--inventory", str(self.inventory)],
            # OpenSSH looks for its settings where the user lives, whatever HOME says.
            env=self.lab.environment
            | {"MESSAGEBUS_SSH_CONFIG": str(self.lab.home / ".ssh" / "config")},
            capture_output=True,
            text=True,
            timeout=OPS_WITHIN_S * FACTOR,
        )

    def well(self, *words: str) -> str:
        done = self.ops(*words)
        assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout + done.stderr

    def bus(self, user: str) -> BusConfig:
        address = self.lab["mbA"].address
        return BusConfig(
            broker=f"{address}:{AMQP}",
            list_urls=(f"http://{address}:{LIST}/consumer-list",),
            user=user,
            password_file=str(self.folder / user),
            dial_timeout_s=5,
        )


@pytest.fixture(scope="module")
def cluster(bare_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A cluster of one broker: a bare host was set up, and the cluster founded."""
    made = Cluster(bare_lab, tmp_path_factory.mktemp("cluster"))
    made.of({"mb1": "mbA"})
    dry = made.well("provision", "mbA", "--dry-run")
    assert "mbA: install chrony, haproxy, rabbitmq-server" in dry
    assert made.lab["mbA"].attempt("dpkg -s rabbitmq-server")[0] != 0
    assert "changes made" in made.well("provision", "mbA", "--yes")
    assert made.well("provision", "mbA", "--yes").strip() == "mbA: nothing to change"
    assert "1 queue of mb1 settled" in made.well("bootstrap", "--yes")
    return made


@pytest.fixture(scope="module")
def both(cluster: Cluster) -> Cluster:
    """The cluster with a second host, set up by a user who is not root, and its broker added."""
    host = cluster.lab["mbB"]
    host.run("useradd -m -p '*' op; cp -r /root/.ssh /home/op/; chown -R op /home/op/.ssh")
    host.run(f"echo 'op ALL=(ALL) NOPASSWD: ALL' > {SUDOERS}")
    cluster.of(BOTH, mbB=BY_SUDO)
    assert "changes made" in cluster.well("provision", "mbB", "--yes")
    assert cluster.well("provision", "mbB", "--yes").strip() == "mbB: nothing to change"
    told = cluster.well("add", "mb2", "--yes")
    assert re.search(r"(\d+) of \1 clients work by generation 2", told)
    return cluster


def test_a_bare_host_becomes_a_running_cluster_and_a_second_run_changes_nothing(
    cluster: Cluster,
) -> None:
    passes_messages(cluster, 50, "first")
    nobody_sees_a_secret(cluster, cluster.lab["mbA"])


def passes_messages(cluster: Cluster, count: int, topic: str) -> set[str]:
    """Pass messages as users who have no more rights than they need. Returns brokers that took some."""
    with Consumer(cluster.bus("con"), topic, subscription="all") as consumer:
        with Publisher(cluster.bus("pub")) as publisher:
            sent = [publisher.send_safe(topic, b"x", timeout_s=DEADLINE_S) for _ in range(count)]
        got: set[str] = set()
        while len(got) < count and (delivery := consumer.receive(timeout_s=DEADLINE_S)):
            got.add(delivery.message_id)
            consumer.ack(delivery)
    assert got == {each.message_id for each in sent}
    return {each.broker for each in sent}


def nobody_sees_a_secret(cluster: Cluster, host: Host) -> None:
    words = "|".join((cluster.folder / name).read_text() for name in (*USERS, "token"))
    assert host.attempt(f"ps axww -o args | grep -E '{words}' | grep -v grep")[1] == ""
    for file in ("password", "token"):
        assert host.run(f"stat -c %a:%G /etc/messagebus/{file}").strip() == "640:messagebus"


def test_a_cluster_that_is_there_is_not_founded_again(cluster: Cluster) -> None:
    again = cluster.ops("bootstrap", "--yes")
    assert again.returncode == 1
    assert "the agent of mb1 answers: this cluster is there already" in again.stderr


def test_what_somebody_changed_by_hand_is_found_and_put_right(cluster: Cluster) -> None:
    host = cluster.lab["mbA"]
    host.run("echo 'x = 1' >> /etc/messagebus/agent.toml; chmod 644 /etc/messagebus/token")
    looked = cluster.ops("check")
    assert looked.returncode == 7
    assert "mbA: wanted: write /etc/messagebus/agent.toml (differs)" in looked.stdout
    assert "mbA: wanted: write /etc/messagebus/token (mode or owner)" in looked.stdout
    assert "restart the agent" in cluster.well("provision", "mbA", "--yes")
    assert "nothing to change" in cluster.well("provision", "mbA", "--yes")


def test_a_second_host_is_set_up_and_its_broker_added_while_everything_runs(both: Cluster) -> None:
    brokers = set[str]()
    for number in range(6):
        brokers |= passes_messages(both, 5, f"second{number % 2}")
    assert brokers == {f"{both.lab[name].address}:5672" for name in ("mbA", "mbB")}
    # Packages start nothing on these hosts, and their time is the machine's, however late they say it.
    differences = both.ops("check").stdout.splitlines()
    told = [each for each in differences if not re.search("chrony does not run|its clock is", each)]
    assert told == []


@pytest.mark.guarantee("restart-upgrade-replace")
def test_an_upgrade_over_ssh_under_load_loses_and_doubles_nothing(both: Cluster) -> None:
    host = both.lab["mbB"]
    born = host.run("stat -c %W /var/lib/rabbitmq/mnesia/mb2@localhost")
    load = AuditedLoad(both.bus("app"), "upgraded")
    with load.running(publishers=1, consumers=1):
        told = both.well("upgrade", "mb2", "--yes")
        eventually(
            lambda: load.confirmed_by(f"{host.address}:5672"), within_s=DEADLINE_S, what="from mb2"
        )
    assert "0 messages are left" in told
    assert load.lost == set()
    assert load.doubled == []
    assert host.run("stat -c %W /var/lib/rabbitmq/mnesia/mb2@localhost") != born


def test_what_stands_in_the_way_is_told_before_anything_changes(both: Cluster) -> None:
    cluster, host = both, both.lab["mbB"]
    before = host.run("sha256sum /etc/messagebus/* /etc/rabbitmq/*; dpkg-query -W | sha256sum")

    host.run(f"mv {SUDOERS} /root/")
    refused = cluster.ops("provision", "mbB", "--yes")
    host.run(f"mv /root/{Path(SUDOERS).name} {SUDOERS}")
    assert refused.returncode == 5
    assert "mbB: sudo refused:" in refused.stderr

    cluster.of(BOTH, mbB='"10.255.255.1:9"')
    away = cluster.ops("provision", "mbB", "--yes")
    assert away.returncode == 6
    assert "mbB: no SSH:" in away.stderr

    cluster.of(BOTH, mbB=BY_SUDO)
    known = cluster.lab.home / ".ssh" / "known_hosts"
    right = known.read_text()
    other = cluster.folder / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    key = other.with_suffix(".pub").read_text().split()[1]
    known.write_text(re.sub(r"AAAA\S+", key, right))
    try:
        strange = cluster.ops("provision", "mbB", "--yes")
    finally:
        known.write_text(right)
    assert strange.returncode == 5
    assert "mbB: its host key is not the known one" in strange.stderr

    host.run("fallocate -l $(df --output=avail -B1 / | tail -1) /filler || true")
    host.run("echo other > /etc/messagebus/password")
    full = cluster.ops("provision", "mbB", "--yes")
    host.run("rm /filler")
    assert full.returncode == 1
    assert "mbB: no room" in full.stderr
    assert "nothing to change" not in cluster.well("provision", "mbB", "--yes")
    after = host.run("sha256sum /etc/messagebus/* /etc/rabbitmq/*; dpkg-query -W | sha256sum")
    assert after == before


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the Debian package, for hosts of this machine's release, and with a newer one."""
    if SUITE != "bookworm":
        pytest.skip(f"the package is made for bookworm, and the hosts are {SUITE}")
    folder = tmp_path_factory.mktemp("package")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dist", str(folder)])
        make_dist()
    argv = ["unshare", "--mount", "sh", "-euc", PACKAGE, "package", str(folder)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=OPS_WITHIN_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def offer(host: Host, package: Path) -> None:
    """Have apt find a package of ours on a host."""
    copying = [*host.lab.ssh, host.name, "cat > /srv/packages/ours.deb"]
    with package.open("rb") as file:
        subprocess.run(copying, stdin=file, check=True, timeout=OPS_WITHIN_S)
    host.run(INDEX, within_s=OPS_WITHIN_S)


def test_systemd_starts_a_provisioned_host_and_a_gateway_from_its_package(
    both: Cluster, packages: Path
) -> None:
    """With the real systemd: power-off, SIGKILL, and a newer package, all by curl alone."""
    cluster, host = both, both.lab["mbB"]
    host.run("apt-get -qq -y install systemd curl", within_s=OPS_WITHIN_S)
    host.power_off()
    host.boot()
    units = "rabbitmq-server messagebus-agent"
    eventually(lambda: is_active(host, units), within_s=OPS_WITHIN_S, what=units)

    offer(host, packages / "older.deb")
    token = secrets.token_hex(16)
    digest = hashlib.sha256(token.encode()).hexdigest()
    (cluster.folder / "tokens.toml").write_text(
        f'[[token]]\nname = "shop"\nsha256 = "{digest}"\npublish = ["paid"]\n'
        'consume = ["paid/mail"]\ndeclare = ["paid/mail"]\n'
    )
    cluster.has_gateway = True
    cluster.of(BOTH, mbB=BY_SUDO)
    told = cluster.well("provision", "mbB", "--yes")
    assert "install messagebus" in told
    assert "start the gateway" in told
    assert cluster.well("provision", "mbB", "--yes").strip() == "mbB: nothing to change"
    applied = cluster.ops("apply", kit="lb")
    assert applied.returncode == 0, applied.stderr

    def ask(method: str, path: str, body: str = "") -> Any:
        """Ask through the balancer; None where nobody is ready."""
        url = f"http://{cluster.lab['mbA'].address}:{HTTP}/v1/{path}"
        curl = f"curl -sS -f -X {method} -H 'Authorization: Bearer {token}' -d '{body}' {url}"
        code, said = host.attempt(curl, within_s=OPS_WITHIN_S)
        return json.loads(said) if code == 0 else None

    def passes_on(body: str) -> None:
        def is_confirmed() -> bool:
            end = ask("POST", "topics/paid/messages", body)
            return end is not None and end["outcome"] == "confirmed"

        eventually(is_confirmed, within_s=OPS_WITHIN_S, what=f"{body} is confirmed")
        pulled = ask("POST", "subscriptions/paid/mail/pull", '{"max": 10}')["deliveries"]
        assert body in {each["body"] for each in pulled}
        leases = json.dumps({"leases": [each["lease"] for each in pulled]})
        assert ask("POST", "leases/ack?confirmed=true", leases)["done"] == len(pulled)

    declared = "subscriptions/paid/mail"
    eventually(lambda: ask("PUT", declared), within_s=OPS_WITHIN_S, what="declared by curl")
    passes_on("first")
    nobody_sees_a_secret(cluster, host)

    def main_pid() -> str:
        return host.run(f"systemctl show -p MainPID --value {UNIT}").strip()

    before = main_pid()
    host.run(f"kill -9 {before}")
    eventually(lambda: main_pid() not in ("0", before), within_s=DEADLINE_S, what="a new process")
    passes_on("after SIGKILL")

    offer(host, packages / "newer.deb")
    before = main_pid()
    host.run("apt-get -qq -y install messagebus", within_s=OPS_WITHIN_S)
    assert host.run("dpkg-query -W -f '${Version}' messagebus") == "9.9.9"
    passes_on("while the older one runs")
    assert main_pid() == before
    host.run(f"systemctl restart {UNIT}", within_s=OPS_WITHIN_S)
    passes_on("with the newer one")
    host.run(f"systemctl stop {UNIT}", within_s=OPS_WITHIN_S)
    assert "start the gateway" in cluster.well("provision", "mbB", "--yes")
    passes_on("when it was stopped by hand")


def is_active(host: Host, units: str) -> bool:
    return host.attempt(f"systemctl is-active {units}", within_s=OPS_WITHIN_S)[0] == 0
