"""`messagebus outbox`: make the tables of an outbox, and relay it. `messagebus.tools.outbox` looks at it."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click

from messagebus.admin import directory
from messagebus.commands.exits import Exit, Group
from messagebus.commands.options import NumberRange, bus_settings, log_option, log_to_stderr
from messagebus.config import PublisherConfig
from messagebus.dialects import DIALECTS
from messagebus.dsn import Address
from messagebus.outbox.relay import STOP_TIMEOUT_S, AsyncRelay, RelayConfig
from messagebus.outbox.table import DEFAULT_TABLE, Table
from messagebus.secret import Secret
from messagebus.terminal import Progress, plural, say

SETTING = "MESSAGEBUS_OUTBOX_DATABASE"
# Between two looks at the progress of a relay.
LOOK_S = 0.5

F = TypeVar("F", bound=Callable[..., Any])


_TOOLS = "messagebus.tools.outbox"
LATER = {
    "drop": (f"{_TOOLS}:drop", "Delete parked rows permanently."),
    "parked": (f"{_TOOLS}:parked", "Print the parked rows."),
    "retry": (f"{_TOOLS}:retry", "Queue parked rows for the relays again."),
    "status": (f"{_TOOLS}:status", "Print the number of waiting rows, and the relays."),
}


@click.group(
    "outbox",
    cls=Group,
    later=LATER,
    short_help="Relay a database's outbox; list waiting or parked rows.",
)
def group() -> None:
    """Relay the messages that applications add to a table in their own transactions.

    \b
    The database is --database, or MESSAGEBUS_OUTBOX_DATABASE, which no list of processes shows:
      postgresql://USER:PASSWORD@HOST/NAME, mysql://USER:PASSWORD@HOST/NAME, sqlite:///PATH

    \b
    Example:
      messagebus outbox ddl --database postgresql | psql shop
      messagebus outbox relay
      messagebus outbox status
    """


_table_option = click.option(
    "--table", default=DEFAULT_TABLE, show_default=True, help="The outbox's table."
)


def number(name: str, low: int, high: int | None, default: int, help_text: str) -> Callable[[F], F]:
    """Return the option of a whole number from low to high, with its default in the help."""
    allowed = click.IntRange(low, high)
    return click.option(name, type=allowed, default=default, show_default=True, help=help_text)


@dataclass(frozen=True, slots=True)
class Named:
    """Outbox that a command is about."""

    url: Secret
    address: Address
    table: Table


def of_outbox(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that name an outbox, which the command gets as its first argument."""

    @click.option("--database", metavar="URL", help=f"Address of the database; default: {SETTING}.")
    @_table_option
    @functools.wraps(command)
    def run(database: str | None, table: str, **given: Any) -> int:
        found = Secret(database or os.environ.get(SETTING, ""))
        if not found.reveal():
            raise click.UsageError(f"--database URL, or {SETTING}: which database?")
        address = Address.parse(found)
        return command(Named(found, address, Table(address.database.name, table)), **given)

    return run


# Making.
@group.command(short_help="Print the statements that make the tables.")
@click.option(
    "--database",
    type=click.Choice([*DIALECTS, "mariadb"]),
    required=True,
    help="Kind of the database.",
)
@_table_option
@click.option("--drop", is_flag=True, help="Print the statements that drop them instead.")
def ddl(database: str, table: str, drop: bool) -> int:
    """Print the statements that make both tables, or drop them; nothing is executed.

    For a migration of Django or Alembic: docs/guides/outbox.md.

    \b
    Example:
      messagebus outbox ddl --database sqlite | sqlite3 shop.db
    """
    made = Table(database, table)
    for statement in made.drop_ddl() if drop else made.ddl():
        click.echo(f"{statement};")
    return Exit.DONE


# Relaying.
@group.command(short_help="Publish the rows until SIGTERM.")
@of_outbox
@click.option("--once", is_flag=True, help="End when no row waits.")
@number("--batch", 1, 10_000, RelayConfig().batch, "Rows to read at once.")
@click.option(
    "--poll-s",
    type=NumberRange(0.001, 60),
    default=RelayConfig().poll_s,
    show_default=True,
    help="Seconds between two reads while no row waits.",
)
@number(
    "--attempts",
    1,
    1_000_000,
    RelayConfig().attempts_max,
    "Failed attempts before a row is parked.",
)
@click.option("--notify", is_flag=True, help="Listen to Outbox(notify=True), too; PostgreSQL.")
@click.option(
    "--keys-go-on", is_flag=True, help="Rows overtake a failed row of their key: no order."
)
@click.option("--metrics", metavar="HOST:PORT", help="Serve /metrics, /ready and /live there.")
@click.option(
    "--metrics-name",
    "names",
    metavar="HOST",
    multiple=True,
    help="Answer there only requests for this host, for addresses and for names without a dot. Repeatable.",
)
@log_option
def relay(
    outbox: Named,
    once: bool,
    batch: int,
    poll_s: float,
    attempts: int,
    notify: bool,
    keys_go_on: bool,
    metrics: str | None,
    names: tuple[str, ...],
    form: str,
) -> int:
    """Publish each committed row, and delete it after its confirm, until SIGTERM or SIGINT.

    Any number of relays may run: they share the keys. Rows of one key go out in their order, each after the
    confirm of the one before. At the end it waits for publishes that are on their way; a second signal ends
    it at once, and so does a kill: what was not deleted goes out again, under its id. Brokers and databases
    that go away later are waited for.

    \b
    Example:
      messagebus outbox relay --metrics 127.0.0.1:9102
    """
    if names and metrics is None:
        raise click.UsageError("--metrics-name requires --metrics")
    bus = bus_settings()
    config = RelayConfig(
        batch=batch,
        held_max=max(RelayConfig().held_max, batch),
        poll_s=poll_s,
        attempts_max=attempts,
        notify=notify,
        key_waits=not keys_go_on,
    )
    log_to_stderr(form)
    directory.reach(bus, publishing=True)
    # What others spool is none of the relay's: its rows wait in the database.
    publisher = replace(PublisherConfig.from_env(os.environ), spool=None)
    made = AsyncRelay(outbox.url, bus, config, table=outbox.table.name, publisher=publisher)
    return asyncio.run(_relay(made, outbox.address.shown, once, metrics, names))


async def _relay(
    relay: AsyncRelay, shown: str, once: bool, metrics: str | None, names: tuple[str, ...]
) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_requested() -> None:
        stopped.set()
        for each in (signal.SIGTERM, signal.SIGINT):  # a second one ends the process
            loop.remove_signal_handler(each)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stop_requested)
    server = None if metrics is None else _serve(metrics, names, relay)
    try:
        await relay.start(require="one")
        say(f"messagebus: relaying {shown}; Ctrl-C ends it", err=True)
        waiting = [asyncio.create_task(stopped.wait()), asyncio.create_task(relay.ended())]
        if once:
            waiting.append(asyncio.create_task(_until_drained(relay)))
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        failed = waiting[1].done()
        for task in waiting:
            task.cancel()
        left = await relay.stop(STOP_TIMEOUT_S)
    finally:
        if server is not None:
            server.close()
    found = relay.stats()
    say(f"messagebus: published {plural(found.published, 'row')}, parked {found.parked}", err=True)
    if left:
        say(f"messagebus: {plural(left, 'publish')} without an answer; they go out again", err=True)
    return Exit.FAILED if failed or left else Exit.DONE


async def _until_drained(relay: AsyncRelay) -> None:
    async def drain() -> None:
        while not await relay.drained():
            pass

    draining = asyncio.create_task(drain())
    with Progress("published", "row") as progress:
        try:
            while not draining.done():
                await asyncio.wait([draining], timeout=LOOK_S)
                stats = relay.stats()
                if stats.rows_waiting is not None:
                    progress.total = stats.published + stats.rows_waiting
                progress.at(stats.published)
            draining.result()
        finally:
            draining.cancel()


def _serve(metrics: str, names: tuple[str, ...], relay: AsyncRelay) -> Any:
    from messagebus.http.probes import ProbeServer, parse_address
    from messagebus.worker.health import relay_answers

    return ProbeServer(parse_address(metrics), relay_answers(relay), names=names)
