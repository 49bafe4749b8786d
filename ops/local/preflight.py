"""Conditions for the start of a local cluster: programs, memory, disk, short paths."""

from __future__ import annotations

import shutil
from pathlib import Path

from ops.errors import LocalFault
from ops.local import roots
from ops.local.files import DISK_FREE_LIMIT_BYTES
from ops.local.layout import Layout

__all__ = ["check"]

# A broker takes 155 MB at rest and its agent 60 MB; the rest is for the first messages.
NODE_MEMORY_BYTES = 250_000_000
# Write-ahead log, segments, Mnesia and logs of one broker in a demo.
NODE_DISK_BYTES = 300_000_000
# Linux's limit for the address of a Unix socket, with HAProxy's suffix for its temporary one.
SOCKET_PATH_BYTES_MAX = 107 - len(".12345.tmp")


def check(layout: Layout, *, to_start: int) -> None:
    """Raise LocalFault, in one line, when the cluster cannot start here.

    to_start: number of its nodes that do not run yet.
    """
    faults = [
        _missing(layout.root),
        _too_little(
            "memory", _memory_available_bytes(Path("/proc/meminfo")), to_start * NODE_MEMORY_BYTES
        ),
        _too_little(
            f"disk space for {layout.dir}",
            shutil.disk_usage(layout.dir).free,
            DISK_FREE_LIMIT_BYTES + to_start * NODE_DISK_BYTES,
        ),
        _too_long(layout.fronts[-1].admin_socket),
    ]
    if found := [fault for fault in faults if fault]:
        raise LocalFault("; ".join(found))


def _missing(root: Path) -> str:
    missing = roots.missing(root)
    return f"missing in {root}: {', '.join(missing)}" if missing else ""


def _too_little(what: str, there: int, needed: int) -> str:
    if there >= needed:
        return ""
    return f"too little {what}: {there // 1_000_000:,} MB of {needed // 1_000_000:,} MB"


def _too_long(socket: Path) -> str:
    if len(str(socket).encode()) <= SOCKET_PATH_BYTES_MAX:
        return ""
    return f"path of HAProxy's socket is too long, choose another folder: {socket}"


def _memory_available_bytes(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise LocalFault(f"{meminfo} does not tell MemAvailable")
