"""The HTTP gateway: rates of publishes, batches and pulls, and its CPU time and memory.

One gateway process before three brokers behind HAProxy; the callers are this process, over keep-alive
connections. RabbitMQ's management publish is measured beside it with the same bodies.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx

from bench.errors import BenchError
from bench.figures.form import Figure, Maker, at_least, at_most
from bench.figures.scene import BEHIND_HAPROXY, Group, Scene, repeat_command
from bench.processes import free_port
from messagebus import BusConfig, declare
from messagebus.destination import Topic
from ops.local.cluster import LocalCluster

NAME = "gateway"
TOPIC, PACKED, SUBSCRIPTION = "figures", "packed", "reader"
CONNECTIONS, BODY = 64, b"x" * 1024
PUBLISHES, BATCHES, A_BATCH, LINE_BYTES, BESIDE = 20_000, 100, 500, 200, 500
A_PULL = 100
START_WITHIN_S, GRACE_S = 60.0, 30.0
GOAL_PER_S, GOAL_US, GOAL_BATCH_PER_S, GOAL_TIMES, GOAL_PULL_PER_S = 5_000, 180, 60_000, 50, 20_000
GOAL_MB, GOAL_LINE_US, GOAL_PULL_US = 60, 16, 50


def _figures(scene: Scene) -> Iterator[Figure]:
    make = Maker(NAME, repeat_command(NAME, scene.repeat))
    bus = BusConfig.from_env(scene.cluster.client_env())
    declare(bus, [f"{topic}/{SUBSCRIPTION}" for topic in (TOPIC, PACKED)])
    found: dict[str, list[float]] = {}
    with _gateway(scene.folder, bus) as (process, port):
        found["idle"] = [_memory_mb(process.pid)]
        for _ in range(scene.repeat):
            for name, value in _once(scene, process.pid, port):
                found.setdefault(name, []).append(value)
    beside = [_management_rate(scene.cluster, scene.part(BESIDE)) for _ in range(scene.repeat)]
    what = f"HTTP gateway: publishes of 1 KB over {CONNECTIONS} connections, each confirmed"
    yield make("publish_rate", what, found["publish"], "/s", (at_least, GOAL_PER_S))
    yield make("publish_cpu_us", f"{what}: CPU time", found["cpu"], "us", (at_most, GOAL_US))
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
    yield make("idle_mb", "HTTP gateway: memory when idle", found["idle"], "MB", (at_most, GOAL_MB))


@contextmanager
def _gateway(folder: Path, bus: BusConfig) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    port, admin = free_port(), free_port()
    path = folder / "gateway.toml"
    settings = {"broker": bus.broker, "user": bus.user, "password_file": bus.password_file}
    path.touch(mode=0o600)
    path.write_text(
        f'anonymous = "all"\nlisten = "127.0.0.1:{port}"\nadmin = "127.0.0.1:{admin}"\n'
        f"drain_s = 0.1\n[bus]\nlist_urls = {json.dumps(list(bus.list_urls))}\n"
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        + f"[publisher.batch]\n{PACKED} = {{count_max = 100}}\n"
    )
    argv = [sys.executable, "-m", "messagebus", "gateway", "--config", str(path)]
    process = subprocess.Popen(argv)
    try:
        until_s = time.monotonic() + START_WITHIN_S
        while not _is_ready(admin):
            if process.poll() is not None or time.monotonic() > until_s:
                raise BenchError("the gateway does not start")
            time.sleep(0.1)
        yield process, port
    finally:
        process.terminate()
        process.wait(GRACE_S)


def _is_ready(admin: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{admin}/readyz", trust_env=False).is_success
    except httpx.TransportError:
        return False


def _once(scene: Scene, pid: int, port: int) -> Iterator[tuple[str, float]]:
    path = f"/v1/topics/{TOPIC}/messages"
    publishes = scene.part(PUBLISHES)
    before_s = _cpu_s(pid)
    yield (
        "publish",
        publishes / asyncio.run(_post(port, path, "a/b", [BODY] * publishes, CONNECTIONS)),
    )
    yield "cpu", (_cpu_s(pid) - before_s) / publishes * 1e6
    line = json.dumps({"body": "x" * LINE_BYTES}).encode()
    batches = scene.part(BATCHES, least=4)
    bodies = [b"\n".join([line] * A_BATCH)] * batches
    kind = "application/x-ndjson"
    for name, topic in (("alone", TOPIC), ("batch", PACKED)):
        before_s, path = _cpu_s(pid), f"/v1/topics/{topic}/messages:batch"
        took_s = asyncio.run(_post(port, path, kind, bodies, 4))
        yield f"{name}_cpu", (_cpu_s(pid) - before_s) / batches / A_BATCH * 1e6
        yield name, batches * A_BATCH / took_s
    before_s, count = _cpu_s(pid), publishes + batches * A_BATCH
    yield "pull", asyncio.run(_pull_rate(port, count))
    yield "pull_cpu", (_cpu_s(pid) - before_s) / count * 1e6


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
    """Pull and ack so many by four callers. Returns the deliveries a second."""
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


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


GROUP = Group(NAME, 3, BEHIND_HAPROXY, _figures)
