"""Our blocking clients: pipelined from one thread, or confirmed one by one from several."""

from __future__ import annotations

import concurrent.futures
import os
from concurrent.futures import ThreadPoolExecutor

from bench.systems.ours_async import RECEIVE_MANY_MAX, check, consumer_config, publisher_config
from bench.systems.turn import Stopwatch, Task, Turn
from messagebus import Consumer, Publisher

__all__ = ["run", "shares"]

START_S = 30.0
RECEIVE_S = 30.0


def run(task: Task) -> Turn:
    return _publish(task) if task.verb == "publish" else _consume(task)


def shares(count: int, threads: int) -> list[int]:
    """Divide the work among the threads; the shares add up to the count."""
    return [count // threads + (number < count % threads) for number in range(threads)]


def _publish(task: Task) -> Turn:
    ways = {"submit": _submit, "send_safe": _send_safe}
    publish = ways[task.way or "submit"]
    publisher = Publisher(task.bus, publisher_config(task))
    publisher.start(require="one", timeout_s=START_S)
    body = os.urandom(task.body_bytes)
    publish(publisher, task, body, task.warm_up)
    watch = Stopwatch()
    publish(publisher, task, body, task.messages)
    turn = watch.turn(task.messages)
    publisher.stop()
    return turn


def _submit(publisher: Publisher, task: Task, body: bytes, count: int) -> None:
    futures = [publisher.submit(task.topic, body) for _ in range(count)]
    concurrent.futures.wait(futures)
    check(future.result() for future in futures)


def _send_safe(publisher: Publisher, task: Task, body: bytes, count: int) -> None:
    """Publish from several threads; each waits for the confirm of one message before it sends the next."""

    def work(share: int) -> None:
        for _ in range(share):
            publisher.send_safe(task.topic, body)

    with ThreadPoolExecutor(task.threads) as pool:
        list(pool.map(work, shares(count, task.threads)))


def _consume(task: Task) -> Turn:
    with Consumer(
        task.bus, task.topic, subscription=task.subscription, config=consumer_config(task)
    ) as consumer:
        seen: set[str] = set()

        def take(goal: int) -> None:
            while len(seen) < goal and (delivery := consumer.receive(RECEIVE_S)) is not None:
                seen.add(delivery.message_id)
                consumer.ack(delivery)

        def take_many(goal: int) -> None:
            while (left := goal - len(seen)) > 0:
                found = consumer.receive_many(min(left, RECEIVE_MANY_MAX), RECEIVE_S)
                for delivery in found:
                    seen.add(delivery.message_id)
                    consumer.ack(delivery)
                if not found:
                    return

        work = take_many if task.way == "receive_many" else take
        work(task.warm_up)
        watch = Stopwatch()
        work(task.warm_up + task.messages)
        return watch.turn(task.messages)
