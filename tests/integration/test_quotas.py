"""`python -m ops quota` on a real cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from messagebus import (
    AsyncConsumer,
    AsyncPublisher,
    BusConfig,
    Outcome,
    Published,
    PublisherConfig,
)
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR


def quota(cluster: LocalCluster, *words: str) -> str:
    argv = [sys.executable, "-m", "ops", "quota", *words]
    argv += ["--inventory", str(cluster.layout.inventory)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.guarantee("full-refuses-and-drops-nothing")
async def test_a_quota_of_the_command_refuses_and_drops_nothing(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    source = f"{topic}/billing"
    async with AsyncConsumer(bus, topic, subscription="billing"):
        pass
    async with AsyncPublisher(bus) as publisher:
        held = await publisher.send_many(topic, [b"held"] * 60)
        assert quota(cluster, "set", source, "--messages", "30") == (
            f"{source}: 30 messages, shared by 3 brokers\n"
        )
        assert f"{source}: 30 messages\n" in quota(cluster, "list")
        ends = list(held)
        async with asyncio.timeout(60 * FACTOR):  # RabbitMQ applies a policy a little later
            while ends[-1].outcome is Outcome.CONFIRMED:
                ends += await publisher.send_many(topic, [b"more"] * 20)
        assert ends[-1].outcome is Outcome.REFUSED
        confirmed = {end.message_id for end in ends if end.outcome is Outcome.CONFIRMED}
        assert quota(cluster, "clear", source) == f"{source}: no quota any more\n"
    found: set[str] = set()
    async with AsyncConsumer(bus, topic, subscription="billing") as consumer:
        while not confirmed <= found:
            delivery = await consumer.receive(timeout_s=30 * FACTOR)
            assert delivery is not None
            found.add(delivery.message_id)
            consumer.ack(delivery)


@pytest.mark.guarantee("full-makes-publishers-wait")
async def test_a_publisher_that_waits_notices_that_a_quota_is_gone_while_nobody_consumes(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    source = f"{topic}/billing"
    async with AsyncConsumer(bus, topic, subscription="billing"):
        pass
    quota(cluster, "set", source, "--messages", "3")
    config = PublisherConfig(on_full="wait", deadline_s=120, window=10)
    async with AsyncPublisher(bus, config) as publisher:
        sending: list[asyncio.Future[Published]] = []
        drivers = publisher._drivers
        assert drivers is not None
        async with asyncio.timeout(60 * FACTOR):  # RabbitMQ applies a policy a little later
            while not drivers.own.pending.full:
                sending += [await publisher.submit(topic, b"more") for _ in range(20)]
                await asyncio.wait(sending, timeout=0.5)
        quota(cluster, "clear", source)
        ends = await asyncio.gather(*sending)
    assert {end.outcome for end in ends} == {Outcome.CONFIRMED}
