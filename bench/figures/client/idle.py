"""One client in a process of its own that attaches on request, does nothing, and reports the costs.

``python -m bench.figures.client.idle publisher|consumer TOPIC SUBSCRIPTION`` prints one JSON object a line:
first when it is ready; after the first line of its standard input when it is attached; then after every
further line, with the CPU time since the answer before. Its settings are in its environment. It imports
nothing but the library, as an application would.
"""

import json
import os
import sys
import time
from pathlib import Path

from messagebus import BusConfig, Consumer, Publisher

START_S = 180.0


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
    main(*sys.argv[1:])
