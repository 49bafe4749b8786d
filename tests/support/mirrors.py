"""Inventories with a mirrored broker, and hosts that answer from records."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from inventory.errors import CommandFailed
from ops.mirror.view import MirrorView
from ops.run.plan import Plan

OUTPUTS = Path(__file__).resolve().parents[1] / "unit" / "ops" / "mirror" / "drbd_outputs"
MIRROR = "r0"  # its name in the records


def mirrored_inventory(
    hosts: dict[str, tuple[str, str]],
    *,
    address: str,
    disk: str = "/dev/vdb",
    power: str = "",
    service_network: str = "",
) -> str:
    """Return an inventory of one broker, mb1, on the first of two hosts.

    hosts: name to its management and its replication address. address: the broker's.
    service_network: prefix length, where the address goes with the broker.
    """
    first, second = hosts
    lines = [
        'cluster = "test"',
        'list_file = "lists/test.txt"',
        'token_file = "token"',
        'admin_user = "admin"',
        'admin_password_file = "admin.password"',
        'supervisor = "systemd"',
        "",
        "[balancer]",
        'amqp = "127.0.0.1:5672"',
        'list = "127.0.0.1:8081"',
        'stats = "127.0.0.1:8404"',
        'config = "haproxy.cfg"',
        'socket = "haproxy.sock"',
        'state_file = "haproxy.state"',
        'master_pid_file = "haproxy.pid"',
        'probe_user = "probe"',
        'probe_password_file = "probe.password"',
        "",
        "[[brokers]]",
        'name = "mb1"',
        f'host = "{first}"',
        f'address = "{address}:5672"',
        f'agent = "{address}:8081"',
        f'check = "{address}:8082"',
        f'management = "{address}:15672"',
        'node_list_file = "nodes/mb1/list.txt"',
    ]
    for name, (management, replication) in hosts.items():
        lines += [
            "",
            "[[hosts]]",
            f'name = "{name}"',
            f'ssh = "{name}"',
            f'management = "{management}"',
            f'replication = "{replication}"',
        ]
        if power:
            lines.append(f'power = "{power}"')
    lines += [
        "",
        "[[mirrors]]",
        'name = "mb1"',
        f'hosts = ["{first}", "{second}"]',
        'device = "/dev/drbd0"',
        f'disk = "{disk}"',
        'mount = "/var/lib/rabbitmq"',
        "port = 7789",
    ]
    if service_network:
        lines.append(f'address = "{address}/{service_network}"')
    return "\n".join(lines) + "\n"


def recorded_outputs(file: Path) -> dict[str, tuple[int, str]]:
    """Return command -> exit code and standard output, of one recorded state."""
    blocks = re.split(r"^\$ ", file.read_text(), flags=re.MULTILINE)[1:]
    found = {}
    for block in blocks:
        command, _, rest = block.partition("\n")
        lines = rest.splitlines(keepends=True)
        written = [line for line in lines if line.strip() and not line.startswith(("! ", "= "))]
        code = next((int(line[2:]) for line in lines if line.startswith("= ")), 0)
        found[command] = (code, "".join(written))
    return found


def _complaints(file: Path, command: str) -> str:
    """Return the standard error of a command."""
    (block,) = (
        rest
        for block in re.split(r"^\$ ", file.read_text(), flags=re.MULTILINE)
        for first, _, rest in [block.partition("\n")]
        if first == command
    )
    return "".join(f"{line[2:]}\n" for line in block.splitlines() if line.startswith("! "))


class FakeHosts:
    """Hosts that answer as two hosts did in a recorded state; they take any order, and remember it.

    states: host -> ``07 A``: the number of a state, and where it was recorded; "" is silent, "sudo" refuses.
    answers: other output of a host, by the whole command; None fails with exit code 1. An answer that begins
        with "! " is a complaint, and fails with it and that code.
    """

    def __init__(
        self, states: dict[str, str], answers: dict[str, str | None] | None = None
    ) -> None:
        self.states = states
        self.answers = answers or {}
        self.ran: list[tuple[str, str]] = []

    @contextmanager
    def connect(self, host: str) -> Iterator[FakeHost]:
        """Connect as `inventory.shell.remote` does."""
        yield FakeHost(self, host)

    def run(self, host: str, argv: Sequence[str]) -> str:
        typed = " ".join(argv)
        self.ran.append((host, typed))
        if not self.states[host]:
            raise CommandFailed(argv, 127, "SSH: timed out", host)
        if self.states[host] == "sudo":
            raise CommandFailed(argv, 1, "sudo: a password is required\n", host)
        if typed in self.answers:
            answer = self.answers[typed]
            if answer is None:
                raise CommandFailed(argv, 1, "no", host)
            if answer.startswith("! "):
                raise CommandFailed(argv, 1, answer.removeprefix("! "), host)
            return answer
        return self._recorded(host, argv)

    def _recorded(self, host: str, argv: Sequence[str]) -> str:
        number, at = self.states[host].split()
        (file,) = OUTPUTS.glob(f"{number}_*.{at}.txt")
        command = " ".join((*argv[:-1], MIRROR)).replace(" --statistics", "")
        code, written = recorded_outputs(file).get(command, (0, ""))
        if code:
            raise CommandFailed(argv, code, written + _complaints(file, command), host)
        return written


@dataclass
class FakeHost:
    """Connection to one of them."""

    hosts: FakeHosts
    name: str

    def run(self, argv: Sequence[str], *, timeout_s: float) -> str:
        assert timeout_s > 0
        return self.hosts.run(self.name, argv)


def mirror_view(file: Path, one: str = "06 A", two: str = "06 B") -> MirrorView:
    """Return the view of mb1 on db1 and db2, which answer from the records of these states."""
    return MirrorView(file, "mb1", FakeHosts({"db1": one, "db2": two}).connect)


def ran(plan: Plan) -> list[str]:
    """Return every command of a plan, and its host."""
    return [
        f"{command.host or 'here'}: {' '.join(command.argv)}"
        for step in plan.steps
        for command in step.commands
    ]
