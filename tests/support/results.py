"""Results of measured runs that never happened, as ``result.json`` has them."""

from __future__ import annotations

from typing import Any

from bench.load.profile import Profile

__all__ = ["CLOSED", "PROFILE", "result"]


def _profile(schedule: dict[str, Any], **time: float) -> dict[str, Any]:
    values = {"name": "x", "load": {"schedule": schedule}, "system": {"brokers": 1}, "time": time}
    return Profile.from_values(values, "x").as_json()


PROFILE = _profile({"kind": "constant", "rate_per_s": 100})
CLOSED = _profile({"kind": "closed", "count": 100}, warm_up_s=0.0)


def result(
    rate: float = 100, p99: float = 10, delivery: float | None = None, **changed: Any
) -> dict[str, Any]:
    """Return the result of 30 s on one broker; delivery: p99 of it."""
    arrived = {} if delivery is None else {"p50": delivery / 2, "p99": delivery}
    return {
        "profile": PROFILE,
        "environment": {"commit": "abc", "cpu": "slow", "cores": 2, "at": "2026-11-21T00:00:00Z"},
        "durability": "fsynced",
        "complete": True,
        "faults": [],
        "confirmed_per_s": rate,
        "percentiles_ms": {"confirm": {"p50": p99 / 2, "p99": p99}, "delivery": arrived},
        "clients": [{"cpu_share": 0.3}],
        "brokers": {"mb1": {"cpu_s": 3.0, "seconds": 30.0}},
    } | changed
