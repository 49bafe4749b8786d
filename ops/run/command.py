"""A playbook started from the command line: options, lock, journal, plan, confirmation, resume.

One change of a cluster is made at a time: there is a lock beside its inventory, and one on each host of a
balancer, which for a balancer of this machine is here, under the balancer's address. The first excludes
operators who work from this copy of the inventory; the others those who work from any copy. A connection
holds the lock on a host, so that the lock ends with the operator's process, however that ends; no clock has
a part in it. A host that cannot be reached excludes nobody: that is reported, since a playbook may be needed
because the host is dead.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from inventory import shell
from inventory.errors import CommandFailed
from inventory.inventory import DEFAULT_PATH, ENV_PATH, Balancer, load
from messagebus.commands.options import option_value
from messagebus.errors import ConfigError, MessageBusError
from messagebus.terminal import StatusLine, say
from ops.errors import LockHeld, OpsError, RunOpen
from ops.run import journal as journals
from ops.run.journal import Journal
from ops.run.plan import Plan
from ops.run.runner import HostRunner, carry_out, done_before
from ops.run.runner import undo as undo_plan

LOCK = "ops.lock"
JOURNALS = "journal"
# Others may have changed the cluster since a run that was interrupted longer ago.
OLD = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of the operator beside the playbook and its broker."""

    file: Path
    dry_run: bool
    yes: bool
    undo: bool
    resume: bool = False
    abandon: bool = False

    @property
    def journals(self) -> Path:
        return self.file.parent / JOURNALS


yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
# A link is followed, so that all its names share one lock and one journal.
inventory_option = click.option(
    "--inventory",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, resolve_path=True),
    default=lambda: option_value("inventory") or Path(os.environ.get(ENV_PATH) or DEFAULT_PATH),
    help=f"Default ${ENV_PATH}, else {DEFAULT_PATH}.",
)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every playbook; the command gets them as one `opts`."""

    def gathered(**given: Any) -> Any:
        own = {name: given.pop(name) for name in RunOptions.__slots__}
        return command(opts=RunOptions(**own), **given)

    gathered.__doc__, gathered.__name__ = command.__doc__, command.__name__
    gathered.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    wrapped: Callable[..., Any] = gathered
    for option in (
        click.option(
            "--dry-run",
            is_flag=True,
            help="Print the commands, and what would stop them now, without running them.",
        ),
        yes_option,
        click.option("--undo", is_flag=True, help="Undo an unfinished run."),
        click.option(
            "--resume", is_flag=True, help="With --yes: resume an unfinished run of any age."
        ),
        click.option(
            "--abandon", is_flag=True, help="Close an unfinished run as it stands; changes nothing."
        ),
        inventory_option,
    ):
        wrapped = option(wrapped)
    return wrapped


@contextmanager
def opened(opts: RunOptions, name: str, brokers: Iterable[str]) -> Iterator[Journal]:
    """Hold the lock of the cluster, unless this is a dry run, and yield the journal of the plan `name`.

    brokers: names of those that the plan changes. With --abandon the journal is closed and the command
    ends; a dry run of that closes nothing. An error of the body that leaves a run open names the ways on.
    Raises LockHeld; JournalUnreadable; RunOpen when an unfinished run of another plan changes one of these
    brokers.
    """
    brokers = frozenset(brokers)
    with nullcontext(()) if opts.dry_run else locked(opts.file, name) as locks:
        if opts.abandon:
            if not journals.is_open(opts.journals, name):
                raise OpsError(f"no unfinished run of {name!r} to close")
            if opts.dry_run:
                say(f"the run of {name!r} would be closed as it stands", err=True)
            else:
                journals.abandon(opts.journals, name)
                say(f"closed the run of {name!r} as it stands; nothing else was done", err=True)
            raise click.exceptions.Exit(0)
        for other in journals.open_runs(opts.journals, but=name):
            about = other.fault or f"{other.name!r} is not finished, since {other.last}"
            if other.concerns(brokers) and not opts.dry_run:
                raise RunOpen(
                    f"{about}: finish it by the same command, take it back with --undo,"
                    " or close it with --abandon, before anything else is done there"
                )
            say(f"note: {about}", err=True)
        try:
            yield Journal(opts.journals, name, locks)
        except MessageBusError as fault:
            if not opts.dry_run and journals.is_open(opts.journals, name):
                _name_ways_on(fault, name)
            raise


def _name_ways_on(fault: MessageBusError, name: str) -> None:
    """Add to an error that ends an open run how the run goes on, and how it is given up."""
    if "--abandon" not in (text := str(fault)):
        fault.args = (
            f"{text}; the run of {name!r} stays open: the same command resumes it, --undo takes it back,"
            " --abandon closes it as it stands",
        )


def locked(file: Path, what: str) -> AbstractContextManager[tuple[int, ...]]:
    """Return the lock of the cluster of this inventory, for changes. Raises LockHeld when it is entered.

    Raises ConfigError where there is not even the inventory's folder.
    """
    if not file.parent.is_dir():
        load(file)
    return cluster_lock(file.parent / LOCK, file, what)


def options_of_run(
    journal: Journal,
    options: Mapping[str, Any],
    defaults: Mapping[str, Any],
    *,
    may_come: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the options of a run: the given ones, or those that it began with.

    may_come: flags that may be given later, too; the journal keeps them from then on.
    Raises RunOpen when an unfinished run began with others.
    """
    began = journal.facts.get("options")
    if began is None:
        return dict(options)
    given = {key: value for key, value in options.items() if value != defaults[key]}
    changed = {key: value for key, value in given.items() if value != began.get(key)}
    if wrong := sorted(set(changed) - set(may_come)):
        raise RunOpen(
            f"the unfinished run of {journal.name!r} began with {_in_words(began, wrong)}, not with"
            f" {_in_words(options, wrong)}: use the same options, or none; or close it with --abandon"
        )
    return {**began, **changed}


def _in_words(options: Mapping[str, Any], keys: Iterable[str]) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {options.get(key)!r}" for key in keys)


def carry(
    plan: Plan,
    journal: Journal,
    opts: RunOptions,
    facts: Mapping[str, Any],
    *,
    brokers: Iterable[str] = (),
    afterwards: Iterable[str] = (),
) -> None:
    """Print the rest of the plan, unless it runs without a question; carry it out when the operator agrees.

    The lock must be held: see `opened`.
    facts: values that the run begins with; kept, and changed ones, too, when it is resumed.
    afterwards: lines about tasks that remain for others. Raises OpsError, PlanFailed.
    """
    if opts.undo and not journal.is_resumed:
        raise OpsError(f"no unfinished run of {plan.name!r} to take back")
    if opts.dry_run or not opts.yes:
        done = len(done_before(plan, journal)) if opts.undo or not opts.dry_run else 0
        for line in plan.undo_lines(done + 1) if opts.undo else plan.lines(done):
            for each in line.split("\n"):
                say(each)
    if opts.dry_run:
        if not (opts.undo or journal.is_resumed):
            _print_obstacles(plan)
        return
    if journal.is_resumed:
        _print_age(plan, journal, opts)
    if not opts.yes:
        confirm()
    status = StatusLine(after_s=0)

    def print_line(line: str) -> None:
        status.clear()
        say(line, err=True)

    try:
        runner = HostRunner(lambda line: status.show(f"{plan.name}: {line}"), keeps=journal.locks)
        if opts.undo:
            undo_plan(plan, runner, journal, say=print_line)
            return
        if not journal.is_resumed:
            journal.begin(dict(facts), brokers=brokers)
        elif dict(facts) != journal.facts:
            journal.amend(dict(facts))
        carry_out(plan, runner, journal, say=print_line, show=status.show)
    finally:
        status.clear()
    for line in afterwards:
        say(line, err=True)


def _print_obstacles(plan: Plan) -> None:
    obstacles = list(plan.obstacles())
    for each in obstacles:
        say(f"would stop now: {each}")
    if not obstacles:
        say("nothing is seen that would stop it now")


def _print_age(plan: Plan, journal: Journal, opts: RunOptions) -> None:
    """Print the age of a resumed run.

    Raises RunOpen for an old run without a question, since it may be about another cluster by now.
    """
    age = datetime.now(UTC) - journal.last if journal.last else timedelta()
    say(
        f"taking up the run that did {len(journal.done)} of {len(plan.steps)} steps, begun by"
        f" {journal.who}; its last line is of {journal.last:%F %T %Z}",
        err=True,
    )
    is_old = not -OLD < age < OLD
    if is_old and opts.yes and not (opts.resume or opts.undo):
        raise RunOpen(
            f"nothing was done in it for {_age(age)}: see whether the cluster is still as it left it;"
            " then --resume takes it up, --undo takes it back, --abandon closes it"
        )


def _age(age: timedelta) -> str:
    if age < timedelta():
        return "an unknown time (its last line is of the future)"
    return f"{age.days} days" if age.days else f"{age.seconds // 3600} h"


def confirm() -> None:
    """Ask whether to go on. Raises OpsError without a yes."""
    try:
        if click.confirm("go on?", err=True):
            return
    except click.Abort:
        click.echo(err=True)
    raise OpsError("not confirmed; nothing was done. --yes does not ask")


# Not the lock of HAProxy's writers: a playbook runs `lb apply`, which takes that, as one of its steps.
OPERATORS = ".operators"
# World-writable, and empty after a boot.
LOCKS = Path("/run/lock")
# Exit code of flock when another process holds the lock.
_TAKEN = 1
RECORD_WITHIN_S = 10.0


@contextmanager
def cluster_lock(file: Path, inventory: Path, what: str) -> Iterator[tuple[int, ...]]:
    """Hold the lock `file`, and those of the balancers, while `what` is done; yield those of this machine.

    Raises LockHeld as `file_lock`; also when another operator holds the lock of a balancer.
    """
    with ExitStack() as locks:
        held = [locks.enter_context(file_lock(file, what))]
        for name in _local_balancers(inventory):
            path = _locks() / f"messagebus-{name}{OPERATORS}"
            held.append(locks.enter_context(file_lock(path, what)))
        for balancer, ssh in _remote_balancers(inventory):
            path = balancer.lock_file.with_name(balancer.lock_file.name + OPERATORS)
            try:
                locks.enter_context(shell.forwarded(ssh, balancer.socket, lock=path, within_s=0))
            except CommandFailed as fault:
                if fault.exit_code == _TAKEN:
                    raise LockHeld(*_read_holder(ssh, path)) from None
                say(
                    f"note: no lock on {balancer.host}, which keeps no other operator out: {fault}",
                    err=True,
                )
                continue
            _record_holder(ssh, path, what)
        yield tuple(held)


def _remote_balancers(inventory: Path) -> list[tuple[Balancer, str]]:
    """Return balancers of other hosts and their SSH addresses; none where the inventory cannot be read."""
    with suppress(ConfigError):
        read = load(inventory)
        return [(one, read.host(one.host).ssh) for one in read.balancers if one.host]
    return []


def _local_balancers(inventory: Path) -> list[str]:
    """Return the addresses of this machine's balancers, by which any copy of the inventory knows them."""
    with suppress(ConfigError):
        return sorted(str(one.amqp) for one in load(inventory).balancers if not one.host)
    return []


def _locks() -> Path:
    return LOCKS if os.access(LOCKS, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _record_holder(ssh: str, path: Path, what: str) -> None:
    """Record the holder of a lock on its host; without that record the lock still holds."""
    with suppress(CommandFailed):
        shell.run_over_ssh(ssh, ["tee", str(path)], timeout_s=RECORD_WITHIN_S, stdin=_holder(what))


def _read_holder(ssh: str, path: Path) -> tuple[str, str]:
    with suppress(CommandFailed):
        return _parsed(shell.run_over_ssh(ssh, ["cat", str(path)], timeout_s=RECORD_WITHIN_S))
    return _parsed("")


@contextmanager
def file_lock(file: Path, what: str) -> Iterator[int]:
    """Hold the lock while `what` is done; yield its descriptor. Raises LockHeld, at once, naming the holder.

    The end of the process frees it, however it ends; and that of each command that keeps the descriptor.
    """
    fd = _opened_lock(file)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld(*_parsed(os.pread(fd, 4096, 0).decode(errors="replace"))) from None
        with suppress(
            OSError
        ):  # another user's file, or a full disk: without that record the lock still holds
            os.ftruncate(fd, 0)
            os.pwrite(fd, _holder(what).encode(), 0)
        os.set_inheritable(fd, True)
        yield fd
    finally:
        os.close(fd)


def _opened_lock(file: Path) -> int:
    """Open a lock file. One that another user made can be locked without being written.

    A file that is there is not opened with O_CREAT: Linux forbids that for others' files in /run/lock.
    """
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    for mode in (os.O_RDWR, os.O_RDONLY):
        with suppress(FileNotFoundError, PermissionError):
            return os.open(file, mode | flags)
    return os.open(file, os.O_RDWR | os.O_CREAT | flags, 0o644)


def _holder(what: str) -> str:
    who = f"{getpass.getuser()}@{socket.gethostname()}, pid {os.getpid()}, {what!r}"
    return json.dumps([who, time.strftime("%F %T %Z")])


def _parsed(text: str) -> tuple[str, str]:
    try:
        who, since = json.loads(text)
        return str(who), str(since)
    except (ValueError, TypeError):
        return "somebody", "a moment ago"
