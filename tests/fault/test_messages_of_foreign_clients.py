"""Promise: whatever a foreign client puts into a message, a consumer delivers it and goes on.

AMQP knows kinds of header values that Python's types do not cover one to one, and other clients set
properties wrongly. The body always arrives, and the valid part of the rest.
"""

from __future__ import annotations

import datetime
import struct
from decimal import Decimal
from typing import Any

import pika
import pytest

from messagebus import BusConfig, Consumer, Delivery, Message, MessageInvalid, Publisher, Topic
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.fake_amqp import FakeRabbit
from tests.support.faults import forget, register
from tests.support.orders import QUEUE, SUBSCRIPTION, TOPIC, WITHIN_S, taken

UTC = datetime.UTC
SHORT_MAX = 255
NAME_MAX = 120
BODY = b"whatever the headers are"

# Values that pika sends, of every kind that it can, and the values that a consumer must find.
KINDS: dict[str, tuple[Any, Any]] = {
    "void": (None, None),
    "true": (True, True),
    "small": (-1, -1),
    "long": (1 << 40, 1 << 40),
    "lowest": (-(1 << 63), -(1 << 63)),
    "text": ("żółw 🐢", "żółw 🐢"),
    "empty": ("", ""),
    "bytes": (b"\x00\xff\xfe", b"\x00\xff\xfe"),
    "decimal": (Decimal("3.14"), Decimal("3.14")),
    "time": (
        datetime.datetime(2026, 1, 2, 3, 4, 5),
        datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    ),
    "array": ([1, "two", [3, None]], [1, "two", [3, None]]),
    "table": ({"a": {"b": {"c": 1}}}, {"a": {"b": {"c": 1}}}),
}

# Field values as bytes on the wire, after the name: type octet and value. RabbitMQ lets them through;
# each is at its edges.
RAW_KINDS: dict[str, bytes] = {
    "bool": b"t\x01",
    "odd-bool": b"t\xff",
    "int8": b"b\x80",
    "uint8": b"B\xff",
    "int16": b"s" + struct.pack(">h", -32768),
    "uint16": b"u" + struct.pack(">H", 65535),
    "int32": b"I" + struct.pack(">i", -(1 << 31)),
    "uint32": b"i" + struct.pack(">I", (1 << 32) - 1),
    "int64": b"l" + struct.pack(">q", -(1 << 63)),
    "spec-int64": b"L" + struct.pack(">q", (1 << 63) - 1),
    "float": b"f" + struct.pack(">f", 1.5),
    "double": b"d" + struct.pack(">d", -2.5),
    "decimal": b"D\x02" + struct.pack(">I", 314),
    "decimal-of-255-places": b"D\xff" + struct.pack(">I", (1 << 32) - 1),
    "text": b"S" + struct.pack(">I", 3) + b"abc",
    "text-not-utf8": b"S" + struct.pack(">I", 3) + b"\xff\xfe\x00",
    "bytes": b"x" + struct.pack(">I", 2) + b"\x00\xff",
    "time": b"T" + struct.pack(">Q", 1_700_000_000),
    "time-in-ms": b"T" + struct.pack(">Q", 1_700_000_000_000),
    "time-out-of-range": b"T" + struct.pack(">Q", (1 << 64) - 1),
    "void": b"V",
    "array": b"A" + struct.pack(">I", 2) + b"t\x01",
    "empty-array": b"A" + struct.pack(">I", 0),
    "table": b"F" + struct.pack(">I", 4) + b"\x01at\x01",
    "empty-table": b"F" + struct.pack(">I", 0),
}

HEADERS, PRIORITY, EXPIRATION, MESSAGE_ID, CONTENT_TYPE, TIMESTAMP = (
    1 << bit for bit in (13, 11, 8, 7, 15, 6)
)


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def deep(levels: int) -> bytes:
    """Nest a table in tables, to this depth."""
    value = b"F" + struct.pack(">I", 0)
    for _ in range(levels):
        value = b"F" + struct.pack(">I", 2 + len(value)) + b"\x01a" + value
    return value


def with_header(value: bytes, name: bytes = b"h") -> bytes:
    table = short(name) + value
    return struct.pack(">HI", HEADERS, len(table)) + table


RAW_PROPERTIES: dict[str, bytes] = {
    "priority-255": struct.pack(">HB", PRIORITY, 255),
    "expiration-abc": struct.pack(">H", EXPIRATION) + short(b"abc"),
    "expiration-negative": struct.pack(">H", EXPIRATION) + short(b"-1"),
    "message-id-not-utf8": struct.pack(">H", MESSAGE_ID) + short(b"\xff\xfe"),
    "message-id-255": struct.pack(">H", MESSAGE_ID) + short(b"i" * SHORT_MAX),
    "content-type-bytes": struct.pack(">H", CONTENT_TYPE) + short(b"\x00\x80\xff"),
    "timestamp-out-of-range": struct.pack(">HQ", TIMESTAMP, (1 << 64) - 1),
    "header-name-not-utf8": with_header(b"t\x01", b"\xff\xfe"),
    "header-name-255": with_header(b"t\x01", b"n" * SHORT_MAX),
    "header-of-ours-wrong-kind": with_header(b"F" + struct.pack(">I", 0), b"mb-key"),
    "tables-100-deep": with_header(deep(100)),
    "tables-2000-deep": with_header(deep(2_000)),
    "header-twice": with_header(b"t\x01\x01ht\x00"),
}


# Values that RabbitMQ does not let through: only a broker that is broken itself delivers them.
DAMAGED: dict[str, bytes] = {
    "spec-int16": with_header(b"U" + struct.pack(">h", -32768)),
    "nan": with_header(b"d" + struct.pack(">d", float("nan"))),
    "unknown-type": with_header(b"?\x00\x00\x00\x00"),
    "shortstr": with_header(b"s\x03abc"),
    "text-longer-than-its-table": with_header(b"S" + struct.pack(">I", 1 << 20) + b"abc"),
    "truncated": with_header(b"l\x00"),
    "table-shorter-than-told": struct.pack(">HI", HEADERS, 1 << 20) + b"\x01ht\x01",
    "flags-without-values": b"\xff\xfe",
    "flags-go-on": b"\x00\x01\x00\x01\x00\x00",
    "values-without-flags": b"\x00\x00" + b"x" * 50,
    "nothing-at-all": b"",
}


def one_after_good(rabbit: FakeRabbit, properties: bytes) -> Delivery:
    """Return the delivery of a message, after checking that the next one arrives on the same link."""
    with Consumer(BusConfig(broker=rabbit.name), TOPIC, subscription=SUBSCRIPTION) as consumer:
        rabbit.put(QUEUE, BODY, properties)
        rabbit.put(QUEUE, b"behind it")
        first, second = taken(consumer), taken(consumer)
        assert second.body == b"behind it"
        assert second.receipt.epoch == first.receipt.epoch, "the link was lost for it"
        repr(first)
    return first


@pytest.mark.parametrize("kind", list(RAW_KINDS))
def test_a_header_of_any_kind_is_delivered_with_what_makes_sense(
    rabbit: FakeRabbit, hot_path: str, kind: str
) -> None:
    delivery = one_after_good(rabbit, with_header(RAW_KINDS[kind]))
    assert delivery.body == BODY
    wanted = {"float": 1.5, "double": -2.5, "odd-bool": True, "int8": -128, "uint16": 65535}
    if kind in wanted:
        assert dict(delivery.message.headers) == {"h": wanted[kind]}


@pytest.mark.guarantee("foreign-headers")
@pytest.mark.parametrize("kind", list(RAW_PROPERTIES))
def test_properties_that_others_set_wrongly_are_delivered_with_what_makes_sense(
    rabbit: FakeRabbit, hot_path: str, kind: str
) -> None:
    delivery = one_after_good(rabbit, RAW_PROPERTIES[kind])
    assert delivery.body == BODY
    match kind:
        case "priority-255":
            assert delivery.message.priority is None
        case "expiration-abc" | "expiration-negative":
            assert delivery.message.ttl_s is None
        case "message-id-255":
            assert delivery.message_id == "i" * SHORT_MAX
        case "message-id-not-utf8":
            assert delivery.message_id == "\ufffd\ufffd"


@pytest.mark.guarantee("foreign-headers")
@pytest.mark.parametrize("kind", list(DAMAGED))
def test_what_no_client_can_read_ends_no_process_and_no_other_message(
    rabbit: FakeRabbit, hot_path: str, kind: str
) -> None:
    with Consumer(BusConfig(broker=rabbit.name), TOPIC, subscription=SUBSCRIPTION) as consumer:
        seen = rabbit.accepted
        rabbit.put(QUEUE, BODY, DAMAGED[kind])
        eventually(
            lambda: consumer.stats().delivered or rabbit.accepted > seen + 2, within_s=WITHIN_S
        )
        eventually(lambda: _good_arrives(rabbit, consumer), within_s=WITHIN_S)


def _good_arrives(rabbit: FakeRabbit, consumer: Consumer) -> bool:
    """Return whether a good message arrives. Damaged ones go first: they come back with each link."""
    rabbit.on_loop(lambda: rabbit.queues[QUEUE].messages.clear())
    rabbit.put(QUEUE, b"good")
    while (delivery := consumer.receive(0.2)) is not None:
        consumer.ack(delivery)
        if delivery.body == b"good":
            return True
    return False


@pytest.mark.parametrize(
    "kind", ["time-out-of-range", "time", "text-not-utf8", "decimal", "double"]
)
def test_what_was_received_may_be_sent_on_or_is_refused_at_once(
    rabbit: FakeRabbit, hot_path: str, kind: str
) -> None:
    message = one_after_good(rabbit, with_header(RAW_KINDS[kind])).message
    try:
        copy = Message(body=message.body, headers=message.headers)
    except MessageInvalid:
        return
    with Publisher(BusConfig(broker=rabbit.name)) as publisher:
        publisher.send_safe(TOPIC, copy, timeout_s=WITHIN_S)


@pytest.mark.guarantee("foreign-headers")
def test_headers_of_every_kind_from_another_client_through_rabbitmq(
    cluster: LocalCluster, bus: BusConfig, topic: str, hot_path: str
) -> None:
    register(cluster, f"{topic}/all")
    properties = pika.BasicProperties(
        headers={name: sent for name, (sent, _) in KINDS.items()},
        message_id="i" * SHORT_MAX,
        priority=255,
        content_type="text/plain",
        timestamp=(1 << 63) - 1,
        correlation_id="c" * SHORT_MAX,
    )
    publish_as_another(cluster, Topic(topic).exchange, properties)
    with Consumer(bus, topic, subscription="all") as consumer:
        message = taken(consumer).message
    assert message.body == BODY
    assert dict(message.headers) == {name: wanted for name, (_, wanted) in KINDS.items()}
    assert (message.message_id, message.correlation_id) == ("i" * SHORT_MAX, "c" * SHORT_MAX)
    assert message.priority is None


class Raw(pika.BasicProperties):  # type: ignore[misc]
    """Properties that go on the wire as they are here."""

    def __init__(self, wire: bytes) -> None:
        super().__init__()
        self.wire = wire

    def encode(self) -> list[bytes]:
        return [self.wire]


@pytest.mark.guarantee("foreign-headers")
def test_all_that_rabbitmq_lets_through_is_delivered_in_order_on_one_link(
    cluster: LocalCluster, bus: BusConfig, topic: str, hot_path: str
) -> None:
    register(cluster, f"{topic}/all")
    wires = [with_header(value) for value in RAW_KINDS.values()] + [
        wire for kind, wire in RAW_PROPERTIES.items() if not kind.startswith("expiration")
    ]
    for wire in wires:
        publish_as_another(cluster, Topic(topic).exchange, Raw(wire))
    with Consumer(bus, topic, subscription="all") as consumer:
        got = [taken(consumer) for _ in wires]
        assert len({each.receipt for each in got}) == len(wires)
        assert {each.receipt.epoch for each in got} == {got[0].receipt.epoch}
    assert {each.body for each in got} == {BODY}


def publish_as_another(
    cluster: LocalCluster, exchange: str, properties: pika.BasicProperties
) -> None:
    host, port = cluster.node("mb1").broker.split(":")
    credentials = pika.PlainCredentials("bus", cluster.password.reveal())
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(host=host, port=int(port), credentials=credentials)
    )
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish(exchange, "", BODY, properties, mandatory=True)
    finally:
        connection.close()


@pytest.mark.guarantee("long-names")
def test_the_longest_names_and_ids_pass_through_rabbitmq_and_longer_ones_are_told(
    cluster: LocalCluster, bus: BusConfig, topic: str, hot_path: str
) -> None:
    long_topic = topic + "t" * (NAME_MAX - len(topic))
    subscription = "s" * NAME_MAX
    register(cluster, f"{long_topic}/{subscription}")
    try:
        message = Message(
            body=BODY,
            message_id="i" * SHORT_MAX,
            correlation_id="ü" * (SHORT_MAX // 2),
            type="t" * SHORT_MAX,
            reply_to="r" * SHORT_MAX,
            key="k" * SHORT_MAX,
            headers={"h" * SHORT_MAX: "v" * 60_000},
        )
        with Publisher(bus) as publisher:
            publisher.send_safe(long_topic, message, timeout_s=WITHIN_S)
        with Consumer(bus, long_topic, subscription=subscription) as consumer:
            assert taken(consumer).message == message
    finally:
        forget(cluster, long_topic)


@pytest.mark.guarantee("long-names")
@pytest.mark.parametrize("field", ["message_id", "correlation_id", "type", "reply_to", "key"])
def test_256_bytes_are_one_too_many_and_nothing_is_sent(field: str) -> None:
    for text in ("x" * (SHORT_MAX + 1), "ü" * (SHORT_MAX // 2 + 1)):
        with pytest.raises(MessageInvalid, match=field):
            Message(body=b"", **{field: text})  # type: ignore[arg-type]
    with pytest.raises(MessageInvalid, match="header name"):
        Message(body=b"", headers={"h" * (SHORT_MAX + 1): 1})
