"""Real agents observed: killed, drained, shut, silent; counts of AMQP; `messagebus top`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable

from messagebus import BusConfig, Consumer, Publisher
from messagebus._io.amqp.control import Control
from messagebus._io.amqp.link import Credentials
from messagebus.broker import Broker
from messagebus.observing.ask import Asker
from messagebus.observing.rates import row_rates
from messagebus.observing.snapshot import Answer, Bus, ObservedBroker, rows_of
from messagebus.observing.totals import total, uncounted
from ops.local.cluster import LocalCluster
from tests.support.faults import operators_drain, register

WITHIN_S = 60
LONG_S = 120


def look_until(
    cluster: LocalCluster,
    bus: BusConfig,
    holds: Callable[[Bus], object],
    do: Callable[[], object] = int,
    names: Iterable[str] = (),
) -> Bus:
    """Look at the bus, do something, and look again until the condition holds; return the last look.

    Between looks the requests that wait for states are heard, as in a monitor.
    """

    async def watch() -> Bus:
        asker = Asker(bus, balancers=[f"http://{cluster.layout.front.stats}"])
        try:
            await asker.look()
            await asyncio.to_thread(do)
            async with asyncio.timeout(LONG_S):
                while not holds(told := await asker.look(names=names)):
                    await asker.changed(within_s=0.5)
            return told
        finally:
            await asker.close()

    return asyncio.run(watch())


def seen(cluster: LocalCluster, bus: Bus, name: str) -> ObservedBroker:
    found = bus.find(cluster.node(name).broker)
    assert found
    return found


def last(cluster: LocalCluster, bus: Bus, name: str) -> Answer:
    answer = seen(cluster, bus, name).last
    assert answer
    return answer


def test_what_waits_and_who_consumes_is_told_by_every_broker(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    name = f"{topic}/a"
    register(cluster, name)
    with Publisher(bus) as publisher:
        for number in range(7):
            publisher.send_safe(topic, str(number).encode())
    found = look_until(cluster, bus, lambda told: total(told, [name]).ready == 7)
    assert set(rows_of(found, name)) == set(cluster.brokers)
    age_ms = total(found, [name]).oldest_ms
    assert age_ms is not None
    assert age_ms >= 0
    assert total(found, [name]).consumers == 0
    # In the statistics, too, which are some seconds old.
    look_until(
        cluster, bus, lambda told: sum(r.arrived or 0 for r in rows_of(told, name).values()) == 7
    )
    with Consumer(bus, topic, subscription="a") as consumer:
        held = [consumer.receive(timeout_s=WITHIN_S) for _ in range(7)]

        def owed(told: Bus) -> list[tuple[str, int | None]]:
            each_of = (each for answer in told.answers.values() for each in answer.consumers)
            return [(each.client, each.owed) for each in each_of if each.name == name]

        found = look_until(
            cluster,
            bus,
            lambda told: sum(count or 0 for _, count in owed(told)) == 7,
            names=[name],
        )
        (client,) = {who for who, _ in owed(found)}
        assert client in {each.id for answer in found.answers.values() for each in answer.clients}
        assert len(owed(found)) == 3
        for delivery in held:
            assert delivery
            consumer.ack(delivery)
        found = look_until(cluster, bus, lambda told: total(told, [name]).consumers == 3)
        assert total(found, [name]).ready == 0
        found = look_until(
            cluster, bus, lambda told: any(each.client_count for each in told.answers.values())
        )
    assert found.silent == ()
    assert [len(each.servers) for each in found.balancers] == [3]
    assert {each.status for each in found.balancers[0].servers} == {"UP"}


def test_rates_are_of_what_was_published(cluster: LocalCluster, bus: BusConfig, topic: str) -> None:
    name = f"{topic}/a"
    register(cluster, name)
    old = look_until(
        cluster,
        bus,
        lambda told: (
            len(rows_of(told, name)) == 3
            and all(row.arrived is not None for row in rows_of(told, name).values())
        ),
    )

    def publish() -> None:
        with Publisher(bus) as publisher:
            for number in range(50):
                publisher.send_safe(topic, str(number).encode())

    new = look_until(
        cluster,
        bus,
        lambda told: sum(r.arrived or 0 for r in rows_of(told, name).values()) == 50,
        publish,
    )
    rates = row_rates(old, new)
    came = 0.0
    for broker, row in rows_of(new, name).items():
        before, after = old.answers[broker], new.answers[broker]
        began, ended = before.swept_at(rows_of(old, name)[broker]), after.swept_at(row)
        assert began
        assert ended
        if (broker, name, "sub") in rates:
            came += rates[broker, name, "sub"].came * (ended - began) / 1000
    assert round(came) == 50


def test_counts_of_many_queues_know_the_missing_ones(cluster: LocalCluster, topic: str) -> None:
    register(cluster, f"{topic}/a", f"{topic}/b")
    queues = ["mb.no/1", f"mb.sub/{topic}/a", "mb.no/2", "mb.no/3", f"mb.sub/{topic}/b", "mb.no/4"]

    async def count() -> dict[str, tuple[int, int] | None]:
        who = Credentials(user="admin", password=cluster.admin_password)
        address = Broker.parse(cluster.node("mb1").broker)
        control = await Control.dial(address, who, timeout_ms=WITHIN_S * 1000)
        try:
            assert await control.count_all([]) == {}
            return await control.count_all(queues)
        finally:
            await control.close()

    found = asyncio.run(count())
    assert found == {queue: None if "no" in queue.split("/")[0] else (0, 0) for queue in queues}


def test_a_drained_broker_says_so_and_is_counted(broken: LocalCluster, bus: BusConfig) -> None:
    def is_drained(told: Bus) -> bool:
        return last(broken, told, "mb2").state.draining == "operators drain it"

    found = look_until(broken, bus, is_drained, lambda: operators_drain(broken, "mb2", True))
    assert last(broken, found, "mb2").state.verdict == "drain"
    assert uncounted(found) == {}


def test_a_killed_broker_and_a_silent_agent_are_named_and_never_0(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    name = f"{topic}/a"
    register(broken, name)
    look_until(broken, bus, lambda told: len(rows_of(told, name)) == len(broken.brokers))
    address = {each: broken.node(each).broker for each in ("mb1", "mb2", "mb3")}

    def kill() -> None:
        broken.kill("mb3")
        broken.kill("mb2", agent=True)

    found = look_until(broken, bus, lambda told: len(uncounted(told)) == 2, kill)
    assert set(uncounted(found)) == {address["mb2"], address["mb3"]}
    assert last(broken, found, "mb3").state.verdict == "down"
    assert seen(broken, found, "mb2").fault
    assert seen(broken, found, "mb2").last is not None
    told = total(found, [name])
    assert told.coverage == f"on 1 of 3 brokers, without {address['mb2']}, {address['mb3']}"
    # Its figures stay beside the reason, and grow old.
    row = last(broken, found, "mb3").rows[name, "sub"]
    assert last(broken, found, "mb3").counted_age_ms(row, found.at_ms) >= 0


def test_a_gate_that_is_shut_is_told_with_its_reason(broken: LocalCluster, bus: BusConfig) -> None:
    def shut() -> None:
        for name in ("mb2", "mb3"):
            broken.kill(name, agent=True)
        broken.kill("mb1")
        broken.start("mb1", wait=False)

    def is_shut(told: Bus) -> bool:
        state = last(broken, told, "mb1").state
        return state.linked and not state.gate

    found = look_until(broken, bus, is_shut, shut)
    assert last(broken, found, "mb1").state.reason == "gate is shut: no majority of agents read"
    assert len(uncounted(found)) == 2


def test_top_and_topics_tell_the_same_as_the_agents(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(cluster, f"{topic}/a", f"{topic}/b")
    with Publisher(bus) as publisher:
        publisher.send_safe(topic, b"one")

    def shell(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "messagebus", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONG_S,
            env={**os.environ, **cluster.client_env()},
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    told = json.loads(shell("top", "--once", "--json"))
    assert told["subscriptions"][f"{topic}/a"]["ready"] == 1
    assert set(told["brokers"]) == set(cluster.brokers)
    assert told["without"] == {}
    lines = shell("top", "--once", "--filter", topic, "--sort", "name").splitlines()
    assert [line.split()[:2] for line in lines[-2:]] == [[f"{topic}/a", "1"], [f"{topic}/b", "1"]]
    (row,) = [line for line in shell("topics", "list").splitlines() if line.startswith(topic)]
    assert row.split()[:3] == [topic, "2", "2"]
    assert "OLDEST" in shell("subscriptions", "list").splitlines()[0]
