"""kombu over py-amqp with confirms: every publish waits for its own."""

from __future__ import annotations

import os

from kombu.connection import Connection
from kombu.messaging import Producer

from bench.systems.turn import Stopwatch, Task, Turn, message_id

__all__ = ["run"]


def run(task: Task) -> Turn:
    body = os.urandom(task.body_bytes)
    with Connection(  # type: ignore[no-untyped-call]
        hostname=task.address.host,
        port=task.address.port,
        userid=task.user,
        password=task.password,
        transport="pyamqp",
        transport_options={"confirm_publish": True},
    ) as connection:
        producer = Producer(connection, auto_declare=False)  # type: ignore[no-untyped-call]

        def publish(first: int, count: int) -> None:
            for number in range(first, first + count):
                producer.publish(  # type: ignore[no-untyped-call]
                    body,
                    exchange=task.exchange,
                    routing_key="",
                    delivery_mode=2,
                    mandatory=True,
                    message_id=message_id(number),
                    content_type="application/octet-stream",
                    content_encoding="binary",
                )

        publish(1, task.warm_up)
        watch = Stopwatch()
        publish(1 + task.warm_up, task.messages)
        return watch.turn(task.messages)
