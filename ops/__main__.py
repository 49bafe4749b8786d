"""`python -m ops`: the local cluster and the playbooks."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from inventory import shell
from inventory.inventory import DEFAULT_PATH, ENV_PATH
from messagebus.commands.exits import Program
from messagebus.commands.options import option_anywhere
from ops.errors import CODES

# Command -> where it is, and its line in the help. A playbook runs many, each in a process of its own.
LATER = {
    "add": ("ops.playbooks.cli:add", "Add the broker NAME while everything runs."),
    "backup": ("ops.backup.cli:backup", "Back up a cluster, without messages, to ARCHIVE."),
    "bootstrap": ("ops.playbooks.cli:bootstrap", "Start a new cluster for the first time."),
    "check": ("ops.cluster.checkup:check", "Compare the inventory with the running cluster."),
    "compose": ("ops.provision.compose:compose", "Write a compose file: a bus in containers."),
    "dashboards": ("ops.monitoring.dashboards:command", "Write dashboards for Grafana."),
    "drbd": ("ops.mirror.cli:drbd", "Manage the mirror of a broker's disk."),
    "hangup": ("ops.playbooks.step_commands:hangup", "Close connections of publishers to NAME."),
    "hold": ("ops.playbooks.step_commands:hold", "Keep publishers away from NAME by its agent."),
    "inventory": ("ops.playbooks.step_commands:inventory", "Edit the inventory."),
    "local": ("ops.local.cli:local", "Run a whole cluster on this machine."),
    "move": ("ops.playbooks.step_commands:move", "Move messages of NAME to the other brokers."),
    "provision": ("ops.provision.hosts:provision", "Set up the hosts NAMES, or all."),
    "quota": ("ops.cluster.quota_cli:quota", "Bound the messages of a subscription or queue."),
    "rehome": (
        "ops.playbooks.step_commands:rehome",
        "Move the partitions of NAME to the other brokers.",
    ),
    "remove": (
        "ops.playbooks.cli:remove",
        "Remove the broker NAME: drain it to zero, then stop it.",
    ),
    "replace": ("ops.playbooks.cli:replace", "Replace the dead broker NAME."),
    "restart": (
        "ops.playbooks.cli:restart",
        "Restart brokers one after the other while everything runs.",
    ),
    "restore": ("ops.backup.cli:restore", "Restore the parts of ARCHIVE that are missing now."),
    "storage": ("ops.mirror.storage_cli:storage", "Move a broker with its mirrored disk."),
    "topology": (
        "ops.cluster.topology:topology",
        "Compare the topology of all agents and brokers.",
    ),
    "units": ("ops.provision.units:units", "Show the files that a host needs for systemd."),
    "upgrade": ("ops.playbooks.cli:upgrade", "Reinstall the broker NAME in another version."),
    "users": ("ops.cluster.users:users", "Change passwords of RabbitMQ's users."),
}


@click.group("ops", cls=Program, codes=CODES, later=LATER)
def cli() -> None:
    """Operate a cluster: a local one for tests, and changes to a running one.

    \b
    Example:
      python -m ops local up
      python -m ops add mb4 --yes
    """


# Commands that read the inventory have the option already.
option_anywhere(
    cli,
    click.Option(
        ["--inventory"],
        type=click.Path(path_type=Path, dir_okay=False, resolve_path=True),
        help=f"Inventory of the cluster. [default: ${ENV_PATH}, else {DEFAULT_PATH}]",
    ),
    without={
        "compose": "the files are of a new bus, which has no inventory",
        "dashboards": "they are the same for every cluster",
        "local": "--dir DIR, or $MESSAGEBUS_LOCAL_DIR, selects a local cluster",
    },
)


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code; errors are one line."""
    with shell.connections_kept():
        return cli.run(argv, prog_name="python -m ops")


if __name__ == "__main__":
    sys.exit(main())
