"""Promise: handlers of one key run one after the other, in their broker's order, whatever is killed."""

from __future__ import annotations

import os
import random
import threading
from collections import defaultdict
from pathlib import Path

import pytest

from messagebus import BusConfig, Message, Outcome, Publisher, Subscription, Topic, declare
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.killed import Killed

WITHIN_S = 120.0
KEYS, ROUNDS, OF_A_ROUND, PAUSE_S = 20, 12, 200, 0.25
CONSUMERS = 2

# Writes a line when a run begins, and one when it ended well; some runs fail twice.
HANDLER = """
import os, sys, threading, time
from messagebus import BusConfig, Consumer, RetryPolicy, Subscription, Topic

out = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND)

def handle(delivery):
    number = int(delivery.body)
    line = f"{delivery.broker} {delivery.key} {number} {os.getpid()}\\n"
    os.write(out, ("begin " + line).encode())
    time.sleep(0.001 * (number % 5))
    if number % 31 == 0 and delivery.attempt < 3:
        os.write(out, ("fail " + line).encode())
        raise ValueError("not now")
    os.write(out, ("end " + line).encode())

source = Subscription(Topic(sys.argv[1]), "ledger", single_active=True)
consumer = Consumer(BusConfig.from_env(os.environ), source, order="key")
consumer.start(require="one", timeout_s=60)
consumer.run(handle, concurrency=8, retry=RetryPolicy(first_delay_s=0.05))
"""


@pytest.mark.guarantee("key-order-inside-a-consumer")
def test_a_keys_order_holds_while_brokers_and_consumers_are_killed_under_load(
    broken: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path
) -> None:
    declare(bus, [Subscription(Topic(topic), "ledger", single_active=True)])
    told, rng, confirmed = tmp_path / "runs", random.Random(17), set[int]()
    told.touch()
    processes = [
        Killed(
            ["-c", HANDLER, topic, str(told)],
            os.environ | broken.client_env(),
            tmp_path / f"{n}.log",
        )
        for n in range(CONSUMERS)
    ]
    try:
        with Publisher(bus) as publisher:
            pause = threading.Event()
            for number in range(ROUNDS):
                if number in (3, 8):
                    broken.kill(victim := rng.choice(broken.names))
                if number in (5, 10):
                    broken.start(victim)
                if number % 2:
                    rng.choice(processes).kill()
                numbers = range(number * OF_A_ROUND, (number + 1) * OF_A_ROUND)
                messages = [Message(body=b"%d" % each, key=f"k{each % KEYS}") for each in numbers]
                ends = publisher.send_many(topic, messages)
                confirmed |= {
                    each
                    for each, end in zip(numbers, ends, strict=True)
                    if end.outcome is Outcome.CONFIRMED
                }
                pause.wait(PAUSE_S)
                for process in processes:
                    process.revive()
        broken.wait_ready()
        eventually(lambda: confirmed <= ended(told), within_s=WITHIN_S, what="all end well")
    finally:
        for process in processes:
            process.end()
    assert sum(each.kills for each in processes) >= ROUNDS // 2 - 1
    assert len(confirmed) > ROUNDS * OF_A_ROUND // 2
    assert out_of_order(told) == []
    assert side_by_side(told) == []


def lines(told: Path) -> list[list[str]]:
    return [line.split() for line in told.read_text().splitlines()]


def ended(told: Path) -> set[int]:
    return {int(number) for what, _broker, _key, number, _pid in lines(told) if what == "end"}


def out_of_order(told: Path) -> list[str]:
    """Return the first completions that came behind a later one of their key and broker."""
    seen: dict[tuple[str, str], list[int]] = defaultdict(list)
    for what, broker, key, text, _pid in lines(told):
        number, before = int(text), seen[broker, key]
        if what == "end" and number not in before:
            before.append(number)
    return [
        f"{where}: {number} behind {max(before)}"
        for where, numbers in seen.items()
        for before, number in ((numbers[:place], each) for place, each in enumerate(numbers))
        if before and number < max(before)
    ]


def side_by_side(told: Path) -> list[str]:
    """Return the runs that began while another one of their key went on in the same process."""
    running: dict[tuple[str, str], str] = {}
    found = []
    for what, _broker, key, number, pid in lines(told):
        if what != "begin":
            running.pop((pid, key), None)
        elif (other := running.get((pid, key))) is not None:
            found.append(f"{number} of {key} beside {other}")
        else:
            running[pid, key] = number
    return found
