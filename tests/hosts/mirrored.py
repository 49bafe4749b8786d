"""A broker whose disk is mirrored, on two virtual hosts, operated by `python -m ops` over SSH."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress

from inventory.inventory import load
from messagebus import BusConfig
from tests.hosts.lab import DATA_DISK, ROOT, Host, Lab
from tests.support.eventually import FACTOR, eventually
from tests.support.mirrors import mirrored_inventory

NAME = "mb1"
MOUNT = "/var/lib/rabbitmq"
AMQP_PORT = 5672
CONNECT_WITHIN_S = 10.0
OPS_WITHIN_S = 400.0
STATE_WITHIN_S = 120.0


class Mirrored:
    """The mirror, its operator, and how long the operator's playbooks took, step by step."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.address = f"{lab.management}.100"
        self.inventory = lab.folder / "inventory.toml"
        self.inventory.write_text(
            mirrored_inventory(
                {host.name: (host.address, host.replication) for host in lab.hosts},
                address=self.address,
                disk=DATA_DISK,
                service_network="24",
            )
        )

    @property
    def primary(self) -> Host:
        """The host where the broker runs, by the playbooks' record."""
        return self.lab[load(self.inventory).find(NAME).host]

    @property
    def standby(self) -> Host:
        return next(host for host in self.lab.hosts if host is not self.primary)

    # Operating.
    def ops(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the kit, as an operator does; see `done` and `refused`."""
        return subprocess.run(
            [sys.executable, "-m", "ops", *words, "--inventory", str(self.inventory)],
            env=self.lab.environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=OPS_WITHIN_S * FACTOR,
        )

    def done(self, *words: str) -> str:
        """Run a command that must succeed. Returns its output."""
        ended = self.ops(*words)
        assert ended.returncode == 0, f"ops {' '.join(words)}:\n{ended.stdout}{ended.stderr}"
        return ended.stdout

    def refused(self, *words: str) -> str:
        """Run a command that must fail. Returns the line with the reason."""
        ended = self.ops(*words)
        assert ended.returncode > 0, f"ops {' '.join(words)}:\n{ended.stdout}{ended.stderr}"
        return ended.stderr.strip().splitlines()[-1]

    def failover(self) -> dict[str, float]:
        """Move the broker to the standby while the primary is off. Returns seconds by step."""
        self.done("storage", "failover", NAME, "--dead", self.primary.name, "--yes")
        return self.steps("storage failover")

    def steps(self, plan: str) -> dict[str, float]:
        """Return how long each step of the last finished run of a plan took."""
        name = f"{plan} {NAME}".replace(" ", "+")
        *_, last = sorted((self.lab.folder / "journal").glob(f"{name}.2*"))
        lines = [json.loads(line) for line in last.read_text().splitlines()]
        return {line["step"]: line["took_s"] for line in lines if "step" in line}

    def come_back(self) -> float:
        """Boot the standby and wait until its disk is complete. Returns the seconds of the resync."""
        self.standby.boot()
        began = time.monotonic()
        self.done("drbd", "connect", NAME, "--yes")
        return time.monotonic() - began

    def make_whole(self) -> None:
        """Restore cables, power, connection and broker, after a test that failed half-way.

        AssertionError says what could not be brought back.
        """
        for host in self.lab.hosts:
            for network in ("management", "replication"):
                host.mend(network)
            if not host.is_running:
                host.boot()
        if self.is_whole and self.serves:
            return
        for host in self.lab.hosts:
            host.run("rm -rf /run/messagebus/dead")
        if "ro:Primary" in self.state(self.standby):
            self.standby.attempt(
                f"systemctl stop rabbitmq-server; umount {MOUNT}; drbdadm secondary {NAME}"
            )
        shutil.rmtree(self.lab.folder / "journal", ignore_errors=True)
        if "SPLIT BRAIN" in self.ops("drbd", "status").stdout:
            self.done("drbd", "resolve", NAME, "--victim", self.standby.name, "--yes")
        self.done("drbd", "connect", NAME, "--yes")
        self.done("storage", "start", NAME, "--yes")

    @property
    def is_whole(self) -> bool:
        """True while there are two good copies and writes go to both."""
        state = self.state(self.primary)
        return "cs:Connected ro:Primary/Secondary ds:UpToDate/UpToDate C r-----" in state

    @property
    def serves(self) -> bool:
        """True while something listens at the broker's address."""
        with (
            suppress(OSError),
            socket.create_connection((self.address, AMQP_PORT), timeout=CONNECT_WITHIN_S),
        ):
            return True
        return False

    def settle(self) -> None:
        """Do what a playbook does after topology, users, cookie or a first start."""
        self.primary.run(f"/usr/local/lib/messagebus/settle {MOUNT}")

    # Looking.
    def state(self, host: Host) -> str:
        """Return the kernel's own words, without any code of ours: ``cs:... ro:... ds:...``."""
        lines = host.run("cat /proc/drbd").splitlines()
        return next((line.strip() for line in lines if " cs:" in line), "down")

    def until(self, host: Host, *words: str) -> str:
        """Wait until all words are in the host's state."""

        def seen() -> str:
            state = self.state(host)
            return state if all(word in state for word in words) else ""

        return eventually(seen, within_s=STATE_WITHIN_S, what=f"{host.name}: {words}")

    @property
    def bus(self) -> BusConfig:
        """Settings of the broker alone, wherever it runs; the library declares queues by itself."""
        return BusConfig(broker=f"{self.address}:{AMQP_PORT}")
