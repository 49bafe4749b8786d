"""The part of an inventory that says how hosts are set up: users of the brokers, and limits. Values.

Limits have defaults that are right for a host that has nothing else to do.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from lb.tables import Table

__all__ = ["ROLES", "Provision", "User", "read_provision", "read_user"]

ROLES = ("agent", "application", "publisher", "consumer", "monitor", "operator")
_USER = re.compile(r"[!-~]{1,128}")

# RabbitMQ's own default of 50 MB leaves no room for what it must still write when it stops taking more.
DISK_FREE_MB = 2_000
# 40 % is RabbitMQ's default; beside it run an agent and the file system's cache.
MEMORY_PERCENT = 40
# RabbitMQ's default of 512 MiB for one file of the write-ahead log.
WAL_MB_MAX = 512
QUEUE_MB_MAX = 8_000


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """One user of every broker. role: one of ROLES, or the gate check's. password_file: here."""

    name: str
    role: str
    password_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """Limits of every broker; sizes in MB of 1,000,000 bytes.

    disk_free_mb: below that it takes no publishes. memory_percent: of the host's; above that neither.
    wal_mb_max: of one file of the write-ahead log. queue_mb_max: of one queue, which then refuses more.
    tls_dir: here, with NAME.pem and NAME.key of every broker; None without TLS.
    old_publishers: clients of before the exchanges `mb.to/NAME` may publish to queues as they did.
    """

    disk_free_mb: int = DISK_FREE_MB
    memory_percent: int = MEMORY_PERCENT
    wal_mb_max: int = WAL_MB_MAX
    queue_mb_max: int = QUEUE_MB_MAX
    tls_dir: Path | None = None
    old_publishers: bool = False


def read_user(table: Table) -> User:
    user = User(
        name=table.text("name", _USER),
        role=ROLES[table.choice("role", *ROLES)],
        password_file=table.path("password_file"),
    )
    table.nothing_else()
    return user


def read_provision(table: Table, *, tls: bool) -> Provision:
    """tls: the cluster has it, so there must be certificates of brokers."""
    numbers = {
        field.name: table.number(field.name, field.default)
        for field in dataclasses.fields(Provision)
        if type(field.default) is int
    }
    made = Provision(
        **numbers,
        tls_dir=table.path("tls_dir") if tls else None,
        old_publishers=table.flag("old_publishers"),
    )
    table.nothing_else()
    return made
