"""Conditions for the start of a local cluster: programs, memory, disk, short paths, and free ports.

A port that is free now may be taken by another starter a moment later, long before our broker
listens. So a cluster holds locks on its set of ports, and two clusters never take the same ones; epmd
inherits the locks and holds them for as long as the cluster lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ops.errors import LocalFault
from ops.local import roots
from ops.local.files import DISK_FREE_LIMIT_BYTES
from ops.local.layout import BLOCKS, Layout

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
    roots_in_use = dict.fromkeys(
        [layout.root, *(roots.root_of(layout, node) for node in layout.nodes)]
    )
    faults = [
        *map(_missing, roots_in_use),
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


# Ports that are tried for a server beside the brokers.
SERVER_PORTS = 100
# Offsets of all ports of a cluster; the first free one is taken.
OFFSETS = tuple(range(0, 30_000, 1_000))


@dataclass(slots=True)
class Claim:
    """A layout whose ports are reserved. fds: descriptors of the locks; close them once epmd has them."""

    layout: Layout
    fds: tuple[int, ...]

    def release(self) -> None:
        for fd in self.fds:
            with suppress(OSError):
                os.close(fd)
        self.fds = ()


def claim_ports(layout: Layout, *, port_offset: int | None = None) -> Claim:
    """Find ports that are free: those of the layout, else the first other offset.

    port_offset: the only offset to try. Raises LocalFault when it, or every offset, is taken.
    """
    block, block_fd = _claim_block(layout)
    offsets = [port_offset] if port_offset is not None else dict.fromkeys([layout.offset, *OFFSETS])
    in_use: list[str] = []
    for offset in offsets:
        tried = replace(layout, offset=offset, block=block)
        if (fd := _lock(f"{tried.network}-{offset}")) is None:
            in_use.append(f"offset {offset} belongs to another local cluster")
        elif addresses := taken(tried.sockets):
            os.close(fd)
            in_use.append(f"in use: {', '.join(addresses)}")
        else:
            return Claim(tried, (block_fd, fd))
    os.close(block_fd)
    raise LocalFault(f"no free ports on {layout.network}.*: {in_use[0]}")


def taken(sockets: Iterable[tuple[str, int]]) -> list[str]:
    """Return the addresses that cannot be listened on, as ``host:port``."""
    return [f"{host}:{port}" for host, port in sockets if not _is_free(host, port)]


def free_port(host: str, first: int) -> int:
    """Return the first port from this one on that nobody listens at. Raises LocalFault without one."""
    for port in range(first, first + SERVER_PORTS):
        if not taken([(host, port)]):
            return port
    raise LocalFault(f"no free port on {host} from {first} to {first + SERVER_PORTS - 1}")


def _claim_block(layout: Layout) -> tuple[int, int]:
    """Claim the ports of epmd and of Erlang's distribution. Returns the block and the lock's descriptor."""
    for block in dict.fromkeys([layout.block, *range(BLOCKS)]):
        if (fd := _lock(f"block-{block}")) is None:
            continue
        tried = replace(layout, block=block)
        inner = [tried.epmd_port, *(node.distribution_port for node in tried.nodes)]
        if not taken(("127.0.0.1", port) for port in inner):
            return block, fd
        os.close(fd)
    raise LocalFault(f"all {BLOCKS} blocks of ports for local clusters are in use")


def _lock(name: str) -> int | None:
    """Lock a file. Returns its descriptor, None when another process holds the lock."""
    folder = Path(tempfile.gettempdir()) / f"messagebus-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    try:
        # Any user may have made it: the temporary folder belongs to all.
        place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as fault:
        raise LocalFault(f"{folder}: not a folder of ours: {fault.strerror}") from fault
    try:
        if os.fstat(place).st_uid != os.getuid():
            raise LocalFault(f"{folder} belongs to another user: remove it, or set TMPDIR")
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=place)
    except OSError as fault:
        raise LocalFault(f"{folder / name}: {fault.strerror}") from fault
    finally:
        os.close(place)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        # Ports of connections that have just ended may be listened on, as RabbitMQ and HAProxy do.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError:
            return False
    return True
