"""The time of a publisher without a confirm when its broker dies, freezes, is in alarm, or goes silent.

One publisher at a steady rate, through HAProxy to three brokers. Each event affects the broker to which
the publisher is connected at that moment. Its gap is the time from the event to the next confirm, or the
longest one between two confirms after it, if that is longer. For packets that vanish without a reset, a
relay before HAProxy keeps the connection open and passes nothing. At the end an audit by id checks that
nothing is lost.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from bench.errors import BenchError
from bench.faults import Fault, fault_of
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import BEHIND_HAPROXY, Group, Setup, repeat_command
from bench.harness.workers import Workers, at_work, read_progress
from bench.processes import wait_until
from messagebus.broker import Broker
from messagebus.recording.manifest import Incident
from ops.local.cluster import LocalCluster

NAME = "client.gap"
SUBSCRIPTION, PUBLISHER = "sink", "publisher-0"
EVENTS = 50
RATE_PER_S = 300.0
BODY_BYTES = 1024
# Seconds of work before an event, and of watching after it.
BEFORE_S, WATCHED_S = 1.0, 4.0
FOUND_WITHIN_S = 30.0
WHOLE_WITHIN_S = 90.0
S = 1e9


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    what: str
    goal_s: float


KINDS = (
    Kind("kill", "Broker killed (SIGKILL)", 0.25),
    Kind("freeze", "Broker frozen (SIGSTOP)", 3.0),
    Kind("alarm", "Broker in memory alarm", 3.0),
    Kind("silence", "Packets of the link dropped without a reset", 3.0),
)


def gap_figures(setup: Setup) -> Iterator[Figure]:
    events = setup.part(EVENTS, 3)
    repeat = repeat_command(NAME)
    lost = 0
    for kind in KINDS:
        topic = f"gap{kind.name}"
        gaps, result = _measure(setup, kind, topic, events)
        lost += result
        yield from figures_of(kind, gaps, repeat)
    what = f"Confirmed messages lost in all {len(KINDS)} x {events} events, by their ids"
    yield Maker(NAME, repeat)("lost", what, lost, "messages", (at_most, 0))


def figures_of(kind: Kind, gaps: Sequence[float], repeat: str) -> Iterator[Figure]:
    what = (
        f"{kind.what}: longest time of its publisher without a confirm, worst of {len(gaps)} events"
    )
    rounded = [round(gap, 4) for gap in gaps]
    yield Maker(NAME, repeat)(f"{kind.name}_s", what, rounded, "s", (at_most, kind.goal_s), max)


def gaps_s(confirmed_ns: Sequence[int], events_ns: Sequence[int], watched_s: float) -> list[float]:
    """Return the longest silence after each event. confirmed_ns: sorted.

    A silence that began while the publisher was watched counts whole, even if it ended later.
    Raises BenchError when one never ended.
    """
    found: list[float] = []
    for at_ns in events_ns:
        first = bisect.bisect_right(confirmed_ns, at_ns)
        last = bisect.bisect_right(confirmed_ns, at_ns + int(watched_s * S))
        marks = [at_ns, *confirmed_ns[first : last + 1]]
        if last >= len(confirmed_ns):
            raise BenchError("a publisher had no confirm any more after an event")
        found.append(max(later - earlier for earlier, later in itertools.pairwise(marks)) / S)
    return found


def _measure(setup: Setup, kind: Kind, topic: str, events: int) -> tuple[list[float], int]:
    """Return the gap of each event, and the number of confirmed messages that were never delivered."""
    cluster = setup.cluster
    balancer = Broker.parse(cluster.broker)
    incidents = []
    with Relay(balancer.host, balancer.port) as relay:
        is_silence = kind.name == "silence"
        strike = partial(_silence, relay) if is_silence else partial(fault_of, kind.name, cluster)
        env = {"MESSAGEBUS_BROKER": relay.address} if is_silence else {}
        load = at_work(
            cluster,
            setup.folder / kind.name,
            [f"{topic}/{SUBSCRIPTION}"],
            publishers=1,
            rate_per_s=RATE_PER_S,
            body_bytes=BODY_BYTES,
            env=env,
        )
        with load as clients:
            for number in range(events):
                incidents.append(_event(clients, cluster, strike))
                setup.say(f"{kind.what}: event {number + 1} of {events}")
            time.sleep(BEFORE_S)
            clients.finish()
    rows, result = clients.whole(cluster.brokers, incidents, may_lose=True)
    confirmed = sorted(row["confirmed_ns"] for row in rows.published if "confirmed_ns" in row)
    gaps = gaps_s(confirmed, [incident.at_ns for incident in incidents], WATCHED_S)
    return gaps, result.total("lost")


def _event(clients: Workers, cluster: LocalCluster, strike: Callable[[str], Fault]) -> Incident:
    """Cause the fault at the publisher's broker, watch the publisher, and end the fault."""
    clients.check()
    cluster.wait_ready(within_s=WHOLE_WITHIN_S)
    time.sleep(BEFORE_S)
    name = _at_broker(clients, cluster)
    fault, at_ns = strike(name), time.monotonic_ns()
    fault.begin()
    time.sleep(WATCHED_S)
    fault.end()
    broker = cluster.node(name).broker
    kind = fault.cuts or "cut"
    return Incident(kind=kind, broker=broker, at_ns=at_ns, done_ns=time.monotonic_ns())


def _silence(relay: Relay, name: str) -> Fault:
    return Fault("silence", name, WATCHED_S, "cut", relay.swallow, relay.heal)


def _at_broker(clients: Workers, cluster: LocalCluster) -> str:
    """Return the broker that confirms the publisher's messages at the moment."""
    before = read_progress(clients.folder)[PUBLISHER].brokers
    found: list[str] = []

    def confirmed_since() -> bool:
        now = read_progress(clients.folder)[PUBLISHER].brokers
        found[:] = [broker for broker, count in now.items() if count > before.get(broker, 0)]
        return len(found) > 0

    wait_until(confirmed_since, within_s=FOUND_WITHIN_S, what="the publisher has a confirm")
    return next(name for name in cluster.names if cluster.node(name).broker == found[-1])


READ_BYTES = 65_536
START_WITHIN_S = 10.0
STOP_WITHIN_S = 10.0


class Relay:
    """A TCP relay that can silently drop all data of its open connections, without a reset.

    It simulates a path that loses its packets: open connections stay open and silent in both directions; new
    connections work. It listens on a loopback port of its own choice, passes bytes to host:port, and runs on
    a thread of its own.

    with Relay("127.0.0.10", 5672) as relay:
        connect_to(relay.address)
        relay.swallow()
    """

    def __init__(self, host: str, port: int, *, listen: str = "127.0.0.1") -> None:
        self._target = (host, port)
        self._listen = listen
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._pairs: set[_Pair] = set()
        self._thread = threading.Thread(target=self._work, name="relay", daemon=True)
        self.address = ""

    def swallow(self) -> None:
        """Drop all data of the connections that are open now, from now on."""
        self._loop.call_soon_threadsafe(self._swallow)

    def heal(self) -> None:
        """End every connection whose data was dropped, like a recovered path that no longer knows it."""
        self._loop.call_soon_threadsafe(self._heal)

    def _heal(self) -> None:
        for pair in [pair for pair in self._pairs if pair.silent]:
            pair.close()

    def _swallow(self) -> None:
        for pair in self._pairs:
            pair.silent = True

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(START_WITHIN_S):
            raise TimeoutError("the relay does not start")
        return self

    def __exit__(self, *_: object) -> None:
        if self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(STOP_WITHIN_S)

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._accept, self._listen, 0)
        host, port = server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        self._started.set()
        await self._stopping.wait()
        server.close()
        for pair in list(self._pairs):
            pair.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        pair = _Pair(writer, far_writer)
        self._pairs.add(pair)
        try:
            await asyncio.gather(pair.pass_on(reader, far_writer), pair.pass_on(far_reader, writer))
        finally:
            self._pairs.discard(pair)
            pair.close()


class _Pair:
    """The two ends of one connection."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.silent = False
        self._ends = (near, far)

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass data until one end closes. While the pair is silent, the other end does not notice."""
        with contextlib.suppress(OSError):
            while block := await reader.read(READ_BYTES):
                if not self.silent:
                    writer.write(block)
                    await writer.drain()
        if not self.silent:
            writer.close()

    def close(self) -> None:
        for end in self._ends:
            end.close()


GROUP = Group(NAME, 3, BEHIND_HAPROXY, gap_figures)
