"""`python -m ops users`: passwords of RabbitMQ's users."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import click

from messagebus.errors import ConfigError
from messagebus.secret import Secret
from messagebus.terminal import plural, say
from ops.carrying import confirm, inventory_option, locked
from ops.users import change_password, find_user
from ops.view import View, next_file

__all__ = ["users"]


@click.group()
def users() -> None:
    """Change passwords of RabbitMQ's users.

    \b
    Example:
      python -m ops users password bus
    """


@users.command(short_help="Change the password of the user NAME everywhere.")
@click.argument("name")
@click.option(
    "--from",
    "source",
    type=click.File(),
    help='File with the new password, "-" for standard input; without it one is made.',
)
@click.option(
    "--without", metavar="NODE", multiple=True, help="Its broker is dead; may be said again."
)
@click.option("--dry-run", is_flag=True, help="Print what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@inventory_option
def password(
    name: str,
    source: IO[str] | None,
    without: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    file: Path,
) -> None:
    """Change the password of the user NAME on all brokers, and wherever the kit keeps it.

    It is written into the user's file of the inventory. Connections stay. A change that was interrupted
    is taken up by the same command.

    \b
    Example:
      python -m ops users password bus --dry-run
      python -m ops users password probe --yes
    """
    view = View(file)
    user = find_user(view.inventory, name)
    kept = user.password_file
    given = Secret(source.read().strip()) if source else None
    if given is not None and not given.reveal():
        raise ConfigError(f"--from {source.name if source else ''}: empty")
    nodes = [node.name for node in view.nodes if node.name not in without]
    again = ", which was begun before" if next_file(kept).exists() else ""
    say(f"a new password of {name} (role {user.role}){again}: on {', '.join(nodes)}; in {kept}")
    if dry_run:
        return
    if not yes:
        confirm()
    with locked(file, f"users password {name}"):
        change_password(
            view, user, given=given, without=without, say=lambda line: say(line, err=True)
        )
    say(f"{name} has a new password on {plural(len(nodes), 'broker')}; it is in {kept}")
    if user.role in ("application", "publisher", "consumer", "monitor"):
        say("whoever has a copy of it needs the new one for his next connection")
    if without and view.inventory.supervisor != "local":
        say(f"before {', '.join(without)} is started again: `python -m ops provision`")
