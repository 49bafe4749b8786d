"""The virtual hosts behave as the other tests here assume."""

from __future__ import annotations

import subprocess

import pytest

from inventory import shell
from inventory.errors import CommandFailed
from tests.hosts.lab import DATA_DISK, Lab

# Hosts are made in it, and RabbitMQ is installed.
pytestmark = pytest.mark.timeout(1800)


def test_a_bare_host_installs_packages_without_the_internet(bare_lab: Lab) -> None:
    host = bare_lab["mbA"]
    assert host.attempt("command -v rabbitmq-server haproxy drbdadm")[0] != 0
    host.run("apt-get install -y -q haproxy", within_s=120)
    assert "HAProxy version" in host.run("haproxy -v")


def test_a_unit_of_a_package_is_started_and_stopped_by_systemctl(bare_lab: Lab) -> None:
    host = bare_lab["mbB"]
    host.run(
        "printf '[Service]\\nType=simple\\nUser=nobody\\nEnvironment=SECONDS_=600\\n"
        "ExecStart=/bin/sleep $SECONDS_\\n' > /etc/systemd/system/rest.service"
    )
    assert host.attempt("systemctl is-active rest")[0] == 3
    host.run("systemctl daemon-reload; systemctl enable --now rest")
    assert host.run("systemctl is-active rest; pgrep -u nobody -l").split()[::2] == [
        "active",
        "sleep",
    ]
    host.run("systemctl restart rest; systemctl stop rest")
    assert host.attempt("pgrep -u nobody")[0] == 1
    assert host.run("systemctl is-enabled rest") == "enabled\n"
    assert host.attempt("systemctl start nothing")[0] == 4


def test_hosts_are_reached_by_the_ssh_config_of_their_lab(bare_lab: Lab) -> None:
    config = bare_lab.home / ".ssh" / "config"
    argv = ["ssh", "-F", str(config), "mbB", "uname", "-n"]
    answered = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    assert answered.stdout == "mbB\n"


def test_a_power_off_keeps_what_was_written_out_and_nothing_else(bare_lab: Lab) -> None:
    host = bare_lab["mbA"]
    host.run(f"mkfs.ext4 -q {DATA_DISK} && mount {DATA_DISK} /mnt")
    host.run("echo kept > /mnt/kept && sync -f /mnt && echo lost > /mnt/lost")
    host.power_off()
    assert not host.is_running
    host.boot()
    assert host.run(f"mount {DATA_DISK} /mnt && ls /mnt").split() == ["kept", "lost+found"]


def test_a_connection_of_a_playbook_ends_with_its_host_and_comes_back_with_it(
    bare_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(shell.ENV_SSH_CONFIG, str(bare_lab.home / ".ssh" / "config"))
    host = bare_lab["mbB"]
    with shell.connections_kept():
        assert shell.run_over_ssh("mbB", ["uname", "-n"], timeout_s=60) == "mbB\n"
        host.power_off()
        with pytest.raises(CommandFailed, match="uname on mbB: exit code 127: SSH:"):
            shell.run_over_ssh("mbB", ["uname", "-n"], timeout_s=60)
        host.boot()
        assert shell.run_over_ssh("mbB", ["uname", "-n"], timeout_s=60) == "mbB\n"


def test_a_cable_that_is_cut_is_silence_on_one_network_alone(bare_lab: Lab) -> None:
    one, other = bare_lab.hosts
    # On a busy machine an answer takes seconds; one is enough.
    ping = "ping -q -c 10 -W 10"
    one.run(f"{ping} {other.replication}")
    one.cut()
    assert one.attempt(f"ping -q -c 2 -W 2 {other.replication}")[0] == 1
    one.run(f"{ping} {other.address}")
    one.mend()
    one.run(f"{ping} {other.replication}")
