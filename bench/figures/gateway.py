"""The HTTP gateway: rates, what it adds to a confirm, how long it keeps what nobody asks for, CPU and memory.

One gateway process before three brokers behind HAProxy; the callers are this process, over keep-alive
connections. RabbitMQ's management publish is measured beside it with the same bodies.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx

from bench.errors import BenchError
from bench.figures.client.latency import percentile_ms
from bench.figures.form import Figure, Maker, at_least, at_most
from bench.figures.gateways import GatewayProcess
from bench.figures.scene import BEHIND_HAPROXY, Group, Scene, repeat_command
from bench.harness.loop import best_loop, event_loop
from messagebus import AsyncPublisher, BusConfig, declare
from messagebus.destination import Topic
from ops.local.cluster import LocalCluster

NAME = "gateway"
TOPIC, PACKED, STALE, QUIET, SUBSCRIPTION = "figures", "packed", "stale", "quiet", "reader"
CONNECTIONS, BODY = 64, b"x" * 1024
PUBLISHES, BATCHES, A_BATCH, LINE_BYTES, BESIDE = 20_000, 100, 500, 200, 500
A_PULL = 100
# Short windows by turns: what else the machine does for a moment spoils one of them.
RATE_PER_S, WINDOW_S, TURNS = 500.0, 0.5, 24
AHEAD, STREAMS, START_WITHIN_S = 1_000, 1_000, 60.0
GOAL_PER_S, GOAL_US, GOAL_BATCH_PER_S, GOAL_TIMES, GOAL_PULL_PER_S = 5_000, 180, 60_000, 50, 20_000
GOAL_MB, GOAL_STREAMS_MB, GOAL_LINE_US, GOAL_PULL_US = 60, 120, 16, 50
GOAL_P50_MS, GOAL_P99_MS, GOAL_STAY_S = 1, 5, 1.5


def _figures(scene: Scene) -> Iterator[Figure]:
    make = Maker(NAME, repeat_command(NAME, scene.repeat))
    bus = BusConfig.from_env(scene.cluster.client_env())
    declare(bus, [f"{topic}/{SUBSCRIPTION}" for topic in (TOPIC, PACKED, STALE, QUIET)])
    found: dict[str, list[float]] = {}
    streams = scene.part(STREAMS)
    with _gateway(scene.folder, "gw1", bus) as gateway:
        found["idle"] = [gateway.memory_mb]
        for _ in range(scene.repeat):
            for name, value in (*_added_ms(scene, bus, gateway.port), *_once(scene, gateway)):
                found.setdefault(name, []).append(value)
    with _gateway(scene.folder, "gw1", bus) as one, _gateway(scene.folder, "gw2", bus) as two:
        stays = [
            _stays_s(one, two, leased=leased)
            for _ in range(scene.repeat)
            for leased in (True, False)
        ]
        found["streams"] = [_streams_mb(two, streams)]
    beside = [_management_rate(scene.cluster, scene.part(BESIDE)) for _ in range(scene.repeat)]
    what = f"HTTP gateway: publishes of 1 KB over {CONNECTIONS} connections, each confirmed"
    yield make("publish_rate", what, found["publish"], "/s", (at_least, GOAL_PER_S))
    yield make("publish_cpu_us", f"{what}: CPU time", found["cpu"], "us", (at_most, GOAL_US))
    what = f"HTTP gateway: time added to a confirm over AsyncPublisher, {RATE_PER_S:g}/s of 1 KB"
    for percent, goal in ((50, GOAL_P50_MS), (99, GOAL_P99_MS)):
        told, values = f"{what}: p{percent}", found[f"added_p{percent}"]
        yield make(f"added_p{percent}_ms", told, values, "ms", (at_most, goal))
    alone = f"HTTP gateway: NDJSON, {A_BATCH} x {LINE_BYTES} B a request, each its own AMQP message"
    yield make("batch_alone_rate", alone, found["alone"], "/s")
    told = f"{alone}: CPU time a message"
    yield make("batch_alone_cpu_us", told, found["alone_cpu"], "us", (at_most, GOAL_LINE_US))
    what = f"HTTP gateway: NDJSON, {A_BATCH} x {LINE_BYTES} B a request, packed ([publisher.batch])"
    yield make("batch_rate", what, found["batch"], "/s", (at_least, GOAL_BATCH_PER_S))
    told = f"{what}: CPU time a message"
    yield make("batch_cpu_us", told, found["batch_cpu"], "us", (at_most, GOAL_LINE_US))
    times = [ours / theirs for ours, theirs in zip(found["batch"], beside, strict=True)]
    told = f"{what}: times RabbitMQ's management publish"
    yield make("batch_times", told, times, "x", (at_least, GOAL_TIMES))
    what = f"HTTP gateway: pulled by {A_PULL} and acked in one call"
    yield make("pull_rate", what, found["pull"], "/s", (at_least, GOAL_PULL_PER_S))
    told = f"{what}: CPU time a delivery"
    yield make("pull_cpu_us", told, found["pull_cpu"], "us", (at_most, GOAL_PULL_US))
    what = "HTTP gateway: stay of a message that nobody asks for, until it comes by another gateway"
    yield make("stay_s", what, stays, "s", (at_most, GOAL_STAY_S), max)
    yield make("idle_mb", "HTTP gateway: memory when idle", found["idle"], "MB", (at_most, GOAL_MB))
    what = f"HTTP gateway: memory with {streams:,} streams of server-sent events"
    yield make("streams_mb", what, found["streams"], "MB", (at_most, GOAL_STREAMS_MB))


@contextmanager
def _gateway(folder: Path, name: str, bus: BusConfig) -> Iterator[GatewayProcess]:
    made = GatewayProcess(folder, name, bus, f"[publisher.batch]\n{PACKED} = {{count_max = 100}}\n")
    try:
        yield made
    finally:
        made.end()


def _once(scene: Scene, gateway: GatewayProcess) -> Iterator[tuple[str, float]]:
    path = f"/v1/topics/{TOPIC}/messages"
    publishes, port = scene.part(PUBLISHES), gateway.port
    before_s = gateway.cpu_s
    yield (
        "publish",
        publishes / asyncio.run(_post(port, path, "a/b", [BODY] * publishes, CONNECTIONS)),
    )
    yield "cpu", (gateway.cpu_s - before_s) / publishes * 1e6
    line = json.dumps({"body": "x" * LINE_BYTES}).encode()
    batches = scene.part(BATCHES, least=4)
    bodies = [b"\n".join([line] * A_BATCH)] * batches
    kind = "application/x-ndjson"
    for name, topic in (("alone", TOPIC), ("batch", PACKED)):
        before_s, path = gateway.cpu_s, f"/v1/topics/{topic}/messages:batch"
        took_s = asyncio.run(_post(port, path, kind, bodies, 4))
        yield f"{name}_cpu", (gateway.cpu_s - before_s) / batches / A_BATCH * 1e6
        yield name, batches * A_BATCH / took_s
    before_s, count = gateway.cpu_s, publishes + batches * A_BATCH
    yield "pull", asyncio.run(_pull_rate(port, count))
    yield "pull_cpu", (gateway.cpu_s - before_s) / count * 1e6


async def _request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, kind: str, body: bytes
) -> bytes:
    """Make one request on a keep-alive connection. Raises BenchError for anything but a 2xx."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answered = await reader.readuntil(b"\r\n\r\n")
    length = int(answered.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    found = await reader.readexactly(length)
    if not answered.startswith(b"HTTP/1.1 2"):
        raise BenchError(f"the gateway answers {answered[:40]!r} {found[:200]!r}")
    return found


async def _post(port: int, path: str, kind: str, bodies: list[bytes], connections: int) -> float:
    """Post all bodies. Returns the seconds that it took."""
    left = iter(bodies)

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for body in left:
            await _request(reader, writer, path, kind, body)
        writer.close()

    began_s = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return time.perf_counter() - began_s


async def _pull_rate(port: int, count: int) -> float:
    """Pull and ack this many by four callers. Returns the deliveries a second."""
    left, kind = [count], "application/json"
    path = f"/v1/subscriptions/{TOPIC}/{SUBSCRIPTION}/pull"
    asked = json.dumps({"max": A_PULL, "wait_s": 1}).encode()

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while left[0] > 0:
            found = json.loads(await _request(reader, writer, path, kind, asked))["deliveries"]
            if found:
                left[0] -= len(found)
                leases = json.dumps({"leases": [each["lease"] for each in found]}).encode()
                await _request(reader, writer, "/v1/leases/ack", kind, leases)
        writer.close()

    began_s = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(4)))
    return count / (time.perf_counter() - began_s)


def _management_rate(cluster: LocalCluster, count: int) -> float:
    """Return the publishes a second over RabbitMQ's management interface, one after the other."""
    body = {
        "properties": {"delivery_mode": 2},
        "routing_key": "",
        "payload": base64.b64encode(b"x" * LINE_BYTES).decode(),
        "payload_encoding": "base64",
    }
    with cluster.management("mb1") as http:
        path = f"/api/exchanges/%2F/{quote(Topic(TOPIC).exchange, safe='')}/publish"
        began_s = time.perf_counter()
        for _ in range(count):
            http.post(path, json=body).raise_for_status()
        return count / (time.perf_counter() - began_s)


def _added_ms(scene: Scene, bus: BusConfig, port: int) -> Iterator[tuple[str, float]]:
    """Publish at a light rate by `AsyncPublisher` and by HTTP in turns; yield what HTTP adds.

    Of each percentile the median over the windows counts; each goes first in every second turn.
    """

    async def both() -> list[list[list[float]]]:
        messages, turns = int(RATE_PER_S * WINDOW_S), scene.part(TURNS, least=2)
        connect = functools.partial(asyncio.open_connection, "127.0.0.1", port)
        idle = [await connect() for _ in range(CONNECTIONS)]

        async def by_http() -> None:
            connection = idle.pop() if idle else await connect()
            await _request(*connection, f"/v1/topics/{TOPIC}/messages", "a/b", BODY)
            idle.append(connection)

        async with AsyncPublisher(bus) as publisher:

            async def by_publisher() -> None:
                await publisher.send_safe(TOPIC, BODY)

            await _paced(by_publisher, messages)
            await _paced(by_http, messages)
            ours, http = list[list[float]](), list[list[float]]()
            for turn in range(turns):
                order = (by_publisher, ours), (by_http, http)
                for send, windows in order if turn % 2 else order[::-1]:
                    windows.append(await _paced(send, messages))
            return [ours, http]

    with asyncio.Runner(loop_factory=event_loop(best_loop())) as runner:
        ours, http = runner.run(both())
    for percent in (50, 99):
        by_ours, by_http = (
            statistics.median(percentile_ms(each, percent) for each in windows)
            for windows in (ours, http)
        )
        yield f"added_p{percent}", by_http - by_ours


async def _paced(send: Callable[[], Awaitable[None]], count: int) -> list[float]:
    """Send this many, each at its time. Returns how long each took from then, in seconds."""
    took: list[float] = []

    async def one(at_s: float) -> None:
        await send()
        took.append(time.perf_counter() - at_s)

    begun_s = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            at_s = begun_s + number / RATE_PER_S
            if (wait_s := at_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            tasks.create_task(one(at_s))
    return took


def _stays_s(one: GatewayProcess, two: GatewayProcess, *, leased: bool) -> float:
    """Return how long the last message took to come by one gateway after another had fetched it ahead.

    leased: others stay in the hands of who pulled there, so its links cannot be closed.
    """

    async def stays_s() -> float:
        path = f"/v1/subscriptions/{STALE}/{SUBSCRIPTION}/pull"
        async with httpx.AsyncClient(trust_env=False, timeout=START_WITHIN_S) as http:

            async def pull(where: GatewayProcess, most: int) -> list[str]:
                asked = {"max": most, "wait_s": 5}
                found = (await http.post(where.url + path, json=asked)).json()["deliveries"]
                return [each["lease"] for each in found]

            async def ack(where: GatewayProcess, leases: list[str]) -> None:
                answer = await http.post(f"{where.url}/v1/leases/ack", json={"leases": leases})
                answer.raise_for_status()

            line = json.dumps({"body": "x" * LINE_BYTES}).encode()
            kind = {"Content-Type": "application/x-ndjson"}
            told = f"{one.url}/v1/topics/{STALE}/messages:batch"
            body = b"\n".join([line] * AHEAD)
            (await http.post(told, content=body, headers=kind)).raise_for_status()
            held, count = list[str](), 0
            # A caller who takes ever more makes it fetch ahead.
            while one.metric("messagebus_gateway_buffered") < AHEAD // 20:
                found = await pull(one, AHEAD // 20)
                count += len(found)
                if leased:
                    held += found
                else:
                    await ack(one, found)
                if count >= AHEAD * 3 // 4:
                    raise BenchError("the gateway fetches nothing ahead")
            begun_s = time.perf_counter()
            while count < AHEAD:
                found = await pull(two, AHEAD)
                count += len(found)
                await ack(two, found)
            took_s = time.perf_counter() - begun_s
            if leased:
                await ack(one, held)
            return took_s

    return asyncio.run(stays_s())


async def _open_streams(port: int, count: int) -> list[asyncio.StreamWriter]:
    """Open streams of server-sent events that nothing comes by."""
    head = f"GET /v1/subscriptions/{QUIET}/{SUBSCRIPTION}/events HTTP/1.1\r\nHost: x\r\n\r\n"
    writers = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode())
        await reader.readuntil(b": messagebus\n")
        writers.append(writer)
    return writers


def _streams_mb(gateway: GatewayProcess, count: int) -> float:
    async def opened_mb() -> float:
        writers = await _open_streams(gateway.port, count)
        found = gateway.memory_mb
        for each in writers:
            each.close()
        return found

    return asyncio.run(opened_mb())


GROUP = Group(NAME, 3, BEHIND_HAPROXY, _figures)
