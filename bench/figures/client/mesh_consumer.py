"""One consumer of a full mesh: it attaches to all brokers on request, idles, and reports the cost.

``python -m bench.figures.client.mesh_consumer LIST_URL TOPIC SUBSCRIPTION`` prints one JSON object a
line: ready; attached, after a line on its standard input; idle, after another one.
It imports nothing but the library, as an application would.
"""

import json
import os
import sys
import time
from pathlib import Path

from messagebus import BusConfig, Consumer

START_S = 180.0
# The default of half a second is meant for brokers with a machine of their own. Here one process serves
# all of them. 3,200 handshakes at once take it longer than that, and an abandoned dial is lost work.
DIAL_MS = 60_000


def main(list_url: str, topic: str, subscription: str) -> None:
    bus = BusConfig(list_urls=(list_url,), dial_timeout_ms=DIAL_MS, dial_timeout_max_ms=DIAL_MS)
    consumer = Consumer(bus, topic, subscription=subscription)
    before = _rss_bytes()
    _say(rss_bytes=before)
    sys.stdin.readline()
    began_s = time.monotonic()
    consumer.start(require="all", timeout_s=START_S)
    links = sum(each.state == "open" for each in consumer.stats().brokers.values())
    _say(attach_s=time.monotonic() - began_s, links=links)
    used_s, since_s = time.process_time(), time.monotonic()
    sys.stdin.readline()
    idle_s = time.monotonic() - since_s
    rss = _rss_bytes()
    _say(
        cpu_percent=(time.process_time() - used_s) / idle_s * 100,
        rss_bytes=rss,
        link_bytes=(rss - before) / max(1, links),
        links=sum(each.state == "open" for each in consumer.stats().brokers.values()),
    )
    # The end of the process closes its links: nothing is in flight.
    os._exit(0)


def _say(**values: float) -> None:
    print(json.dumps(values), flush=True)


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main(*sys.argv[1:])
