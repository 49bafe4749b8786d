"""`messagebus topics`: list topics and queues with what waits in them, and delete topics."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from messagebus._io.agents.subscriptions import topology
from messagebus.admin import directory
from messagebus.commands.exits import Exit
from messagebus.commands.options import bus_settings, confirm
from messagebus.destination import Queue, Subscription, Topic
from messagebus.observing.snapshot import Bus
from messagebus.observing.totals import total, uncounted
from messagebus.terminal import say
from messagebus.tools.subscriptions import (
    as_json_option,
    as_operator,
    names_argument,
    tell_deleted,
    token_option,
    yes_option,
)
from messagebus.tools.top import observed, sum_cells, table
from messagebus.topology import Wanted


@click.group(short_help="List topics and queues with their waiting messages; delete topics.")
def topics() -> None:
    """List topics and queues with the sums of their subscriptions; delete topics without any.

    \b
    Example:
      messagebus topics list
      messagebus topics delete orders --token-file /etc/messagebus/token
    """


@topics.command("list", short_help="Print the waiting messages of each topic and queue.")
@as_json_option
def list_topics(as_json: bool) -> int:
    """Print every topic and queue: its subscriptions, what waits in them, and the oldest message.

    MQTT: whether MQTT clients publish to it, too. Sums are of the brokers that answer; exit code 3 when one
    is not counted.

    \b
    Example:
      messagebus topics list
    """
    settings = bus_settings()

    async def both() -> tuple[Bus, list[Wanted]]:
        return await observed(settings), await topology(settings)

    bus, known = asyncio.run(both())
    without = uncounted(bus)
    mqtt = {each.name: bool(each.mqtt) for each in known if isinstance(each, Topic)}
    sources = _sources_by_name(known)
    sums = {name: total(bus, own) for name, own in sources.items()}
    counts = {name: sum(each != name for each in own) for name, own in sources.items()}
    if as_json:
        told = {
            name: {**asdict(each), "subscriptions": counts[name], "mqtt": mqtt.get(name, False)}
            for name, each in sums.items()
        }
        click.echo(json.dumps({"topics": told, "without": without}, indent=2))
    else:
        figures_of = ("READY", "UNACKED", "OLDEST", "CONSUMERS", "PARKED")
        titles = ("NAME", "MQTT", "SUBSCRIPTIONS", *figures_of)
        nothing = ("",) * len(figures_of)  # nothing can wait where nobody subscribes
        cells = [
            (
                *(name, "on" if mqtt.get(name) else "", str(counts[name])),
                *((*figures[1:4], *figures[6:]) if sources[name] else nothing),
            )
            for name, each in sums.items()
            for figures in [sum_cells(name, each, exact=False)]
        ]
        for line in table(titles, cells, texts=2):
            say(line)
    for broker, why in without.items():
        say(f"not counted: {broker}: {why}", err=True)
    return Exit.PARTLY if without else Exit.DONE


@topics.command("delete", short_help="Delete topics without subscriptions on all brokers.")
@names_argument
@token_option
@yes_option
@as_json_option
def delete_topics(names: tuple[str, ...], token_file: Path | None, yes: bool, as_json: bool) -> int:
    """Delete the topics NAMES on all brokers. One with a subscription or a stream is refused.

    Brokers that are down are treated as by `messagebus subscriptions delete`. A client that
    declares the topic again creates it.

    \b
    Example:
      messagebus topics delete orders --token-file /etc/messagebus/token
    """
    settings, token = as_operator(token_file)
    confirm(f"Delete {', '.join(names)} on all brokers?", yes)
    done = directory.delete_topics(settings, names, token=token)
    return tell_deleted(names, done, as_json)


def _sources_by_name(
    known: Sequence[Wanted],
) -> dict[str, list[str]]:
    """Return the names of topics and queues, sorted, each with the subscriptions or the queue that it has."""
    found: dict[str, list[str]] = {}
    for each in known:
        match each:
            case Topic():
                found.setdefault(each.name, [])
            case Subscription():
                found.setdefault(each.topic.name, []).append(str(each))
            case Queue():
                found[str(each)] = [str(each)]
    return dict(sorted(found.items()))
