"""Artemis' own `artemis perf client`, in Java: an outside reference with a load of its own, on one node.

It sends at a rate to a queue of its own and receives from it. Its times do not include the wait for room
or for the intended time; these are reported separately.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.clients.jvm.artemis_nodes import CORE_PORT, MAIN, NODES, durability, started
from bench.clients.jvm.maven import ARTEMIS
from bench.clients.jvm.processes import run_tool
from bench.errors import BenchError
from bench.harness.interface import Outside, Running
from bench.load.profile import Profile
from bench.load.schedule import Constant

__all__ = ["durability", "measure", "options", "outside_of", "read", "started"]

OUTPUT, SAMPLES = "artemis-perf.txt", "artemis-perf.json"
QUEUE = "queue://perf"
# Without it the client reports each send as acknowledged as soon as it is written, and says so in one
# line of its log (AMQ212053). That takes 0.1 ms; the journal alone gathers for 0.4 ms before it syncs.
ACKNOWLEDGED = "confirmationWindowSize=1048576"
MORE_S = 60.0
US_PER_MS = 1000
LACKS = (
    "fates: lost, doubled, altered or late messages",
    "latency from intended times: it times from the sending, with two digits",
    "load.prefetch: its consumer has Artemis' own window of 1 MiB",
    "CPU time of its process",
)
# Its name -> ours. "sent to received" uses one clock, because it is one process.
MEASURES = {"totalSendTime": "service", "totalTransferTime": "sent to received"}
PERCENTILES = {"50": "p50", "90": "p90", "99": "p99", "99.9": "p99.9"}


def measure(profile: Profile, running: Running, folder: Path) -> Outside:
    """Run the tool and return its numbers. Raises BenchError."""
    host, _, _ = running.env()[NODES].split()[0].rpartition(":")
    argv = ["-cp", ARTEMIS.classpath, MAIN, *options(profile, host, folder / SAMPLES)]
    run_tool(argv, folder / OUTPUT, profile.time.warm_up_s + profile.time.measured_s + MORE_S)
    return outside_of(read((folder / SAMPLES).read_text()), ["java", *argv])


def options(profile: Profile, host: str, samples: Path) -> list[str]:
    """Return the options of its command line."""
    load, time = profile.load, profile.time
    assert isinstance(load.schedule, Constant)
    return [
        *(
            "perf",
            "client",
            "--url",
            f"tcp://{host}:{CORE_PORT}?{ACKNOWLEDGED}",
            "--persistent",
            "--tx",
        ),
        *("--producers", str(load.publishers), "--consumers", str(load.consumers)),
        *("--rate", str(max(1, round(load.schedule.rate_per_s)))),
        *("--max-pending", str(load.window), "--message-size", str(profile.messages.size)),
        *("--warmup", str(round(time.warm_up_s)), "--duration", str(round(time.measured_s))),
        *("--json", str(samples), QUEUE),
    ]


def read(text: str) -> list[dict[str, Any]]:
    """Parse its samples, one per line. A killed process leaves an incomplete last line, which is skipped."""
    lines = (line.strip().rstrip(",") for line in text.splitlines())
    found = []
    for line in lines:
        try:
            sample = json.loads(line)
        except ValueError:
            continue
        if isinstance(sample, dict):
            found.append(sample)
    return found


def outside_of(samples: Sequence[Mapping[str, Any]], argv: Sequence[str]) -> Outside:
    """Return the numbers of its samples. Raises BenchError when it measured nothing, or failed."""
    seconds = [each for each in samples if each["sampleType"] == "interval" and not each["warmup"]]
    totals = [each for each in samples if each["sampleType"] == "summary"]
    if not seconds or not totals or totals[-1]["result"] != "success":
        raise BenchError("artemis perf measured nothing, or failed")
    return Outside(
        confirmed_per_s=sum(each["completed"] for each in seconds) / len(seconds),
        delivered_per_s=sum(each["received"] for each in seconds) / len(seconds),
        percentiles_ms={
            ours: {name: totals[-1][theirs][key] / US_PER_MS for key, name in PERCENTILES.items()}
            for theirs, ours in MEASURES.items()
        },
        argv=argv,
        lacks=LACKS,
    )
