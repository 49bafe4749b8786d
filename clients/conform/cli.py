"""The command: `python -m clients.conform -- COMMAND`."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from clients.conform.cases import CASES, MUST
from clients.conform.run import FAILED, PASSED, Result, local_bus, run_all
from clients.conform.stage import Bus
from messagebus import BusConfig
from messagebus.broker import AGENT_PORT, AMQP_PORT, Broker
from messagebus.commands.exits import Exit, run
from messagebus.commands.options import NumberRange
from messagebus.errors import ConfigError

BROKERS_MIN = 3
LOGIN = (
    "MESSAGEBUS_USER",
    "MESSAGEBUS_USER_FILE",
    "MESSAGEBUS_PASSWORD",
    "MESSAGEBUS_PASSWORD_FILE",
)


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True)
@click.option("--case", "cases", type=int, multiple=True, help="Only this case; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a case.")
@click.option(
    "--patience",
    type=NumberRange(1, 20),
    default=1.0,
    show_default=True,
    help="Factor on all times, for a busy machine.",
)
@click.option(
    "--brokers", metavar="HOST:PORT,...", help="Brokers of a given bus; default: starts a cluster."
)
@click.option("--agents", metavar="HOST:PORT,...", help="Their agents, in the same order.")
@click.option("--cluster", default="", help="Name of the given bus's cluster.")
@click.option("--keep", is_flag=True, help="Keep the clients' standard error, in a folder of /tmp.")
def conform(
    command: tuple[str, ...],
    cases: tuple[int, ...],
    as_json: bool,
    patience: float,
    brokers: str | None,
    agents: str | None,
    cluster: str,
    keep: bool,
) -> int:
    """Judge COMMAND, a client of the bus in any language, by the cases of docs/reference/conformance.md.

    Starts a cluster of its own, which needs the operators' kit (`python -m ops`). On a given bus
    (--brokers, --agents; login as of any client) cases that break brokers do not run.
    Exit code 7 when a client fails what it must do.

    \b
    Example:
      python -m clients.conform -- ./my-client --quiet
      python -m clients.conform --case 2 --case 11 -- node conform.js
    """
    unknown = set(cases) - {case.number for case in CASES}
    if unknown:
        raise click.UsageError(f"--case {min(unknown)}: 1 to {len(CASES)}")
    if shutil.which(command[0]) is None:
        raise click.UsageError(f"{command[0]}: no program that can be run")
    # The cluster must not outlive us.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(Exit.TERMINATED))
    folder = Path(tempfile.mkdtemp(prefix="conform-"))
    show = _print_json if as_json else _print_row
    try:
        if brokers is None:
            with local_bus(folder, patience=patience) as bus:
                results = run_all(bus, command, only=cases, on_result=show)
        else:
            bus = _given(brokers, agents or "", cluster, folder, patience)
            results = run_all(bus, command, only=cases, on_result=show)
    except ImportError as fault:
        raise click.UsageError(
            f"no kit here that starts brokers ({fault.name}): --brokers"
        ) from fault
    finally:
        if keep:
            click.echo(f"what the client wrote to standard error: {folder}", err=True)
        else:
            _remove(folder)
    return _verdict(results)


def _given(brokers: str, agents: str, cluster: str, folder: Path, patience: float) -> Bus:
    at = _addresses("--brokers", brokers, AMQP_PORT)
    asked = _addresses("--agents", agents, AGENT_PORT)
    if len(at) < BROKERS_MIN or len(at) != len(asked):
        raise ConfigError(f"--brokers and --agents: {BROKERS_MIN} or more of each, in one order")
    login = {name: os.environ[name] for name in LOGIN if name in os.environ}
    bus = BusConfig.from_env({**login, "MESSAGEBUS_BROKER": at[0]})
    return Bus(
        brokers=at[:BROKERS_MIN],
        agents=asked[:BROKERS_MIN],
        cluster=cluster or "conform",
        user=bus.current_user(),
        password=bus.current_password().reveal(),
        folder=folder,
        begin=f"cf{secrets.token_hex(2)}-",
        patience=patience,
    )


def _addresses(option: str, text: str, port: int) -> list[str]:
    """Return the addresses of an option, with a port each. Raises ConfigError."""
    given = text.split(",") if text else []
    try:
        hosts = [each if re.search(r":[^]]*$", each) else f"{each}:{port}" for each in given]
        return [Broker.parse(each).name for each in hosts]
    except ValueError as fault:
        raise ConfigError(f"{option}: {fault}") from fault


def _print_row(result: Result) -> None:
    detail = f"  {result.detail}" if result.detail else ""
    click.echo(
        f"{result.number:>3}  {result.name:<28} {result.level:<7} {result.result:<8}"
        f"{result.seconds:>6.1f} s{detail}"
    )


def _print_json(result: Result) -> None:
    click.echo(json.dumps(result.row))


def _verdict(results: Sequence[Result]) -> int:
    passed = sum(each.result == PASSED for each in results)
    click.echo(f"{passed} of {len(results)} passed", err=True)
    failed = any(each.result == FAILED and each.level == MUST for each in results)
    return Exit.FOUND if failed else Exit.DONE


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.rmdir()


def main() -> None:
    """Run the command by itself, with errors in one line."""
    sys.exit(run(conform, prog_name="python -m clients.conform"))
