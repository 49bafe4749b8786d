"""A task for a client under measurement, at a broker that does not exist."""

from __future__ import annotations

from typing import Any

from bench.harness.timed_turn import Task

ENV = {
    "MESSAGEBUS_BROKER": "127.0.0.1:5672",
    "MESSAGEBUS_LIST_URL": "http://127.0.0.1:8081/consumer-list",
}


def bench_task(**fields: Any) -> Task:
    wanted: dict[str, Any] = {"verb": "publish", "topic": "figures", "subscription": "sink"}
    return Task(**{**wanted, "env": ENV, **fields})
