"""`messagebus spool`: count, show, send and drop what lies in a disk spool."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click

from messagebus._io.publish.spool.records import name_of
from messagebus.admin import spool
from messagebus.commands.exits import Exit
from messagebus.commands.options import NumberRange, bus_settings, confirm, iso
from messagebus.config import PublisherConfig, Spool
from messagebus.outbox.rows import plain
from messagebus.terminal import Progress, escaped, plural, printable, say

BODY_CHARS_MAX = 100
POLL_S = 0.1


@click.group("spool", short_help="Count, show, send or drop spooled messages of this host.")
def group() -> None:
    """Count, show, send or drop what publishers left in a disk spool on this host (docs/guides/spool.md).

    PATH: the folder; without it that of MESSAGEBUS_PUBLISHER_SPOOL.

    \b
    Example:
      messagebus spool status /var/spool/shop
      messagebus spool show /var/spool/shop --limit 5
      messagebus spool replay /var/spool/shop
    """


def _folder(given: Path | None) -> Path:
    if given is not None:
        return given
    configured = PublisherConfig.from_env(os.environ).spool
    if configured is None:
        raise click.UsageError("PATH, or MESSAGEBUS_PUBLISHER_SPOOL")
    return Path(configured.path)


_path = click.argument("path", required=False, type=click.Path(path_type=Path))
_as_json = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
_destination = click.option(
    "--destination", metavar="NAME", help="Only messages to it: orders, queue:jobs."
)
_id = click.option("--id", "message_id", metavar="ID", help="Only this message.")


def _which(
    destination: str | None, message_id: str | None
) -> Callable[[spool.SpooledMessage], bool]:
    def is_meant(spooled: spool.SpooledMessage) -> bool:
        named = destination is None or spooled.destination.partition(" ")[0] == destination
        return named and message_id in (None, spooled.message.message_id)

    return is_meant


@group.command("status", short_help="Print its waiting messages and damaged files.")
@_path
@_as_json
def status(path: Path | None, as_json: bool) -> int:
    """Print how many messages wait in the spool PATH, and whether anything of it is damaged.

    One line for each publisher's sub-folder and destination. Nothing is changed. Exit code 7 when something
    is damaged or was put aside as damaged.

    \b
    Example:
      messagebus spool status /var/spool/shop --json
    """
    found = spool.spool_status(_folder(path))
    if as_json:
        rows = [
            {
                "path": str(each.path),
                "bus": each.bus,
                "in_use": each.in_use,
                "messages": each.messages,
                "bytes": each.bytes,
                "oldest_s": round(each.oldest_s, 1),
                "destinations": each.destinations,
                "faults": each.faults,
                "put_aside": each.put_aside,
            }
            for each in found
        ]
        click.echo(json.dumps(rows, indent=2))
    else:
        for each in found:
            user = "in use" if each.in_use else "left behind"
            oldest = f", the oldest {each.oldest_s:.0f} s old" if each.messages else ""
            say(
                f"{each.path}  {user}: {plural(each.messages, 'message')}, {each.bytes} bytes{oldest};"
                f" {each.bus or 'of any bus'}"
            )
            for name, count in sorted(each.destinations.items()):
                say(f"  {count:>9}  {name}")
        if not any(each.messages for each in found):
            say("nothing waits", err=True)
        for each in found:
            for fault in each.faults:
                say(f"messagebus: {each.path}: {fault}", err=True)
            for name in each.put_aside:
                say(f"messagebus: {each.path}: {name} was put aside as damaged", err=True)
    return Exit.FOUND if any(each.faults or each.put_aside for each in found) else Exit.DONE


@group.command("show", short_help="Print its waiting messages; they stay.")
@_path
@_destination
@_id
@click.option("--limit", type=click.IntRange(min=1), help="At most this many messages.")
@_as_json
def show(
    path: Path | None,
    destination: str | None,
    message_id: str | None,
    limit: int | None,
    as_json: bool,
) -> int:
    """Print the messages that wait in the spool PATH, in the order in which they are sent; they stay.

    --json prints a line of JSON for each, with its properties, and the body in base64: an export.
    Bytes in headers are {"$bytes": "00ff"}.

    \b
    Example:
      messagebus spool show /var/spool/shop --destination orders --json > orders.jsonl
    """
    is_meant, count = _which(destination, message_id), 0
    for each in spool.read_spool(_folder(path)):
        if not is_meant(each):
            continue
        click.echo(_json_line(each) if as_json else _line(each))
        count += 1
        if count == limit:
            break
    say(f"{count} shown", err=True)
    return Exit.DONE


def _line(spooled: spool.SpooledMessage) -> str:
    message = spooled.message
    body = escaped(message.body[: 4 * BODY_CHARS_MAX].decode("utf-8", "replace"), BODY_CHARS_MAX)
    return (
        f"{iso(spooled.accepted_ms)}  {printable(message.message_id)}  {printable(spooled.destination)}"
        f"  {len(message.body)} bytes  {body}"
    )


def _json_line(spooled: spool.SpooledMessage) -> str:
    message = spooled.message
    row = {
        "accepted": iso(spooled.accepted_ms),
        "destination": spooled.destination,
        "message_id": message.message_id,
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "type": message.type,
        "key": message.key,
        "priority": message.priority,
        "correlation_id": message.correlation_id,
        "reply_to": message.reply_to,
        "app_id": message.app_id,
        "ttl_s": message.ttl_s,
        "headers": plain(message.headers),
        "body_base64": base64.b64encode(message.body).decode(),
    }
    return json.dumps(row)


@group.command("replay", short_help="Send what processes that ended have left in it.")
@_path
@click.option(
    "--timeout-s",
    type=NumberRange(min=0),
    default=60.0,
    show_default=True,
    help="Stop then; what is left stays in the spool.",
)
def replay(path: Path | None, timeout_s: float) -> int:
    """Send what processes that ended have left in the spool PATH to the bus of the environment.

    Each message leaves the spool after a broker's confirm. Publishers that use the folder do the same by
    themselves. What was spooled for another bus stays, and is named. Exit code 3 when some is left, 6 when no
    broker takes anything.

    \b
    Example:
      MESSAGEBUS_BROKER=127.0.0.10:5672 messagebus spool replay /var/spool/shop
    """
    from messagebus.publisher import Publisher

    folder = _folder(path)
    spool.spool_status(folder)  # it must be there
    config = PublisherConfig.from_env(os.environ)
    about = Spool(folder) if config.spool is None else replace(config.spool, path=folder)
    until = time.monotonic() + timeout_s
    bus = bus_settings()
    with Publisher(bus, config, spool=about) as publisher, Progress("sent") as progress:
        publisher.flush(timeout_s)
        while (stats := publisher.stats()).spool_messages and time.monotonic() < until:
            progress.total = stats.replayed + stats.spool_messages
            progress.at(stats.replayed)
            time.sleep(POLL_S)
        stats = publisher.stats()
    left = f", {stats.spool_messages} left" if stats.spool_messages else ""
    say(f"sent {plural(stats.replayed, 'message')}{left}", err=True)
    if stats.spool_failures:
        say(f"messagebus: brokers refused {plural(stats.spool_failures, 'send')}", err=True)
    ours = ("", name_of(bus))
    stays = [each for each in spool.spool_status(folder) if each.messages and each.bus not in ours]
    for each in stays:
        say(f"messagebus: {each.path} stays: it is for {each.bus}", err=True)
    if not stats.spool_messages:
        return Exit.PARTLY if stays else Exit.DONE
    return Exit.PARTLY if stats.replayed or stats.broker else Exit.SILENT


@group.command("drop", short_help="Drop its waiting messages permanently.")
@_path
@_destination
@_id
@click.option("--all", "everything", is_flag=True, help="All messages that wait.")
@click.option("--dry-run", is_flag=True, help="Only count the messages that match.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(
    path: Path | None,
    destination: str | None,
    message_id: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Drop messages that wait in the spool PATH, for good: --all, or those of a destination or with an id.

    Sub-folders of living processes are left alone: stop these first. Exit code 3 when there was one.

    \b
    Example:
      messagebus spool drop /var/spool/shop --id 5f1c9d2e8a7b4c3d9e0f1a2b3c4d5e6f
    """
    if everything == bool(destination or message_id):
        raise click.UsageError("--all, or --destination or --id")
    folder, is_meant = _folder(path), _which(destination, message_id)

    def question() -> str:
        count = spool.drop_spooled(folder, is_meant, dry_run=True).messages
        return f"drop {plural(count, 'message')} for good?"

    confirm(question, dry_run or yes)
    done = spool.drop_spooled(folder, is_meant, dry_run=dry_run)
    say(f"{'would drop' if dry_run else 'dropped'} {plural(done.messages, 'message')}", err=True)
    for each in done.in_use:
        say(f"messagebus: {each} is in use and was left alone", err=True)
    return Exit.PARTLY if done.in_use else Exit.DONE
