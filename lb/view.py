"""The state that balancers show, as a table for people and as plain values for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from rich.text import Text

from inventory.inventory import Inventory
from lb import runtime
from lb.errors import BalancerUnreachable
from lb.fleet import Fleet
from lb.render import marker, render
from lb.runtime import Process, ServerState
from messagebus.errors import ConfigError
from messagebus.terminal import plural, printable

# A narrower terminal would cut addresses: there the table has no columns that are always alike, and the gate
# checks of brokers that are not up stand in `not_up` alone.
WIDE = 120
TITLES = (
    *("broker", "address", "balancer", "state", "sessions"),
    *("queue", "weight", "gate check", "agent", "since"),
)
NUMBERS = ("sessions", "queue", "weight")
ONLY_WIDE = ("queue", "weight", "gate check")
STYLES = {"up": "green", "drain": "yellow", "maint": "magenta", "down": "bold red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One balancer. fault: why it does not answer; process is None then.

    current: whether it serves the present inventory; None where that cannot be known.
    """

    name: str
    process: Process | None = None
    servers: Sequence[ServerState] = field(default_factory=tuple)
    current: bool | None = None
    fault: str = ""


def look(inventory: Inventory, fleet: Fleet) -> list[Shown]:
    """Ask every balancer, in the inventory's order."""
    return [_look(inventory, fleet, balancer.name) for balancer in inventory.balancers]


def _look(inventory: Inventory, fleet: Fleet, name: str) -> Shown:
    if name in fleet.unreachable:
        return Shown(name=name, fault=fleet.unreachable[name])
    try:
        process = runtime.process(fleet.sockets[name])
        servers = tuple(runtime.servers(fleet.sockets[name]).values())
    except BalancerUnreachable as fault:
        return Shown(name=name, fault=str(fault))
    try:
        wanted = marker(render(inventory.at(inventory.find_balancer(name))))
        current = process.description == wanted
    except ConfigError:  # a user who may look need not have the probe's password
        current = None
    return Shown(name=name, process=process, servers=servers, current=current)


def plain(shown: Sequence[Shown]) -> dict[str, Any]:
    return {"balancers": [dataclasses.asdict(each) for each in shown]}


def headlines(shown: Sequence[Shown]) -> Iterator[Text]:
    """Yield a line for each balancer."""
    for each in shown:
        if each.process is None:
            yield Text.assemble(
                (each.name, "bold"), "  ", (printable(f"no answer: {each.fault}"), "red")
            )
            continue
        up = sum(server.is_up for server in each.servers)
        sessions = sum(server.sessions for server in each.servers)
        yield Text.assemble(
            (each.name, "bold"),
            f"  process {each.process.pid}, up {in_words(each.process.uptime_s)},"
            f" {up} of {len(each.servers)} brokers up, {plural(sessions, 'session')}",
            ("  differs from the inventory: python -m lb apply", "bold red")
            if each.current is False
            else "",
        )


def server_table(shown: Sequence[Shown], width: int = WIDE) -> Table:
    """Make a table with a row for each broker and balancer; the rows of one broker stand together.

    width: of the terminal; one below WIDE leaves columns out.
    """
    several, is_wide = len(shown) > 1, width >= WIDE
    left_out = {*(() if several else ("balancer",)), *(() if is_wide else ONLY_WIDE)}
    titles = [title for title in TITLES if title not in left_out]
    table = Table(
        *(Column(title, justify="right" if title in NUMBERS else "left") for title in titles),
        box=SIMPLE_HEAD,
    )
    table.pad_edge = table.show_edge = is_wide
    for column in table.columns:
        column.no_wrap = not is_wide
    names = list(dict.fromkeys(server.name for each in shown for server in each.servers))
    for name in names:
        found = [(each.name, one) for each in shown for one in each.servers if one.name == name]
        for number, (balancer, server) in enumerate(found):
            row = {
                "broker": Text(printable(server.name if number == 0 else "")),
                "address": Text(printable(server.address if number == 0 else "")),
                "balancer": Text(printable(balancer)),
                "state": _state(server),
                "sessions": Text(f"{server.sessions}"),
                "queue": Text(f"{server.queue}"),
                "weight": Text(f"{server.weight}"),
                "gate check": Text(printable(server.check)),
                "agent": Text(printable(server.agent)),
                "since": Text(in_words(server.changed_s)),
            }
            table.add_row(
                *(row[title] for title in titles),
                end_section=several and number == len(found) - 1,
            )
    return table


def names_not_up(shown: Sequence[Shown]) -> frozenset[str]:
    """Return the brokers that some balancer sends no publishers to."""
    return frozenset(server.name for each in shown for server in each.servers if not server.is_up)


def not_up(shown: Sequence[Shown], reasons: Mapping[str, str]) -> Iterator[Text]:
    """Yield a sentence for each broker that a balancer sends no publishers to: since when, and why.

    reasons: what agents say themselves, by name of the broker; HAProxy knows no more than their verdict.
    """
    several = len(shown) > 1
    for each in shown:
        for server in each.servers:
            if server.is_up:
                continue
            where = f" at {each.name}" if several else ""
            since = f"for {in_words(server.changed_s)}"
            agent = server.agent or "no answer yet"
            if reason := reasons.get(server.name):
                agent += f" ({reason})"
            why = f"gate check: {server.check or 'none yet'}; agent: {agent}"
            yield Text(printable(f"{server.name}{where}: {_words(server)} {since}; {why}"))


def in_words(seconds: int) -> str:
    """Return a duration in its two largest units: ``2 days 3 h``."""
    parts = []
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count} {'day' if unit == 'days' and count == 1 else unit}")
        elif parts:
            break
    return " ".join(parts[:2]) or "0 s"


def _state(server: ServerState) -> Text:
    return Text(_words(server), style=STYLES[server.verdict])


def _words(server: ServerState) -> str:
    is_hidden = server.drained and server.verdict != "drain"
    return f"{server.verdict}, drained" if is_hidden else server.verdict
