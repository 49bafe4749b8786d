"""Controls of `bench.trials.once`: a deduplicating consumer and an outbox poller, as they are made by hand.

Both are made with care: the poller waits for each confirm, the consumer takes its mark back when its effect
fails, and follows Redis to its new master.

    python -m bench.trials.once_naive poller
    python -m bench.trials.once_naive consumer
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from typing import Any
from urllib.parse import urlsplit

import psycopg
import redis
from redis.sentinel import Sentinel

from bench.trials.once_app import AGAIN_S, ORDERS, POLLED, transaction, write_effect
from bench.trials.once_app import STORE as STORE_SETTING
from messagebus import BusConfig, Consumer, Delivery, Message, MessageBusError, Publisher

ROWS = 100
REMEMBER_S = 86_400
TIMEOUT_S = 1.0


def poll_forever() -> None:
    """Publish the rows that are not marked as sent, in their order, then mark them."""
    with Publisher(BusConfig.from_env(os.environ)) as publisher:
        while True:
            try:
                with transaction() as connection:
                    rows = connection.execute(
                        "SELECT id, body FROM hand_outbox WHERE NOT sent ORDER BY id LIMIT %s",
                        (ROWS,),
                    ).fetchall()
                    for _, body in rows:
                        publisher.send_safe(POLLED, Message.json(json.loads(body)))
                    ids = [number for number, _ in rows]
                    connection.execute(
                        "UPDATE hand_outbox SET sent = true WHERE id = ANY(%s)", (ids,)
                    )
            except (psycopg.Error, MessageBusError):
                rows = []
            if not rows:
                time.sleep(AGAIN_S)


def consume_forever() -> None:
    """Write an effect for each message whose id SETNX takes; ack all."""
    parts = urlsplit(os.environ[STORE_SETTING])
    addresses = [
        (host, int(port))
        for host, _, port in (
            each.partition(":") for each in parts.netloc.rpartition("@")[2].split(",")
        )
    ]
    kind: Any = Sentinel
    sentinel = kind(addresses, socket_timeout=TIMEOUT_S)
    marks = sentinel.master_for(
        parts.path.split("/")[1], password=parts.password, socket_timeout=TIMEOUT_S
    )
    bus = BusConfig.from_env(os.environ)
    with Consumer(bus, ORDERS, subscription="setnx") as consumer:
        for delivery in consumer:
            try:
                _handle(marks, delivery)
            except (psycopg.Error, redis.RedisError):
                time.sleep(AGAIN_S)
                consumer.nack(delivery, requeue=True)
            else:
                consumer.ack(delivery)


def _handle(marks: Any, delivery: Delivery) -> None:
    mark = f"seen:{delivery.message_id}"
    if not marks.set(mark, 1, nx=True, ex=REMEMBER_S):
        return  # seen before
    began_ns = time.monotonic_ns()
    try:
        with transaction() as connection:
            number = int(delivery.message.as_json()["number"])
            write_effect(connection, "setnx", number, delivery, began_ns)
    except psycopg.Error:
        with contextlib.suppress(redis.RedisError):
            marks.delete(mark)
        raise


if __name__ == "__main__":
    {"poller": poll_forever, "consumer": consume_forever}[sys.argv[1]]()
