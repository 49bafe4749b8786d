"""Replays: the messages of a topic are read again from its streams, on all brokers at once.

A topic has a stream when one was declared: ``declare(bus, [Stream("orders", keep_s=7 * 86400)])``. A replay
takes nothing away and needs no answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Literal, Self

from messagebus._io.amqp_wire import AmqpWire
from messagebus._io.loop import LoopThread, OneStop, run_blocking
from messagebus._io.replay import ReplayDriver, Replayed, Start, look_at
from messagebus._io.wire import Wire
from messagebus.clock import wall_ms, whole_ms
from messagebus.config import BusConfig, bus_of
from messagebus.core.checkpoint import Checkpoint, Position, behind
from messagebus.core.homes import partition_of, read_homes
from messagebus.destination import Stream, Topic, parse_destination
from messagebus.errors import ConfigError, NameInvalid, Stopped, TopologyError
from messagebus.topology import Wanted

__all__ = ["AsyncReplay", "Checkpoint", "Position", "Replay", "Replayed", "behind", "stream_ends"]

Since = str | datetime | timedelta | Checkpoint
"""Begin of a replay: "first", "next", an aware datetime, a time before now, or a checkpoint."""
PREFETCH, PREFETCH_MAX = 1_000, 65_535
# For brokers that cannot be reached.
AWAY_S = 60.0
LOOK_S = 2.0


class _Reading:
    """The settings and the progress of one replay."""

    def __init__(
        self,
        topic: Topic | str,
        since: Since,
        until: str | Checkpoint | None,
        on_gap: str,
        prefetch: int,
        away_s: float | None,
        key: str | None,
    ) -> None:
        parsed = parse_destination(topic) if isinstance(topic, str) else topic
        if not isinstance(parsed, Topic):
            raise NameInvalid(f"{parsed}: only a topic has a stream to replay")
        self.stream = Stream(parsed)
        ends = _ends(until, parsed)
        if since == "next" and until == "now":
            raise ConfigError('since "next" has nothing to read until "now": until=None goes on')
        if on_gap not in ("raise", "time"):
            raise ConfigError(f'on_gap {on_gap!r}: "raise", or "time" to go on by time')
        if type(prefetch) is not int or not 1 <= prefetch <= PREFETCH_MAX:
            raise ConfigError(f"prefetch {prefetch!r}: a whole number, 1 to {PREFETCH_MAX}")
        if away_s is not None and not 0 < away_s < 1e9:
            raise ConfigError(f"away_s {away_s!r}: seconds, more than 0, or None for ever")
        self.start, self.before = _start(since, parsed)
        self.key = key
        self.last: dict[str, Replayed] = {}
        self.ready: deque[Replayed] = deque()
        self._options: dict[str, Any] = {
            "until": ends,
            "goes_on": on_gap == "time",
            "prefetch": prefetch,
            "away_s": away_s,
        }

    def driver(self, bus: BusConfig, wire: Wire, home: str) -> ReplayDriver:
        """Make the driver, on its loop, and let it begin."""
        options = {**self._options, "start": self.start, "positions": self.before, "home": home}
        made = ReplayDriver(bus, self.stream, wire, **options)
        made.begin()
        return made

    def add(self, arrived: list[Replayed]) -> None:
        """Take what has arrived. Messages passed over in front of the next one were read, too."""
        for each in arrived if self.key is not None else ():
            if each.key == self.key:
                self.ready.append(each)
            elif not self.ready:
                self.last[each.broker] = each
        if self.key is None:
            self.ready += arrived

    def take(self) -> Replayed:
        found = self.ready.popleft()
        self.last[found.broker] = found
        return found

    def checkpoint(self) -> Checkpoint:
        positions = {broker: each.position for broker, each in self.last.items()}
        return Checkpoint(self.stream.topic.name, {**self.before, **positions})


def _start(since: Since, topic: Topic) -> tuple[Start, dict[str, Position]]:
    match since:
        case "first" | "next":
            return str(since), {}
        case Checkpoint():
            if since.topic != topic.name:
                raise ConfigError(f"a checkpoint of {since.topic!r}, not of {topic.name!r}")
            return "first", dict(since.positions)
        case datetime():
            if since.tzinfo is None:
                raise ConfigError(f"since {since}: a datetime with a time zone")
            return max(1, whole_ms(since.timestamp())), {}
        case timedelta():
            if since < timedelta(0):
                raise ConfigError(f"since {since}: a time before now, not after it")
            return max(1, wall_ms() - whole_ms(since.total_seconds())), {}
    raise ConfigError(
        f'since {since!r}: "first", "next", a datetime, a timedelta before now, or a Checkpoint'
    )


def _ends(until: str | Checkpoint | None, topic: Topic) -> Mapping[str, Position] | str | None:
    match until:
        case None | "now":
            return until
        case Checkpoint() if until.topic == topic.name and until.positions:
            return dict(until.positions)
    raise ConfigError(
        f'until {until!r}: "now", a checkpoint of {topic.name!r} with brokers, or None to go on'
    )


class AsyncReplay:
    """Replay of a topic for asyncio, on the event loop where it is first iterated.

        async with AsyncReplay(bus, "orders", since=timedelta(hours=2)) as replay:
            async for message in replay:
                ...

    Settings and errors as of `Replay`. If a wait for the next message is cancelled, no message is lost.
    """

    def __init__(
        self,
        bus: BusConfig | None,
        topic: Topic | str,
        *,
        since: Since = "first",
        until: Literal["now"] | Checkpoint | None = "now",
        on_gap: Literal["raise", "time"] = "raise",
        prefetch: int = PREFETCH,
        away_s: float | None = AWAY_S,
        key: str | None = None,
        _wire: Wire | None = None,
    ) -> None:
        self._bus = bus_of(bus)
        self._wire = _wire or AmqpWire(self._bus)
        self._reading = _Reading(topic, since, until, on_gap, prefetch, away_s, key)
        self._driver: ReplayDriver | None = None
        self._ending = OneStop()
        self._is_over, self._failed = False, ""

    def checkpoint(self) -> Checkpoint:
        """Return the position behind the last message that was returned, on each broker."""
        return self._reading.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End the replay, also for a task that waits for a message; further calls do nothing."""
        self._is_over = True
        driver, self._driver = self._driver, None
        if driver is not None:
            self._ending.begin(_stop(driver))
        if self._ending.has_begun:
            await self._ending.wait()

    def __del__(self) -> None:
        driver = getattr(self, "_driver", None)
        if driver is not None:
            driver.abandon()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Replayed:
        reading = self._reading
        if not reading.ready and not await self._fill():
            raise StopAsyncIteration
        return reading.take()

    async def _fill(self) -> bool:
        """Wait for messages; False at the end."""
        reading = self._reading
        home = await self._home(reading.key) if self._driver is None and reading.key else ""
        if self._has_ended():
            return False
        if self._driver is None:
            self._driver = reading.driver(self._bus, self._wire, home)
        driver = self._driver
        try:
            while not reading.ready and (found := await driver.take()):
                reading.add(found)
        except asyncio.CancelledError:  # as by a time limit of the caller: the next call goes on
            raise
        except BaseException as fault:
            self._note(fault)
            await self.stop()
            raise
        if not reading.ready:
            await self.stop()
        return bool(reading.ready)

    def _note(self, fault: BaseException) -> None:
        """Note the error that ends it, where it was not stopped before."""
        if not self._is_over:
            self._failed = type(fault).__name__

    def _has_ended(self) -> bool:
        """Return whether it has ended. Raises Stopped behind an error: not all of it was read."""
        if self._failed:
            raise Stopped(f"the replay ended by {self._failed}: go on with its checkpoint")
        return self._is_over

    async def _home(self, key: str) -> str:
        """Return the only broker with messages of a key; "" for one that has moved, or is not known."""
        stream, known = self._reading.stream, list[Wanted]()
        if self._bus.list_urls:
            # Here, since a bus in memory needs no HTTP.
            from messagebus._io.agents.subscriptions import topology

            with suppress(TopologyError):
                known = await topology(self._bus)
        for topic in (each.topic for each in known if isinstance(each, Stream) and each == stream):
            if homes := read_homes(topic.homes, topic.partitions):
                home = homes[partition_of(key, topic.partitions)]
                return home.broker if home.epoch == 1 else ""
        return ""


async def _stop(driver: ReplayDriver) -> int:
    await driver.stop()
    return 0


class Replay:
    """Replay of a topic: an iterator over its stored messages, from all brokers.

        for message in Replay(bus, "orders", since=timedelta(hours=2)):
            handle(message.body)

    bus: None for the settings of the environment, as of `Publisher`.
    since: "first", "next", an aware datetime, a timedelta before now, or the `checkpoint` of an earlier one.
    until: "now": end with the last message that a broker has when it is first reached; None: wait for later
        messages; a checkpoint: the last message of each broker to read, without a consumer list.
    on_gap: what happens if messages behind the checkpoint are gone: "raise": raise `ReplayGap`; "time":
        continue a minute before the time of the last message, with repetitions and a warning.
    prefetch: the largest number of unread messages of each broker; memory holds up to twice as many.
    away_s: seconds for which a broker may be unreachable before NotReady is raised; None: no limit.
    key: only messages with this key. For a topic with partitions only the key's home is read, in order; if
        its partition has moved, all brokers are read.

    Messages are in the order of each broker. A message that was published twice is read twice, with one id.
    Raises ChannelRefused with code 404 if the topic has no stream, with 403 if the user must not read it, and
    LoginRefused. After an error every further call raises Stopped.
    Thread: one thread at a time may call it.
    """

    def __init__(
        self,
        bus: BusConfig | None,
        topic: Topic | str,
        *,
        since: Since = "first",
        until: Literal["now"] | Checkpoint | None = "now",
        on_gap: Literal["raise", "time"] = "raise",
        prefetch: int = PREFETCH,
        away_s: float | None = AWAY_S,
        key: str | None = None,
        _wire: Wire | None = None,
    ) -> None:
        self._inner = AsyncReplay(
            bus,
            topic,
            since=since,
            until=until,
            on_gap=on_gap,
            prefetch=prefetch,
            away_s=away_s,
            key=key,
            _wire=_wire,
        )
        self._loop: LoopThread | None = None

    def checkpoint(self) -> Checkpoint:
        """Return the position behind the last message that was returned, on each broker."""
        return self._inner.checkpoint()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the replay; further calls do nothing."""
        self._inner._is_over = True
        loop, self._loop = self._loop, None
        if loop is not None and loop.is_here:
            loop.run(self._inner.stop())
            loop.stop()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Replayed:
        reading = self._inner._reading
        if not reading.ready:
            self._fill()
        return reading.take()

    def _fill(self) -> None:
        if self._inner._has_ended():
            raise StopIteration
        if self._loop is None:
            self._loop = LoopThread("messagebus-replay")
        is_more = False
        try:
            is_more = self._loop.run(self._inner._fill())
        except BaseException as fault:  # KeyboardInterrupt, too
            self._inner._note(fault)
            raise
        finally:
            if not is_more:
                self.stop()
        if not is_more:
            raise StopIteration

    def __del__(self) -> None:
        if getattr(self, "_loop", None) is not None:
            self.stop()


def stream_ends(
    bus: BusConfig | None,
    topic: Topic | str,
    *,
    since: Mapping[str, int] | None = None,
    within_s: float = LOOK_S,
    whole: bool = False,
    _wire: Wire | None = None,
) -> dict[str, Position | None]:
    """Return the position of the last message in each broker's stream; None where it is empty.

    since: broker -> offset: the first message from there on instead, on these brokers, without a list.
    Brokers that do not answer within this time in s are left out; whole: they are a NotReady. Raises NotReady
    without a consumer list, LoginRefused, and ChannelRefused 403. For threads without a loop.
    """
    parsed = parse_destination(topic) if isinstance(topic, str) else topic
    assert isinstance(parsed, Topic)
    bus = bus_of(bus)
    wire, starts = _wire or AmqpWire(bus), dict[str, Start]()
    if since is not None:
        starts = {broker: behind(offset) for broker, offset in since.items()}
        if not starts:
            return {}
    return run_blocking(look_at(bus, Stream(parsed), wire, starts, within_s=within_s, whole=whole))
