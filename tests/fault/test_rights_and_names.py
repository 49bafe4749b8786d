"""Promise: refusals for missing rights, and brokers with odd names, are reported and cost little."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from messagebus import (
    AsyncConsumer,
    AsyncPublisher,
    BusConfig,
    Consumer,
    LoginRefused,
    Outcome,
    Publisher,
    PublisherConfig,
    Secret,
)
from messagebus.broker import Broker
from ops.local.cluster import LocalCluster
from ops.provision.wanted import RIGHTS
from tests.support.eventually import FACTOR, eventually, eventually_async
from tests.support.fake_amqp import FakeRabbit, Manners, fake_rabbits
from tests.support.fake_list import FakeList, serve_list
from tests.support.faults import register
from tests.support.orders import received

WITHIN_S = 60
USER, PASSWORD = "changing", "changing-password"
ALL_RIGHTS = {"configure": "^$", "write": ".*", "read": ".*"}
NO_RIGHTS = {"configure": "^$", "write": "^$", "read": "^$"}
TOPIC, SUBSCRIPTION, QUEUE = "orders", "billing", "mb.sub/orders/billing"


@pytest.mark.guarantee("wrong-login")
def test_a_virtual_host_that_is_not_there_is_told_at_once(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(cluster, f"queue:{topic}")
    nowhere = dataclasses.replace(bus, vhost="nowhere")
    with pytest.raises(LoginRefused, match="nowhere"):
        Publisher(nowhere).start(require="one", timeout_s=WITHIN_S)
    with pytest.raises(LoginRefused, match="nowhere"):
        Consumer(nowhere, f"queue:{topic}").start(require="one", timeout_s=WITHIN_S)


def grant(cluster: LocalCluster, rights: dict[str, str]) -> None:
    for name in cluster.names:
        with cluster.management(name) as api:
            api.put(f"/api/permissions/%2F/{USER}", json=rights).raise_for_status()


@contextmanager
def changing_user(cluster: LocalCluster, bus: BusConfig) -> Iterator[BusConfig]:
    """Give settings of a user with all rights on exchanges and queues, to be taken away."""
    for name in cluster.names:
        with cluster.management(name) as api:
            user = {"password": PASSWORD, "tags": ""}
            api.put(f"/api/users/{USER}", json=user).raise_for_status()
    try:
        grant(cluster, ALL_RIGHTS)
        yield dataclasses.replace(bus, user=USER, password=Secret(PASSWORD), password_file="")
    finally:
        for name in cluster.names:
            with cluster.management(name) as api:
                api.delete(f"/api/users/{USER}")


@pytest.mark.guarantee("rights-taken-away")
def test_a_publisher_whose_right_is_taken_away_says_so_and_goes_on_when_it_is_back(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(cluster, f"{topic}/all")
    with (
        changing_user(cluster, bus) as changing,
        Publisher(changing, PublisherConfig(deadline_s=5)) as publisher,
    ):
        publisher.send_safe(topic, b"x", timeout_s=WITHIN_S)
        grant(cluster, NO_RIGHTS)
        # A broker remembers for a channel what it has allowed.
        moves = publisher.stats().moves
        publisher.refresh_connection()
        eventually(lambda: publisher.stats().moves > moves, within_s=WITHIN_S)
        refused = publisher.submit(topic, b"y").result(WITHIN_S * FACTOR)
        assert refused.outcome is not Outcome.CONFIRMED
        assert "ACCESS_REFUSED" in refused.reason
        grant(cluster, ALL_RIGHTS)
        eventually(
            lambda: publisher.submit(topic, b"z").result().outcome is Outcome.CONFIRMED,
            within_s=2 * WITHIN_S,
        )


@pytest.mark.guarantee("rights-taken-away")
def test_a_consumer_whose_right_is_taken_away_is_attached_again_when_it_is_back(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    register(cluster, f"{topic}/all")
    with changing_user(cluster, bus) as changing, Publisher(bus) as publisher:
        consumer = Consumer(
            dataclasses.replace(changing, client_id=topic), topic, subscription="all"
        )
        consumer.start(require="all", timeout_s=WITHIN_S)
        try:
            grant(cluster, NO_RIGHTS)
            for name in cluster.names:
                close_all_of(cluster, name, USER)
            eventually(lambda: not consumer.keep_alive(), within_s=WITHIN_S)
            sent = publisher.send_safe(topic, b"x", timeout_s=WITHIN_S)
            assert consumer.receive(0.5) is None
            grant(cluster, ALL_RIGHTS)
            assert received(consumer).message_id == sent.message_id
            eventually(consumer.keep_alive, within_s=WITHIN_S)
        finally:
            consumer.stop(timeout_s=0)


def close_all_of(cluster: LocalCluster, name: str, user: str) -> None:
    with cluster.management(name) as api:
        api.delete(f"/api/connections/username/{user}").raise_for_status()


ACCESS_REFUSED = 403
READS = ("consume", "get", "purge")
MAKES = ("declare", "delete")
BINDS = ("bind", "unbind")
# Role -> to what exchanges it may publish, what queues it may read. Nobody makes, deletes or binds anything.
MAY = {
    "application": ("topic to delay default", "sub queue park"),
    "publisher": ("topic to delay", ""),
    "consumer": ("delay default", "sub queue park"),
    "monitor": ("", ""),
    "probe": ("", ""),
    "narrow": ("topic", "sub park"),
}
# An application of its own names, as docs/operations/security.md has it; it may not retry.
NARROW = ("^$", r"^mb\.topic/{0}$", r"^mb\.(sub|park)/{0}/all$")


def things(topic: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return exchanges and queues of every kind, those of another application among them."""
    exchanges = {
        "topic": f"mb.topic/{topic}",
        "to": f"mb.to/{topic}",
        "other topic": f"mb.topic/{topic}-other",
        "delay": "mb.delay/0",  # not there: what waited in it would be told as undelivered
        "due": "mb.due",
        "out": "mb.out",
        "undelivered": "mb.undelivered",
        "default": "",
        "events": "amq.rabbitmq.event",
    }
    queues = {
        "sub": f"mb.sub/{topic}/all",
        "queue": f"mb.queue/{topic}",
        "park": f"mb.park/{topic}/all",
        "other sub": f"mb.sub/{topic}-other/all",
        "steps": "mb.delay/0",
        "undelivered": "mb.park/mb.due",
        "gate": "mb.ready",
    }
    return exchanges, queues


Tried = dict[tuple[str, str], Callable[[BlockingChannel], object]]


def operations(exchanges: dict[str, str], queues: dict[str, str]) -> Tried:
    """Return every operation on every kind of thing, by the names of both. No publish names a queue."""
    tried: Tried = {}
    for kind, name in exchanges.items():
        tried["publish", kind] = lambda c, n=name: c.basic_publish(n, "nowhere", b"x")  # type: ignore[misc]
        if kind != "default":
            tried["declare", f"exchange {kind}"] = lambda c, n=f"{name}2": c.exchange_declare(n)  # type: ignore[misc]
            tried["delete", f"exchange {kind}"] = lambda c, n=name: c.exchange_delete(n)  # type: ignore[misc]
    for kind, name in queues.items():
        tried |= {
            ("consume", kind): lambda c, n=name: c.basic_consume(n, lambda *_: None),  # type: ignore[misc]
            ("get", kind): lambda c, n=name: c.basic_get(n),  # type: ignore[misc]
            ("purge", kind): lambda c, n=name: c.queue_purge(n),  # type: ignore[misc]
            ("declare", kind): lambda c, n=f"{name}2": c.queue_declare(n, durable=True),  # type: ignore[misc]
            ("delete", kind): lambda c, n=name: c.queue_delete(n),  # type: ignore[misc]
        }
    for source in filter(None, exchanges.values()):
        for to in queues.values():
            about = f"{source} -> {to}"
            tried["bind", about] = lambda c, s=source, t=to: c.queue_bind(t, s, "k")  # type: ignore[misc]
            tried["unbind", about] = lambda c, s=source, t=to: c.queue_unbind(t, s)  # type: ignore[misc]
        for to in exchanges.values():
            about = f"{source} => {to}"
            tried["bind", about] = lambda c, s=source, t=to: c.exchange_bind(t, s, "k")  # type: ignore[misc]
            tried["unbind", about] = lambda c, s=source, t=to: c.exchange_unbind(t, s)  # type: ignore[misc]
    return tried


def allowed(connection: pika.BlockingConnection, tried: Tried) -> set[tuple[str, str]]:
    """Return the operations that the broker does not refuse for want of rights; it checks rights first."""
    found, channel = set(), connection.channel()
    for what, operation in tried.items():
        try:
            operation(channel)
            # Whatever a publish led to comes before this answer.
            channel.basic_qos(prefetch_count=1)
        except ChannelClosedByBroker as refused:
            channel = connection.channel()
            if refused.reply_code == ACCESS_REFUSED:
                continue
        found.add(what)
    return found


@contextmanager
def connected(cluster: LocalCluster, role: str, topic: str) -> Iterator[pika.BlockingConnection]:
    """Connect as a user of this role to the first broker."""
    narrow = tuple(pattern.format(topic) for pattern in NARROW)
    rights = dict(
        zip(("configure", "write", "read"), RIGHTS.get(role, ("", *narrow))[1:], strict=True)
    )
    (name, *_others), broker = cluster.names, Broker.parse(cluster.node(cluster.names[0]).broker)
    login = pika.PlainCredentials(f"{USER}-{role}", PASSWORD)
    with cluster.management(name) as api:
        user = {"password": PASSWORD, "tags": ""}
        api.put(f"/api/users/{login.username}", json=user).raise_for_status()
        try:
            api.put(f"/api/permissions/%2F/{login.username}", json=rights).raise_for_status()
            parameters = pika.ConnectionParameters(broker.host, broker.port, credentials=login)
            with pika.BlockingConnection(parameters) as connection:
                yield connection
        finally:
            api.delete(f"/api/users/{login.username}")


@pytest.mark.guarantee("roles-cannot-bind")
@pytest.mark.parametrize("role", MAY)
def test_no_role_can_do_to_a_thing_what_the_table_does_not_say(
    broken: LocalCluster, topic: str, role: str
) -> None:
    register(broken, f"{topic}/all", f"queue:{topic}")
    exchanges, queues = things(topic)
    publishes, reads = (each.split() for each in MAY[role])
    wanted = {("publish", kind) for kind in publishes}
    wanted |= {(operation, kind) for operation in READS for kind in reads}
    if role != "narrow":
        wanted |= {("publish", "other topic") for kind in publishes if kind == "topic"}
        others = ("other sub", "undelivered")
        wanted |= {(operation, kind) for operation in READS for kind in others if reads}
    tried = operations(exchanges, queues)
    assert {operation for operation, _about in tried} == {"publish", *READS, *MAKES, *BINDS}
    with connected(broken, role, topic) as connection:
        assert allowed(connection, tried) == wanted


@pytest.mark.guarantee("roles-cannot-bind")
@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("application", "topic sub queue delay"),
        ("publisher", "topic queue delay"),
        ("consumer", "sub queue delay"),
        ("monitor", ""),
        ("probe", ""),
        ("narrow", "topic sub"),
    ],
)
def test_no_role_has_an_agent_make_what_its_own_rights_do_not_cover(
    broken: LocalCluster, topic: str, role: str, may: str
) -> None:
    names = {
        "topic": topic,
        "sub": f"{topic}/all",
        "queue": f"queue:{topic}",
        "delay": "delay:1000",
    }
    url = f"http://{broken.node(broken.names[0]).agent}"
    with (
        connected(broken, role, topic),
        httpx.Client(base_url=url, auth=(f"{USER}-{role}", PASSWORD), timeout=WITHIN_S) as agent,
    ):
        for kind, name in names.items():
            found = agent.post("/topology", json={"wanted": [name]}).status_code
            assert found == (200 if kind in may.split() else 403), name
        if role == "narrow":
            assert agent.post("/topology", json={"wanted": [f"{topic}/spy"]}).status_code == 403


@pytest.mark.guarantee("brokers-of-one-name")
@pytest.mark.parametrize(
    "name",
    ["", "rabbit@host", "prod", "no port:", "::::", "other:5672 and more", "\ufffd:1", "x" * 5_000],
    ids=["none", "node", "word", "no-port", "colons", "text", "odd", "long"],
)
async def test_a_broker_whose_name_is_no_address_is_used_unidentified(name: str) -> None:
    rabbit = FakeRabbit(manners=Manners(cluster_name=name))
    with fake_rabbits(rabbit):
        rabbit.hold(TOPIC)
        rabbit.hold(f"{TOPIC}/{SUBSCRIPTION}")
        async with serve_list(FakeList([rabbit.name])) as listing:
            bus = BusConfig(broker=rabbit.name, list_urls=(listing.url,))
            async with AsyncConsumer(bus, TOPIC, subscription=SUBSCRIPTION) as consumer:
                rabbit.put(QUEUE, b"x")
                delivery = await consumer.receive(WITHIN_S)
                assert delivery is not None
                consumer.ack(delivery)


@pytest.mark.parametrize("has_list", [True, False], ids=["list", "no-list"])
async def test_a_publisher_is_connected_to_a_broker_that_says_no_name(has_list: bool) -> None:
    """`stats().broker` decides whether a gateway or a relay is ready, and what the metric says."""
    rabbit = FakeRabbit(manners=Manners(cluster_name="rabbit@host"))
    with fake_rabbits(rabbit):
        rabbit.hold(TOPIC)
        rabbit.hold(f"{TOPIC}/{SUBSCRIPTION}")
        async with serve_list(FakeList([rabbit.name])) as listing:
            bus = BusConfig(broker=rabbit.name, list_urls=(listing.url,) if has_list else ())
            async with AsyncPublisher(bus) as publisher:
                await publisher.send_safe(TOPIC, b"x", timeout_s=WITHIN_S)
                assert publisher.stats().broker == rabbit.name
                rabbit.manners.silent_after = "connect"
                rabbit.drop_connections()
                await eventually_async(lambda: not publisher.stats().broker, within_s=WITHIN_S)


@pytest.mark.guarantee("brokers-of-one-name")
async def test_two_brokers_of_one_name_are_both_consumed_from() -> None:
    first, second = FakeRabbit(), FakeRabbit()
    with fake_rabbits(first, second):
        second.manners.cluster_name = first.name
        for rabbit in (first, second):
            rabbit.hold(f"{TOPIC}/{SUBSCRIPTION}")
            rabbit.put(QUEUE, rabbit.name.encode())
        async with serve_list(FakeList([first.name, second.name])) as listing:
            bus = BusConfig(broker=first.name, list_urls=(listing.url,))
            async with AsyncConsumer(bus, TOPIC, subscription=SUBSCRIPTION) as consumer:
                got = set()
                for _ in range(2):
                    delivery = await consumer.receive(WITHIN_S)
                    assert delivery is not None
                    consumer.ack(delivery)
                    got.add(delivery.body.decode())
                assert got == {first.name, second.name}


@pytest.mark.guarantee("brokers-of-one-name")
async def test_two_brokers_of_one_name_cost_the_first_nothing() -> None:
    first, second = FakeRabbit(), FakeRabbit()
    with fake_rabbits(first, second):
        second.manners.cluster_name = first.name
        for rabbit in (first, second):
            rabbit.hold(f"{TOPIC}/{SUBSCRIPTION}")
        async with serve_list(FakeList([first.name, second.name])) as listing:
            bus = BusConfig(broker=first.name, list_urls=(listing.url,))
            async with AsyncConsumer(bus, TOPIC, subscription=SUBSCRIPTION) as consumer:
                await eventually_async(lambda: second.connections > 0, within_s=WITHIN_S)
                first.put(QUEUE, b"x")
                delivery = await consumer.receive(WITHIN_S)
                assert delivery is not None
                consumer.ack(delivery)
                # A delivery may be read before the answer that opens its link for the statistics.
                await eventually_async(
                    lambda: consumer.stats().brokers[first.name].state == "open", within_s=WITHIN_S
                )
                assert first.connections == 1
