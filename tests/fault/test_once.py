"""Promise: with deduplication each message's handler ends well once, whatever is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from messagebus import BusConfig, Consumer, Dedup, Delivery, Message, Publisher, declare
from messagebus.admin import read_parked
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually

WITHIN_S = 60.0

CONCURRENCY = 4
POISON = """
import os, signal, sys, threading
from messagebus import BusConfig, Consumer, Dedup

def handle(delivery):
    if delivery.body == b"poison":
        os.write(1, b"poison\\n")
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(1, delivery.message_id.encode() + b"\\n")

dedup = Dedup(sys.argv[2], lease_s=1, unended_max=2)
consumer = Consumer(BusConfig.from_env(os.environ), sys.argv[1], subscription="all", dedup=dedup)
consumer.start(require="all", timeout_s=60)
threading.Thread(target=consumer.run, args=(handle,), kwargs={"concurrency": int(sys.argv[3])}).start()
sys.stdin.read()
consumer.stop()
"""


def close(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


@pytest.mark.guarantee("never-run-never-acked")
def test_a_process_killed_in_its_first_run_runs_it_again_then_parks_it(
    broken: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path
) -> None:
    declare(bus, [f"{topic}/all"])
    others = [f"other-{number}" for number in range(20)]
    with Publisher(bus) as publisher:
        publisher.send_safe(topic, Message(body=b"poison", message_id="poison"))
        for message_id in others:
            publisher.send_safe(topic, Message(body=b"", message_id=message_id))
    store = f"sqlite:///{tmp_path}/dedup.db"
    command = [sys.executable, "-c", POISON, topic, store, str(CONCURRENCY)]
    lines: list[str] = []
    killed = 0

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env={**os.environ, **broken.client_env()},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def parked() -> dict[str, str]:
        found = read_parked(bus, [f"{topic}/all"]).messages
        return {each.message_id: each.reason for each in found}

    def read(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        lines.extend(line.strip() for line in process.stdout)

    process = start()
    try:
        while killed < 2:
            read(process)
            assert process.wait(WITHIN_S) == -signal.SIGKILL
            close(process)
            killed += 1
            process = start()
        reader = threading.Thread(target=read, args=(process,))
        reader.start()
        eventually(lambda: "poison" in parked(), within_s=WITHIN_S, what="parked")
        eventually(lambda: {*others} <= {*lines, *parked()}, within_s=WITHIN_S)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(WITHIN_S) == 0
        reader.join()
    finally:
        process.kill()
        process.wait()
        close(process)
    assert {*parked().values()} == {"2 runs never ended"}
    # A message that was being run beside it both times is parked with it.
    assert len(parked()) <= CONCURRENCY
    assert lines.count("poison") == 2
    # One more run of what was being run beside it when the process died, and nothing less.
    assert {*lines, *parked()} == {"poison", *others}


@pytest.mark.guarantee("handled-once")
def test_each_message_ends_well_once_through_kills_of_brokers(
    broken: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path
) -> None:
    """Two consumers and one store; no process dies, so that there is no excuse.

    A broker is frozen before its messages are handled, and killed before it reads their acks.
    """
    declare(bus, [f"{topic}/all"])
    effects: list[str] = []
    lock, gate = threading.Lock(), threading.Event()

    def handle(delivery: Delivery) -> None:
        assert gate.wait(WITHIN_S)
        with lock:
            effects.append(delivery.message_id)

    dedup = Dedup(f"sqlite:///{tmp_path}/dedup.db", store_timeout_s=10)
    consumers = [Consumer(bus, topic, subscription="all", dedup=dedup) for _ in range(2)]
    runs = []
    for consumer in consumers:
        consumer.start(require="all", timeout_s=WITHIN_S)
        runs.append(
            threading.Thread(target=consumer.run, args=(handle,), kwargs={"concurrency": 4})
        )
        runs[-1].start()
    ids: list[str] = []

    def more() -> Callable[[], bool]:
        before = len(effects)
        return lambda: len(effects) > before

    def owed(name: str) -> int:
        """Return how many deliveries of a broker wait for their ends at both consumers."""
        found = [each.stats().brokers.get(broken.node(name).broker) for each in consumers]
        return sum(each.owed for each in found if each)

    try:
        with Publisher(bus) as publisher:
            for _ in range(3):
                gate.clear()
                ends = [publisher.submit(topic, b"x", timeout_s=WITHIN_S) for _ in range(2_000)]
                eventually(lambda: any(map(owed, broken.names)), within_s=WITHIN_S)
                name = max(broken.names, key=owed)
                broken.freeze(name)
                is_handled = more()
                gate.set()
                eventually(is_handled, within_s=WITHIN_S)
                broken.kill(name)
                ids += [end.result().message_id for end in ends]
                broken.start(name)
                broken.wait_ready()
        eventually(lambda: set(ids) <= set(effects), within_s=2 * WITHIN_S, what="all were handled")
        eventually(
            lambda: all(
                broker.owed == 0 for each in consumers for broker in each.stats().brokers.values()
            ),
            within_s=WITHIN_S,
        )
        duplicates = sum(each.stats().duplicates for each in consumers)
    finally:
        for consumer in consumers:
            consumer.stop()
        for run in runs:
            run.join()
    twice = {message_id: n for message_id, n in Counter(effects).items() if n > 1}
    assert not twice
    assert set(effects) == set(ids)
    assert duplicates, "nothing came twice: the kills showed nothing"
