"""`messagebus tail`: new messages of a topic, through taps of agents; nothing is taken from anybody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import click
import httpx

from messagebus._io.agents.http import http_client
from messagebus._io.loop import run_blocking
from messagebus.admin import directory
from messagebus.broker import ListedBroker
from messagebus.commands.exits import Exit
from messagebus.commands.flow import layout_option
from messagebus.commands.options import NumberRange, bus_settings
from messagebus.config import BusConfig, with_agents
from messagebus.destination import Topic, parse_destination
from messagebus.envelope import Layout
from messagebus.errors import (
    LinkLost,
    LoginRefused,
    MessageBusError,
    NotFound,
    reason_of,
)
from messagebus.message import BODY_BYTES_MAX
from messagebus.terminal import plural, say

CONNECT_S = 2.0
# An agent says something every 10 s.
READ_S = 30.0
RATE_MAX = 25_000
# Of an envelope: each byte of a body may be six characters.
LINE_BYTES_MAX = 8 * BODY_BYTES_MAX
BODY_CHARS_MAX = 300
SHOWN = Layout(f"{{time}} {{broker}} {{key}} {{body:.{BODY_CHARS_MAX}}}{{body_base64:.40}}")
BODIES = Layout("{body}{body_base64}")


@click.command(short_help="Show new messages of TOPIC without consuming them.")
@click.argument("topic")
@click.option("--all", "everywhere", is_flag=True, help="Tap all brokers, not one of them.")
@click.option("--broker", "brokers", multiple=True, help="Tap this HOST:PORT; repeatable.")
@click.option("--grep", help="Only messages whose envelope matches this regular expression.")
@click.option("--key", help="Only messages with exactly this key.")
@click.option("--sample", type=NumberRange(0, 1), help="Only this share of messages, such as 0.01.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option("--ndjson", is_flag=True, help="Print envelopes: id, key, headers, body as JSON.")
@layout_option
@click.option(
    "--rate",
    "rate_per_s",
    type=click.IntRange(1, RATE_MAX),
    default=1_000,
    show_default=True,
    help="At most this many messages a second.",
)
def tail(
    topic: str,
    everywhere: bool,
    brokers: tuple[str, ...],
    grep: str | None,
    key: str | None,
    sample: float | None,
    count: int | None,
    ndjson: bool,
    layout: Layout | None,
    rate_per_s: int,
) -> int:
    """Print new messages of TOPIC as they are published, until it is stopped. No consumer loses one.

    The command taps one broker; --all taps all. Each message is on one broker, so one tap shows the messages
    of some publishers only. A tap never slows down publishers: above --rate it reads during a part of each
    second only, and standard error says that messages are missing. Up to --rate it costs a broker about as
    much as one more subscription without fsync. It requires the right to read a subscription of TOPIC, and
    ends after 15 minutes.

    \b
    Example:
      messagebus tail orders --all --grep customer.42
      messagebus tail orders --ndjson --count 100 | jq .headers
    """
    destination, bus = parse_destination(topic), bus_settings()
    if not isinstance(destination, Topic):
        raise click.UsageError(f"{topic}: a topic is tapped; consume takes from a queue")
    with_agents(bus)
    if everywhere and brokers:
        raise click.UsageError("--all or --broker, not both")
    try:
        pattern = re.compile(grep) if grep else None
    except re.error as fault:
        raise click.UsageError(f"--grep {grep!r}: {fault}") from fault
    directory.reach(bus)
    listed = list(directory.brokers(bus))
    chosen = [each for each in listed if not brokers or each.broker.name in brokers]
    if strange := set(brokers) - {each.broker.name for each in listed}:
        raise NotFound(f"{', '.join(sorted(strange))}: not in the consumer list")
    if not everywhere and not brokers:
        # A broker that drains gets no new messages.
        fit = [each for each in chosen if not each.draining] or chosen
        chosen = [random.choice(fit)]
        told = f"of {plural(len(listed), 'broker')}; --all taps all"
        say(f"messagebus: tapping {chosen[0].broker}, 1 {told}", err=True)
    shown = layout or (SHOWN if sys.stdout.isatty() else BODIES)
    printing = _Printing(pattern, key, sample, count, None if ndjson else shown)
    run_blocking(_tap_all(bus, chosen, str(destination), rate_per_s, printing))
    return Exit.DONE


class _Printing:
    """Prints the lines of taps that pass its filters. layout: None prints envelopes as they are."""

    def __init__(
        self,
        pattern: re.Pattern[str] | None,
        key: str | None,
        sample: float | None,
        count: int | None,
        layout: Layout | None,
    ) -> None:
        self._pattern, self._key, self._sample = pattern, key, sample
        self._left, self._layout = count, layout
        self._out = sys.stdout.buffer
        self._missed = set[str]()

    def lines(self, broker: str, lines: list[bytes]) -> bool:
        """Print what passes. Returns whether more is wanted."""
        write = self._out.write
        for line in lines:
            if line.startswith(b'{"id":'):
                if (text := self._passed(line)) is not None:
                    write(text + b"\n")
                    if self._left is not None:
                        self._left -= 1
                        if not self._left:
                            break
            elif line:
                self._report(broker, line)
        self._out.flush()
        return self.wants

    @property
    def wants(self) -> bool:
        return self._left is None or self._left > 0

    def _passed(self, line: bytes) -> bytes | None:
        if self._sample is not None and random.random() >= self._sample:
            return None
        if self._pattern is not None and not self._pattern.search(line.decode()):
            return None
        if self._key is None and self._layout is None:
            text = line.decode("utf-8", "replace")
            return (text if text.isprintable() else json.dumps(_read(text))).encode()
        told = json.loads(line)
        if self._key is not None and told.get("key", "") != self._key:
            return None
        return line if self._layout is None else self._layout.line(told).encode()

    def _report(self, broker: str, line: bytes) -> None:
        with contextlib.suppress(ValueError):
            told = json.loads(line)
            if "ended" in told:
                say(f"messagebus: the tap of {broker} ended {told['ended']}", err=True)
            elif "missed" in told and broker not in self._missed:
                self._missed.add(broker)
                say(f"messagebus: {broker} has more than can be shown: some are missing", err=True)


def _read(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:  # an agent that lies
        return line


async def _tap_all(
    bus: BusConfig, chosen: list[ListedBroker], topic: str, rate: int, printing: _Printing
) -> None:
    """Tap until all taps have ended or enough is printed. Raises the error of the last, if none printed."""
    faults: list[MessageBusError] = []

    async def one(listed: ListedBroker) -> None:
        try:
            await _tap(
                bus, listed, topic, rate, lambda lines: printing.lines(listed.broker.name, lines)
            )
        except MessageBusError as fault:
            faults.append(fault)
            if len(chosen) > 1:
                say(f"messagebus: {fault}", err=True)

    tasks = [asyncio.ensure_future(one(each)) for each in chosen]
    try:
        for done in asyncio.as_completed(tasks):
            await done
            if not printing.wants:
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if len(faults) == len(chosen):
        raise faults[-1]


async def _tap(
    bus: BusConfig,
    listed: ListedBroker,
    topic: str,
    rate: int,
    on_lines: Callable[[list[bytes]], bool],
) -> None:
    """Pass on the lines of one agent. Raises LinkLost, LoginRefused, NotFound."""
    scheme = "https" if bus.list_urls[0].lower().startswith("https") else "http"
    url = f"{scheme}://{listed.agent_address}/tap"
    query: dict[str, Any] = {"destination": topic, "rate_max": rate, "length_max": 10_000}
    who = httpx.BasicAuth(bus.current_user(), bus.current_password().reveal())
    timeout = httpx.Timeout(CONNECT_S, read=READ_S)
    try:
        async with (
            http_client(bus) as http,
            http.stream("GET", url, params=query, auth=who, timeout=timeout) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                _refused(url, answer.status_code, await answer.aread())
            async for lines in whole_lines(answer.aiter_raw()):
                if not on_lines(lines):
                    return
    except ValueError as fault:
        raise LinkLost(listed.broker.name, f"{url}: {fault}") from None
    except httpx.HTTPError as fault:
        raise LinkLost(listed.broker.name, f"{url}: {reason_of(fault)}") from fault


async def whole_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield the lines that each chunk ends. Raises ValueError for one of more than LINE_BYTES_MAX."""
    rest, size = list[bytes](), 0
    async for chunk in chunks:
        *lines, last = chunk.split(b"\n")
        if lines:
            lines[0] = b"".join((*rest, lines[0]))
            rest, size = [], 0
            yield lines
        rest.append(last)
        size += len(last)
        if size > LINE_BYTES_MAX:
            raise ValueError(f"a line of more than {LINE_BYTES_MAX:,} bytes")


def _refused(url: str, code: int, body: bytes) -> None:
    try:
        told = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        told = f"HTTP {code}: an agent that cannot tap"
    match code:
        case 401 | 403:
            raise LoginRefused(url, str(told))
        case 404:
            raise NotFound(str(told))
    raise LinkLost(url, str(told))
