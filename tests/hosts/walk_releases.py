"""The way from RabbitMQ 3.10 to 4.0 on hosts of Debian 12, over SSH and under load.

It takes many minutes and fetches Debian 13's packages of RabbitMQ (60 MB), so no run of the suite has it:

    sudo .venv/bin/python -m pytest tests/hosts/walk_releases.py
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.hosts.lab import Host
from tests.hosts.test_provision import BOTH, BY_SUDO, DEADLINE_S, SUDOERS, Cluster, cluster
from tests.support.eventually import eventually
from tests.support.playbooks import AuditedLoad

__all__ = ["cluster"]

pytestmark = pytest.mark.timeout(3_600)

FETCH_WITHIN_S = 300.0
# With no package taken for installed, apt fetches all that RabbitMQ depends on. The others are packages of
# Debian 12 that do not work with its C library.
FETCH = """
cd "$1"
mkdir -p lists/partial packages/partial
echo "deb http://deb.debian.org/debian trixie main" > source.list
: > status
apt() {
    apt-get -qq -y -o Dir::Etc::SourceList="$PWD/source.list" -o Dir::Etc::SourceParts=/dev/null \\
        -o Dir::State::Lists="$PWD/lists" -o Dir::State::status="$PWD/status" -o Dir::Cache::pkgcache= \\
        -o Dir::Cache::srcpkgcache= -o Dir::Cache::archives="$PWD/packages" -o APT::Sandbox::User=root \\
        -o APT::Install-Recommends=false "$@"
}
apt update
apt --download-only install rabbitmq-server base-files libc-bin openssh-server systemd
cd packages
rm -rf lock partial
for file in *.deb; do
    dpkg-deb -f "$file"
    echo "Filename: ./$file"
    echo "Size: $(stat -c %s "$file")"
    echo "SHA256: $(sha256sum "$file" | cut -d ' ' -f 1)"
    echo
done > Packages
"""
SOURCE = "deb [trusted=yes] file:/srv/trixie ./"
# Packages start nothing on these hosts. On others openssh-server restarts sshd, which with files of another
# version resets every new connection.
RESTART = 'DPkg::Post-Invoke { "kill -HUP $(cat /run/sshd.pid)"; };'
VERSION = "dpkg-query -W -f '${Version}' rabbitmq-server"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Debian 13's packages of RabbitMQ and of all that it depends on."""
    folder = tmp_path_factory.mktemp("trixie")
    argv = ["sh", "-euc", FETCH, "fetch", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=FETCH_WITHIN_S)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "packages"


def offer(host: Host, packages: Path) -> None:
    """Add Debian 13 to a host's package sources."""
    host.run("mkdir /srv/trixie")
    packing = ["tar", "-C", str(packages), "-cf", "-", "."]
    unpacking = [*host.lab.ssh, host.name, "tar -C /srv/trixie -xf -"]
    with subprocess.Popen(packing, stdout=subprocess.PIPE) as packed:
        subprocess.run(unpacking, stdin=packed.stdout, check=True, timeout=FETCH_WITHIN_S)
    host.run(f"echo '{RESTART}' > /etc/apt/apt.conf.d/restart")
    host.run(f"echo '{SOURCE}' > /etc/apt/sources.list.d/trixie.list; apt-get -qq update")


def test_a_bus_of_3_10_goes_to_4_0_broker_by_broker_and_nothing_is_lost_or_doubled(
    cluster: Cluster, packages: Path
) -> None:
    """A broker of 4.0 is added beside the one of 3.10, and that one is upgraded."""
    old, new = (cluster.lab[name] for name in BOTH.values())
    load = AuditedLoad(cluster.bus("app"), "walked")
    before = old.run(VERSION)
    assert before.startswith("3.10.")

    def serves(host: Host) -> None:
        address = f"{host.address}:5672"
        count = load.confirmed_by(address)
        eventually(
            lambda: load.confirmed_by(address) > count, within_s=DEADLINE_S, what=f"from {address}"
        )

    with load.running(publishers=1, consumers=1):
        serves(old)
        new.run("useradd -m -p '*' op; cp -r /root/.ssh /home/op/; chown -R op /home/op/.ssh")
        new.run(f"echo 'op ALL=(ALL) NOPASSWD: ALL' > {SUDOERS}")
        offer(new, packages)
        cluster.of(BOTH, mbB=BY_SUDO)
        cluster.well("provision", "mbB", "--yes")
        wanted = new.run(VERSION)
        assert wanted.startswith("4.0.")
        cluster.well("add", "mb2", "--yes")
        serves(new)

        refused = cluster.ops("upgrade", "mb1", "--to", wanted, "--yes")
        assert refused.returncode == 1, refused.stderr
        assert old.run(VERSION) == before
        serves(old)  # nothing was drained

        offer(old, packages)
        assert "0 messages are left" in cluster.well("upgrade", "mb1", "--to", wanted, "--yes")
        assert old.run(VERSION) == wanted
        serves(old)
        serves(new)
    assert load.lost == set()
    assert load.doubled == []
    assert f'version = "{wanted}"' in cluster.inventory.read_text()
    assert "erlang-base" in old.run("apt-mark showhold")
