"""The command `messagebus`. Commands that are not here are in `messagebus.commands`.

Settings come from the environment (MESSAGEBUS_BROKER, MESSAGEBUS_LIST_URL, MESSAGEBUS_USER,
MESSAGEBUS_PASSWORD or MESSAGEBUS_PASSWORD_FILE, ...: docs/reference/settings.md). Errors are one line on
standard error; exit codes are those of `messagebus.commands.exits`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from messagebus.commands.exits import Exit, Program, with_extra
from messagebus.commands.options import (
    Duration,
    NumberRange,
    apply_profile,
    bus_settings,
    durability_option,
    log_option,
    log_to_stderr,
    refuse_typed,
)
from messagebus.stats import Durability
from messagebus.terminal import say

if TYPE_CHECKING:
    from messagebus.topology import Options, Wanted

__all__ = ["main"]

# `--help` imports no client: modules that do are imported where they are used.
DECLARE_TIMEOUT_S = 30.0
BROKER_SETTING = "MESSAGEBUS_BROKER"


def main() -> NoReturn:
    """Run a command; print every expected error as one line and return its exit code."""
    if BROKER_SETTING not in os.environ:
        cli.hint = f" ({BROKER_SETTING} is not set: localhost:5672)"
    cli.main()


# Command -> where it is, and its line in the help.
LATER = {
    "consume": (
        "messagebus.commands.flow:consume",
        "Print the messages of TOPIC, one a line, and ack them.",
    ),
    "dedup": ("messagebus.tools.dedup:group", "Show or delete records of deduplication."),
    "doctor": (
        "messagebus.tools.doctor:doctor",
        "Find problems between this host and the bus.",
    ),
    "explain": (
        "messagebus.commands.explain:explain",
        "Print cause and remedy of an error.",
    ),
    "forward": (
        "messagebus.tools.forward:forward",
        "Forward TOPICS to another bus, at least once.",
    ),
    "from-file": ("messagebus.tools.archive:from_file", "Publish the messages of archived files."),
    "migrate": ("messagebus.tools.migrate:migrate", "Move from another RabbitMQ, and back."),
    "outbox": (
        "messagebus.commands.outbox:group",
        "Relay a database's outbox; list waiting or parked rows.",
    ),
    "parked": ("messagebus.tools.parked:group", "List, read, redrive or drop parked messages."),
    "partitions": (
        "messagebus.tools.partitions:partitions",
        "Show the homes of a topic's partitions, and move them.",
    ),
    "publish": (
        "messagebus.commands.flow:publish",
        "Publish FILE to TOPIC and wait for the confirms.",
    ),
    "replay": ("messagebus.tools.replay:replay", "Read TOPIC's messages again from its streams."),
    "spool": (
        "messagebus.tools.spool:group",
        "Count, show, send or drop spooled messages of this host.",
    ),
    "subscriptions": (
        "messagebus.tools.subscriptions:subscriptions",
        "List, delete or purge subscriptions and queues.",
    ),
    "tail": ("messagebus.tools.tail:tail", "Show new messages of TOPIC without consuming them."),
    "to-file": (
        "messagebus.tools.archive:to_file",
        "Write the messages of TOPIC to files and ack them.",
    ),
    "to-http": (
        "messagebus.tools.webhook:to_http",
        "Post each message of TOPIC to a URL and ack it.",
    ),
    "top": ("messagebus.tools.top:top", "Show brokers, subscriptions and problems, live."),
    "topics": (
        "messagebus.tools.topics:topics",
        "List topics and queues with their waiting messages; delete topics.",
    ),
    "trace": (
        "messagebus.tools.trace:trace_command",
        "Find a message, with the evidence for it.",
    ),
    "worker": (
        "messagebus.commands.worker:worker",
        "Run the handlers of MODULE:APP until SIGTERM or SIGINT.",
    ),
}


@click.group("messagebus", cls=Program, later=LATER)
@click.option("-v", "--verbose", is_flag=True, help="Also log connections and consumer lists.")
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


@cli.command(short_help="Create topics, subscriptions and queues.")
@click.argument("wanted", nargs=-1, required=True)
@click.option(
    "--timeout-s",
    type=NumberRange(min=0.1),
    default=DECLARE_TIMEOUT_S,
    show_default=True,
    help="Seconds to keep trying until all brokers have it.",
)
@click.option(
    "--delivery-limit",
    type=click.IntRange(min=1),
    help="Of subscriptions and queues: park a message that returns unacked more often than this.",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1, max=1024),
    help="Of topics: keep the order of each key through every change of brokers. Permanent.",
)
@click.option(
    "--unordered",
    is_flag=True,
    help="Of subscriptions of a topic with partitions: any consumers, in no order.",
)
@click.option(
    "--ttl", type=Duration(), help="Of subscriptions: park a message that waits longer: 90s, 7d."
)
@click.option(
    "--deflate",
    is_flag=True,
    default=None,
    help="Of topics: batches are compressed; all consumers must read that. Permanent.",
)
@click.option("--mqtt/--no-mqtt", default=None, help="Of topics: MQTT clients publish to it, too.")
@durability_option
def declare(
    wanted: tuple[str, ...],
    timeout_s: float,
    delivery_limit: int | None,
    partitions: int | None,
    unordered: bool,
    ttl: float | None,
    deflate: bool | None,
    mqtt: bool | None,
    durability: str,
) -> int:
    """Create topics, subscriptions and queues on every broker, and wait until they survive a power failure.

    What exists is left as it is. If it has another durability or delivery limit, the command fails and shows
    both.

    \b
    Example:
      messagebus declare orders orders/billing queue:jobs
      messagebus declare --durability page-cache clicks clicks/counted
    """
    from messagebus.admin import directory
    from messagebus.destination import Queue, Subscription, Topic
    from messagebus.topology import with_options

    level = Durability(durability)
    options = {} if level is Durability.FSYNC else {"durability": level.value}
    of_topics = {"partitions": partitions, "mqtt": mqtt, "deflate": deflate}
    parts: Options = {key: each for key, each in of_topics.items() if each is not None}

    of_subscriptions: Options = {
        **({"ordered": False} if unordered else {}),
        **({} if ttl is None else {"ttl_s": math.ceil(ttl)}),
    }

    def own(name: str) -> Options:
        if "/" in name:
            return of_subscriptions
        return {} if name.startswith(("queue:", "stream:")) else parts

    asked = [
        _limited(with_options(each, {**options, **own(each)}), delivery_limit) for each in wanted
    ]
    kinds = {type(each) for each in asked}
    if Topic not in kinds:
        refuse_typed(*of_topics, why="only a topic has it, such as orders")
    if Subscription not in kinds:
        refuse_typed("unordered", "ttl", why="only a subscription has it, such as orders/billing")
    if not kinds & {Subscription, Queue}:
        refuse_typed("delivery_limit", why="only a subscription or a queue has it")
    done = directory.declare(bus_settings(), asked, timeout_s=timeout_s)
    later = f"; later, before they take publishes: {', '.join(done.later)}" if done.later else ""
    say(f"declared {' '.join(wanted)} on {', '.join(done.held)}{later}")
    if any(name.startswith("stream:") for name in wanted):
        say("a stream keeps no headers that are lists or tables: docs/guides/replay.md")
    return 0


def _limited(wanted: Wanted, delivery_limit: int | None) -> Wanted:
    from messagebus.destination import Queue, Subscription

    if delivery_limit is None or not isinstance(wanted, Subscription | Queue):
        return wanted
    return replace(wanted, delivery_limit=delivery_limit)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def brokers(as_json: bool) -> int:
    """Print the brokers of the consumer list.

    Whether they are up is not looked at: `messagebus top` shows that.

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
        say(f"{entry.broker.name:<24}{'draining' if entry.draining else 'listed'}")
    return 0


@cli.command(short_help="Serve the list, topology and health of one broker.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File with its settings, in TOML.",
)
@log_option
def agent(config: Path, form: str) -> int:
    """Serve the list, own the topology and tell the health of the broker on this node.

    \b
    Example:
      messagebus agent --config /etc/messagebus/agent.toml
    """
    with_extra("agent", "messagebus.services.agent.service")
    log_to_stderr(form)
    return int(import_module("messagebus.services.agent").run(config))


@cli.command(short_help="Serve one live page about all brokers.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with its settings, in TOML. Without it: the bus's own, read only, on this host alone.",
)
@click.option(
    "--hash-password",
    is_flag=True,
    help="Read a password and print its hash for the file.",
)
@click.option("--listen", metavar="HOST:PORT", help="Address of the page; default 127.0.0.1:8085.")
@log_option
def monitor(config: Path | None, hash_password: bool, listen: str | None, form: str) -> int:
    """Serve one live page about all brokers: what needs attention, what waits, who consumes.

    \b
    Example:
      messagebus monitor
      messagebus monitor --config /etc/messagebus/monitor.toml
    """
    page = with_extra("monitor", "messagebus.services.monitor")
    if hash_password:
        click.echo(page.hash_password(click.prompt("Password", hide_input=True, err=True)))
        return Exit.DONE
    log_to_stderr(form)
    return int(page.run(config, listen=listen))


@cli.command(short_help="Serve HTTP to programs without AMQP.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="File with its settings, in TOML.",
)
@log_option
def gateway(config: Path, form: str) -> int:
    """Serve HTTP to programs without AMQP: publish, pull with leases, streams, webhooks.

    \b
    Example:
      messagebus gateway --config /etc/messagebus/gateway.toml
    """
    served = with_extra("gateway", "messagebus.services.gateway.service")
    log_to_stderr(form)
    return int(served.serve_file(config))


if __name__ == "__main__":
    main()
