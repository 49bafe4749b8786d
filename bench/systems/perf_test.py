"""RabbitMQ's own PerfTest, in Java: fetched once through Maven, timed while it is warm.

It prints a line of rates every second. CPU time of its process is read at each line, so the result covers
the measured seconds alone. It excludes the start of the JVM and its first seconds, in which code is still
compiled.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psutil

from bench.clients.jvm.maven import PERF_TEST
from bench.errors import BenchError
from bench.systems.turn import TURN_WITHIN_S, Task, Turn

__all__ = ["Line", "is_ready", "parse", "run", "turn_of"]

# Seconds that are not measured: the JVM starts, connects and compiles.
WARM_UP_S = 3.0
ACK_EVERY = 100
# A consumer whose rate falls below this part of its best second has reached the end of the queue.
DRY = 0.5

_RATE = re.compile(r"time (?P<at>[\d.]+) s.*?(?:confirmed|received): (?P<rate>\d+) msg/s")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of rates, for the time since the line before. cpu_s: user, system, so far."""

    at_s: float
    rate_per_s: float
    user_s: float = 0.0
    system_s: float = 0.0


def is_ready(say: Callable[[str], None]) -> bool:
    """Return whether it can be run, and fetch its jars; otherwise print the reason. Raises BenchError."""
    if reason := PERF_TEST.missing():
        say(f"PerfTest is not run: {reason}")
    else:
        PERF_TEST.fetch()
    return not reason


def run(task: Task) -> Turn:
    PERF_TEST.fetch()
    command = ["java", "-cp", PERF_TEST.classpath, "com.rabbitmq.perf.PerfTest", *options(task)]
    address = f"amqp://{task.user}:{task.password}@{task.broker}"
    # The address, which holds a password, goes through the environment.
    with subprocess.Popen(
        command,
        env={**os.environ, "URI": address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        lines = list(_timed(process))
    if process.returncode:
        raise BenchError(f"PerfTest ended with exit code {process.returncode}")
    return turn_of(lines)


def options(task: Task) -> list[str]:
    """Return the options of its command line, for an existing exchange and queue."""
    shared = ["--predeclared", "--skip-binding-queues", "--exchange", task.exchange]
    shared += ["--type", "fanout", "--queue", task.queue, "--routing-key", ""]
    shared += ["--time", str(int(WARM_UP_S + task.seconds) + 1)]
    if task.verb == "consume":
        acks = ["--qos", str(task.window), "--multi-ack-every", str(ACK_EVERY)]
        return [*shared, "--producers", "0", "--consumers", "1", *acks]
    flags = ["--flag", "persistent", "--flag", "mandatory", "--size", str(task.body_bytes)]
    return [*shared, "--producers", "1", "--consumers", "0", "--confirm", str(task.window), *flags]


def parse(line: str) -> Line | None:
    """Parse a line of rates; None for any other line."""
    found = _RATE.search(line)
    return Line(float(found["at"]), float(found["rate"])) if found else None


def turn_of(lines: Sequence[Line], warm_up_s: float = WARM_UP_S) -> Turn:
    """Sum up the seconds after the warm-up, up to the one in which the queue ran dry. Raises BenchError."""
    warm = [line for line in lines if line.at_s < warm_up_s + 0.5]
    later = _before_dry(lines[len(warm) :], max((one.rate_per_s for one in lines), default=0))
    if not warm or not later:
        raise BenchError("PerfTest measured nothing: it ended before it was warm")
    first, last = warm[-1], later[-1]
    starts = [first.at_s, *(line.at_s for line in later)]
    messages = sum(
        line.rate_per_s * (line.at_s - start) for start, line in zip(starts, later, strict=False)
    )
    return Turn(
        messages=round(messages),
        took_s=last.at_s - first.at_s,
        user_s=last.user_s - first.user_s,
        system_s=last.system_s - first.system_s,
    )


def _before_dry(lines: Sequence[Line], best: float) -> Sequence[Line]:
    """Drop the last lines, in which it found few messages."""
    while lines and lines[-1].rate_per_s < best * DRY:
        lines = lines[:-1]
    return lines


def _timed(process: subprocess.Popen[str]) -> Iterator[Line]:
    """Yield its lines of rates, each with the CPU time used until then. Raises BenchError."""
    assert process.stdout is not None
    seen = psutil.Process(process.pid)
    until_s = time.monotonic() + TURN_WITHIN_S
    for text in process.stdout:
        if time.monotonic() > until_s:
            process.kill()
            raise BenchError("PerfTest did not end in time")
        if (line := parse(text)) is not None:
            used = seen.cpu_times()
            yield Line(line.at_s, line.rate_per_s, used.user, used.system)
        elif "exception" in text.lower():
            print(text.rstrip(), file=sys.stderr)
