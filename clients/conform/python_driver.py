"""The Python library as a client under test: the kit's own test, and an example of a driver.

python -m clients.conform -- python -m clients.conform.python_driver
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from messagebus import BusConfig, Consumer, ConsumerConfig, Delivery, Publisher, PublisherConfig
from messagebus import declare as register
from messagebus.errors import LoginRefused, MessageBusError, NameInvalid, TopologyMismatch
from messagebus.topology import with_options

FINISH_S = 10.0
DEADLINE_S = 5


class Driver:
    """One client: a publisher, and a consumer once it is told to consume."""

    def __init__(self) -> None:
        self.bus = BusConfig.from_env(os.environ)
        self.publisher = Publisher(self.bus, PublisherConfig(deadline_s=DEADLINE_S))
        self.publisher.start()
        self.consumer: Consumer | None = None
        self.open: dict[str, Delivery] = {}
        self.stopping = False
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(8)

    def tell(self, **event: Any) -> None:
        with self._lock:
            sys.stdout.write(json.dumps(event, default=repr) + "\n")
            sys.stdout.flush()

    def do(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "register":
                self._pool.submit(self._register, order["wanted"])
            case "publish":
                for each in order["ids"]:
                    self._publish(each, order)
            case "consume":
                self._consume(order["from"], order["prefetch"])
            case "stop":
                signal.raise_signal(signal.SIGTERM)
            case "ack" | "retry" | "park":
                self._pool.submit(self._answer, order)

    def _register(self, wanted: list[str]) -> None:
        try:
            done = register(self.bus, [with_options(each, {}) for each in wanted])
            self.tell(registered=done.complete)
        except (NameInvalid, TopologyMismatch) as fault:
            self.tell(registered=False, final=True, why=str(fault))
        except MessageBusError as fault:
            self.tell(registered=False, final=False, why=str(fault))

    def _publish(self, message_id: str, order: dict[str, Any]) -> None:
        raw, size = message_id.encode(), order["bytes"]
        body = (raw * (size // max(1, len(raw)) + 1))[:size] if size else raw

        def ended(future: Future[Any]) -> None:
            self.tell(id=message_id, outcome=future.result().outcome.value)

        try:
            self.publisher.submit(
                order["to"],
                body,
                message_id=message_id,
                key=order["key"],
                headers=order["headers"],
            ).add_done_callback(ended)
        except MessageBusError:
            self.tell(id=message_id, outcome="refused")

    def _consume(self, source: str, prefetch: int) -> None:
        topic, _, subscription = source.partition("/")
        config = ConsumerConfig(prefetch=prefetch)
        consumer = Consumer(self.bus, topic, subscription=subscription, config=config)
        try:
            consumer.start()
        except LoginRefused as fault:
            logging.error("login refused: %s", fault)
            return
        self.consumer = consumer
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        assert self.consumer is not None
        for number, delivery in enumerate(self.consumer):
            self.open[str(number)] = delivery
            self.tell(
                delivered=delivery.message_id,
                tag=str(number),
                broker=delivery.broker,
                key=delivery.key,
                headers=dict(delivery.headers),
                content_type=delivery.content_type or "application/octet-stream",
                attempt=delivery.attempt,
                sha256=hashlib.sha256(delivery.body).hexdigest(),
            )

    def _answer(self, order: dict[str, Any]) -> None:
        assert self.consumer is not None
        delivery = self.open.pop(order["tag"])
        match order["do"]:
            case "ack":
                ok = self.consumer.ack(delivery)
            case "retry":
                after_s = order["delay_ms"] / 1000
                ok = self.consumer.retry(delivery, after_s=after_s, reason=order["reason"])
            case _:
                ok = self.consumer.park(delivery, reason=order["reason"])
        self.tell(answered=order["tag"], ok=ok)

    def stop(self) -> None:
        """Take no more, wait for open answers and outcomes."""
        if self.consumer is not None:
            self.consumer.stop(FINISH_S)
        self.publisher.stop(FINISH_S)


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    driver = Driver()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())

    def read() -> None:
        for line in sys.stdin:
            driver.do(json.loads(line))
        stopped.set()

    driver.tell(ready=True, client="python")
    threading.Thread(target=read, daemon=True).start()
    while not stopped.is_set():
        time.sleep(0.02)
    driver.stop()


if __name__ == "__main__":
    main()
