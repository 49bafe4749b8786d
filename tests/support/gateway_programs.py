"""Programs that speak HTTP to gateways, while brokers and gateways are killed."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import httpx

from bench.errors import BenchError
from bench.faults import alarm
from bench.figures.gateway import GatewayProcess
from messagebus import BusConfig, declare
from ops.local.cluster import LocalCluster

SUBSCRIPTION = "reader"
MESSAGES_A_ROUND, SENDERS = 150, 4
ROUNDS = (("mb1",), ("gateway 0",), ("mb2", "gateway 1"))
"""The parts that are killed in each round, at once. Four kills."""
TROUBLES = (("frozen mb3",), ("alarm mb1",))
"""Rounds in which a broker answers nothing, and takes nothing, for TROUBLE_S."""
TROUBLE_S = 5.0
ROUND_WITHIN_S = 120.0
PAUSE_S = 0.05


class Programs:
    """Programs that speak HTTP alone: they publish until a 2xx, and pull and ack."""

    def __init__(self, urls: Sequence[str], topic: str) -> None:
        self._urls, self._topic = urls, topic
        self.confirmed, self.received = set[str](), list[str]()
        self.unknown = self.acked = 0
        self._ended = asyncio.Event()

    @property
    def lost(self) -> set[str]:
        """Ids that were answered with 201 and have not come."""
        return self.confirmed - set(self.received)

    async def publish(self, name: str) -> None:
        """Publish a round, each message under one id until it is confirmed."""
        async with httpx.AsyncClient(trust_env=False, timeout=ROUND_WITHIN_S) as http:
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
                        if status not in (201, 503, 504):
                            raise BenchError(f"the gateway answers {status}: {answer.text}")
                        if status == 504:
                            self.unknown += 1
                            if answer.json()["message_id"] != message_id:
                                raise BenchError(f"a 504 names another id: {answer.text}")
                    if status != 201:
                        await asyncio.sleep(PAUSE_S)
                self.confirmed.add(message_id)

    async def consume(self, url: str) -> None:
        """Pull and ack until told to end."""
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=ROUND_WITHIN_S) as http:
            path = f"/v1/subscriptions/{self._topic}/{SUBSCRIPTION}/pull"
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
                    await asyncio.sleep(PAUSE_S)

    async def run(self, rounds: Sequence[Sequence[str]], kill: Callable[[str], None]) -> None:
        """Kill what each round names while they work, and wait until all that was confirmed has come."""
        consuming = [asyncio.create_task(self.consume(url)) for url in self._urls]
        for number, parts in enumerate(rounds):
            sending = asyncio.gather(
                *(self.publish(f"{number}.{sender}") for sender in range(SENDERS))
            )
            before = len(self.confirmed)
            await _until(
                lambda so_far=before: len(self.confirmed) >= so_far + MESSAGES_A_ROUND // 3,  # type: ignore[misc]
            )
            await asyncio.gather(*(asyncio.to_thread(kill, each) for each in parts))
            await sending
        # What a killed gateway held comes again; what one that lives holds, when the lease runs out.
        with contextlib.suppress(BenchError):
            await _until(lambda: not self.lost)
        self._ended.set()
        await asyncio.gather(*consuming)


async def _until(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + ROUND_WITHIN_S
    while not condition():
        if time.monotonic() > until_s:
            raise BenchError(f"it takes more than {ROUND_WITHIN_S:g} s")
        await asyncio.sleep(PAUSE_S)


def run_kills(
    cluster: LocalCluster,
    gateways: Sequence[GatewayProcess],
    bus: BusConfig,
    topic: str,
    rounds: Sequence[Sequence[str]] = ROUNDS,
) -> Programs:
    """Publish and pull by HTTP while parts are killed. Returns the programs, which know what came."""

    def kill(part: str) -> None:
        kind, _, name = part.rpartition(" ")
        if kind == "gateway":
            gateways[int(name)].kill()
        elif kind == "frozen":
            cluster.freeze(name)
            time.sleep(TROUBLE_S)
            cluster.thaw(name)
        elif kind == "alarm":
            alarm(cluster, name, on=True)
            time.sleep(TROUBLE_S)
            alarm(cluster, name, on=False)
        else:
            cluster.kill(name)
            cluster.start(name)

    declare(bus, [f"{topic}/{SUBSCRIPTION}"])
    programs = Programs([each.url for each in gateways], topic)
    asyncio.run(programs.run(rounds, kill))
    return programs
