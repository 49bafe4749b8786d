"""The pipe tools on real brokers: their rates and CPU time, what a kill of them loses, what a tap costs.

Beside each rate stands the CPU time of the tool's own process a message: a rate on a busy machine is mostly
that of its neighbours.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from bench.errors import BenchError
from bench.figures.form import Figure, Maker, at_least, at_most
from bench.figures.scene import BEHIND_HAPROXY, Group, Scene, repeat_command
from bench.processes import wait_until
from messagebus import (
    Batching,
    BusConfig,
    Message,
    Publisher,
    PublisherConfig,
    count_subscriptions,
    declare,
)
from messagebus.envelope import read_envelope
from messagebus_tools.archive import open_archive

NAME = "see.tools"
TAILED, FILED, POSTED, KILLED, TAPPED = "tailed", "filed", "posted", "killed", "tapped"
SUBSCRIPTION = "all"
TAIL_LINES, FILES_MESSAGES, POSTS = 60_000, 60_000, 5_000
TAIL_BYTES, FILE_BYTES, POST_BYTES = 200, 1_024, 200
KILLS, A_KILL = 50, 500
TAP_TURN_S, TAP_PAIRS = 4.0, 5
HELPS = 10
IDLE_S, WITHIN_S = 2.0, 300.0
ENDED_BY_TERM = 143
AT_ONCE = 1_000
GOAL_TAIL_PER_S, GOAL_FILE_PER_S, GOAL_POST_PER_S = 20_000, 20_000, 1_500
GOAL_TAP_PERCENT, GOAL_HELP_MS = 15, 150


def _figures(scene: Scene) -> Iterator[Figure]:
    make = Maker(NAME, repeat_command(NAME, scene.repeat))
    env = {**os.environ, **scene.cluster.client_env()}
    bus = BusConfig.from_env(env)
    names = (TAILED, FILED, POSTED, KILLED, TAPPED)
    declare(bus, [f"{name}/{SUBSCRIPTION}" for name in names])
    yield from _help(scene, make)
    yield from _tail(scene, bus, env, make)
    yield from _to_file(scene, bus, env, make)
    yield from _to_http(scene, bus, env, make)
    yield from _kills(scene, bus, env, make)
    yield from _tap(scene, bus, env, make)


class _Tool:
    """A command of ours as a process, and what it took."""

    def __init__(self, env: dict[str, str], *words: str, log: Path, **how: Any) -> None:
        argv = [sys.executable, "-m", "messagebus", *words]
        with log.open("a") as errors:
            self.process = subprocess.Popen(argv, env=env, stderr=errors, **how)
        self.began_s = time.perf_counter()

    def ended(self) -> tuple[float, float]:
        """Wait for its end. Returns seconds since its begin, and of CPU. Raises BenchError."""
        _, status, used = os.wait4(self.process.pid, 0)
        took_s = time.perf_counter() - self.began_s
        self.process.returncode = os.waitstatus_to_exitcode(status)
        if self.process.returncode > 0 and self.process.returncode != ENDED_BY_TERM:
            raise BenchError(f"{self.process.args!r} ends with {self.process.returncode}")
        return took_s, used.ru_utime + used.ru_stime


def _help(scene: Scene, make: Maker) -> Iterator[Figure]:
    took = []
    for _ in range(scene.part(HELPS, 3)):
        tool = _Tool(
            dict(os.environ), "--help", log=scene.folder / "help.log", stdout=subprocess.DEVNULL
        )
        took.append(tool.ended())
    what = "messagebus --help"
    yield make("help_ms", what, [s * 1e3 for s, _ in took], "ms", (at_most, GOAL_HELP_MS))
    yield make("help_cpu_ms", f"{what}: CPU time", [cpu * 1e3 for _, cpu in took], "ms")


def _fill(bus: BusConfig, topic: str, count: int, size: int) -> set[str]:
    body, ids = b"x" * size, set[str]()
    with Publisher(bus) as publisher:
        for begun in range(0, count, AT_ONCE):
            messages = [Message(body=body) for _ in range(min(AT_ONCE, count - begun))]
            told = publisher.send_many(topic, messages, timeout_s=WITHIN_S)
            ids |= {each.message_id for each in told}
    return ids


@contextmanager
def _publishing(
    bus: BusConfig, topic: str, size: int, settings: PublisherConfig | None = None
) -> Iterator[list[int]]:
    """Publish meanwhile, as fast as may be; gives the count of what is confirmed."""
    ending, confirmed = threading.Event(), [0]

    def publish() -> None:
        messages = [Message(body=b"x" * size)] * AT_ONCE
        with Publisher(bus, settings) as publisher:
            while not ending.is_set():
                fresh = [Message(body=each.body) for each in messages]
                confirmed[0] += len(publisher.send_many(topic, fresh, timeout_s=WITHIN_S))

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield confirmed
    finally:
        ending.set()
        thread.join()


def _tail(scene: Scene, bus: BusConfig, env: dict[str, str], make: Maker) -> Iterator[Figure]:
    count, rates, costs = scene.part(TAIL_LINES, 2_000), [], []
    # One by one these three brokers take about as many as are to be shown.
    packed = PublisherConfig(batch={TAILED: Batching()})
    published = []
    for _ in range(scene.repeat):
        words = ("tail", TAILED, "--all", "--ndjson", "--count", str(count), "--rate", "25000")
        with _publishing(bus, TAILED, TAIL_BYTES, packed) as confirmed:
            tool = _Tool(env, *words, log=scene.folder / "tail.log", stdout=subprocess.PIPE)
            assert tool.process.stdout
            tool.process.stdout.readline()
            first_s, before = time.perf_counter(), confirmed[0]
            while tool.process.stdout.read(1 << 16):
                pass
            took_s = time.perf_counter() - first_s
            rates.append(count / took_s)
            published.append((confirmed[0] - before) / took_s)
            costs.append(tool.ended()[1] / count * 1e6)
    what = (
        f"tail --all --ndjson of a topic that is published to in batches, lines of {TAIL_BYTES} B"
    )
    yield make("tail_rate", what, rates, "lines/s", (at_least, GOAL_TAIL_PER_S))
    yield make("tail_published", f"{what}: published meanwhile", published, "/s")
    yield make("tail_cpu_us", f"{what}: CPU time a line", costs, "us")


def _to_file(scene: Scene, bus: BusConfig, env: dict[str, str], make: Maker) -> Iterator[Figure]:
    count, rates, costs = scene.part(FILES_MESSAGES, 2_000), [], []
    for number in range(scene.repeat):
        _fill(bus, FILED, count, FILE_BYTES)
        folder = scene.folder / f"filed{number}"
        words = ("to-file", FILED, str(folder), "-s", SUBSCRIPTION, "--idle-exit-s", str(IDLE_S))
        tool = _Tool(env, *words, log=scene.folder / "to-file.log")
        took_s, cpu_s = tool.ended()
        if (found := len(_archived(folder))) < count:
            raise BenchError(f"to-file wrote {found} of {count}")
        rates.append(count / (took_s - IDLE_S))
        costs.append(cpu_s / count * 1e6)
    what = f"to-file, messages of 1 KB, fsync before the ack, its start and end included, {count:,}"
    yield make("to_file_rate", what, rates, "/s", (at_least, GOAL_FILE_PER_S))
    yield make("to_file_cpu_us", f"{what}: CPU time a message", costs, "us")


def _archived(folder: Path) -> set[str]:
    found = set[str]()
    for path in sorted(folder.glob("*.ndjson*")):
        with open_archive(path) as file:
            found |= {read_envelope(line).message.message_id for line in file}
    return found


class _Taker(asyncio.Protocol):
    """A server that answers each request with 204. times: of their arrival."""

    times: ClassVar[list[float]] = []
    links: ClassVar[list[asyncio.Transport]] = []

    def connection_made(self, transport: Any) -> None:
        self._transport, self._left = transport, b""
        self.links.append(transport)

    def data_received(self, data: bytes) -> None:
        self._left += data
        while b"\r\n\r\n" in self._left:
            head, _, rest = self._left.partition(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            if len(rest) < length:
                return
            self._left = rest[length:]
            self.times.append(time.perf_counter())
            self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")


@contextmanager
def _taker() -> Iterator[int]:
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(_Taker, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for each in _Taker.links:
            each.abort()
        _Taker.links.clear()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()


def _to_http(scene: Scene, bus: BusConfig, env: dict[str, str], make: Maker) -> Iterator[Figure]:
    count, rates, costs = scene.part(POSTS, 300), [], []
    with _taker() as port:
        for _ in range(scene.repeat):
            _Taker.times = []
            _fill(bus, POSTED, count, POST_BYTES)
            url = f"http://127.0.0.1:{port}/"
            words = ("to-http", POSTED, url, "-s", SUBSCRIPTION, "--allow-host", "127.0.0.1")
            tool = _Tool(env, *words, log=scene.folder / "to-http.log")
            wait_until(lambda: len(_Taker.times) >= count, within_s=WITHIN_S, what="all are posted")
            rates.append((count - 1) / (_Taker.times[count - 1] - _Taker.times[0]))
            tool.process.terminate()
            costs.append(tool.ended()[1] / count * 1e6)
    what = "to-http, 32 requests at once to a server on this host"
    yield make("to_http_rate", what, rates, "/s", (at_least, GOAL_POST_PER_S))
    told = f"{what}: CPU time a message, the start included"
    yield make("to_http_cpu_us", told, costs, "us")


def _kills(scene: Scene, bus: BusConfig, env: dict[str, str], make: Maker) -> Iterator[Figure]:
    kills, sent, folder = scene.part(KILLS, 2), set[str](), scene.folder / "killed"
    words = ("to-file", KILLED, str(folder), "-s", SUBSCRIPTION)
    log = scene.folder / "killed.log"
    for _ in range(kills):
        tool = _Tool(env, *words, log=log)
        sent |= _fill(bus, KILLED, A_KILL, FILE_BYTES)
        wait_until(lambda: any(folder.glob("*.part")), within_s=WITHIN_S, what="it writes")
        tool.process.kill()
        with contextlib.suppress(BenchError):
            tool.ended()
    _Tool(env, *words, "--idle-exit-s", "5", log=log).ended()
    name = f"{KILLED}/{SUBSCRIPTION}"
    left = sum(
        e.ready + (e.unacked or 0) for e in count_subscriptions(bus).counts if e.name == name
    )
    lost = sent - _archived(folder)
    what = f"to-file killed (SIGKILL) {kills} times with {len(sent):,} messages: not in any file"
    yield make(
        "to_file_lost", what, len(lost) if not left else len(lost) + left, "messages", (at_most, 0)
    )


def _tap(scene: Scene, bus: BusConfig, env: dict[str, str], make: Maker) -> Iterator[Figure]:
    costs, turn_s = [], float(scene.part(round(TAP_TURN_S), 1))
    for _ in range(scene.part(TAP_PAIRS, 2)):
        with _publishing(bus, TAPPED, FILE_BYTES) as confirmed:
            time.sleep(1)
            plain = _rate(confirmed, turn_s)
            log = scene.folder / "tap.log"
            tool = _Tool(
                env, "tail", TAPPED, "--all", "--ndjson", log=log, stdout=subprocess.DEVNULL
            )
            time.sleep(2)
            tapped = _rate(confirmed, turn_s)
            tool.process.terminate()
            with contextlib.suppress(BenchError):
                tool.ended()
            time.sleep(1)
            plain = (plain + _rate(confirmed, turn_s)) / 2
        costs.append(100 * (1 - tapped / plain))
        scene.say(f"{plain:,.0f}/s, {tapped:,.0f}/s while tapped")
    what = "A tap of all brokers, 1,000 lines a second each: publishers of 1 KB slower, in pairs"
    yield make("tap_percent", what, costs, "%", (at_most, GOAL_TAP_PERCENT))


def _rate(confirmed: list[int], for_s: float) -> float:
    before, began_s = confirmed[0], time.perf_counter()
    time.sleep(for_s)
    return (confirmed[0] - before) / (time.perf_counter() - began_s)


GROUP = Group(NAME, 3, BEHIND_HAPROXY, _figures)
