"""The fake broker of tests/support against a foreign client and against ours: it speaks as RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pika
import pika.exceptions
import pytest

from messagebus import (
    AsyncConsumer,
    BusConfig,
    Consumer,
    LoginRefused,
    Message,
    Outcome,
    Publisher,
    Secret,
    Subscription,
    Topic,
)
from messagebus._io.admin.parking import _Taking
from messagebus._io.amqp.connection import HOT_PATH
from messagebus.admin import redrive_parked
from tests.support.eventually import eventually
from tests.support.fake_amqp import FakeRabbit, Manners, fake_rabbit, fake_rabbits
from tests.support.fake_list import FakeList, serve_list

WITHIN_S = 60
COUNT = 20
QUEUE = "mb.sub/orders/billing"


@pytest.fixture
def rabbit() -> Iterator[FakeRabbit]:
    with fake_rabbit() as rabbit:
        yield rabbit


def connected(rabbit: FakeRabbit, **parameters: Any) -> Any:
    return pika.BlockingConnection(
        pika.ConnectionParameters(host=rabbit.host, port=rabbit.port, **parameters)
    )


def test_a_foreign_client_declares_publishes_and_consumes(rabbit: FakeRabbit) -> None:
    connection = connected(rabbit)
    channel = connection.channel()
    channel.exchange_declare("x", "fanout")
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "x")
    channel.confirm_delivery()
    body = b"a" * 300_000
    channel.basic_publish("x", "", body, pika.BasicProperties(message_id="7"), mandatory=True)
    method, properties, got = channel.basic_get("q")
    assert (properties.message_id, got) == ("7", body)
    channel.basic_nack(method.delivery_tag)
    _, method, _, _ = next(iter_one(channel, "q"))
    assert method.redelivered
    channel.basic_ack(method.delivery_tag)
    with pytest.raises(pika.exceptions.UnroutableError):
        channel.basic_publish("", "nowhere", b"", mandatory=True)
    connection.close()
    assert not rabbit.queues["q"].messages


def iter_one(channel: Any, queue: str) -> Iterator[tuple[Any, Any, Any, Any]]:
    got: list[tuple[Any, Any, Any, Any]] = []
    channel.basic_consume(queue, lambda *delivery: got.append(delivery))
    while not got:
        channel.connection.process_data_events(time_limit=1)
    yield from got


def test_it_refuses_as_rabbitmq_does(rabbit: FakeRabbit) -> None:
    connection = connected(rabbit)
    requests: list[tuple[int, Callable[[Any], object]]] = [
        (404, lambda channel: channel.queue_declare("q", passive=True)),
        (403, lambda channel: channel.exchange_declare("f")),
        (406, lambda channel: channel.basic_ack(7) or channel.basic_qos()),
    ]
    rabbit.manners.forbidden = {"f"}
    for code, request in requests:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as raised:
            request(connection.channel())
        assert raised.value.reply_code == code
    connection.close()
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        connected(rabbit, virtual_host="nowhere")
    rabbit.manners.passwords = {"guest": "other"}
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connected(rabbit)
    assert (rabbit.logins, rabbit.refused) == (3, 1)


def test_small_limits_are_negotiated(rabbit: FakeRabbit) -> None:
    rabbit.manners = Manners(frame_max=4096, channel_max=1)
    connection = connected(rabbit)
    channel = connection.channel()
    rabbit.declare("q")
    channel.basic_publish("", "q", b"b" * 20_000)
    assert (
        eventually(lambda: rabbit.queues["q"].messages, within_s=WITHIN_S)[0].body == b"b" * 20_000
    )
    with pytest.raises(pika.exceptions.NoFreeChannels):
        connection.channel()
    connection.close()


def test_a_single_broker_whose_name_is_no_address_is_reported_by_that_of_the_bus(
    rabbit: FakeRabbit,
) -> None:
    rabbit.manners.cluster_name = "rabbit@host"  # as RabbitMQ's own default
    rabbit.hold("orders")
    rabbit.hold("orders/billing")
    with Publisher(BusConfig(broker=rabbit.name)) as publisher:
        published = publisher.send_safe("orders", b"one")
    assert (published.broker, published.brokers) == (rabbit.name, (rabbit.name,))


def test_what_happens_to_our_clients_is_seen_by_them(rabbit: FakeRabbit) -> None:
    rabbit.hold("orders")
    rabbit.hold("orders/billing")
    bus = BusConfig(broker=rabbit.name, heartbeat_s=1)
    with Publisher(bus) as publisher, Consumer(bus, "orders", subscription="billing") as consumer:
        published = publisher.send_safe("orders", Message(body=b"one", headers={"a": 1}))
        assert (published.outcome, published.broker) == (Outcome.CONFIRMED, rabbit.name)
        delivery = consumer.receive(WITHIN_S)
        assert delivery is not None
        assert (delivery.body, delivery.message.headers) == (b"one", {"a": 1})
        assert consumer.ack_safe(delivery)
        happenings: list[Callable[[], object]] = [
            lambda: rabbit.cancel_consumers(QUEUE),
            rabbit.close_channels,
            rabbit.close_connections,
            rabbit.drop_connections,
        ]
        for happens in happenings:
            accepted = rabbit.accepted
            happens()
            eventually(partial(has_accepted, rabbit, accepted + 1), within_s=WITHIN_S)
            eventually(consumer.keep_alive, within_s=WITHIN_S)
            publisher.send_safe("orders", b"two", timeout_s=WITHIN_S)
            delivery = consumer.receive(WITHIN_S)
            assert delivery is not None
            consumer.ack(delivery)
        rabbit.manners.confirms = "nack"
        assert publisher.submit("orders", b"no").result(WITHIN_S).outcome is Outcome.REFUSED


def has_accepted(rabbit: FakeRabbit, count: int) -> bool:
    return rabbit.accepted >= count


def test_a_wrong_password_and_silence(rabbit: FakeRabbit) -> None:
    rabbit.manners.passwords = {"guest": "right"}
    with pytest.raises(LoginRefused):
        Publisher(BusConfig(broker=rabbit.name, password=Secret("wrong"))).start(require="one")
    rabbit.manners.silent_after = "connect"
    publisher = Publisher(BusConfig(broker=rabbit.name, password=Secret("right")))
    with publisher:
        eventually(lambda: rabbit.accepted >= 2, within_s=WITHIN_S)
        assert not publisher.stats().broker


async def test_a_consumer_follows_a_served_list_of_many() -> None:
    rabbits = [FakeRabbit("127.0.75.1") for _ in range(8)]
    with fake_rabbits(*rabbits):
        for rabbit in rabbits:
            rabbit.hold("orders/billing")
            rabbit.put(QUEUE, rabbit.name.encode())
        names = [rabbit.name for rabbit in rabbits]
        async with serve_list(FakeList(names[:7])) as listing:
            bus = BusConfig(broker=names[0], list_urls=(listing.url,))
            async with AsyncConsumer(bus, "orders", subscription="billing") as consumer:
                got = {(await received(consumer)).broker for _ in range(7)}
                assert got == set(names[:7])
                listing.show(names)
                assert (await received(consumer)).body == names[7].encode()


async def received(consumer: AsyncConsumer) -> Any:
    delivery = await consumer.receive(WITHIN_S)
    assert delivery is not None
    assert consumer.ack(delivery)
    return delivery


@pytest.mark.parametrize("hot_path", ["1", "0"])
def test_a_link_that_ends_politely_cancels_no_consumer(
    rabbit: FakeRabbit, monkeypatch: pytest.MonkeyPatch, hot_path: str
) -> None:
    """A cancel would make the next single active consumer be served ahead of the returned deliveries."""
    monkeypatch.setenv(HOT_PATH, hot_path)
    source = Subscription(Topic("orders"), "billing", single_active=True)
    bus = BusConfig(broker=rabbit.name)
    rabbit.hold("orders/billing")
    rabbit.queues[QUEUE].arguments["x-single-active-consumer"] = True
    with Publisher(bus) as publisher, Consumer(bus, source) as consumer:
        publisher.send_safe("orders", b"held")
        assert consumer.receive(WITHIN_S) is not None
        assert consumer.stop(0) == 1
    eventually(lambda: rabbit.queues[QUEUE].messages, within_s=WITHIN_S)
    assert rabbit.cancelled == 0


@pytest.mark.guarantee("redriving-loses-nothing")
def test_a_redrive_counts_a_message_when_the_broker_has_read_its_answer(
    rabbit: FakeRabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A redrive that ends there, its connection too, leaves at most one message twice."""
    rabbit.hold("orders/billing")
    parking = rabbit.queues["mb.park/orders/billing"]
    for number in range(COUNT):
        rabbit.put(parking.name, b"%d" % number)
    steps: list[str] = []
    ack, settle = _Taking.ack, _Taking.settle

    def noted_ack(taking: _Taking, tag: int) -> None:
        steps.append("ack")
        ack(taking, tag)

    async def noted_settle(taking: _Taking) -> None:
        await settle(taking)
        steps.append("round trip")

    monkeypatch.setattr(_Taking, "ack", noted_ack)
    monkeypatch.setattr(_Taking, "settle", noted_settle)
    redrive_parked(
        BusConfig(broker=rabbit.name),
        ["orders/billing"],
        on_progress=lambda _told: steps.append("told"),
    )
    first, each = steps.index("ack"), ["ack", "round trip", "told"]
    assert steps[first : first + COUNT * len(each)] == each * COUNT
    assert not parking.messages
