"""The command `messagebus top`: the whole bus on a terminal.

All figures are those of `messagebus.observing`. An unknown value is a question mark, and a sum names
the brokers that are not in it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from messagebus.commands.exits import Exit
from messagebus.commands.options import NumberRange, bus_settings
from messagebus.config import BusConfig
from messagebus.errors import one_line
from messagebus.observing.ask import Asker
from messagebus.observing.rates import Rates, broker_rates, row_rates
from messagebus.observing.rules import Attention, Raised
from messagebus.observing.snapshot import NO_LINK, Answer, Bus, Kind, ObservedBroker
from messagebus.observing.totals import (
    SOURCES,
    UNKNOWN,
    Sum,
    at_least,
    total,
    totals,
    uncounted,
)
from messagebus.terminal import columns, duration, folded, plural, say, shortened

EVERY_S = 2.0
# Statistics are swept every 5 s while somebody looks, so rates are of at least so long.
RATES_OVER_MS = 10_000
ROWS = 40
ATTENTION_ROWS = 6
# Between two columns of a table; the least characters of a column of texts.
GAP, TEXT_MIN = "  ", 12
# Clear the screen, cursor to its beginning.
CLEAR = "\x1b[2J\x1b[H"

SORTS: dict[str, Callable[[tuple[str, Sum]], Any]] = {
    "oldest": lambda each: -(each[1].oldest_ms if each[1].oldest_ms is not None else -1),
    "waiting": lambda each: -each[1].waiting,
    "parked": lambda each: -each[1].parked,
    "in": lambda each: -(each[1].came or 0.0),
    "out": lambda each: -(each[1].left or 0.0),
    "consumers": lambda each: each[1].consumers,
    "name": lambda each: each[0],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One picture: the bus, its sums by name, the rates of its brokers, and what needs attention."""

    bus: Bus
    sums: dict[str, Sum]
    everything: Sum
    rates: dict[str, Rates]
    attention: tuple[Raised, ...]


async def observed(bus: BusConfig) -> Bus:
    """Look once at the whole bus. Raises as `Asker.look`."""
    asker = Asker(bus)
    try:
        return await asker.look()
    finally:
        await asker.close()


@click.command(short_help="Show brokers, subscriptions and problems, live.")
@click.option(
    "--once", is_flag=True, help="Print once and end. Rates need two readings and are left out."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a reading, with every row.")
@click.option(
    "--sort",
    type=click.Choice([*SORTS]),
    default="oldest",
    show_default=True,
    help="Sort subscriptions and queues by this, worst first.",
)
@click.option("--filter", "text", default="", help="Only names with this text in them.")
@click.option("--exact", is_flag=True, help="Whole numbers instead of 12.3k, and milliseconds.")
@click.option(
    "--every-s",
    type=NumberRange(min=1.0),
    default=EVERY_S,
    show_default=True,
    help="Seconds between two readings.",
)
@click.option("--stats", metavar="URL", multiple=True, help="HAProxy's statistics; repeatable.")
def top(
    once: bool,
    as_json: bool,
    sort: str,
    text: str,
    exact: bool,
    every_s: float,
    stats: tuple[str, ...],
) -> int:
    """Show the state of every broker, the worst subscriptions and queues, and what needs attention.

    The command asks all agents in parallel. Figures are those of the brokers that answer; it names the
    others. Ctrl-C ends it. Exit code 3: the last look did not count a broker.

    \b
    Example:
      messagebus top
      messagebus top --once --sort waiting --filter orders/
      messagebus top --once --json
    """
    settings = bus_settings()

    async def show() -> int:
        asker, attention, pasts = Asker(settings, balancers=stats), Attention(), list[Bus]()
        try:
            while True:
                bus = await asker.look()
                look = _look(bus, pasts, attention)
                if as_json:
                    click.echo(json.dumps(_as_json(look)))
                else:
                    lines = list(_lines(look, sort, text, exact, columns()))
                    if once:
                        lines.insert(1, NO_RATES)
                    else:
                        click.echo(CLEAR, nl=False)
                        lines = lines[: shutil.get_terminal_size().lines - 1]
                    for line in lines:
                        say(line)
                if once:
                    return Exit.PARTLY if uncounted(bus) else Exit.DONE
                await asyncio.sleep(every_s)
        finally:
            await asker.close()

    return asyncio.run(show())


NO_RATES = "rates (IN/s, OUT/s) need two looks: `messagebus top` without --once"


def _look(bus: Bus, pasts: list[Bus], attention: Attention) -> Look:
    """Conclude from a look, and keep it. pasts: earlier looks, the oldest first."""
    while len(pasts) > 1 and bus.at_ms - pasts[1].at_ms >= RATES_OVER_MS:
        del pasts[0]
    rates: dict[tuple[str, str, Kind], Rates] = row_rates(pasts[0], bus) if pasts else {}
    look = Look(
        bus=bus,
        sums=totals(bus, rates),
        everything=total(bus, rates=rates),
        rates=broker_rates(pasts[0], bus) if pasts else {},
        attention=(*attention.step(bus, rates), *_early(attention)),
    )
    pasts.append(bus)
    return look


def _early(attention: Attention) -> list[Raised]:
    """Return the urgent conditions that have not held for as long as their rules require.

    The rules begin with the first look, so `top --once` would show none of them.
    """
    urgent = [each for each in attention.noticed if each.rule.severity == "page"]
    return sorted(urgent, key=lambda each: (-each.waiting, each.about))


def _lines(
    look: Look, sort: str, text: str, exact: bool, width: int | None = None
) -> Iterator[str]:
    """Yield the lines of a picture. width: of the terminal, None for none."""
    bus, now_ms = look.bus, look.bus.at_ms
    missing = uncounted(bus)
    clock = time.strftime("%H:%M:%S", time.localtime(now_ms / 1000))
    brokers = plural(len(bus.brokers), "broker")
    if missing:
        counted = len(bus.brokers) - len(missing)
        brokers = f"{counted} of {brokers} counted, without {', '.join(sorted(missing))}"
    title = f"{bus.cluster or 'bus'}, generation {bus.generation}: {brokers}  {clock}"
    yield from folded(title, width)
    for broker, why in [*sorted(missing.items())][:ATTENTION_ROWS]:
        yield from folded(f"! {broker} is not counted: {one_line(why)}", width)
    for raised in look.attention[:ATTENTION_ROWS]:
        since_s = (now_ms - raised.since_ms) / 1000
        # The first look cannot know since when.
        told = f"! {raised.text}" + (f" (for {duration(since_s)})" if since_s >= 1 else "")
        yield from folded(told, width)
    if len(look.attention) > ATTENTION_ROWS:
        yield f"! and {len(look.attention) - ATTENTION_ROWS} more"
    yield ""
    titles = ("BROKER", "STATE", "IN/s", "READY", "OLDEST", "CONNS", "FREE", "VERSION")
    cells = [_broker(look, seen, exact) for seen in bus.brokers]
    yield from table(titles, cells, texts=2, width=width, spared=("VERSION", "FREE", "CONNS"))
    yield ""
    found = sorted((each for each in look.sums.items() if text in each[0]), key=SORTS[sort])
    titles = ("NAME", "READY", "UNACKED", "OLDEST", "IN/s", "OUT/s", "CONSUMERS", "PARKED")
    cells = [sum_cells(name, each, exact) for name, each in found[:ROWS]]
    yield from table(titles, cells, texts=1, width=width)
    if len(found) > ROWS:
        yield f"and {len(found) - ROWS} more: --sort, --filter, --json"


def _broker(look: Look, observed: ObservedBroker, exact: bool) -> tuple[str, ...]:
    answer = observed.answer
    if observed.is_away:
        version = observed.last.state.rabbitmq if observed.last else ""
        return (observed.broker, f"down: {NO_LINK}", *[UNKNOWN] * 5, version or UNKNOWN)
    if answer is None:
        return (observed.broker, _silence(observed, look.bus.at_ms), *[UNKNOWN] * 6)
    state, rates = answer.state, look.rates.get(observed.broker)
    words = state.verdict + (f": {state.reason}" if state.reason else "")
    room = answer.room
    return (
        observed.broker,
        words,
        _rate(rates.came if rates else None),
        _count(sum(row.ready for row in answer.rows.values() if row.kind in SOURCES), exact),
        at_least(*_oldest(answer, look.bus.at_ms), lambda age_ms: oldest(int(age_ms), exact)),
        _count(room.connections if room else None, exact),
        _count(room.disk_free if room else None, exact, "B"),
        state.rabbitmq or UNKNOWN,
    )


def _silence(observed: ObservedBroker, now_ms: int) -> str:
    """Say for how long an agent has been silent, as far as it was heard before."""
    since_ms = observed.silent_since_ms
    if since_ms is None or observed.last is None:
        return "agent silent"
    return f"agent silent for {duration((now_ms - since_ms) / 1000)}"


def _oldest(answer: Answer, now_ms: int) -> tuple[int | None, bool]:
    """Return the age of the oldest message, and whether one may be older."""
    rows = [row for row in answer.rows.values() if row.kind in SOURCES and row.waiting]
    ages = [row.oldest_ms(now_ms) for row in rows]
    is_least = None in ages or any(row.oldest_is_least for row in rows)
    return max((age for age in ages if age is not None), default=0), is_least


def sum_cells(name: str, total: Sum, exact: bool) -> tuple[str, ...]:
    def count(value: float | None) -> str:
        return at_least(value, total.is_least, lambda number: _count(int(number), exact))

    def age(value: float) -> str:
        return oldest(int(value), exact)

    return (
        name,
        count(total.ready),
        count(total.unacked),
        at_least(total.oldest_ms, total.oldest_is_least, age),
        at_least(total.came, total.is_least, _rate),
        at_least(total.left, total.is_least, _rate),
        count(total.consumers) + ("!" if total.consumers and total.unconsumed else ""),
        count(total.parked),
    )


def _count(value: int | None, exact: bool, unit: str = "") -> str:
    if value is None:
        return UNKNOWN
    if exact or value < 10_000:
        return str(value)
    for divisor, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= divisor:
            return f"{value / divisor:.1f}{letter}{unit}"
    raise AssertionError("at least 10,000")


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1f}"


def oldest(age_ms: int | None, exact: bool = False) -> str:
    """Return an age in words, ``-`` where nothing waits."""
    if age_ms is None:
        return UNKNOWN
    return str(age_ms) if exact else duration(age_ms / 1000) if age_ms else "-"


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    texts: int,
    width: int | None = None,
    spared: Sequence[str] = (),
) -> Iterator[str]:
    """Yield aligned lines; the first `texts` columns to the left.

    width: the largest length of a line; None: no limit. To keep it, columns of `spared` are left out, the
    first one first. Then the columns of texts are shortened, the last one first, each down to TEXT_MIN;
    lines that are still longer are cut.
    """
    columns = [[*column] for column in zip(titles, *rows, strict=True)]
    over = _too_wide(columns, width)
    for title in spared:
        if over > 0:
            columns = [column for column in columns if column[0] != title]
            over = _too_wide(columns, width)
    widths = [max(map(len, column)) for column in columns]
    for place in reversed(range(texts)):
        taken = max(0, min(over, widths[place] - TEXT_MIN))
        widths[place] -= taken
        over -= taken
    for row in zip(*columns, strict=True):
        cells = [
            f"{shortened(cell, wide):<{wide}}" if place < texts else f"{cell:>{wide}}"
            for place, (cell, wide) in enumerate(zip(row, widths, strict=True))
        ]
        yield GAP.join(cells).rstrip()[:width]


def _too_wide(columns: Sequence[Sequence[str]], width: int | None) -> int:
    """Return by how many characters lines with these columns are longer than the width."""
    widths = [max(map(len, column)) for column in columns]
    return 0 if width is None else sum(widths) + len(GAP) * (len(widths) - 1) - width


def _as_json(look: Look) -> dict[str, Any]:
    """Return a look in whole numbers; null is what is not known."""
    sums = {name: {**asdict(each), "coverage": each.coverage} for name, each in look.sums.items()}
    return {
        "at_ms": look.bus.at_ms,
        "cluster": look.bus.cluster,
        "generation": look.bus.generation,
        "list_fault": look.bus.list_fault,
        "without": uncounted(look.bus),
        "brokers": {seen.broker: _broker_json(look, seen) for seen in look.bus.brokers},
        "balancers": [asdict(each) for each in look.bus.balancers],
        "subscriptions": sums,
        "attention": [
            {
                **{"rule": each.rule.name, "severity": each.rule.severity, "about": each.about},
                **{"text": each.text, "since_ms": each.since_ms, "manual": each.rule.manual},
            }
            for each in look.attention
        ],
    }


def _broker_json(look: Look, observed: ObservedBroker) -> dict[str, Any]:
    answer, rates = observed.answer, look.rates.get(observed.broker)
    if answer is None:
        return {"fault": observed.fault, "state": None, "room": None, "rates": None}
    room = asdict(answer.room) if answer.room else None
    told = asdict(rates) if rates else None
    return {"fault": "", "state": asdict(answer.state), "room": room, "rates": told}
