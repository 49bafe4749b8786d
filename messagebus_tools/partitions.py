"""The command `messagebus partitions show`: the homes of a topic's partitions, and what waits there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import click

from messagebus._io.agents.subscriptions import count, topology
from messagebus.admin.directory import brokers as listed_brokers
from messagebus.broker import BrokerList
from messagebus.commands.exits import Exit
from messagebus.commands.options import bus_settings
from messagebus.config import BusConfig
from messagebus.core.homes import read_homes, segment_of
from messagebus.destination import Topic
from messagebus.errors import NotFound
from messagebus.terminal import say
from messagebus_tools.top import table

__all__ = ["Row", "partitions", "rows_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One partition. waiting: subscription -> ready messages; fault: why its home does not say, or ""."""

    partition: int
    home: str
    epoch: int
    waiting: Mapping[str, int]
    fault: str


async def rows_of(bus: BusConfig, brokers: BrokerList, name: str) -> list[Row]:
    """Return the partitions of a topic, or of one of its subscriptions.

    Raises NotFound for a name without partitions, TopologyError, LoginRefused.
    """
    topic_name, _, only = name.partition("/")
    known = [each for each in await topology(bus) if isinstance(each, Topic)]
    topic = next((each for each in known if each.name == topic_name), None)
    if topic is None or not topic.partitions:
        raise NotFound(f"there is no topic {topic_name} with partitions")
    found = await count(bus, brokers)
    waiting: dict[tuple[str, str], dict[str, int]] = {}
    for each in found.counts:
        of, _, subscription = each.name.partition("/")
        if of == topic_name and only in ("", subscription):
            for segment, ready in each.segments.items():
                waiting.setdefault((each.broker, segment), {})[subscription] = ready
    return [
        Row(
            partition=partition,
            home=home.broker,
            epoch=home.epoch,
            waiting=waiting.get((home.broker, segment_of(partition, home)), {}),
            fault=found.unanswered.get(home.broker, "")
            or ("" if home.broker in found.answered else "its home is not on the list"),
        )
        for partition, home in enumerate(read_homes(topic.homes, topic.partitions))
    ]


@click.group(short_help="Show the homes of a topic's partitions.")
def partitions() -> None:
    """Look at the partitions of a topic. Their homes stay: no command moves them.

    For other homes make a topic of another name, and read one after the other.

    \b
    Example:
      messagebus partitions show orders
    """


@partitions.command("show", short_help="Print the home of each partition, and what waits there.")
@click.argument("name", metavar="TOPIC[/SUBSCRIPTION]")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def show(name: str, as_json: bool) -> int:
    """Print the home of each partition of TOPIC, and what waits there for each subscription.

    Exit code 3 when a home does not answer: its partitions wait for it.

    \b
    Example:
      messagebus partitions show orders/billing
    """
    settings = bus_settings()
    rows = asyncio.run(rows_of(settings, listed_brokers(settings), name))
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        cells = [
            (
                str(row.partition),
                row.home,
                str(row.epoch),
                row.fault
                or " ".join(f"{name}={ready}" for name, ready in sorted(row.waiting.items())),
            )
            for row in rows
        ]
        for line in table(("PARTITION", "HOME", "EPOCH", "WAITING"), cells, texts=4):
            say(line)
    return Exit.PARTLY if any(row.fault for row in rows) else Exit.DONE
