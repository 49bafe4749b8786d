"""The HTTP gateway: rates, CPU time, and memory.

One gateway process before three brokers behind HAProxy; the callers are this process, over keep-alive
connections.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

from bench.errors import BenchError
from bench.figures.figure import Figure, Maker, at_most
from bench.figures.groups import BEHIND_HAPROXY, Group, Setup, repeat_command
from bench.processes import free_port
from messagebus import BusConfig, declare

NAME, HOST = "gateway", "127.0.0.1"
START_WITHIN_S, END_WITHIN_S = 60.0, 60.0
TOPIC, PACKED, SUBSCRIPTION = "figures", "packed", "reader"
CONNECTIONS, BATCH_CONNECTIONS, PULLERS, BODY = 64, 4, 4, b"x" * 1024
PUBLISHES, BATCHES, A_BATCH, LINE_BYTES, A_PULL = 20_000, 100, 500, 200, 100


class GatewayProcess:
    """A gateway that admits everybody, on loopback. more: further lines of its file of settings."""

    def __init__(self, folder: Path, name: str, bus: BusConfig, more: str = "") -> None:
        self.port, self._admin = free_port(), free_port()
        self.url, self.admin_url = (f"http://{HOST}:{port}" for port in (self.port, self._admin))
        self._path = folder / f"{name}.toml"
        of_bus: dict[str, object] = {"broker": bus.broker, "list_urls": list(bus.list_urls)}
        of_bus["user"] = bus.user
        if bus.password_file:
            of_bus["password_file"] = bus.password_file
        else:
            of_bus["password"] = bus.password.reveal()
        self._path.touch(mode=0o600)
        self._path.write_text(
            f'name = "{name}"\nanonymous = "all"\nlisten = "{HOST}:{self.port}"\n'
            f'admin = "{HOST}:{self._admin}"\ndrain_s = 0.1\ngrace_s = 1.0\n[bus]\n'
            + "".join(f"{key} = {json.dumps(value)}\n" for key, value in of_bus.items())
            + more
        )
        self._start()

    def _start(self) -> None:
        argv = [sys.executable, "-m", "messagebus", "gateway", "--config", str(self._path)]
        self._process = subprocess.Popen(argv)
        until_s = time.monotonic() + START_WITHIN_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > until_s:
                self.end()
                raise BenchError("the gateway does not start")
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.admin_url}/readyz", trust_env=False).is_success
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """Kill it by SIGKILL, and start it again."""
        self._process.kill()
        self._process.wait()
        self._start()

    def end(self) -> int:
        """End it politely. Returns its exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(END_WITHIN_S)

    @property
    def cpu_s(self) -> float:
        """The CPU time that it has used."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def gateway_figures(setup: Setup) -> Iterator[Figure]:
    make = Maker(NAME, repeat_command(NAME, setup.repeat))
    bus = BusConfig.from_env(setup.cluster.client_env())
    declare(bus, [f"{topic}/{SUBSCRIPTION}" for topic in (TOPIC, PACKED)])
    packed = f"[publisher.batch]\n{PACKED} = {{count_max = 100}}\n"
    gateway = GatewayProcess(setup.folder, "gw1", bus, packed)
    found: dict[str, list[float]] = {}
    try:
        found["idle_mb"] = [gateway.memory_mb]
        for _ in setup.turns():
            for id, value in _rates(setup, gateway):
                found.setdefault(id, []).append(value)
    finally:
        gateway.end()
    for id, what, unit, goal in FIGURES:
        yield make(id, f"HTTP gateway: {what}", found[id], unit, goal)


_PUBLISH = f"publishes of 1 KB over {CONNECTIONS} connections, each confirmed"
_BATCH = f"NDJSON, {A_BATCH} x {LINE_BYTES} B a request, packed ([publisher.batch])"
_PULL = f"pulled by {A_PULL} and acked in one call"
FIGURES = (
    ("publish_rate", _PUBLISH, "/s", None),
    ("publish_cpu_us", f"{_PUBLISH}: CPU time", "us", None),
    ("batch_rate", _BATCH, "/s", None),
    ("batch_cpu_us", f"{_BATCH}: CPU time a message", "us", None),
    ("pull_rate", _PULL, "/s", None),
    ("pull_cpu_us", f"{_PULL}: CPU time a delivery", "us", None),
    ("idle_mb", "memory when idle", "MB", (at_most, 60)),
)


def _rates(setup: Setup, gateway: GatewayProcess) -> Iterator[tuple[str, float]]:
    publishes, batches = setup.part(PUBLISHES), setup.part(BATCHES, least=4)
    post = functools.partial(_post, gateway.port)
    before_s, path = gateway.cpu_s, f"/v1/topics/{TOPIC}/messages"
    took_s = asyncio.run(post(path, "a/b", [BODY] * publishes, CONNECTIONS))
    yield "publish_rate", publishes / took_s
    yield "publish_cpu_us", (gateway.cpu_s - before_s) / publishes * 1e6
    line = json.dumps({"body": "x" * LINE_BYTES}).encode()
    bodies, messages = [b"\n".join([line] * A_BATCH)] * batches, batches * A_BATCH
    before_s, path = gateway.cpu_s, f"/v1/topics/{PACKED}/messages:batch"
    took_s = asyncio.run(post(path, "application/x-ndjson", bodies, BATCH_CONNECTIONS))
    yield "batch_rate", messages / took_s
    yield "batch_cpu_us", (gateway.cpu_s - before_s) / messages * 1e6
    before_s = gateway.cpu_s
    yield "pull_rate", asyncio.run(_pull_rate(gateway.port, publishes))
    yield "pull_cpu_us", (gateway.cpu_s - before_s) / publishes * 1e6


async def _request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, kind: str, body: bytes
) -> bytes:
    """Make one request on a keep-alive connection. Raises BenchError for anything but a 2xx."""
    head = f"Host: {HOST}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}"
    writer.write(f"POST {path} HTTP/1.1\r\n{head}\r\n\r\n".encode() + body)
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
        reader, writer = await asyncio.open_connection(HOST, port)
        for body in left:
            await _request(reader, writer, path, kind, body)
        writer.close()

    began_s = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    return time.perf_counter() - began_s


async def _pull_rate(port: int, count: int) -> float:
    """Pull and ack this many by several callers. Returns the deliveries a second."""
    left, kind = [count], "application/json"
    path = f"/v1/subscriptions/{TOPIC}/{SUBSCRIPTION}/pull"
    asked = json.dumps({"max": A_PULL, "wait_s": 1}).encode()

    async def one() -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        while left[0] > 0:
            found = json.loads(await _request(reader, writer, path, kind, asked))["deliveries"]
            if found:
                left[0] -= len(found)
                leases = json.dumps({"leases": [each["lease"] for each in found]}).encode()
                await _request(reader, writer, "/v1/leases/ack", kind, leases)
        writer.close()

    began_s = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(PULLERS)))
    return count / (time.perf_counter() - began_s)


GROUP = Group(NAME, 3, BEHIND_HAPROXY, gateway_figures)
