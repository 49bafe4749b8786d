"""One consumer process that receives and acks a number of messages, and reports its memory meanwhile.

``python -m bench.figures.client.stream_consumer TASK`` prints one JSON object a second. It keeps none of
the received messages.
"""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from bench.harness.loop import event_loop
from bench.systems.ours_async import RECEIVE_MANY_MAX, consumer_config
from bench.systems.turn import Task
from messagebus import AsyncConsumer

EVERY_S = 1.0


def main(text: str) -> None:
    task = Task.from_json(text)
    with asyncio.Runner(loop_factory=event_loop(task.loop)) as runner:
        runner.run(_consume(task))


async def _consume(task: Task) -> None:
    received = 0
    async with AsyncConsumer(
        task.bus, task.topic, subscription=task.subscription, config=consumer_config(task)
    ) as consumer:
        told_s = 0.0
        while received < task.messages:
            deliveries = await consumer.receive_many(RECEIVE_MANY_MAX)
            for delivery in deliveries:
                consumer.ack(delivery)
            received += len(deliveries)
            if (now_s := time.monotonic()) - told_s >= EVERY_S:
                told_s = now_s
                _say(received)
        _say(received)


def _say(received: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    rss_bytes = pages * os.sysconf("SC_PAGE_SIZE")
    values = {"received": received, "rss_bytes": rss_bytes, "cpu_s": time.process_time()}
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
