"""The environment of a measurement: versions, the machine, and its load by other processes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
COMMAND_WITHIN_S = 10.0
# No goal counts as met if more processes than these wanted to run before the measurement.
LOAD_MAX = 2.0
# The average of a minute falls from 8 to 2 in 83 s once nothing runs.
CALM_WITHIN_S, LOOK_S = 180.0, 2.0
# What measuring itself writes: a figure that is kept must not change the commit of the next one.
WRITTEN = ("bench/results", "README.md", "docs/MEASURING.md", "docs/SCALE.md")
# Folders with the code of load processes.
LOADED = ("messagebus", "bench", "inventory")
LIBRARIES = ("pika", "uvloop", "aio-pika", "kombu", "confluent-kafka", "pyspark")


def describe() -> dict[str, Any]:
    """Return everything that does not change during a measurement."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in LIBRARIES},
        "rabbitmq": _package("rabbitmq-server"),
        "haproxy": _first(r"version (\S+)", ["haproxy", "-v"]),
        "erlang": _package("erlang-base"),
        "kernel": platform.release(),
        "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "disk_free_gib": round(shutil.disk_usage(CHECKOUT).free / 2**30, 1),
        "load_before": load_average(),
    }


def load_average() -> list[float]:
    """Return the number of runnable processes, averaged over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def calm(say: Callable[[str], None]) -> None:
    """Wait until the load average has forgotten earlier work, `CALM_WITHIN_S` at most."""
    until_s = time.monotonic() + CALM_WITHIN_S
    if (load := load_average()[0]) > LOAD_MAX:
        say(f"load {load:g}: waiting up to {CALM_WITHIN_S:.0f} s until it is {LOAD_MAX:g}")
    while load_average()[0] > LOAD_MAX and time.monotonic() < until_s:
        time.sleep(LOOK_S)


def commit() -> str:
    """Return the checkout's commit, followed by ``+`` when files differ from it; "" outside of git.

    Pages of figures, which measuring writes, are left out.
    """
    name = _output(["git", "-C", str(CHECKOUT), "rev-parse", "--short=12", "HEAD"]).strip()
    others = [".", *(f":(exclude){path}" for path in WRITTEN)]
    argv = ["git", "-C", str(CHECKOUT), "status", "--porcelain", "-uno", "--", *others]
    changed = _output(argv).strip()
    return name + ("+" if changed else "")


def code() -> str:
    """Return a digest of the code of load processes, committed or not: equal checkouts run the same."""
    digest = hashlib.sha256()
    for path in sorted(path for each in LOADED for path in (CHECKOUT / each).rglob("*.py")):
        digest.update(f"{path.relative_to(CHECKOUT)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def has_history() -> bool:
    """Return whether git has all commits up to this one: not in an archive, nor in a shallow clone."""
    argv = ["git", "-C", str(CHECKOUT), "rev-parse", "--is-shallow-repository"]
    return _output(argv).strip() == "false"


def cpu_model(cpuinfo: str) -> str:
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _package(name: str) -> str:
    return _output(["dpkg-query", "-W", "-f", "${Version}", name])


def _first(pattern: str, argv: Sequence[str]) -> str:
    found = re.search(pattern, _output(argv))
    return found[1] if found else ""


def _output(argv: Sequence[str]) -> str:
    """Return what a command prints; "" when it does not exist or fails."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=COMMAND_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
