"""A client at rest, in a process of its own: it starts, does nothing, and reports the cost.

``python -m bench.figures.rest publisher|consumer TOPIC SUBSCRIPTION SECONDS`` prints one JSON object.
It imports nothing but the library, as an application would.
"""

import json
import os
import sys
import time
from pathlib import Path

from messagebus import BusConfig, Consumer, Publisher

START_S = 30.0
# Seconds after which links are open and the work of the start is over.
SETTLE_S = 2.0


def main(kind: str, topic: str, subscription: str, seconds: str) -> None:
    bus = BusConfig.from_env(os.environ)
    if kind == "publisher":
        publisher = Publisher(bus)
        publisher.start(require="one", timeout_s=START_S)
        publisher.send_safe(topic, b"one message, so that everything is in use")
        _rest(float(seconds))
        publisher.stop()
    else:
        consumer = Consumer(bus, topic, subscription=subscription)
        consumer.start(require="all", timeout_s=START_S)
        _rest(float(seconds))
        consumer.stop()


def _rest(seconds: float) -> None:
    time.sleep(SETTLE_S)
    before_s = time.process_time()
    time.sleep(seconds)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    used = {
        "cpu_s": time.process_time() - before_s,
        "rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
    }
    print(json.dumps(used))


if __name__ == "__main__":
    main(*sys.argv[1:])
