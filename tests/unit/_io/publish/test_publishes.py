"""_io.publish: calls are checked, ids never repeat, frames hold the messages, calls end once."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from messagebus import AsyncPublisher, BusConfig, Publisher, PublisherConfig
from messagebus._io.amqp.batch import BATCH_TYPE, decode_batch
from messagebus._io.amqp.connection import Frames
from messagebus._io.amqp.frames import Contents, FrameParser, PublishFrames
from messagebus._io.amqp.properties import IN_BATCH, bare_shape, decode, encode, encode_entry
from messagebus._io.publish import sender as sender_module
from messagebus._io.publish.calls import Outgoing, whole_timeout_ms
from messagebus._io.publish.publishes import Bundle, Many, Publish, Shape, message_ids, tell
from messagebus._io.publish.sender import Sender
from messagebus._io.publish.targets import Address, Targets, place_name
from messagebus.config import Batching
from messagebus.core.confirms import Batch
from messagebus.core.ends import End, Entry
from messagebus.core.redundancy import PARTITIONED, REQUIRED
from messagebus.destination import Queue, Topic, delay_step
from messagebus.errors import ConfigError, MessageInvalid, NameInvalid
from messagebus.message import BODY_BYTES_MAX, NONE_GIVEN, OPTIONS, Given, Message
from messagebus.stats import Durability, Outcome, Published
from tests.support.fake_amqp import Manners, fake_rabbit

FRAME_MAX = 131_072
ID = "0123456789abcdef" * 2
SHAPES = Targets()


def given(**options: Any) -> Given:
    return tuple(options.get(name) for name in OPTIONS)


def read(payload: Any = b"x", destination: Any = "orders", **options: Any) -> Any:
    return Outgoing().read(destination, payload, given(**options))


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan"), float("inf")])
def test_a_time_that_nobody_can_wait_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigError, match=f"timeout_s {seconds}: seconds, 0 or more"):
        whole_timeout_ms(seconds)
    assert whole_timeout_ms(1.5) == 1500


@pytest.mark.parametrize("payload", [b"x", {"n": 1}])
def test_a_topic_that_is_redundant_by_itself_and_turns_out_to_have_partitions_goes_to_their_homes(
    payload: Any,
) -> None:
    outgoing = Outgoing(("orders",))
    assert outgoing.read("orders", payload, NONE_GIVEN)[0].redundancy == REQUIRED
    outgoing.partitioned("orders", 4)
    assert outgoing.read("orders", payload, NONE_GIVEN)[0].redundancy == PARTITIONED


def test_targets_of_one_text_and_content_type_are_one_and_options_of_a_call_have_their_own() -> (
    None
):
    outgoing = Outgoing()
    calls = [outgoing.read("orders", {"n": n}, NONE_GIVEN)[0] for n in range(2)]
    keyed, plain = (outgoing.read("orders", b"x", each)[0] for each in (given(key="k"), NONE_GIVEN))
    later = outgoing.read("orders", b"x", given(deliver_after_s=1))[0]
    assert calls[0] is calls[1] is not plain
    assert (keyed, later.address.routing_key) == (plain, "mb.topic/orders")


def test_options_are_put_into_the_message_and_the_caller_s_stays_as_it_was() -> None:
    given = Message(body=b"x", key="k", headers={"a": 1})
    _, _, message = read(given, headers={"b": 2}, priority=3, ttl_s=1.5, correlation_id="c")
    assert (message.key, message.headers, message.priority) == ("k", {"b": 2}, 3)
    assert (message.ttl_s, message.correlation_id) == (1.5, "c")
    assert (given.headers, given.priority) == ({"a": 1}, None)


@pytest.mark.parametrize(
    ("options", "destination"),
    [
        ({"deliver_after_s": 0.2}, "mb.delay/1000 mb.topic/orders"),
        ({"deliver_after_s": 61}, "mb.delay/120000 mb.topic/orders"),
        ({"deliver_after_s": 0}, "mb.topic/orders"),
        ({"deliver_at": 0}, "mb.topic/orders"),
        ({"deliver_at": datetime(2000, 1, 1, tzinfo=UTC)}, "mb.topic/orders"),
    ],
)
def test_a_delay_is_rounded_up_to_a_step_and_the_past_is_now(
    options: dict[str, Any], destination: str
) -> None:
    assert read(**options)[0].destination == destination


def test_a_time_of_delivery_is_a_delay_from_now() -> None:
    in_a_minute = datetime.now(UTC) + timedelta(seconds=59)
    assert read(deliver_at=in_a_minute)[0].destination.startswith("mb.delay/60000 ")
    assert read(deliver_at=time.time() + 59)[0].destination.startswith("mb.delay/60000 ")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"deliver_after_s": -1}, "0 or more"),
        ({"deliver_after_s": float("nan")}, "0 or more"),
        ({"deliver_after_s": 1e308}, "at most"),
        ({"deliver_after_s": 10**400}, "at most"),
        ({"ttl_s": 1e308}, "at most"),
        ({"deliver_after_s": "soon"}, "a number of seconds"),
        ({"deliver_after_s": 30 * 86400}, "at most"),
        ({"deliver_at": datetime(2100, 1, 1)}, "time zone"),
        ({"deliver_after_s": 1, "deliver_at": 1}, "only one"),
        ({"ttl_s": True}, "a number of seconds"),
        ({"priority": 10}, "priority"),
        ({"headers": {"mb-x": 1}}, "mb-"),
    ],
)
def test_what_makes_no_sense_is_refused_and_told(options: dict[str, Any], told: str) -> None:
    with pytest.raises(MessageInvalid, match=told):
        read(**options)


def test_a_body_over_the_limit_and_a_name_that_is_not_allowed_are_refused() -> None:
    with pytest.raises(MessageInvalid, match="at most"):
        read(b"x" * (BODY_BYTES_MAX + 1))
    with pytest.raises(NameInvalid):
        read(destination="not a name")


def test_durability_belongs_to_the_destination_not_to_its_name_alone() -> None:
    outgoing = Outgoing()
    kept = outgoing.read(Queue("jobs"), b"x", NONE_GIVEN)[0]
    cached = outgoing.read(Queue("jobs", Durability.PAGE_CACHE), b"x", NONE_GIVEN)[0]
    none = outgoing.read(Topic("jobs", Durability.NONE), b"x", NONE_GIVEN)[0]
    assert [each.durability for each in (kept, cached, none)] == [
        Durability.FSYNC,
        Durability.PAGE_CACHE,
        Durability.NONE,
    ]
    assert [each.confirms for each in (kept, cached, none)] == [True, True, False]


def test_shapes_are_made_once() -> None:
    outgoing = Outgoing()
    assert (
        outgoing.read("orders", b"x", NONE_GIVEN)[0] is outgoing.read("orders", b"y", NONE_GIVEN)[0]
    )
    assert (
        outgoing.read("orders", "x", NONE_GIVEN)[0] is outgoing.read("orders", "y", NONE_GIVEN)[0]
    )


@pytest.mark.parametrize("nowhere", [17, None, b"orders"])
@pytest.mark.parametrize("payload", [b"x", "text"])
def test_a_destination_that_is_none_is_told(nowhere: Any, payload: Any) -> None:
    with pytest.raises(NameInvalid, match=r"destination .*: a name, Topic or Queue wanted"):
        read(payload, nowhere)


def waited(waiter: object = None, durability: Durability = Durability.FSYNC) -> Publish:
    target = Targets().of(Queue("jobs", durability), "text/x")
    return Publish("id", target, b"body", None, 1_000, waiter)  # type: ignore[arg-type]


def test_ids_are_32_hex_digits_and_never_repeat() -> None:
    ids = list(islice(message_ids(), 10_000))
    assert len({*ids, *islice(message_ids(), 10_000)}) == 20_000
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in ids)
    assert ids == sorted(ids)


def test_an_address_names_exchange_and_routing_key_as_a_return_does() -> None:
    at_once, later = Address.of(Topic("orders")), Address.of(Topic("orders"), delay_step(1000))
    copy = Address.queue("mb.park/x", Durability.FSYNC)
    assert (at_once.destination, later.destination) == (
        "mb.topic/orders",
        "mb.delay/1000 mb.topic/orders",
    )
    for address in (at_once, later, copy):
        assert address.destination == place_name(address.exchange, address.routing_key)
    assert [len(address.wanted) for address in (at_once, later, copy)] == [1, 2, 0]


async def test_who_waits_is_told_the_end_once() -> None:
    future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
    one = waited(future)
    one.attempts, one.sent, one.end = 2, ("mb1:5672", 5, ("mb1:5672",)), End("confirmed")
    tell([one], 9)
    tell([one], 10)
    assert await future == Published(
        "id", Outcome.CONFIRMED, Durability.FSYNC, "mb1:5672", 2, 5, 9, "", ("mb1:5672",)
    )


@pytest.mark.parametrize("outcome", ["refused", "unroutable", "unknown"])
async def test_only_what_is_confirmed_is_durable(outcome: str) -> None:
    future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
    one = waited(future)
    one.end = End(outcome, "why")
    tell([one], 9)
    published = await future
    assert (published.outcome.value, published.reason) == (outcome, "why")
    assert published.durability is Durability.NONE


@pytest.mark.parametrize("durability", list(Durability))
async def test_the_level_reached_is_that_of_the_destination(durability: Durability) -> None:
    future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
    one = waited(future, durability)
    one.end = End("confirmed")
    tell([one], 9)
    assert (await future).durability is durability


async def test_a_future_that_was_given_up_is_let_be() -> None:
    future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
    future.cancel()
    one = waited(future)
    one.end = End("confirmed")
    tell([one, waited()], 9)


async def test_many_are_told_together_when_the_last_is_settled_in_the_order_of_their_adding() -> (
    None
):
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    many = Many(finished)
    publishes = [waited(many) for _ in range(3)]
    for number, each in enumerate(publishes):
        each.message_id = str(number)
        each.end = End("confirmed")
        many.add(each)
    tell(publishes[:0:-1], 9)
    many.all_added()
    assert not finished.done()
    tell(publishes[:1], 9)
    await finished
    assert [each.message_id for each in many.results()] == ["0", "1", "2"]


async def test_many_of_none_are_finished_at_once() -> None:
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    many = Many(finished)
    many.all_added()
    assert finished.done()
    assert many.results() == []


async def test_every_message_of_a_bundle_has_the_end_under_its_own_id() -> None:
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    many, target = Many(finished), Targets().of(Queue("jobs"), "text/x")
    bundle, single = Bundle(["a", "b"], [b"1", b"22"], 3, target, 1_000, many), waited(many)
    for each in (bundle, single):
        many.add(each)
        each.attempts, each.sent, each.end = 1, ("mb1:5672", 5, ("mb1:5672",)), End("confirmed")
    many.all_added()
    tell([bundle, single], 9)
    await finished
    rest = (Outcome.CONFIRMED, Durability.FSYNC, "mb1:5672", 1, 5, 9, "", ("mb1:5672",))
    assert many.results() == [Published(name, *rest) for name in ("a", "b", "id")]
    assert (bundle.count, bundle.size) == (2, 3)


class FakeTransport:
    """Transport that keeps the written frames."""

    def __init__(self) -> None:
        self.out: list[bytes] = []

    def frames(self, exchange: str, routing_key: str) -> Frames:
        return PublishFrames(1, exchange, routing_key, FRAME_MAX)


def sent(*entries: Entry) -> list[tuple[bytes, Message]]:
    """Return the written publishes: their method frame, and the message."""
    transport = FakeTransport()
    Sender(transport).send(list(entries), "mb1:5672", 5)  # type: ignore[arg-type]
    stream, found = b"".join(transport.out), []
    while stream:
        size = int.from_bytes(stream[3:7])
        method, stream = stream[: size + 8], stream[size + 8 :]
        # A publish and a delivery carry their content alike.
        parser = FrameParser(FRAME_MAX)
        parser.hot.add(1)
        deliver = b"\x01\x00\x01\x00\x00\x00\x10\x00\x3c\x00\x3c\x00" + bytes(9) + b"\x00\x00\xce"
        (content, *rest) = parser.feed(deliver + stream)
        assert isinstance(content, Contents)
        ((_, _, properties, body),) = content.arrived
        stream = b"".join(part for part in rest if isinstance(part, bytes))
        stream += b"".join(parser._pieces)
        found.append((method, decode(properties, body)))
        if rest or not stream:
            continue
    return found


def publish(
    body: bytes, message: Message | None = None, durability: Durability = Durability.FSYNC
) -> Publish:
    target = SHAPES.of(
        Queue("jobs", durability), message.content_type if message else "application/octet-stream"
    )
    raw = encode(message, ID, 17, persistent=target.confirms) if message else None
    return Publish(ID, target, body, raw, 1_000, None)


def test_a_bare_message_and_one_with_properties_leave_alike() -> None:
    message = Message(body=b"one", key="k", headers={"a": 1}, content_type="text/x")
    ((method, plain),) = sent(publish(b"two"))
    assert b"mb.to/jobs" in method
    assert (plain.body, plain.message_id, plain.content_type) == (
        b"two",
        ID,
        "application/octet-stream",
    )
    ((_, whole),) = sent(publish(message.body, message))
    assert (whole.body, whole.key, whole.headers, whole.content_type) == (
        b"one",
        "k",
        {"a": 1},
        "text/x",
    )


@pytest.mark.parametrize("message_id", ["mine", "ü" * 20])
def test_a_batch_has_the_id_of_its_first_message_also_where_an_application_chose_it(
    message_id: str,
) -> None:
    message = Message(body=b"first")
    first = Publish(
        message_id, publish(b"").target, b"first", encode_entry(message, message_id), 1, None
    )
    ((_, packed),) = sent(Batch(first))
    assert (packed.content_type, packed.message_id) == (BATCH_TYPE, message_id)


def test_a_batch_leaves_as_one_message_of_whole_messages() -> None:
    message = Message(body=b"second", key="k", content_type="text/x")
    first = publish(b"first")
    second = Publish(ID, first.target, message.body, encode_entry(message, ID), 1_000, None)
    batch: Batch[Publish] = Batch(first)
    batch.items.append(second)
    ((_, packed),) = sent(batch)  # type: ignore[arg-type]
    assert (packed.content_type, packed.message_id) == (BATCH_TYPE, ID)
    entries = [IN_BATCH.message(*entry) for entry in decode_batch(packed.body)]
    assert [(each.body, each.key, each.content_type) for each in entries] == [
        (b"first", "", "application/octet-stream"),
        (b"second", "k", "text/x"),
    ]
    assert first.sent == second.sent == ("mb1:5672", 5, ("mb1:5672",))


def test_a_bundle_leaves_as_the_same_batch_as_its_messages_one_by_one() -> None:
    bodies, ids = [b"one", b"", b"three"], [ID[:-1] + last for last in "abc"]
    target = publish(b"").target
    bundle = Bundle(ids, bodies, 8, target, 1_000, Many(Future()))
    singles = [
        Publish(name, target, body, None, 1_000, None)
        for name, body in zip(ids, bodies, strict=True)
    ]
    batch: Batch[Publish] = Batch(singles[0])
    batch.items += singles[1:]
    assert sent(Batch(bundle)) == sent(batch)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("durability", "mode"),
    [(Durability.FSYNC, 2), (Durability.PAGE_CACHE, 2), (Durability.NONE, 1)],
)
def test_only_what_promises_nothing_is_transient(durability: Durability, mode: int) -> None:
    transport = FakeTransport()
    Sender(transport).send([publish(b"x", durability=durability)], "", 5)  # type: ignore[arg-type]
    assert b"application/octet-stream" + bytes((mode,)) in b"".join(transport.out)


def test_the_properties_of_a_second_are_encoded_once_for_all_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded: list[str] = []

    def shape(content_type: str, stamp_s: int, *, persistent: bool = True) -> Shape:
        encoded.append(content_type)
        return bare_shape(content_type, stamp_s, persistent=persistent)

    monkeypatch.setattr(sender_module, "bare_shape", shape)
    monkeypatch.setattr(time, "time", lambda: 17.5)
    to = [SHAPES.of(Topic(f"t{n}"), "application/octet-stream") for n in range(500)]
    messages = [Publish(ID, each, b"x", None, 1_000, None) for each in to]
    assert len(sent(*messages)) == 500
    assert encoded == ["application/octet-stream"]


def test_bytes_for_two_brokers_are_read_as_a_message_for_two_brokers_is() -> None:
    reading = Outgoing()
    target, body, message = reading.read("orders", b"1", given(redundant=True))
    assert (target.redundancy, body, message) == ("required", b"1", None)
    assert reading.read("orders", Message.binary(b"1"), given(redundant=True))[0] is target
    assert reading.read("orders", b"1", NONE_GIVEN)[0].redundancy == ""
    with pytest.raises(MessageInvalid):
        reading.read("orders", bytes(BODY_BYTES_MAX + 1), given(redundant=True))
    with pytest.raises(ConfigError):
        Outgoing(has_spool=True).read("orders", b"1", given(redundant=True))
    reading.partitioned("orders", 4)
    with pytest.raises(ConfigError, match="partitions"):
        reading.read("orders", b"1", given(redundant=True))


BODIES = [bytes([48 + number]) * 300 for number in range(6)]
# Each of them fits, and not two of them together.
BYTES_MAX_OF_BROKER = 500
PACKED = PublisherConfig(batch={"queue:jobs": Batching(count_max=10, bytes_max=10_000)})


@pytest.mark.parametrize("face", ["blocking", "asyncio"])
async def test_bodies_that_are_too_large_together_are_published_one_by_one(face: str) -> None:
    with fake_rabbit(manners=Manners(message_bytes_max=BYTES_MAX_OF_BROKER)) as rabbit:
        rabbit.hold("queue:jobs")
        bus, bodies = BusConfig(broker=rabbit.name), [*BODIES, bytes(600), b"last"]
        if face == "blocking":
            with Publisher(bus, PACKED) as blocking:
                ends = await asyncio.to_thread(blocking.send_many, "queue:jobs", bodies)
                left = blocking.flush(0)
        else:
            async with AsyncPublisher(bus, PACKED) as publisher:
                ends = await publisher.send_many("queue:jobs", bodies)
                left = await publisher.flush(0)
        stored = [each.body for each in rabbit.queues["mb.queue/jobs"].messages]
    outcomes = [each.outcome for each in ends]
    assert outcomes == [*6 * [Outcome.CONFIRMED], Outcome.REFUSED, Outcome.CONFIRMED]
    assert len({each.message_id for each in ends}) == len(bodies)
    assert all(any(body in each for each in stored) for body in [*BODIES, b"last"])
    assert left == 0
