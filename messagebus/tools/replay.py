"""`messagebus replay`: the messages of a topic once more, printed or published."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import click

from messagebus._io.amqp_wire import AmqpWire
from messagebus._io.consume.copies import Copies, Original, Stored
from messagebus._io.loop import run_blocking
from messagebus.admin import directory
from messagebus.aio import AsyncPublisher
from messagebus.clock import wall_ms
from messagebus.commands.exits import Exit
from messagebus.commands.flow import layout_option
from messagebus.commands.options import Duration, NumberRange, bus_settings
from messagebus.config import BusConfig, PublisherConfig
from messagebus.destination import Subscription, parse_destination
from messagebus.envelope import Layout, as_envelope, write_envelope
from messagebus.errors import MessageBusError, ReplayGap, TopologyError
from messagebus.files import write_whole
from messagebus.replay import AsyncReplay, Checkpoint, Replayed, Since
from messagebus.terminal import Progress, plural, say
from messagebus.topology import parse_wanted

# Messages that are published side by side; a checkpoint is written behind each such group.
GROUP = 200
IDLE_S = 1.0
SIGNALS = {signal.SIGTERM: Exit.TERMINATED, signal.SIGINT: Exit.INTERRUPTED}

Send = Callable[[Replayed], Awaitable[object]]


class _Begin(click.ParamType[Any]):
    """Type of --since: first, next, a duration, or a time with its zone."""

    name = "begin"

    def convert(self, value: Any, param: Any, ctx: Any) -> Since:
        if value in ("first", "next"):
            return str(value)
        with contextlib.suppress(ValueError):
            found = datetime.fromisoformat(value)
            return found if found.tzinfo else found.astimezone()
        return timedelta(seconds=Duration().convert(value, param, ctx))


@click.command(short_help="Read TOPIC's messages again from its streams.")
@click.argument("topic")
@click.option(
    "--since",
    type=_Begin(),
    default="first",
    show_default=True,
    help="first, next, 2h, 7d, or a time such as 2030-01-31T08:00+01:00.",
)
@click.option("--follow", is_flag=True, help="Continue with messages that are published later.")
@click.option("--key", help="Only messages with this key.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option("--to", help="Publish them: to TOPIC/SUBSCRIPTION alone, TOPIC, or queue:NAME.")
@click.option("--rate", type=NumberRange(min=0.001), help="At most this many messages a second.")
@click.option(
    "--checkpoint",
    "file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Resume from this file, and keep it up to date.",
)
@click.option(
    "--on-gap",
    type=click.Choice(["raise", "time"]),
    default="raise",
    show_default=True,
    help="Where messages are gone: stop, or continue by time, with repetitions.",
)
@layout_option
def replay(
    topic: str,
    since: Since,
    follow: bool,
    key: str | None,
    count: int | None,
    to: str | None,
    rate: float | None,
    file: Path | None,
    on_gap: str,
    layout: Layout | None,
) -> int:
    """Read the messages of TOPIC again, from the streams of all brokers (messagebus declare stream:TOPIC).

    The command prints them as envelopes, one a line, or publishes them with --to under their ids. It removes
    no message. Exit code 3: messages that follow the checkpoint are gone.

    \b
    Example:
      messagebus replay orders --since 2h --key customer-1
      messagebus replay orders --since 7d --to orders/billing --rate 500
    """
    bus = bus_settings()
    directory.reach(bus)
    begin = _kept(file) or since
    reading = AsyncReplay(
        bus,
        topic,
        since=begin,
        until=None if follow else "now",
        on_gap=on_gap,  # type: ignore[arg-type]
        key=key,
    )
    # On a terminal the printed messages show the progress.
    is_shown = to is not None or not sys.stdout.isatty()
    progress = Progress("replayed", total=count) if is_shown else None
    work = _Work(reading, count, rate, file, progress, until_ms=0 if follow else wall_ms())
    send = _printing(topic, layout) if to is None else None
    try:
        with progress or contextlib.nullcontext():
            ended = run_blocking(work.run(send or _publishing(bus, str(to))))
    except ReplayGap as gap:
        say(f"messagebus: {gap}; --on-gap time goes on", err=True)
        ended = Exit.PARTLY
    except MessageBusError:
        say(f"replayed {plural(work.done, 'message')}", err=True)
        raise
    if to is not None or ended is not Exit.DONE:
        say(f"replayed {plural(work.done, 'message')}", err=True)
    return ended


def _kept(file: Path | None) -> Checkpoint | None:
    if file is None or not file.exists():
        return None
    try:
        return Checkpoint.parse(file.read_text())
    except (OSError, ValueError) as fault:
        raise click.UsageError(f"{file}: {fault}") from fault


class _Work:
    """One run of the command."""

    def __init__(
        self,
        reading: AsyncReplay,
        count: int | None,
        rate: float | None,
        file: Path | None,
        progress: Progress | None = None,
        *,
        until_ms: int = 0,
    ) -> None:
        """until_ms: the time at which the replay began; 0 if it follows later messages."""
        self._reading, self._count, self._file = reading, count, file
        self._pause_s = 1 / rate if rate else 0.0
        self._progress, self._until_ms = progress, until_ms
        self._first_ms = 0
        self.done = 0

    async def run(self, target: contextlib.AbstractAsyncContextManager[Send]) -> Exit:
        loop = asyncio.get_running_loop()
        stopped: asyncio.Future[Exit] = loop.create_future()

        def stop(code: Exit) -> None:
            for number in SIGNALS:  # a second one ends the process
                loop.remove_signal_handler(number)
            stopped.set_result(code)

        for number, code in SIGNALS.items():
            loop.add_signal_handler(number, stop, code)
        async with target as send, self._reading:
            reading = asyncio.create_task(self._read(send))
            either: list[asyncio.Future[Any]] = [reading, stopped]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
                return Exit.DONE
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            return stopped.result()

    async def _read(self, send: Send) -> None:
        group: list[Replayed] = []
        due_s = time.monotonic()
        while self._count is None or self.done + len(group) < self._count:
            try:
                # With nothing more on its way what there is goes out.
                async with asyncio.timeout(IDLE_S if group else None):
                    found = await anext(self._reading, None)
            except TimeoutError:
                await self._send(group, send)
                continue
            if found is None:
                break
            if self._pause_s:
                due_s = max(due_s + self._pause_s, time.monotonic() - 1)
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            group.append(found)
            if len(group) == GROUP:
                await self._send(group, send)
        await self._send(group, send)

    async def _send(self, group: list[Replayed], send: Send) -> None:
        """Send a group, then write the checkpoint behind it. Raises its first fault when all have ended."""
        ends = await asyncio.gather(*(send(each) for each in group), return_exceptions=True)
        faults = [end for end in ends if isinstance(end, BaseException)]
        sys.stdout.flush()
        self.done += len(group) - len(faults)
        if faults:
            raise faults[0]
        self._tell(group)
        group.clear()
        if self._file is not None:
            write_whole(self._file, f"{self._reading.checkpoint()}\n", mode=None)

    def _tell(self, group: list[Replayed]) -> None:
        """Show the progress, by --count or by the times at which messages were published."""
        if self._progress is None or not group:
            return
        share, at_ms = None, group[-1].published_ms
        if self._progress.total is None and self._until_ms and at_ms:
            self._first_ms = self._first_ms or at_ms
            share = (at_ms - self._first_ms) / max(1, self._until_ms - self._first_ms)
        self._progress.at(self.done, share=share)


@contextlib.asynccontextmanager
async def _printing(topic: str, layout: Layout | None) -> Any:
    out = sys.stdout.buffer

    async def send(replayed: Replayed) -> None:
        place = {"broker": replayed.broker, "offset": replayed.offset, "part": replayed.part}
        told = as_envelope(
            replayed.message, destination=topic, time_ms=replayed.published_ms, received=place
        )
        out.write((write_envelope(told) if layout is None else layout.line(told).encode()) + b"\n")

    yield send


@contextlib.asynccontextmanager
async def _publishing(bus: BusConfig, to: str) -> Any:
    if "/" in to:
        target = parse_wanted(to)
        assert isinstance(target, Subscription)
        copies = Copies.over(bus, target, AmqpWire(bus))

        async def copy(replayed: Replayed) -> None:
            original = Original(
                properties=replayed._properties,
                body=replayed.body,
                entry=replayed.part > 0,
                stamp_ms=replayed.published_ms,
            )
            if await copies.again(original, {}, lambda: True) is not Stored.STORED:
                raise TopologyError(f"{replayed.message_id} was not stored in {to}")

        try:
            yield copy
        finally:
            await copies.stop()
        return
    destination = parse_destination(to)
    async with AsyncPublisher(bus, PublisherConfig.from_env(os.environ)) as publisher:

        async def publish(replayed: Replayed) -> None:
            await publisher.send_safe(destination, replayed.message)

        yield publish
