"""An inventory of a balancer with a few brokers, as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inventory.inventory import Inventory, parse
from lb.runtime import ServerState
from messagebus.secret import Secret

BASE = Path("/somewhere")
PASSWORD = "pr'o\"be e$x"
UP = ServerState(
    name="mb1",
    address="10.0.1.1:5672",
    verdict="up",
    drained=False,
    check="L7OK",
    agent="says ready",
    sessions=1,
    sessions_total=1,
    queue=0,
    weight=100,
    changed_s=1,
)


def inventory_values(brokers: int = 2) -> dict[str, Any]:
    """Return the contents of a good inventory file."""
    return {
        "cluster": "test",
        "list_file": "lists/test.txt",
        "token_file": "secrets/token",
        "admin_user": "admin",
        "admin_password_file": "secrets/admin",
        "supervisor": "local",
        "balancer": {
            "amqp": "10.0.0.1:5672",
            "list": "10.0.0.1:8081",
            "stats": "10.0.0.1:8404",
            "config": "haproxy/haproxy.cfg",
            "socket": "haproxy/admin.sock",
            "state_file": "haproxy/server-state",
            "master_pid_file": "haproxy/master.pid",
            "probe_user": "probe",
            "probe_password_file": "secrets/probe",
        },
        "brokers": [
            {
                "name": f"mb{number}",
                "address": f"10.0.1.{number}:5672",
                "agent": f"10.0.1.{number}:8081",
                "check": f"10.0.1.{number}:8082",
                "management": f"10.0.1.{number}:15672",
                "node_list_file": f"nodes/mb{number}/list.txt",
            }
            for number in range(1, brokers + 1)
        ],
    }


def inventory(
    brokers: int = 2, *, base: Path = BASE, timers: Mapping[str, float] | None = None
) -> Inventory:
    """Return a good inventory whose probe's password is known. timers: in place of the defaults."""
    values = inventory_values(brokers)
    values["balancer"]["timers"] = dict(timers or {})
    read = parse(values, base=base)
    return dataclasses.replace(
        read, balancers=(dataclasses.replace(read.balancer, probe_password=Secret(PASSWORD)),)
    )


def mirrored_values(**changes: Any) -> dict[str, Any]:
    """Return values with mb1's disk mirrored on a1 and a2; b1 to b3 lack parts. changes: of the mirror."""
    values = inventory_values()
    values["hosts"] = [
        {
            "name": "a1",
            "ssh": "root@10.77.0.1",
            "replication": "10.78.0.1",
            "management": "10.77.0.1",
        },
        {
            "name": "a2",
            "ssh": "10.77.0.2:2222",
            "replication": "10.78.0.2",
            "management": "10.77.0.2",
        },
        {"name": "b1", "ssh": "b1.example"},
        {"name": "b2", "ssh": "b2.example", "replication": "10.78.0.4"},
        {
            "name": "b3",
            "ssh": "b3.example",
            "replication": "10.78.0.5",
            "management": "10.78.0.5",
        },
    ]
    values["brokers"][0]["host"] = "a1"
    values["mirrors"] = [
        {
            "name": "mb1",
            "hosts": ["a1", "a2"],
            "device": "/dev/drbd0",
            "disk": "/dev/vdb",
            "mount": "/var/lib/rabbitmq",
            "port": 7789,
            **changes,
        }
    ]
    return values
