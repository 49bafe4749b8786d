"""The command `messagebus`. Commands that are not here are in `messagebus.commands`.

Settings come from the environment (MESSAGEBUS_BROKER, MESSAGEBUS_LIST_URL, MESSAGEBUS_USER,
MESSAGEBUS_PASSWORD or MESSAGEBUS_PASSWORD_FILE, ...: docs/howto/settings.md). Errors are one line on
standard error; exit codes are those of `messagebus.commands.exits`.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Mapping, Sized
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from messagebus.commands.exits import Exit, Program, beside
from messagebus.commands.options import (
    NumberRange,
    apply_profile,
    bus_settings,
    confirm,
    durability_option,
)
from messagebus.secret import Secret
from messagebus.stats import Durability
from messagebus.terminal import say

if TYPE_CHECKING:
    from messagebus.config import BusConfig
    from messagebus.topology import Wanted

__all__ = ["main"]

# `--help` imports no client: modules that do are imported where they are used.
DECLARE_TIMEOUT_S = 30.0
TOKEN_SETTING = "MESSAGEBUS_TOKEN_FILE"
BROKER_SETTING = "MESSAGEBUS_BROKER"


def main() -> NoReturn:
    """Run a command; print every expected error as one line and return its exit code."""
    if BROKER_SETTING not in os.environ:
        cli.hint = f" ({BROKER_SETTING} is not set)"
    cli.main()


# Command -> where it is, and its line in the help.
LATER = {
    "consume": ("flow:consume", "Print the messages of TOPIC, one a line, and ack them."),
    "dedup": ("messagebus_tools.dedup:group", "Look at, or forget, what deduplication remembers."),
    "doctor": (
        "messagebus_tools.doctor:doctor",
        "Look for what is wrong between this host and the bus.",
    ),
    "from-file": ("messagebus_tools.archive:from_file", "Publish the messages of archived files."),
    "outbox": ("outbox:group", "Relay a database's outbox; see what waits or was parked."),
    "parked": ("messagebus_tools.parked:group", "List, read, put back or drop what was given up."),
    "partitions": (
        "messagebus_tools.partitions:partitions",
        "Show the homes of a topic's partitions.",
    ),
    "publish": ("flow:publish", "Publish FILE to TOPIC and wait for the confirms."),
    "replay": ("messagebus_tools.replay:replay", "Read TOPIC's messages again from its streams."),
    "spool": (
        "messagebus_tools.spool:group",
        "Count, show, send or drop what waits on this host's disk.",
    ),
    "tail": ("messagebus_tools.tail:tail", "Look at new messages of TOPIC and take none."),
    "to-file": (
        "messagebus_tools.archive:to_file",
        "Write the messages of TOPIC to files and ack them.",
    ),
    "to-http": (
        "messagebus_tools.webhook:to_http",
        "Post each message of TOPIC to a URL and ack it.",
    ),
    "top": ("messagebus_tools.top:top", "Show brokers, subscriptions and what is wrong, live."),
    "topics": ("messagebus_tools.top:topics", "List topics and queues, and what waits for whom."),
    "trace": (
        "messagebus_tools.trace:trace_command",
        "Tell where a message is, and how that is known.",
    ),
    "worker": ("worker:worker", "Run the handlers of MODULE:APP until SIGTERM or SIGINT."),
}


@click.group("messagebus", cls=Program, later=LATER)
@click.option("-v", "--verbose", is_flag=True, help="Tell what happens to links and lists.")
@click.option("--profile", help="Settings of ~/.config/messagebus/PROFILE.toml.")
def cli(verbose: bool, profile: str | None) -> None:
    """Publish to any RabbitMQ broker, consume from all of them.

    \b
    Example:
      messagebus declare orders orders/billing
      echo hello | messagebus publish orders -
      messagebus consume orders --subscription billing --count 1
    """
    logging.basicConfig(
        level=logging.INFO if verbose else logging.CRITICAL,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    from messagebus._io.amqp_wire import namesake

    if told := namesake():
        say(f"messagebus: {told}", err=True)
    if profile is not None:
        apply_profile(profile)


# Declare, brokers.
@cli.command(short_help="Make topics, subscriptions and queues exist.")
@click.argument("wanted", nargs=-1, required=True)
@click.option(
    "--timeout-s",
    type=NumberRange(min=0.1),
    default=DECLARE_TIMEOUT_S,
    show_default=True,
    help="How long to go on asking until all brokers have it.",
)
@click.option(
    "--delivery-limit",
    type=click.IntRange(min=1),
    help="Of subscriptions and queues: what comes back unanswered more often is parked.",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1, max=1024),
    help="Of topics: keep the order of each key through every change of brokers; for ever.",
)
@durability_option
def declare(
    wanted: tuple[str, ...],
    timeout_s: float,
    delivery_limit: int | None,
    partitions: int | None,
    durability: str,
) -> int:
    """Make topics, subscriptions and queues exist on every broker, settled.

    An existing one with another durability, or delivery limit, is an error that shows both.

    \b
    Example:
      messagebus declare orders orders/billing queue:jobs
      messagebus declare --durability page-cache clicks clicks/counted
    """
    from messagebus.admin import directory
    from messagebus.topology import with_options

    level = Durability(durability)
    options = {} if level is Durability.FSYNC else {"durability": level.value}
    parts = {"partitions": partitions} if partitions else {}
    asked = [
        _limited(with_options(each, options | ({} if _is_below(each) else parts)), delivery_limit)
        for each in wanted
    ]
    done = directory.declare(bus_settings(), asked, timeout_s=timeout_s)
    later = f"; later, before they take publishes: {', '.join(done.later)}" if done.later else ""
    say(f"declared {' '.join(wanted)} on {', '.join(done.held)}{later}")
    return 0


def _is_below(name: str) -> bool:
    """Return whether a name is no topic's."""
    return "/" in name or name.startswith(("queue:", "stream:"))


def _limited(wanted: Wanted, delivery_limit: int | None) -> Wanted:
    from messagebus.destination import Queue, Subscription

    if delivery_limit is None or not isinstance(wanted, Subscription | Queue):
        return wanted
    return replace(wanted, delivery_limit=delivery_limit)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def brokers(as_json: bool) -> int:
    """Print the brokers that consumers consume from.

    \b
    Example:
      messagebus brokers --json
    """
    from messagebus.admin import directory

    bus = bus_settings()
    directory.reach(bus)
    found = directory.brokers(bus)
    if as_json:
        begin = "https://" if bus.tls else "http://"
        rows = [
            {"broker": e.broker.name, "draining": e.draining, "agent": begin + e.agent_address}
            for e in found
        ]
        told = {"cluster": found.cluster, "generation": found.generation, "brokers": rows}
        click.echo(json.dumps(told, indent=2))
        return 0
    say(f"cluster {found.cluster or '-'}  generation {found.generation}")
    for entry in found:
        say(f"{entry.broker.name:<24}{'draining' if entry.draining else 'consumed from'}")
    return 0


# Subscriptions.
@cli.group(short_help="List, delete or purge subscriptions and queues.")
def subscriptions() -> None:
    """List, delete or purge subscriptions and queues, on all brokers.

    \b
    Example:
      messagebus subscriptions list
      messagebus subscriptions delete orders/billing --token-file /etc/messagebus/token
    """


_as_json_option = click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")
_token_option = click.option(
    "--token-file",
    envvar=TOKEN_SETTING,
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help=f"File with the operators' token; {TOKEN_SETTING}.",
)
_names_argument = click.argument("names", nargs=-1, required=True)


@subscriptions.command("list")
@_as_json_option
def list_subscriptions(as_json: bool) -> int:
    """Print the message counts of subscriptions and queues, by broker.

    READY messages wait, UNACKED are delivered and not answered, OLDEST is the age of the oldest (both may
    be some seconds old; "?": the broker does not say, or messagebus-tools is not installed). Exit code 3
    when a broker does not answer.

    \b
    Example:
      messagebus subscriptions list --json
    """
    from messagebus.admin import directory

    settings = bus_settings()
    found = directory.count_subscriptions(settings)
    if as_json:
        rows = [asdict(each) for each in found.counts]
        told = {"subscriptions": rows, "unanswered": dict(found.unanswered)}
        click.echo(json.dumps(told, indent=2))
    else:
        widths = [
            max([len(title), *(len(getattr(each, title.lower())) for each in found.counts)])
            for title in ("NAME", "BROKER")
        ]
        say(_row(widths, "NAME", "BROKER", "READY", "UNACKED", "CONSUMERS", "OLDEST"))
        ages = _ages(settings)
        for each in found.counts:
            unacked = "?" if each.unacked is None else each.unacked
            age = ages.get((each.broker, each.name), "?")
            say(_row(widths, each.name, each.broker, each.ready, unacked, each.consumers, age))
    return _tell_unanswered(found.unanswered, found.answered)


def _ages(settings: BusConfig) -> Mapping[tuple[str, str], str]:
    """Return broker and name -> age of the oldest message; nothing without messagebus-tools."""
    import asyncio

    try:
        top = importlib.import_module("messagebus_tools.top")
    except ModuleNotFoundError:
        return {}
    return {
        key: top.oldest(age)
        for key, age in top.ages_ms(asyncio.run(top.observed(settings))).items()
    }


def _row(widths: list[int], name: str, broker: str, *figures: object) -> str:
    return f"{name:<{widths[0]}}  {broker:<{widths[1]}}" + "".join(f"{f!s:>11}" for f in figures)


@subscriptions.command("delete", short_help="Delete NAMES on all brokers, with their messages.")
@_names_argument
@_token_option
@_yes_option
@_as_json_option
def delete_subscriptions(names: tuple[str, ...], token_file: Path, yes: bool, as_json: bool) -> int:
    """Delete NAMES (TOPIC/SUBSCRIPTION or queue:NAME) on all brokers, with their messages.

    A broker that is down deletes them when it is back, before it takes publishes; it is named, and the
    exit code is 3. So is one whose agent does not answer: ask again.

    \b
    Example:
      messagebus subscriptions delete orders/billing --token-file /etc/messagebus/token --yes
    """
    from messagebus.admin import directory

    token = _token(token_file)
    confirm(f"Delete {', '.join(names)} on all brokers, with all that waits in them?", yes)
    done = directory.delete_subscriptions(bus_settings(), names, token=token)
    later = dict.fromkeys(done.later, "deletes it when it is back")
    if as_json:
        told = {"held": done.held, "later": done.later, "missing": dict(done.missing)}
        click.echo(json.dumps({"complete": done.complete, **told}, indent=2))
    elif done.held:
        say(f"deleted {' '.join(names)} on {', '.join(done.held)}")
    return _tell_unanswered(later | dict(done.missing), done.held)


@subscriptions.command("purge", short_help="Drop what waits in NAMES now, on all brokers.")
@_names_argument
@_token_option
@_yes_option
@_as_json_option
def purge_subscriptions(names: tuple[str, ...], token_file: Path, yes: bool, as_json: bool) -> int:
    """Drop the waiting messages of NAMES, on all brokers; those delivered and not answered stay.

    A broker that does not answer is named, keeps its messages, and the exit code is 3.

    \b
    Example:
      messagebus subscriptions purge orders/billing queue:jobs --token-file /etc/messagebus/token --yes
    """
    from messagebus.admin import directory

    token = _token(token_file)
    confirm(f"Drop all that waits in {', '.join(names)} on all brokers?", yes)
    done = directory.purge_subscriptions(bus_settings(), names, token=token)
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


def _token(path: Path) -> Secret:
    try:
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as fault:
        raise click.UsageError(f"--token-file {path}: {fault}") from fault
    if not text:
        raise click.UsageError(f"--token-file {path}: empty")
    return Secret(text)


def _tell_unanswered(unanswered: Mapping[str, str], answered: Sized) -> int:
    for broker, why in sorted(unanswered.items()):
        say(f"messagebus: {broker} did not answer: {' '.join(why.split())}", err=True)
    if unanswered:
        return Exit.PARTLY if answered else Exit.SILENT
    return Exit.DONE


# Agent, a distribution of its own.
@cli.command(short_help="Serve the list, topology and health of one broker.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File with its settings, in TOML.",
)
def agent(config: Path) -> int:
    """Serve the list, own the topology and tell the health of the broker on this node.

    \b
    Example:
      messagebus agent --config /etc/messagebus/agent.toml
    """
    return int(beside("messagebus_agent", "the agent").run(config))


# Monitor.
@cli.command(short_help="Serve one live page about all brokers.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with its settings, in TOML. Without it: the bus's own, read only, on this host alone.",
)
@click.option(
    "--hash-password",
    is_flag=True,
    help="Read a password and print what stands for it in the file.",
)
@click.option("--listen", metavar="HOST:PORT", help="Address of the page; default 127.0.0.1:8085.")
def monitor(config: Path | None, hash_password: bool, listen: str | None) -> int:
    """Serve one live page about all brokers: what needs attention, what waits, who consumes.

    \b
    Example:
      messagebus monitor
      messagebus monitor --config /etc/messagebus/monitor.toml
    """
    page = beside("messagebus_monitor", "the monitor")
    if hash_password:
        click.echo(page.hash_password(click.prompt("Password", hide_input=True, err=True)))
        return Exit.DONE
    return int(page.run(config, listen=listen))


# Gateway, a distribution of its own.
@cli.command(short_help="Serve HTTP to programs without AMQP.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File with its settings, in TOML.",
)
def gateway(config: Path) -> int:
    """Serve HTTP to programs without AMQP: publish, pull with leases, streams, webhooks.

    \b
    Example:
      messagebus gateway --config /etc/messagebus/gateway.toml
    """
    served = beside("messagebus_gateway.service", "the gateway")
    return int(served.serve_file(config))


# The conformance kit, a distribution of its own.
class _Unread(click.Command):
    """Command that hands on its words as they are, the -- among them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] in ctx.help_option_names:
            return super().parse_args(ctx, args)
        ctx.params["args"] = tuple(args)
        return []


@cli.command(cls=_Unread, short_help="Judge a client of another language.")
@click.argument("args", nargs=-1, required=True)
def conform(args: tuple[str, ...]) -> int:
    """Judge a client of any language by the cases of docs/conformance.md.

    ARGS: options of `python -m messagebus_conform`, then -- and the command of the client.

    \b
    Example:
      messagebus conform -- ./my-client
      messagebus conform --case 2 --json -- node conform.js
    """
    kit = beside("messagebus_conform.cli", "the kit").conform
    return int(kit.main(list(args), prog_name="messagebus conform", standalone_mode=False))


if __name__ == "__main__":
    main()
