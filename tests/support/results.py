"""Results of measured runs that never happened, as ``result.json`` has them."""

from __future__ import annotations

from typing import Any

from bench.load.profile import Profile


def profile_with(load: dict[str, Any] | None = None, rate: float = 1, **tables: Any) -> Profile:
    """Return a profile with a constant rate. load: more of its settings, or others. tables: the others."""
    whole = {"schedule": {"kind": "constant", "rate_per_s": rate}} | (load or {})
    return Profile.from_values({"name": "x", "load": whole, **tables}, "x")


ONE_BROKER = {"brokers": 1}
PROFILE = profile_with(rate=100, system=ONE_BROKER).as_json()
CLOSED = profile_with(
    {"schedule": {"kind": "closed", "count": 100}}, system=ONE_BROKER, time={"warm_up_s": 0.0}
).as_json()


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
