"""Hosts observed and changed over SSH, as the inventory wants them: `python -m ops provision`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import click

from inventory import shell
from inventory.errors import CommandFailed
from inventory.inventory import Inventory, load
from inventory.shell import Remote
from messagebus.errors import ConfigError
from messagebus.secret import Secret
from messagebus.terminal import say
from ops.errors import HostKeyWrong, HostUnreachable, NoRoom, OpsError, SudoRefused
from ops.provision.changes import (
    COOKIE_COPY,
    Change,
    Observed,
    ask_node_name,
    changes,
    observe,
    obstacles,
    of_another,
    restart_wanted,
)
from ops.provision.program import Program, pack, unpack_command
from ops.provision.wanted import WantedFile, WantedHost, secret_files, wanted_host
from ops.run.command import inventory_option, locked, yes_option

ASK_WITHIN_S = 60.0
UNPACK_WITHIN_S = 300.0
# For unpacked packages, files twice while they are replaced, and files that a package's script writes.
FREE_MB_MIN = 100
NEW_SUFFIX = ".messagebus-new"
# Of a host whose name /etc/hosts does not know; it runs the command all the same.
SUDO_WARNS = "sudo: unable to resolve host "


class Root:
    """Commands as root on one host."""

    def __init__(self, remote: Remote, *, host: str, sudo: bool) -> None:
        """sudo: the SSH user is not root, and may become root without a password."""
        self._remote, self._host = remote, host
        self._prefix = ("sudo", "-n", "--") if sudo else ()

    def run(self, argv: Sequence[str], *, within_s: float = ASK_WITHIN_S, stdin: str = "") -> str:
        """Run a command.

        Raises CommandFailed; HostUnreachable and SudoRefused, which are CommandFailed too.
        """
        try:
            return self._remote.run([*self._prefix, *argv], timeout_s=within_s, stdin=stdin)
        except CommandFailed as fault:
            if fault.exit_code == shell.NOT_FOUND and fault.output.startswith("SSH: "):
                raise _no_ssh(self._host, fault.output.removeprefix("SSH: ")) from fault
            said = [each for each in fault.output.split("\n") if not each.startswith(SUDO_WARNS)]
            if self._prefix and "\n".join(said).lstrip().startswith("sudo: "):
                raise SudoRefused(self._host, fault.output.strip()) from fault
            raise

    def ask(self, argv: Sequence[str]) -> str:
        """Return a command's output, whatever its exit code."""
        try:
            return self.run(argv)
        except (HostUnreachable, SudoRefused):
            raise
        except CommandFailed as fault:
            return fault.output

    def write(self, file: WantedFile) -> None:
        """Replace a file. A reader sees the old or the new one; a full disk leaves the old one."""
        user, _, group = file.owner.partition(":")
        new = f"{file.path}{NEW_SUFFIX}"
        self.run(("mkdir", "-p", str(file.path.parent)))
        mode = f"{file.mode:o}"
        self.run(("install", "-m", mode, "-o", user, "-g", group, "/dev/null", new))
        self.run(("dd", "status=none", "conv=fsync,notrunc", f"of={new}"), stdin=file.text)
        self.run(("mv", "-f", "-T", new, str(file.path)))


def _no_ssh(host: str, reason: str) -> HostUnreachable:
    """Make the error for a failed connection.

    reason: in the words of paramiko, which has no error of its own for an unknown host key.
    """
    strange = "Host key for server" in reason or "not found in known_hosts" in reason
    return HostKeyWrong(host, reason) if strange else HostUnreachable(host, reason)


def look(wanted: WantedHost, root: Root) -> Observed:
    """Observe a host. Raises HostUnreachable, SudoRefused."""
    root.run(("true",))
    return observe(wanted, root.ask, cookie_copy=COOKIE_COPY)


def check_node(wanted: WantedHost, root: Root) -> None:
    """Raise OpsError where the host's broker is another one: its SSH address may be that of another host."""
    if another := of_another(wanted, ask_node_name(root.ask)):
        raise OpsError(f"{wanted.name}: {another}")


def check_room(root: Root, *, host: str) -> None:
    """Raise NoRoom where the disk has too little room, before a change stops half-way."""
    output = root.run(("df", "--output=avail", "-B1", "/")).split()
    free_mb = int(output[-1]) // 1_000_000
    if free_mb < FREE_MB_MIN:
        raise NoRoom(host, free_mb, FREE_MB_MIN)


def make(
    changes: Sequence[Change], root: Root, program: Program, *, say: Callable[[str], None]
) -> None:
    """Make the changes in their order. say: called before each.

    Raises CommandFailed; a second run does the rest.
    """
    for change in changes:
        say(change.what)
        if change.file:
            root.write(change.file)
        elif change.program:
            root.run(unpack_command(program), stdin=program.text, within_s=UNPACK_WITHIN_S)
        elif change.argv:
            root.run(change.argv, within_s=change.within_s)


@click.command(short_help="Set up the hosts NAMES, or all.")
@click.argument("names", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Print the changes without making them.")
@yes_option
@inventory_option
def provision(names: tuple[str, ...], dry_run: bool, yes: bool, file: Path) -> None:
    """Set up the hosts NAMES, or all: packages, settings, users, policies, the agent, time.

    Correct settings are left alone, so a second run changes nothing. No broker is started or restarted, and
    RabbitMQ's package is held: `ops upgrade` alone installs another version.

    \b
    Example:
      python -m ops provision mbA --dry-run
      python -m ops provision --yes
    """
    file = file.absolute()
    inventory = load(file)
    hosts = [inventory.host(name) for name in names] or list(inventory.hosts)
    if not hosts:
        raise ConfigError("the inventory has no [[hosts]]")
    secrets, program = read_secrets(inventory), pack()
    called = f"provision {' '.join(host.name for host in hosts)}"
    with nullcontext() if dry_run else locked(file, called):
        looked = [_look(inventory, host.name, secrets, program) for host in hosts]
        for one in looked:
            for what in [change.what for change in one.changes] or ["nothing to change"]:
                say(f"{one.host}: {what}")
        for one in looked:
            if one.changes and not dry_run:
                if not (yes or click.confirm(f"change {one.host}?", err=True)):
                    raise OpsError("not confirmed; --yes does not ask")
                _change(inventory, one, program)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostChanges:
    """The changes of one host before they are made. restart: its broker will have to be restarted."""

    host: str
    changes: list[Change]
    restart: bool


def _look(
    inventory: Inventory, name: str, secrets: Mapping[Path, Secret], program: Program
) -> _HostChanges:
    """Find the changes of a host.

    Raises every obstacle: all hosts are looked at before the first is changed.
    """
    wanted = wanted_host(inventory, name, secrets, program.digest)
    with root_of(inventory, name) as root:
        observed = look(wanted, root)
        if faults := obstacles(wanted, observed):
            raise OpsError(f"{name}: {'; '.join(faults)}")
        wants = changes(wanted, observed)
        if wants:
            check_room(root, host=name)
    return _HostChanges(host=name, changes=wants, restart=restart_wanted(wants, observed))


def _change(inventory: Inventory, one: _HostChanges, program: Program) -> None:
    with root_of(inventory, one.host) as root:
        make(one.changes, root, program, say=lambda what: say(f"  {what}", err=True))
    say(f"{one.host}: {len(one.changes)} changes made")
    if one.restart:
        say(f"{one.host}: its broker reads some of this when it starts: ops restart")


@contextmanager
def root_of(inventory: Inventory, name: str) -> Iterator[Root]:
    """Run commands as root on the host of this name."""
    host = inventory.host(name)
    with shell.remote(host.ssh) as remote:
        yield Root(remote, host=host.name, sudo=host.sudo)


def read_secrets(inventory: Inventory) -> dict[Path, Secret]:
    """Read the secrets. Raises ConfigError naming every file that cannot be read."""
    read, faults = {}, []
    for path in secret_files(inventory, inventory.brokers):
        try:
            read[path] = Secret(path.read_text().strip())
        except (OSError, UnicodeDecodeError) as fault:
            faults.append(f"{path}: {fault}")
    if faults:
        raise ConfigError("; ".join(sorted(set(faults))))
    return read
