"""`python -m ops`: the local cluster and the playbooks."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from inventory import shell
from inventory.inventory import DEFAULT_PATH, ENV_PATH
from messagebus.commands.exits import Program
from messagebus.commands.options import option_anywhere
from ops.backup.cli import backup, restore
from ops.cluster.checkup import check
from ops.cluster.topology import topology
from ops.cluster.users import users
from ops.errors import CODES
from ops.local.cli import local
from ops.mirror.cli import drbd
from ops.mirror.storage_cli import storage
from ops.monitoring import dashboards
from ops.playbooks.cli import add, found, remove, replace, restart, upgrade
from ops.playbooks.step_commands import hangup, hold, inventory, move, rehome
from ops.provision.compose import compose
from ops.provision.hosts import provision
from ops.provision.units import units


@click.group("ops", cls=Program, codes=CODES)
def cli() -> None:
    """Operate a cluster: a local one for tests, and changes to a running one.

    \b
    Example:
      python -m ops local up
      python -m ops add mb4 --yes
    """


for command in (
    *(local, add, remove, restart, upgrade, replace),
    *(check, provision, compose, found, topology, users, hangup, hold, move, rehome, inventory),
    *(drbd, storage),
    *(backup, restore, units),
    dashboards.command,
):
    cli.add_command(command)
# Commands that read the inventory have the option already.
option_anywhere(
    cli,
    click.Option(
        ["--inventory"],
        type=click.Path(path_type=Path, dir_okay=False, resolve_path=True),
        help=f"Inventory of the cluster. [default: ${ENV_PATH}, else {DEFAULT_PATH}]",
    ),
)


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code; errors are one line."""
    with shell.connections_kept():
        return cli.run(argv, prog_name="python -m ops")


if __name__ == "__main__":
    sys.exit(main())
