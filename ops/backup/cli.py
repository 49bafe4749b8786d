"""`python -m ops backup` and `restore`: everything of a cluster but its messages, kept in one file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click

from consumer_lists import listfile
from inventory.inventory import Inventory
from messagebus.broker import BrokerList
from messagebus.terminal import Progress, say
from ops.backup.contents import (
    INVENTORY,
    Archive,
    Missing,
    Rights,
    age_of,
    definitions_of,
    files_named,
    generation_of,
    is_named,
    missing_definitions,
    missing_topology,
    read_archive,
    topology_of,
    without_memory,
    write_archive,
)
from ops.cluster.absent import silent_of
from ops.cluster.checks import refuse_strangers
from ops.cluster.topology import latest
from ops.cluster.view import View
from ops.commands import kits
from ops.errors import NoAnswer, OpsError
from ops.local import secrets
from ops.run.command import confirm, inventory_option, locked, yes_option
from ops.run.runner import HostRunner

INVENTORY_MODE, SECRET_MODE = 0o644, 0o600
# Topology of an older backup comes back by name only, where no agent remembers the deletions since.
OLD = timedelta(days=14)


_without = click.option(
    "--without",
    metavar="NODE",
    multiple=True,
    help="Go on without the broker or agent of this node, where it does not answer. Repeatable.",
)


@click.command(short_help="Back up a cluster, without messages, to ARCHIVE.")
@click.argument("archive", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--with-secrets",
    is_flag=True,
    help="Include the files of passwords, tokens and keys that the inventory names.",
)
@_without
@inventory_option
def backup(archive: Path, with_secrets: bool, without: tuple[str, ...], file: Path) -> None:
    """Write inventory, consumer list, topology and every broker's definitions to ARCHIVE, of mode 0600.

    Definitions contain password hashes. Messages are not included. Every broker and agent must answer, but
    for those that --without leaves out; what is missing then is named, here and in the archive.

    \b
    Example:
      python -m ops backup /backup/prod-2026-11-21.tar.gz
    """
    file = file.absolute()
    with _saying_without(file):
        made = _collect(_view(file, without), with_secrets=with_secrets)
    write_archive(archive, made)
    for name in made.files:
        say(f"{name}{'  (secret)' if name in made.secret else ''}")
    left_out = made.facts["left_out"]
    if left_out:
        say(f"not in it: {', '.join(left_out)}", err=True)


def _view(file: Path, without: Iterable[str]) -> View:
    """Return the cluster without what does not answer of these nodes.

    Raises NoAnswer for another that does not, OpsError when another one answers at a node's addresses.
    """
    view = View(file, silent_of(View(file), without))
    refuse_strangers(view)
    return view


@contextmanager
def _saying_without(file: Path) -> Iterator[None]:
    """Add to an error about whoever does not answer all that are silent, and how to go on without them."""
    try:
        yield
    except NoAnswer as fault:
        view = View(file)
        silent = silent_of(view, [node.name for node in view.nodes])
        options = " ".join(f"--without {name}" for name in silent.nodes)
        raise NoAnswer(
            f"{fault}; do not answer: {silent.in_words()}; where they are dead, go on by {options}"
            if silent.nodes
            else str(fault)
        ) from fault


def _collect(view: View, *, with_secrets: bool) -> Archive:
    file, base = view.file, view.file.parent
    text = file.read_text()
    files: dict[str, bytes] = {}
    secret, left_out = set(), []
    for path, is_secret in files_named(text, base).items():
        name = os.path.relpath(path, base)
        if not path.is_file() or (is_secret and not with_secrets):
            left_out.append(name)
            continue
        files[f"files/{name}"] = path.read_bytes()
        if is_secret:
            secret.add(f"files/{name}")
    for name, snapshot in view.agents.snapshots().items():
        files[f"topology/{name}.json"] = json.dumps(snapshot, indent=1).encode()
    for node, definitions in _definitions(view):
        name = f"definitions/{node}.json"
        files[name] = json.dumps(definitions, indent=1).encode()
        secret.add(name)
    left_out += [f"topology of {name}" for name in sorted(view.absent.agents)]
    left_out += [f"definitions of {name}" for name in sorted(view.absent.brokers)]
    facts = {
        "cluster": view.inventory.cluster,
        "generation": view.listed.generation,
        "made_at": time.strftime("%FT%TZ", time.gmtime()),
        "left_out": left_out,
    }
    return Archive(facts, {INVENTORY: text.encode(), **files}, frozenset(secret))


def _definitions(view: View) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each present broker's name and definitions: of thousands of queues, these take a while."""
    present = view.brokers.present
    with Progress("read the definitions of", "broker", len(present)) as progress:
        for number, node in enumerate(present, 1):
            definitions = view.brokers.definitions(node.name)
            progress.at(number, node.name)
            yield node.name, definitions


@click.command()
@click.argument("archive", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--files",
    "only_files",
    is_flag=True,
    help="Restore only the inventory and the files that it names, on this machine.",
)
@click.option(
    "--users",
    is_flag=True,
    help="Also restore missing users and rights of users that the inventory names.",
)
@click.option(
    "--topology",
    "only",
    metavar="PATTERN",
    multiple=True,
    help="Restore only topology of these names, such as 'orders/*'. Repeatable.",
)
@click.option(
    "--outside",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path, resolve_path=False),
    help="With --files: also this file, outside of the inventory's folder. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Print what is missing without restoring it.")
@_without
@yes_option
@inventory_option
def restore(
    archive: Path,
    only_files: bool,
    users: bool,
    only: tuple[str, ...],
    outside: tuple[Path, ...],
    dry_run: bool,
    without: tuple[str, ...],
    yes: bool,
    file: Path,
) -> None:
    """Restore the parts of ARCHIVE that are missing now. Existing parts are never changed.

    On a machine that lost its files, begin with --files, then provision and start the hosts. Without --files,
    policies, queues of others and topology that brokers and agents lack are restored. The consumer list gets
    a generation above all that clients may know. A deliberate deletion looks like a loss: check the list of
    changes first.

    \b
    Example:
      python -m ops restore /backup/prod-2026-11-21.tar.gz --files --yes
      python -m ops restore /backup/prod-2026-11-21.tar.gz --dry-run
    """
    kept = read_archive(archive)
    say(f"{kept.facts['cluster']} of {kept.facts['made_at']}")
    file = file.absolute()
    if only_files:
        _restore_files(kept, file, outside, dry_run=dry_run, yes=yes)
    else:
        with nullcontext() if dry_run else locked(file, "restore"), _saying_without(file):
            view = _view(file, without)
            _restore_cluster(kept, view, users=users, only=only, dry_run=dry_run, yes=yes)
            if left_out := view.absent.in_words():
                say(f"without {left_out}: run this again when they answer", err=True)


def _restore_files(
    kept: Archive, file: Path, outside: tuple[Path, ...], *, dry_run: bool, yes: bool
) -> None:
    """Write the files that the inventory names: the inventory here, else the archive's.

    The inventory may name a file anywhere on this machine. A file outside of its folder is written only by
    the operator's word.
    """
    wanted, left_out = _named_files(kept, file, outside)
    missing = {path: name for path, name in wanted.items() if not path.exists()}
    for path, name in wanted.items():
        if path not in missing and path.read_bytes() != kept.files[name]:
            say(f"differs now: {path}", err=True)
    for path in missing:
        say(f"write {path}")
    if not missing:
        say("nothing is missing")
    elif not dry_run:
        if not yes:
            confirm()
        for path, name in missing.items():
            _write(path, kept.files[name], SECRET_MODE if name in kept.secret else INVENTORY_MODE)
    if left_out:
        raise OpsError(
            f"left out, because it is outside of {file.parent}: {', '.join(left_out)};"
            " to write one: --outside PATH"
        )


def _named_files(
    kept: Archive, file: Path, outside: tuple[Path, ...]
) -> tuple[dict[Path, str], list[str]]:
    """Return the files that the inventory names -> their names in the archive; and those left out.

    outside: paths outside of the inventory's folder that may be written; others are left out, unless they
    exist.
    """
    text = file.read_text() if file.exists() else kept.files[INVENTORY].decode()
    may_write = {Path(os.path.normpath(Path.cwd() / path)) for path in outside}
    wanted, left_out = {file: INVENTORY}, list[str]()
    for name in kept.files:
        if not name.startswith("files/"):
            continue
        path = Path(os.path.normpath(file.parent / name.removeprefix("files/")))
        if not is_named(text, file.parent, path):
            say(f"left out, because the inventory does not name it: {path}", err=True)
        elif path.is_relative_to(file.parent) or path in may_write or path.exists():
            wanted[path] = name
        else:
            left_out.append(str(path))
    return wanted, left_out


def _write(path: Path, raw: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """Things that a restore makes. definitions: by broker.

    left: names of topology that are not restored, with the reason.
    generation: the list's generation must be above it; 0 where it is already.
    """

    definitions: Mapping[str, Missing]
    topology: list[dict[str, Any]]
    left: Mapping[str, str]
    generation: int

    @property
    def is_nothing(self) -> bool:
        some = any(missing.definitions for missing in self.definitions.values())
        return not (some or self.topology or self.generation)

    def lines(self) -> Iterator[str]:
        for node, missing in self.definitions.items():
            yield from (f"{node}: make {name}" for name in missing.names)
            yield from (f"{node}: leave: {remark}" for remark in missing.remarks)
        yield from (f"topology: want {each['name']}" for each in self.topology)
        yield from (f"topology: leave {name}: {why}" for name, why in self.left.items())
        if self.generation:
            yield f"list: push it under a generation above {self.generation}"


def _restore_cluster(
    kept: Archive, view: View, *, users: bool, only: tuple[str, ...], dry_run: bool, yes: bool
) -> None:
    if view.inventory.cluster != kept.facts["cluster"]:
        raise OpsError(
            f"a backup of {kept.facts['cluster']!r}, and the inventory is of"
            f" {view.inventory.cluster!r}"
        )
    lack = _lack(kept, view, _rights(view.inventory) if users else Rights(), only)
    for line in lack.lines():
        say(line)
    if lack.is_nothing:
        say("nothing is missing")
    elif not dry_run:
        if not yes:
            confirm()
        _make(lack, view)


def _rights(inventory: Inventory) -> Rights:
    """Return the users that the inventory names, with their rights."""
    admins = {each.name for each in inventory.users if each.role == "operator"}
    admins.add(inventory.admin_user)
    users = {inventory.balancer.probe_user, *(each.name for each in inventory.users)}
    return Rights(users=frozenset(users | admins), admins=frozenset(admins))


def _lack(kept: Archive, view: View, rights: Rights, only: tuple[str, ...]) -> Lack:
    """Compare a backup with the cluster.

    Raises OpsError where topology would come back that may have been deleted long ago.
    """
    snapshots = view.agents.snapshots()
    maps = {
        name: {entry["wanted"]: entry for entry in snapshot["entries"]}
        for name, snapshot in snapshots.items()
    }
    floor = max((each.get("floor", 0) for each in snapshots.values()), default=0)
    before = topology_of(kept)
    topology, left = missing_topology(before, latest(maps), floor=floor, only=only or ("*",))
    if topology and not only and without_memory(before, snapshots.values()):
        _check_age(kept, [each["name"] for each in topology])
    is_password = partial(_is_password, view.inventory)
    return Lack(
        definitions={
            node: missing_definitions(defined, now, rights=rights, is_password=is_password)
            for node, now in _definitions(view)
            if (defined := definitions_of(kept, node))
        },
        topology=topology,
        left=left,
        generation=_generation_lacking(kept, view),
    )


def _check_age(kept: Archive, names: list[str]) -> None:
    """Warn that deletions since the backup are not known. Raises OpsError for a backup that is old."""
    made_at = kept.facts["made_at"]
    if not -OLD < age_of(kept, datetime.now(UTC)) < OLD:
        raise OpsError(
            f"the backup is of {made_at}, and no agent has a record of later deletions: select names with"
            f" --topology, of {', '.join(names)}; or --topology '*'"
        )
    say(
        f"note: no agent has a record of deletions since {made_at}: deleted names come back",
        err=True,
    )


def _is_password(inventory: Inventory, user: str, stored: str) -> bool:
    """Return whether a broker's stored hash is that of the user's password in the inventory."""
    files = {
        inventory.admin_user: inventory.admin_password_file,
        inventory.balancer.probe_user: inventory.balancer.probe_password_file,
        **{each.name: each.password_file for each in inventory.users},
    }
    try:
        return user in files and secrets.is_hash_of(stored, secrets.read(files[user]))
    except OSError:
        return False


def _generation_lacking(kept: Archive, view: View) -> int:
    """Return the backup's generation where some agent serves an older list; else 0.

    Running clients would not take an older list than they had.
    """
    known = generation_of(kept)
    return known if min(view.agents.generations().values(), default=known) < known else 0


def _make(lack: Lack, view: View) -> None:
    made, wanted = 0, sum(len(each.names) for each in lack.definitions.values())
    progress = Progress("made", "definition", wanted)
    for node, missing in lack.definitions.items():
        if missing.definitions:
            view.brokers.define(node, dict(missing.definitions))
            progress.end()
            say(f"{node}: made {len(missing.names)}")
            made += len(missing.names)
            progress.at(made, f"the last on {node}")
    progress.end()
    if lack.topology:
        say(f"topology: {view.agents.want(lack.topology)}")
    if lack.generation:
        listfile.change(view.inventory.list_file, lambda text: _at_least(text, lack.generation))
        push = kits.lists(view.file, "push", "--recover", without=view.absent.agents)
        for line in HostRunner().run(push).splitlines():
            say(line)


def _at_least(text: str, generation: int) -> str:
    known = BrokerList.parse(text).generation
    return listfile.with_generation(text, max(known, generation))
