"""RabbitMQ's own PerfTest, in Java, on one node: an outside reference with a load of its own.

It sends at a rate, or as fast as its window allows. Its latencies count from the sending, so they do not
show messages held up by a stall. It does not track the fates of messages.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from bench.clients.packages import PERF_TEST
from bench.clients.rabbitmq import durability_direct, started_direct
from bench.errors import BenchError
from bench.harness.interface import Outside, Running
from bench.harness.timed_turn import Task, Turn
from bench.load.profile import Load, Profile, places
from bench.load.schedule import Constant
from messagebus import BusConfig, Subscription, Topic

started, durability = started_direct, durability_direct
OUTPUT = "perf-test.txt"
PROGRAM = ("java", "-cp", PERF_TEST.classpath, "com.rabbitmq.perf.PerfTest")
# Additional time for its start, its connections and its end.
MORE_S = 300.0
# Seconds of a turn that are not measured: the JVM starts, connects and compiles.
JVM_WARM_UP_S = 3.0
# A consumer whose rate falls below this part of its best second has reached the end of the queue.
DRY = 0.5
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

    @property
    def per_s(self) -> float:
        """The rate of a program that does one of the two."""
        return self.confirmed_per_s or self.received_per_s


def measure(profile: Profile, running: Running, folder: Path) -> Outside:
    """Run PerfTest and return its numbers. Raises BenchError when it is missing, fails, or does not end."""
    PERF_TEST.fetch()
    argv = [*PROGRAM, *options(profile)]
    within_s = _time_s(profile) + MORE_S
    seconds, text = _run(argv, _env(running.env()), folder / OUTPUT, within_s)
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


def is_ready(say: Callable[[str], None]) -> bool:
    """Return whether it can be run, and fetch its jars; otherwise print the reason. Raises BenchError."""
    if reason := PERF_TEST.missing():
        say(f"PerfTest is not run: {reason}")
    else:
        PERF_TEST.fetch()
    return not reason


async def turn(task: Task) -> Turn:
    """Publish or consume at full speed. The first seconds, in which code is compiled, do not count."""
    PERF_TEST.fetch()
    time_s = JVM_WARM_UP_S + task.seconds + 1
    argv = [*PROGRAM, *full_speed(task), "--time", str(int(time_s))]
    return turn_of(_run(argv, _env(task.env), None, time_s + MORE_S)[0])


def turn_of(seconds: Sequence[Second], warm_up_s: float = JVM_WARM_UP_S) -> Turn:
    """Sum up the seconds after the warm-up, up to the one in which the queue ran dry. Raises BenchError."""
    warm = [each for each in seconds if each.at_s < warm_up_s + 0.5]
    later, best = seconds[len(warm) :], max((each.per_s for each in seconds), default=0.0)
    while later and later[-1].per_s < best * DRY:
        later = later[:-1]
    if not warm or not later:
        raise BenchError("PerfTest measured nothing: it ended before it was warm")
    first, last = warm[-1], later[-1]
    messages = sum(each.per_s * (each.at_s - was.at_s) for was, each in pairwise([first, *later]))
    took_s, cpu_s = last.at_s - first.at_s, last.cpu_s - first.cpu_s
    return Turn(messages=round(messages), took_s=took_s, cpu_s=cpu_s)


def full_speed(task: Task) -> list[str]:
    """Return the options of a turn, but for its time."""
    ends = ["--producers", "0", "--consumers", "1", *_answers(task.profile.load)]
    if task.verb == "publish":
        ends = ["--producers", "1", "--consumers", "0", "--confirm", str(task.window)]
        ends += ["--flag", "persistent", "--flag", "mandatory", "--size", str(task.body_bytes)]
    return [*_existing(task.topic, task.subscription), *ends]


def _env(settings: Mapping[str, str]) -> dict[str, str]:
    """Return its environment with the address, which holds a password, of the broker in the settings."""
    bus = BusConfig.from_env(settings)
    login = f"{bus.current_user()}:{bus.current_password().reveal()}"
    return {**os.environ, "URI": f"amqp://{login}@{bus.broker}"}


def options(profile: Profile) -> list[str]:
    """Return the options of its command line, for an existing exchange and queue."""
    load, messages = profile.load, profile.messages
    assert isinstance(load.schedule, Constant)
    ((topic, subscription),) = places(profile)[:1]
    rate = max(1, round(load.schedule.rate_per_s / load.publishers))
    return [
        *_existing(topic, subscription),
        *("--time", str(int(_time_s(profile)))),
        *("--producers", str(load.publishers), "--consumers", str(load.consumers)),
        *("--confirm", str(load.window), "--rate", str(rate), "--size", str(messages.size)),
        *("--flag", "persistent", "--flag", "mandatory"),
        *_answers(load),
    ]


def _existing(topic: str, subscription: str) -> list[str]:
    """Return the options for an existing exchange and queue."""
    queue = Subscription(Topic(topic), subscription).amqp_queue
    return [
        *("--predeclared", "--skip-binding-queues", "--exchange", Topic(topic).exchange),
        *("--type", "fanout", "--queue", queue, "--routing-key", ""),
    ]


def _answers(load: Load) -> list[str]:
    return {
        "each": ["--qos", str(load.prefetch)],
        "many": [
            *("--qos", str(load.prefetch)),
            *("--multi-ack-every", str(max(1, load.prefetch // 4))),
        ],
        "none": ["--autoack"],
    }[load.ack]


def parse(line: str, cpu_s: float = 0.0) -> Second | None:
    """Parse a line of rates; None for any other line. cpu_s: of the process until now."""
    at, rates = (
        _AT.search(line),
        {each["what"]: float(each["rate"]) for each in _RATE.finditer(line)},
    )
    if not at or not rates:
        return None
    return Second(float(at["at"]), rates.get("confirmed", 0.0), rates.get("received", 0.0), cpu_s)


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
    argv: Sequence[str], env: Mapping[str, str], output: Path | None, within_s: float
) -> tuple[list[Second], str]:
    """Run PerfTest; return its lines of rates, each with the CPU time until then, and its whole output."""
    until_s, seconds, lines = time.monotonic() + within_s, [], list[str]()
    with subprocess.Popen(
        argv, env=dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                used = psutil.Process(process.pid).cpu_times()
                if (second := parse(line, used.user + used.system)) is not None:
                    seconds.append(second)
                if time.monotonic() > until_s:
                    raise BenchError(f"PerfTest did not end within {within_s:.0f} s")
        except BaseException:
            process.kill()
            raise
        finally:
            if output:
                output.write_text("".join(lines))
    if process.returncode:
        last = lines[-1].strip() if lines else "it said nothing"
        raise BenchError(f"PerfTest ended with exit code {process.returncode}: {last}")
    return seconds, "".join(lines)
