"""The numbers of a run that comparisons and summaries go by. What is not known is left out, never 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.harness.sampling import CPU_LEAST_S

__all__ = ["NUMBERS", "Number", "numbers_of"]


@dataclass(frozen=True, slots=True)
class Number:
    """judged: whether its getting worse is a regression. of_messages: a run that lacks it had none."""

    name: str
    more_is_better: bool
    judged: bool = True
    of_messages: bool = True


NUMBERS = (
    Number("confirmed a second", more_is_better=True),
    Number("delivered a second", more_is_better=True),
    Number("confirm p50", more_is_better=False),
    Number("confirm p99", more_is_better=False),
    Number("delivery p50", more_is_better=False),
    Number("delivery p99", more_is_better=False),
    Number("client CPU us", more_is_better=False, of_messages=False),
    Number("broker CPU us", more_is_better=False, of_messages=False, judged=False),
)


def numbers_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Name -> value, of what ``result.json`` has."""
    profile = result["profile"]
    found = {"confirmed a second": float(result["confirmed_per_s"])}
    delivered = result.get("delivered_per_s")
    if delivered is not None and profile["load"]["consumers"]:
        found["delivered a second"] = float(delivered)
    for measure in ("confirm", "delivery"):
        percentiles = result["percentiles_ms"].get(measure, {})
        found |= {
            f"{measure} {name}": float(percentiles[name])
            for name in ("p50", "p99")
            if name in percentiles
        }
    measured_s = float(result.get("measured_s") or profile["time"]["measured_s"])
    messages = found["confirmed a second"] * measured_s
    costs = {
        "client CPU us": _client_s(result, measured_s),
        "broker CPU us": _broker_s(result, measured_s),
    }
    return found | {
        name: cpu_s / messages * 1e6
        for name, cpu_s in costs.items()
        if cpu_s is not None and messages
    }


def _client_s(result: Mapping[str, Any], measured_s: float) -> float | None:
    """Of a closed loop each part has seconds of its own: consumers take longer than publishers."""
    clients = result["clients"]
    closed = result["profile"]["load"]["schedule"]["kind"] == "closed"
    if not clients or (closed and any("seconds" not in each for each in clients)):
        return None
    return sum(
        float(each["cpu_share"]) * float(each.get("seconds", measured_s)) for each in clients
    )


def _broker_s(result: Mapping[str, Any], measured_s: float) -> float | None:
    """None where one was not seen to the end, or not long enough: what the others used is not what the
    messages cost.

    Of the whole measured part, also where a little of it was not seen.
    """
    brokers = result["brokers"]
    if len(brokers) < result["profile"]["system"]["brokers"] or measured_s < CPU_LEAST_S:
        return None
    costs = [
        each["messages_cpu_s"]
        if "messages_cpu_s" in each
        else float(each["cpu_s"]) / float(each["seconds"]) * measured_s
        for each in brokers.values()
    ]
    return None if None in costs else sum(map(float, costs))
