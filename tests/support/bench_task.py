"""A task for a client under measurement, at a broker that does not exist."""

from __future__ import annotations

from typing import Any

from bench.systems.turn import Task

__all__ = ["bench_task"]


def bench_task(**fields: Any) -> Task:
    wanted: dict[str, Any] = {
        "verb": "publish",
        "broker": "127.0.0.1:5672",
        "list_url": "http://127.0.0.1:8081/consumer-list",
        "user": "bus",
        "password_file": "/nowhere",
        "topic": "figures",
        "subscription": "sink",
    }
    return Task(**{**wanted, **fields})
