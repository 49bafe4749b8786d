"""One client in a process of its own that attaches on request, does nothing, and reports the costs.

``python -m bench.figures.client.idle publisher|consumer TOPIC SUBSCRIPTION`` prints one JSON object a line:
first when it is ready; after the first line of its standard input when it is attached; then after every
further line, with the CPU time since the answer before. ``stream TOPIC SUBSCRIPTION COUNT WINDOW BATCH``
instead receives and acks that many messages, keeps none of them, and prints its costs. The settings are in
the environment. Nothing but the library is imported, as in an application.
"""

import json
import os
import sys
import time
from pathlib import Path

from bench.harness.loop import run_on_best_loop
from messagebus import AsyncConsumer, BusConfig, Consumer, ConsumerConfig, Publisher

START_S = 180.0
RECEIVE_MAX = 500


def main(kind: str, topic: str, subscription: str) -> None:
    bus = BusConfig.from_env(os.environ)
    client = (
        Publisher(bus) if kind == "publisher" else Consumer(bus, topic, subscription=subscription)
    )
    before = _rss_bytes()
    _say(rss_bytes=before)
    sys.stdin.readline()
    began_s = time.monotonic()
    if isinstance(client, Publisher):
        client.start(require="one", timeout_s=START_S)
        client.send_safe(topic, b"one message, so that everything is in use")
    else:
        client.start(require="all", timeout_s=START_S)
    _say(attach_s=time.monotonic() - began_s, links=_links(client))
    used_s, since_s = time.process_time(), time.monotonic()
    while sys.stdin.readline():
        cpu_s, idle_s = time.process_time() - used_s, time.monotonic() - since_s
        rss, links = _rss_bytes(), _links(client)
        _say(
            cpu_percent=cpu_s / idle_s * 100,
            rss_bytes=rss,
            link_bytes=(rss - before) / max(1, links),
            links=links,
        )
        used_s, since_s = time.process_time(), time.monotonic()
    # The end of the process closes its links: nothing is in flight.
    os._exit(0)


async def stream(topic: str, subscription: str, count: int, window: int, batch: int) -> None:
    config = ConsumerConfig(prefetch=window // batch, handed_out_max=window)
    bus, received = BusConfig.from_env(os.environ), 0
    async with AsyncConsumer(bus, topic, subscription=subscription, config=config) as consumer:
        began_s = time.monotonic()
        while received < count:
            deliveries = await consumer.receive_many(RECEIVE_MAX)
            for delivery in deliveries:
                consumer.ack(delivery)
            received += len(deliveries)
        took_s, cpu_s = time.monotonic() - began_s, time.process_time()
    _say(messages=received, took_s=took_s, cpu_s=cpu_s)


def _links(client: Publisher | Consumer) -> int:
    if isinstance(client, Publisher):
        return 1
    return sum(each.state == "open" for each in client.stats().brokers.values())


def _say(**values: float) -> None:
    print(json.dumps(values), flush=True)


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    if sys.argv[1] == "stream":
        where, counts = sys.argv[2:4], map(int, sys.argv[4:])
        run_on_best_loop(stream(where[0], where[1], *counts))
    else:
        main(*sys.argv[1:])
