"""`messagebus dedup`: what a store of deduplication knows."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import click

from messagebus._io.consume.dedup import dedup_id
from messagebus.commands.exits import Exit
from messagebus.commands.options import NumberRange, iso
from messagebus.config import ConsumerConfig
from messagebus.consumer import as_source
from messagebus.core.claims import STATE_NAMES, Record, key_of
from messagebus.errors import ConfigError, StoreAway
from messagebus.secret import Secret
from messagebus.stores import Store, open_store
from messagebus.stores.memory import MemoryStore
from messagebus.terminal import plural, printable, say
from messagebus.topology import parse_wanted

T = TypeVar("T")

VARIABLE = "MESSAGEBUS_CONSUMER_DEDUP"
DIALECTS = ("sqlite", "postgresql", "mysql")
# Redrives of one message whose records are looked for: each has a record of its own.
REDRIVES_MAX = 20


@click.group("dedup", short_help="Show or delete records of deduplication.")
def group() -> None:
    """Look at, or forget, what deduplication remembers of messages.

    \b
    Example:
      messagebus dedup show 5e0c31b8 --store redis://cache --subscription orders/billing
    """


_store_option = click.option(
    "--store", "url", help=f"Address of the store; without it that of {VARIABLE}."
)
_subscription_option = click.option(
    "--subscription",
    "-s",
    required=True,
    metavar="TOPIC/NAME",
    help="Whose messages: TOPIC/NAME, or queue:NAME.",
)
_timeout_option = click.option(
    "--timeout-s",
    type=NumberRange(min=0.1, max=3_600),
    default=10.0,
    show_default=True,
    help="Seconds to wait for the store's answer.",
)
_redriven_option = click.option(
    "--redriven",
    type=click.IntRange(min=0),
    help="The record of the attempt after this many redrives from the parking queue, alone.",
)
_as_json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
_ids = click.argument("ids", nargs=-1, required=True, metavar="ID...")


@group.command("stats", short_help="Count the records of a store, by state.")
@_store_option
@_timeout_option
@_as_json_option
def stats(url: str | None, timeout_s: float, as_json: bool) -> int:
    """Count the records of a store, by state, of all its subscriptions.

    It reads every record where the store cannot count otherwise: on a large one it takes its time.

    \b
    Example:
      messagebus dedup stats --store sqlite:////var/lib/billing/dedup.db
    """
    counts = _ask(url, timeout_s, lambda store: store.count())._asdict()
    del counts["forgotten"]  # of the process that is asked
    if as_json:
        click.echo(json.dumps(counts))
        return Exit.DONE
    for state, count in counts.items():
        say(f"{state:<8} {count:>12,}")
    return Exit.DONE


@group.command("show", short_help="Show the records of messages.")
@_ids
@_store_option
@_subscription_option
@_redriven_option
@_timeout_option
@_as_json_option
def show(
    ids: tuple[str, ...],
    url: str | None,
    subscription: str,
    redriven: int | None,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Show what is known of the messages ID of a subscription: a line for each record.

    A message that was redriven from the parking queue has a record for each redrive, of which the first 20
    are looked for. Exit code 4: nothing is known of any of them.

    \b
    Example:
      messagebus dedup show 5e0c31b8 --subscription orders/billing --json
    """
    asked = _asked(ids, redriven)
    keys = _keys(subscription, asked)
    records = _ask(url, timeout_s, lambda store: store.show(keys))
    found = [(*each, record) for each, record in zip(asked, records, strict=True) if record]
    known = {name for name, _count, _record in found}
    if as_json:
        rows = [_row(*each) for each in found]
        rows += [{"id": name, "state": None} for name in ids if name not in known]
        click.echo(json.dumps({"records": rows}, indent=2))
    else:
        width = max(map(len, map(printable, ids)))
        for name in ids:
            own = [_described(*each) for each in found if each[0] == name]
            for text in own or ["nothing is known"]:
                say(f"{printable(name):<{width}}  {text}")
    return Exit.DONE if found else Exit.ABSENT


@group.command("forget", short_help="Delete records of messages, so that their copies run again.")
@_ids
@_store_option
@_subscription_option
@_redriven_option
@_timeout_option
def forget(
    ids: tuple[str, ...],
    url: str | None,
    subscription: str,
    redriven: int | None,
    timeout_s: float,
) -> int:
    """Forget the messages ID of a subscription: the next copy of each is handled as if it were the first.

    It deletes the record of each message, and those of its first 20 redrives. A consumer that has just
    handled one remembers it by itself for another minute. A message that is redriven from its parking queue
    runs again without this. Exit code 4: nothing was known of any of them.

    \b
    Example:
      messagebus dedup forget 5e0c31b8 --store redis://cache --subscription orders/billing
    """
    keys = _keys(subscription, _asked(ids, redriven))
    count = _ask(url, timeout_s, lambda store: store.forget(keys))
    say(f"forgot {plural(count, 'record')} of {plural(len(set(ids)), 'message')}")
    return Exit.DONE if count else Exit.ABSENT


@group.command("ddl", short_help="Print the statements that make the tables of a database.")
@click.option(
    "--database", type=click.Choice(DIALECTS), required=True, help="mysql stands for MariaDB too."
)
def ddl(database: str) -> int:
    """Print the statements that make the tables of `SqlStore` and `Once` where there are none.

    \b
    Example:
      messagebus dedup ddl --database postgresql | psql billing
    """
    from messagebus.stores.sql import dedup_ddl

    for statement in dedup_ddl(database):
        click.echo(f"{statement};")
    return Exit.DONE


def _asked(ids: Sequence[str], redriven: int | None) -> list[tuple[str, int]]:
    """Return the records that are meant: of each message all of them, or one."""
    redrives = range(REDRIVES_MAX + 1) if redriven is None else [redriven]
    return [(name, count) for name in ids for count in redrives]


def _keys(subscription: str, asked: Sequence[tuple[str, int]]) -> list[bytes]:
    """Return the keys of messages, each an id with the number of its redrives."""
    found = parse_wanted(subscription) if "/" in subscription else as_source(subscription, "")
    return [key_of(str(found), dedup_id(*each)) for each in asked]


def _ask(url: str | None, timeout_s: float, ask: Callable[[Store], Awaitable[T]]) -> T:
    """Return a store's answer. Raises ConfigError, and ends in one line where it does not answer."""
    secret = Secret(url) if url else ConsumerConfig.from_env(os.environ).dedup
    if not secret.reveal():
        raise click.UsageError(f"which store? --store URL, or {VARIABLE}")

    async def use_store() -> T:
        store = open_store(secret)
        path = getattr(store, "path", None)
        if (
            path is not None and not path.exists()
        ):  # it would be made, and know nothing of any message
            raise ConfigError(f"{path}: no such file")
        if isinstance(store, MemoryStore):
            raise click.UsageError("memory: only the process that has it knows what is in it")
        try:
            async with asyncio.timeout(timeout_s):
                return await ask(store)
        finally:
            await store.close()

    try:
        return asyncio.run(use_store())
    except TimeoutError:
        say(f"messagebus: the store did not answer within {timeout_s:g} s", err=True)
    except StoreAway as fault:
        say(f"messagebus: {printable(str(fault))}", err=True)
    sys.exit(Exit.SILENT)


def _described(_name: str, redriven: int, record: Record) -> str:
    again = f"after redrive {redriven}: " if redriven else ""
    told = [again + STATE_NAMES[record.state], f"remembered until {_second(record.expires_ms)}"]
    if record.lease_ms:
        told.append(f"claimed until {_second(record.lease_ms)}")
    if record.unended:
        told.append(f"{plural(record.unended, 'run')} without an end")
    return ", ".join(told)


def _row(name: str, redriven: int, record: Record) -> dict[str, Any]:
    return {
        "id": name,
        "redriven": redriven,
        "state": STATE_NAMES[record.state],
        "unended": record.unended,
        "lease": _second(record.lease_ms) if record.lease_ms else None,
        "expires": _second(record.expires_ms),
    }


def _second(ms: int) -> str:
    return iso(ms, "seconds") or "?"
