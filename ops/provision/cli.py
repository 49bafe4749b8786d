"""`python -m ops provision`: hosts as the inventory wants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import click

from inventory.inventory import Inventory, load
from messagebus.errors import ConfigError
from messagebus.secret import Secret
from messagebus.terminal import say
from ops.errors import OpsError
from ops.provision.changes import Change, changes, restart_wanted
from ops.provision.hosts import Root, check_room, look, make
from ops.provision.program import Program, pack
from ops.provision.wanted import secret_files, wanted_host
from ops.run import shell
from ops.run.command import inventory_option, locked

__all__ = ["provision", "read_secrets", "root_of"]


@click.command(short_help="Set up the hosts NAMES, or all.")
@click.argument("names", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Print the changes without making them.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@inventory_option
def provision(names: tuple[str, ...], dry_run: bool, yes: bool, file: Path) -> None:
    """Set up the hosts NAMES, or all: packages, settings, users, policies, the agent, time.

    Correct settings are left alone, so a second run changes nothing. No broker is started or restarted.

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
