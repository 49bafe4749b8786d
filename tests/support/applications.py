"""Applications of pika, kombu, Celery and Beetle, as they run before they move: each publishes numbers."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pika
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.messaging import Producer
from kombu.mixins import ConsumerMixin
from pika.exceptions import AMQPError

from messagebus import BusConfig, Message

Handle = Callable[[int], None]


class Application(Protocol):
    """An application of another system.

    queues: the settings of each RabbitMQ, and the name of its queue. back: the routing key for `push`.
    """

    queues: Sequence[tuple[BusConfig, str]]
    back: str

    @abstractmethod
    def publish(self, number: int) -> None:
        """Publish, and return when it is stored."""

    def close(self) -> None:
        """Close the connections of `publish`."""

    @abstractmethod
    def consuming(self, handle: Handle) -> AbstractContextManager[None]:
        """Consume meanwhile, and connect again where that ends."""

    @abstractmethod
    def message(self, number: int) -> Message:
        """Return what a publisher that has moved sends, so that those that have not moved can read it."""


def _parameters(bus: BusConfig) -> pika.ConnectionParameters:
    host, _, port = bus.broker.rpartition(":")
    login = pika.PlainCredentials(bus.user, bus.password.reveal())
    return pika.ConnectionParameters(host, int(port), bus.vhost, login)


def is_empty(bus: BusConfig, queue: str) -> bool:
    """Return whether no message waits in a queue."""
    with contextlib.closing(pika.BlockingConnection(_parameters(bus))) as connection:
        told = connection.channel().queue_declare(queue, passive=True).method
        return bool(told.message_count == 0)


class OfPika(Application):
    """An application with pika, which connects again whenever its connection ends."""

    back = "billing"

    def __init__(self, bus: BusConfig) -> None:
        self.queues, self._bus = [(bus, "billing")], bus
        self._channel: Any = None
        with contextlib.closing(self._connection()) as connection:
            channel = connection.channel()
            channel.exchange_declare("orders", "fanout", durable=True)
            channel.queue_declare("billing", durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_bind("billing", "orders")

    def _connection(self) -> Any:
        return pika.BlockingConnection(_parameters(self._bus))

    def publish(self, number: int) -> None:
        body, properties = json.dumps({"number": number}).encode(), self._properties(number)
        while True:
            with contextlib.suppress(AMQPError):
                if self._channel is None or self._channel.is_closed:
                    self.close()
                    self._channel = self._connection().channel()
                    self._channel.confirm_delivery()
                self._channel.basic_publish("orders", "", body, properties, mandatory=True)
                return

    def close(self) -> None:
        if self._channel is not None:
            with contextlib.suppress(AMQPError):
                self._channel.connection.close()

    def _properties(self, number: int) -> pika.BasicProperties:
        return pika.BasicProperties(
            delivery_mode=2, message_id=f"n{number}", content_type="application/json"
        )

    def message(self, number: int) -> Message:
        return Message.json({"number": number}, message_id=f"n{number}")

    def consuming(self, handle: Handle) -> AbstractContextManager[None]:
        return _consuming(self._connection, "billing", lambda _id, number: handle(number))


@contextmanager
def _consuming(
    connection: Callable[[], Any], queue: str, handle: Callable[[str, int], None]
) -> Iterator[None]:
    """Consume with pika, and connect again whenever the connection ends."""
    ends = threading.Event()

    def consume() -> None:
        with contextlib.closing(connection()) as link:
            channel = link.channel()
            channel.basic_qos(prefetch_count=10)
            for method, properties, body in channel.consume(queue, inactivity_timeout=0.1):
                if method is not None:
                    handle(properties.message_id, int(json.loads(body)["number"]))
                    channel.basic_ack(method.delivery_tag)
                if ends.is_set():
                    channel.cancel()
                    return

    def run() -> None:
        while not ends.is_set():
            with contextlib.suppress(AMQPError):
                consume()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


SHOP = """
import os
from celery import Celery

app = Celery("shop", broker=os.environ["SHOP_BROKER"])
app.conf.task_acks_late = True
app.conf.worker_enable_remote_control = False
app.conf.broker_transport_options = {"confirm_publish": True}


@app.task(name="shop.bill")
def bill(order):
    with open(os.environ["SHOP_HANDLED"], "a") as file:
        file.write(f"{order['number']}\\n")
"""
WORKER = ("-A", "shop", "worker", "--pool", "solo", "--without-gossip", "--without-mingle")


class OfCelery(Application):
    """An application with Celery: its worker is a process."""

    back = "celery"

    def __init__(self, bus: BusConfig, folder: Path) -> None:
        self.queues, self._folder = [(bus, "celery")], folder
        (folder / "shop.py").write_text(SHOP)
        self._handled = folder / "handled"
        self._handled.touch()
        password = bus.password.reveal()
        self._env = {
            "SHOP_BROKER": f"amqp://{bus.user}:{password}@{bus.broker}/{bus.vhost}",
            "SHOP_HANDLED": str(self._handled),
        }
        os.environ.update(self._env)
        spec = importlib.util.spec_from_file_location("shop", folder / "shop.py")
        assert spec is not None
        assert spec.loader is not None
        self._shop = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._shop)

    def close(self) -> None:
        self._shop.app.close()

    def publish(self, number: int) -> None:
        self._shop.bill.delay({"number": number})

    def message(self, number: int) -> Message:
        headers = {"task": "shop.bill", "id": str(uuid.uuid4())}
        return Message.json([[{"number": number}], {}, {}], headers=headers)

    @contextmanager
    def consuming(self, handle: Handle) -> Iterator[None]:
        log = (self._folder / "worker.log").open("a")
        argv = [sys.executable, "-m", "celery", *WORKER]
        env = {**os.environ, **self._env}
        worker = subprocess.Popen(argv, cwd=self._folder, env=env, stdout=log, stderr=log)
        with log, self._handled.open() as file:
            file.seek(0, os.SEEK_END)

            def follow() -> None:
                ended = False
                while not ended:
                    ended = worker.poll() is not None
                    for line in file:
                        handle(int(line))
                    time.sleep(0.02)

            following = threading.Thread(target=follow)
            following.start()
            try:
                yield
            finally:
                worker.terminate()
                worker.wait()
                following.join()


class OfKombu(Application):
    """An application with kombu."""

    back = "billing"

    def __init__(self, bus: BusConfig) -> None:
        self.queues, self._bus = [(bus, "billing")], bus
        self._queue: Any = Queue("billing", Exchange("orders", "fanout"))  # type: ignore[no-untyped-call]
        self._connection = self._new()
        bound: Any = self._queue(self._connection)
        bound.declare()
        self._producer: Any = Producer(self._connection)  # type: ignore[no-untyped-call]

    def _new(self) -> Any:
        host, _, port = self._bus.broker.rpartition(":")
        return Connection(  # type: ignore[no-untyped-call]
            hostname=host,
            port=int(port),
            userid=self._bus.user,
            password=self._bus.password.reveal(),
            virtual_host=self._bus.vhost,
            transport_options={"confirm_publish": True},
        )

    def close(self) -> None:
        self._connection.close()

    def publish(self, number: int) -> None:
        self._producer.publish({"number": number}, exchange="orders")

    def message(self, number: int) -> Message:
        return Message.json({"number": number})

    @contextmanager
    def consuming(self, handle: Handle) -> Iterator[None]:
        class Billing(ConsumerMixin):
            def __init__(self, connection: Any, queue: Any) -> None:
                self.connection, self.queue = connection, queue

            def get_consumers(self, consumer: Any, channel: Any) -> Any:
                return [consumer([self.queue], callbacks=[self.on_message], prefetch_count=10)]

            def on_message(self, body: Any, message: Any) -> None:
                handle(body["number"])
                message.ack()

        with self._new() as connection:
            billing = Billing(connection, self._queue)
            thread = threading.Thread(target=billing.run)
            thread.start()
            try:
                yield
            finally:
                billing.should_stop = True
                thread.join()


class OfBeetle(Application):
    """An application with Beetle, as its messages are on the wire: two copies with one id, on two RabbitMQs.

    Its consumers read both, drop what lacks one of Beetle's headers, and handle each id once; `_seen` is what
    Beetle keeps in Redis.
    """

    back = "billing"

    def __init__(self, buses: Sequence[BusConfig]) -> None:
        self.queues = [(bus, "billing") for bus in buses]
        self._seen: set[str] = set()
        self._channels = []
        for bus in buses:
            channel: Any = pika.BlockingConnection(_parameters(bus)).channel()
            channel.exchange_declare("orders", "topic", durable=True)
            channel.queue_declare("billing", durable=True)
            channel.queue_bind("billing", "orders", "orders")
            channel.confirm_delivery()
            self._channels.append(channel)

    def close(self) -> None:
        for channel in self._channels:
            channel.connection.close()

    def headers(self, redundant: bool) -> dict[str, str]:
        expires_at = int(time.time()) + 86_400
        return {
            "format_version": "1",
            "flags": str(int(redundant)),
            "expires_at": str(expires_at),
        }

    def publish(self, number: int) -> None:
        properties = pika.BasicProperties(
            delivery_mode=2,
            message_id=f"n{number}",
            timestamp=int(time.time()),
            headers=self.headers(True),
        )
        body = json.dumps({"number": number}).encode()
        for channel in self._channels:
            channel.basic_publish("orders", "orders", body, properties, mandatory=True)

    def message(self, number: int) -> Message:
        return Message.json(
            {"number": number}, message_id=f"n{number}", headers=self.headers(False)
        )

    @contextmanager
    def consuming(self, handle: Handle) -> Iterator[None]:
        def once(message_id: str, number: int) -> None:
            if message_id not in self._seen:
                self._seen.add(message_id)
                handle(number)

        with ExitStack() as both:
            for bus, queue in self.queues:
                connect = partial(pika.BlockingConnection, _parameters(bus))
                both.enter_context(_consuming(connect, queue, once))
            yield
