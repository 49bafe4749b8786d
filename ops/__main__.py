"""`python -m ops`: the local cluster and the playbooks."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from consumer_lists.errors import ListsError
from lb.errors import LbError
from lb.inventory import DEFAULT_PATH, ENV_PATH
from messagebus.commands.anywhere import option_anywhere
from messagebus.errors import MessageBusError
from messagebus.terminal import say
from ops import shell
from ops.backup_cli import backup, restore
from ops.checkup_cli import check
from ops.cli import add, found, remove, replace, restart, upgrade
from ops.drbd_cli import drbd
from ops.local.cli import local
from ops.pieces import hangup, hold, inventory, move
from ops.provision.cli import provision
from ops.storage_cli import storage
from ops.topology_cli import topology
from ops.units_cli import units
from ops.users_cli import users

__all__ = ["main"]

EXIT_INTERRUPTED = 130
# What each command does stands in one line, where the terminal has room for it.
HELP_COLUMNS_MAX = 120


@click.group(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": HELP_COLUMNS_MAX,
    }
)
def cli() -> None:
    """Operate a cluster: a local one to try things on, and changes to a running one.

    \b
    Example:
      python -m ops local up
      python -m ops add mb4 --yes
    """


for command in (
    *(local, add, remove, restart, upgrade, replace),
    *(check, provision, found, topology, users, hangup, hold, move, inventory),
    *(drbd, storage),
    *(backup, restore, units),
):
    cli.add_command(command)
# Those that read the inventory have the option already.
option_anywhere(
    cli,
    click.Option(
        ["--inventory"],
        type=click.Path(path_type=Path, dir_okay=False, resolve_path=True),
        help=f"Inventory of the cluster. [default: ${ENV_PATH}, else {DEFAULT_PATH}]",
    ),
)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 done, 1 failed, 2 wrong use, 130 interrupted; errors are one line."""
    try:
        with shell.connections_kept():
            answer = cli.main(args=argv, prog_name="python -m ops", standalone_mode=False)
        return answer if isinstance(answer, int) else 0
    except click.ClickException as fault:
        fault.show()
        return fault.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted", err=True)
        return EXIT_INTERRUPTED
    except (MessageBusError, LbError, ListsError, OSError) as fault:
        for line in f"error: {fault}".splitlines():
            say(line, err=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
