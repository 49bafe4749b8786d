"""pika's BlockingConnection with confirms: the usual way to publish safely from Python.

Every publish is persistent and mandatory and waits for its confirm, as pika documents it.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

import pika

from bench.systems.turn import Stopwatch, Task, Turn, message_id
from messagebus import BusConfig, Topic

__all__ = ["PikaBlocking", "run"]


def run(task: Task) -> Turn:
    body = os.urandom(task.body_bytes)
    with PikaBlocking(task.bus, task.source.topic) as client:
        for _ in range(task.warm_up):
            client.publish(body)
        watch = Stopwatch()
        for _ in range(task.messages):
            client.publish(body)
        return watch.turn(task.messages)


class PikaBlocking:
    """One connection to the address of the bus, one message at a time."""

    def __init__(self, bus: BusConfig, topic: Topic) -> None:
        credentials = pika.PlainCredentials(bus.user, bus.current_password().reveal())
        parameters = pika.ConnectionParameters(
            host=bus.address.host, port=bus.address.port, credentials=credentials
        )
        self._exchange = topic.exchange
        self._connection = pika.BlockingConnection(parameters)
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        self._published = 0

    def publish(self, body: bytes) -> None:
        """Publish and wait for the broker's confirm; raises pika's errors otherwise."""
        self._published += 1
        properties = pika.BasicProperties(delivery_mode=2, message_id=message_id(self._published))
        self._channel.basic_publish(self._exchange, "", body, properties, mandatory=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()
