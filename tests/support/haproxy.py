"""Real HAProxies with our configuration, in front of steered brokers and agents."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bench.processes import free_port
from inventory.inventory import Inventory, load
from lb import runtime
from lb.apply import prepare_start
from lb.errors import BalancerUnreachable
from lb.runtime import ServerState
from ops.local.roots import chrooted, default_root
from tests.support.eventually import FACTOR, eventually
from tests.support.fake_agent import CLIENT, FakeAgent, FakeBroker, fake_agent, fake_broker
from tests.support.killed import children_of

HOST = "127.0.0.1"


class Rig:
    """Some fake nodes, an inventory of the first `brokers` of them, and HAProxy, once or several times.

    hosts: name of a balancer -> how SSH reaches the host that it is said to be on.
    """

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        nodes: int,
        *,
        fronts: int = 1,
        hosts: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.brokers: list[FakeBroker] = []
        self.agents: list[FakeAgent] = []
        self.hosts = hosts or {}
        self.ports, *self.further = [[free_port() for _ in range(3)] for _ in range(fronts)]
        self.masters: dict[str, subprocess.Popen[bytes]] = {}
        for _ in range(nodes):
            self.brokers.append(stack.enter_context(fake_broker()))
            self.agents.append(stack.enter_context(fake_agent()))
        (folder / "secrets").mkdir()
        (folder / "secrets" / "probe").write_text("pr'o\"be $x")
        (folder / "secrets" / "token").write_text("sesame")

    def inventory(self, brokers: int = 2, *, stats_port: int | None = None) -> Inventory:
        amqp, lists, stats = self.ports
        path = self.folder / "inventory.toml"
        own = OWN.format(amqp=amqp, lists=lists, stats=stats_port or stats, host=HOST, folder=".")
        text = INVENTORY if self.further else INVENTORY + own
        if self.further:
            text += f'[[balancers]]\nname = "lb1"\n{own}'
        for number, ports in enumerate(self.further, start=2):
            text += self._further(f"lb{number}", *ports)
        for number, (broker, agent) in enumerate(zip(self.brokers, self.agents, strict=True), 1):
            if number <= brokers:
                text += BROKER.format(
                    number=number,
                    address=f"{HOST}:{broker.port}",
                    agent=agent.address,
                    check=agent.check_address,
                )
        path.write_text(text)
        return load(path)

    def _further(self, name: str, amqp: int, lists: int, stats: int) -> str:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        own = OWN.format(amqp=amqp, lists=lists, stats=stats, host=HOST, folder=folder)
        if name not in self.hosts:
            return f'[[balancers]]\nname = "{name}"\n{own}'
        host = f'[[hosts]]\nname = "{name}-host"\nssh = "{self.hosts[name]}"\n'
        return f'{host}[[balancers]]\nname = "{name}"\nhost = "{name}-host"\n{own}'

    def start(self, inventory: Inventory) -> None:
        """Start every balancer that does not run, on this machine, whatever host it is said to be on."""
        for balancer in inventory.balancers:
            if balancer.name in self.masters:
                continue
            one = inventory.at(balancer)
            prepare_start(one)
            self.launch(one)

    def launch(self, inventory: Inventory) -> None:
        """Start HAProxy with the files as they are."""
        argv = chrooted(default_root(), self.folder, _start_command(inventory))
        with (self.folder / "haproxy.log").open("ab") as log:
            self.masters[inventory.balancer.name] = subprocess.Popen(
                argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        eventually(lambda: self.servers(inventory), within_s=60, what="HAProxy answers")

    def kill(self) -> None:
        """Kill HAProxy as a crash would: nothing is saved. A master goes when its worker is killed."""
        for master in self.masters.values():
            for pid in children_of(master.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                master.wait(timeout=5 * FACTOR)
            except subprocess.TimeoutExpired:
                master.kill()
                master.wait()
        self.masters.clear()

    def servers(self, inventory: Inventory) -> dict[str, ServerState]:
        with suppress(BalancerUnreachable):
            return runtime.servers(inventory.balancer.socket)
        return {}

    def verdicts(self, inventory: Inventory) -> dict[str, str]:
        return {name: server.verdict for name, server in self.servers(inventory).items()}

    def wait(self, inventory: Inventory, within_s: float = 60, **verdicts: str) -> None:
        def reached() -> bool:
            return verdicts.items() <= self.verdicts(inventory).items()

        eventually(reached, within_s=within_s, what=f"{verdicts}")

    @contextmanager
    def client(self) -> Iterator[socket.socket]:
        """Open a publisher's connection through HAProxy. Raises OSError unless some broker answers."""
        address = (HOST, self.ports[0])
        with socket.create_connection(address, timeout=5 * FACTOR) as connection:
            connection.sendall(CLIENT)
            if connection.recv(len(CLIENT)) != CLIENT:
                raise ConnectionError("no broker")
            yield connection

    def come_and_go(self, times: int) -> None:
        for _ in range(times):
            with self.client():
                pass

    @property
    def list_url(self) -> str:
        return f"http://{HOST}:{self.ports[1]}/consumer-list"


INVENTORY = """
cluster = "rig"
list_file = "list.txt"
token_file = "secrets/token"
admin_user = "admin"
admin_password_file = "secrets/admin"
supervisor = "local"
[balancer]
probe_user = "probe"
probe_password_file = "secrets/probe"
sessions_max = 400
"""
OWN = """
amqp = "{host}:{amqp}"
list = "{host}:{lists}"
stats = "{host}:{stats}"
config = "{folder}/haproxy.cfg"
socket = "{folder}/admin.sock"
state_file = "{folder}/server-state"
master_pid_file = "{folder}/master.pid"
"""
BROKER = """
[[brokers]]
name = "mb{number}"
address = "{address}"
agent = "{agent}"
check = "{check}"
management = "127.0.0.1:{number}"
node_list_file = "nodes/mb{number}.txt"
"""


def _start_command(inventory: Inventory) -> list[str]:
    """Return the command that starts HAProxy in the foreground.

    It starts a master, whose pid file it writes, and a worker.
    """
    balancer = inventory.balancer
    return [
        str(balancer.program),
        "-W",
        "-f",
        str(balancer.config),
        "-p",
        str(balancer.master_pid_file),
    ]
