"""Two gateways behind a real HAProxy with our configuration, with brokers in memory."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.processes import free_port
from inventory.inventory import Inventory, load
from lb.apply import prepare_start
from messagebus.testing import MemoryBus
from ops.local.certificates import Authority
from ops.local.layout import CA
from tests.support.eventually import eventually_async
from tests.support.gateway import Served, gateway_on
from tests.support.haproxy import HOST, Rig

MESSAGES = 60
NAME = "gateway.example"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        made = Rig(tmp_path, stack, nodes=1)
        try:
            yield made
        finally:
            made.kill()


def with_gateways(
    rig: Rig, port: int, gateways: list[Served], certificate: Path | None = None
) -> Inventory:
    rig.inventory(1)
    path = rig.folder / "inventory.toml"
    told = f'http = "{HOST}:{port}"\n'
    if certificate:
        told += f'http_cert_file = "{certificate}"\n'
    text = path.read_text().replace('\nstats = "', f'\n{told}stats = "')
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
    ports = [free_port() for _ in range(3)]
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
            httpx.AsyncClient(base_url=f"http://{HOST}:{ports[2]}", trust_env=False, timeout=60)
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


def asked(port: int, context: ssl.SSLContext, name: str = NAME) -> int:
    """Publish by the balancer's frontend, as a client that expects this name; return the status."""
    with (
        socket.create_connection((HOST, port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=name) as sock,
    ):
        connection = http.client.HTTPConnection(name)
        connection.sock = sock
        connection.request("POST", "/v1/topics/orders/messages", body=b"x")
        return connection.getresponse().status


async def test_the_balancer_speaks_tls_for_gateways_and_takes_nothing_in_the_clear(
    rig: Rig,
) -> None:
    bus = MemoryBus()
    bus.declare("orders/billing")
    port = free_port()
    authority = Authority.make("gateways")
    authority.save(rig.folder)
    certificate = rig.folder / "gateway.pem"
    certificate.write_text("".join(authority.issue("gateway", (NAME,))))
    async with gateway_on(bus, name="gw1", url=f"https://{NAME}") as served:
        inventory = with_gateways(rig, port, [served], certificate)
        prepare_start(inventory)
        await asyncio.to_thread(rig.launch, inventory)
        context = ssl.create_default_context(cafile=str(rig.folder / CA))
        assert await asyncio.to_thread(asked, port, context) == 201
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(asked, port, context, "other.example")
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(asked, port, ssl.create_default_context())
        with pytest.raises(httpx.HTTPError):
            async with httpx.AsyncClient(trust_env=False, timeout=60) as plain:
                await plain.post(f"http://{HOST}:{port}/v1/topics/orders/messages", content=b"x")
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((HOST, port), timeout=60) as sock,
            context.wrap_socket(sock, server_hostname=NAME) as told,
        ):
            assert told.selected_alpn_protocol() == "h2"
        assert len(bus.published("orders")) == 1
