"""Two gateways behind a real HAProxy with our configuration, with brokers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from inventory.inventory import Inventory, load
from lb.apply import prepare_start
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually_async
from tests.support.gateway import Served, gateway_on
from tests.support.haproxy import HOST, Rig, free_ports

MESSAGES = 60


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        made = Rig(tmp_path, stack, nodes=1)
        try:
            yield made
        finally:
            made.kill()


def with_gateways(rig: Rig, port: int, gateways: list[Served]) -> Inventory:
    rig.inventory(1)
    path = rig.folder / "inventory.toml"
    text = path.read_text().replace('\nstats = "', f'\nhttp = "{HOST}:{port}"\nstats = "')
    for served in gateways:
        address, admin = (
            url.removeprefix("http://") for url in (served.gateway.url, served.gateway.admin_url)
        )
        name = served.gateway.name
        text += f'[[gateways]]\nname = "{name}"\naddress = "{address}"\nadmin = "{admin}"\n'
    path.write_text(text)
    return load(path)


async def test_nobody_is_refused_while_a_gateway_ends_and_leases_find_theirs(rig: Rig) -> None:
    bus = MemoryBus()
    bus.declare("orders/billing")
    ports = free_ports(3)
    urls = {f"gw{n}": f"http://{HOST}:{port}" for n, port in enumerate(ports[:2], 1)}
    async with AsyncExitStack() as stack:
        gateways = []
        for name, url in urls.items():
            peers = {other: at for other, at in urls.items() if other != name}
            listen = url.removeprefix("http://")
            serving = gateway_on(bus, name=name, listen=listen, peers=peers)
            gateways.append(await stack.enter_async_context(serving))
        inventory = with_gateways(rig, ports[2], gateways)
        prepare_start(inventory)
        await asyncio.to_thread(rig.launch, inventory)
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://{HOST}:{ports[2]}", trust_env=False, timeout=30)
        )

        async def publish(number: int) -> int:
            headers = {"Idempotency-Key": f"m{number}"}
            answer = await http.post("/v1/topics/orders/messages", content=b"x", headers=headers)
            return answer.status_code

        first = [await publish(number) for number in range(MESSAGES)]
        path = "/v1/subscriptions/orders/billing/pull"
        pulled: list[Any] = []
        while len(pulled) < MESSAGES:
            answer = await http.post(path, json={"max": 10, "wait_s": 5})
            pulled += answer.json()["deliveries"]
        holders = {each["lease"].partition(".")[0] for each in pulled}
        assert holders == set(urls)  # requests without a key go round
        leases = {"leases": [each["lease"] for each in pulled]}
        assert (await http.post("/v1/leases/ack", json=leases)).json()["done"] == MESSAGES

        ending = asyncio.create_task(gateways[0].gateway.stop(drain_s=4, grace_s=1))
        number, later = MESSAGES, list[int]()
        while not ending.done() or len(later) < MESSAGES:
            later.append(await publish(number))
            number += 1
        assert {*first, *later} == {201}
        await eventually_async(lambda: len(bus.published("orders")) == number, within_s=60)
