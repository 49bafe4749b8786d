"""The environment of a measurement: versions, the machine, and its load by other processes."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
COMMAND_WITHIN_S = 10.0
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


def commit() -> str:
    """Return the checkout's commit, followed by ``+`` when files differ from it; "" outside of git."""
    name = _output(["git", "-C", str(CHECKOUT), "rev-parse", "--short=12", "HEAD"]).strip()
    changed = _output(["git", "-C", str(CHECKOUT), "status", "--porcelain", "-uno"]).strip()
    return name + ("+" if changed else "")


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
