"""`messagebus migrate`: the way from a RabbitMQ that is no broker of a bus, and the way back.

`plan` reads an export (`rabbitmqctl export_definitions`, or the management page's) and prints what maps to
topics, subscriptions and queues here. It asks no broker and changes nothing; what cannot be mapped has one
line each, with what to do instead. `pull` and `push` move messages while both sides work, until they are
stopped: each is acked where it was after its confirm where it goes, as by a forwarder between sites.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from messagebus._io.loop import run_blocking
from messagebus.admin import directory
from messagebus.aio import AsyncConsumer, AsyncPublisher
from messagebus.commands.exits import Exit
from messagebus.commands.options import (
    bus_settings,
    quiet_unless_verbose,
    subscription_option,
    topic_and_subscription,
)
from messagebus.config import BusConfig, PublisherConfig
from messagebus.consumer import as_source
from messagebus.destination import NAME_BYTES_MAX, check_name, parse_destination
from messagebus.errors import ConfigError, NameInvalid, NotFound
from messagebus.terminal import escaped, plural, say
from messagebus.tools.foreign import (
    ForeignPublisher,
    ForeignQueue,
    ForeignWire,
    check_amqp_name,
    look_at,
    moved,
)
from messagebus.tools.forward import (
    Forwarder,
    consumer_config,
    publisher_config,
    run_forwarders,
)

# A broker with 100,000 queues exports some 30 MB.
DEFINITIONS_BYTES_MAX = 256 * 1024 * 1024
SHOWN_CHARS_MAX = 200
PARTS = ("exchanges", "queues", "bindings", "policies", "parameters", "users")
_STRANGE = re.compile(r"[^A-Za-z0-9_.-]+")

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mapped:
    """One thing of the export, and what it becomes. note: what is different there, "" for nothing."""

    what: str
    becomes: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Unmapped:
    """One thing of the export that has no counterpart, and what to do instead."""

    what: str
    instead: str


@dataclass(slots=True)
class Plan:
    """Plan of a migration. declare: arguments of `messagebus declare`, each once, in order."""

    mapped: list[Mapped] = field(default_factory=list)
    unmapped: list[Unmapped] = field(default_factory=list)
    declare: dict[str, None] = field(default_factory=dict)


_NO_DROPS = "no queue drops messages: `python -m ops quota set` has brokers refuse what is too much"
_FORWARD = "between buses, `messagebus forward` forwards topics: docs/guides/sites.md"
NO_PATTERNS = (
    "there are no patterns: use a topic for each kind of message, and a subscription of each"
)
_OF_EXCHANGES = {
    "headers": "no routing by headers: use a topic for each kind of message",
    "x-consistent-hash": "use a topic with partitions, and a key: messagebus declare NAME --partitions N",
    "x-modulus-hash": "use a topic with partitions, and a key: messagebus declare NAME --partitions N",
    "x-random": "use a queue: its consumers compete",
    "x-recent-history": "declare a stream of the topic, and replay it: docs/guides/replay.md",
}
# Arguments of queues, and the same as settings of policies, without "x-".
_UNMAPPED_SETTINGS = {
    "message-ttl": "declare a subscription with --ttl, which parks; for a queue publishers set ttl_s",
    "max-length": _NO_DROPS,
    "max-length-bytes": _NO_DROPS,
    "max-priority": "no priorities between messages: use a queue for each priority",
    "federation-upstream": _FORWARD,
    "federation-upstream-set": _FORWARD,
    "alternate-exchange": "an unroutable message is returned to its publisher: handle Unroutable there",
}
_NOTED_SETTINGS = {
    "dead-letter-exchange": "rejected messages go to its parking queue",
    "dead-letter-routing-key": "",
    "dead-letter-strategy": "",
    "overflow": "",
    "queue-type": "",
    "queue-version": "",
    "queue-mode": "",
    "queue-master-locator": "",
    "queue-leader-locator": "",
    "quorum-initial-group-size": "each message is on one broker: publish redundantly, or mirror the disk",
    "ha-mode": "each message is on one broker: publish redundantly, or mirror the disk",
    "ha-params": "",
    "ha-sync-mode": "",
    "ha-sync-batch-size": "",
    "ha-promote-on-failure": "",
    "ha-promote-on-shutdown": "",
    "delivery-limit": "declare it with --delivery-limit",
    "single-active-consumer": "single_active=True of the subscription",
    "expires": "expires_s of the subscription",
    "max-age": "keep_s of the stream",
}


def plan_of(definitions: Mapping[str, Sequence[Entry]]) -> Plan:
    """Return the plan for the definitions of one virtual host, by their parts; all parts may be missing."""
    plan = Plan()
    # An export leaves out RabbitMQ's own exchanges.
    own = {
        name: {"name": name, "type": name.removeprefix("amq.")}
        for name in _own_exchanges(definitions)
    }
    exchanges = own | {each["name"]: each for each in definitions.get("exchanges", ())}
    queues = {each["name"]: each for each in definitions.get("queues", ())}
    bound = _bindings(definitions.get("bindings", ()), exchanges, queues, plan)
    maps = _Maps(plan, exchanges, bound)
    for name, exchange in exchanges.items():
        if name and (not name.startswith("amq.") or any(source == name for source, _ in bound)):
            maps.exchange(exchange)
    for queue in queues.values():
        maps.queue(queue)
    for policy in definitions.get("policies", ()):
        _map_policy(plan, policy)
    for parameter in definitions.get("parameters", ()):
        what = f"{parameter.get('component', 'parameter')} {parameter['name']}"
        plan.unmapped.append(Unmapped(what, _FORWARD))
    if users := definitions.get("users", ()):
        plan.unmapped.append(
            Unmapped(
                plural(len(users), "user"), "give them rights anew: docs/operations/security.md"
            )
        )
    return plan


def _own_exchanges(definitions: Mapping[str, Sequence[Entry]]) -> set[str]:
    sources = {str(each["source"]) for each in definitions.get("bindings", ())}
    return {each for each in sources if each.startswith("amq.")}


class _Names:
    """Names that messagebus accepts, for names of RabbitMQ; no two things have one."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, str], str] = {}

    def of(self, kind: str, name: str, thing: str = "") -> str:
        """Return the name to use. Raises NameInvalid where another has taken it.

        thing: what it is the name of, if several may have that name.
        """
        thing = thing or repr(name)
        try:
            found = check_name(kind, name)
        except NameInvalid:
            found = _STRANGE.sub("-", name).lstrip(".-")[:NAME_BYTES_MAX]
            found = check_name(
                kind, f"old-{found}" if found.startswith(("amq.", "mb.", "jms.")) else found
            )
        if self._taken.setdefault((kind, found), thing) != thing:
            raise NameInvalid(f"{found!r} is the name for {self._taken[kind, found]} already")
        return found

    def of_topic(self, exchange: Entry, key: str) -> str:
        """Return the topic for messages of an exchange and a key. Raises NameInvalid."""
        thing = f"exchange {exchange['name']!r}" + (f", key {key!r}" if key else "")
        return self.of("topic", _topic_of(exchange, key), thing)


_Bound = dict[tuple[str, str], list[str]]
"""Exchange and routing key -> the queues that are bound by it."""


def _bindings(
    bindings: Iterable[Entry],
    exchanges: Mapping[str, Entry],
    queues: Mapping[str, Entry],
    plan: Plan,
) -> _Bound:
    found: _Bound = defaultdict(list)
    for each in bindings:
        source, target = each["source"], each["destination"]
        if not source:  # the default exchange: every queue has it
            continue
        what = f"binding of {target} to {source}"
        if each.get("destination_type", "queue") != "queue":
            plan.unmapped.append(
                Unmapped(
                    what, "no exchange feeds another: give the topic a subscription for each reader"
                )
            )
        elif source not in exchanges:
            plan.unmapped.append(Unmapped(what, f"the export has no exchange {source}"))
        elif target not in queues:
            plan.unmapped.append(Unmapped(what, f"the export has no queue {target}"))
        else:
            is_fanout = _kind(exchanges[source]) == "fanout"
            key = "" if is_fanout else str(each.get("routing_key", ""))
            if target not in found[source, key]:
                found[source, key].append(target)
    return found


def _kind(exchange: Entry) -> str:
    """Return how an exchange routes."""
    kind = str(exchange.get("type", ""))
    if kind == "x-delayed-message":
        return str(_arguments(exchange).get("x-delayed-type", "direct"))
    return kind


def _arguments(each: Entry) -> Mapping[str, Any]:
    found = each.get("arguments")
    return found if isinstance(found, Mapping) else {}


def _topic_of(exchange: Entry, key: str) -> str:
    """Return the name of the topic for messages of an exchange and a key, as RabbitMQ's names are."""
    name, kind = str(exchange["name"]), _kind(exchange)
    if kind == "fanout" or not key or (kind == "topic" and key == "#"):
        return name
    return f"{name}.{key}"


def _is_pattern(exchange: Entry, key: str) -> bool:
    is_topic = _kind(exchange) == "topic"
    return is_topic and key != "#" and bool({"*", "#"} & {*key.split(".")})


class _Maps:
    """Maps of exchanges and queues to a plan. bound: exchange and routing key -> the queues bound by it."""

    def __init__(self, plan: Plan, exchanges: Mapping[str, Entry], bound: _Bound) -> None:
        self._plan, self._names = plan, _Names()
        self._exchanges, self._bound = exchanges, bound

    def exchange(self, exchange: Entry) -> None:
        """Map an exchange to a topic for each key by which a queue is bound to it."""
        name, kind = str(exchange["name"]), _kind(exchange)
        what = f"exchange {name} ({exchange.get('type', kind)})"
        if instead := _OF_EXCHANGES.get(kind):
            self._plan.unmapped.append(Unmapped(what, instead))
            return
        if kind not in ("fanout", "direct", "topic"):
            self._plan.unmapped.append(
                Unmapped(what, "this type is not known: use a topic for each kind of message")
            )
            return
        if "alternate-exchange" in _arguments(exchange):
            self._plan.unmapped.append(
                Unmapped(f"alternate-exchange of {what}", _UNMAPPED_SETTINGS["alternate-exchange"])
            )
        keys = [key for source, key in self._bound if source == name]
        if not keys:
            self._plan.unmapped.append(
                Unmapped(what, "no queue is bound to it: its messages go nowhere")
            )
            return
        patterns = [key for key in keys if _is_pattern(exchange, key)]
        if kind == "topic" and "#" in keys and len(keys) > 1:
            patterns.append("#")
        for key in patterns:
            for queue in self._bound[name, key]:
                self._plan.unmapped.append(
                    Unmapped(f"binding of {queue} to {name} by {key}", NO_PATTERNS)
                )
        for key in [key for key in keys if key not in patterns]:
            self._key(exchange, key)

    def _key(self, exchange: Entry, key: str) -> None:
        what = f"exchange {exchange['name']} ({exchange.get('type', _kind(exchange))})"
        try:
            topic = self._names.of_topic(exchange, key)
        except NameInvalid as fault:
            instead = f"choose a name for the topic: {fault}"
            self._plan.unmapped.append(Unmapped(f"{what}, key {key!r}", instead))
            return
        note = "publish to it without a routing key" if key else ""
        if exchange.get("type") == "x-delayed-message":
            note = "delays: deliver_after_s of a publish"
        self._plan.mapped.append(
            Mapped(what + (f", key {key}" if key else ""), f"topic {topic}", note)
        )
        self._plan.declare[topic] = None

    def queue(self, queue: Entry) -> None:
        """Map a queue to a subscription of each topic that it is bound to, or to a queue."""
        name, arguments = str(queue["name"]), _arguments(queue)
        settings = {key.removeprefix("x-"): value for key, value in arguments.items()}
        what = f"queue {name}"
        if {"message-ttl", "dead-letter-exchange"} <= settings.keys():
            instead = (
                "if it only delays: deliver_after_s of a publish, or RetryPolicy of a handler; if it has"
                " consumers: a subscription with --ttl, which parks"
            )
            self._plan.unmapped.append(Unmapped(what, instead))
            return
        pairs = [pair for pair, ends in self._bound.items() if name in ends]
        notes = _notes(self._plan, what, settings)
        if not queue.get("durable", True):
            notes.append("it becomes durable")
        if queue.get("auto_delete", False):
            notes.append("it stays without consumers, unless it is Subscription.ephemeral")
        known = [
            (exchange, key)
            for exchange, key in pairs
            if _kind(self._exchanges[exchange]) in ("fanout", "direct", "topic")
            and not _is_pattern(self._exchanges[exchange], key)
        ]
        targets = self._subscriptions(name, known)
        if not pairs:
            try:
                targets = [f"queue:{self._names.of('queue', name)}"]
            except NameInvalid as fault:
                self._plan.unmapped.append(Unmapped(what, f"choose a name for the queue: {fault}"))
        if len(targets) > 1:
            notes.append("one handler may serve all of them")
        for target in targets:
            kind = "" if target.startswith("queue:") else "subscription "
            self._plan.mapped.append(Mapped(what, f"{kind}{target}", "; ".join(notes)))
            self._plan.declare[target] = None

    def _subscriptions(self, queue: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
        found = []
        for exchange, key in pairs:
            try:
                topic = self._names.of_topic(self._exchanges[exchange], key)
                if topic in self._plan.declare:
                    found.append(f"{topic}/{self._names.of('subscription', queue)}")
            except NameInvalid as fault:
                what = f"queue {queue}, bound to {exchange}"
                self._plan.unmapped.append(
                    Unmapped(what, f"choose a name for the subscription: {fault}")
                )
        return found


def _notes(plan: Plan, what: str, settings: Mapping[str, Any]) -> list[str]:
    """Return what is different for each setting that has a counterpart; note those that have none."""
    notes = []
    for key, value in settings.items():
        if key in ("max-length", "max-length-bytes") and "reject" in str(
            settings.get("overflow", "")
        ):
            notes.append(f"{key}={value}: set it with `python -m ops quota set`")
        elif key in _UNMAPPED_SETTINGS:
            plan.unmapped.append(Unmapped(f"{key} of {what}", _UNMAPPED_SETTINGS[key]))
        elif key not in _NOTED_SETTINGS:
            plan.unmapped.append(
                Unmapped(f"{key} of {what}", "it is not known; decide by its purpose")
            )
        elif note := _NOTED_SETTINGS[key]:
            notes.append(note)
    return notes


def _map_policy(plan: Plan, policy: Entry) -> None:
    what = f"policy {policy['name']} ({policy.get('pattern', '')})"
    definition = policy.get("definition")
    settings = definition if isinstance(definition, Mapping) else {}
    before = len(plan.unmapped)
    notes = _notes(plan, what, settings)
    if len(plan.unmapped) == before:
        plan.mapped.append(Mapped(what, "nothing to do", "; ".join(notes)))


def read_definitions(path: Path, vhost: str | None) -> dict[str, list[Entry]]:
    """Read an export and return the parts of one virtual host. Raises ConfigError, NotFound."""
    try:
        with path.open("rb") as file:
            text = file.read(DEFINITIONS_BYTES_MAX + 1)
        if len(text) > DEFINITIONS_BYTES_MAX:
            raise ConfigError(f"{path}: larger than {DEFINITIONS_BYTES_MAX:,} bytes")
        found = json.loads(text)
    except (OSError, ValueError, RecursionError) as fault:
        told = fault.strerror if isinstance(fault, OSError) else f"no JSON: {fault}"
        raise ConfigError(f"{path}: {told}") from fault
    if not isinstance(found, dict) or not {"queues", "exchanges"} & found.keys():
        raise ConfigError(
            f"{path}: no definitions of RabbitMQ: it has neither queues nor exchanges"
        )
    parts = {part: _entries(path, part, found.get(part, [])) for part in PARTS}
    hosts = {
        each["vhost"] for part in ("queues", "exchanges") for each in parts[part] if "vhost" in each
    }
    if vhost is None and len(hosts) > 1:
        raise ConfigError(f"{path}: --vhost, one of {', '.join(sorted(map(str, hosts)))}")
    if vhost is not None and hosts and vhost not in hosts:
        raise NotFound(f"{path}: no virtual host {vhost!r} with queues or exchanges")
    chosen = vhost if vhost is not None else next(iter(hosts), None)
    return {
        part: [each for each in entries if part == "users" or each.get("vhost", chosen) == chosen]
        for part, entries in parts.items()
    }


_IDENTITY: Mapping[str, tuple[str, ...]] = {"bindings": ("source", "destination")}


def _entries(path: Path, part: str, found: object) -> list[Entry]:
    keys = _IDENTITY.get(part, ("name",))

    def wanted(each: object) -> bool:
        return isinstance(each, dict) and all(isinstance(each.get(key), str) for key in keys)

    if not isinstance(found, list) or not all(map(wanted, found)):
        raise ConfigError(f"{path}: {part}: a list of objects with names wanted")
    return found


@click.group(short_help="Move from another RabbitMQ, and back.")
def migrate() -> None:
    """Move from another RabbitMQ to the bus, and back, while both work.

    \b
    Example:
      messagebus migrate plan definitions.json
      messagebus migrate pull billing orders --from-bus /etc/messagebus/old.toml
    """


@migrate.command(short_help="Print what of an export maps to what.")
@click.argument("definitions", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--vhost", help="Virtual host, where the export has several.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def plan(definitions: Path, vhost: str | None, as_json: bool) -> int:
    """Print what of DEFINITIONS, an export of a RabbitMQ, maps to topics, subscriptions and queues.

    Each thing that cannot be mapped has one line with what to do instead, and the exit code is 7. The last
    line is the command that declares the rest. It asks no broker and changes nothing.

    \b
    Example:
      rabbitmqctl export_definitions definitions.json
      messagebus migrate plan definitions.json
    """
    found = plan_of(read_definitions(definitions, vhost))
    if as_json:
        told = {
            "mapped": [asdict(each) for each in found.mapped],
            "unmapped": [asdict(each) for each in found.unmapped],
            "declare": list(found.declare),
        }
        click.echo(json.dumps(told, indent=2))
    else:
        for one in found.mapped:
            note = f"  ({_shown(one.note)})" if one.note else ""
            say(f"{_shown(one.what)} -> {_shown(one.becomes)}{note}")
        for other in found.unmapped:
            say(f"cannot: {_shown(other.what)}: {_shown(other.instead)}")
        if found.declare:
            say(f"messagebus declare {' '.join(found.declare)}")
    return Exit.FOUND if found.unmapped else Exit.DONE


def _shown(text: str) -> str:
    return escaped(text, SHOWN_CHARS_MAX)


# Moving.
@migrate.command(short_help="Move messages from another RabbitMQ to the bus.")
@click.argument("queue")
@click.argument("destination")
@click.option(
    "--from-bus",
    "source",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the settings of the other RabbitMQ, in TOML.",
)
def pull(queue: str, destination: str, source: Path) -> int:
    """Publish each message of QUEUE of another RabbitMQ to DESTINATION here, until SIGTERM or SIGINT.

    DESTINATION is a topic, or queue:NAME. A message is acked there after the confirm here, and keeps its id.
    Nothing is declared there. Other consumers of QUEUE go on and share its messages.

    \b
    Example:
      messagebus migrate pull billing orders --from-bus /etc/messagebus/old.toml
    """
    bus, foreign = bus_settings(), BusConfig.from_file(source)
    target = parse_destination(destination)
    publisher = replace(PublisherConfig.from_env(os.environ), spool=None)
    directory.reach(bus, publishing=True)
    _check(foreign, bus, queue=queue)
    forwarder = Forwarder(
        partial(
            AsyncConsumer,
            foreign,
            ForeignQueue(queue),
            config=consumer_config(False),
            _wire=ForeignWire(foreign),
        ),
        partial(AsyncPublisher, bus, publisher),
        target,
        moved,
        name=f"{queue}@{foreign.broker}->{target}",
    )
    return asyncio.run(run_forwarders([forwarder]))


@migrate.command(short_help="Move messages from the bus to another RabbitMQ.")
@click.argument("source")
@click.argument("routing_key")
@subscription_option
@click.option("--exchange", default="", help="Exchange there; default: that of every queue's name.")
@click.option(
    "--to-bus",
    "target",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the settings of the other RabbitMQ, in TOML: [bus], [publisher].",
)
def push(source: str, routing_key: str, subscription: str, exchange: str, target: Path) -> int:
    """Publish each message of SOURCE to another RabbitMQ with ROUTING_KEY, until SIGTERM or SIGINT.

    SOURCE is TOPIC/NAME, a topic with --subscription, or queue:NAME. Without --exchange, ROUTING_KEY is the
    name of a queue there. A message is acked here after the confirm there, and keeps its id.

    \b
    Example:
      messagebus migrate push orders billing -s billing --to-bus /etc/messagebus/old.toml
    """
    bus, foreign = bus_settings(), BusConfig.from_file(target)
    place = as_source(*topic_and_subscription(source, subscription))
    check_amqp_name("routing key", routing_key)
    publisher = replace(publisher_config(target), spool=None)
    directory.reach(bus)
    _check(foreign, bus, queue="" if exchange else routing_key, exchange=exchange)
    forwarder = Forwarder(
        partial(AsyncConsumer, bus, place, config=consumer_config(False)),
        partial(ForeignPublisher, foreign, publisher, exchange, routing_key),
        routing_key,
        moved,
        name=f"{place}->{routing_key}@{foreign.broker}",
    )
    return asyncio.run(run_forwarders([forwarder]))


def _check(foreign: BusConfig, bus: BusConfig, *, queue: str = "", exchange: str = "") -> None:
    """Look at another RabbitMQ, and print what is doubtful there. Raises as `look_at`."""
    quiet_unless_verbose()
    if foreign.list_urls:
        raise ConfigError(
            "list_urls: another RabbitMQ has no consumer list; `broker` is its address"
        )
    ours = _names_of(bus) if foreign.vhost == bus.vhost else []
    if told := run_blocking(look_at(foreign, queue=queue, exchange=exchange, ours=ours)):
        say(f"messagebus: {told}", err=True)


def _names_of(bus: BusConfig) -> list[str]:
    """Return the names of the brokers of the bus, as far as a list tells them."""
    return [each.broker.name for each in directory.brokers(bus)] if bus.list_urls else []
