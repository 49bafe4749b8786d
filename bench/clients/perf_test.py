"""RabbitMQ's own PerfTest, in Java, on one node: an outside reference with a load of its own.

It sends at a rate, or as fast as its window allows. Its latencies count from the sending, so they do not
show messages held up by a stall. It does not track the fates of messages.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.clients.jvm.maven import PERF_TEST
from bench.clients.rabbitmq import DURABILITY, started_direct
from bench.errors import BenchError
from bench.harness.interface import Outside, Running
from bench.load.profile import Profile, places
from bench.load.schedule import Constant
from messagebus import BusConfig, Subscription, Topic

__all__ = ["Second", "durability", "latencies", "measure", "options", "parse", "started"]

started = started_direct
OUTPUT = "perf-test.txt"
# Additional time for its start, its connections and its end.
MORE_S = 60.0
LACKS = (
    "fates: lost, doubled, altered or late messages",
    "latency from intended times: it times from the sending",
    f"percentiles other than its five, which are of its whole run (PerfTest {PERF_TEST.version})",
)
_AT = re.compile(r"time (?P<at>[\d.]+) s")
_RATE = re.compile(r"(?P<what>confirmed|received): (?P<rate>\d+) msg/s")
_LATENCY = re.compile(
    r"(?P<what>confirm|consumer) latency min/median/75th/95th/99th (?P<values>[\d/]+) (?P<unit>µs|ms)"
)
_MEASURE = {"confirm": "service", "consumer": "sent to received"}


@dataclass(frozen=True, slots=True)
class Second:
    """One line of its output. cpu_s: CPU time of its process until then."""

    at_s: float
    confirmed_per_s: float
    received_per_s: float
    cpu_s: float = 0.0


def durability(profile: Profile) -> str:
    return DURABILITY


def measure(profile: Profile, running: Running, folder: Path) -> Outside:
    """Run PerfTest and return its numbers. Raises BenchError when it is missing, fails, or does not end."""
    PERF_TEST.fetch()
    argv = ["java", "-cp", PERF_TEST.classpath, "com.rabbitmq.perf.PerfTest", *options(profile)]
    bus = BusConfig.from_env(running.env())
    login = f"{bus.current_user()}:{bus.current_password().reveal()}"
    # The address, which holds a password, goes through the environment.
    env = {**os.environ, "URI": f"amqp://{login}@{bus.broker}"}
    seconds, text = _run(argv, env, folder / OUTPUT, _time_s(profile) + MORE_S)
    begin, end = profile.time.warm_up_s, profile.time.warm_up_s + profile.time.measured_s
    own = [each for each in seconds if begin < each.at_s < end + 0.5]
    if len(own) < 2:
        raise BenchError(f"PerfTest measured nothing; what it said is in {folder / OUTPUT}")
    return Outside(
        confirmed_per_s=sum(each.confirmed_per_s for each in own) / len(own),
        delivered_per_s=sum(each.received_per_s for each in own) / len(own)
        if profile.load.consumers
        else None,
        percentiles_ms=latencies(text),
        client_cpu_s=(own[-1].cpu_s - own[0].cpu_s) * len(own) / (len(own) - 1),
        argv=argv,
        lacks=LACKS,
    )


def options(profile: Profile) -> list[str]:
    """Return the options of its command line, for an existing exchange and queue."""
    load, messages = profile.load, profile.messages
    assert isinstance(load.schedule, Constant)
    ((topic, subscription),) = places(profile)[:1]
    rate = max(1, round(load.schedule.rate_per_s / load.publishers))
    queue = Subscription(Topic(topic), subscription).amqp_queue
    answers = {
        "each": ["--qos", str(load.prefetch)],
        "many": [
            *("--qos", str(load.prefetch)),
            *("--multi-ack-every", str(max(1, load.prefetch // 4))),
        ],
        "none": ["--autoack"],
    }[load.ack]
    return [
        *("--predeclared", "--skip-binding-queues", "--exchange", Topic(topic).exchange),
        *("--type", "fanout", "--queue", queue, "--routing-key", ""),
        *("--time", str(int(_time_s(profile)))),
        *("--producers", str(load.publishers), "--consumers", str(load.consumers)),
        *("--confirm", str(load.window), "--rate", str(rate), "--size", str(messages.size)),
        *("--flag", "persistent", "--flag", "mandatory"),
        *answers,
    ]


def parse(line: str) -> Second | None:
    """Parse a line of rates; None for any other line."""
    at = _AT.search(line)
    rates = {found["what"]: float(found["rate"]) for found in _RATE.finditer(line)}
    if not at or not rates:
        return None
    return Second(float(at["at"]), rates.get("confirmed", 0.0), rates.get("received", 0.0))


def latencies(text: str) -> dict[str, dict[str, float]]:
    """Parse the latencies at the end of its output: measure -> percentile -> ms."""
    found = {}
    for each in _LATENCY.finditer(text):
        unit = 1e-3 if each["unit"] == "µs" else 1.0
        values = [int(value) * unit for value in each["values"].split("/")]
        names = ("p0", "p50", "p75", "p95", "p99")
        found[_MEASURE[each["what"]]] = dict(zip(names, values, strict=True))
    return found


def _time_s(profile: Profile) -> float:
    return profile.time.warm_up_s + profile.time.measured_s + 1


def _run(
    argv: Sequence[str], env: Mapping[str, str], output: Path, within_s: float
) -> tuple[list[Second], str]:
    """Run PerfTest; return its lines of rates, each with the CPU time until then, and its whole output."""
    until_s, seconds, said = time.monotonic() + within_s, [], []
    with subprocess.Popen(
        argv, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        seen = psutil.Process(process.pid)
        try:
            for line in process.stdout:
                said.append(line)
                if (second := parse(line)) is not None:
                    used = seen.cpu_times()
                    seconds.append(
                        Second(
                            second.at_s,
                            second.confirmed_per_s,
                            second.received_per_s,
                            used.user + used.system,
                        )
                    )
                if time.monotonic() > until_s:
                    raise BenchError(f"PerfTest did not end within {within_s:.0f} s")
        except BaseException:
            process.kill()
            raise
        finally:
            output.write_text("".join(said))
    if process.returncode:
        raise BenchError(f"PerfTest ended with exit code {process.returncode}; see {output}")
    return seconds, "".join(said)
