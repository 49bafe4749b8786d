"""_io.publish.sender: the outbox's messages leave as the frames of the same messages."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from messagebus._io.amqp.batch import BATCH_TYPE, decode_batch
from messagebus._io.amqp.frames import Contents, FrameParser, PublishFrames
from messagebus._io.amqp.properties import IN_BATCH, decode, encode, encode_entry
from messagebus._io.amqp.transport import Frames
from messagebus._io.publish.publishes import Bundle, Many, Publish, Targets
from messagebus._io.publish.sender import Sender
from messagebus.core.confirms import Batch
from messagebus.core.outbox import Entry
from messagebus.destination import Queue
from messagebus.message import Message
from messagebus.stats import Durability

FRAME_MAX = 131_072
ID = "0123456789abcdef" * 2
SHAPES = Targets()


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


def test_what_was_sent_knows_to_whom_and_when() -> None:
    one = publish(b"x")
    sent(one)
    assert one.sent == ("mb1:5672", 5)


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
    assert first.sent == second.sent == ("mb1:5672", 5)


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
