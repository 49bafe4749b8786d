"""testing.journal: first publishes, copies, and a copy's meaning for its original."""

from __future__ import annotations

from threading import RLock
from types import SimpleNamespace
from typing import Any

import pika
import pytest

from messagebus._io.amqp.properties import encode
from messagebus.destination import Queue, Subscription, Topic
from messagebus.message import Message
from messagebus.testing import journal as module
from messagebus.testing.journal import Journal, copy_of
from messagebus.testing.queues import Stored

BILLING = Subscription(Topic("orders"), "billing")
PLAIN = encode(Message(body=b"", message_id="one"), "one", 17)


def marked(**headers: Any) -> bytes:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return b"".join(pika.BasicProperties(message_id="one", headers=names).encode())


def route(exchange: str, key: str = "") -> Any:
    return SimpleNamespace(exchange=exchange, key=key)


@pytest.mark.parametrize(
    ("exchange", "key", "raw", "found"),
    [
        ("mb.topic/orders", "", PLAIN, None),
        ("mb.delay/1000", "mb.topic/orders", PLAIN, None),
        ("mb.delay/1000", "mb.queue/jobs", PLAIN, None),
        ("mb.delay/1000", "mb.queue/jobs", marked(mb_attempt=2), ("mb.queue/jobs", "retry")),
        ("mb.delay/1000", "mb.sub/orders/billing", PLAIN, ("mb.sub/orders/billing", "retry")),
        ("", "mb.sub/orders/billing", PLAIN, ("mb.sub/orders/billing", "requeue")),
        ("", "mb.queue/jobs", marked(mb_attempt=2), ("mb.queue/jobs", "retry")),
        ("", "mb.park/jobs", marked(mb_park_reason="no"), ("mb.queue/jobs", "park")),
        ("", "mb.park/o/b", marked(mb_park_reason="rejected"), ("mb.sub/o/b", "reject")),
    ],
)
def test_what_is_a_copy_is_seen_from_where_it_goes(
    exchange: str, key: str, raw: bytes, found: tuple[str, str] | None
) -> None:
    assert copy_of(exchange, key, raw) == found


def test_the_ack_after_a_copy_is_the_answer_that_the_copy_says() -> None:
    journal, queue = Journal(RLock()), BILLING.amqp_queue
    stored = Stored(1, route("mb.topic/orders"), PLAIN, b"x")
    journal.copied(queue, "retry", PLAIN)
    journal.answered("another queue", "ack", [stored])
    journal.answered(queue, "ack", [stored])
    journal.answered(queue, "ack", [stored])
    assert journal.answers(BILLING) == [("one", "retry"), ("one", "ack")]


def test_copies_are_no_publishes_of_an_application() -> None:
    journal = Journal(RLock())
    journal.published(
        [
            (route("mb.topic/orders"), PLAIN, b"1"),
            (route("mb.delay/1000", "mb.topic/orders"), PLAIN, b"2"),
            (route("mb.delay/1000", BILLING.amqp_queue), PLAIN, b"3"),
            (route("", BILLING.parking_queue), PLAIN, b"4"),
            (route("mb.queue/jobs"), PLAIN, b"5"),
            (route("mb.topic/orders"), PLAIN, b"6"),
        ],
        {5: "unroutable"},
    )
    assert [each.body for each in journal.messages(Topic("orders"), "confirmed")] == [b"1", b"2"]
    assert [each.body for each in journal.messages(Topic("orders"), "unroutable")] == [b"6"]
    assert [each.body for each in journal.messages(Queue("jobs"), "confirmed")] == [b"5"]
    assert journal.destinations() == {
        ("mb.topic/orders", "confirmed"): 2,
        ("mb.topic/orders", "unroutable"): 1,
        ("mb.queue/jobs", "confirmed"): 1,
    }


def test_it_forgets_what_is_older_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MESSAGES_MAX", 3)
    journal = Journal(RLock())
    for number in range(5):
        journal.published([(route("mb.topic/orders"), PLAIN, b"%d" % number)], {})
        journal.answered(BILLING.amqp_queue, "ack", [Stored(1, route(""), PLAIN, b"")])
    assert [each.body for each in journal.messages(Topic("orders"), "confirmed")] == [
        b"2",
        b"3",
        b"4",
    ]
    assert len(journal.answers(BILLING)) == 3


def test_a_batch_that_is_none_is_one_message() -> None:
    raw = encode(Message(body=b"", content_type="application/vnd.messagebus.batch"), "one", 17)
    assert [each.body for each in module.messages_of(raw, b"damaged")] == [b"damaged"]
    assert module.ids_of(raw, b"damaged") == ["one"]
