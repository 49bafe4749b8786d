"""The balance of load over brokers, connections and keys.

spark-submit spark/jobs/imbalance.py --events DIR --out DIR
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    # spark-submit puts this folder on the path, and not the checkout.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from messagebus.terminal import plural
from reports.page import (
    BARS_MAX,
    NO_BARS,
    Bars,
    Figure,
    Page,
    Section,
    against_mean,
    section_of,
)
from reports.text import Columns, megabytes
from spark.command import Answer, exit_code, job_command
from spark.measures import throughput
from spark.measures.faults import lost_at_least, missing_at_least
from spark.measures.imbalance import (
    OF_BROKERS,
    OF_CONNECTIONS,
    OF_DELIVERIES,
    OF_KEYS,
    OF_RATES,
    Imbalance,
    hot_keys,
    imbalance,
    imbalance_of,
    key_loads,
    keys,
)  # fmt: skip
from spark.measures.run import Run
from spark.measures.throughput import CONFIRMED, DELIVERED
from spark.pages import BEST, collected, page_of

HOT_MAX = 20
WORDS = {
    "largest / mean": "1 is even. n is all on one of n.",
    "Gini": "0 is even. (n - 1) / n is all on one of n.",
    "rate while they took any": "messages over the seconds in which the broker confirmed any. A broker "
    "that was added late, or was down, is thus judged for its own time; a broker that took little seems "
    "better than it was.",
}


def measure(run: Run) -> Answer:
    brokers = collected(throughput.totals(run.seconds, ["broker"]))
    connections = collected(throughput.totals(run.seconds, ["publisher", "broker"]))
    keyed = keys(run.events("published"))
    loads = [(row["messages"], row["keys"]) for row in collected(key_loads(keyed))]
    found: dict[str, Any] = {
        "brokers": brokers,
        "connections": [row for row in connections if row["kind"] == CONFIRMED],
        "hot_keys": collected(hot_keys(keyed, HOT_MAX)) if loads else [],
        "keyed": sum(messages * count for messages, count in loads),
        "judged": {
            name: asdict(judged) if judged else None
            for name, judged in _judged(run, brokers, connections, loads).items()
        },
    }
    found["missing_at_least"] = missing_at_least(run, run.seconds)
    return Answer(found, _page(run, found))


def _judged(
    run: Run,
    brokers: list[dict[str, Any]],
    connections: list[dict[str, Any]],
    loads: list[tuple[int, int]],
) -> dict[str, Imbalance | None]:
    of = {(row["kind"], row["broker"]): row for row in brokers}
    names = _brokers(run, brokers)
    confirmed = [of.get((CONFIRMED, name)) for name in names]
    return {
        OF_BROKERS: imbalance([r["messages"] if r else 0 for r in confirmed]),
        OF_RATES: imbalance([r["messages"] / r["active_s"] if r else 0 for r in confirmed]),
        OF_DELIVERIES: imbalance(
            [of[DELIVERED, name]["messages"] if (DELIVERED, name) in of else 0 for name in names]
        ),
        OF_CONNECTIONS: imbalance(
            [row["messages"] for row in connections if row["kind"] == CONFIRMED]
        ),
        OF_KEYS: imbalance_of(loads),
    }


def _brokers(run: Run, rows: list[dict[str, Any]]) -> list[str]:
    """Return the brokers of the run, also those without a message, and brokers that nobody listed."""
    seen = {row["broker"] for row in rows if row["broker"]}
    return [*run.manifest.brokers, *sorted(seen - {*run.manifest.brokers})]


def _page(run: Run, measured: dict[str, Any]) -> Page:
    judged = [{"of": name, **one} for name, one in measured["judged"].items() if one]
    load = measured["judged"][OF_BROKERS]
    return page_of(
        run,
        "imbalance",
        verdict=f"Of all messages the busiest broker took {load['max_over_mean']:.2f} times the mean."
        if load
        else "Nothing was confirmed.",
        faults=tuple(lost_at_least(measured["missing_at_least"])),
        figures=tuple(
            Figure(
                f"{one['max_over_mean']:.2f}",
                f"largest / mean of {one['of']}",
                f"Gini {one['gini']:.3f}",
            )
            for one in judged
        ),
        sections=_sections(run, measured, judged),
        words=WORDS,
        tables=("throughput",),
    )


def _sections(
    run: Run, measured: dict[str, Any], judged: list[dict[str, Any]]
) -> tuple[Section, ...]:
    connections = [
        (f"{row['publisher']} at {row['broker']}", row["messages"])
        for row in measured["connections"]
    ]
    hot = [(f"{row['topic']} {row['key']}", row["messages"]) for row in measured["hot_keys"]]
    return (
        _loads(
            "Brokers",
            measured["brokers"],
            ("kind", "broker"),
            note="Messages that each of them confirmed.",
            bars=broker_bars(run, measured),
        ),
        section_of("Balance", judged, BALANCE),
        _loads(
            "Connections",
            measured["connections"],
            ("publisher", "broker"),
            note="A publisher at a broker; one that moved has several.",
            bars=_bars(measured, OF_CONNECTIONS, connections),
        ),
        section_of(
            "Hot keys",
            [
                {**row, "share": f"{row['messages'] / measured['keyed']:.1%}"}
                for row in measured["hot_keys"]
                if row["messages"] > measured["judged"][OF_KEYS]["mean"]
            ],
            {
                **{name: name for name in ("topic", "key", "messages", "share")},
                "MB": lambda row: megabytes(row["bytes"]),
            },
            left=2,
            note=f"The {HOT_MAX} keys with the most messages, if more than the mean, of "
            f"{plural(measured['keyed'], 'message')} that have one.",
            bars=_bars(measured, OF_KEYS, hot),
        ),
    )


BALANCE: Columns = {
    "of": "of",
    "count": "count",
    "mean": lambda row: f"{row['mean']:,.1f}",
    "largest / mean": lambda row: f"{row['max_over_mean']:.2f}",
    "Gini": lambda row: f"{row['gini']:.3f}",
}


def broker_bars(run: Run, measured: Mapping[str, Any]) -> Bars:
    """Draw the loads of all brokers of the run, in their order."""
    loads = {
        row["broker"]: row["messages"] for row in measured["brokers"] if row["kind"] == CONFIRMED
    }
    named = [(broker, loads.get(broker, 0)) for broker in _brokers(run, measured["brokers"])]
    if len(named) > BARS_MAX:
        named.sort(key=lambda load: -load[1])
    return _bars(measured, OF_BROKERS, named, is_sorted=True)


def _bars(
    measured: Mapping[str, Any], of: str, loads: list[tuple[str, int]], *, is_sorted: bool = False
) -> Bars:
    judged = measured["judged"][of]
    if not judged:
        return NO_BARS
    ordered = loads if is_sorted else sorted(loads, key=lambda load: -load[1])
    total = round(judged["mean"] * judged["count"])
    return against_mean(
        ordered, "messages", mean=judged["mean"], total=total, count=judged["count"]
    )


def _loads(title: str, rows: list[dict[str, Any]], dims: tuple[str, ...], **more: Any) -> Section:
    return section_of(
        title,
        sorted(rows, key=lambda row: (row["kind"], -row["messages"])),
        {
            **{dim: dim for dim in dims},
            "messages": "messages",
            "MB": lambda row: megabytes(row["bytes"]),
            BEST: lambda row: f"{row['peak_per_s']:,}/s",
        },
        left=len(dims),
        **more,
    )


command = job_command(
    "imbalance",
    "Balance of brokers and connections, Gini and largest over mean; hot keys.",
    measure,
)


if __name__ == "__main__":
    sys.exit(exit_code(command, None, prog_name="imbalance"))
