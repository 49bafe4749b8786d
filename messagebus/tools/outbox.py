"""`messagebus outbox`, what operators look at and judge: rows that wait, and rows that were parked."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

from messagebus.clock import MS_PER_S
from messagebus.commands.exits import Exit, Program
from messagebus.commands.options import Duration, confirm, iso
from messagebus.commands.outbox import Named, number, of_outbox
from messagebus.errors import MessageBusError, NotFound, NotReady
from messagebus.outbox.session import Session, check_tables, class_and_reason
from messagebus.outbox.table import Statement
from messagebus.terminal import escaped, plural, say

BODY_CHARS_MAX, TEXT_CHARS_MAX = 200, 300
SHOWN_LIMIT = 100

T = TypeVar("T")

_as_json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
_destination_option = click.option("--destination", default="", help="Only rows for this topic.")
_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
_all_option = click.option("--all", "every", is_flag=True, help="All parked rows.")
_ids = click.argument("ids", nargs=-1, type=click.IntRange(min=1))


def _use(outbox: Named, work: Callable[[Session], Awaitable[T]]) -> T:
    """Do something with an outbox, if it is there. Raises NotReady, with a driver's error in one line."""
    program = click.get_current_context().find_root().command
    if isinstance(program, Program):
        program.hint = ""  # says nothing of brokers when the database does not answer

    async def use() -> T:
        session = Session(outbox.address)
        try:
            await check_tables(session, outbox.table)
            return await work(session)
        except MessageBusError:
            raise
        except Exception as fault:
            raise NotReady(f"database {outbox.address.shown}: {class_and_reason(fault)}") from fault
        finally:
            await session.close()

    return asyncio.run(use())


def _ask(outbox: Named, statement: Statement) -> list[Any]:
    """Execute one statement; return its rows."""
    return _use(outbox, lambda session: session.run([], statement))


@click.command(short_help="Print the number of waiting rows, and the relays.")
@of_outbox
@click.option(
    "--older-than",
    "older_than_s",
    type=Duration(),
    help="End with 7 if a row waits longer.",
)
@_as_json_option
def status(outbox: Named, older_than_s: float | None, as_json: bool) -> int:
    """Print how many rows wait, the age of the oldest, how many were parked, and how many relays live.

    \b
    Example:
      messagebus outbox status --older-than 60s
    """
    ((waiting, oldest_ms, retrying, parked_rows),) = _ask(outbox, (outbox.table.status(), ()))
    leases = _ask(outbox, (outbox.table.read_leases(), ()))
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


@click.command(short_help="Print the parked rows.")
@of_outbox
@_destination_option
@number("--limit", 1, None, SHOWN_LIMIT, "Print at most this many rows.")
@_as_json_option
def parked(outbox: Named, destination: str, limit: int, as_json: bool) -> int:
    """Print the rows that were given up, with the reason, the oldest first; they stay.

    \b
    Example:
      messagebus outbox parked --destination orders
    """
    rows = [_shown(row) for row in _ask(outbox, outbox.table.parked(limit, destination))]
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
class _Chosen:
    """Parked rows that a command is about. They are read once: what was shown is what is changed."""

    def __init__(self, outbox: Named, ids: Sequence[int], every: bool, destination: str) -> None:
        if bool(ids) == (every or bool(destination)):
            raise click.UsageError("IDS of rows, or --all, or --destination: which rows?")
        self._outbox, self._ids, self._destination = outbox, ids, destination

    @functools.cached_property
    def rows(self) -> list[Any]:
        """Their ids, message ids and destinations. Raises NotFound for none."""
        table = self._outbox.table
        if not (found := _ask(self._outbox, table.parked_ids(self._ids, self._destination))):
            raise NotFound("no such parked row")
        return found

    def question(self) -> str:
        """Print the rows, or the first of them, and return the question."""
        for row in self.rows[:SHOWN_LIMIT]:
            say("  ".join(escaped(_text(each), TEXT_CHARS_MAX) for each in row), err=True)
        if len(self.rows) > SHOWN_LIMIT:
            say(f"and {len(self.rows) - SHOWN_LIMIT} more", err=True)
        return f"Delete {plural(len(self.rows), 'row')}?"

    def change(self, what: Callable[[Mapping[int, object]], list[Statement]], done: str) -> int:
        """Change those that are still what was read. done: what it did to them."""
        statements = what({row_id: message_id for row_id, message_id, _ in self.rows})

        async def work(session: Session) -> int:
            return sum([await session.change(each) for each in statements])

        count = _use(self._outbox, work)
        say(f"{done} {plural(count, 'row')}")
        return Exit.PARTLY if count < max(len(set(self._ids)), len(self.rows)) else Exit.DONE


@click.command(short_help="Queue parked rows for the relays again.")
@_ids
@of_outbox
@_all_option
@_destination_option
def retry(outbox: Named, ids: tuple[int, ...], every: bool, destination: str) -> int:
    """Give the parked rows IDS to the relays again, with new attempts.

    Later rows of their key may have gone out before them.

    \b
    Example:
      messagebus outbox retry 17 18
      messagebus outbox retry --destination orders
    """
    return _Chosen(outbox, ids, every, destination).change(outbox.table.retry, "retried")


@click.command(short_help="Delete parked rows permanently.")
@_ids
@of_outbox
@_all_option
@_destination_option
@_yes_option
def drop(outbox: Named, ids: tuple[int, ...], every: bool, destination: str, yes: bool) -> int:
    """Delete the parked rows IDS for good; they are never published.

    It prints which rows these are, and deletes those that were printed: not another row that has an id of
    theirs since the database was restored, and none that was parked meanwhile.

    \b
    Example:
      messagebus outbox drop 17
    """
    chosen = _Chosen(outbox, ids, every, destination)
    confirm(chosen.question, yes)
    return chosen.change(outbox.table.drop, "dropped")
