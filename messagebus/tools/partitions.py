"""`messagebus partitions`: the homes of a topic's partitions, what waits there, and moves of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from messagebus._io.agents.subscriptions import abandon, count, move, topology
from messagebus.admin.directory import brokers as listed_brokers
from messagebus.broker import Broker, BrokerList
from messagebus.commands.exits import Exit
from messagebus.commands.options import NumberRange, bus_settings, confirm
from messagebus.config import BusConfig, with_agents
from messagebus.core.homes import Chain, Home, read_chains, segment_of
from messagebus.destination import Topic
from messagebus.errors import LinkLost, NotFound, TopologyError
from messagebus.secret import Secret
from messagebus.terminal import plural, say
from messagebus.tools.subscriptions import as_operator, token_option
from messagebus.tools.top import table

LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One partition. home: takes its publishes, or is to take them when it moves.

    waiting: subscription -> ready messages; moving: what is left of a move, or ""; fault: why a home does not
    say, or ""; lost: the given up segments, by epoch and broker.
    """

    partition: int
    home: str
    epoch: int
    waiting: Mapping[str, int]
    moving: str
    fault: str
    lost: tuple[str, ...] = ()


def in_words(chain: Chain) -> str:
    """Return what is left of a move, "" for nothing."""
    if len(chain.homes) == 1:
        return ""
    before = chain.homes[0].broker
    if not chain.is_open:
        return f"moves from {before}, which takes its publishes"
    return f"what is left on {before} comes first"


def spread(homes: Sequence[str], brokers: Collection[str], *, away: str = "") -> dict[int, str]:
    """Return the partitions that move, so that the brokers have as many each, and their next homes.

    away: only those that are at home there move, to the others.
    """
    counts = dict.fromkeys(sorted(set(brokers) - {away}), 0)
    if not counts:
        return {}
    least, more = divmod(len(homes), len(counts))
    moving: list[int] = []
    for partition, home in enumerate(homes):
        if home in counts and (away or counts[home] < least):
            counts[home] += 1
        elif not away or home == away:
            moving.append(partition)
    found: dict[int, str] = {}
    for partition in moving:
        home = homes[partition]
        if not away and more and counts.get(home) == least:
            counts[home] += 1
            more -= 1
            continue
        found[partition] = to = min(counts, key=lambda name: counts[name])
        counts[to] += 1
    return found


async def topic_of(bus: BusConfig, name: str) -> tuple[Topic, tuple[Chain, ...]]:
    """Return a topic and the segments of its partitions. Raises NotFound, TopologyError, LoginRefused."""
    known = [each for each in await topology(bus) if isinstance(each, Topic)]
    topic = next((each for each in known if each.name == name), None)
    if topic is None or not topic.partitions:
        raise NotFound(f"there is no topic {name} with partitions")
    return topic, read_chains(topic.homes, topic.partitions)


async def rows_of(bus: BusConfig, brokers: BrokerList, name: str) -> list[Row]:
    """Return the partitions of a topic, or of one of its subscriptions.

    Raises NotFound for a name without partitions, TopologyError, LoginRefused.
    """
    topic_name, _, only = name.partition("/")
    _topic, chains = await topic_of(bus, topic_name)
    found = await count(bus, brokers)
    waiting: dict[tuple[str, str], dict[str, int]] = {}
    for each in found.counts:
        of, _, subscription = each.name.partition("/")
        if of == topic_name and only in ("", subscription):
            for segment, ready in each.segments.items():
                waiting.setdefault((each.broker, segment), {})[subscription] = ready
    rows = []
    for partition, chain in enumerate(chains):
        total = dict[str, int]()
        for home in chain.homes:
            here = waiting.get((home.broker, segment_of(partition, home)), {})
            for subscription, ready in here.items():
                total[subscription] = total.get(subscription, 0) + ready
        silent = [home.broker for home in chain.homes if home.broker not in found.answered]
        rows.append(
            Row(
                partition=partition,
                home=chain.homes[-1].broker,
                epoch=chain.homes[-1].epoch,
                waiting=total,
                moving=in_words(chain),
                fault=""
                if not silent
                else found.unanswered.get(silent[0], "") or f"{silent[0]} is not on the list",
                lost=tuple(f"{h.epoch}@{h.broker}" for h in sorted(chain.lost - {*chain.homes})),
            )
        )
    return rows


async def begun(
    bus: BusConfig, brokers: BrokerList, topic: str, to: Mapping[int, str], *, token: Secret
) -> dict[int, str]:
    """Begin moves: partition -> broker. Returns the refused ones with the reason."""
    _topic, chains = await topic_of(bus, topic)
    refused = {p: f"{topic} has {len(chains)} partitions" for p in to if p >= len(chains)}
    by_home: dict[str, dict[int, str]] = {}
    for partition, broker in to.items():
        if partition not in refused:
            by_home.setdefault(chains[partition].homes[-1].broker, {})[partition] = broker
    for home, part in by_home.items():
        listed = brokers.find(home)
        try:
            if listed is None:
                raise LinkLost(home, "it is not on the list")
            refused |= await move(bus, listed, topic, part, token=token)
        except LinkLost as fault:
            refused |= dict.fromkeys(part, f"its home {fault}")
    return refused


async def finished(
    bus: BusConfig, topic: str, wanted: Collection[int], within_s: float
) -> list[str]:
    """Wait for the end of moves. Returns what is left of them, in words."""
    until_s = time.monotonic() + within_s
    while True:
        _topic, chains = await topic_of(bus, topic)
        left = [f"partition {p}: {told}" for p in wanted if (told := in_words(chains[p]))]
        if not left or time.monotonic() >= until_s:
            return left
        await asyncio.sleep(LOOK_S)


@click.group(short_help="Show the homes of a topic's partitions, and move them.")
def partitions() -> None:
    """Look at the partitions of a topic, and move them to other brokers while everything runs.

    \b
    Example:
      messagebus partitions show orders
      messagebus partitions move orders 7 --to mb2:5672 --token-file /etc/messagebus/token
    """


@partitions.command(
    "show", short_help="Print the home of each partition, and its waiting messages."
)
@click.argument("name", metavar="TOPIC[/SUBSCRIPTION]")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def show(name: str, as_json: bool) -> int:
    """Print the home of each partition of TOPIC, and what waits there for each subscription.

    Exit code 3 when a home does not answer: its partitions wait for it.

    \b
    Example:
      messagebus partitions show orders/billing
    """
    settings = with_agents(bus_settings())
    rows = asyncio.run(rows_of(settings, listed_brokers(settings), name))
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        cells = []
        for row in rows:
            counts = " ".join(f"{name}={ready}" for name, ready in sorted(row.waiting.items()))
            lost = row.lost and f"lost: {', '.join(row.lost)}"
            told = row.fault or "; ".join(each for each in (counts, row.moving, lost) if each)
            cells.append((str(row.partition), row.home, str(row.epoch), told))
        for line in table(("PARTITION", "HOME", "EPOCH", "WAITING"), cells, texts=4):
            say(line)
    return Exit.PARTLY if any(row.fault for row in rows) else Exit.DONE


_within_option = click.option(
    "--within-s",
    default=300.0,
    show_default=True,
    type=NumberRange(min=0),
    help="Seconds to wait for the end.",
)
_yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


@partitions.command("move", short_help="Move partitions of TOPIC to another broker.")
@click.argument("topic")
@click.argument(
    "numbers", metavar="PARTITION...", nargs=-1, required=True, type=click.IntRange(min=0)
)
@click.option("--to", required=True, metavar="BROKER", help="The new home, as the list names it.")
@_within_option
@token_option
def move_partitions(
    topic: str, numbers: tuple[int, ...], to: str, within_s: float, token_file: Path | None
) -> int:
    """Move partitions of TOPIC to another broker, while everything runs; each key keeps its order.

    Messages at the old home are consumed there first, so a move ends when its slowest subscription has read
    them. It goes on by itself, also when this command ends before: `partitions show` tells what is left. Exit
    code 3 when something is refused or is not finished in time.

    \b
    Example:
      messagebus partitions move orders 7 8 --to mb2:5672 --token-file /etc/messagebus/token
    """
    wanted = dict.fromkeys(numbers, to)
    settings, token = as_operator(token_file)
    return asyncio.run(_moved(settings, topic, wanted, within_s, token))


@partitions.command("spread", short_help="Spread the partitions of TOPIC evenly over the brokers.")
@click.argument("topic")
@_within_option
@token_option
@_yes_option
def spread_partitions(topic: str, within_s: float, token_file: Path | None, yes: bool) -> int:
    """Move partitions of TOPIC so that all brokers that do not drain have as many, as `move` does.

    \b
    Example:
      messagebus partitions spread orders --token-file /etc/messagebus/token --yes
    """
    settings, token = as_operator(token_file)
    staying = [each.broker.name for each in listed_brokers(settings).listed if not each.draining]
    _topic, chains = asyncio.run(topic_of(settings, topic))
    wanted = spread([chain.homes[-1].broker for chain in chains], staying)
    if not wanted:
        say(f"the partitions of {topic} are spread evenly")
        return Exit.DONE
    confirm(f"Move {plural(len(wanted), 'partition')} of {topic}?", yes)
    return asyncio.run(_moved(settings, topic, wanted, within_s, token))


@partitions.command("abandon", short_help="Abandon a home of TOPIC whose disk is lost.")
@click.argument("topic")
@click.option("--home", required=True, metavar="BROKER", help="The lost home, as `show` prints it.")
@_within_option
@token_option
@_yes_option
def abandon_partitions(
    topic: str, home: str, within_s: float, token_file: Path | None, yes: bool
) -> int:
    """Give up what is in the partitions of TOPIC at a home whose disk is lost; they go on at other brokers.

    Messages not consumed there are lost for all ordered subscriptions, also when the disk is found again:
    it could only come out of order, and is deleted then. The broker has to be off the list, and silent, and
    all agents of the list have to agree. Interrupted, run it again. `partitions show` tells what was lost.
    Exit code 3 when something is left to do.

    \b
    Example:
      messagebus partitions abandon orders --home mb1:5672 --token-file /etc/messagebus/token
    """
    try:
        home = Broker.parse(home).name
    except ValueError as fault:
        raise click.BadParameter(str(fault), param_hint="--home") from fault
    settings, token = as_operator(token_file)
    brokers = listed_brokers(settings)
    _topic, chains = asyncio.run(topic_of(settings, topic))
    if brokers.find(home):
        raise TopologyError(f"{home} is on the list: take it off, or move its partitions")
    there = _at_home(home, (chain.homes for chain in chains))
    if not there and not _at_home(home, (chain.lost for chain in chains)):
        raise NotFound(f"no partition of {topic} is at home on {home}")
    if there:
        confirm(f"Lose what is on {home} of {plural(len(there), 'partition')} of {topic}?", yes)
    waits = asyncio.run(_abandoned(settings, brokers, topic, home, within_s, token))
    for partition, why in sorted(waits.items()):
        if why:
            say(f"partition {partition} of {topic} waits: {why}", err=True)
    if any(waits.values()):
        return Exit.PARTLY
    say(f"{plural(len(waits), 'partition')} of {topic}: what nobody consumed on {home} is lost")
    return Exit.DONE


def _at_home(broker: str, homes: Iterable[Iterable[Home]]) -> list[int]:
    return [p for p, of in enumerate(homes) if any(each.broker == broker for each in of)]


async def _abandoned(
    bus: BusConfig, brokers: BrokerList, topic: str, home: str, within_s: float, token: Secret
) -> Mapping[int, str]:
    """Repeat until nothing waits any more. Returns what waits when the time is over."""
    first = min(brokers, key=lambda each: each.broker.name)
    until_s, told, has_begun = time.monotonic() + within_s, "", False
    while True:
        try:
            waits = await abandon(bus, first, topic, home, token=token)
            has_begun = True
            if not any(waits.values()) or time.monotonic() >= until_s:
                return waits
        except (LinkLost, TopologyError) as fault:
            # An agent that was killed meanwhile comes back, and knows nothing for a moment.
            has_begun |= isinstance(fault, LinkLost)
            if time.monotonic() >= until_s or not has_begun:
                raise
            if str(fault) != told:
                told = str(fault)
                say(f"waits: {told}", err=True)
        await asyncio.sleep(LOOK_S)


async def _moved(
    settings: BusConfig, topic: str, wanted: Mapping[int, str], within_s: float, token: Secret
) -> int:
    brokers = await asyncio.to_thread(listed_brokers, settings)
    refused = await begun(settings, brokers, topic, wanted, token=token)
    for partition, why in sorted(refused.items()):
        say(f"partition {partition} of {topic} is not moved: {why}", err=True)
    moving = wanted.keys() - refused.keys()
    left = await finished(settings, topic, sorted(moving), within_s) if moving else []
    for told in left:
        say(f"{told}, and it goes on", err=True)
    if len(moving) > len(left):
        say(f"moved {plural(len(moving) - len(left), 'partition')} of {topic}")
    return Exit.PARTLY if refused or left else Exit.DONE
