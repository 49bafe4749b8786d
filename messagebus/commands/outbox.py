"""`messagebus outbox`: make the tables of an outbox, relay it, look at it, and judge what was parked."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click

from messagebus.admin import directory
from messagebus.commands.exits import Exit, Program
from messagebus.commands.options import Duration, bus_settings, confirm, iso
from messagebus.config import PublisherConfig
from messagebus.dialects import DIALECTS
from messagebus.errors import MessageBusError, NotFound, NotReady
from messagebus.outbox.relay import STOP_TIMEOUT_S, AsyncRelay, RelayConfig
from messagebus.outbox.session import Address, Session, check_tables, told
from messagebus.outbox.table import DEFAULT_TABLE, Statement, Table
from messagebus.secret import Secret
from messagebus.terminal import escaped, plural, say

SETTING = "MESSAGEBUS_OUTBOX_DATABASE"
BODY_CHARS_MAX, TEXT_CHARS_MAX = 200, 300
SHOWN_LIMIT = 100
MS_PER_S = 1_000

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@click.group("outbox", short_help="Relay a database's outbox; see what waits or was parked.")
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
_as_json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
_destination_option = click.option("--destination", default="", help="Only rows for this topic.")
_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
_all_option = click.option("--all", "every", is_flag=True, help="All parked rows.")
_ids = click.argument("ids", nargs=-1, type=click.IntRange(min=1))


def _number(name: str, low: int, high: int | None, default: int, told: str) -> Callable[[F], F]:
    allowed = click.IntRange(low, high)
    return click.option(name, type=allowed, default=default, show_default=True, help=told)


@dataclass(frozen=True, slots=True)
class _Outbox:
    """The outbox that a command is about."""

    url: Secret
    address: Address
    table: Table

    def use(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Do something with it, if it is there. Raises NotReady, with a driver's error in one line."""
        program = click.get_current_context().find_root().command
        if isinstance(program, Program):
            program.hint = ""  # says nothing of brokers when the database does not answer

        async def use() -> T:
            session = Session(self.address)
            try:
                await check_tables(session, self.table)
                return await work(session)
            except MessageBusError:
                raise
            except Exception as fault:
                raise NotReady(f"database {self.address.shown}: {told(fault)}") from fault
            finally:
                await session.close()

        return asyncio.run(use())

    def ask(self, statement: Statement) -> list[Any]:
        """Execute one statement; return its rows."""
        return self.use(lambda session: session.run([], statement))


def _of_outbox(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options that name an outbox, which the command gets as its first argument."""

    @click.option("--database", metavar="URL", help=f"Address of the database; default: {SETTING}.")
    @_table_option
    @functools.wraps(command)
    def run(database: str | None, table: str, **given: Any) -> int:
        found = Secret(database or os.environ.get(SETTING, ""))
        if not found.reveal():
            raise click.UsageError(f"--database URL, or {SETTING}: which database?")
        address = Address.parse(found)
        return command(_Outbox(found, address, Table(address.database.name, table)), **given)

    return run


# Making.
@group.command(short_help="Print the statements that make the tables.")
@click.option(
    "--database",
    type=click.Choice([*DIALECTS, "mariadb"]),
    required=True,
    help="The kind of database.",
)
@_table_option
@click.option("--drop", is_flag=True, help="The statements that drop them.")
def ddl(database: str, table: str, drop: bool) -> int:
    """Print the statements that make both tables, or drop them; nothing is executed.

    For a migration of Django or Alembic: docs/outbox.md.

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
@_of_outbox
@click.option("--once", is_flag=True, help="End when no row waits.")
@_number("--batch", 1, 10_000, RelayConfig().batch, "Rows of one read.")
@_number("--poll-ms", 1, 60_000, RelayConfig().poll_ms, "Between reads while nothing waits.")
@_number("--attempts", 1, 1_000_000, RelayConfig().attempts_max, "Before a row is parked.")
@click.option("--notify", is_flag=True, help="Listen to Outbox(notify=True), too; PostgreSQL.")
@click.option("--keys-go-on", is_flag=True, help="Rows pass a failed one of their key: no order.")
@click.option("--metrics", metavar="HOST:PORT", help="Serve /metrics, /ready and /live there.")
def relay(
    outbox: _Outbox,
    once: bool,
    batch: int,
    poll_ms: int,
    attempts: int,
    notify: bool,
    keys_go_on: bool,
    metrics: str | None,
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
    bus = bus_settings()
    config = RelayConfig(
        batch=batch,
        held_max=max(RelayConfig().held_max, batch),
        poll_ms=poll_ms,
        attempts_max=attempts,
        notify=notify,
        key_waits=not keys_go_on,
    )
    if not click.get_current_context().find_root().params.get("verbose"):
        logging.getLogger().setLevel(logging.WARNING)
    directory.reach(bus, publishing=True)
    # What others spool is none of the relay's: its rows wait in the database.
    publisher = replace(PublisherConfig.from_env(os.environ), spool=None)
    made = AsyncRelay(outbox.url, bus, config, table=outbox.table.name, publisher=publisher)
    return asyncio.run(_relay(made, outbox.address.shown, once, metrics))


async def _relay(made: AsyncRelay, shown: str, once: bool, metrics: str | None) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def asked() -> None:
        stopped.set()
        for each in (signal.SIGTERM, signal.SIGINT):  # a second one ends the process
            loop.remove_signal_handler(each)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, asked)
    server = None if metrics is None else _serve(metrics, made)
    try:
        await made.start(require="one")
        if sys.stderr.isatty():
            say(f"messagebus: relaying {shown}; Ctrl-C ends it", err=True)
        waiting = [asyncio.create_task(stopped.wait()), asyncio.create_task(made.ended())]
        if once:
            waiting.append(asyncio.create_task(_until_drained(made)))
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        failed = waiting[1].done()
        for task in waiting:
            task.cancel()
        left = await made.stop(STOP_TIMEOUT_S)
    finally:
        if server is not None:
            server.close()
    found = made.stats()
    say(f"messagebus: published {plural(found.published, 'row')}, parked {found.parked}", err=True)
    if left:
        say(f"messagebus: {plural(left, 'publish')} without an answer; they go out again", err=True)
    return Exit.FAILED if failed or left else Exit.DONE


async def _until_drained(made: AsyncRelay) -> None:
    while not await made.drained():
        pass


def _serve(metrics: str, made: AsyncRelay) -> Any:
    from messagebus.worker.health import HealthServer, parse_address, relay_answers

    return HealthServer(parse_address(metrics), relay_answers(made))


# Looking.
@group.command(short_help="Print how many rows wait, and who relays.")
@_of_outbox
@click.option(
    "--older-than",
    "older_than_s",
    type=Duration(),
    help="End with 7 if a row waits longer.",
)
@_as_json_option
def status(outbox: _Outbox, older_than_s: float | None, as_json: bool) -> int:
    """Print how many rows wait, the age of the oldest, how many were parked, and how many relays live.

    \b
    Example:
      messagebus outbox status --older-than 60s
    """
    ((waiting, oldest_ms, retrying, parked_rows),) = outbox.ask((outbox.table.status(), ()))
    leases = outbox.ask((outbox.table.read_leases(), ()))
    relays = sum(not name.isdecimal() and left_ms > 0 for name, _, left_ms in leases)
    is_known = isinstance(oldest_ms, int)  # SQLite keeps any type
    age_s = max(0.0, time.time() - oldest_ms / MS_PER_S) if is_known else None
    if as_json:
        counts = {"waiting": int(waiting), "retrying": int(retrying), "parked": int(parked_rows)}
        click.echo(json.dumps({**counts, "oldest_s": age_s, "relays": relays}, indent=2))
    else:
        say(
            f"waiting   {int(waiting)}"
            + (f", the oldest for {age_s:.1f} s" if age_s is not None else "")
        )
        say(f"retrying  {int(retrying)}")
        say(f"parked    {int(parked_rows)}")
        say(f"relays    {relays}")
    late = older_than_s is not None and age_s is not None and age_s > older_than_s
    return Exit.FOUND if late else Exit.DONE


@group.command("parked", short_help="Print the rows that were given up.")
@_of_outbox
@_destination_option
@_number("--limit", 1, None, SHOWN_LIMIT, "So many at most.")
@_as_json_option
def show_parked(outbox: _Outbox, destination: str, limit: int, as_json: bool) -> int:
    """Print the rows that were given up, with the reason, the oldest first; they stay.

    \b
    Example:
      messagebus outbox parked --destination orders
    """
    rows = [_shown(row) for row in outbox.ask(outbox.table.parked(limit, destination))]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return Exit.DONE
    for row in rows:
        click.echo("\n".join(_lines(row)) + "\n")
    say(f"{len(rows)} shown", err=True)
    return Exit.DONE


def _shown(row: Sequence[Any]) -> dict[str, Any]:
    number, message_id, destination, key, content_type, body, created, attempts, parked, why = row
    body = _bytes(body)
    try:
        shown = {"body": body.decode()}
    except UnicodeDecodeError:
        shown = {"body_hex": body.hex()}
    return {
        "id": number,
        "message_id": _text(message_id),
        "destination": _text(destination),
        "key": _text(key),
        "reason": _text(why),
        "attempts": attempts,
        "added": iso(created) or "?",
        "parked": iso(parked) or "?",
        "content_type": _text(content_type),
        **shown,
    }


def _lines(row: Mapping[str, Any]) -> list[str]:
    def text(name: str) -> str:
        return escaped(row[name], TEXT_CHARS_MAX)

    if (body := row.get("body")) is not None:
        size, told = len(body.encode()), escaped(body, BODY_CHARS_MAX)
    else:
        size, told = len(row["body_hex"]) // 2, f"hex {row['body_hex'][:BODY_CHARS_MAX]}"
    lines = [
        f"{row['id']}  {text('message_id')}",
        f"  to        {text('destination')}",
        f"  key       {text('key')}" if row["key"] else "",
        f"  reason    {text('reason')}",
        f"  attempts  {row['attempts']}",
        f"  added     {row['added']}",
        f"  parked    {row['parked']}",
        f"  body      {text('content_type')} {plural(size, 'byte')}: {told}",
    ]
    return [line for line in lines if line]


def _bytes(body: object) -> bytes:
    """Return a body as bytes; SQLite keeps whatever others have written."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    return str(body).encode("utf-8", "replace")


def _text(value: object) -> str:
    return _bytes(value).decode("utf-8", "replace")


# Judging.
def _judge(
    outbox: _Outbox,
    what: Callable[[Sequence[int], str], Statement],
    done: str,
    ids: Sequence[int],
    every: bool,
    destination: str,
) -> int:
    """Execute a statement on parked rows. done: what it did. Raises NotFound for no such row."""
    if bool(ids) == (every or bool(destination)):
        raise click.UsageError("IDS of rows, or --all, or --destination: which rows?")
    count = outbox.use(lambda session: session.change(what(ids, destination)))
    if not count:
        raise NotFound("no such parked row")
    say(f"{done} {plural(count, 'row')}")
    return Exit.PARTLY if ids and count < len(set(ids)) else Exit.DONE


@group.command(short_help="Give parked rows to the relays again.")
@_ids
@_of_outbox
@_all_option
@_destination_option
def retry(outbox: _Outbox, ids: tuple[int, ...], every: bool, destination: str) -> int:
    """Give the parked rows IDS to the relays again, with new attempts.

    Later rows of their key may have gone out before them.

    \b
    Example:
      messagebus outbox retry 17 18
      messagebus outbox retry --destination orders
    """
    return _judge(outbox, outbox.table.retry, "retried", ids, every, destination)


@group.command(short_help="Delete parked rows for good.")
@_ids
@_of_outbox
@_all_option
@_destination_option
@_yes_option
def drop(outbox: _Outbox, ids: tuple[int, ...], every: bool, destination: str, yes: bool) -> int:
    """Delete the parked rows IDS for good; they are never published.

    \b
    Example:
      messagebus outbox drop 17
    """
    named = "all parked rows" + (f" of {destination}" if destination else "")
    confirm(f"Delete {plural(len(ids), 'row') if ids else named}?", yes)
    return _judge(outbox, outbox.table.drop, "dropped", ids, every, destination)
