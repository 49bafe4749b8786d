"""One mirror of a running cluster: the state of its two hosts, asked over SSH. Changes nothing there."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from inventory import shell
from inventory.errors import CommandFailed
from inventory.inventory import Host, Inventory, InventoryFile, Mirror, Node
from ops.commands.hosts import as_root, power
from ops.errors import CannotTell, NoAnswer, OpsError
from ops.mirror import commands as argv
from ops.mirror.state import (
    Alone,
    Status,
    UnexpectedOutput,
    is_split,
    parse_events,
    parse_generations,
)
from ops.run.plan import as_check

ASK_WITHIN_S = 20.0
AMQP_WITHIN_S = 3.0
# A dead host costs a failover seconds each time it is asked.
SILENT_FOR_S = 10.0
AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
# Exit code and complaint of drbdsetup where the kernel does not know the mirror.
_NO_MIRROR = re.compile(r"10 .*No such resource", re.DOTALL)
# The same of drbdadm: no metadata, none that can be read, or no such mirror. All else, such as a refusal
# of sudo, ends with the same codes and says nothing about the mirror.
_NO_GENERATIONS = re.compile(
    r"1 $|\d+ .*(No valid meta data|md_disk_to_cpu failed|No such resource|minor not allocated"
    r"|not defined in your config|no resources defined)",
    re.DOTALL,
)
_END = ["exists", "-"]


class SshConnection(Protocol):
    """A connection to a host."""

    def run(self, argv: Sequence[str], *, timeout_s: float) -> str: ...


Connect = Callable[[str], AbstractContextManager[SshConnection]]


class MirrorView:
    """The hosts of one mirror, by the inventory file as it is at each question.

    connect: opens a connection to a host; `inventory.shell.remote` by default.
    """

    def __init__(self, file: Path, name: str, connect: Connect | None = None) -> None:
        self.name = name
        self.file = file
        self._inventory = InventoryFile(file)
        self._connect = connect or shell.remote
        self._silent: dict[str, tuple[float, NoAnswer]] = {}

    @property
    def inventory(self) -> Inventory:
        return self._inventory.load()

    @property
    def mirror(self) -> Mirror:
        return self.inventory.mirror(self.name)

    @property
    def node(self) -> Node:
        return self.inventory.find(self.name)

    @property
    def alone_file(self) -> Path:
        """The file that records a host that went on alone, beside the journals: a dead host cannot answer."""
        return self.file.parent / "mirrors" / f"{self.name}.alone.json"

    @property
    def alone(self) -> Alone | None:
        """The host that went on alone and was not seen whole since. Raises OpsError."""
        try:
            return Alone(**json.loads(self.alone_file.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError) as fault:
            raise OpsError(
                f"{self.alone_file} cannot be read: see which host of {self.name} wrote last, then delete it"
            ) from fault

    @property
    def hosts(self) -> tuple[Host, Host]:
        """The hosts in the inventory's order: home first."""
        home, standby = self.mirror.hosts
        return self.inventory.host(home), self.inventory.host(standby)

    def status(self, host: Host) -> Status:
        """Return the state of one host.

        Raises NoAnswer where it cannot be reached, CannotTell where it refuses.
        """
        with self._connect(host.ssh) as there:
            events = _output_or_none(there, host, argv.events(self.name), _NO_MIRROR)
            generations = _output_or_none(there, host, argv.generations(self.name), _NO_GENERATIONS)
        if events is not None and events.split()[-2:] != _END:
            raise CannotTell(f"{host.name}: drbdsetup did not end what it says of {self.name}")
        try:
            return parse_events(events or "", parse_generations(generations or ""))
        except UnexpectedOutput as fault:
            raise UnexpectedOutput(f"{host.name}: {fault}") from fault

    def sides(self) -> dict[str, Status | NoAnswer]:
        """Return the state of each host, both asked at the same time; by name, home first.

        A host that was silent less than SILENT_FOR_S ago is not asked again.
        """
        with ThreadPoolExecutor(2) as pool:
            answers = pool.map(self._status_or_fault, self.hosts)
            return dict(zip((host.name for host in self.hosts), answers, strict=True))

    def is_split(self) -> bool:
        """Compare the hosts that answer, in two looks: between two questions they may have connected."""
        return all(
            is_split({n: s for n, s in self.sides().items() if isinstance(s, Status)})
            for _look in range(2)
        )

    def succeeds(self, host: Host, command: tuple[str, ...]) -> bool:
        """Return whether a command that changes nothing ends with 0 there. Raises NoAnswer, CannotTell."""
        try:
            with self._connect(host.ssh) as there:
                there.run(as_root(host, command), timeout_s=ASK_WITHIN_S)
        except CommandFailed as fault:
            if _is_unreached(fault):
                raise NoAnswer(f"{host.name}: {fault}") from fault
            if fault.output.startswith("sudo:"):
                raise CannotTell(f"{host.name}: {fault}") from fault
            return False
        return True

    def output_of(self, host: Host, command: tuple[str, ...]) -> str:
        """Return the output of a command that changes nothing. Raises NoAnswer, also where it fails."""
        try:
            with self._connect(host.ssh) as there:
                return there.run(as_root(host, command), timeout_s=ASK_WITHIN_S)
        except CommandFailed as fault:
            raise NoAnswer(f"{host.name}: {fault}") from fault

    def power_of(self, host: Host) -> str:
        """Return the answer of a host's power controller, asked from here. Raises CommandFailed."""
        return shell.run(power(host.power, "status", host.name), timeout_s=ASK_WITHIN_S).strip()

    def _status_or_fault(self, host: Host) -> Status | NoAnswer:
        at_s, fault = self._silent.get(host.name, (0.0, None))
        if fault and time.monotonic() - at_s < SILENT_FOR_S:
            return fault
        try:
            return self.status(host)
        except NoAnswer as fault:
            self._silent[host.name] = time.monotonic(), fault
            return fault

    # Checks of steps.

    @as_check
    def has_role(self, host: Host, role: str) -> str:
        """Check that the host has this role, primary or secondary, and that its writes are not frozen."""
        status = self.status(host)
        return "" if status.role == role and not status.frozen else str(status)

    @as_check
    def is_whole(self, host: Host) -> str:
        """Check that both copies are good, and that every write reaches both."""
        status = self.status(host)
        return "" if status.is_whole else str(status)


def _output_or_none(
    there: SshConnection, host: Host, command: tuple[str, ...], none: re.Pattern[str]
) -> str | None:
    """Return a command's output; None where its failure matches `none`. Raises NoAnswer, CannotTell."""
    try:
        return there.run(as_root(host, command), timeout_s=ASK_WITHIN_S)
    except CommandFailed as fault:
        if _is_unreached(fault):
            raise NoAnswer(f"{host.name}: {fault}") from fault
        if none.match(f"{fault.exit_code} {fault.output.strip()}"):
            return None
        raise CannotTell(f"{host.name}: {fault}") from fault


def _is_unreached(fault: CommandFailed) -> bool:
    return fault.exit_code == shell.TIMED_OUT or fault.output.startswith("SSH:")


@as_check
def amqp_answers(view: MirrorView) -> str:
    """Check that the broker speaks AMQP at its address, which it does once it has booted.

    With TLS an accepted connection is enough.
    """
    node = view.node
    with socket.create_connection(node.address, timeout=AMQP_WITHIN_S) as connection:
        if view.inventory.tls:
            return ""  # it would want a certificate first, and takes no connection before it has booted
        connection.sendall(AMQP_HEADER)
        return "" if connection.recv(1) == b"\x01" else f"{node.address} does not speak AMQP"
