"""Promise: what a gateway answered with 201 comes, whichever broker or gateway is killed; 504s carry ids."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.processes import free_port
from messagebus import BusConfig, declare
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually, eventually_async

START_WITHIN_S = 60.0
MESSAGES_A_ROUND, SENDERS = 150, 4
ROUNDS = ("mb1", "gateway 0", "mb2", "gateway 1")
TOUGH_S = 60.0


class Gateways:
    """Processes of `messagebus gateway`; one that is killed is started again at its address."""

    def __init__(self, folder: Path, bus: BusConfig, count: int) -> None:
        self._files, self.urls = [], list[str]()
        for number in range(count):
            port, admin = free_port(), free_port()
            path = folder / f"gw{number}.toml"
            told = {
                "broker": bus.broker,
                "user": bus.user,
                "password": bus.password.reveal(),
            }
            lines = [
                f'name = "gw{number}"',
                'anonymous = "all"',
                f'listen = "127.0.0.1:{port}"',
                f'admin = "127.0.0.1:{admin}"',
                "drain_s = 0.1",
                "grace_s = 1.0",
                "[bus]",
                f"list_urls = {json.dumps(list(bus.list_urls))}",
                *(f"{key} = {json.dumps(value)}" for key, value in told.items()),
            ]
            path.write_text("\n".join(lines))
            path.chmod(0o600)
            self._files.append((path, f"http://127.0.0.1:{admin}/readyz"))
            self.urls.append(f"http://127.0.0.1:{port}")
        self._processes = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        path, ready = self._files[number]
        process = subprocess.Popen(
            [sys.executable, "-m", "messagebus", "gateway", "--config", str(path)]
        )

        def is_ready() -> bool:
            assert process.poll() is None
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(ready, trust_env=False).status_code == 200
            return False

        eventually(is_ready, within_s=START_WITHIN_S)
        return process

    def kill(self, number: int) -> None:
        """Kill it, and start it again."""
        self._processes[number].kill()
        self._processes[number].wait()
        self._processes[number] = self._start(number)

    def end(self) -> list[int]:
        """End all politely. Returns their exit codes."""
        for each in self._processes:
            each.send_signal(signal.SIGTERM)
        return [each.wait(START_WITHIN_S) for each in self._processes]


@pytest.fixture
def gateways(tmp_path: Path, broken: LocalCluster, bus: BusConfig) -> Iterator[Gateways]:
    made = Gateways(tmp_path, bus, 2)
    try:
        yield made
    finally:
        assert set(made.end()) <= {0, 1}


class Clients:
    """Programs that speak HTTP alone: they publish until a 2xx, and pull and ack."""

    def __init__(self, urls: list[str], topic: str) -> None:
        self._urls, self._topic = urls, topic
        self.confirmed, self.received = set[str](), list[str]()
        self.unknown = self.acked = 0
        self._ended = asyncio.Event()

    async def publish(self, name: str) -> None:
        """Publish a round, each message under one id until it is confirmed."""
        async with httpx.AsyncClient(trust_env=False, timeout=TOUGH_S) as http:
            for number in range(MESSAGES_A_ROUND):
                message_id, tries, status = f"{name}.{number}", number, 0
                while status != 201:
                    url = self._urls[tries % len(self._urls)]
                    tries += 1
                    with contextlib.suppress(httpx.TransportError):
                        answer = await http.post(
                            f"{url}/v1/topics/{self._topic}/messages",
                            content=message_id,
                            headers={"Idempotency-Key": message_id, "MB-Timeout-S": "2"},
                        )
                        status = answer.status_code
                        assert status in (201, 503, 504), answer.text
                        if status == 504:
                            self.unknown += 1
                            assert answer.json()["message_id"] == message_id
                        elif status == 503:
                            await asyncio.sleep(0.05)
                self.confirmed.add(message_id)

    async def consume(self, url: str) -> None:
        """Pull and ack until told to end."""
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=TOUGH_S) as http:
            path = f"/v1/subscriptions/{self._topic}/reader/pull"
            while not self._ended.is_set():
                try:
                    pulled = await http.post(path, json={"max": 50, "wait_s": 0.5, "lease_s": 20})
                    found = pulled.json()["deliveries"]
                    if not found:
                        continue
                    # An ack's answer that is lost with its gateway says nothing: what was pulled has come.
                    self.received += [each["body"] for each in found]
                    leases = [each["lease"] for each in found]
                    answered = await http.post("/v1/leases/ack", json={"leases": leases})
                    self.acked += answered.json()["done"]
                except (httpx.TransportError, KeyError):
                    await asyncio.sleep(0.05)

    async def _until(self, count: int) -> None:
        await eventually_async(lambda: len(self.confirmed) >= count, within_s=TOUGH_S)

    async def run(self, broken: LocalCluster, gateways: Gateways) -> None:
        """Kill one after the other while they work; wait until all that was confirmed has come."""
        consuming = [asyncio.create_task(self.consume(url)) for url in self._urls]
        for number, what in enumerate(ROUNDS):
            sending = [
                asyncio.create_task(self.publish(f"{number}.{sender}")) for sender in range(SENDERS)
            ]
            before = len(self.confirmed)
            await self._until(before + MESSAGES_A_ROUND // 3)
            if what.startswith("gateway"):
                await asyncio.to_thread(gateways.kill, int(what[-1]))
            else:
                await asyncio.to_thread(broken.kill, what)
                await asyncio.to_thread(broken.start, what)
            await asyncio.gather(*sending)
        await eventually_async(lambda: not self.confirmed - set(self.received), within_s=TOUGH_S)
        self._ended.set()
        await asyncio.gather(*consuming)


def test_nothing_that_was_answered_with_201_is_lost_when_brokers_and_gateways_are_killed(
    broken: LocalCluster, bus: BusConfig, topic: str, gateways: Gateways
) -> None:
    declare(bus, [f"{topic}/reader"])
    clients = Clients(gateways.urls, topic)
    asyncio.run(clients.run(broken, gateways))
    assert clients.confirmed - set(clients.received) == set()
    assert len(clients.confirmed) == len(ROUNDS) * SENDERS * MESSAGES_A_ROUND
    doubled = len(clients.received) - len(set(clients.received))
    print(f"unknown {clients.unknown}, doubled {doubled}, acked {clients.acked}")
