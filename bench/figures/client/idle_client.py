"""One consumer in a process of its own that attaches on request, does nothing, and reports what it costs.

``python -m bench.figures.client.idle_client TOPIC SUBSCRIPTION`` prints one JSON object a line: first when it
is ready; after the first line of its standard input when it is attached; then after every further line, with
the CPU time since the answer before. The settings are in the environment. Nothing but the library is
imported, as in an application.
"""

import json
import os
import sys
import time
from pathlib import Path

from messagebus import BusConfig, Consumer

START_S = 180.0


def main(topic: str, subscription: str) -> None:
    consumer = Consumer(BusConfig.from_env(os.environ), topic, subscription=subscription)
    before = _rss_bytes()
    _say(rss_bytes=before)
    sys.stdin.readline()
    began_s = time.monotonic()
    consumer.start(require="all", timeout_s=START_S)
    _say(attach_s=time.monotonic() - began_s, links=_links(consumer))
    used_s, since_s = time.process_time(), time.monotonic()
    while sys.stdin.readline():
        cpu_s, idle_s = time.process_time() - used_s, time.monotonic() - since_s
        rss, links = _rss_bytes(), _links(consumer)
        _say(
            cpu_percent=cpu_s / idle_s * 100,
            rss_bytes=rss,
            link_bytes=(rss - before) / max(1, links),
            links=links,
        )
        used_s, since_s = time.process_time(), time.monotonic()
    # The end of the process closes its links: nothing is in flight.
    os._exit(0)


def _links(consumer: Consumer) -> int:
    return sum(each.state == "open" for each in consumer.stats().brokers.values())


def _say(**values: float) -> None:
    print(json.dumps(values), flush=True)


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(*sys.argv[1:])
