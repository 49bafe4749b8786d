"""Change of passwords of RabbitMQ's users on every broker, at agents and at balancers while everything runs.

The new password lies beside the old one, in ``FILE.next``, until all have it: the same command resumes an
interrupted change, wherever it stopped. That command is `python -m ops users`.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import click

import lb.hosts
from inventory import shell
from inventory.inventory import NEXT, Inventory, Node, User
from lb.fleet import apply_all
from messagebus.errors import ConfigError
from messagebus.files import write_whole
from messagebus.secret import Secret
from messagebus.terminal import did_you_mean, plural, say
from ops.cluster.brokers import next_file
from ops.cluster.view import View
from ops.errors import NoAnswer, OpsError
from ops.local.secrets import is_hash_of, password_hash, read
from ops.provision.hosts import check_node, read_secrets, root_of
from ops.provision.wanted import PASSWORD_FILES, all_users, hosts_of, wanted_host
from ops.run.command import confirm, inventory_option, locked, yes_option

SECRET_BYTES = 24
PASSWORD_CHARS_MAX = 1_000


def find_user(inventory: Inventory, name: str) -> User:
    """Return the user of this name: the operators', the probe, or one of the inventory's.

    Raises ConfigError.
    """
    users = {user.name: user for user in all_users(inventory)}
    if name not in users:
        raise ConfigError(f"no user {name!r} in the inventory{did_you_mean(name, list(users))}")
    return users[name]


def sharing(inventory: Inventory, user: User) -> list[str]:
    """Return the names of other users whose password file is this user's, under another name."""
    return [
        other.name
        for other in all_users(inventory)
        if other.name != user.name
        and other.password_file.exists()
        and other.password_file.samefile(user.password_file)
    ]


def change_password(
    view: View,
    user: User,
    *,
    given: Secret | None,
    without: Iterable[str],
    say: Callable[[str], None],
) -> None:
    """Give a user a new password: at every broker, in the files of the hosts, at every balancer.

    given: the new password; None makes one, or takes that of an unfinished change.
    without: names of brokers that are dead. say: gets one line for each thing that was done.
    Raises OpsError, LbError, ConfigError; the same call then does the rest.
    """
    inventory, without = view.inventory, frozenset(without)
    for name in without:
        inventory.find(name)
    nodes = [node for node in inventory.brokers if node.name not in without]
    known = {node.name: _known(view, node, user) for node in nodes}
    password = _new_password(user.password_file, given)
    stand_in = user.name + NEXT
    if user.role == "probe":
        for node in nodes:
            view.brokers.put_user(node.name, stand_in, _body(known[node.name], password))
            view.brokers.grant_as(node.name, stand_in, user.name)
        _apply(inventory, stand_in, password, say)
    for node in nodes:
        if inventory.supervisor != "local":
            _write_at_hosts(inventory, node, user, password)
        view.brokers.put_user(node.name, user.name, _body(known[node.name], password))
        say(f"{node.name} has it")
    _keep(user.password_file, password)
    if user.role == "probe":
        _apply(inventory, user.name, password, say)
        for node in nodes:
            view.brokers.drop_user(node.name, stand_in)
    for node in nodes:
        if not is_hash_of(str(_known(view, node, user).get("password_hash")), password):
            raise OpsError(f"{node.name}: another operator has changed the password of {user.name}")
    next_file(user.password_file).unlink()


def _known(view: View, node: Node, user: User) -> Mapping[str, Any]:
    """Return a user as a broker has it.

    Raises NoAnswer: all brokers must answer before the first is changed.
    """
    try:
        return view.brokers.user(node.name, user.name)
    except NoAnswer as fault:
        raise NoAnswer(
            f"{fault}; a broker that is dead is left out by --without {node.name}"
        ) from fault


def _body(known: Mapping[str, Any], password: Secret) -> dict[str, Any]:
    return {
        "password_hash": password_hash(password),
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": known["tags"],
    }


def _new_password(file: Path, given: Secret | None) -> Secret:
    """Return the new password. It is on disk before any broker gets it."""
    kept = next_file(file)
    if kept.exists():
        password = read(kept)
        if given is not None and given != password:
            raise OpsError(
                f"a change is not finished: its password is in {kept}, and some brokers may have it;"
                " finish it first by the same command without --from"
            )
        return password
    password = given or Secret(secrets.token_hex(SECRET_BYTES))
    write_whole(kept, password.reveal())
    return password


def _keep(file: Path, password: Secret) -> None:
    """Replace the file; mode and owner stay."""
    was = file.stat()
    write_whole(file, password.reveal() + "\n", mode=was.st_mode & 0o777)
    with suppress(PermissionError):
        os.chown(file, was.st_uid, was.st_gid)


def _apply(inventory: Inventory, name: str, password: Secret, say: Callable[[str], None]) -> None:
    """Make every balancer log in to brokers as this user."""
    balancers = tuple(
        dataclasses.replace(each, probe_user=name, probe_password=password)
        for each in inventory.balancers
    )
    meant = dataclasses.replace(inventory, balancers=balancers)
    for balancer, _done in apply_all(meant, lambda each: lb.hosts.machine_of(shell, meant, each)):
        say(f"balancer {balancer.name} asks as {name}")


def _write_at_hosts(inventory: Inventory, node: Node, user: User, password: Secret) -> None:
    """Write the passwords that a broker reads at its next start, and its agent at each use.

    They are written before the broker is changed.
    """
    known = {**read_secrets(inventory), user.password_file: password}
    for host in sorted(hosts_of(inventory, node)):
        wanted = wanted_host(inventory, host, known, program="")
        with root_of(inventory, host) as root:
            check_node(wanted, root)
            for file in wanted.files:
                if file.path in PASSWORD_FILES:
                    root.write(file)


def read_password(source: IO[str]) -> Secret:
    """Read the new password of an operator. Raises ConfigError, which shows nothing of it."""
    try:
        text = source.read(PASSWORD_CHARS_MAX + 2).strip()
    except UnicodeDecodeError:  # which would show a byte
        raise ConfigError(f"--from {source.name}: not UTF-8") from None
    if not (0 < len(text) <= PASSWORD_CHARS_MAX and text.isprintable()):
        most = f"{PASSWORD_CHARS_MAX:,}"
        raise ConfigError(f"--from {source.name}: one line of 1 to {most} printing characters")
    return Secret(text)


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
    help='File with the new password, "-" for standard input; default a random one.',
)
@click.option(
    "--without",
    metavar="NODE",
    multiple=True,
    help="Leave out this node, whose broker is dead. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Print the changes without making them.")
@yes_option
@inventory_option
def password(
    name: str,
    source: IO[str] | None,
    without: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    file: Path,
) -> None:
    """Change the password of the user NAME on all brokers, agents and balancers.

    It is written to the user's password file. Connections stay open. The same command resumes an interrupted
    change.

    \b
    Example:
      python -m ops users password bus --dry-run
      python -m ops users password probe --yes
    """
    view = View(file)
    user = find_user(view.inventory, name)
    kept = user.password_file
    if others := sharing(view.inventory, user) if kept.exists() else []:
        raise ConfigError(
            f"{kept} is the password file of {', '.join(others)}, too: give each its own"
        )
    given = read_password(source) if source else None
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
        say("clients that have a copy of it need the new one for their next connection")
    if without and view.inventory.supervisor != "local":
        say(f"before {', '.join(without)} is started again: `python -m ops provision`")
