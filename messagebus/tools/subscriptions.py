"""`messagebus subscriptions`: list, delete and purge subscriptions and queues on all brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence, Sized
from dataclasses import asdict
from pathlib import Path

import click

from messagebus import Registration
from messagebus.admin import directory
from messagebus.commands.exits import Exit
from messagebus.commands.options import bus_settings, confirm
from messagebus.config import BusConfig, with_agents
from messagebus.errors import one_line
from messagebus.observing.totals import SOURCES, at_least, counted
from messagebus.secret import Secret
from messagebus.terminal import say
from messagebus.tools import top

TOKEN_SETTING = "MESSAGEBUS_TOKEN_FILE"


@click.group(short_help="List, delete or purge subscriptions and queues.")
def subscriptions() -> None:
    """List, delete or purge subscriptions and queues, on all brokers.

    \b
    Example:
      messagebus subscriptions list
      messagebus subscriptions delete orders/billing --token-file /etc/messagebus/token
    """


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
token_option = click.option(
    "--token-file",
    envvar=TOKEN_SETTING,
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"File with the operators' token; {TOKEN_SETTING}.",
)
names_argument = click.argument("names", nargs=-1, required=True)


@subscriptions.command("list")
@as_json_option
def list_subscriptions(as_json: bool) -> int:
    """Print the message counts of subscriptions and queues, by broker.

    READY: messages that wait. UNACKED: messages that were delivered and not answered. OLDEST: age of the
    oldest message. UNACKED and OLDEST may be some seconds old; "?" is an unknown value. `python -m
    consumer_lists show` names the processes that read each subscription. Exit code 3: a broker does not
    answer.

    \b
    Example:
      messagebus subscriptions list --json
    """
    settings = bus_settings()
    found = directory.count_subscriptions(settings)
    if as_json:
        rows = [asdict(each) for each in found.counts]
        told = {"subscriptions": rows, "unanswered": dict(found.unanswered)}
        click.echo(json.dumps(told, indent=2))
    else:
        ages = _ages(settings)
        cells = [
            (
                *(each.name, each.broker, str(each.ready)),
                *("?" if each.unacked is None else str(each.unacked), str(each.consumers)),
                ages.get((each.broker, each.name), "?"),
            )
            for each in found.counts
        ]
        titles = ("NAME", "BROKER", "READY", "UNACKED", "CONSUMERS", "OLDEST")
        for line in top.table(titles, cells, texts=2):
            say(line)
    missing = {broker: f"{why}; its counts are missing" for broker, why in found.unanswered.items()}
    return _tell_unanswered(missing, found.answered)


def _ages(settings: BusConfig) -> Mapping[tuple[str, str], str]:
    """Return broker and name -> age of the oldest message."""
    seen = asyncio.run(top.observed(settings))
    return {
        (broker, row.name): at_least(
            row.oldest_ms(seen.at_ms), row.oldest_is_least, lambda age_ms: top.oldest(int(age_ms))
        )
        for broker, answer in counted(seen).items()
        for row in answer.rows.values()
        if row.kind in SOURCES
    }


@subscriptions.command("delete", short_help="Delete NAMES on all brokers, with their messages.")
@names_argument
@token_option
@yes_option
@as_json_option
def delete_subscriptions(
    names: tuple[str, ...], token_file: Path | None, yes: bool, as_json: bool
) -> int:
    """Delete NAMES (TOPIC/SUBSCRIPTION or queue:NAME) on all brokers, with their messages.

    A broker that is down deletes them when it is back, before it takes publishes. The command names such
    brokers, and ends with code 3. It also names brokers whose agent does not answer: for these, repeat the
    command.

    \b
    Example:
      messagebus subscriptions delete orders/billing --token-file /etc/messagebus/token --yes
    """
    settings, token = as_operator(token_file)
    confirm(f"Delete {', '.join(names)} on all brokers, with all that waits in them?", yes)
    done = directory.delete_subscriptions(settings, names, token=token)
    return tell_deleted(names, done, as_json)


def tell_deleted(names: Sequence[str], done: Registration, as_json: bool) -> int:
    later = dict.fromkeys(done.later, "deletes it when it is back")
    if as_json:
        told = {"held": done.held, "later": done.later, "missing": dict(done.missing)}
        click.echo(json.dumps({"complete": done.complete, **told}, indent=2))
    elif done.held:
        say(f"deleted {' '.join(names)} on {', '.join(done.held)}")
    return _tell_unanswered(later | dict(done.missing), done.held)


@subscriptions.command(
    "purge", short_help="Drop the messages that wait in NAMES now, on all brokers."
)
@names_argument
@token_option
@yes_option
@as_json_option
def purge_subscriptions(
    names: tuple[str, ...], token_file: Path | None, yes: bool, as_json: bool
) -> int:
    """Drop the waiting messages of NAMES, on all brokers; those delivered and not answered stay.

    A broker that does not answer is named, keeps its messages, and the exit code is 3.

    \b
    Example:
      messagebus subscriptions purge orders/billing queue:jobs --token-file /etc/messagebus/token --yes
    """
    settings, token = as_operator(token_file)
    confirm(f"Drop all messages that wait in {', '.join(names)} on all brokers?", yes)
    done = directory.purge_subscriptions(settings, names, token=token)
    if as_json:
        told = {"dropped": {b: dict(each) for b, each in done.dropped.items()}}
        click.echo(json.dumps({**told, "unanswered": dict(done.unanswered)}, indent=2))
    else:
        for broker, counts in sorted(done.dropped.items()):
            for name, count in counts.items():
                say(f"dropped {count} of {name} on {broker}")
    unknown = [name for name in names if not any(name in each for each in done.dropped.values())]
    if unknown and done.dropped:
        say(f"messagebus: no broker has {', '.join(unknown)}", err=True)
    code = _tell_unanswered(done.unanswered, done.dropped)
    if unknown and code == Exit.DONE:
        return Exit.ABSENT if len(unknown) == len(names) else Exit.PARTLY
    return code


def as_operator(token_file: Path | None) -> tuple[BusConfig, Secret]:
    """Return the settings of a bus with agents, and the operators' token.

    Raises ConfigError without agents, which have the token, and UsageError.
    """
    settings = with_agents(bus_settings())
    if token_file is None:
        raise click.UsageError(f"Missing option '--token-file' ({TOKEN_SETTING}).")
    return settings, _token_of(token_file)


def _token_of(path: Path) -> Secret:
    """Read the operators' token. Raises UsageError."""
    try:
        text = path.read_text().strip()
    except OSError as fault:
        raise click.UsageError(f"--token-file {path}: {fault.strerror}") from fault
    except UnicodeDecodeError:  # which would show a byte
        raise click.UsageError(f"--token-file {path}: not UTF-8") from None
    if not text:
        raise click.UsageError(f"--token-file {path}: empty")
    return Secret(text)


def _tell_unanswered(unanswered: Mapping[str, str], answered: Sized) -> int:
    for broker, why in sorted(unanswered.items()):
        say(f"messagebus: {broker} did not answer: {one_line(why)}", err=True)
    if unanswered:
        return Exit.PARTLY if answered else Exit.SILENT
    return Exit.DONE
