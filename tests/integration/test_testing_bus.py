"""The bus in memory under many threads at once, with every fault: nothing is lost, nobody hangs."""

from __future__ import annotations

import random
import threading
import time

from messagebus import ConsumerConfig, Outcome, Publisher, RetryLater
from messagebus.message import Delivery
from messagebus.testing import MemoryBus
from tests.support.eventually import FACTOR

PUBLISHERS, CONSUMERS, FAULTS = 3, 3, 200
WITHIN_S = 60 * FACTOR


def test_many_threads_and_every_fault_lose_nothing() -> None:
    bus, chance = MemoryBus(brokers=3), random.Random(84)
    seen: dict[str, int] = {}
    lock = threading.Lock()

    def handle(delivery: Delivery) -> object:
        with lock:
            seen[delivery.message_id] = seen.get(delivery.message_id, 0) + 1
            fails = chance.random() < 0.05
        return RetryLater(1) if fails else None

    config = ConsumerConfig(prefetch=20, handed_out_max=30)
    consumers = [
        bus.consumer("orders", subscription="billing", config=config) for _ in range(CONSUMERS)
    ]
    for consumer in consumers:
        consumer.start(require="all")
    working = [
        threading.Thread(target=consumer.run, args=(handle,), kwargs={"concurrency": 3})
        for consumer in consumers
    ]
    confirmed, enough = set[str](), threading.Event()

    def publish(publisher: Publisher) -> None:
        while not enough.is_set():
            futures = [publisher.submit("orders", b"x") for _ in range(50)]
            ends = [future.result(WITHIN_S) for future in futures]
            assert {end.outcome for end in ends} == {Outcome.CONFIRMED}
            with lock:
                confirmed.update(end.message_id for end in ends)

    publishers = [bus.publisher() for _ in range(PUBLISHERS)]
    for publisher in publishers:
        publisher.start(require="one")
    sending = [threading.Thread(target=publish, args=(publisher,)) for publisher in publishers]
    for thread in [*working, *sending]:
        thread.start()
    for _ in range(FAULTS):
        match chance.randrange(6):
            case 0:
                bus.lose_connection(chance.choice([None, *bus.brokers]))
            case 1:
                bus.freeze()
                time.sleep(0.002)
                bus.thaw()
            case 2:
                bus.duplicate_next("orders", 3)
            case 3:
                bus.slow(0.5)
                bus.advance(0.5)
            case _:
                bus.slow(0)
                bus.advance(0.5)
        time.sleep(0.005)
    bus.slow(0)
    bus.advance(1)
    enough.set()
    for thread in sending:
        thread.join(WITHIN_S)
        assert not thread.is_alive()
    until = time.monotonic() + WITHIN_S
    while not (bus.delayed() == 0 and confirmed <= seen.keys()):
        bus.advance(1)
        time.sleep(0.02)
        assert time.monotonic() < until, f"{len(confirmed - seen.keys())} confirmed were not seen"
    bus.wait_handled(WITHIN_S)
    for publisher in publishers:
        assert publisher.stop(WITHIN_S) == 0
    for consumer in consumers:
        assert consumer.stop(WITHIN_S) == 0
    for thread in working:
        thread.join(WITHIN_S)
        assert not thread.is_alive()
    assert bus.waiting("orders", "billing") == 0
    assert bus.parked("orders", "billing") == []
    assert not [each for each in threading.enumerate() if each.name.startswith("messagebus")]
